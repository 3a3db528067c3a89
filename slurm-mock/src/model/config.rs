//! The cluster as its configuration file would describe it: partitions, delays, who may do what.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::ids::NodeName;

/// What happens to a DOWN node when its slurmd registers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnToService {
    /// It stays DOWN until an administrator resumes it.
    Never,
    /// It comes back if it was DOWN for not responding only.
    NonResponsive,
    /// It comes back whatever the reason was.
    Always,
}

/// Delays and rights of the model. The defaults are what the real 24.11 did in the lab.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the cluster.
    pub cluster_name: String,
    /// The number the first job gets.
    pub first_job_id: u32,
    /// How long a started job stays CONFIGURING (prolog) before its processes run.
    pub configuring: SignedDuration,
    /// How long an ended job stays COMPLETING (epilog).
    pub completing: SignedDuration,
    /// How long the processes of a killed job live on; the job is COMPLETING meanwhile.
    pub kill_wait: SignedDuration,
    /// How long a requeued job waits (reason BeginTime).
    pub requeue_delay: SignedDuration,
    /// How long a resumed node shows NOT_RESPONDING.
    pub resume_not_responding: SignedDuration,
    /// How late RESERVED, MAINTENANCE and the node's `reservation` follow a reservation's start and end.
    pub reservation_flag_lag: SignedDuration,
    /// How long an ended reservation stays listed, INACTIVE, its name taken.
    pub reservation_linger: SignedDuration,
    /// How far in the past a reservation's start may lie (`starttime=now` over a slow line).
    pub reservation_past_slack: SignedDuration,
    /// From slurmd's death to the NOT_RESPONDING flag.
    pub not_responding_after: SignedDuration,
    /// From slurmd's death to DOWN (SlurmdTimeout).
    pub slurmd_timeout: SignedDuration,
    /// From the start of slurmd or slurmctld to the node's registration.
    pub registration: SignedDuration,
    /// How long an ended job stays listed (MinJobAge).
    pub min_job_age: SignedDuration,
    /// Whether RESUME and UNDRAIN leave the old reason, as 24.11 does without slurmdbd.
    pub reason_survives_resume: bool,
    /// See [`ReturnToService`].
    pub return_to_service: ReturnToService,
    /// How many waiting jobs the backfill scheduler plans for; later ones may only not delay those.
    pub backfill_depth: usize,
    /// Users that may update nodes; may do all that operators may.
    pub administrators: BTreeSet<String>,
    /// Users that may change reservations and cancel other users' jobs.
    pub operators: BTreeSet<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_name: "lab".to_owned(),
            first_job_id: 1,
            configuring: SignedDuration::ZERO,
            completing: SignedDuration::from_secs(1),
            kill_wait: SignedDuration::from_secs(1),
            requeue_delay: SignedDuration::from_secs(120),
            resume_not_responding: SignedDuration::from_millis(1500),
            reservation_flag_lag: SignedDuration::from_secs(2),
            reservation_linger: SignedDuration::from_secs(5),
            reservation_past_slack: SignedDuration::from_mins(10),
            not_responding_after: SignedDuration::from_secs(10),
            slurmd_timeout: SignedDuration::from_secs(40),
            registration: SignedDuration::from_secs(2),
            min_job_age: SignedDuration::from_secs(300),
            reason_survives_resume: false,
            return_to_service: ReturnToService::NonResponsive,
            backfill_depth: 100,
            administrators: BTreeSet::from(["root".to_owned(), "slurm".to_owned()]),
            operators: BTreeSet::new(),
        }
    }
}

/// Whether a partition starts jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    /// Jobs are queued and started.
    Up,
    /// Jobs are queued, none is started.
    Down,
}

/// A partition.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its nodes, in the order of slurm.conf.
    pub nodes: Vec<NodeName>,
    /// Longest time limit of a job; `None` is UNLIMITED.
    pub max_time: Option<SignedDuration>,
    /// Time limit of a job that names none.
    pub default_time: SignedDuration,
    /// Whether jobs start.
    pub state: PartitionState,
}

impl Partition {
    /// A partition that is up, with a default time limit of an hour and a longest of seven days.
    pub fn new(name: &str, nodes: impl IntoIterator<Item = NodeName>) -> Self {
        Self {
            name: name.to_owned(),
            nodes: nodes.into_iter().collect(),
            max_time: Some(SignedDuration::from_hours(7 * 24)),
            default_time: SignedDuration::from_hours(1),
            state: PartitionState::Up,
        }
    }
}
