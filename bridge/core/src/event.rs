//! The ledger's events: everything that was decided, done and found out, each line enough to understand itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backwards::Counters;
use crate::denied::Denied;
use crate::facts::kubernetes::{self, Taint};
use crate::facts::slurm;
use crate::gate::kubernetes::PodsSeen;
use crate::gate::slurm::JobsSeen;
use crate::handover::{self, Handover};
use crate::ids::{Epoch, HandoverId, NodeName, PolicyName, PoolName};
use crate::model::Domain;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The daemon began to act.
    Started {
        /// Its leadership.
        epoch: Epoch,
        /// Its version.
        version: String,
    },
    /// The daemon stopped in order.
    Stopped,
    /// Handover ids up to this one were seen in marks: none of them is given out again.
    IdsSeen {
        /// The highest.
        highest: HandoverId,
    },
    /// How far the schedulers' own counters have come.
    Counted {
        /// They.
        counters: Counters,
    },
    /// A scheduler's counter went down: it was started from a restored backup, or its counter rolled over.
    TimeRanBackwards {
        /// Whose.
        domain: Domain,
        /// How far it had come.
        was: u64,
        /// Where it is now.
        is: u64,
    },
    /// What a node looked like before we touched it.
    Found {
        /// Which.
        node: NodeName,
        /// How it looked.
        found: Found,
    },
    /// The drain that was found on a node was lifted by its people: it is not put back.
    DrainLifted {
        /// Which node.
        node: NodeName,
    },
    /// On a node in quarantine, with no handover under way: what the next handover must not forget.
    SeenInQuarantine {
        /// Which node.
        node: NodeName,
        /// Jobs on it.
        jobs: JobsSeen,
        /// GPU pods on it, and what became of those seen before.
        pods: PodsSeen,
    },
    /// A handover begins.
    Planned(Box<Handover>),
    /// A handover goes on.
    Handover {
        /// Which.
        id: HandoverId,
        /// What happened.
        event: handover::Event,
    },
    /// An effect is about to be asked for. Written durably before it.
    Intent {
        /// For which handover; `None` for putting back a guard.
        handover: Option<HandoverId>,
        /// On which node; `None` for what concerns all of them (the Gate object).
        node: Option<NodeName>,
        /// The leadership that acts.
        epoch: Epoch,
        /// What is asked for.
        action: Action,
    },
    /// What came of an intent.
    Outcome {
        /// The intent's sequence number.
        intent: u64,
        /// What came of it.
        outcome: Outcome,
    },
    /// A policy's proposal was granted or denied.
    Decision {
        /// Whose.
        policy: PolicyName,
        /// What it asked for.
        asked: String,
        /// What was decided, and why.
        decided: String,
    },
    /// What a person asked for was refused.
    Refused {
        /// Who asked.
        user: String,
        /// The node, where it concerns one.
        node: Option<NodeName>,
        /// For what.
        asked: String,
        /// Why not.
        why: String,
    },
    /// A condition that a person should know of began.
    AlarmRaised {
        /// Names the condition.
        key: String,
        /// The node, where it concerns one.
        node: Option<NodeName>,
        /// What is wrong and what to do.
        text: String,
    },
    /// It ended.
    AlarmCleared {
        /// Names the condition.
        key: String,
    },
    /// A node must not be opened until a person has looked.
    Quarantined {
        /// Which.
        node: NodeName,
        /// Why.
        why: String,
    },
    /// `adopt` ended a quarantine.
    QuarantineEnded {
        /// Which.
        node: NodeName,
    },
    /// Marks of ours without a ledger were adopted as they stand.
    Imported {
        /// Which node.
        node: NodeName,
        /// Whose it is by its marks.
        owner: Domain,
        /// The handover that its Slurm marks name.
        slurm_closed_by: Option<HandoverId>,
        /// The handover that its Kubernetes marks name.
        kubernetes_closed_by: Option<HandoverId>,
        /// The pool it is taken to serve.
        pool: PoolName,
    },
    /// A release begins.
    ReleaseStarted {
        /// Which node.
        node: NodeName,
        /// How.
        mode: ReleaseMode,
        /// Who asked for it; empty in ledgers from before it was noted.
        #[serde(default)]
        user: String,
    },
    /// The node is unmanaged again.
    Released {
        /// Which.
        node: NodeName,
    },
    /// Something for people, without effect on the state.
    Note {
        /// The node, where it concerns one.
        node: Option<NodeName>,
        /// The text.
        text: String,
    },
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct About<'a> {
    /// The node that it names.
    pub node: Option<&'a NodeName>,
    /// The handover that it names.
    pub handover: Option<HandoverId>,
}

impl Event {
    /// The node and the handover that it names; one that names neither concerns all of them.
    pub fn about(&self) -> About<'_> {
        let (node, handover) = match self {
            Self::Planned(handover) => (Some(&handover.node), Some(handover.id)),
            Self::Handover { id, .. } => (None, Some(*id)),
            Self::Intent { node, handover, .. } => (node.as_ref(), *handover),
            Self::AlarmRaised { node, .. } | Self::Note { node, .. } | Self::Refused { node, .. } => {
                (node.as_ref(), None)
            }
            Self::Found { node, .. }
            | Self::DrainLifted { node }
            | Self::SeenInQuarantine { node, .. }
            | Self::Quarantined { node, .. }
            | Self::QuarantineEnded { node }
            | Self::Imported { node, .. }
            | Self::ReleaseStarted { node, .. }
            | Self::Released { node } => (Some(node), None),
            Self::Started { .. }
            | Self::Stopped
            | Self::IdsSeen { .. }
            | Self::Counted { .. }
            | Self::TimeRanBackwards { .. }
            | Self::Outcome { .. }
            | Self::Decision { .. }
            | Self::AlarmCleared { .. } => (None, None),
        };
        About { node, handover }
    }
}

/// A remote effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// On Slurm.
    Slurm(slurm::Action),
    /// On Kubernetes.
    Kubernetes(kubernetes::Action),
}

impl Action {
    /// Does it only close (and so may go ahead of a ledger that cannot be written)?
    pub fn is_closing(&self) -> bool {
        match self {
            Self::Slurm(slurm::Action::Drain { .. } | slurm::Action::Reserve(_))
            | Self::Kubernetes(
                kubernetes::Action::CloseGate { .. } | kubernetes::Action::CreateGate { .. },
            ) => true,
            Self::Kubernetes(kubernetes::Action::Mark(marks)) => {
                marks.taints.iter().any(|taint| taint.key == crate::mark::TAINT_DRAINING)
            }
            Self::Slurm(slurm::Action::Undrain { .. } | slurm::Action::Unreserve { .. })
            | Self::Kubernetes(kubernetes::Action::OpenGate { .. } | kubernetes::Action::Evict { .. }) => {
                false
            }
        }
    }

    /// The gate that it (helps to) open.
    pub fn opens(&self) -> Option<Domain> {
        match self {
            Self::Slurm(slurm::Action::Undrain { .. } | slurm::Action::Unreserve { .. }) => {
                Some(Domain::Slurm)
            }
            Self::Kubernetes(kubernetes::Action::OpenGate { .. }) => Some(Domain::Kubernetes),
            Self::Kubernetes(kubernetes::Action::Mark(_)) if !self.is_closing() => Some(Domain::Kubernetes),
            Self::Slurm(slurm::Action::Drain { .. } | slurm::Action::Reserve(_))
            | Self::Kubernetes(
                kubernetes::Action::CreateGate { .. }
                | kubernetes::Action::CloseGate { .. }
                | kubernetes::Action::Mark(_)
                | kubernetes::Action::Evict { .. },
            ) => None,
        }
    }
}

/// What came of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Seen done.
    Done,
    /// A budget does not allow the eviction now.
    Budget {
        /// The server's words.
        why: String,
    },
    /// It certainly did not happen.
    Refused {
        /// Why.
        why: String,
    },
    /// It was not asked for: a look taken just before it no longer permits it.
    Denied {
        /// Why.
        denied: Denied,
    },
    /// It may or may not have happened: the next look tells.
    Unknown {
        /// Why.
        why: String,
    },
}

/// How a release leaves a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseMode {
    /// The owner stays open, the other side stays closed by plain means.
    Plain,
    /// Exactly as it was found.
    AsFound,
}

/// How a node looked before we touched it, as far as we may touch it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The DRAIN reason that stood in Slurm; `None` where it was not drained.
    pub slurm_drain: Option<String>,
    /// Taints with keys of ours or of configured pools.
    pub taints: Vec<Taint>,
    /// Labels of ours and of configured pools.
    pub labels: BTreeMap<String, String>,
    /// Our annotation.
    pub annotation: Option<String>,
    /// Whether it was on the Gate's list.
    pub listed: bool,
}
