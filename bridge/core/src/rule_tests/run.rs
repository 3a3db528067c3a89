//! One run: what the daemon does in a tick, what may become of its writes, and what must hold after each step.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::daemon::Daemon;
use super::happenings::{Happening, happening};
use super::world::{Noted, World};
use crate::adoption;
use crate::book::Management;
use crate::event::{Action, Event};
use crate::facts::kubernetes::{self, BindingProbe, Effect};
use crate::facts::{Seen, slurm};
use crate::fixtures::{n, site, taint};
use crate::handover::{Event as Step, Purpose, State};
use crate::ids::Epoch;
use crate::mark::TAINT_SLURM;
use crate::model::Domain;
use crate::safety;
use crate::step::{next_event, seen_in_quarantine};
use crate::view::{View, needs_look, needs_probe};
use crate::want::actions;

/// What becomes of the writes of a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    Done,
    Lost,
    Late,
    /// The daemon crashes after so many.
    Crash(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Happens(Happening),
    Tick {
        slurm: bool,
        kubernetes: bool,
        look: bool,
        between: Option<Happening>,
        fate: Fate,
    },
    /// A handover to the other side begins, with so many ticks until its deadline.
    Plan {
        ticks: i32,
    },
    Cancel,
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let fate = prop_oneof![
        12 => Just(Fate::Done),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Late),
        1 => (0..3_usize).prop_map(Fate::Crash),
    ];
    let tick = (
        prop::bool::weighted(0.93),
        prop::bool::weighted(0.93),
        prop::bool::weighted(0.93),
        prop::option::weighted(0.3, happening()),
        fate,
    )
        .prop_map(|(slurm, kubernetes, look, between, fate)| Op::Tick {
            slurm,
            kubernetes,
            look,
            between,
            fate,
        });
    prop_oneof![
        6 => happening().prop_map(Op::Happens),
        12 => tick,
        2 => (20..400_i32).prop_map(|ticks| Op::Plan { ticks }),
        1 => Just(Op::Cancel),
    ]
}

/// Which sides started work at the beginning of an adoption, or were opened by others since.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundOpen {
    slurm: bool,
    kubernetes: bool,
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) daemon: Daemon,
    found_open: FoundOpen,
    /// Slurm's side was found closed by a drain, at the least.
    found_drained: bool,
    /// People took all guards away from the closed side at once: from there on the daemon can only quarantine.
    broken: bool,
    /// Handovers that got through, for the test of the test.
    pub(super) opened: BTreeMap<Domain, u32>,
}

impl Run {
    /// A node whose kubelet may have registered with taints of ours, in its adoption.
    pub(super) fn new(owner: Domain, registered_with: &[&str]) -> Self {
        let mut run = Self::unadopted();
        for key in registered_with {
            let effect = if *key == TAINT_SLURM { Effect::NoExecute } else { Effect::NoSchedule };
            run.world.node.taints.push(taint(key, effect));
        }
        run.adopt(owner);
        run
    }

    pub(super) fn unadopted() -> Self {
        let found_open = FoundOpen { slurm: true, kubernetes: true };
        let mut run = Self {
            world: World::new(),
            daemon: Daemon::new(),
            found_open,
            found_drained: false,
            broken: false,
            opened: BTreeMap::new(),
        };
        let now = run.world.now;
        run.daemon.log(now, Event::Started { epoch: Epoch(1), version: "test".into() });
        run
    }

    /// Adopts the node, where that is not refused.
    pub(super) fn adopt(&mut self, owner: Domain) {
        let now = self.world.now;
        let site = site();
        let (facts, look) = (self.world.facts(), self.world.look());
        let proposed =
            adoption::propose(&site, &self.daemon.book, &site.nodes[&n(1)], Some(owner), &facts, &look);
        let Ok(adoption) = proposed else { return };
        self.found_open = FoundOpen {
            slurm: self.world.slurm_starts_work(),
            kubernetes: self.world.kubernetes_starts_work(),
        };
        self.found_drained = self.world.drain.is_some();
        let handover = adoption.handover(self.daemon.book.next_handover(), Epoch(1), "eve", now);
        self.daemon.log(now, Event::Found { node: n(1), found: adoption.found });
        self.daemon.log(now, Event::Planned(Box::new(handover)));
    }

    /// An undrain and a deleted reservation between two looks.
    pub(super) fn break_slurm_open(&mut self) {
        self.world.drain = None;
        self.world.reservations.clear();
        self.broken = true;
    }

    /// So many ticks in which all works.
    pub(super) fn calm_ticks(&mut self, ticks: u32) -> Result<(), TestCaseError> {
        (0..ticks).try_for_each(|_| self.tick(true, true, true, None, Fate::Done))
    }

    /// What others open, or would have opened but for us, is not the daemon's doing.
    pub(super) fn happen(&mut self, what: Happening) {
        let noted = self.noted();
        let starts = |world: &World| (world.slurm_starts_work(), world.kubernetes_starts_work());
        let before = starts(&self.world);
        let by_hand = self.world.is_drained_by_hand();
        self.world.happen(what, &noted);
        let after = starts(&self.world);
        if what != Happening::LateEffect {
            let lifted = (by_hand && self.world.drain.is_none())
                || (what == Happening::Unreserved
                    && !self.found_drained
                    && self.world.reservations.is_empty());
            self.found_open.slurm |= lifted || (!before.0 && after.0);
            self.found_open.kubernetes |= !before.1 && after.1;
        }
    }

    pub(super) fn noted(&self) -> Noted {
        let handover = self.daemon.book.handover_of(&n(1));
        Noted {
            jobs: handover.map(|handover| handover.jobs_seen.keys().copied().collect()).unwrap_or_default(),
            pods: handover.map(|handover| handover.pods_seen.keys().cloned().collect()).unwrap_or_default(),
            slurm_is_closed: self.daemon.book.record(&n(1)).slurm_closed_by.is_some(),
        }
    }

    pub(super) fn op(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Happens(what) => self.happen(*what),
            Op::Plan { ticks } => {
                let record = self.daemon.book.record(&n(1));
                match (record.management, record.handover) {
                    (Management::Managed { owner }, None) => {
                        self.daemon.plan(self.world.now, owner.other(), Purpose::Move, *ticks);
                    }
                    (Management::Unmanaged, None) => {
                        self.adopt(if ticks % 2 == 0 { Domain::Slurm } else { Domain::Kubernetes });
                    }
                    (_, Some(_)) | (Management::Adopting | Management::Releasing { .. }, None) => {}
                }
            }
            Op::Cancel => {
                if let Some(id) = self.daemon.book.handover_of(&n(1)).map(|handover| handover.id) {
                    let event = Event::Handover { id, event: Step::RollBack { why: "cancelled".into() } };
                    if self.daemon.book.accepts(self.world.now, &event).is_ok() {
                        self.daemon.log(self.world.now, event);
                    }
                }
            }
            Op::Tick { slurm, kubernetes, look, between, fate } => {
                self.tick(*slurm, *kubernetes, *look, *between, *fate)?;
            }
        }
        self.rule()
    }

    pub(super) fn tick(
        &mut self,
        slurm: bool,
        kubernetes: bool,
        look: bool,
        between: Option<Happening>,
        fate: Fate,
    ) -> Result<(), TestCaseError> {
        let started = self.world.slurm_starts_work();
        self.world.pass_time();
        // A left-over reservation that ends opens what it alone closed, with us or without.
        self.found_open.slurm |= !started && self.world.slurm_starts_work() && !self.found_drained;
        let now = self.world.now;
        let mut facts = self.world.facts();
        if !slurm {
            facts.slurm = Seen::unknown("timeout");
        }
        if !kubernetes {
            facts.kubernetes = Seen::unknown("timeout");
        }
        let record = self.daemon.book.record(&n(1));
        let handover = self.daemon.book.handover_of(&n(1));
        let node_look =
            if look && needs_look(&record, handover) { self.world.look() } else { Seen::unknown("timeout") };
        let probe = if needs_probe(handover) && kubernetes {
            let value = if self.world.listed { BindingProbe::Refused } else { BindingProbe::Passed };
            Seen::At { at: now, value }
        } else {
            Seen::unknown("not asked")
        };
        let lacks = self.daemon.view(now, &facts, &node_look, &probe, |view: &View<'_>| view.lacks_look());
        let node_look = if look && lacks { self.world.look() } else { node_look };
        let mut events = 0;
        while let Some(event) = self.daemon.view(now, &facts, &node_look, &probe, next_event) {
            events += 1;
            prop_assert!(events < 20, "no end of events: {event:?}");
            let handover = self.daemon.book.handover_of(&n(1)).unwrap();
            let (id, to) = (handover.id, handover.to);
            if event == Step::Opened && handover.state != State::RollingBack {
                *self.opened.entry(to).or_default() += 1;
            }
            self.daemon.log(now, Event::Handover { id, event });
        }
        if let Some(seen) = self.daemon.view(now, &facts, &node_look, &probe, seen_in_quarantine) {
            self.daemon.log(now, seen);
        }
        let (writes, violation) = self
            .daemon
            .view(now, &facts, &node_look, &probe, |view| (actions(view), safety::violation(view)));
        match violation {
            Some(why) if self.broken && record.quarantine.is_none() => {
                self.daemon.log(now, Event::Quarantined { node: n(1), why });
            }
            violation => prop_assert!(
                violation.is_none() || self.broken,
                "{:?} {:?}",
                self.world,
                self.daemon.last_events()
            ),
        }
        let (gate_version, node_version) = (self.world.gate_version, self.world.node_version);
        if let Some(what) = between {
            self.happen(what);
        }
        let mut versions = (gate_version, node_version);
        for (i, action) in writes.iter().enumerate() {
            match fate {
                Fate::Crash(after) if i >= after => break,
                Fate::Done | Fate::Crash(_) => {}
                Fate::Lost => break,
                Fate::Late => {
                    self.world.late.push((action.clone(), versions.0, versions.1));
                    self.world.late.truncate(4);
                    break;
                }
            }
            self.opening_is_allowed(action)?;
            let before = (self.world.gate_version, self.world.node_version);
            self.world.act(action, versions.0, versions.1);
            // A write's answer carries the new version.
            versions.0 += self.world.gate_version - before.0;
            versions.1 += self.world.node_version - before.1;
        }
        if let Fate::Crash(_) = fate {
            self.daemon.crash();
        }
        Ok(())
    }

    /// What the daemon writes when it opens a gate of a managed node must find the other side really closed and empty.
    /// (Somebody may take one guard away between look and write: the others stand.)
    pub(super) fn opening_is_allowed(&self, action: &Action) -> Result<(), TestCaseError> {
        if self.adopting() {
            return Ok(());
        }
        let world = &self.world;
        let opens_slurm =
            matches!(action, Action::Slurm(slurm::Action::Undrain { .. } | slurm::Action::Unreserve { .. }));
        let opens_kubernetes = match action {
            Action::Kubernetes(kubernetes::Action::OpenGate { .. }) => true,
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                (world.has_taint(TAINT_SLURM) && !marks.taints.iter().any(|taint| taint.key == TAINT_SLURM))
                    && marks.taint_keys.contains(TAINT_SLURM)
            }
            Action::Kubernetes(
                kubernetes::Action::CreateGate { .. }
                | kubernetes::Action::CloseGate { .. }
                | kubernetes::Action::Evict { .. },
            )
            | Action::Slurm(_) => false,
        };
        if opens_slurm {
            prop_assert!(!world.kubernetes_starts_work() && world.pods.is_empty(), "{action:?} in {world:?}");
        }
        if opens_kubernetes {
            prop_assert!(!world.slurm_starts_work() && !world.gpu_work_of_slurm(), "{action:?} in {world:?}");
        }
        Ok(())
    }

    pub(super) fn adopting(&self) -> bool {
        match self.daemon.book.record(&n(1)).management {
            Management::Unmanaged | Management::Adopting => true,
            Management::Managed { .. } | Management::Releasing { .. } => false,
        }
    }

    /// The rule itself. On a node that is not ours, or not yet, what was found closed opens by it only.
    pub(super) fn rule(&self) -> Result<(), TestCaseError> {
        let world = &self.world;
        if self.adopting() {
            if world.kubernetes_starts_work() && !self.found_open.kubernetes {
                prop_assert!(!world.slurm_starts_work() && !world.gpu_work_of_slurm(), "{world:?}");
            }
            if world.slurm_starts_work() && !self.found_open.slurm {
                prop_assert!(!world.kubernetes_starts_work() && world.pods.is_empty(), "{world:?}");
            }
            return Ok(());
        }
        let both = world.slurm_starts_work() && world.kubernetes_starts_work();
        prop_assert!(!both, "both sides start work: {world:?}");
        let double = world.gpu_work_of_slurm() && !world.pods.is_empty();
        prop_assert!(!double, "double allocation: {world:?}");
        Ok(())
    }

    /// Everything works and nobody interferes: where does it settle?
    pub(super) fn settle(&mut self, ticks: u32) -> Result<(), TestCaseError> {
        self.world.jobs.clear();
        self.world.frozen_since = None;
        self.world.decided = 0;
        for tick in 0..ticks {
            // A hand drain is lifted when the daemon has put back what was missing beside it: with both gone at once the
            // gate would be open, and no daemon can survive that.
            if tick == 10 {
                self.happen(Happening::HandDrainLifted);
            }
            self.op(&Op::Tick {
                slurm: true,
                kubernetes: true,
                look: true,
                between: None,
                fate: Fate::Done,
            })?;
        }
        Ok(())
    }
}
