//! The states of a handover, and what each means for the rest of the core: one question, one exhaustive answer here, so
//! that a new state does not compile before each of them is answered for it. Which event leads from where to where is
//! [`super::Handover::next`]'s.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a handover stands. Both ways start at `Planned`; they share the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Decided; nothing was done yet.
    Planned,
    /// To Kubernetes: our reservation stands, jobs that fit before its start still run.
    Reserved,
    /// To Kubernetes: drained; running jobs end by themselves.
    Draining,
    /// To Kubernetes: seen empty; the reservation is being sealed.
    SlurmEmpty,
    /// To Kubernetes: the node must prove itself fit before its gate opens.
    Canary,
    /// To Kubernetes: the Kubernetes gate is being opened.
    Releasing,
    /// To Slurm: the Kubernetes gate is being closed.
    Closing,
    /// To Slurm: pods go, through the eviction API.
    Evicting,
    /// To Slurm: seen without holders; NoExecute goes on, and we look again.
    KubernetesEmpty,
    /// To Slurm: the Slurm gate is being opened.
    Returning,
    /// Done: the new owner's gate is open.
    Open,
    /// Going back to the owner it was leaving.
    RollingBack,
    /// Ended where it began.
    RolledBack,
}

impl State {
    /// Is the handover over?
    pub fn is_over(self) -> bool {
        match self {
            Self::Open | Self::RolledBack => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Returning
            | Self::RollingBack => false,
        }
    }

    /// Is the gate that the node leaves as it was, because nothing was begun on it?
    pub fn leaves_gate_open(self) -> bool {
        match self {
            Self::Planned | Self::Reserved => true,
            Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Returning
            | Self::Open
            | Self::RollingBack
            | Self::RolledBack => false,
        }
    }

    /// Can it still roll back, by a person, a policy or its deadline? The second gate has not begun to open.
    pub fn can_roll_back(self) -> bool {
        match self {
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty => true,
            Self::Releasing | Self::Returning | Self::Open | Self::RollingBack | Self::RolledBack => false,
        }
    }

    /// Is the gate of the domain that gets the node being opened?
    pub fn is_opening(self) -> bool {
        match self {
            Self::Releasing | Self::Returning => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Open
            | Self::RollingBack
            | Self::RolledBack => false,
        }
    }

    /// Does it go, or has it gone, back to the owner it was leaving?
    pub fn goes_back(self) -> bool {
        match self {
            Self::RollingBack | Self::RolledBack => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Returning
            | Self::Open => false,
        }
    }

    /// Are jobs noted that are seen on the node? Each must be finished by its id before Kubernetes opens.
    pub fn notes_jobs(self) -> bool {
        match self {
            Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            // Nothing may start there, so what is seen there broke in; the way back opens Kubernetes.
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::RollingBack => true,
            Self::Planned | Self::Returning | Self::Open | Self::RolledBack => false,
        }
    }

    /// Is a look that shows the leaving side closed and empty counted? After `Permitted` too: what was interrupted before the
    /// gate opened is seen twice anew.
    pub(super) fn counts_empty_looks(self) -> bool {
        match self {
            Self::Draining
            | Self::KubernetesEmpty
            | Self::Releasing
            | Self::Returning
            | Self::RollingBack => true,
            Self::Planned
            | Self::Reserved
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Closing
            | Self::Evicting
            | Self::Open
            | Self::RolledBack => false,
        }
    }

    /// Does entering it keep the count of looks? `Canary` keeps the one that `SlurmEmpty` was reached with; every other state
    /// starts its own.
    pub(super) fn keeps_count(self) -> bool {
        match self {
            Self::Canary | Self::Releasing | Self::Returning => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Closing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Open
            | Self::RollingBack
            | Self::RolledBack => false,
        }
    }

    /// Is the Kubernetes side judged by a LIST of what is on the node?
    pub fn lists_pods(self) -> bool {
        match self {
            Self::Closing | Self::Evicting | Self::KubernetesEmpty | Self::Returning => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            | Self::Open
            | Self::RollingBack
            | Self::RolledBack => false,
        }
    }

    /// Must a dry-run binding be refused for it to go on?
    pub fn needs_refused_binding(self) -> bool {
        match self {
            Self::Closing => true,
            Self::Planned
            | Self::Reserved
            | Self::Draining
            | Self::SlurmEmpty
            | Self::Canary
            | Self::Releasing
            | Self::Evicting
            | Self::KubernetesEmpty
            | Self::Returning
            | Self::Open
            | Self::RollingBack
            | Self::RolledBack => false,
        }
    }

    /// Where a look that shows the leaving side not empty takes it; `None` where such a look is none of its events.
    pub(super) fn when_busy(self) -> Option<Self> {
        match self {
            Self::Draining | Self::SlurmEmpty | Self::Canary => Some(Self::Draining),
            Self::Evicting | Self::KubernetesEmpty => Some(Self::Evicting),
            Self::Closing | Self::Releasing | Self::Returning | Self::RollingBack => Some(self),
            Self::Planned | Self::Reserved | Self::Open | Self::RolledBack => None,
        }
    }

    /// The name that people see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Reserved => "reserved",
            Self::Draining => "draining",
            Self::SlurmEmpty | Self::KubernetesEmpty => "empty",
            Self::Canary => "canary",
            Self::Releasing => "releasing",
            Self::Closing => "closing",
            Self::Evicting => "evicting",
            Self::Returning => "returning",
            Self::Open => "open",
            Self::RollingBack => "rolling back",
            Self::RolledBack => "rolled back",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
