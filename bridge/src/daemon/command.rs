//! What people may ask of a running daemon, and what it answers. The shapes are part of the versioned interface.

use gpu_bridge_core::adoption::Adoption;
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::ReleaseMode;
use gpu_bridge_core::ids::{HandoverId, NodeName, Ticket};
use gpu_bridge_core::model::Domain;
use serde::{Deserialize, Serialize};

use super::journal::Line;

/// Whether a command is only looked through, or carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Go {
    /// Show what would happen.
    Plan,
    /// Do it.
    Yes,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Move a node.
    Move {
        /// Which.
        node: NodeName,
        /// Whereto.
        to: Domain,
        /// Why.
        reason: String,
        /// The site's ticket.
        ticket: Option<Ticket>,
    },
    /// Roll a handover back.
    Cancel {
        /// Which.
        handover: HandoverId,
        /// Why.
        reason: String,
    },
    /// Take nodes under management.
    Adopt {
        /// Which.
        nodes: Vec<NodeName>,
        /// Who is to own them; absent: whoever has work on them, else the home pool's domain.
        owner: Option<Domain>,
        /// Plan or carry out.
        go: Go,
    },
    /// Take our management away; no node named means all that are managed.
    Release {
        /// Which.
        nodes: Vec<NodeName>,
        /// What is left behind.
        mode: ReleaseMode,
        /// Plan or carry out.
        go: Go,
    },
    /// Everything about one node.
    Explain {
        /// Which.
        node: NodeName,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The handover that was planned.
    Planned {
        /// Its id.
        handover: HandoverId,
    },
    /// The handover rolls back.
    Cancelling {
        /// Its id.
        handover: HandoverId,
    },
    /// What adopting would do, or begins to do.
    Adopting {
        /// By node.
        nodes: Vec<Adopting>,
    },
    /// What releasing would do, or begins to do.
    Releasing {
        /// By node.
        nodes: Vec<Releasing>,
    },
    /// A node's story.
    Explained {
        /// Its newest ledger lines, oldest first.
        lines: Vec<Line>,
    },
}

/// One node's adoption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopting {
    /// Which.
    pub node: NodeName,
    /// What it does, or why not.
    pub adoption: Result<Adoption, Denied>,
    /// The handover, where it was begun.
    pub handover: Option<HandoverId>,
}

/// One node's release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Releasing {
    /// Which.
    pub node: NodeName,
    /// How it is left, or why not.
    pub leaves: Result<String, String>,
    /// Whether both gates will then be open.
    pub open_on_both: bool,
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// The rules say no.
    #[error("{denied}")]
    Denied {
        /// Which rule.
        denied: Denied,
    },
    /// The request names something that does not exist, or leaves out something.
    #[error("{found}: expected {expected}")]
    Invalid {
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The ledger can't be written, so nothing new is begun.
    #[error("the ledger cannot be written: {why}. Nothing was begun; free the disk, then ask again")]
    Ledger {
        /// Why.
        why: String,
    },
    /// The daemon is stopping, or too busy to take it.
    #[error("the daemon does not take requests now: {why}")]
    Away {
        /// Why.
        why: String,
    },
}

impl Refusal {
    /// Its code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Denied { denied } => denied.code(),
            Self::Invalid { .. } => "GB0650",
            Self::Ledger { .. } => "GB0651",
            Self::Away { .. } => "GB0652",
        }
    }
}
