//! Judges each change of the world where it happens: what the daemon opened, what it did to others' marks, jobs and pods,
//! and whether a node runs work of both. What is judged over many ticks is [`crate::sim::check`]'s.

use std::collections::BTreeSet;

use gpu_bridge_core::book::Management;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::Domain;
use kube_mock::{Id, Resource};

use super::{KubeSide, PROTECTED_PRIORITY, SlurmSide, World, text};

impl World {
    /// The daemon opened a gate: the other side must be neither open nor at work.
    pub(super) fn judge_opening(
        &mut self,
        node: &str,
        opened: Domain,
        other_open: bool,
        other_work: &[String],
    ) {
        let record = self.mirror.book.record(&NodeName::new(node));
        match record.management {
            // It puts back what it found, and opens nothing that was found closed.
            Management::Unmanaged | Management::Adopting => {
                let was_open = self.found_open.get(node).is_none_or(|found| match opened {
                    Domain::Slurm => found.slurm,
                    Domain::Kubernetes => found.kubernetes,
                });
                if was_open {
                    return;
                }
            }
            Management::Releasing { .. } => return,
            Management::Managed { .. } => {}
        }
        if other_open {
            self.fail(format!("the daemon opened the {opened} gate of {node} while the other one was open"));
        }
        if !other_work.is_empty() {
            self.fail(format!(
                "the daemon opened the {opened} gate of {node} while the other side was at work: {}",
                other_work.join(", ")
            ));
        }
    }

    /// What people set stays.
    pub(super) fn judge_marks(
        &mut self,
        node: &str,
        before: (&SlurmSide, &KubeSide),
        after: (&SlurmSide, &KubeSide),
    ) {
        if let Some(theirs) = &before.0.drain
            && !before.0.drained_by_us()
            && after.0.drain.as_ref() != Some(theirs)
        {
            let found =
                self.mirror.book.record(&NodeName::new(node)).found.and_then(|found| found.slurm_drain);
            let over = after.0.drained_by_us() && found.as_ref() == Some(theirs);
            if !over {
                self.fail(format!("the daemon took away a person's drain of {node} ({theirs})"));
            }
        }
        if before.1.there && after.1.there {
            if before.1.cordoned != after.1.cordoned {
                self.fail(format!("the daemon touched a person's cordon of {node}"));
            }
            if before.1.foreign != after.1.foreign {
                self.fail(format!("the daemon changed others' taints or labels of {node}"));
            }
        }
    }

    pub(super) fn note_lost_guards(
        &mut self,
        node: &str,
        before: (&SlurmSide, &KubeSide),
        after: (&SlurmSide, &KubeSide),
    ) {
        let lost = [
            before.0.drained_by_us() && !after.0.drained_by_us(),
            before.0.reserved && !after.0.reserved,
            before.1.listed && !after.1.listed,
            before.1.draining && !after.1.draining && after.1.there,
            before.1.sealed && !after.1.sealed && after.1.there,
        ];
        let lost = lost.into_iter().filter(|lost| *lost).count();
        if lost > 0 {
            self.counts.guards_lost += lost as u64;
            self.tell(format!("  {node}: others took {lost} of our guards away"));
        }
    }

    pub(in crate::sim) fn excuse(&mut self, node: &str, why: &str) {
        if self.is_ours(node) && !self.excused.contains_key(node) {
            self.counts.broken_open += 1;
            self.tell(format!("  {node}: {why}"));
            self.excused.insert(node.to_owned(), why.to_owned());
        }
    }

    /// Pods that go because of the daemon go by the rules.
    pub(super) fn judge_going(&mut self, before: &BTreeSet<String>) {
        let going = self.going_pods();
        for name in going.difference(before) {
            let pod =
                name.split_once('/').and_then(|(space, pod)| self.kube.get(&Id::pod(space, pod))).cloned();
            let Some(pod) = pod else { continue };
            let node = text(&pod, "/spec/nodeName").to_owned();
            if self.excused.contains_key(&node) {
                continue;
            }
            let evicted = self.people.asked_to_go.contains(name);
            let protected = pod["metadata"]["annotations"].get("gpu-bridge.io/do-not-disrupt").is_some()
                || pod["spec"]["priority"].as_i64().unwrap_or(0) >= PROTECTED_PRIORITY;
            if !evicted {
                self.fail(format!(
                    "pod {name} on {node} goes because of the daemon's taint, past its budget"
                ));
            } else if protected {
                self.fail(format!("pod {name} on {node} is protected, and the daemon evicted it"));
            }
        }
    }

    pub(super) fn going_pods(&self) -> BTreeSet<String> {
        self.kube
            .all(Resource::Pods)
            .filter(|(_, pod)| pod["metadata"].get("deletionTimestamp").is_some())
            .map(|(id, _)| format!("{}/{}", id.namespace, id.name))
            .collect()
    }

    /// Do both sides have work on the node?
    pub(in crate::sim) fn runs_both(&self, node: &str) -> bool {
        !self.slurm_work(node).is_empty() && !self.kube_work(node).is_empty()
    }

    /// No GPU process of both sides on a node of ours.
    pub(super) fn observe(&mut self) {
        if self.failure.is_some() {
            return;
        }
        for node in self.nodes.clone() {
            if !self.is_ours(&node) {
                if self.runs_both(&node) {
                    self.both_before_us.insert(node);
                } else {
                    self.both_before_us.remove(&node);
                }
                continue;
            }
            // A late write of ours makes it ours again, by import: what runs there then was not our doing.
            if self.both_before_us.remove(&node) && self.runs_both(&node) {
                self.excuse(&node, "ran work of both before it was ours");
            }
            if self.excused.contains_key(&node) {
                continue;
            }
            let (slurm, kube) = (self.slurm_work(&node), self.kube_work(&node));
            if !slurm.is_empty() && !kube.is_empty() {
                self.fail(format!("{node} runs GPU work of both: {}; {}", slurm.join(", "), kube.join(", ")));
            }
        }
        let root = |cause: &slurm_mock::model::Cause| match cause {
            slurm_mock::model::Cause::CancelledBy(by)
            | slurm_mock::model::Cause::RequeuedBy(by)
            | slurm_mock::model::Cause::NodeSetDownBy(_, by) => by == "root",
            slurm_mock::model::Cause::Finished
            | slurm_mock::model::Cause::TimeLimit
            | slurm_mock::model::Cause::NodeDied(_)
            | slurm_mock::model::Cause::ControllerForgot => false,
        };
        let endings = self.slurm.truth().endings();
        let new = endings.get(self.people.endings_seen..).unwrap_or_default();
        let killed = new.iter().find(|ending| root(&ending.cause)).map(|ending| format!("{ending:?}"));
        self.people.endings_seen = endings.len();
        if let Some(killed) = killed {
            self.fail(format!("the daemon stopped a job: {killed}"));
        }
    }
}
