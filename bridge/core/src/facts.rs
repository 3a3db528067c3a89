//! What was observed of the two schedulers, in our words. Facts are what somebody said at an instant, no more: what they
//! mean for a gate is decided in [`crate::gate`]. A thing that could not be looked at is [`Seen::Unknown`], never an
//! old value and never a default.

use indexmap::{IndexMap, IndexSet};
use jiff::Timestamp;
use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};

pub mod kubernetes;
mod node_set;
pub mod slurm;

pub use node_set::NodeSet;

/// What a look shows, by name or number, in the order in which it was told: each tick looks every node up several times, and
/// walks through every job.
pub type Told<K, V> = IndexMap<K, V, FxBuildHasher>;

/// Names that a look shows.
pub type Names<K> = IndexSet<K, FxBuildHasher>;

/// An observation, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen<T> {
    /// We could not look, or the answer could not be believed. Never counts as closed or empty.
    Unknown {
        /// Why, for people.
        why: String,
    },
    /// This was seen.
    At {
        /// When we asked (not when the answer came): the fact is no newer than this.
        at: Timestamp,
        /// What was seen.
        value: T,
    },
}

impl<T> Seen<T> {
    /// Why there is none, where there is none.
    pub fn unknown_why(&self) -> Option<&str> {
        match self {
            Self::Unknown { why } => Some(why),
            Self::At { .. } => None,
        }
    }

    /// An unknown with its reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// The value, where there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Unknown { .. } => None,
            Self::At { value, .. } => Some(value),
        }
    }
}

/// Everything observed in one tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Slurm's word.
    pub slurm: Seen<slurm::Slurm>,
    /// Kubernetes' word.
    pub kubernetes: Seen<kubernetes::Kubernetes>,
    /// The last look that Kubernetes did not answer, if there was one since the daemon's start.
    pub kubernetes_missed: Option<Timestamp>,
}
