//! The truth about one node on both sides, what looks show of it, and what writes do to it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::event::Action;
use crate::facts::kubernetes::{self, Eviction, GateObject, GuardState, Guards, Kubernetes, NodeLook, Ready};
use crate::facts::slurm::{self, BaseState, JobState, NodeFlag, Reason, Reservation, RunningJobs, Slurm};
use crate::facts::{Facts, Seen, Told};
use crate::fixtures::{at, holder, k, kube_node, pod, s, slurm_node};
use crate::ids::JobId;
use crate::mark::{DrainReason, TAINT_DRAINING, TAINT_SLURM, reservation_handover};

/// Why people drain the node.
pub(super) const BAD_FAN: &str = "bad fan";
/// Between two ticks.
pub(super) const TICK: SignedDuration = SignedDuration::from_secs(20);
/// Ticks that a container takes to end after its kubelet has heard that it must: all of its grace.
pub(super) const GRACE_TICKS: i32 = 8;

/// A job in Slurm with its process.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) start: Timestamp,
    pub(super) state: JobState,
    /// Slurm lists it on the node; a shrunk job is not, and its process lives on.
    pub(super) named: bool,
}

/// A pod in Kubernetes with its process.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) name: String,
    /// The object exists; a force-deleted pod's process outlives it.
    pub(super) listed: bool,
    pub(super) terminating: bool,
    /// When it ends; `None` until its kubelet has heard that it must.
    pub(super) ends_at: Option<Timestamp>,
}

impl Pod {
    pub(super) fn running(name: String) -> Self {
        Self { name, listed: true, terminating: false, ends_at: None }
    }

    pub(super) fn uid(&self) -> String {
        pod(&self.name, Eviction::Allowed).pod.uid
    }
}

/// What the daemon has noted.
#[derive(Debug, Clone, Default)]
pub(super) struct Noted {
    /// By a handover that is under way or ended.
    pub(super) slurm_is_closed: bool,
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) pods: BTreeSet<String>,
}

/// The truth about one node on both sides.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) drain: Option<Reason>,
    pub(super) reservations: BTreeMap<String, Reservation>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) listed: bool,
    pub(super) gate_version: u64,
    pub(super) node: kubernetes::Node,
    pub(super) node_version: u64,
    pub(super) pods: Vec<Pod>,
    /// Pods that the scheduler decided to bind here, and has not bound yet.
    pub(super) decided: u32,
    pub(super) frozen_since: Option<Timestamp>,
    pub(super) next_id: u32,
    pub(super) late: Vec<(Action, u64, u64)>,
}

impl World {
    pub(super) fn new() -> Self {
        let mut node = kube_node(1);
        node.lease_renewed_at = Some(at(0));
        Self {
            now: at(0),
            drain: None,
            reservations: BTreeMap::new(),
            jobs: BTreeMap::new(),
            listed: false,
            gate_version: 0,
            node,
            node_version: 0,
            pods: vec![],
            decided: 0,
            frozen_since: None,
            next_id: 1,
            late: vec![],
        }
    }

    pub(super) fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn has_taint(&self, key: &str) -> bool {
        self.node.taints.iter().any(|taint| taint.key == key)
    }

    pub(super) fn reserved_for_us(&self) -> bool {
        self.reservations.values().any(|r| r.is_active(self.now))
    }

    pub(super) fn is_drained_by_hand(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.text == BAD_FAN)
    }

    pub(super) fn slurm_starts_work(&self) -> bool {
        self.drain.is_none() && !self.reserved_for_us()
    }

    pub(super) fn kubernetes_starts_work(&self) -> bool {
        !self.listed && !self.has_taint(TAINT_DRAINING) && !self.has_taint(TAINT_SLURM)
    }

    pub(super) fn slurm_closed(&self) -> bool {
        self.drain.is_some() && self.reserved_for_us()
    }

    pub(super) fn kubernetes_closed(&self) -> bool {
        self.listed && self.has_taint(TAINT_DRAINING) && self.has_taint(TAINT_SLURM)
    }

    pub(super) fn pass_time(&mut self) {
        self.now += TICK;
        let now = self.now;
        self.reservations.retain(|_, r| r.end > now);
        match self.frozen_since {
            // The kubelet lives: NoExecute evicts, deleted pods end by their grace, and the Lease is renewed.
            None => {
                let evicts = self.has_taint(TAINT_SLURM);
                for pod in &mut self.pods {
                    pod.terminating |= evicts;
                    if pod.terminating || !pod.listed {
                        pod.ends_at.get_or_insert(now + TICK * GRACE_TICKS);
                    }
                }
                self.pods.retain(|pod| pod.ends_at.is_none_or(|ends| ends > now));
                self.node.lease_renewed_at = Some(now);
                self.node.ready = Ready::True;
            }
            Some(since) if since + TICK * 2 <= now => self.node.ready = Ready::Unknown,
            Some(_) => {}
        }
    }

    pub(super) fn facts(&self) -> Facts {
        let mut node = slurm_node();
        if self.drain.is_some() {
            node.flags.insert(NodeFlag::Drain);
            node.reason.clone_from(&self.drain);
        }
        let named = |job: &&Job| job.named && job.state != JobState::Finished;
        if self.jobs.values().any(|job| named(&job)) {
            node.state = BaseState::Allocated;
            node.gpus_used = Some(8);
        }
        let job = |(id, job): (&JobId, &Job)| {
            let on: &[u32] = if job.named { &[1] } else { &[2] };
            (*id, crate::fixtures::job(id.0, job.state.clone(), on, job.start))
        };
        let slurm = Slurm {
            nodes: Told::from_iter([(s(1), node)]),
            jobs: self.jobs.iter().map(job).collect(),
            reservations: self.reservations.clone(),
            partitions: BTreeMap::new(),
            ..Slurm::default()
        };
        let kubernetes = Kubernetes {
            revision: None,
            nodes: Told::from_iter([(k(1), self.node.clone())]),
            gate: Some(GateObject { closed: self.listed.then(|| k(1)).into_iter().collect() }),
            guards: Guards {
                bindings: GuardState::Standing,
                pods: GuardState::Standing,
                marks: GuardState::Standing,
                gate: GuardState::Standing,
            },
            pending: vec![],
        };
        Facts {
            slurm: Seen::At { at: self.now, value: slurm },
            kubernetes: Seen::At { at: self.now, value: kubernetes },
            kubernetes_missed: None,
        }
    }

    pub(super) fn look(&self) -> Seen<NodeLook> {
        let eviction = |terminating| if terminating { Eviction::Terminating } else { Eviction::Allowed };
        let listed = self.pods.iter().filter(|pod| pod.listed);
        let grace_s = u32::try_from((TICK * GRACE_TICKS).as_secs()).unwrap();
        let fact = |p: &Pod| kubernetes::Pod { grace_s, ..pod(&p.name, eviction(p.terminating)) };
        let holders = listed.map(|p| holder(fact(p))).collect();
        let lease_renewed_at = self.node.lease_renewed_at;
        let value = NodeLook { holders, lease_renewed_at, ..NodeLook::default() };
        Seen::At { at: self.now, value }
    }

    /// Carries an effect out. Writes on Kubernetes are guarded by the versions known when they were asked for.
    pub(super) fn act(&mut self, action: &Action, gate_version: u64, node_version: u64) {
        match action {
            Action::Slurm(slurm::Action::Drain { reason, over, .. }) => {
                let may = match &self.drain {
                    None => true,
                    Some(standing) => {
                        DrainReason::parse(&standing.text).is_some()
                            || over.as_deref() == Some(standing.text.as_str())
                    }
                };
                if may {
                    self.drain = Some(Reason { text: reason.clone(), user: "root".into(), at: None });
                }
            }
            Action::Slurm(slurm::Action::Undrain { reason, .. }) => {
                self.drain.take_if(|standing| standing.text == *reason);
            }
            Action::Slurm(slurm::Action::Reserve(spec)) => {
                let mut start = spec.start.max(self.now);
                if let Some(standing) = self.reservations.get(&spec.name).filter(|r| r.is_active(self.now)) {
                    start = standing.start;
                }
                let busy = self.jobs.values().any(|job| job.named && job.state != JobState::Finished);
                let ignore = match spec.jobs {
                    RunningJobs::Ignore => true,
                    RunningJobs::None => false,
                };
                if spec.end <= self.now || (busy && !ignore) {
                    return;
                }
                let mut flags = BTreeSet::from(["MAINT".to_owned(), "SPEC_NODES".to_owned()]);
                if ignore {
                    flags.insert("IGNORE_JOBS".to_owned());
                }
                let reservation = Reservation {
                    name: spec.name.clone(),
                    nodes: [spec.node.clone()].into(),
                    users: ["root".to_owned()].into(),
                    accounts: BTreeSet::new(),
                    flags,
                    start,
                    end: spec.end,
                };
                self.reservations.insert(spec.name.clone(), reservation);
            }
            Action::Slurm(slurm::Action::Unreserve { name }) => {
                assert!(reservation_handover(name).is_some(), "deletes others' reservation {name}");
                self.reservations.remove(name);
            }
            // This world's Gate is always there.
            Action::Kubernetes(kubernetes::Action::CreateGate { .. }) => {}
            Action::Kubernetes(kubernetes::Action::CloseGate { .. }) => {
                self.listed = true;
                self.gate_version += 1;
            }
            Action::Kubernetes(kubernetes::Action::OpenGate { .. }) => {
                if gate_version == self.gate_version {
                    self.listed = false;
                    self.gate_version += 1;
                }
            }
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                if node_version != self.node_version || marks.uid != self.node.uid {
                    return;
                }
                self.node_version += 1;
                self.node.taints.retain(|t| !marks.taint_keys.contains(&t.key));
                self.node.taints.extend(marks.taints.iter().cloned());
                for (key, value) in &marks.labels {
                    match value {
                        Some(value) => _ = self.node.labels.insert(key.clone(), value.clone()),
                        None => _ = self.node.labels.remove(key),
                    }
                }
                self.node.handover_annotation.clone_from(&marks.annotation);
            }
            Action::Kubernetes(kubernetes::Action::Evict { pod }) => {
                for standing in self.pods.iter_mut().filter(|p| p.name == pod.name) {
                    standing.terminating = true;
                }
            }
        }
    }

    pub(super) fn gpu_work_of_slurm(&self) -> bool {
        self.jobs.values().any(|job| job.state != JobState::Finished)
    }
}
