//! The pure model: what slurmctld believes ([`Cluster`]), what the machines really do ([`Truth`]), and how
//! both change when time passes or somebody asks for something.
//!
//! No I/O, no clock, no randomness: time comes in by [`Cluster::advance_to`], and the same calls always give
//! the same cluster. It knows nothing of REST or scontrol, which only translate.

mod admin;
mod config;
mod error;
mod ids;
mod job;
mod node;
mod reservation;
mod scheduler;
mod time;
mod truth;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use self::node::Node;
pub(crate) use self::node::memory as tres_memory;
pub use self::{
    admin::{SavedState, Start},
    config::{Config, Partition, PartitionState, ReturnToService},
    error::Error,
    ids::{JobId, NodeName, RunId},
    job::{Job, JobSpec, JobState, PendingReason, Share},
    node::{BaseState, GpuSpec, Health, NodeAction, NodeFlag, NodeSpec, NodeUpdate, NodeView, Reason},
    reservation::{
        ListChange, Reservation, ReservationChange, ReservationFlag, ReservationRequest, UNLIMITED,
    },
    truth::{Cause, Ending, Process, Truth},
};

/// `t` after `duration`, at most the end of time.
pub(crate) fn plus(t: Timestamp, duration: SignedDuration) -> Timestamp {
    t.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// When slurmctld last changed each of its tables (the `last_update` of REST).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastUpdate {
    /// Nodes.
    pub nodes: Timestamp,
    /// Jobs.
    pub jobs: Timestamp,
    /// Partitions.
    pub partitions: Timestamp,
    /// Reservations.
    pub reservations: Timestamp,
}

/// What slurmctld keeps, and would save.
#[derive(Clone, Debug)]
struct Controller {
    nodes: BTreeMap<NodeName, Node>,
    jobs: BTreeMap<JobId, Job>,
    reservations: BTreeMap<String, Reservation>,
    next_job_id: u32,
}

/// A machine, whatever slurmctld thinks of it.
#[derive(Clone, Debug)]
struct Machine {
    health: Health,
    slurmd_start: Timestamp,
    registers_at: Option<Timestamp>,
}

/// A cluster: slurmctld, its machines, and the truth about both.
#[derive(Clone, Debug)]
pub struct Cluster {
    config: Config,
    now: Timestamp,
    up: bool,
    ctld: Controller,
    partitions: Vec<Partition>,
    machines: BTreeMap<NodeName, Machine>,
    truth: Truth,
    updated: LastUpdate,
    /// Something changed since the scheduler last looked.
    dirty: bool,
}

impl Cluster {
    /// A cluster whose nodes all are idle at `now`.
    pub fn new(config: Config, nodes: Vec<NodeSpec>, partitions: Vec<Partition>, now: Timestamp) -> Self {
        let machine = |_: &NodeSpec| Machine { health: Health::Up, slurmd_start: now, registers_at: None };
        Self {
            machines: nodes.iter().map(|n| (n.name.clone(), machine(n))).collect(),
            ctld: Controller {
                nodes: nodes.into_iter().map(|n| (n.name.clone(), Node::new(n, now))).collect(),
                jobs: BTreeMap::new(),
                reservations: BTreeMap::new(),
                next_job_id: config.first_job_id,
            },
            config,
            now,
            up: true,
            partitions,
            truth: Truth::default(),
            updated: LastUpdate { nodes: now, jobs: now, partitions: now, reservations: now },
            dirty: false,
        }
    }

    /// A cluster of `nodes` equal nodes `gpu1`… with `gpus` a100 each, in one partition `main`.
    pub fn uniform(nodes: u32, gpus: u32, now: Timestamp) -> Self {
        let specs: Vec<NodeSpec> =
            (1..=nodes).map(|n| NodeSpec::gpu(&format!("gpu{n}"), "a100", gpus)).collect();
        let main = Partition::new("main", specs.iter().map(|n| n.name.clone()));
        Self::new(Config::default(), specs, vec![main], now)
    }

    /// The delays and rights; change them at will.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// The delays and rights.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The model's time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether slurmctld runs.
    pub fn controller_is_up(&self) -> bool {
        self.up
    }

    /// The number that the next job gets (`NEXT_JOB_ID`).
    pub fn next_job_id(&self) -> JobId {
        JobId(self.ctld.next_job_id)
    }

    /// When the tables last changed.
    pub fn last_update(&self) -> LastUpdate {
        self.updated
    }

    /// The partitions; the first is the default one.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Opens or closes a partition.
    pub fn set_partition_state(&mut self, name: &str, state: PartitionState) -> Result<(), Error> {
        let found = self.partitions.iter_mut().find(|p| p.name == name).ok_or(Error::InvalidPartition)?;
        found.state = state;
        self.updated.partitions = self.now;
        self.changed();
        Ok(())
    }

    /// The jobs slurmctld lists, by number.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.ctld.jobs.values()
    }

    /// One job.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.ctld.jobs.get(&id)
    }

    /// What really happened.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// How a machine really is.
    pub fn health(&self, node: &NodeName) -> Option<Health> {
        self.machines.get(node).map(|m| m.health)
    }

    /// All nodes as slurmctld shows them, by name.
    pub fn nodes(&self) -> Vec<NodeView> {
        let mut views: BTreeMap<&NodeName, NodeView> =
            self.ctld.nodes.iter().map(|(name, node)| (name, self.bare_view(node))).collect();
        for job in self.ctld.jobs.values() {
            for (name, share) in &job.allocation {
                if let Some(view) = views.get_mut(name) {
                    add_job(view, job, share);
                }
            }
        }
        for partition in &self.partitions {
            for name in &partition.nodes {
                if let Some(view) = views.get_mut(name) {
                    view.partitions.push(partition.name.clone());
                }
            }
        }
        // A node in several shows the youngest, whosoever it is.
        let mut active: Vec<&Reservation> =
            self.ctld.reservations.values().filter(|r| self.shows_flags(r)).collect();
        active.sort_by_key(|r| r.start);
        for reservation in active {
            for name in &reservation.nodes {
                if let Some(view) = views.get_mut(name) {
                    view.reservation = Some(reservation.name.clone());
                    view.flags.insert(NodeFlag::Reserved);
                    if reservation.has(ReservationFlag::Maint) {
                        view.flags.insert(NodeFlag::Maintenance);
                    }
                }
            }
        }
        views.into_values().collect()
    }

    /// One node as slurmctld shows it.
    pub fn node(&self, name: &NodeName) -> Option<NodeView> {
        // One path for one and for all: the views stay the same.
        self.nodes().into_iter().find(|n| n.spec.name == *name)
    }

    /// A node's description.
    pub fn node_spec(&self, name: &NodeName) -> Option<&NodeSpec> {
        self.ctld.nodes.get(name).map(|n| &n.spec)
    }

    fn bare_view(&self, node: &Node) -> NodeView {
        let machine = self.machines.get(&node.spec.name);
        let health = machine.map_or(Health::Up, |m| m.health);
        let base = match &node.down {
            Some(_) => BaseState::Down,
            None if !node.registered(self.now) => BaseState::Unknown,
            None => BaseState::Idle,
        };
        let stands = |flag: NodeFlag| match flag {
            NodeFlag::Drain => node.drain,
            NodeFlag::Fail => node.fail,
            NodeFlag::Planned => node.planned,
            NodeFlag::NotResponding => !node.responds(health, self.config.not_responding_after, self.now),
            // Set from jobs and reservations.
            NodeFlag::Reserved | NodeFlag::Completing | NodeFlag::Maintenance => false,
        };
        let own = [NodeFlag::Drain, NodeFlag::Fail, NodeFlag::Planned, NodeFlag::NotResponding];
        NodeView {
            spec: node.spec.clone(),
            base,
            flags: own.into_iter().filter(|&f| stands(f)).collect(),
            reason: node.reason.clone(),
            alloc_cpus: 0,
            alloc_memory_mb: 0,
            gpus_used: BTreeSet::new(),
            reservation: None,
            partitions: Vec::new(),
            last_busy: node.last_busy,
            slurmd_start: machine.map_or(node.last_busy, |m| m.slurmd_start),
        }
    }

    fn shows_flags(&self, reservation: &Reservation) -> bool {
        let lag = self.config.reservation_flag_lag;
        plus(reservation.start, lag) <= self.now && self.now < plus(reservation.end, lag)
    }

    fn require_operator(&self, user: &str) -> Result<(), Error> {
        self.require_up()?;
        if self.config.administrators.contains(user) || self.config.operators.contains(user) {
            return Ok(());
        }
        Err(Error::InvalidUser)
    }

    fn require_administrator(&self, user: &str) -> Result<(), Error> {
        self.require_up()?;
        if self.config.administrators.contains(user) { Ok(()) } else { Err(Error::InvalidUser) }
    }

    fn require_up(&self) -> Result<(), Error> {
        if self.up { Ok(()) } else { Err(Error::ControllerDown) }
    }

    /// After any change: the scheduler looks, at the model's present time.
    fn changed(&mut self) {
        self.dirty = true;
        self.settle();
    }

    fn touch_nodes(&mut self) {
        self.updated.nodes = self.now;
        self.dirty = true;
    }

    fn touch_jobs(&mut self) {
        self.updated.jobs = self.now;
        self.touch_nodes();
    }

    fn touch_reservations(&mut self) {
        self.updated.reservations = self.now;
        self.updated.nodes = self.now;
        self.changed();
    }
}

fn add_job(view: &mut NodeView, job: &Job, share: &Share) {
    if job.is_completing() {
        view.flags.insert(NodeFlag::Completing);
    }
    if !job.state.holds_nodes() {
        return;
    }
    if job.state == JobState::Running {
        view.alloc_cpus += share.cpus;
    }
    view.alloc_memory_mb += share.memory_mb;
    view.gpus_used.extend(&share.gpus);
    match view.base {
        BaseState::Idle | BaseState::Mixed => {
            let full = view.alloc_cpus >= view.spec.cpus;
            view.base = if full { BaseState::Allocated } else { BaseState::Mixed };
        }
        BaseState::Allocated | BaseState::Down | BaseState::Unknown => {}
    }
}
