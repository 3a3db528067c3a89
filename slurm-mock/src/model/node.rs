//! A node as slurmctld keeps it, and as it shows it. What a node *shows* is derived from its jobs, its
//! marks and the time; nothing here knows about scheduling.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{ids::NodeName, plus};

/// GPUs of one type on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSpec {
    /// Type as in gres.conf, such as `a100`.
    pub kind: String,
    /// How many.
    pub count: u32,
    /// Sockets they hang on, such as `0-1`: shown as `(S:0-1)`.
    pub sockets: Option<String>,
}

/// A node as slurm.conf and gres.conf describe it.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its name.
    pub name: NodeName,
    /// Its GPUs; indices run through all types.
    pub gpus: Vec<GpuSpec>,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Features.
    pub features: Vec<String>,
}

impl NodeSpec {
    /// A node with `count` GPUs of one type, 16 CPUs and 64000 MiB, as in the lab.
    pub fn gpu(name: &str, kind: &str, count: u32) -> Self {
        let gpus = vec![GpuSpec { kind: kind.to_owned(), count, sockets: Some("0-1".to_owned()) }];
        Self { name: name.into(), gpus, cpus: 16, memory_mb: 64_000, features: vec![kind.to_owned()] }
    }

    /// GPUs of every type together.
    pub fn gpu_count(&self) -> u32 {
        self.gpus.iter().map(|g| g.count).sum()
    }

    /// The `gres` string, such as `gpu:a100:4(S:0-1)`.
    pub fn gres(&self) -> String {
        let one = |g: &GpuSpec| match &g.sockets {
            Some(sockets) => format!("gpu:{}:{}(S:{sockets})", g.kind, g.count),
            None => format!("gpu:{}:{}", g.kind, g.count),
        };
        self.gpus.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// The `gres_used` string for the given GPU indices, such as `gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)`.
    pub fn gres_used(&self, used: &BTreeSet<u32>) -> String {
        let show = |(kind, indices): (&str, Vec<u32>)| {
            let shown = if indices.is_empty() { "N/A".to_owned() } else { ranges(&indices) };
            format!("gpu:{kind}:{}(IDX:{shown})", indices.len())
        };
        self.by_kind(used).into_iter().map(show).collect::<Vec<_>>().join(",")
    }

    /// One entry a type with GPUs in use, such as `gpu:a100:2(IDX:0-1)` (a job's `gres_detail`).
    pub fn gres_detail(&self, used: &BTreeSet<u32>) -> Option<String> {
        let shown: Vec<String> = self
            .by_kind(used)
            .into_iter()
            .filter(|(_, indices)| !indices.is_empty())
            .map(|(kind, indices)| format!("gpu:{kind}:{}(IDX:{})", indices.len(), ranges(&indices)))
            .collect();
        (!shown.is_empty()).then(|| shown.join(","))
    }

    /// The TRES string for an amount of this node, such as `cpu=2,mem=4G,gres/gpu=1,gres/gpu:a100=1`.
    pub fn tres(&self, cpus: u32, memory_mb: u64, used: &BTreeSet<u32>, extra: &str) -> String {
        let mut parts = Vec::new();
        if cpus > 0 {
            parts.push(format!("cpu={cpus}"));
        }
        if memory_mb > 0 {
            parts.push(format!("mem={}", memory(memory_mb)));
        }
        if !extra.is_empty() {
            parts.push(extra.to_owned());
        }
        if !used.is_empty() {
            parts.push(format!("gres/gpu={}", used.len()));
            let kinds = self.by_kind(used).into_iter().filter(|(_, indices)| !indices.is_empty());
            parts.extend(kinds.map(|(kind, indices)| format!("gres/gpu:{kind}={}", indices.len())));
        }
        parts.join(",")
    }

    /// Indices of the GPUs of one type, or of all.
    pub(crate) fn indices(&self, kind: Option<&str>) -> Vec<u32> {
        let mut first = 0;
        let mut found = Vec::new();
        for gpu in &self.gpus {
            if kind.is_none_or(|k| k == gpu.kind) {
                found.extend(first..first + gpu.count);
            }
            first += gpu.count;
        }
        found
    }

    fn by_kind(&self, used: &BTreeSet<u32>) -> Vec<(&str, Vec<u32>)> {
        let of = |kind: &str| {
            self.indices(Some(kind)).into_iter().filter(|index| used.contains(index)).collect::<Vec<_>>()
        };
        self.gpus.iter().map(|g| (g.kind.as_str(), of(&g.kind))).collect()
    }
}

/// Slurm's way to write MiB exactly: `62.50G` where that loses nothing, else `12388M`.
pub(crate) fn memory(mb: u64) -> String {
    if mb < 1024 || !mb.is_multiple_of(512) {
        format!("{mb}M")
    } else if mb.is_multiple_of(1024) {
        format!("{}G", mb / 1024)
    } else {
        format!("{}.50G", mb / 1024)
    }
}

fn ranges(sorted: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &index in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            Some(_) | None => parts.push((index, index)),
        }
    }
    let show = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(show).collect::<Vec<_>>().join(",")
}

/// The first word of a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseState {
    /// No job.
    Idle,
    /// Some CPUs are allocated, or a job is suspended.
    Mixed,
    /// All CPUs are allocated.
    Allocated,
    /// DOWN.
    Down,
    /// slurmctld has just started and the node has not registered.
    Unknown,
}

impl BaseState {
    /// As REST and scontrol spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::Mixed => "MIXED",
            Self::Allocated => "ALLOCATED",
            Self::Down => "DOWN",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The words after the first, in the order in which REST lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeFlag {
    /// In an active reservation.
    Reserved,
    /// No new job starts.
    Drain,
    /// An epilog runs.
    Completing,
    /// slurmd does not answer.
    NotResponding,
    /// Set by an administrator: about to fail.
    Fail,
    /// In an active MAINT reservation.
    Maintenance,
    /// The backfill scheduler keeps it for a job.
    Planned,
}

impl NodeFlag {
    /// As REST and scontrol spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::Drain => "DRAIN",
            Self::Completing => "COMPLETING",
            Self::NotResponding => "NOT_RESPONDING",
            Self::Fail => "FAIL",
            Self::Maintenance => "MAINTENANCE",
            Self::Planned => "PLANNED",
        }
    }
}

/// Why a node is drained, down or failing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Free text.
    pub text: String,
    /// Who set it.
    pub user: String,
    /// When.
    pub changed_at: Timestamp,
}

/// What an administrator can ask of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Start nothing new.
    Drain,
    /// Take DRAIN and the reason away.
    Undrain,
    /// Take DRAIN, DOWN, FAIL and the reason away; refused where none stands.
    Resume,
    /// Kill everything and use it no more.
    Down,
    /// As RESUME, but never refused.
    Idle,
    /// Start nothing new, because it is about to fail.
    Fail,
}

impl NodeAction {
    /// Reads what REST and scontrol call it, in any case.
    pub fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_uppercase().as_str() {
            "DRAIN" => Some(Self::Drain),
            "UNDRAIN" => Some(Self::Undrain),
            "RESUME" => Some(Self::Resume),
            "DOWN" => Some(Self::Down),
            "IDLE" => Some(Self::Idle),
            "FAIL" => Some(Self::Fail),
            _ => None,
        }
    }
}

/// A node update, as `scontrol update nodename=…` or POST node/X sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUpdate {
    /// New state.
    pub action: Option<NodeAction>,
    /// New reason; an empty text clears it.
    pub reason: Option<String>,
}

/// How the machine itself is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// slurmd answers.
    Up,
    /// slurmd is dead or hung since then; processes live on.
    SlurmdDead(Timestamp),
    /// The power is off since then; no process lives.
    PoweredOff(Timestamp),
}

/// Who took a node DOWN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DownCause {
    NotResponding,
    Admin,
}

/// A node as slurmctld keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) spec: NodeSpec,
    pub(crate) drain: bool,
    pub(crate) fail: bool,
    pub(crate) down: Option<DownCause>,
    pub(crate) reason: Option<Reason>,
    pub(crate) planned: bool,
    /// NOT_RESPONDING until then after a RESUME.
    pub(crate) silent_until: Option<Timestamp>,
    /// The base state is UNKNOWN until then.
    pub(crate) unknown_until: Option<Timestamp>,
    pub(crate) last_busy: Timestamp,
}

impl Node {
    pub(crate) fn new(spec: NodeSpec, now: Timestamp) -> Self {
        Self {
            spec,
            drain: false,
            fail: false,
            down: None,
            reason: None,
            planned: false,
            silent_until: None,
            unknown_until: None,
            last_busy: now,
        }
    }

    pub(crate) fn responds(&self, health: Health, after: SignedDuration, now: Timestamp) -> bool {
        let heard = match health {
            Health::Up => true,
            Health::SlurmdDead(since) | Health::PoweredOff(since) => now < plus(since, after),
        };
        heard && self.silent_until.is_none_or(|until| until <= now)
    }

    pub(crate) fn registered(&self, now: Timestamp) -> bool {
        self.unknown_until.is_none_or(|until| until <= now)
    }
}

/// A node as slurmctld shows it at one moment.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Its description.
    pub spec: NodeSpec,
    /// First word of the state.
    pub base: BaseState,
    /// The other words.
    pub flags: BTreeSet<NodeFlag>,
    /// Why it is drained, down or failing.
    pub reason: Option<Reason>,
    /// CPUs of running jobs.
    pub alloc_cpus: u32,
    /// Memory of running and suspended jobs, MiB.
    pub alloc_memory_mb: u64,
    /// GPUs of running and suspended jobs, by index.
    pub gpus_used: BTreeSet<u32>,
    /// The active reservation that holds it.
    pub reservation: Option<String>,
    /// Partitions that have it.
    pub partitions: Vec<String>,
    /// When a job last ran here.
    pub last_busy: Timestamp,
    /// When slurmd started.
    pub slurmd_start: Timestamp,
}

impl NodeView {
    /// The state as REST lists it.
    pub fn state(&self) -> Vec<&'static str> {
        std::iter::once(self.base.as_str()).chain(self.flags.iter().map(|f| f.as_str())).collect()
    }

    /// The state as scontrol prints it, such as `IDLE+COMPLETING+DRAIN`: in an order of its own.
    pub fn state_text(&self) -> String {
        let order = [
            NodeFlag::Completing,
            NodeFlag::Drain,
            NodeFlag::Fail,
            NodeFlag::Maintenance,
            NodeFlag::Reserved,
            NodeFlag::NotResponding,
            NodeFlag::Planned,
        ];
        let flags = order.iter().filter(|f| self.flags.contains(f)).map(|f| f.as_str());
        std::iter::once(self.base.as_str()).chain(flags).collect::<Vec<_>>().join("+")
    }

    /// `gres_used` as REST prints it.
    pub fn gres_used(&self) -> String {
        self.spec.gres_used(&self.gpus_used)
    }

    /// `tres_used` as REST prints it.
    pub fn tres_used(&self) -> String {
        self.spec.tres(self.alloc_cpus, self.alloc_memory_mb, &self.gpus_used, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_written_as_slurm_does() {
        for (mb, text) in [
            (100, "100M"),
            (1024, "1G"),
            (1224, "1224M"),
            (12_388, "12388M"),
            (64_000, "62.50G"),
            (4096, "4G"),
        ] {
            assert_eq!(memory(mb), text);
        }
    }

    #[test]
    fn gres_strings_are_those_of_24_11() {
        let mut node = NodeSpec::gpu("gpu1", "a100", 4);
        assert_eq!(node.gres(), "gpu:a100:4(S:0-1)");
        for (used, text) in [
            (vec![], "gpu:a100:0(IDX:N/A)"),
            (vec![0, 1], "gpu:a100:2(IDX:0-1)"),
            (vec![0, 2, 3], "gpu:a100:3(IDX:0,2-3)"),
        ] {
            assert_eq!(node.gres_used(&used.into_iter().collect()), text);
        }
        node.gpus = vec![
            GpuSpec { kind: "h100".to_owned(), count: 2, sockets: None },
            GpuSpec { kind: "l4".to_owned(), count: 2, sockets: None },
        ];
        assert_eq!(node.gres(), "gpu:h100:2,gpu:l4:2");
        assert_eq!(node.gres_used(&BTreeSet::from([0])), "gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)");
        assert_eq!(node.gres_detail(&BTreeSet::from([0])), Some("gpu:h100:1(IDX:0)".to_owned()));
    }
}
