//! What people and machines do in the world while the daemon works: jobs and pods come and go, marks are set and taken
//! away, nodes die and return, the schedulers and the disk fail. Decides what happens next, never whether it is right.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::mark::GATE_NAME;
use jiff::{SignedDuration, Timestamp};
use kube_mock::{Id, Machine, NodeSpec, PodSpec, Request, Resource, Workload};
use serde_json::{Value, json};
use slurm_mock::model::{
    BaseState, Health, JobId, JobSpec, JobState, NodeAction, NodeName, NodeUpdate, Start,
};

use super::decider::BURST;
use super::run::{GPUS, POOL_LABEL};
use super::world::{KubeSide, SlurmSide, Who, World, text, whatever};

/// The administrator of Slurm, who is not the daemon.
pub(super) const ADMIN: &str = "olga";
/// Namespace of everybody's pods.
pub(super) const SPACE: &str = "default";
/// Jobs that wait at most.
const QUEUE: usize = 6;
/// Drains that slurmctld loses when it is killed are at most so old.
const UNSAVED: SignedDuration = SignedDuration::from_secs(5);

/// What people have on their minds.
#[derive(Debug, Default)]
pub(super) struct People {
    /// Nodes that a person drained, with the reason.
    drains: BTreeMap<String, String>,
    /// Node objects that come back, with whether their kubelet registers with the taint.
    to_return: BTreeMap<String, (Timestamp, bool)>,
    /// Kubelets' machines.
    pub(super) kubelets: BTreeMap<String, Machine>,
    /// Machines that will be repaired.
    broken_until: BTreeMap<String, Timestamp>,
    /// When slurmctld starts again, and how.
    controller_back: Option<(Timestamp, Start)>,
    /// Nodes whose drain slurmctld had not saved when it was killed.
    unsaved: Vec<String>,
    /// When drains were first seen, for what a killed slurmctld forgets.
    drained_since: BTreeMap<String, Timestamp>,
    /// Pods that the daemon asked to evict.
    pub(super) asked_to_go: BTreeSet<String>,
    /// Ends of jobs that were judged.
    pub(super) endings_seen: usize,
    number: u32,
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    Submit,
    Job(JobChange),
    Pods(PodChange),
    Slurm(SlurmMark),
    Kubernetes(KubeMark),
    Failure(Failure),
}

#[derive(Debug, Clone, Copy)]
enum JobChange {
    Cancel,
    Requeue,
    SuspendOrResume,
    Shrink,
}

#[derive(Debug, Clone, Copy)]
enum PodChange {
    ChangeWorkload,
    LonePod,
    ChangeBudget,
    DeletePod,
}

#[derive(Debug, Clone, Copy)]
enum SlurmMark {
    Drain,
    LiftDrain,
    LoseDrain,
    LoseReservation,
    Break,
}

#[derive(Debug, Clone, Copy)]
enum KubeMark {
    LoseTaints,
    LoseListing,
    LoseGate,
    Break,
    Cordon,
    Uncordon,
    DeleteNode,
}

#[derive(Debug, Clone, Copy)]
enum Failure {
    SlurmdDies,
    PowerFails,
    KubeletFreezes,
    ControllerStops,
    ApiAway,
    RestAway,
    DiskFails,
    Crash,
}

const CHANCES: [(u32, Happening); 29] = [
    (120, Happening::Submit),
    (8, Happening::Job(JobChange::Cancel)),
    (6, Happening::Job(JobChange::Requeue)),
    (14, Happening::Job(JobChange::SuspendOrResume)),
    (8, Happening::Job(JobChange::Shrink)),
    (14, Happening::Pods(PodChange::ChangeWorkload)),
    (20, Happening::Pods(PodChange::LonePod)),
    (12, Happening::Pods(PodChange::ChangeBudget)),
    (6, Happening::Pods(PodChange::DeletePod)),
    (9, Happening::Slurm(SlurmMark::Drain)),
    (14, Happening::Slurm(SlurmMark::LiftDrain)),
    (8, Happening::Slurm(SlurmMark::LoseDrain)),
    (8, Happening::Slurm(SlurmMark::LoseReservation)),
    (8, Happening::Kubernetes(KubeMark::LoseTaints)),
    (8, Happening::Kubernetes(KubeMark::LoseListing)),
    (2, Happening::Kubernetes(KubeMark::LoseGate)),
    (1, Happening::Slurm(SlurmMark::Break)),
    (1, Happening::Kubernetes(KubeMark::Break)),
    (6, Happening::Kubernetes(KubeMark::Cordon)),
    (10, Happening::Kubernetes(KubeMark::Uncordon)),
    (6, Happening::Kubernetes(KubeMark::DeleteNode)),
    (6, Happening::Failure(Failure::SlurmdDies)),
    (4, Happening::Failure(Failure::PowerFails)),
    (7, Happening::Failure(Failure::KubeletFreezes)),
    (6, Happening::Failure(Failure::ControllerStops)),
    (6, Happening::Failure(Failure::ApiAway)),
    (6, Happening::Failure(Failure::RestAway)),
    (4, Happening::Failure(Failure::DiskFails)),
    (10, Happening::Failure(Failure::Crash)),
];

impl World {
    /// Something happens.
    pub(super) fn happen(&mut self) {
        self.mend();
        let Some(happening) = self.dice.weighed(&CHANCES) else { return };
        self.counts.happenings += 1;
        let node = self.dice.pick(&self.nodes).cloned().unwrap_or_default();
        let (slurm, kube) = self.sides().remove(&node).unwrap_or_default();
        match happening {
            Happening::Submit => self.submit(),
            Happening::Job(change) => self.change_job(change, &node),
            Happening::Pods(change) => self.change_pods(change, &node),
            Happening::Slurm(mark) => self.change_slurm_marks(mark, &node, &slurm),
            Happening::Kubernetes(mark) => self.change_kube_marks(mark, &node, &kube),
            Happening::Failure(failure) => self.fail_somewhere(failure, &node),
        }
    }

    fn others<R>(&mut self, what: &str, f: impl FnOnce(&mut Self) -> R) -> R {
        self.tell(what);
        self.change(Who::Others, f)
    }

    fn submit(&mut self) {
        let waiting = self.slurm.jobs().filter(|job| job.state == JobState::Pending).count();
        if waiting >= QUEUE {
            return;
        }
        let user = self.dice.pick(&["alice", "bob", "carol"]).copied().unwrap_or("alice");
        let nodes = if self.dice.permille(200) { 2 } else { 1 };
        let gpus = u32::try_from(self.dice.within(1..i64::from(GPUS) + 1)).unwrap_or(1);
        let run = self.dice.within(30..2400);
        let limit = if self.dice.permille(800) { run + self.dice.within(60..1200) } else { run - 10 };
        let mut spec = JobSpec::new(user, nodes, gpus, SignedDuration::from_secs(run))
            .limit(SignedDuration::from_mins((limit / 60).max(1)));
        spec.requeue = self.dice.permille(500);
        // Refused while slurmctld is away.
        let submitted = self.change(Who::Others, |world| world.slurm.submit(spec).ok());
        if let Some(id) = submitted {
            self.counts.work += 1;
            self.tell(format!(
                "{user} submits job {id}: {nodes} nodes, {gpus} GPUs, {run} s, limit {limit} s"
            ));
        }
    }

    fn change_job(&mut self, change: JobChange, node: &str) {
        let jobs: Vec<(JobId, String, JobState)> = self
            .slurm
            .jobs()
            .filter(|job| !job.state.is_final())
            .map(|job| (job.id, job.spec.user.clone(), job.state))
            .collect();
        let Some((id, user, state)) = self.dice.pick(&jobs).cloned() else { return };
        self.others(&format!("{user}'s job {id} ({state:?}): {change:?}"), |world| {
            // What Slurm refuses has no consequences.
            let done = match change {
                JobChange::Cancel => world.slurm.cancel(id, &user),
                JobChange::Requeue => world.slurm.requeue(id, &user),
                JobChange::Shrink => world.slurm.shrink_job(id, &NodeName::from(node), &user),
                JobChange::SuspendOrResume if state == JobState::Suspended => {
                    world.slurm.resume_job(id, ADMIN)
                }
                JobChange::SuspendOrResume => world.slurm.suspend(id, ADMIN),
            };
            whatever(done);
        });
    }

    fn change_pods(&mut self, change: PodChange, node: &str) {
        self.people.number += 1;
        let number = self.people.number;
        match change {
            PodChange::ChangeWorkload => {
                let replicas = usize::try_from(self.dice.within(0..5)).unwrap_or(0);
                let gpus = u64::try_from(self.dice.within(1..i64::from(GPUS) + 1)).unwrap_or(1);
                let app = self.dice.pick(&["chat", "search"]).copied().unwrap_or("chat");
                let mut pod = pod(app, gpus);
                if self.dice.permille(100) {
                    pod.annotations.insert("gpu-bridge.io/do-not-disrupt".into(), "true".into());
                }
                let stop = self.dice.within(1..40);
                pod.annotations.insert("kube-mock/stop-seconds".into(), stop.to_string());
                self.others(
                    &format!("workload {app}: {replicas} of {gpus} GPUs, ending in {stop} s"),
                    |world| {
                        world.kube.set_workload(Workload::new(replicas, pod));
                    },
                );
                self.counts.work += 1;
            }
            PodChange::LonePod => {
                let gpus = u64::try_from(self.dice.within(0..i64::from(GPUS) + 1)).unwrap_or(0);
                let run = self.dice.within(20..1200);
                let mut pod = pod(&format!("lone-{number}"), gpus);
                if gpus == 0 {
                    pod.node_selector.clear();
                }
                pod.annotations.insert("kube-mock/run-seconds".into(), run.to_string());
                self.others(&format!("pod lone-{number}: {gpus} GPUs for {run} s"), |world| {
                    world.kube.add_pod(&pod);
                    if world.dice.permille(70) {
                        world.tell(format!("pod lone-{number} has a priority above eviction"));
                        let priority = super::world::PROTECTED_PRIORITY;
                        let id = Id::pod(SPACE, &pod.name);
                        world.kube.edit(&id, |pod| pod["spec"]["priority"] = json!(priority));
                    }
                });
                self.counts.work += 1;
            }
            PodChange::ChangeBudget => {
                let app = self.dice.pick(&["chat", "search"]).copied().unwrap_or("chat");
                let allowed = self.dice.within(0..3);
                self.budget(app, allowed);
            }
            PodChange::DeletePod => {
                let pods: Vec<String> = self
                    .kube
                    .all(Resource::Pods)
                    .filter(|(_, pod)| text(pod, "/spec/nodeName") == node)
                    .map(|(id, _)| id.name.clone())
                    .collect();
                let Some(name) = self.dice.pick(&pods).cloned() else { return };
                let grace = if self.dice.permille(500) { "0" } else { "30" };
                self.others(&format!("a person deletes pod {name} with grace {grace}"), |world| {
                    world.kube.request(&Request {
                        method: "DELETE".into(),
                        path: format!("/api/v1/namespaces/{SPACE}/pods/{name}"),
                        query: vec![("gracePeriodSeconds".into(), grace.into())],
                        ..Request::default()
                    });
                });
            }
        }
    }

    pub(super) fn budget(&mut self, app: &str, allowed: i64) {
        let id = Id::namespaced(Resource::PodDisruptionBudgets, SPACE, app);
        let spec = json!({"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}});
        self.others(&format!("budget of {app}: {allowed} may go"), |world| {
            if !world.kube.edit(&id, |budget| budget["spec"] = spec.clone()) {
                world.kube.create(&id, json!({"spec": spec}));
            }
        });
    }

    fn change_slurm_marks(&mut self, mark: SlurmMark, node: &str, side: &SlurmSide) {
        let name = NodeName::from(node);
        let reserved: Vec<String> = self
            .slurm
            .reservations()
            .filter(|reservation| reservation.nodes.contains(&name))
            .map(|reservation| reservation.name.clone())
            .collect();
        // One guard at a time, of a side that is whole and that no write of ours is still on its way to.
        let whole = side.is_whole() && self.late.is_empty();
        let update = |action: NodeAction, reason: Option<&str>| NodeUpdate {
            action: Some(action),
            reason: reason.map(str::to_owned),
        };
        match mark {
            SlurmMark::Drain if side.drain.is_none() || whole => {
                self.people.number += 1;
                let reason = format!("bad fan {}", self.people.number);
                let done = self.others(&format!("{ADMIN} drains {node}: {reason}"), |world| {
                    world.slurm.update_node(&name, &update(NodeAction::Drain, Some(&reason)), ADMIN)
                });
                if done.is_ok() {
                    self.people.drains.insert(node.to_owned(), reason);
                }
            }
            SlurmMark::LiftDrain => {
                let stands =
                    self.people.drains.get(node).filter(|reason| side.drain.as_ref() == Some(reason));
                if stands.is_some() {
                    self.people.drains.remove(node);
                    self.others(&format!("{ADMIN} lifts the drain of {node}"), |world| {
                        whatever(world.slurm.update_node(&name, &update(NodeAction::Undrain, None), ADMIN));
                    });
                }
            }
            SlurmMark::LoseDrain if whole => {
                self.others(&format!("{ADMIN} takes our drain off {node}"), |world| {
                    whatever(world.slurm.update_node(&name, &update(NodeAction::Undrain, None), ADMIN));
                });
            }
            SlurmMark::LoseReservation if whole => {
                self.others(&format!("{ADMIN} deletes our reservation of {node}"), |world| {
                    for reservation in &reserved {
                        whatever(world.slurm.delete_reservation(reservation, ADMIN));
                    }
                });
            }
            SlurmMark::Break if whole => {
                self.others(&format!("{ADMIN} takes all our marks off {node} in Slurm"), |world| {
                    for reservation in &reserved {
                        whatever(world.slurm.delete_reservation(reservation, ADMIN));
                    }
                    whatever(world.slurm.update_node(&name, &update(NodeAction::Undrain, None), ADMIN));
                });
            }
            SlurmMark::Drain | SlurmMark::LoseDrain | SlurmMark::LoseReservation | SlurmMark::Break => {}
        }
    }

    fn change_kube_marks(&mut self, mark: KubeMark, node: &str, side: &KubeSide) {
        let id = Id::node(node);
        let gate = Id::cluster(Resource::Gates, GATE_NAME);
        let name = node.to_owned();
        let unlist = move |gate: &mut Value| {
            if let Some(closed) = gate["spec"]["closed"].as_array_mut() {
                closed.retain(|listed| *listed != name.as_str());
            }
        };
        let untaint = |node: &mut Value| {
            if let Some(taints) = node["spec"]["taints"].as_array_mut() {
                taints.retain(|taint| !text(taint, "/key").starts_with("gpu-bridge.io/"));
            }
        };
        let whole = side.is_whole() && self.late.is_empty();
        match mark {
            KubeMark::LoseTaints if whole => {
                self.others(&format!("a person takes our taints off {node}"), |world| {
                    world.kube.edit(&id, untaint)
                });
            }
            KubeMark::LoseListing if whole => {
                self.others(&format!("a person takes {node} off the Gate's list"), |world| {
                    world.kube.edit(&gate, unlist)
                });
            }
            KubeMark::LoseGate if self.late.is_empty() => {
                self.others("a person deletes the Gate", |world| {
                    let path = format!("/apis/gpu-bridge.io/v1/gates/{GATE_NAME}");
                    world.kube.request(&Request { method: "DELETE".into(), path, ..Request::default() });
                });
            }
            KubeMark::Break if whole => {
                self.others(&format!("a person takes all our marks off {node} in Kubernetes"), |world| {
                    world.kube.edit(&gate, unlist);
                    world.kube.edit(&id, untaint);
                });
            }
            KubeMark::Cordon | KubeMark::Uncordon if side.there => {
                let cordoned = matches!(mark, KubeMark::Cordon);
                if side.cordoned != cordoned {
                    self.others(&format!("a person sets the cordon of {node} to {cordoned}"), |world| {
                        world.kube.edit(&id, |node| node["spec"]["unschedulable"] = json!(cordoned));
                    });
                }
            }
            KubeMark::DeleteNode if side.there && !self.people.to_return.contains_key(node) => {
                let tainted = self.dice.permille(600);
                let back = self.now() + SignedDuration::from_secs(self.dice.within(5..120));
                self.people.to_return.insert(node.to_owned(), (back, tainted));
                self.others(&format!("a person deletes the Node {node}"), |world| {
                    let path = format!("/api/v1/nodes/{node}");
                    world.kube.request(&Request { method: "DELETE".into(), path, ..Request::default() });
                });
            }
            KubeMark::LoseTaints
            | KubeMark::LoseListing
            | KubeMark::LoseGate
            | KubeMark::Break
            | KubeMark::Cordon
            | KubeMark::Uncordon
            | KubeMark::DeleteNode => {}
        }
    }

    /// Others take all our marks off a node in Kubernetes.
    #[cfg(test)]
    pub(super) fn break_kubernetes(&mut self, node: &str) {
        let side = self.sides().remove(node).map(|(_, kube)| kube).unwrap_or_default();
        self.change_kube_marks(KubeMark::Break, node, &side);
    }

    /// A person deletes the Gate.
    #[cfg(test)]
    pub(super) fn delete_gate(&mut self) {
        self.change_kube_marks(KubeMark::LoseGate, "", &KubeSide::default());
    }

    /// Whether there is a Gate.
    #[cfg(test)]
    pub(super) fn has_gate(&self) -> bool {
        self.kube.all(Resource::Gates).next().is_some()
    }

    fn fail_somewhere(&mut self, failure: Failure, node: &str) {
        let now = self.now();
        let until = now + SignedDuration::from_secs(self.dice.within(10..240));
        let name = NodeName::from(node);
        match failure {
            Failure::SlurmdDies => {
                self.people.broken_until.entry(node.to_owned()).or_insert(until);
                self.others(&format!("slurmd of {node} dies"), |world| {
                    whatever(world.slurm.kill_slurmd(&name));
                });
            }
            Failure::PowerFails => {
                self.people.broken_until.entry(node.to_owned()).or_insert(until);
                self.people.kubelets.insert(node.to_owned(), Machine::Down);
                self.others(&format!("{node} loses its power"), |world| {
                    whatever(world.slurm.power_off(&name));
                    world.kube.set_machine(node, Machine::Down);
                });
            }
            Failure::KubeletFreezes
                if self.people.kubelets.get(node).is_none_or(|machine| *machine == Machine::Up) =>
            {
                self.people.broken_until.entry(node.to_owned()).or_insert(until);
                self.people.kubelets.insert(node.to_owned(), Machine::Frozen);
                self.others(&format!("the kubelet of {node} freezes"), |world| {
                    world.kube.set_machine(node, Machine::Frozen);
                });
            }
            Failure::ControllerStops if self.slurm.controller_is_up() => {
                let start = self.dice.weighed(&[(5, Start::Clean), (5, Start::AfterKill), (1, Start::Cold)]);
                let start = start.unwrap_or(Start::Clean);
                self.note_drains();
                let fresh = |since: &Timestamp| since.duration_until(now) <= UNSAVED;
                let drained = self.people.drained_since.iter();
                let unsaved = drained.filter(|(_, since)| matches!(start, Start::AfterKill) && fresh(since));
                self.people.unsaved = unsaved.map(|(node, _)| node.clone()).collect();
                self.people.controller_back = Some((until, start));
                self.others("slurmctld stops", |world| world.slurm.stop_controller());
            }
            Failure::ApiAway => {
                self.kube_away_until = until;
                self.fault("the API server is away");
            }
            Failure::RestAway => {
                self.slurm_away_until = until;
                self.fault("slurmrestd is away");
            }
            Failure::DiskFails if !self.disk.is_crashed() => {
                self.disk_bad_until = Some(until);
                match self.dice.within(0..3) {
                    0 => self.disk.read_only(true),
                    1 => self.disk.full_at(Some(self.disk.bytes().len() + 100)),
                    _ => self.disk.fail_syncs(2),
                }
                self.fault("the ledger's disk fails");
            }
            Failure::Crash if !self.disk.is_crashed() => {
                let at = self.disk.operations() + u64::try_from(self.dice.within(0..12)).unwrap_or(0);
                let bytes = usize::try_from(self.dice.within(0..400)).unwrap_or(0);
                self.disk.crash_at(at, bytes);
                self.tell("the daemon's machine is about to die");
            }
            Failure::KubeletFreezes | Failure::ControllerStops | Failure::DiskFails | Failure::Crash => {}
        }
    }

    /// What was broken is mended in its time.
    pub(super) fn mend(&mut self) {
        let now = self.now();
        let due: Vec<String> = self
            .people
            .broken_until
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(n, _)| n.clone())
            .collect();
        for node in due {
            self.people.broken_until.remove(&node);
            self.repair(&node);
        }
        let back: Vec<String> =
            self.people.to_return.iter().filter(|(_, (at, _))| *at <= now).map(|(n, _)| n.clone()).collect();
        for node in back {
            self.register(&node);
        }
        if let Some((_, start)) = self.people.controller_back.filter(|(at, _)| *at <= now) {
            self.people.controller_back = None;
            self.start_controller(start);
        }
        if self.disk_bad_until.is_some_and(|until| until <= now) {
            self.mend_disk();
        }
        self.resume_down();
        self.note_drains();
    }

    pub(super) fn mend_disk(&mut self) {
        self.disk_bad_until = None;
        self.disk.read_only(false);
        self.disk.full_at(None);
        self.disk.fail_syncs(0);
        self.tell("the ledger's disk works again");
    }

    /// Everything that is broken is mended now.
    pub(super) fn mend_all(&mut self) {
        let now = self.now();
        for until in self.people.broken_until.values_mut() {
            *until = now;
        }
        for (at, _) in self.people.to_return.values_mut() {
            *at = now;
        }
        if let Some((at, _)) = &mut self.people.controller_back {
            *at = now;
        }
        (self.kube_away_until, self.slurm_away_until) = (now, now);
        if self.disk_bad_until.is_some() {
            self.disk_bad_until = Some(now);
        }
        self.mend();
    }

    fn repair(&mut self, node: &str) {
        self.people.kubelets.insert(node.to_owned(), Machine::Up);
        self.others(&format!("{node} is repaired"), |world| {
            let name = NodeName::from(node);
            if world.slurm.health(&name) != Some(Health::Up) {
                whatever(world.slurm.start_slurmd(&name));
            }
            world.kube.set_machine(node, Machine::Up);
        });
    }

    fn register(&mut self, node: &str) {
        let Some((_, tainted)) = self.people.to_return.remove(node) else { return };
        let taint = ("gpu-bridge.io/slurm".to_owned(), String::new(), "NoExecute".to_owned());
        let taints = if tainted { vec![taint] } else { Vec::new() };
        self.people.kubelets.insert(node.to_owned(), Machine::Up);
        self.others(&format!("the kubelet of {node} registers anew, with the taint: {tainted}"), |world| {
            let spec =
                NodeSpec { name: node.to_owned(), gpus: u64::from(GPUS), taints, ..NodeSpec::default() };
            world.kube.add_node(&spec);
        });
    }

    fn start_controller(&mut self, start: Start) {
        let forgotten = std::mem::take(&mut self.people.unsaved);
        self.others(&format!("slurmctld starts: {start:?}, without the drains of {forgotten:?}"), |world| {
            world.slurm.start_controller(start);
            for node in &forgotten {
                let update = NodeUpdate { action: Some(NodeAction::Undrain), reason: None };
                whatever(world.slurm.update_node(&NodeName::from(node.as_str()), &update, ADMIN));
            }
        });
        if matches!(start, Start::Cold) {
            self.people.drains.clear();
        }
        for node in forgotten {
            self.people.drains.remove(&node);
        }
    }

    /// An administrator resumes nodes that stay down although they are healthy.
    fn resume_down(&mut self) {
        if !self.slurm.controller_is_up() {
            return;
        }
        let sides = self.sides();
        for view in self.slurm.nodes() {
            let name = view.spec.name.clone();
            let healthy = self.slurm.health(&name) == Some(Health::Up);
            let reserved =
                sides.get(name.as_str()).is_some_and(|(slurm, _)| slurm.reserved || slurm.drain.is_none());
            if view.base == BaseState::Down && healthy && reserved {
                self.people.drains.remove(name.as_str());
                self.others(&format!("{ADMIN} resumes {name}"), |world| {
                    let update = NodeUpdate { action: Some(NodeAction::Resume), reason: None };
                    whatever(world.slurm.update_node(&name, &update, ADMIN));
                });
            }
        }
    }

    /// When each drain began, for what slurmctld has not saved when it is killed.
    fn note_drains(&mut self) {
        let now = self.now();
        for (node, (slurm, _)) in self.sides() {
            if slurm.drain.is_some() {
                self.people.drained_since.entry(node).or_insert(now);
            } else {
                self.people.drained_since.remove(&node);
            }
        }
    }

    /// In the calm people take their own marks away and let everything go.
    pub(super) fn let_go(&mut self) {
        for app in ["chat", "search"] {
            self.budget(app, 100);
            let pod = pod(app, 1);
            self.others(&format!("workload {app} ends"), |world| {
                world.kube.set_workload(Workload::new(0, pod));
            });
        }
        let waiting: Vec<(JobId, String)> = self
            .slurm
            .jobs()
            .filter(|job| job.state == JobState::Pending || job.state == JobState::Suspended)
            .map(|job| (job.id, job.spec.user.clone()))
            .collect();
        for (id, user) in waiting {
            self.others(&format!("{user} cancels job {id}"), |world| whatever(world.slurm.cancel(id, &user)));
        }
        for (node, (slurm, kube)) in self.sides() {
            self.change_slurm_marks(SlurmMark::LiftDrain, &node, &slurm);
            self.change_kube_marks(KubeMark::Uncordon, &node, &kube);
        }
    }
}

fn pod(app: &str, gpus: u64) -> PodSpec {
    PodSpec {
        namespace: SPACE.into(),
        name: app.to_owned(),
        gpus,
        labels: [("app".to_owned(), app.to_owned())].into(),
        node_selector: [(POOL_LABEL.to_owned(), BURST.to_owned())].into(),
        ..PodSpec::default()
    }
}
