//! Which REST versions we speak, and what each can do. The one place to extend for another release.

/// A family of JSON shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Numbers as `{"set","infinite","number"}`, states as lists of words (v0.0.40 and later).
    Sin,
}

/// A REST version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// As it stands in a URL.
    pub(super) name: &'static str,
    /// How its answers look.
    pub(super) family: Family,
}

/// Newest first: the first one that is served is used.
pub(super) const VERSIONS: [Version; 2] =
    [Version { name: "v0.0.42", family: Family::Sin }, Version { name: "v0.0.41", family: Family::Sin }];

/// All names, for messages.
pub(super) fn known() -> String {
    VERSIONS.map(|version| version.name).join(", ")
}
