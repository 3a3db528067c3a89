//! What fails by itself, and is mended in its time: nodes, kubelets, both schedulers, the disk, the daemon's machine.

use jiff::{SignedDuration, Timestamp};
use kube_mock::{Machine, NodeSpec};
use slurm_mock::model::{BaseState, Health, NodeAction, NodeName, NodeUpdate, Start};

use super::ADMIN;
use crate::sim::run::GPUS;
use crate::sim::world::{World, whatever};

/// Drains that slurmctld loses when it is killed are at most so old.
const UNSAVED: SignedDuration = SignedDuration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub(super) enum Failure {
    SlurmdDies,
    PowerFails,
    KubeletFreezes,
    ControllerStops,
    ApiAway,
    RestAway,
    DiskFails,
    Crash,
}

impl World {
    pub(super) fn fail_somewhere(&mut self, failure: Failure, node: &str) {
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
    pub(in crate::sim) fn mend(&mut self) {
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

    pub(in crate::sim) fn mend_disk(&mut self) {
        self.disk_bad_until = None;
        self.disk.read_only(false);
        self.disk.full_at(None);
        self.disk.fail_syncs(0);
        self.tell("the ledger's disk works again");
    }

    /// Everything that is broken is mended now.
    pub(in crate::sim) fn mend_all(&mut self) {
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
}
