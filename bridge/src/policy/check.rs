//! Decides whether what a policy answered makes sense and is granted. Whether a proposal is wise, affordable or allowed
//! by floors and ceilings is not known here: that is the arbiter's part.

use std::collections::BTreeSet;

use super::abi::{Proposal, Snapshot, kind};
use super::error::Error;

/// Longest reason, in bytes, as the ABI says.
const REASON_BYTES: usize = 256;

/// What a policy may speak for. The configuration says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Kinds of proposals; `None` grants all.
    pub kinds: Option<BTreeSet<u32>>,
    /// Pools by name; `None` grants all.
    pub pools: Option<BTreeSet<String>>,
}

/// What is wrong with a proposal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A kind from a newer daemon, or none at all.
    #[error("kind {0} is unknown to this daemon")]
    UnknownKind(u32),
    /// The configuration does not grant this kind.
    #[error("kind {0} is not granted to this policy")]
    KindNotGranted(u32),
    /// No such pool.
    #[error("pool {pool} of {pools}: positions start at 0")]
    UnknownPool {
        /// The index.
        pool: u32,
        /// How many there are.
        pools: usize,
    },
    /// The configuration does not grant this pool.
    #[error("pool {0} is not granted to this policy")]
    PoolNotGranted(String),
    /// More nodes than there are.
    #[error("{count} nodes are wanted, but there are {nodes}")]
    TooManyNodes {
        /// What is wanted.
        count: u32,
        /// How many there are.
        nodes: usize,
    },
    /// No such node.
    #[error("node {node} of {nodes}: positions start at 0")]
    UnknownNode {
        /// The index.
        node: u32,
        /// How many there are.
        nodes: usize,
    },
    /// A node twice.
    #[error("node {0} is named twice")]
    NodeTwice(u32),
    /// More nodes named than wanted.
    #[error("{named} nodes are named, but {count} wanted")]
    MoreNodesThanCount {
        /// How many are named.
        named: usize,
        /// How many are wanted.
        count: u32,
    },
    /// The interval is empty or backwards.
    #[error("it holds from {from} until {until}, which is never")]
    Never {
        /// First instant.
        from: i64,
        /// First instant after it.
        until: i64,
    },
    /// No reason, a reason of several lines, or too long a one.
    #[error("its reason must be one line of 1 to {REASON_BYTES} bytes")]
    BadReason,
}

/// Checks all proposals of a decision.
pub(super) fn proposals(proposals: &[Proposal], snapshot: &Snapshot, grants: &Grants) -> Result<(), Error> {
    let nodes = snapshot.nodes.len();
    if proposals.len() > nodes {
        let what = format!("{} proposals, and at most one per node ({nodes}) is allowed", proposals.len());
        return Err(Error::OutputTooBig { what });
    }
    for (position, proposal) in proposals.iter().enumerate() {
        check(proposal, snapshot, grants).map_err(|refusal| Error::InvalidProposal { position, refusal })?;
    }
    Ok(())
}

fn check(proposal: &Proposal, snapshot: &Snapshot, grants: &Grants) -> Result<(), Refusal> {
    let Proposal { kind, pool, count, nodes: named, from, until, priority: _, reason } = proposal;
    let nodes = snapshot.nodes.len();
    if !kind::ALL.contains(kind) {
        return Err(Refusal::UnknownKind(*kind));
    }
    if grants.kinds.as_ref().is_some_and(|granted| !granted.contains(kind)) {
        return Err(Refusal::KindNotGranted(*kind));
    }
    let Some(pool) = position(*pool).and_then(|pool| snapshot.pools.get(pool)) else {
        return Err(Refusal::UnknownPool { pool: *pool, pools: snapshot.pools.len() });
    };
    if grants.pools.as_ref().is_some_and(|granted| !granted.contains(&pool.name)) {
        return Err(Refusal::PoolNotGranted(pool.name.clone()));
    }
    if position(*count).is_none_or(|count| count > nodes) {
        return Err(Refusal::TooManyNodes { count: *count, nodes });
    }
    let mut seen = BTreeSet::new();
    for node in named {
        if position(*node).is_none_or(|node| node >= nodes) {
            return Err(Refusal::UnknownNode { node: *node, nodes });
        }
        if !seen.insert(node) {
            return Err(Refusal::NodeTwice(*node));
        }
    }
    if position(*count).is_none_or(|count| named.len() > count) {
        return Err(Refusal::MoreNodesThanCount { named: named.len(), count: *count });
    }
    if from >= until {
        return Err(Refusal::Never { from: *from, until: *until });
    }
    if reason.trim().is_empty() || reason.len() > REASON_BYTES || reason.chars().any(char::is_control) {
        return Err(Refusal::BadReason);
    }
    Ok(())
}

fn position(index: u32) -> Option<usize> {
    usize::try_from(index).ok()
}
