//! What happens to the node and is not the daemon's doing.

use proptest::prelude::*;

use super::world::{BAD_FAN, Job, Noted, Pod, World};
use crate::facts::kubernetes::{Effect, Taint};
use crate::facts::slurm::{JobState, Reason};
use crate::ids::JobId;
use crate::mark::TAINT_SLURM;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Happening {
    JobStarts,
    JobSuspended,
    JobShrunk,
    JobEnds,
    PodDecided,
    PodBound,
    PodEnds,
    PodForceDeleted,
    KubeletFreezes,
    KubeletThaws,
    Undrained,
    DrainedByHand,
    HandDrainLifted,
    Unreserved,
    Unlisted,
    Untainted,
    NodeReplaced,
    LateEffect,
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => Just(Happening::JobStarts),
        1 => Just(Happening::JobSuspended),
        1 => Just(Happening::JobShrunk),
        4 => Just(Happening::JobEnds),
        4 => Just(Happening::PodDecided),
        6 => Just(Happening::PodBound),
        3 => Just(Happening::PodEnds),
        1 => Just(Happening::PodForceDeleted),
        1 => Just(Happening::KubeletFreezes),
        3 => Just(Happening::KubeletThaws),
        1 => Just(Happening::Undrained),
        1 => Just(Happening::DrainedByHand),
        3 => Just(Happening::HandDrainLifted),
        1 => Just(Happening::Unreserved),
        1 => Just(Happening::Unlisted),
        1 => Just(Happening::Untainted),
        1 => Just(Happening::NodeReplaced),
        2 => Just(Happening::LateEffect),
    ]
}

impl World {
    /// Something that is not the daemon's doing.
    #[expect(clippy::too_many_lines, reason = "one list of everything that can happen")]
    pub(super) fn happen(&mut self, what: Happening, noted: &Noted) {
        match what {
            Happening::JobStarts => {
                let free = !self.jobs.values().any(|job| job.named && job.state != JobState::Finished);
                if self.slurm_starts_work() && free {
                    let id = JobId(self.id());
                    self.jobs.insert(id, Job { start: self.now, state: JobState::Running, named: true });
                }
            }
            Happening::JobSuspended => {
                for job in self.jobs.values_mut().filter(|job| job.named) {
                    job.state = match &job.state {
                        JobState::Running => JobState::Suspended,
                        JobState::Suspended => JobState::Running,
                        other => other.clone(),
                    };
                }
            }
            // Only a job that the daemon has seen: what it could not know of is for the node's own word.
            Happening::JobShrunk => {
                for (_, job) in self.jobs.iter_mut().filter(|(id, _)| noted.jobs.contains(id)) {
                    job.named = false;
                }
            }
            Happening::JobEnds => {
                if let Some(id) = self.jobs.keys().next().copied() {
                    self.jobs.remove(&id);
                }
            }
            Happening::PodDecided => {
                if self.kubernetes_starts_work() && self.frozen_since.is_none() {
                    self.decided = (self.decided + 1).min(2);
                }
            }
            Happening::PodBound => {
                if self.decided > 0 {
                    self.decided -= 1;
                    if !self.listed {
                        let name = format!("pod-{}", self.id());
                        self.pods.push(Pod::running(name));
                    }
                }
            }
            Happening::PodEnds => {
                if self.frozen_since.is_none() {
                    self.pods.pop();
                }
            }
            // As with a shrunk job.
            Happening::PodForceDeleted => {
                for pod in self.pods.iter_mut().filter(|pod| noted.pods.contains(&pod.uid())) {
                    pod.listed = false;
                }
            }
            Happening::KubeletFreezes => _ = self.frozen_since.get_or_insert(self.now),
            Happening::KubeletThaws => self.frozen_since = None,
            // People take one guard away from a side that is whole; two at once is what no daemon can survive.
            Happening::Undrained => {
                if self.slurm_closed() {
                    self.drain = None;
                }
            }
            Happening::DrainedByHand => {
                if self.drain.is_none() || self.slurm_closed() {
                    self.drain = Some(Reason { text: BAD_FAN.into(), user: "eve".into(), at: None });
                }
            }
            Happening::HandDrainLifted => {
                // By its text: where the daemon gave it back, it stands in the daemon's name. Over a drain of ours whose
                // reservation is gone it is the last guard.
                let elsewhere_closed = self.kubernetes_closed() && !noted.slurm_is_closed;
                if self.is_drained_by_hand() && (self.reserved_for_us() || elsewhere_closed) {
                    self.drain = None;
                }
            }
            Happening::Unreserved => {
                if self.slurm_closed() {
                    self.reservations.clear();
                }
            }
            Happening::Unlisted => {
                // A binding that was decided before and never tried would now be tried.
                if self.kubernetes_closed() && self.decided == 0 {
                    self.listed = false;
                    self.gate_version += 1;
                }
            }
            Happening::Untainted => {
                if self.kubernetes_closed() {
                    self.node.taints.retain(|taint| taint.key != TAINT_SLURM);
                    self.node_version += 1;
                }
            }
            Happening::NodeReplaced => {
                if self.listed && self.pods.is_empty() {
                    let id = self.id();
                    self.node.uid = format!("uid-{id}");
                    self.node.labels.clear();
                    self.node.handover_annotation = None;
                    // Kubelets register with the taint.
                    self.node.taints = vec![Taint {
                        key: TAINT_SLURM.into(),
                        value: String::new(),
                        effect: Effect::NoExecute,
                    }];
                    self.node_version += 1;
                }
            }
            Happening::LateEffect => {
                if let Some((action, gate, node)) = self.late.pop() {
                    self.act(&action, gate, node);
                }
            }
        }
    }
}
