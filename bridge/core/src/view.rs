//! One node as one tick sees it: what the book says, what the schedulers show, and what that means for its gates. Built
//! once and handed to [`crate::step`], [`crate::want`] and [`crate::safety`], which so judge by the same look.

use jiff::Timestamp;

use crate::backwards::Backwards;
use crate::book::Record;
use crate::facts::kubernetes::{BindingProbe, NodeLook};
use crate::facts::{Facts, Seen, slurm::Index};
use crate::gate::kubernetes::PodsSeen;
use crate::gate::kubernetes::pods_seen::Leases;
use crate::gate::{self, Emptiness, Gate, slurm::JobsSeen};
use crate::handover::{Handover, Purpose, State};
use crate::ids::Epoch;
use crate::model::{Domain, Node, Pool, Site};
use crate::want::{self, KubernetesWant};

/// One node in one tick.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// The instant that everything is judged at.
    pub now: Timestamp,
    /// The same on slurmctld's clock, for its reservations.
    pub slurm_now: Timestamp,
    /// The leadership that acts.
    pub epoch: Epoch,
    /// The site.
    pub site: &'a Site,
    /// The node.
    pub node: &'a Node,
    /// What the book holds on it.
    pub record: &'a Record,
    /// Its handover.
    pub handover: Option<&'a Handover>,
    /// Time that ran backwards in a scheduler.
    pub backwards: &'a Backwards,
    /// The look at both schedulers.
    pub facts: &'a Facts,
    /// Slurm's half of it, ordered by node.
    pub index: &'a Index<'a>,
    /// The look at what Kubernetes has on the node, where it was needed.
    pub look: &'a Seen<NodeLook>,
    /// The answer to a dry-run binding, where it was asked.
    pub probe: &'a Seen<BindingProbe>,
    /// The node as Slurm shows it, or why it can't be judged.
    pub in_slurm: Result<gate::slurm::SeenNode<'a>, String>,
    /// The Node as Kubernetes shows it, or why it can't be judged.
    pub in_kubernetes: Result<gate::kubernetes::SeenNode<'a>, String>,
    /// The Slurm gate.
    pub slurm: Gate,
    /// The Kubernetes gate.
    pub kubernetes: Gate,
}

/// What [`View::new`] is made of.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The instant that everything is judged at.
    pub now: Timestamp,
    /// The leadership that acts.
    pub epoch: Epoch,
    /// The site.
    pub site: &'a Site,
    /// The node.
    pub node: &'a Node,
    /// What the book holds on it.
    pub record: &'a Record,
    /// Its handover.
    pub handover: Option<&'a Handover>,
    /// Time that ran backwards in a scheduler.
    pub backwards: &'a Backwards,
    /// The look at both schedulers.
    pub facts: &'a Facts,
    /// Slurm's half of it, ordered by node.
    pub index: &'a Index<'a>,
    /// The look at what Kubernetes has on the node.
    pub look: &'a Seen<NodeLook>,
    /// The answer to a dry-run binding.
    pub probe: &'a Seen<BindingProbe>,
}

impl<'a> View<'a> {
    /// Judges one node's looks.
    pub fn new(inputs: Inputs<'a>) -> Self {
        let Inputs { now, epoch, site, node, record, handover, backwards, facts, index, look, probe } =
            inputs;
        let in_slurm = gate::slurm::find(&facts.slurm, &node.slurm);
        let in_kubernetes = gate::kubernetes::find(&facts.kubernetes, &node.kubernetes);
        let slurm_now = facts.slurm.value().map_or(now, |slurm| slurm.on_its_clock(now));
        Self {
            now,
            slurm_now,
            epoch,
            site,
            node,
            record,
            handover,
            backwards,
            facts,
            index,
            look,
            probe,
            slurm: gate::slurm::gate(&in_slurm, index, &node.slurm, record.slurm_closed_by, slurm_now),
            kubernetes: gate::kubernetes::gate(&in_kubernetes),
            in_slurm,
            in_kubernetes,
        }
    }

    /// A domain's gate.
    pub fn gate(&self, domain: Domain) -> &Gate {
        match domain {
            Domain::Slurm => &self.slurm,
            Domain::Kubernetes => &self.kubernetes,
        }
    }

    /// A domain's emptiness. Judged when it is asked for: of most nodes, in most ticks, nobody asks, and a busy node has
    /// much to tell.
    pub fn emptiness(&self, domain: Domain) -> Emptiness {
        let handover = self.handover;
        match domain {
            Domain::Slurm => {
                let none = JobsSeen::new();
                let jobs_seen = handover.map_or(&none, |h| &h.jobs_seen);
                let due_back = handover.and_then(|h| h.due_back);
                let name = &self.node.slurm;
                gate::slurm::emptiness(&self.in_slurm, self.index, name, jobs_seen, due_back, self.slurm_now)
            }
            Domain::Kubernetes => {
                let lease_at_last_holder = handover.and_then(|h| h.lease_at_last_holder);
                let none = PodsSeen::new();
                let pods_seen = handover.map_or(&none, |h| &h.pods_seen);
                gate::kubernetes::emptiness(&self.in_kubernetes, self.look, lease_at_last_holder, pods_seen)
            }
        }
    }

    /// The kubelet's Lease around the look at what Kubernetes has on the node.
    pub fn leases(&self) -> Leases {
        let before = self.in_kubernetes.as_ref().ok().and_then(|seen| seen.node.lease_renewed_at);
        let after = self.look.value().and_then(|look| look.lease_renewed_at);
        Leases { before, newest: before.max(after) }
    }

    /// When the look was taken that a domain's emptiness is judged by.
    pub fn looked_at(&self, domain: Domain) -> Option<Timestamp> {
        match domain {
            Domain::Slurm => match &self.facts.slurm {
                Seen::At { at, .. } => Some(*at),
                Seen::Unknown { .. } => None,
            },
            Domain::Kubernetes => match self.look {
                Seen::At { at, .. } => Some(*at),
                Seen::Unknown { .. } => None,
            },
        }
    }

    /// Would a LIST help that [`needs_look`] did not ask for? Marks of ours that no handover explains (an effect that came
    /// late) stand on the owner's own side, and take them off we may only after a look at the other one. And a NoExecute
    /// that somebody took off is put back after a look at who came in meanwhile.
    pub fn lacks_look(&self) -> bool {
        let unsealed = want::wants(self.record, self.handover).1 == KubernetesWant::Sealed
            && self.in_kubernetes.as_ref().is_ok_and(|seen| !seen.standing.no_execute);
        if unsealed && self.look.value().is_none() {
            return true;
        }
        let stray = match self.slurm {
            Gate::Weakened { .. } => true,
            Gate::Open | Gate::Closed | Gate::Unknown { .. } => false,
        };
        stray
            && self.handover.is_none()
            && self.record.quarantine.is_none()
            && self.record.owner() == Some(Domain::Slurm)
            && self.look.value().is_none()
    }

    /// The pool that the node serves, or its home.
    pub fn pool(&self) -> Option<&'a Pool> {
        let name = self.record.placement.as_ref().map_or(&self.node.home, |placement| &placement.pool);
        self.site.pools.get(name)
    }
}

/// Does judging the node need a LIST of what Kubernetes has on it?
pub fn needs_look(record: &Record, handover: Option<&Handover>) -> bool {
    let Some(handover) = handover else { return record.quarantine.is_some() };
    let rolls_back_by_it = match handover.to {
        // Slurm opens again on Kubernetes' word.
        Domain::Kubernetes => true,
        Domain::Slurm => handover.purpose == Purpose::Adoption,
    };
    handover.state.lists_pods() || (handover.state == State::RollingBack && rolls_back_by_it)
}

/// Does judging the node need a dry-run binding?
pub fn needs_probe(handover: Option<&Handover>) -> bool {
    handover.is_some_and(|handover| handover.state.needs_refused_binding())
}
