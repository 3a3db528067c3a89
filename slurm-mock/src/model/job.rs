//! A job as slurmctld keeps it. It knows when it would end by itself and when its limit cuts it off, not
//! whether it may start: that is the scheduler's.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{
    ids::{JobId, NodeName, RunId},
    plus,
};

/// What a user submits, and how the job will behave.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Name.
    pub name: String,
    /// Owner.
    pub user: String,
    /// Partition; `None` takes the cluster's first.
    pub partition: Option<String>,
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs on each node.
    pub gpus_per_node: u32,
    /// GPU type, where it matters.
    pub gpu_kind: Option<String>,
    /// CPUs on each node.
    pub cpus_per_node: u32,
    /// Memory on each node, MiB.
    pub memory_mb_per_node: u64,
    /// Time limit; `None` takes the partition's default.
    pub time_limit: Option<SignedDuration>,
    /// How long its processes would run if nobody stopped them.
    pub run_time: SignedDuration,
    /// Whether it may be requeued.
    pub requeue: bool,
    /// Nodes it must have (`--nodelist`).
    pub required_nodes: Vec<NodeName>,
    /// Whether it wants its nodes alone.
    pub exclusive: bool,
    /// Reservation it asks for.
    pub reservation: Option<String>,
    /// Higher is earlier; equal ones go by number.
    pub priority: u32,
    /// Submitted on hold (`--hold`).
    pub hold: bool,
}

impl JobSpec {
    /// A requeueable job on `nodes` nodes with `gpus_per_node` GPUs each that runs for `run_time`.
    pub fn new(user: &str, nodes: u32, gpus_per_node: u32, run_time: SignedDuration) -> Self {
        Self {
            name: "wrap".to_owned(),
            user: user.to_owned(),
            partition: None,
            nodes,
            gpus_per_node,
            gpu_kind: None,
            cpus_per_node: gpus_per_node.max(1),
            memory_mb_per_node: 1024,
            time_limit: None,
            run_time,
            requeue: true,
            required_nodes: Vec::new(),
            exclusive: false,
            reservation: None,
            priority: 1000,
            hold: false,
        }
    }

    /// The same with a time limit.
    #[must_use]
    pub fn limit(self, time_limit: SignedDuration) -> Self {
        Self { time_limit: Some(time_limit), ..self }
    }

    /// The same, pinned to nodes.
    #[must_use]
    pub fn on(self, nodes: &[&str]) -> Self {
        Self { required_nodes: nodes.iter().map(|&n| n.into()).collect(), ..self }
    }
}

/// A job's base state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Waiting.
    Pending,
    /// Has nodes; CONFIGURING stands beside it while the prolog runs.
    Running,
    /// Stopped, but still on its nodes.
    Suspended,
    /// Ended by itself.
    Completed,
    /// Cancelled by somebody.
    Cancelled,
    /// Its limit was over.
    Timeout,
    /// A node died under it and it may not be requeued.
    NodeFail,
}

impl JobState {
    /// As REST spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::NodeFail => "NODE_FAIL",
        }
    }

    /// Whether a job in this state has nodes.
    pub fn holds_nodes(self) -> bool {
        match self {
            Self::Running | Self::Suspended => true,
            Self::Pending | Self::Completed | Self::Cancelled | Self::Timeout | Self::NodeFail => false,
        }
    }

    /// Whether it has ended for good.
    pub fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Cancelled | Self::Timeout | Self::NodeFail => true,
            Self::Pending | Self::Running | Self::Suspended => false,
        }
    }
}

/// Why a pending job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// It does not wait, or nobody has looked.
    None,
    /// Others come first.
    Priority,
    /// What it needs is in use.
    Resources,
    /// Requeued a moment ago.
    BeginTime,
    /// Submitted on hold.
    HeldByUser,
    /// A node that it names is down or drained.
    NodesUnavailable(Vec<NodeName>),
    /// A node that it names is kept by a reservation.
    MaybeReserved,
    /// Too few nodes of the partition are usable at all.
    PartitionNodesUnavailable,
    /// It asks for more time than the partition gives.
    PartitionTimeLimit,
    /// The partition is down.
    PartitionDown,
    /// Its reservation is not active, or gone.
    Reservation,
}

impl PendingReason {
    /// REST's `state_reason`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Priority => "Priority",
            Self::Resources | Self::PartitionNodesUnavailable => "Resources",
            Self::BeginTime => "BeginTime",
            Self::HeldByUser => "JobHeldUser",
            Self::NodesUnavailable(_) | Self::MaybeReserved => "ReqNodeNotAvail",
            Self::PartitionTimeLimit => "PartitionTimeLimit",
            Self::PartitionDown => "PartitionDown",
            Self::Reservation => "Reservation",
        }
    }

    /// REST's `state_description`.
    pub fn description(&self) -> String {
        match self {
            Self::NodesUnavailable(nodes) => {
                format!("ReqNodeNotAvail, UnavailableNodes:{}", crate::hostlist::compress(nodes))
            }
            Self::MaybeReserved => "ReqNodeNotAvail, May be reserved for other job".to_owned(),
            Self::PartitionNodesUnavailable => {
                "Nodes required for job are DOWN, DRAINED or reserved for jobs \
                                                in higher priority partitions"
                    .to_owned()
            }
            Self::None
            | Self::Priority
            | Self::Resources
            | Self::BeginTime
            | Self::HeldByUser
            | Self::PartitionTimeLimit
            | Self::PartitionDown
            | Self::Reservation => String::new(),
        }
    }
}

/// What a job has on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mb: u64,
    /// GPU indices.
    pub gpus: BTreeSet<u32>,
}

/// A job as slurmctld keeps it.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What was submitted.
    pub spec: JobSpec,
    /// Partition it is in.
    pub partition: String,
    /// Time limit in force.
    pub time_limit: SignedDuration,
    /// Base state.
    pub state: JobState,
    /// CONFIGURING until then.
    pub configuring_until: Option<Timestamp>,
    /// COMPLETING until then.
    pub completing_until: Option<Timestamp>,
    /// Nodes it has or had, and what of them.
    pub allocation: BTreeMap<NodeName, Share>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// Earliest start.
    pub eligible_at: Timestamp,
    /// When it started last.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// When it was suspended, while it is.
    pub suspended_at: Option<Timestamp>,
    /// How long it has been suspended before.
    pub suspended_for: SignedDuration,
    /// How often it was requeued.
    pub restarts: u32,
    /// Why it waits.
    pub reason: PendingReason,
    /// When and where the backfill scheduler would start it.
    pub planned: Option<(Timestamp, Vec<NodeName>)>,
    pub(crate) run: Option<RunId>,
}

impl Job {
    /// Whether its prolog runs.
    pub fn is_configuring(&self, now: Timestamp) -> bool {
        self.state == JobState::Running && self.configuring_until.is_some_and(|until| until > now)
    }

    /// Whether its epilog runs.
    pub fn is_completing(&self) -> bool {
        self.completing_until.is_some()
    }

    /// The state as REST lists it.
    pub fn state_words(&self, now: Timestamp) -> Vec<&'static str> {
        let mut words = vec![self.state.as_str()];
        if self.is_configuring(now) {
            words.push("CONFIGURING");
        }
        if self.is_completing() {
            words.push("COMPLETING");
        }
        words
    }

    /// When its processes end by themselves. `None` while it does not run.
    pub(crate) fn finishes_at(&self) -> Option<Timestamp> {
        self.started_running_at().map(|start| plus(start, self.spec.run_time))
    }

    /// When its limit is over. `None` while it does not run.
    pub fn limit_at(&self) -> Option<Timestamp> {
        self.running_since().map(|start| plus(start, self.time_limit))
    }

    /// When slurmctld expects its end: its limit, counted on if suspended now. `None` without nodes.
    pub(crate) fn expected_end(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.state.holds_nodes() {
            return None;
        }
        let pause = self.suspended_at.map_or(SignedDuration::ZERO, |since| now.duration_since(since));
        let start = self.started_at?;
        Some(plus(plus(plus(start, self.suspended_for), pause), self.time_limit))
    }

    fn running_since(&self) -> Option<Timestamp> {
        let start = self.started_at.filter(|_| self.state == JobState::Running)?;
        Some(plus(start, self.suspended_for))
    }

    fn started_running_at(&self) -> Option<Timestamp> {
        let since = self.running_since()?;
        let start = self.started_at?;
        let prolog = self.configuring_until.map_or(SignedDuration::ZERO, |until| until.duration_since(start));
        Some(plus(since, prolog))
    }
}
