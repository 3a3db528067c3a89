//! Real Slurm on one machine: slurmctld, slurmd with fake GPUs, slurmrestd, each lab in namespaces of its own.
//!
//! [`Lab`] starts and drives it; `namespace` makes what it runs in, `root` makes the root filesystem of a release, `conf` writes the configuration, `daemons`
//! knows how each daemon is started and signalled.

mod conf;
mod daemons;
mod lab;
mod namespace;
mod root;

pub use daemons::Daemon;
pub use lab::Lab;
pub use namespace::unsupported;
pub use root::prepare;

/// A Slurm release that a Debian suite carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Release {
    /// 22.05, REST up to v0.0.38 (bookworm).
    V22_05,
    /// 24.11, REST v0.0.40 to 42 (trixie).
    #[default]
    V24_11,
    /// 26.05, REST v0.0.42 to 45 (sid: whatever it serves today; ask [`Lab::version`]).
    V26_05,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V22_05, Self::V24_11, Self::V26_05];

    /// As Slurm writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V22_05 => "22.05",
            Self::V24_11 => "24.11",
            Self::V26_05 => "26.05",
        }
    }

    /// The REST versions that it serves and gpu-bridge speaks, newest first.
    pub fn apis(self) -> &'static [&'static str] {
        match self {
            Self::V22_05 => &["v0.0.38", "v0.0.37"],
            Self::V24_11 => &["v0.0.42", "v0.0.41", "v0.0.40"],
            Self::V26_05 => &["v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42"],
        }
    }

    /// The newest REST version that it serves, e.g. `v0.0.42`.
    pub fn newest_api(self) -> &'static str {
        self.apis()[0]
    }

    fn suite(self) -> &'static str {
        match self {
            Self::V22_05 => "bookworm",
            Self::V24_11 => "trixie",
            Self::V26_05 => "sid",
        }
    }
}

/// A compute node with its own slurmd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The GPUs' GRES type, e.g. `a100`.
    pub gpu_type: String,
    /// How many GPUs it has, 16 at most.
    pub gpus: u8,
}

impl Node {
    /// A node with four `a100`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), gpu_type: "a100".to_owned(), gpus: 4 }
    }

    /// `gpu1` … `gpuN`, four `a100` each.
    pub fn several(count: usize) -> Vec<Self> {
        (1..=count).map(|number| Self::new(format!("gpu{number}"))).collect()
    }
}

/// What a lab is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// The release.
    pub release: Release,
    /// The nodes that run a slurmd, 80 at most; all of them are in the default partition `main`.
    pub nodes: Vec<Node>,
    /// `SchedulerParameters`; short intervals by default.
    pub scheduler: String,
    /// The user that the slurmrestd on a Unix socket runs as, and so acts as in Slurm. `restd` has no rights; `slurm` may do
    /// anything (sites must override a check of slurmrestd for that, and so do we; 26.05 allows it no more).
    pub local_rest_user: String,
    /// Lines put at the end of slurm.conf: partitions, nodes without slurmd, settings that replace ours.
    pub extra: Vec<String>,
    /// Whether the lab outlives its handle.
    pub life: crate::run::Life,
}

impl Options {
    /// Whether the slurmrestd on a Unix socket runs as a user whom its own check would stop.
    fn local_rest_is_privileged(&self) -> bool {
        matches!(self.local_rest_user.as_str(), "root" | "slurm")
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            release: Release::default(),
            nodes: Node::several(4),
            scheduler: "bf_interval=2,sched_interval=5,bf_continue,bf_window=2880".to_owned(),
            local_rest_user: REST_USER.to_owned(),
            extra: Vec::new(),
            life: crate::run::Life::Owned,
        }
    }
}

/// Where things are inside a lab's root.
const INSIDE: &str = "/run/lab";
/// A lab's own host name.
const HOST: &str = "lab";
/// Users that may submit jobs, with their ids; `svc` is for the daemon, `restd` runs slurmrestd.
const USERS: [(&str, u32); 4] = [("alice", 2001), ("bob", 2002), (REST_USER, 2003), ("svc", 2004)];
const REST_USER: &str = "restd";
