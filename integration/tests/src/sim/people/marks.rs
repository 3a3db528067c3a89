//! Marks that people set and take away in both schedulers: their own, and ours.

use gpu_bridge_core::mark::GATE_NAME;
use jiff::SignedDuration;
use kube_mock::{Id, Request, Resource};
use serde_json::{Value, json};
use slurm_mock::model::{NodeAction, NodeName, NodeUpdate};

use super::ADMIN;
use crate::sim::world::{KubeSide, SlurmSide, World, text, whatever};

#[derive(Debug, Clone, Copy)]
pub(super) enum SlurmMark {
    Drain,
    LiftDrain,
    LoseDrain,
    LoseReservation,
    Break,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum KubeMark {
    LoseTaints,
    LoseListing,
    LoseGate,
    Break,
    Cordon,
    Uncordon,
    DeleteNode,
}

impl World {
    pub(super) fn change_slurm_marks(&mut self, mark: SlurmMark, node: &str, side: &SlurmSide) {
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

    pub(super) fn change_kube_marks(&mut self, mark: KubeMark, node: &str, side: &KubeSide) {
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
    pub(in crate::sim) fn break_kubernetes(&mut self, node: &str) {
        let side = self.sides().remove(node).map(|(_, kube)| kube).unwrap_or_default();
        self.change_kube_marks(KubeMark::Break, node, &side);
    }

    /// Others take all our marks off a node in Slurm.
    #[cfg(test)]
    pub(in crate::sim) fn break_slurm(&mut self, node: &str) {
        let side = self.sides().remove(node).map(|(slurm, _)| slurm).unwrap_or_default();
        self.change_slurm_marks(SlurmMark::Break, node, &side);
    }

    /// A person deletes the Gate.
    #[cfg(test)]
    pub(in crate::sim) fn delete_gate(&mut self) {
        self.change_kube_marks(KubeMark::LoseGate, "", &KubeSide::default());
    }

    /// Whether there is a Gate.
    #[cfg(test)]
    pub(in crate::sim) fn has_gate(&self) -> bool {
        self.kube.all(Resource::Gates).next().is_some()
    }
}
