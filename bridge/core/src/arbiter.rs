//! The arbiter says yes or no to one move, with a typed reason: management, one handover per node, floors, ceilings, so
//! many handovers at once. It knows counts, not times, and never looks at a gate.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::book::{Book, Management};
use crate::denied::Denied;
use crate::handover::{Handover, State};
use crate::ids::{NodeName, PoolName};
use crate::model::{Domain, Node, Pool, Site};

/// How a pool's nodes stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Owned, and not leaving.
    pub present: u32,
    /// In a handover into the pool.
    pub arriving: u32,
    /// In a handover out of the pool.
    pub leaving: u32,
    /// Handovers in or out that have begun to move the node (not merely planned or reserved ahead).
    pub moving: u32,
}

/// The pools' counts, by the book.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census {
    counts: BTreeMap<PoolName, Count>,
}

impl Census {
    /// Counts every managed node once.
    pub fn new(site: &Site, book: &Book, now: Timestamp) -> Self {
        let mut census = Self::default();
        for node in site.nodes.values() {
            let Some(record) = book.nodes.get(&node.name) else { continue };
            match record.management {
                Management::Managed { .. } => {}
                Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => continue,
            }
            let serves = record.placement.as_ref().map_or(&node.home, |placement| &placement.pool);
            match record.handover.and_then(|id| book.handovers.get(&id)) {
                None => census.of_mut(serves).present += 1,
                Some(handover) => census.count_handover(serves, handover, now),
            }
        }
        census
    }

    fn count_handover(&mut self, from: &PoolName, handover: &Handover, now: Timestamp) {
        let moving = u32::from(handover.start_at <= now);
        if handover.state == State::RollingBack {
            self.of_mut(from).present += 1;
            self.of_mut(from).moving += moving;
            return;
        }
        let leaving = self.of_mut(from);
        leaving.leaving += 1;
        leaving.moving += moving;
        let arriving = self.of_mut(&handover.pool);
        arriving.arriving += 1;
        arriving.moving += moving;
    }

    /// A pool's counts.
    pub fn of(&self, pool: &PoolName) -> Count {
        self.counts.get(pool).copied().unwrap_or_default()
    }

    fn of_mut(&mut self, pool: &PoolName) -> &mut Count {
        self.counts.entry(pool.clone()).or_default()
    }

    /// Counts a move that was just granted.
    pub fn grant(&mut self, from: &PoolName, to: &PoolName, begins_now: bool) {
        let moving = u32::from(begins_now);
        let giver = self.of_mut(from);
        giver.present = giver.present.saturating_sub(1);
        giver.leaving += 1;
        giver.moving += moving;
        let taker = self.of_mut(to);
        taker.arriving += 1;
        taker.moving += moving;
    }
}

/// The node, and the pool it serves now, if it is free to move to `to`.
pub fn movable<'a>(
    site: &'a Site,
    book: &'a Book,
    name: &NodeName,
    to: Domain,
) -> Result<(&'a Node, &'a PoolName), Denied> {
    let node = site.nodes.get(name).ok_or_else(|| Denied::UnknownNode { node: name.clone() })?;
    Ok((node, pool_left(book, node, to)?))
}

/// The pool that the node serves now, if it is free to leave it for `to`.
pub fn pool_left<'a>(book: &'a Book, node: &'a Node, to: Domain) -> Result<&'a PoolName, Denied> {
    let name = &node.name;
    let unmanaged = || Denied::Unmanaged { node: name.clone() };
    let record = book.nodes.get(name).ok_or_else(unmanaged)?;
    if let Some(handover) = record.handover {
        return Err(Denied::InHandover { node: name.clone(), handover });
    }
    if let Some(why) = &record.quarantine {
        return Err(Denied::Quarantined { node: name.clone(), why: why.clone() });
    }
    match record.management {
        Management::Managed { owner } if owner == to => {
            Err(Denied::AlreadyThere { node: name.clone(), domain: to })
        }
        Management::Managed { .. } => {
            Ok(record.placement.as_ref().map_or(&node.home, |placement| &placement.pool))
        }
        Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => Err(unmanaged()),
    }
}

/// May one node go from pool `from` to pool `to`?
pub fn check(
    site: &Site,
    census: &Census,
    from: &PoolName,
    to: &PoolName,
    begins_now: bool,
) -> Result<(), Denied> {
    let taker = pool(site, to)?;
    let giver = pool(site, from)?;
    if census.of(from).present <= giver.floor {
        return Err(Denied::Floor { pool: from.clone(), floor: giver.floor });
    }
    let count = census.of(to);
    if let Some(ceiling) = taker.ceiling
        && count.present + count.arriving >= ceiling
    {
        return Err(Denied::Ceiling { pool: to.clone(), ceiling });
    }
    if begins_now {
        for pool in [giver, taker] {
            if census.of(&pool.name).moving >= pool.max_handovers {
                return Err(Denied::TooManyHandovers { pool: pool.name.clone(), limit: pool.max_handovers });
            }
        }
    }
    Ok(())
}

/// A pool of the configuration.
pub fn pool<'a>(site: &'a Site, name: &PoolName) -> Result<&'a Pool, Denied> {
    site.pools.get(name).ok_or_else(|| Denied::UnknownPool { pool: name.clone() })
}
