//! The planner picks nodes and times: which nodes a wanted capacity takes, when each is reserved and drained, which go
//! home when it is no longer wanted. It knows what policies want and what the arbiter grants; it decides nothing about
//! gates, and a plan of it is a plain value: the executor has no choices left.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::arbiter::{self, Census};
use crate::book::Book;
use crate::denied::Denied;
use crate::facts::Facts;
use crate::facts::slurm::{Free, Index};
use crate::gate;
use crate::handover::{Handover, Purpose, Requester, State};
use crate::ids::{HandoverId, NodeName, PolicyName, PoolName, SlurmNodeName, Ticket};
use crate::model::{Domain, Node, Pool, Site};

/// A reservation is placed at most this long ahead where the partition's longest time limit is unlimited.
const FARTHEST_RESERVATION: SignedDuration = SignedDuration::from_hours(28 * 24);

/// Which of two wants goes first: the site's word about policies, then the policy's about its own proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Priority {
    /// Of the policy, by the configuration.
    pub policy: u32,
    /// Of the proposal, by the policy.
    pub proposal: u32,
}

/// Capacity that somebody wants: the pool has `count` nodes ready from `from` until `until`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Which policy asks.
    pub policy: PolicyName,
    /// For which pool.
    pub pool: PoolName,
    /// Nodes, altogether.
    pub count: u32,
    /// From when nodes may be taken for it.
    pub from: Timestamp,
    /// Until when they are kept.
    pub until: Timestamp,
    /// The higher goes first.
    pub priority: Priority,
    /// Why, for people.
    pub why: String,
    /// The site's ticket.
    pub ticket: Option<Ticket>,
}

/// One node that is to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Which.
    pub node: NodeName,
    /// To which domain.
    pub to: Domain,
    /// From which pool.
    pub from_pool: PoolName,
    /// Into which pool.
    pub pool: PoolName,
    /// When the reservation is placed.
    pub reserve_at: Timestamp,
    /// When the node is needed.
    pub start_at: Timestamp,
    /// When the escalation decides.
    pub deadline: Timestamp,
    /// When it is due back, where that is known.
    pub due_back: Option<Timestamp>,
    /// Why.
    pub why: String,
    /// Who asked.
    pub requester: Requester,
    /// The site's ticket.
    pub ticket: Option<Ticket>,
}

impl Move {
    /// The handover that carries it out.
    pub fn handover(self, id: HandoverId, epoch: crate::ids::Epoch, now: Timestamp) -> Handover {
        Handover {
            id,
            node: self.node,
            to: self.to,
            purpose: Purpose::Move,
            pool: self.pool,
            why: self.why,
            requester: self.requester,
            ticket: self.ticket,
            epoch,
            planned_at: now,
            reserve_at: self.reserve_at,
            start_at: self.start_at,
            deadline: self.deadline,
            late_since: None,
            due_back: self.due_back,
            state: State::Planned,
            since: now,
            jobs_seen: BTreeMap::new(),
            lease_at_last_holder: None,
            pods_seen: BTreeMap::new(),
            looks: crate::handover::Looks::default(),
            node_uid: None,
            rollback: None,
        }
    }
}

/// A handover that is no longer wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// Which.
    pub handover: HandoverId,
    /// Why.
    pub why: String,
}

/// A want that was not granted whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// What was wanted.
    pub want: Want,
    /// Why not.
    pub reason: Denied,
}

/// What is to be done, and what was refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Handovers to begin.
    pub moves: Vec<Move>,
    /// Handovers to roll back.
    pub cancels: Vec<Cancel>,
    /// Wants that were not granted whole.
    pub denials: Vec<Denial>,
}

/// What the planner looks at.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The instant of planning.
    pub now: Timestamp,
    /// The site.
    pub site: &'a Site,
    /// The book.
    pub book: &'a Book,
    /// The look at both schedulers.
    pub facts: &'a Facts,
    /// Slurm's half of it, ordered by node.
    pub index: &'a Index<'a>,
}

/// What is not to be taken now, by name: why (a blackout).
pub type Freeze = Option<Denied>;

/// Whether all policies that count have said what they want since the daemon's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// They have: what none of them wants goes home.
    All,
    /// Not all: what the others want is not known, so nothing goes home and nothing is cancelled.
    Some,
}

/// Plans for everything that is wanted. Pools that nobody speaks for are left as they are, but for nodes that a policy
/// placed there and no policy wants there any more.
pub fn plan(situation: Situation<'_>, wants: &[Want], freeze: &Freeze, heard: Heard) -> Plan {
    let mut planner = Planner {
        situation,
        heard,
        census: Census::new(situation.site, situation.book, situation.now),
        healthy: None,
        plan: Plan::default(),
    };
    let mut by_pool: BTreeMap<&PoolName, Vec<&Want>> = situation
        .site
        .pools
        .values()
        .filter(|p| p.domain() == Domain::Kubernetes)
        .map(|p| (&p.name, vec![]))
        .collect();
    for want in wants {
        if let Some(of_pool) = by_pool.get_mut(&want.pool) {
            of_pool.push(want);
        } else {
            let reason = Denied::UnknownPool { pool: want.pool.clone() };
            planner.plan.denials.push(Denial { want: want.clone(), reason });
        }
    }
    let mut pools: Vec<_> = by_pool.into_iter().collect();
    pools.sort_by_key(|(_, wants)| std::cmp::Reverse(wants.iter().map(|want| want.priority).max()));
    for (pool, wants) in pools {
        planner.pool(pool, &wants, freeze);
    }
    planner.plan
}

/// One node to move because a person says so.
pub fn requested(
    situation: Situation<'_>,
    name: &NodeName,
    to: Domain,
    why: &str,
    user: &str,
    ticket: Option<Ticket>,
) -> Result<Move, Denied> {
    let (node, from) = arbiter::movable(situation.site, situation.book, name, to)?;
    let pool = pool_in(situation.site, node, to)?;
    let census = Census::new(situation.site, situation.book, situation.now);
    arbiter::check(situation.site, &census, from, &pool.name, true)?;
    let requester = Requester::Person { user: user.to_owned() };
    let now = situation.now;
    let held = gate::slurm::foreign_reservations(situation.index, &node.slurm, None, now).next();
    if let (Domain::Kubernetes, Some(reservation)) = (to, held) {
        return Err(Denied::NotFit {
            why: format!("Slurm has it in {reservation}, and it would not count as empty"),
        });
    }
    Ok(new_move(situation, node, from, &pool.name, to, now, None, why.to_owned(), requester, ticket))
}

/// The pool of `to` that a node goes to without a policy's word: its home, or the first one there by name.
fn pool_in<'a>(site: &'a Site, node: &Node, to: Domain) -> Result<&'a Pool, Denied> {
    site.pools
        .get(&node.home)
        .filter(|pool| pool.domain() == to)
        .or_else(|| site.pools.values().find(|pool| pool.domain() == to))
        .ok_or_else(|| Denied::UnknownPool { pool: PoolName::new(format!("of {to}")) })
}

#[expect(clippy::too_many_arguments, reason = "the fields of a Move, once")]
fn new_move(
    situation: Situation<'_>,
    node: &Node,
    from: &PoolName,
    to_pool: &PoolName,
    to: Domain,
    start_at: Timestamp,
    due_back: Option<Timestamp>,
    why: String,
    requester: Requester,
    ticket: Option<Ticket>,
) -> Move {
    let start_at = start_at.max(situation.now);
    let ahead = longest_limit(situation, &node.slurm);
    let reserve_at = start_at.saturating_sub(ahead).unwrap_or(situation.now).max(situation.now);
    let leave = situation.site.pools.get(from).map_or(SignedDuration::from_hours(1), |pool| pool.deadline);
    Move {
        node: node.name.clone(),
        to,
        from_pool: from.clone(),
        pool: to_pool.clone(),
        reserve_at,
        start_at,
        deadline: start_at.saturating_add(leave).unwrap_or(start_at),
        due_back,
        why,
        requester,
        ticket,
    }
}

/// The longest time limit of the partitions that a node is in: a job started before that long ahead can overrun.
fn longest_limit(situation: Situation<'_>, node: &SlurmNodeName) -> SignedDuration {
    let Some(slurm) = situation.facts.slurm.value() else { return FARTHEST_RESERVATION };
    let limits = slurm.partitions.values().filter(|p| p.nodes.contains(node)).map(|p| p.max_time);
    limits
        .map(|limit| limit.unwrap_or(FARTHEST_RESERVATION))
        .max()
        .map_or(FARTHEST_RESERVATION, |limit| limit.min(FARTHEST_RESERVATION))
}

/// A node of Slurm's that could be taken.
#[derive(Debug, Clone, Copy)]
struct Candidate<'a> {
    node: &'a Node,
    /// The pool it serves.
    from: &'a PoolName,
    free: Free,
    /// By this plan.
    taken: bool,
}

struct Planner<'a> {
    situation: Situation<'a>,
    heard: Heard,
    census: Census,
    /// By name; looked up when the first one is to be taken.
    healthy: Option<Vec<Candidate<'a>>>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    /// Walks through the instants at which the pool's target changes, and takes what is missing at each. What exceeds
    /// the present target goes home.
    fn pool(&mut self, pool: &PoolName, wants: &[&Want], freeze: &Freeze) {
        let now = self.situation.now;
        let mut times: BTreeSet<Timestamp> = wants.iter().map(|w| w.from.max(now)).collect();
        times.extend(wants.iter().map(|w| w.until).filter(|until| *until > now));
        times.insert(now);
        let mut arrivals = self.arrivals(pool);
        let staying = self.staying(pool);
        let mut have = self.census.of(pool).present;
        for at in times {
            let target = target(wants, at);
            let due: Vec<HandoverId> =
                arrivals.extract_if(.., |(start, _)| *start <= at).map(|(_, id)| id).collect();
            let missing = target.saturating_sub(have);
            let kept = u32::try_from(due.len()).unwrap_or(u32::MAX).min(missing);
            for id in due.iter().skip(kept as usize) {
                self.cancel(*id, wants);
            }
            if at == now && have > target {
                have -= self.give_back(pool, have - target);
            } else if at > now {
                // By then they will have gone home.
                have = have.min(target.max(staying));
            }
            have += kept;
            if have < target
                && let Some(want) =
                    wants.iter().filter(|w| w.from.max(now) <= at && at < w.until).max_by_key(|w| w.count)
            {
                have += self.take(pool, want, at, target - have, freeze);
            }
        }
    }

    /// Handovers into the pool that policies began, soonest first. Persons' moves are left alone but counted.
    fn arrivals(&self, pool: &PoolName) -> Vec<(Timestamp, HandoverId)> {
        let mut arrivals: Vec<_> = self
            .situation
            .book
            .under_way()
            .filter(|h| h.pool == *pool && h.to == Domain::Kubernetes && h.state != State::RollingBack)
            .filter(|h| h.purpose == Purpose::Move)
            .map(|h| (h.start_at, h.id))
            .collect();
        arrivals.sort();
        arrivals
    }

    fn cancel(&mut self, id: HandoverId, wants: &[&Want]) {
        if self.heard == Heard::Some {
            return;
        }
        let Some(handover) = self.situation.book.handovers.get(&id) else { return };
        if handover.requester.is_policy() && handover.state.can_roll_back() {
            let why = if wants.is_empty() { "no policy wants it any more" } else { "no longer needed" };
            self.plan.cancels.push(Cancel { handover: id, why: why.to_owned() });
        }
    }

    /// Nodes of the pool that stay whatever policies want: persons placed them there, or it is their home.
    fn staying(&self, pool: &PoolName) -> u32 {
        let stays = self.placed(pool).filter(|(node, by)| !by.is_policy() || node.home == *pool).count();
        u32::try_from(stays).unwrap_or(u32::MAX)
    }

    /// Nodes that serve the pool and are in no handover, with who placed them.
    fn placed(&self, pool: &PoolName) -> impl Iterator<Item = (&'a Node, &'a Requester)> {
        let Situation { site, book, .. } = self.situation;
        site.nodes.values().filter_map(move |node| {
            let record = book.nodes.get(&node.name)?;
            let placement = record.placement.as_ref().filter(|p| p.pool == *pool)?;
            (record.handover.is_none() && record.owner() == Some(Domain::Kubernetes))
                .then_some((node, &placement.by))
        })
    }

    /// Sends surplus nodes home; gives how many.
    fn give_back(&mut self, pool: &PoolName, surplus: u32) -> u32 {
        if self.heard == Heard::Some {
            return 0;
        }
        let candidates: Vec<_> =
            self.placed(pool).filter(|(node, by)| by.is_policy() && node.home != *pool).collect();
        let mut given = 0;
        for (node, by) in candidates.into_iter().rev() {
            if given == surplus {
                break;
            }
            let Ok(from) = arbiter::pool_left(self.situation.book, node, Domain::Slurm) else { continue };
            // Floors and ceilings say nothing against going home; only the number at once does.
            let home = &node.home;
            let limit = |pool: &PoolName| self.situation.site.pools.get(pool).map_or(0, |p| p.max_handovers);
            if self.census.of(from).moving >= limit(from) || self.census.of(home).moving >= limit(home) {
                break;
            }
            let why = format!("pool {pool} no longer needs it");
            let now = self.situation.now;
            let one =
                new_move(self.situation, node, from, home, Domain::Slurm, now, None, why, by.clone(), None);
            self.census.grant(from, home, true);
            self.plan.moves.push(one);
            given += 1;
        }
        given
    }

    /// Takes nodes for a want from the Slurm pools, soonest free first; gives how many.
    fn take(&mut self, pool: &PoolName, want: &Want, at: Timestamp, missing: u32, freeze: &Freeze) -> u32 {
        if let Some(reason) = freeze {
            self.plan.denials.push(Denial { want: want.clone(), reason: reason.clone() });
            return 0;
        }
        let begins_now = at <= self.situation.now;
        let mut taken = 0;
        let mut why_not: Option<Denied> = None;
        let mut reserved: Option<String> = None;
        let healthy = self.healthy.get_or_insert_with(|| healthy(self.situation));
        let mut candidates: Vec<&mut Candidate<'_>> = healthy.iter_mut().filter(|one| !one.taken).collect();
        // Those free at `at` first, by name (the order that they are in), then the soonest free.
        candidates.sort_by_key(|one| one.free.max(Free::By(at)));
        for candidate in candidates {
            let Candidate { node, from, .. } = *candidate;
            if taken == missing {
                break;
            }
            let (index, from_then) = (self.situation.index, at.max(self.situation.now));
            let mut held = gate::slurm::foreign_reservations(index, &node.slurm, Some(want.until), from_then);
            if let Some(reservation) = held.next() {
                reserved.get_or_insert_with(|| format!("{} is in {reservation}", node.name));
                continue;
            }
            if let Err(denied) = arbiter::check(self.situation.site, &self.census, from, pool, begins_now) {
                why_not.get_or_insert(denied);
                continue;
            }
            let requester = Requester::Policy { policy: want.policy.to_string() };
            let one = new_move(
                self.situation,
                node,
                from,
                pool,
                Domain::Kubernetes,
                at,
                Some(want.until),
                want.why.clone(),
                requester,
                want.ticket.clone(),
            );
            self.census.grant(from, pool, begins_now);
            candidate.taken = true;
            self.plan.moves.push(one);
            taken += 1;
        }
        if taken < missing {
            let why = why_not
                .map(|denied| denied.to_string())
                .or(reserved)
                .unwrap_or_else(|| "no healthy managed node of Slurm is free to move".to_owned());
            let reason =
                Denied::NoNodes { pool: pool.clone(), wanted: want.count, missing: missing - taken, why };
            self.plan.denials.push(Denial { want: want.clone(), reason });
        }
        taken
    }
}

/// Nodes of Slurm's that are free to move and up on both sides. One whose state is unknown on either side is none.
fn healthy<'a>(situation: Situation<'a>) -> Vec<Candidate<'a>> {
    let Situation { site, book, facts, index, .. } = situation;
    let (Some(slurm), Some(kubernetes)) = (facts.slurm.value(), facts.kubernetes.value()) else {
        return Vec::new();
    };
    let candidate = |node: &'a Node| {
        let from = arbiter::pool_left(book, node, Domain::Kubernetes).ok()?;
        let in_slurm = slurm.nodes.get(&node.slurm)?;
        let in_kubernetes = kubernetes.nodes.get(&node.kubernetes)?;
        (in_slurm.takes_jobs() && in_kubernetes.takes_pods(node.gpus)).then(|| Candidate {
            node,
            from,
            free: index.free(&node.slurm),
            taken: false,
        })
    };
    site.nodes.values().filter_map(candidate).collect()
}

/// Nodes wanted at an instant: policies are not added up, the largest want of the pool counts.
fn target(wants: &[&Want], at: Timestamp) -> u32 {
    wants.iter().filter(|want| want.from <= at && at < want.until).map(|want| want.count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
