//! What people and machines do in the world while the daemon works: jobs and pods come and go, marks are set and taken
//! away, nodes die and return, the schedulers and the disk fail. Decides what happens next, never whether it is right.

mod failures;
mod marks;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube_mock::{Machine, Workload};
use slurm_mock::model::{JobId, JobState, Start};

use super::world::{Who, World, whatever};
use failures::Failure;
use marks::{KubeMark, SlurmMark};
use work::{JobChange, PodChange, pod};

/// The administrator of Slurm, who is not the daemon.
pub(super) const ADMIN: &str = "olga";
/// Namespace of everybody's pods.
pub(super) const SPACE: &str = "default";

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
