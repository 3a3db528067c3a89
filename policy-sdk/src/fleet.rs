//! The usual arithmetic on nodes and pools. Indices are positions in the snapshot's lists.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Node, Pool, Proposal, Snapshot, kind, state};

/// Pools with their indices.
pub fn pools(snapshot: &Snapshot) -> impl Iterator<Item = (u32, &Pool)> {
    (0..).zip(&snapshot.pools)
}

/// Nodes that serve `pool` and have no GPU in use, with their indices.
pub fn free_nodes(snapshot: &Snapshot, pool: u32) -> impl Iterator<Item = (u32, &Node)> {
    (0..).zip(&snapshot.nodes).filter(move |(_, node)| node.pool == Some(pool) && node.state == state::FREE)
}

/// The free nodes of `pool` for a gang that needs `gang` nodes with at least `gpus` GPUs each at the same time, in one
/// topology block where one has room for all of them (the fullest such block, so that larger ones stay whole), else from
/// as few blocks as possible. `None` when it does not fit whole.
pub fn gang_that_fits(snapshot: &Snapshot, pool: u32, gang: u32, gpus: u32) -> Option<Vec<u32>> {
    let gang = usize::try_from(gang).ok()?;
    let mut blocks: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (index, node) in free_nodes(snapshot, pool).filter(|(_, node)| node.gpus >= gpus) {
        blocks.entry(&node.block).or_default().push(index);
    }
    let mut blocks: Vec<Vec<u32>> = blocks.into_values().collect();
    blocks.sort_by_key(|block| (block.len() < gang, block.len().abs_diff(gang)));
    let mut nodes: Vec<u32> = blocks.into_iter().flatten().take(gang).collect();
    nodes.sort_unstable();
    (nodes.len() == gang).then_some(nodes)
}

/// A proposal that `pool` should have `count` ready nodes during an interval, in seconds since 1970, with the usual
/// priority (100) and no preference among nodes.
pub fn want_ready(pool: u32, count: u32, during: Range<i64>, reason: impl Into<String>) -> Proposal {
    Proposal {
        kind: kind::WANT_READY,
        pool,
        count,
        nodes: vec![],
        from: during.start,
        until: during.end,
        priority: 100,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{direction, domain};

    fn node(block: &str, pool: u32, state: u8) -> Node {
        Node {
            name: String::new(),
            pool: Some(pool),
            home: Some(pool),
            owner: domain::SLURM,
            gpu_model: "h100".to_owned(),
            gpus: 4,
            block: block.to_owned(),
            state,
            handover: direction::NONE,
            busy_until: None,
            attrs: vec![],
        }
    }

    #[test]
    fn gangs_go_whole_and_into_the_fullest_block() {
        let mut snapshot = Snapshot {
            settings: "{}".to_owned(),
            now: 0,
            tick_period: 10,
            nodes: vec![],
            pools: vec![],
            queues: vec![],
            windows: vec![],
            blackouts: vec![],
            loans: vec![],
            attrs: vec![],
        };
        // a: 3 free; b: 2 free, 1 busy; c: 1 free in another pool.
        for (block, pool, state) in [
            ("a", 0, state::FREE),
            ("a", 0, state::FREE),
            ("a", 0, state::FREE),
            ("b", 0, state::FREE),
            ("b", 0, state::BUSY),
            ("b", 0, state::FREE),
            ("c", 1, state::FREE),
        ] {
            snapshot.nodes.push(node(block, pool, state));
        }
        assert_eq!(free_nodes(&snapshot, 0).count(), 5);
        let cases: &[(u32, u32, Option<&[u32]>)] = &[
            (1, 4, Some(&[3])),
            (2, 4, Some(&[3, 5])),
            (3, 4, Some(&[0, 1, 2])),
            (4, 4, Some(&[0, 1, 2, 3])),
            (5, 1, Some(&[0, 1, 2, 3, 5])),
            (6, 1, None),
            (1, 8, None),
            (0, 4, Some(&[])),
        ];
        for (gang, gpus, expected) in cases {
            assert_eq!(gang_that_fits(&snapshot, 0, *gang, *gpus).as_deref(), *expected, "{gang} of {gpus}");
        }
    }
}
