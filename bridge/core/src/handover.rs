//! The handover: moving one node from one owner to the other.
//!
//! One value of [`Handover`] says where it stands, one [`Event`] says what happened, and [`Handover::next`] is the only
//! way from one to the next: the daemon and recovery from the ledger both go through it. It decides which events are
//! legal and refuses an opening without evidence. It does not know how events come about; that is [`crate::step`].

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::denied::Denied;
use crate::gate::kubernetes::PodsSeen;
use crate::gate::slurm::JobsSeen;
use crate::gate::{Emptiness, Gate};
use crate::ids::{Epoch, HandoverId, NodeName, PoolName, Ticket};
use crate::model::Domain;

mod state;

pub use state::State;

/// Looks in a row that must show a side empty before the other side's gate may open.
pub const LOOKS_NEEDED: u8 = 2;

/// Why a handover exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Moves a managed node.
    Move,
    /// Takes an unmanaged node under management: closes the side that is not to own it, evicts nobody, opens nothing
    /// that was not open.
    Adoption,
}

/// Who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// A policy, through the arbiter.
    Policy {
        /// Which.
        policy: String,
    },
    /// A person, through the command line.
    Person {
        /// Login name.
        user: String,
    },
}

impl Requester {
    /// A policy, and no person?
    pub fn is_policy(&self) -> bool {
        match self {
            Self::Policy { .. } => true,
            Self::Person { .. } => false,
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy } => write!(f, "policy {policy}"),
            Self::Person { user } => f.pad(user),
        }
    }
}

/// What a node said of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeWord {
    /// No process holds a GPU.
    Clear,
    /// The site has no node check, and the pool allows that by name.
    AbsentAllowed,
}

/// What was seen at the moment when a gate was allowed to open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The side that must be closed and empty.
    pub domain: Domain,
    /// Its gate.
    pub gate: Gate,
    /// Its emptiness.
    pub emptiness: Emptiness,
    /// The node's own word.
    pub node_word: NodeWord,
}

/// Looks in a row that showed the side empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Looks {
    /// How many.
    pub count: u8,
    /// The last one's time.
    pub last: Option<Timestamp>,
}

/// Everything that is known of one handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Its id.
    pub id: HandoverId,
    /// The node that moves.
    pub node: NodeName,
    /// The domain that gets it.
    pub to: Domain,
    /// Move or adoption.
    pub purpose: Purpose,
    /// The pool that gets it.
    pub pool: PoolName,
    /// Why, for people; stands in the drain reason.
    pub why: String,
    /// Who asked.
    pub requester: Requester,
    /// The site's ticket.
    pub ticket: Option<Ticket>,
    /// The leadership that planned it.
    pub epoch: Epoch,
    /// When it was planned.
    pub planned_at: Timestamp,
    /// When the reservation is to be placed (to Kubernetes).
    pub reserve_at: Timestamp,
    /// When the node is needed: the reservation's start and the drain's time, or the closing's.
    pub start_at: Timestamp,
    /// When the escalation decides.
    pub deadline: Timestamp,
    /// The first deadline, where it passed and the pool's rule is to wait on.
    #[serde(default)]
    pub late_since: Option<Timestamp>,
    /// When the node is due back, where that is known.
    pub due_back: Option<Timestamp>,
    /// Where it stands.
    pub state: State,
    /// Since when.
    pub since: Timestamp,
    /// Jobs that were seen on the node since the drain.
    pub jobs_seen: JobsSeen,
    /// The kubelet's Lease (its renewTime, by its own clock) at the look that first showed the holders gone.
    pub lease_at_last_holder: Option<Timestamp>,
    /// GPU pods that were seen on the node.
    #[serde(default)]
    pub pods_seen: PodsSeen,
    /// Empty looks in a row.
    pub looks: Looks,
    /// The Node's UID when it was closed: another UID is another Node, and closing starts again.
    pub node_uid: Option<String>,
    /// Why it rolls back, where it does.
    pub rollback: Option<String>,
}

/// What happened to a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Our reservation was seen in place.
    Reserved,
    /// The time has come: the node is drained from now on.
    DrainStarted,
    /// Jobs were seen on the node.
    JobsSeen {
        /// They, with the start of the run that was seen.
        jobs: JobsSeen,
    },
    /// GPU pods were seen on the node, or something of their end.
    PodsSeen {
        /// They, by UID, as they are known now.
        pods: PodsSeen,
    },
    /// The leaving side was seen closed and empty.
    EmptyLook {
        /// When we looked.
        at: Timestamp,
    },
    /// The leaving side was seen not empty, or could not be seen.
    BusyLook {
        /// When we looked.
        at: Timestamp,
        /// Whether GPU holders were seen (and not merely nothing).
        holders: Holders,
    },
    /// The reservation was seen without IGNORE_JOBS and with its long end.
    Sealed,
    /// The other side's gate may open; this is why.
    Permitted(Evidence),
    /// The new (or, rolling back, the old) owner's gate was seen open.
    Opened,
    /// Closing the Kubernetes gate begins.
    ClosingStarted,
    /// The Kubernetes gate was seen closing: on the list, a binding refused, NoSchedule on.
    Closed {
        /// The Node's UID.
        uid: String,
    },
    /// No GPU holder and nobody whom NoExecute would surprise was seen.
    HoldersGone {
        /// When we looked.
        at: Timestamp,
        /// The kubelet's Lease in it (renewTime, by the kubelet's clock).
        lease: Timestamp,
    },
    /// Another Node stands under the name: start closing again.
    NodeReplaced {
        /// Its UID.
        uid: String,
    },
    /// The deadline passed, and the rule says to wait.
    Extended {
        /// The new deadline.
        deadline: Timestamp,
    },
    /// Back to where it came from.
    RollBack {
        /// Why.
        why: String,
    },
}

/// Whether a look showed GPU holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holders {
    /// It did.
    Seen {
        /// The kubelet's Lease in it (renewTime, by the kubelet's clock), where there is one.
        lease: Option<Timestamp>,
    },
    /// It did not (the look failed, or something else was in the way).
    NotSeen,
}

impl Event {
    /// The name that people see.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::DrainStarted => "drain started",
            Self::JobsSeen { .. } => "jobs seen",
            Self::PodsSeen { .. } => "pods seen",
            Self::EmptyLook { .. } => "empty look",
            Self::BusyLook { .. } => "busy look",
            Self::Sealed => "sealed",
            Self::Permitted(_) => "permitted",
            Self::Opened => "opened",
            Self::ClosingStarted => "closing started",
            Self::Closed { .. } => "closed",
            Self::HoldersGone { .. } => "holders gone",
            Self::NodeReplaced { .. } => "node replaced",
            Self::Extended { .. } => "extended",
            Self::RollBack { .. } => "roll back",
        }
    }
}

impl Handover {
    /// The side that must be seen closed and empty before the next opening.
    pub fn leaving(&self) -> Domain {
        if self.state.goes_back() { self.to } else { self.to.other() }
    }

    /// What follows from an event at `at`. The one transition function: live and in recovery.
    pub fn next(&self, at: Timestamp, event: &Event) -> Result<Self, Denied> {
        let mut next = self.clone();
        match event {
            Event::Reserved => {
                self.must_go_to(Domain::Kubernetes, event)?;
                self.must_be(&[State::Planned], event)?;
                next.enter(State::Reserved, at);
            }
            Event::DrainStarted => {
                self.must_be(&[State::Reserved], event)?;
                next.enter(State::Draining, at);
            }
            Event::JobsSeen { jobs } => {
                self.must_be_under_way(event)?;
                next.jobs_seen.extend(jobs);
            }
            Event::PodsSeen { pods } => {
                self.must_be_under_way(event)?;
                next.pods_seen.extend(pods.clone());
            }
            Event::EmptyLook { at: look } => next.empty_look(*look, at, event)?,
            Event::BusyLook { at: look, holders } => next.busy_look(*look, *holders, at, event)?,
            Event::Sealed => {
                self.must_be(&[State::SlurmEmpty], event)?;
                next.enter(State::Canary, at);
            }
            Event::Permitted(evidence) => {
                self.accept(evidence)?;
                self.must_be(&[State::Canary, State::KubernetesEmpty], event)?;
                let to_kubernetes = self.state == State::Canary;
                next.enter(if to_kubernetes { State::Releasing } else { State::Returning }, at);
            }
            Event::Opened => {
                self.must_be(&[State::Releasing, State::Returning, State::RollingBack], event)?;
                let rolls_back = self.state == State::RollingBack;
                next.enter(if rolls_back { State::RolledBack } else { State::Open }, at);
            }
            Event::ClosingStarted => {
                self.must_go_to(Domain::Slurm, event)?;
                self.must_be(&[State::Planned], event)?;
                next.enter(State::Closing, at);
            }
            Event::Closed { uid } => {
                self.must_be(&[State::Closing], event)?;
                next.node_uid = Some(uid.clone());
                next.enter(State::Evicting, at);
            }
            Event::HoldersGone { at: look, lease } => {
                self.must_be(&[State::Evicting], event)?;
                // They went before this look: the kubelet must renew its Lease after it.
                next.lease_at_last_holder = Some(*lease);
                next.enter(State::KubernetesEmpty, at);
                // Two more are needed, after NoExecute: this one does not count.
                next.busy_at(*look);
            }
            Event::NodeReplaced { .. } => {
                self.must_be(&[State::Closing, State::Evicting, State::KubernetesEmpty], event)?;
                next.node_uid = None;
                next.enter(State::Closing, at);
            }
            Event::Extended { deadline } => {
                self.must_be_under_way(event)?;
                next.late_since = self.late_since.or(Some(self.deadline));
                next.deadline = *deadline;
            }
            Event::RollBack { why } => {
                self.must(self.state.can_roll_back(), event)?;
                next.rollback = Some(why.clone());
                next.enter(State::RollingBack, at);
            }
        }
        Ok(next)
    }

    fn empty_look(&mut self, look: Timestamp, at: Timestamp, event: &Event) -> Result<(), Denied> {
        self.must(self.state.counts_empty_looks(), event)?;
        self.count_look(look)?;
        if self.state == State::Draining && self.looks.count >= LOOKS_NEEDED {
            let looks = self.looks;
            self.enter(State::SlurmEmpty, at);
            self.looks = looks;
        }
        Ok(())
    }

    fn busy_look(
        &mut self,
        look: Timestamp,
        holders: Holders,
        at: Timestamp,
        event: &Event,
    ) -> Result<(), Denied> {
        match holders {
            Holders::Seen { lease } => self.lease_at_last_holder = self.lease_at_last_holder.max(lease),
            Holders::NotSeen => {}
        }
        let back = self.state.when_busy().ok_or_else(|| self.illegal(event))?;
        if back != self.state {
            self.enter(back, at);
        }
        self.busy_at(look);
        Ok(())
    }

    /// Starts the count again; looks older than this one prove nothing any more.
    fn busy_at(&mut self, look: Timestamp) {
        self.looks = Looks { count: 0, last: self.looks.last.max(Some(look)) };
    }

    fn count_look(&mut self, look: Timestamp) -> Result<(), Denied> {
        if let Some(last) = self.looks.last
            && look <= last
        {
            return Err(Denied::StaleLook { at: look, last });
        }
        self.looks = Looks { count: self.looks.count.saturating_add(1), last: Some(look) };
        Ok(())
    }

    fn enter(&mut self, state: State, at: Timestamp) {
        if !state.keeps_count() {
            self.looks.count = 0;
        }
        self.state = state;
        self.since = at;
    }

    /// The safety rule, where a handover crosses it.
    fn accept(&self, evidence: &Evidence) -> Result<(), Denied> {
        let domain = self.leaving();
        if evidence.domain != domain || evidence.gate != Gate::Closed {
            return Err(Denied::NotClosed { domain, gate: evidence.gate.clone() });
        }
        if evidence.emptiness != Emptiness::Empty {
            return Err(Denied::NotEmpty { domain, emptiness: evidence.emptiness.clone() });
        }
        if self.looks.count < LOOKS_NEEDED {
            return Err(Denied::TooFewLooks { have: self.looks.count, need: LOOKS_NEEDED });
        }
        Ok(())
    }

    /// Only in these states can it happen: a new state is left out of all events until it is named.
    fn must_be(&self, legal: &[State], event: &Event) -> Result<(), Denied> {
        self.must(legal.contains(&self.state), event)
    }

    fn must_go_to(&self, domain: Domain, event: &Event) -> Result<(), Denied> {
        self.must(self.to == domain, event)
    }

    fn must_be_under_way(&self, event: &Event) -> Result<(), Denied> {
        self.must(!self.state.is_over(), event)
    }

    fn must(&self, legal: bool, event: &Event) -> Result<(), Denied> {
        if legal { Ok(()) } else { Err(self.illegal(event)) }
    }

    fn illegal(&self, event: &Event) -> Denied {
        let to = format!("{} on its way to {}", self.state, self.to);
        Denied::IllegalEvent { event: event.name().to_owned(), state: to }
    }
}

#[cfg(test)]
mod tests;
