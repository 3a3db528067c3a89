//! The Slurm port on the model: the model's words as facts, and writes by the real port's own plans, each call with what can
//! go wrong on its way.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge::slurm::plan::{self, Step};
use gpu_bridge::slurm::{Error, Slurm};
use gpu_bridge_core::event::Action as AnyAction;
use gpu_bridge_core::facts::slurm::{
    Action, BaseState, Job, JobState, Node, NodeFlag, Partition, Reason, Reservation, ReservationSpec,
    Slurm as Facts,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_core::model::Domain;
use slurm_mock::model;

use super::shared::Shared;
use super::world::{Late, Look, Who, World};

/// Changes of one reservation that one write may take.
const ROUNDS: usize = 6;
/// How old a stale answer is at most, in looks.
const STALE_LOOKS: usize = 3;

/// The port.
pub(super) struct Port {
    world: Shared,
    /// The newest answers, for stale ones.
    old: std::sync::Mutex<Vec<Facts>>,
}

impl Port {
    pub(super) fn new(world: Shared) -> Arc<Self> {
        Arc::new(Self { world, old: std::sync::Mutex::default() })
    }
}

#[async_trait]
impl Slurm for Port {
    async fn look(&self, watched: &[JobId]) -> Result<Facts, Error> {
        let mut guard = self.world.lock();
        let world = &mut *guard;
        reachable(world)?;
        if world.strikes(world.rates.lost_before) {
            world.fault("a look at Slurm is lost");
            return Err(unanswered("lost"));
        }
        let mut old = self.old.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if world.strikes(world.rates.stale) && !old.is_empty() {
            let which = world.dice.within(0..i64::try_from(old.len()).unwrap_or(1));
            world.fault("a look at Slurm is stale");
            return Ok(old[usize::try_from(which).unwrap_or(0)].clone());
        }
        let facts = facts(world, watched);
        old.push(facts.clone());
        if old.len() > STALE_LOOKS {
            old.remove(0);
        }
        world.dawdle();
        world.looked(Look::Slurm);
        Ok(facts)
    }

    async fn act(&self, action: &Action) -> Result<(), Error> {
        let mut world = self.world.lock();
        reachable(&mut world)?;
        world.announced(&AnyAction::Slurm(action.clone()));
        world.dawdle();
        let node = match action {
            Action::Drain { node, .. } | Action::Undrain { node, .. } => Some(node),
            Action::Reserve(spec) => Some(&spec.node),
            Action::Unreserve { .. } => None,
        };
        if node.is_some_and(|node| world.is_unwritable(Domain::Slurm, node.as_str())) {
            return Err(not_seen("write"));
        }
        match action {
            Action::Drain { node, reason, over } => drain(&mut world, node, reason, over.as_deref()),
            Action::Undrain { node, reason } => undrain(&mut world, node, reason),
            Action::Reserve(spec) => reserve(&mut world, spec),
            Action::Unreserve { name } => unreserve(&mut world, name),
        }
    }
}

fn unanswered(why: &str) -> Error {
    Error::Unanswered { why: why.to_owned() }
}

fn reachable(world: &mut World) -> Result<(), Error> {
    if world.disk.is_crashed() {
        return Err(unanswered("the daemon is dead"));
    }
    if world.now() < world.slurm_away_until || !world.slurm.controller_is_up() {
        world.faults_in_tick += 1;
        return Err(unanswered("Slurm is away"));
    }
    Ok(())
}

fn drain(world: &mut World, name: &SlurmNodeName, reason: &str, over: Option<&str>) -> Result<(), Error> {
    match plan::drain(name, &node(world, name)?, reason, over)? {
        Step::Done => Ok(()),
        Step::Write(()) => {
            let update =
                model::NodeUpdate { action: Some(model::NodeAction::Drain), reason: Some(reason.to_owned()) };
            send(world, Late::SlurmNode(name.as_str().into(), update))?;
            match plan::drain(name, &node(world, name)?, reason, None)? {
                Step::Done => Ok(()),
                Step::Write(()) => Err(not_seen("drain")),
            }
        }
    }
}

fn undrain(world: &mut World, name: &SlurmNodeName, reason: &str) -> Result<(), Error> {
    match plan::undrain(name, &node(world, name)?, reason)? {
        Step::Done => Ok(()),
        Step::Write(()) => {
            let update = model::NodeUpdate { action: Some(model::NodeAction::Undrain), reason: None };
            send(world, Late::SlurmNode(name.as_str().into(), update))?;
            match plan::undrain(name, &node(world, name)?, reason)? {
                Step::Done => Ok(()),
                Step::Write(()) => Err(not_seen("undrain")),
            }
        }
    }
}

fn reserve(world: &mut World, spec: &ReservationSpec) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        let stands = world.slurm.reservation(&spec.name).map(reservation);
        match plan::reserve(stands.as_ref(), spec, world.now()) {
            Step::Done => return Ok(()),
            Step::Write(write) => send(world, Late::Scontrol(write.arguments()))?,
        }
    }
    Err(not_seen("reservation"))
}

fn unreserve(world: &mut World, name: &str) -> Result<(), Error> {
    if world.slurm.reservation(name).is_none() {
        return Ok(());
    }
    send(world, Late::Scontrol(vec!["delete".to_owned(), format!("ReservationName={name}")]))?;
    if world.slurm.reservation(name).is_none() { Ok(()) } else { Err(not_seen("deletion")) }
}

fn not_seen(what: &str) -> Error {
    Error::NotSeen { action: what.to_owned(), found: "something else".to_owned(), expected: "it".to_owned() }
}

/// One write, and what can happen to it.
fn send(world: &mut World, write: Late) -> Result<(), Error> {
    if world.strikes(world.rates.lost_before) {
        world.fault("a write to Slurm is lost");
        return Err(unanswered("lost before"));
    }
    if world.strikes(world.rates.late) {
        let after = world.dice.within(5..900);
        world.fault(&format!("a write to Slurm is late by {after} s"));
        let due = world.now() + jiff::SignedDuration::from_secs(after);
        world.late.push((due, write));
        return Err(unanswered("late"));
    }
    let refused = world.change(Who::Daemon, |world| match write {
        Late::SlurmNode(node, update) => {
            world.slurm.update_node(&node, &update, "root").err().map(|error| error.to_string())
        }
        Late::Scontrol(words) => {
            let output = slurm_mock::scontrol::run(&mut world.slurm, &words);
            (output.exit != 0).then_some(output.stderr)
        }
        Late::Kubernetes(_) => None,
    });
    if world.strikes(world.rates.dies_after_write) {
        world.die("the daemon dies after a write to Slurm");
    }
    if world.strikes(world.rates.lost_after) {
        world.fault("the answer to a write to Slurm is lost");
        return Err(unanswered("lost after"));
    }
    match refused {
        None => Ok(()),
        Some(said) => {
            world.tell(format!("  Slurm says {said}"));
            Err(Error::Refused { asked: "write".to_owned(), status: 500, number: 1, said })
        }
    }
}

fn node(world: &World, name: &SlurmNodeName) -> Result<Node, Error> {
    let view = world.slurm.node(&name.as_str().into());
    view.map(|view| fact(&view)).ok_or_else(|| Error::UnknownNode { node: name.to_string() })
}

/// One look, in the real port's order: nodes first, then jobs. The world may go on in between.
fn facts(world: &mut World, watched: &[JobId]) -> Facts {
    let partitions = world.slurm.partitions().iter().map(|partition| {
        let nodes = partition.nodes.iter().map(|node| SlurmNodeName::new(node.as_str())).collect();
        let up = partition.state == model::PartitionState::Up;
        (partition.name.clone(), Partition { nodes, max_time: partition.max_time, up })
    });
    let partitions = partitions.collect();
    let reservations = world.slurm.reservations().map(|r| (r.name.clone(), reservation(r))).collect();
    world.dawdle();
    let nodes = world.slurm.nodes();
    let nodes = nodes.iter().map(|view| (SlurmNodeName::new(view.spec.name.as_str()), fact(view))).collect();
    world.dawdle();
    let now = world.slurm.now();
    let jobs = world
        .slurm
        .jobs()
        .map(|one| (JobId(one.id.0), job(one, now)))
        .filter(|(id, job)| job.state != JobState::Finished || watched.contains(id))
        .collect();
    let next_job_id = Some(JobId(world.slurm.next_job_id().0));
    Facts { nodes, jobs, reservations, partitions, next_job_id, ..Facts::default() }
}

fn fact(view: &model::NodeView) -> Node {
    let flags: BTreeSet<NodeFlag> = view
        .flags
        .iter()
        .map(|flag| match flag {
            model::NodeFlag::Reserved => NodeFlag::Reserved,
            model::NodeFlag::Drain => NodeFlag::Drain,
            model::NodeFlag::Completing => NodeFlag::Completing,
            model::NodeFlag::NotResponding => NodeFlag::NotResponding,
            model::NodeFlag::Fail => NodeFlag::Fail,
            model::NodeFlag::Maintenance => NodeFlag::Maintenance,
            model::NodeFlag::Planned => NodeFlag::Planned,
        })
        .collect();
    Node {
        state: match view.base {
            model::BaseState::Idle => BaseState::Idle,
            model::BaseState::Mixed => BaseState::Mixed,
            model::BaseState::Allocated => BaseState::Allocated,
            model::BaseState::Down => BaseState::Down,
            model::BaseState::Unknown => BaseState::Unknown,
        },
        flags,
        reason: view.reason.as_ref().map(|reason| Reason {
            text: reason.text.clone(),
            user: reason.user.clone(),
            at: Some(reason.changed_at),
        }),
        gpus: view.spec.gpu_count(),
        gpus_used: u32::try_from(view.gpus_used.len()).ok(),
        partitions: view.partitions.iter().cloned().collect(),
    }
}

fn job(job: &model::Job, now: jiff::Timestamp) -> Job {
    let completing = job.is_completing();
    let state = match job.state {
        _ if completing => JobState::Completing,
        model::JobState::Pending => JobState::Pending,
        model::JobState::Running if job.is_configuring(now) => JobState::Configuring,
        model::JobState::Running => JobState::Running,
        model::JobState::Suspended => JobState::Suspended,
        model::JobState::Completed
        | model::JobState::Cancelled
        | model::JobState::Timeout
        | model::JobState::NodeFail => JobState::Finished,
    };
    let names = |nodes: &mut dyn Iterator<Item = &model::NodeName>| {
        nodes.map(|node| SlurmNodeName::new(node.as_str())).collect()
    };
    Job {
        id: JobId(job.id.0),
        state,
        user: job.spec.user.clone(),
        partition: job.partition.clone(),
        nodes: names(&mut job.allocation.keys()),
        required_nodes: names(&mut job.spec.required_nodes.iter()),
        node_count: job.spec.nodes,
        gpus_per_node: job.spec.gpus_per_node,
        time_limit: Some(job.time_limit),
        start: job.started_at,
        end_by: job.limit_at(),
        requeue: job.spec.requeue,
        pending_reason: (job.state == model::JobState::Pending).then(|| job.reason.code().to_owned()),
        submitted: None,
        gpu_type: None,
        tasks: Some(1),
        het_leader: None,
    }
}

fn reservation(reservation: &model::Reservation) -> Reservation {
    Reservation {
        name: reservation.name.clone(),
        nodes: reservation.nodes.iter().map(|node| SlurmNodeName::new(node.as_str())).collect(),
        users: reservation.users.iter().cloned().collect(),
        accounts: BTreeSet::new(),
        flags: reservation.flags.iter().map(|flag| flag.as_str().to_owned()).collect(),
        start: reservation.start,
        end: reservation.end,
    }
}
