//! Every "no" of the core, typed: who reads a decision in the ledger sees which rule said it and on what grounds.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::gate::{Emptiness, Gate};
use crate::ids::{HandoverId, NodeName, PoolName};
use crate::model::Domain;

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Denied {
    /// The handover is not in a state in which this can happen.
    #[error("{event} cannot happen while a handover is {state}")]
    IllegalEvent {
        /// The event's name.
        event: String,
        /// The state's name.
        state: String,
    },
    /// The other side's gate was not seen closed.
    #[error("the {domain} gate is {gate}, not closed")]
    NotClosed {
        /// The other side.
        domain: Domain,
        /// How it was seen.
        gate: Gate,
    },
    /// The other side was not seen empty.
    #[error("the {domain} side is {emptiness}")]
    NotEmpty {
        /// The other side.
        domain: Domain,
        /// How it was seen.
        emptiness: Emptiness,
    },
    /// One look is not enough.
    #[error("seen empty {have} times in a row, needed {need}")]
    TooFewLooks {
        /// Looks so far.
        have: u8,
        /// Looks needed.
        need: u8,
    },
    /// A look that is not newer than the one before proves nothing.
    #[error("a look of {at} is not newer than the last one, of {last}")]
    StaleLook {
        /// The look's time.
        at: Timestamp,
        /// The last look's time.
        last: Timestamp,
    },
    /// The node itself was not asked, or did not answer, or found something.
    #[error("the node's own word: {why}")]
    NodeWord {
        /// What is amiss.
        why: String,
    },
    /// Our reservation still lets jobs be ignored, or ends too soon, for the other side to be opened.
    #[error("our reservation is not sealed: {why}")]
    NotSealed {
        /// What is amiss.
        why: String,
    },
    /// An admission policy of ours is missing or was altered: no gate opens until a person has looked.
    #[error("openings are frozen: {why}")]
    Frozen {
        /// What froze them.
        why: String,
    },
    /// A scheduler's time ran backwards, and what it says now is yet to be looked at.
    #[error("time ran backwards in {domain}, noticed at {noticed}: nothing opens before a new look at it")]
    Backwards {
        /// Whose.
        domain: Domain,
        /// When that was noticed.
        noticed: Timestamp,
    },
    /// A look right before an opening took too long, or the clock was set back during it: what it shows may be over.
    #[error("the look at {domain} of {at} is too old to open a gate on at {judged_at}")]
    LookTooOld {
        /// What was looked at.
        domain: Domain,
        /// When it was asked.
        at: Timestamp,
        /// When the gate was to open.
        judged_at: Timestamp,
    },
    /// The node is in quarantine, which `adopt` ends.
    #[error("node {node} is in quarantine: {why}")]
    Quarantined {
        /// Which node.
        node: NodeName,
        /// Why.
        why: String,
    },
    /// The canary conditions do not hold.
    #[error("the node is not fit for use: {why}")]
    NotFit {
        /// What is amiss.
        why: String,
    },
    /// The node is not ours to move.
    #[error("node {node} is not managed; `gpu-bridge adopt {node}` shows what adopting it would do")]
    Unmanaged {
        /// Which node.
        node: NodeName,
    },
    /// One handover per node.
    #[error("node {node} is in handover {handover}")]
    InHandover {
        /// Which node.
        node: NodeName,
        /// Its handover.
        handover: HandoverId,
    },
    /// It is there already.
    #[error("node {node} is with {domain} already")]
    AlreadyThere {
        /// Which node.
        node: NodeName,
        /// Its owner.
        domain: Domain,
    },
    /// The inventory has no such node.
    #[error("the inventory has no node {node}")]
    UnknownNode {
        /// What was asked for.
        node: NodeName,
    },
    /// The configuration has no such pool.
    #[error("the configuration has no pool {pool}")]
    UnknownPool {
        /// What was asked for.
        pool: PoolName,
    },
    /// The giving pool must keep its floor.
    #[error("pool {pool} would fall below its floor of {floor} nodes")]
    Floor {
        /// The giving pool.
        pool: PoolName,
        /// Its floor.
        floor: u32,
    },
    /// The receiving pool may have no more.
    #[error("pool {pool} is at its ceiling of {ceiling} nodes")]
    Ceiling {
        /// The receiving pool.
        pool: PoolName,
        /// Its ceiling.
        ceiling: u32,
    },
    /// So many handovers at once and no more.
    #[error("pool {pool} has {limit} handovers under way, its limit")]
    TooManyHandovers {
        /// The pool.
        pool: PoolName,
        /// Its limit.
        limit: u32,
    },
    /// No node qualifies.
    #[error("{missing} of {wanted} nodes for pool {pool} cannot be found: {why}")]
    NoNodes {
        /// The receiving pool.
        pool: PoolName,
        /// Nodes asked for.
        wanted: u32,
        /// Nodes not found.
        missing: u32,
        /// What stands in the way.
        why: String,
    },
    /// A freeze period.
    #[error("blackout {name} until {until}: {why}")]
    Blackout {
        /// Its name.
        name: String,
        /// Its end.
        until: Timestamp,
        /// Its reason.
        why: String,
    },
    /// Work on both sides, so neither can be closed without harm.
    #[error("node {node} has work on both sides: {work}")]
    WorkOnBothSides {
        /// Which node.
        node: NodeName,
        /// What was found.
        work: String,
    },
}

impl Denied {
    /// Its code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::IllegalEvent { .. } => "GB0601",
            Self::NotClosed { .. } => "GB0602",
            Self::NotEmpty { .. } => "GB0603",
            Self::TooFewLooks { .. } => "GB0604",
            Self::StaleLook { .. } => "GB0605",
            Self::NodeWord { .. } => "GB0606",
            Self::NotSealed { .. } => "GB0607",
            Self::Frozen { .. } => "GB0608",
            Self::Quarantined { .. } => "GB0609",
            Self::NotFit { .. } => "GB0610",
            Self::Unmanaged { .. } => "GB0611",
            Self::InHandover { .. } => "GB0612",
            Self::AlreadyThere { .. } => "GB0613",
            Self::UnknownNode { .. } => "GB0614",
            Self::UnknownPool { .. } => "GB0615",
            Self::Floor { .. } => "GB0616",
            Self::Ceiling { .. } => "GB0617",
            Self::TooManyHandovers { .. } => "GB0618",
            Self::NoNodes { .. } => "GB0619",
            Self::Blackout { .. } => "GB0620",
            Self::WorkOnBothSides { .. } => "GB0621",
            Self::Backwards { .. } => "GB0622",
            Self::LookTooOld { .. } => "GB0623",
        }
    }
}
