//! What really happens on the machines, whatever slurmctld believes. Only checkers read this; the model
//! writes it and never decides by it, except that a process that is gone cannot end twice.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::ids::{JobId, NodeName, RunId};

/// The processes of one run of a job on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Run they belong to.
    pub run: RunId,
    /// Job they belong to.
    pub job: JobId,
    /// Its owner.
    pub user: String,
    /// Where they live.
    pub node: NodeName,
    /// GPUs they hold.
    pub gpus: u32,
    /// When they started.
    pub started_at: Timestamp,
    /// When they ended or will certainly have ended; `None` while they live.
    pub ended_at: Option<Timestamp>,
}

impl Process {
    /// Whether they live at `t`.
    pub fn lives_at(&self, t: Timestamp) -> bool {
        self.started_at <= t && self.ended_at.is_none_or(|end| t < end)
    }
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// By itself.
    Finished,
    /// Its time limit was over.
    TimeLimit,
    /// A user cancelled it.
    CancelledBy(String),
    /// A user requeued it.
    RequeuedBy(String),
    /// A user set one of its nodes DOWN.
    NodeSetDownBy(NodeName, String),
    /// One of its nodes stopped answering.
    NodeDied(NodeName),
    /// slurmctld was started without it (`-c`, or an older state).
    ControllerForgot,
}

/// The end of one run, or of a job that never started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The job.
    pub job: JobId,
    /// Its run; `None` if it never started.
    pub run: Option<RunId>,
    /// Its owner.
    pub user: String,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub cause: Cause,
    /// Whether the job goes on waiting in the queue.
    pub requeued: bool,
}

impl Ending {
    /// Whether somebody or something stopped it before its time.
    pub fn is_kill(&self) -> bool {
        match self.cause {
            Cause::Finished | Cause::TimeLimit => false,
            Cause::CancelledBy(_)
            | Cause::RequeuedBy(_)
            | Cause::NodeSetDownBy(..)
            | Cause::NodeDied(_)
            | Cause::ControllerForgot => true,
        }
    }
}

/// Everything that really happened. It grows with the number of runs; a world is thrown away with its test.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    processes: Vec<Process>,
    /// Positions of those without an end, by run.
    alive: BTreeMap<RunId, Vec<usize>>,
    endings: Vec<Ending>,
    next_run: u64,
}

impl Truth {
    /// All processes that ever were, by start.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The processes that live on `node` at `t`.
    pub fn processes_on<'a>(&'a self, node: &'a NodeName, t: Timestamp) -> impl Iterator<Item = &'a Process> {
        self.processes.iter().filter(move |p| p.node == *node && p.lives_at(t))
    }

    /// All endings, in order.
    pub fn endings(&self) -> &[Ending] {
        &self.endings
    }

    /// The runs that were stopped before their time, with who or what did it.
    pub fn kills(&self) -> impl Iterator<Item = &Ending> {
        self.endings.iter().filter(|e| e.is_kill())
    }

    pub(crate) fn new_run(&mut self) -> RunId {
        self.next_run += 1;
        RunId(self.next_run)
    }

    pub(crate) fn start(&mut self, process: Process) {
        self.alive.entry(process.run).or_default().push(self.processes.len());
        self.processes.push(process);
    }

    pub(crate) fn lives(&self, run: RunId) -> bool {
        self.alive.contains_key(&run)
    }

    pub(crate) fn living_runs(&self) -> Vec<RunId> {
        self.alive.keys().copied().collect()
    }

    /// Ends the processes of `run` on the nodes that `on` picks.
    pub(crate) fn end(&mut self, run: RunId, at: Timestamp, on: impl Fn(&NodeName) -> bool) {
        let Some(positions) = self.alive.remove(&run) else { return };
        let mut left = Vec::new();
        for position in positions {
            match self.processes.get_mut(position) {
                Some(process) if on(&process.node) => process.ended_at = Some(at.max(process.started_at)),
                Some(_) => left.push(position),
                None => {}
            }
        }
        if !left.is_empty() {
            self.alive.insert(run, left);
        }
    }

    pub(crate) fn record(&mut self, ending: Ending) {
        self.endings.push(ending);
    }
}
