//! What Slurm says: nodes, jobs, reservations, partitions, in Slurm's own words but free of any REST version's shape.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{NodeSet, Seen, Told};
use crate::ids::{HandoverId, JobId, SlurmNodeName};
use crate::mark::reservation_handover;

/// One look at the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Slurm {
    /// Every node that Slurm lists. A node that is missing here is Unknown, not gone.
    pub nodes: Told<SlurmNodeName, Node>,
    /// Nodes that Slurm lists, but whose state could not be read, with what was found instead. None of them is in `nodes`.
    #[serde(default)]
    pub unreadable_nodes: BTreeMap<SlurmNodeName, String>,
    /// Every job that is pending, or whose end Slurm has not finished yet (running, suspended, completing …).
    pub jobs: Told<JobId, Job>,
    /// Every reservation, others' too, by name.
    pub reservations: BTreeMap<String, Reservation>,
    /// Every partition, by name.
    pub partitions: BTreeMap<String, Partition>,
    /// The number that Slurm's next job gets, by Slurm's own word; `None` where it could not be asked. (The highest job id
    /// shown would not do: it goes down whenever Slurm forgets a finished job.)
    pub next_job_id: Option<JobId>,
    /// When the token that we ask with ends, where only a person can put another one in its place.
    pub token_ends: Option<Timestamp>,
    /// What our user may not do, and what would give it the right, in words; `None` where it may do what it has to.
    #[serde(default)]
    pub rights: Option<String>,
    /// Pending jobs that are not in `jobs`, because their number is beyond what one look reads.
    #[serde(default)]
    pub pending_unread: u32,
    /// How Slurm was reached.
    #[serde(default)]
    pub reached: Reached,
    /// How far slurmctld's clock is ahead of ours (negative: behind), beyond what asking for it leaves in doubt.
    #[serde(default)]
    pub clock_ahead: SignedDuration,
}

impl Slurm {
    /// An instant of our clock on slurmctld's, which is the one that reservations begin and end by.
    pub fn on_its_clock(&self, ours: Timestamp) -> Timestamp {
        ours.saturating_add(self.clock_ahead).unwrap_or(ours)
    }
}

/// How Slurm was reached in a look, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reached {
    /// Slurm's release by its own word, such as `24.11.5`; `None` where it could not be asked.
    pub release: Option<String>,
    /// The REST version in use, such as `v0.0.42`; `None` where slurmrestd is not used.
    pub api_version: Option<String>,
    /// What goes through which mouth, such as `drains` through `scontrol`.
    pub through: BTreeMap<String, String>,
}

/// A look, ordered by node: built once per tick, so that judging each node does not walk through every job and
/// reservation of the cluster again.
#[derive(Debug, Clone)]
pub struct Index<'a> {
    facts: &'a Seen<Slurm>,
    /// Nodes that a job or a reservation names.
    named: FxHashMap<SlurmNodeName, Named<'a>>,
    /// Reservations of ours.
    ours: FxHashMap<HandoverId, &'a Reservation>,
}

/// What names a node.
#[derive(Debug, Clone)]
struct Named<'a> {
    free: Free,
    jobs: Vec<&'a Job>,
    reservations: Vec<&'a Reservation>,
}

/// When a node's last job must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Free {
    /// No job.
    Now,
    /// By then.
    By(Timestamp),
    /// A job without a time limit: never "soon".
    Never,
}

impl Free {
    /// As far as one job goes.
    fn of(job: &Job) -> Self {
        match job.state {
            JobState::Pending | JobState::Finished => Self::Now,
            JobState::Configuring
            | JobState::Running
            | JobState::Suspended
            | JobState::Completing
            | JobState::Other(_) => job.end_by.map_or(Self::Never, Self::By),
        }
    }
}

impl<'a> Index<'a> {
    /// Orders a look by node; takes time in proportion to its jobs and reservations.
    pub fn new(facts: &'a Seen<Slurm>) -> Self {
        let mut index = Self { facts, named: FxHashMap::default(), ours: FxHashMap::default() };
        let Some(slurm) = facts.value() else { return index };
        index.named.reserve(slurm.nodes.len());
        for job in slurm.jobs.values() {
            let free = Free::of(job);
            for node in &job.nodes {
                let named = index.of_mut(node);
                named.free = named.free.max(free);
                named.jobs.push(job);
            }
        }
        for reservation in slurm.reservations.values() {
            index
                .ours
                .extend(reservation_handover(&reservation.name).map(|handover| (handover, reservation)));
            for node in &reservation.nodes {
                index.of_mut(node).reservations.push(reservation);
            }
        }
        index
    }

    fn of_mut(&mut self, node: &SlurmNodeName) -> &mut Named<'a> {
        let fresh = || Named { free: Free::Now, jobs: Vec::new(), reservations: Vec::new() };
        self.named.entry(node.clone()).or_insert_with(fresh)
    }

    /// The look itself.
    pub fn facts(&self) -> &'a Seen<Slurm> {
        self.facts
    }

    /// Jobs that name the node, by id, in whatever state.
    pub fn jobs_on(&self, node: &SlurmNodeName) -> &[&'a Job] {
        self.named.get(node).map_or(&[], |named| named.jobs.as_slice())
    }

    /// When the last of the jobs that have the node must have ended.
    pub fn free(&self, node: &SlurmNodeName) -> Free {
        self.named.get(node).map_or(Free::Now, |named| named.free)
    }

    /// The reservation of one of our handovers, whatever node it names.
    pub fn reservation_of(&self, handover: HandoverId) -> Option<&'a Reservation> {
        self.ours.get(&handover).copied()
    }

    /// Reservations that name the node, others' too, by name.
    pub fn reservations_on(&self, node: &SlurmNodeName) -> &[&'a Reservation] {
        self.named.get(node).map_or(&[], |named| named.reservations.as_slice())
    }
}

/// A node's base state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseState {
    /// No job has resources of it.
    Idle,
    /// Some of its resources are allocated.
    Mixed,
    /// All of it is allocated.
    Allocated,
    /// Not usable; jobs on it were killed.
    Down,
    /// Configured, but not yet existing.
    Future,
    /// In error.
    Error,
    /// Slurm itself does not know (after a restart, until the node registers).
    Unknown,
    /// A word that we don't know: never taken for available.
    Other(String),
}

impl BaseState {
    /// Slurm's word for it.
    pub fn word(&self) -> &str {
        match self {
            Self::Idle => "IDLE",
            Self::Mixed => "MIXED",
            Self::Allocated => "ALLOCATED",
            Self::Down => "DOWN",
            Self::Future => "FUTURE",
            Self::Error => "ERROR",
            Self::Unknown => "UNKNOWN",
            Self::Other(word) => word,
        }
    }
}

/// A flag beside the base state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeFlag {
    /// DRAIN: nothing new starts.
    Drain,
    /// COMPLETING: a job's end (epilog, processes) is not finished.
    Completing,
    /// PLANNED: the backfill scheduler holds it for a waiting job. Not busy.
    Planned,
    /// RESERVED: in an active reservation.
    Reserved,
    /// MAINTENANCE: in an active MAINT reservation.
    Maintenance,
    /// CLOUD node.
    Cloud,
    /// Dynamic node.
    DynamicNorm,
    /// NOT_RESPONDING.
    NotResponding,
    /// FAIL.
    Fail,
    /// INVALID_REG: registered with less than configured.
    InvalidReg,
    /// A reboot was asked for or is under way.
    Reboot,
    /// Any power-saving flag (POWERED_DOWN, POWERING_UP, POWERING_DOWN, POWER_DOWN …).
    Power,
    /// A word that we don't know: never taken for available.
    Other(String),
}

impl NodeFlag {
    /// Slurm's word for it; the common part of the words where there are several.
    pub fn word(&self) -> &str {
        match self {
            Self::Drain => "DRAIN",
            Self::Completing => "COMPLETING",
            Self::Planned => "PLANNED",
            Self::Reserved => "RESERVED",
            Self::Maintenance => "MAINTENANCE",
            Self::Cloud => "CLOUD",
            Self::DynamicNorm => "DYNAMIC_NORM",
            Self::NotResponding => "NOT_RESPONDING",
            Self::Fail => "FAIL",
            Self::InvalidReg => "INVALID_REG",
            Self::Reboot => "REBOOT",
            Self::Power => "POWER",
            Self::Other(word) => word,
        }
    }
}

/// A node as Slurm shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Base state.
    pub state: BaseState,
    /// Flags beside it.
    pub flags: BTreeSet<NodeFlag>,
    /// Why it is drained or down, with who said so and when; `None` where there is no reason.
    pub reason: Option<Reason>,
    /// Configured GPUs (GRES `gpu`, all types together).
    pub gpus: u32,
    /// GPUs in use by GRES accounting; `None` where it could not be read, which counts as in use.
    pub gpus_used: Option<u32>,
    /// Partitions it is in.
    pub partitions: BTreeSet<String>,
}

impl Node {
    /// Why slurmctld's word about the node proves nothing, where it does not: of its work, and of what it could take.
    pub fn doubt(&self) -> Option<String> {
        match &self.state {
            BaseState::Idle | BaseState::Mixed | BaseState::Allocated => {}
            BaseState::Down
            | BaseState::Future
            | BaseState::Error
            | BaseState::Unknown
            | BaseState::Other(_) => {
                return Some(format!("its state is {}", self.state.word()));
            }
        }
        self.flags.iter().find_map(|flag| match flag {
            NodeFlag::Drain
            | NodeFlag::Completing
            | NodeFlag::Planned
            | NodeFlag::Reserved
            | NodeFlag::Maintenance
            | NodeFlag::Cloud
            | NodeFlag::DynamicNorm => None,
            NodeFlag::NotResponding
            | NodeFlag::Fail
            | NodeFlag::InvalidReg
            | NodeFlag::Reboot
            | NodeFlag::Power
            | NodeFlag::Other(_) => Some(format!("it has the flag {}", flag.word())),
        })
    }

    /// Would Slurm start a job on it: is it up beyond doubt, and undrained?
    pub fn takes_jobs(&self) -> bool {
        self.doubt().is_none() && !self.flags.contains(&NodeFlag::Drain)
    }
}

/// A node's reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The text, whole.
    pub text: String,
    /// Who set it.
    pub user: String,
    /// When it was set; `None` where Slurm does not say.
    pub at: Option<Timestamp>,
}

/// A job's base state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits.
    Pending,
    /// Has its nodes, and prepares them (CONFIGURING counts here).
    Configuring,
    /// Runs.
    Running,
    /// Suspended: can resume on a drained node.
    Suspended,
    /// Ended or ending; its processes or epilog may still run (COMPLETING, STAGE_OUT, SIGNALING …).
    Completing,
    /// Ended, wholly (COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED … without COMPLETING).
    Finished,
    /// A word that we don't know: taken for unfinished.
    Other(String),
}

/// A job, or a pending array (one record for all its waiting tasks).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Where it stands.
    pub state: JobState,
    /// Who runs it.
    pub user: String,
    /// Its partition (a pending job may name several, separated by commas).
    pub partition: String,
    /// Nodes it has (allocated). Empty while pending.
    pub nodes: NodeSet,
    /// Nodes that it insists on (`--nodelist`).
    pub required_nodes: NodeSet,
    /// How many nodes it wants.
    pub node_count: u32,
    /// GPUs that it wants or has on each node, as far as Slurm tells; 0 for a CPU job.
    pub gpus_per_node: u32,
    /// Its time limit; `None` for unlimited (which is never "soon").
    pub time_limit: Option<SignedDuration>,
    /// When it started; `None` while pending.
    pub start: Option<Timestamp>,
    /// The latest it can end by its time limit; `None` while pending or unlimited.
    pub end_by: Option<Timestamp>,
    /// May it be requeued (`--requeue`)?
    pub requeue: bool,
    /// Why it waits (`Resources`, `ReqNodeNotAvail…`), in Slurm's word.
    pub pending_reason: Option<String>,
    /// When it was submitted; `None` where Slurm does not say.
    #[serde(default)]
    pub submitted: Option<Timestamp>,
    /// The one GPU type that it asks for by name; `None` for any, for several at once, and where Slurm does not say.
    #[serde(default)]
    pub gpu_type: Option<String>,
    /// Tasks that the record stands for: 1, or those of a pending array that wait; `None` where Slurm cut their list short.
    #[serde(default)]
    pub tasks: Option<u32>,
    /// The leader of the heterogeneous job that it is a component of.
    #[serde(default)]
    pub het_leader: Option<JobId>,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Users who may use it.
    pub users: BTreeSet<String>,
    /// Accounts that may use it.
    pub accounts: BTreeSet<String>,
    /// Flags, in Slurm's words (`MAINT`, `IGNORE_JOBS`, `SPEC_NODES` …).
    pub flags: BTreeSet<String>,
    /// Start.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
}

impl Reservation {
    /// Is it in force at `now`?
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.start <= now && now < self.end
    }
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its nodes.
    pub nodes: NodeSet,
    /// Its longest time limit; `None` for unlimited.
    pub max_time: Option<SignedDuration>,
    /// May jobs start in it (state UP)?
    pub up: bool,
}

/// A write on Slurm. Each is idempotent: asking twice is as asking once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Set DRAIN with a reason. Refused by the port where a foreign DRAIN stands, unless `over` names exactly its text.
    Drain {
        /// Which node.
        node: SlurmNodeName,
        /// The reason, whole ([`crate::mark::DrainReason`] as text, or a plain one at release).
        reason: String,
        /// The text of the reason that may be overwritten beside our own (known from a look just before).
        over: Option<String>,
    },
    /// Take DRAIN away, where the reason is exactly this one.
    Undrain {
        /// Which node.
        node: SlurmNodeName,
        /// The reason that must stand there.
        reason: String,
    },
    /// Create our reservation, or bring it to this shape where it exists.
    Reserve(ReservationSpec),
    /// Delete our reservation; one that is not there is fine.
    Unreserve {
        /// Its name, always one of ours.
        name: String,
    },
}

/// How our reservation should be: exactly one node, `users=root`, MAINT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationSpec {
    /// Its name (`gpu-bridge_h0042`).
    pub name: String,
    /// Its one node.
    pub node: SlurmNodeName,
    /// Start; one in the past means now. Ignored where the reservation is already active (Slurm cannot change it).
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Whether IGNORE_JOBS stands beside MAINT (needed while jobs run on the node).
    pub jobs: RunningJobs,
}

/// What a reservation does about jobs that run on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunningJobs {
    /// IGNORE_JOBS: they run on.
    Ignore,
    /// The node is empty: without the flag.
    None,
}
