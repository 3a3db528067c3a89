//! One thing that is wrong with a file that people wrote: where, what, and what to do. Knows nothing of the keys.

use std::fmt;
use std::path::PathBuf;

/// What kind of problem it is; `docs/errors.md` has a page for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// GB0100: the file itself cannot be read.
    Unreadable,
    /// GB0101: not TOML.
    Syntax,
    /// GB0102: a key that does not exist.
    UnknownKey,
    /// GB0103: a key that must be there.
    MissingKey,
    /// GB0104: the wrong type, or a value outside its range.
    Value,
    /// GB0105: a name that exists twice.
    Duplicate,
    /// GB0106: names something that is not in the configuration.
    UnknownName,
    /// GB0107: a file that the configuration points to cannot be read.
    MissingFile,
    /// GB0108: keys that contradict each other.
    Contradiction,
    /// GB0109: a window or blackout that can never be on, or not as written.
    Calendar,
    /// GB0110: known, but not in this release.
    NotYet,
    /// GB0111: a policy that cannot be loaded.
    Policy,
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unreadable => "GB0100",
            Self::Syntax => "GB0101",
            Self::UnknownKey => "GB0102",
            Self::MissingKey => "GB0103",
            Self::Value => "GB0104",
            Self::Duplicate => "GB0105",
            Self::UnknownName => "GB0106",
            Self::MissingFile => "GB0107",
            Self::Contradiction => "GB0108",
            Self::Calendar => "GB0109",
            Self::NotYet => "GB0110",
            Self::Policy => "GB0111",
        })
    }
}

/// A problem. Its text is one line:
/// `gpu-bridge.toml:12:9: pool.gpu-burst.nodes: found -3, expected …; do …  [GB0104]`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{}:{line}:{column}: {separated}found {found}, expected {expected}; {advice}  [{code}]",
    .file.display(), separated = separated(.field))]
pub struct Problem {
    /// The kind.
    pub code: Code,
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The keys that lead there, such as `pool.gpu-burst.nodes`; empty for the file as a whole.
    pub field: String,
    /// What stands there. Never a secret: for an unknown key only its name.
    pub found: String,
    /// What should stand there.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

/// Where something stands in a file, for problems that are found later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The keys that lead there; empty for the file as a whole.
    pub field: String,
}

impl Place {
    /// A problem with what stands here.
    pub fn problem(self, code: Code, found: String, expected: String, advice: String) -> Problem {
        let Self { file, line, column, field } = self;
        Problem { code, file, line, column, field, found, expected, advice }
    }
}

fn separated(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}
