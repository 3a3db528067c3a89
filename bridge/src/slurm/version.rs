//! Which REST versions we speak, how each one's answers look and what each can do: the one table to extend for another
//! release (`docs/slurm-versions.md` says how). Decides by which mouth a write goes, and speaks through neither.

/// A family of JSON shapes. Numbers are read in every form by all of them; what differs is where a state stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// A state is one word (a node's in lower case, its flags in `state_flags`), a partition is flat (up to v0.0.38).
    Words,
    /// A node's state is a list of words, a job's one word; partitions are nested and do not tell their state (v0.0.39).
    Mixed,
    /// States are lists of words, numbers `{"set","infinite","number"}` (v0.0.40 and later).
    Lists,
}

/// What Slurm is asked or told through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mouth {
    /// slurmrestd.
    Rest,
    /// `scontrol`.
    Scontrol,
    /// `squeue`.
    Squeue,
}

impl Mouth {
    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rest => "slurmrestd",
            Self::Scontrol => "scontrol",
            Self::Squeue => "squeue",
        }
    }
}

/// How all jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Jobs {
    /// `jobs/state` for all, `job/ID` for those that matter.
    States,
    /// squeue, a line each: these versions have nothing but `jobs/`, whole, which is 80 MB for 10,000 jobs.
    Squeue,
}

/// A REST version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// As it stands in a URL.
    pub(super) name: &'static str,
    /// The releases of Slurm that serve it.
    pub(super) served_by: &'static str,
    /// How its answers look.
    pub(super) family: Family,
    /// What a node's state is written through.
    pub(super) node: Mouth,
    /// What a reservation is written through. (DELETE alone is there in v0.0.40 to v0.0.42 too, but only from Slurm 25.05 on.)
    pub(super) reservation: Mouth,
    /// How jobs are listed.
    pub(super) jobs: Jobs,
}

/// Newest first: the first one that is served is used. (v0.0.36 shows a drained node as "idle" and is never used.)
pub(super) const VERSIONS: [Version; 9] = [
    version("v0.0.45", "26.05", Family::Lists, Writes::BOTH, Jobs::States),
    version("v0.0.44", "25.11, 26.05", Family::Lists, Writes::BOTH, Jobs::States),
    version("v0.0.43", "25.05, 25.11, 26.05", Family::Lists, Writes::BOTH, Jobs::States),
    version("v0.0.42", "24.11, 25.05, 25.11, 26.05", Family::Lists, Writes::NODES, Jobs::States),
    version("v0.0.41", "24.05, 24.11, 25.05, 25.11", Family::Lists, Writes::NODES, Jobs::States),
    version("v0.0.40", "23.11, 24.05, 24.11, 25.05", Family::Lists, Writes::NODES, Jobs::Squeue),
    version("v0.0.39", "23.02, 23.11", Family::Mixed, Writes::NODES, Jobs::Squeue),
    version("v0.0.38", "22.05, 23.02, 23.11", Family::Words, Writes::NONE, Jobs::Squeue),
    version("v0.0.37", "22.05, 23.02", Family::Words, Writes::NONE, Jobs::Squeue),
];

/// What REST writes.
#[derive(Debug, Clone, Copy)]
struct Writes {
    node: Mouth,
    reservation: Mouth,
}

impl Writes {
    /// Nodes and reservations.
    const BOTH: Self = Self { node: Mouth::Rest, reservation: Mouth::Rest };
    /// Nodes only.
    const NODES: Self = Self { node: Mouth::Rest, reservation: Mouth::Scontrol };
    /// Nothing.
    const NONE: Self = Self { node: Mouth::Scontrol, reservation: Mouth::Scontrol };
}

const fn version(
    name: &'static str,
    served_by: &'static str,
    family: Family,
    writes: Writes,
    jobs: Jobs,
) -> Version {
    let Writes { node, reservation } = writes;
    Version { name, served_by, family, node, reservation, jobs }
}

impl Version {
    /// The version of this name, where we speak it.
    pub(super) fn named(name: &str) -> Option<Self> {
        VERSIONS.into_iter().find(|version| version.name == name)
    }
}

/// All names, for messages.
pub(super) fn known() -> String {
    VERSIONS.map(|version| version.name).join(", ")
}

/// What goes through which mouth; `None` is `mode = "cli"`, without slurmrestd.
pub(super) fn through(version: Option<Version>) -> [(&'static str, Mouth); 5] {
    let (looks, jobs, drains, reservations) = match version {
        None => (Mouth::Scontrol, Mouth::Squeue, Mouth::Scontrol, Mouth::Scontrol),
        Some(version) => {
            let jobs = match version.jobs {
                Jobs::States => Mouth::Rest,
                Jobs::Squeue => Mouth::Squeue,
            };
            (Mouth::Rest, jobs, version.node, version.reservation)
        }
    };
    [
        ("nodes, partitions, reservations", looks),
        ("jobs", jobs),
        ("drains", drains),
        ("writes of reservations", reservations),
        ("release, job id counter", Mouth::Scontrol),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/slurm-versions.md`.
    fn table() -> String {
        let heads = through(None).map(|(what, _)| what).join(" | ");
        let row = |spoken: &str, of: &str, version| {
            let mouths = through(version).map(|(_, mouth)| mouth.name()).join(" | ");
            format!("| {spoken} | {of} | {mouths} |\n")
        };
        let versions = VERSIONS.map(|version| row(version.name, version.served_by, Some(version))).concat();
        let cli = row("none, `mode = \"cli\"`", "22.05 to 26.05", None);
        format!(
            "| REST version | served by Slurm | {heads} |\n|---|---|---|---|---|---|---|\n{versions}{cli}"
        )
    }

    #[test]
    fn the_docs_have_the_table_of_versions() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/slurm-versions.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        assert!(docs.contains(&table()), "docs/slurm-versions.md should have:\n{}", table());
    }

    #[test]
    fn the_newest_comes_first() {
        assert!(VERSIONS.is_sorted_by(|a, b| a.name > b.name));
        assert_eq!(Version::named("v0.0.36"), None);
    }
}
