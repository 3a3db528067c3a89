//! What the facts mean for a node's two gates: open, weakened, closed or unknown; and whether a side is empty.
//!
//! This is one half of the safety rule; [`crate::safety`] is the other. Everything here is a reading of one look. It does
//! not know what was seen before, and it never takes an absent fact for a good one.

use std::fmt;

use serde::{Deserialize, Serialize};

pub mod kubernetes;
pub mod slurm;

/// Lets a domain start GPU work on a node, or does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// None of our guards stands.
    Open,
    /// Some guards stand and some don't.
    Weakened {
        /// The guards that don't, for people.
        missing: Vec<String>,
    },
    /// All guards stand.
    Closed,
    /// We could not look.
    Unknown {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.pad("open"),
            Self::Weakened { missing } => write!(f, "weakened ({})", missing.join("; ")),
            Self::Closed => f.pad("closed"),
            Self::Unknown { why } => write!(f, "unknown ({why})"),
        }
    }
}

/// Whether a domain has no work on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Emptiness {
    /// Seen empty.
    Empty,
    /// Seen in use.
    Busy {
        /// By what, for people: `job 4711 of alice (running until 18:00)`.
        by: Vec<String>,
    },
    /// We could not look, or what we saw can't be believed.
    Unknown {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Emptiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.pad("empty"),
            Self::Busy { by } => write!(f, "busy ({})", by.join("; ")),
            Self::Unknown { why } => write!(f, "unknown ({why})"),
        }
    }
}

/// Open where no guard stands, closed where all do, weakened in between. Each guard is `None` where it stands, else what
/// is missing.
fn from_guards<const N: usize>(guards: [Option<String>; N]) -> Gate {
    let missing: Vec<String> = guards.into_iter().flatten().collect();
    if missing.is_empty() {
        Gate::Closed
    } else if missing.len() == N {
        Gate::Open
    } else {
        Gate::Weakened { missing }
    }
}
