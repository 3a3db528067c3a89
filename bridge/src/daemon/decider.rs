//! Policies as the daemon calls them: a snapshot in, wanted capacity out. Builds the snapshot from book, facts and
//! calendar; turns proposals into the planner's wants; takes a policy that keeps failing out of service. It grants nothing.

use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge_core::arbiter::Census;
use gpu_bridge_core::book::{Book, Management};
use gpu_bridge_core::calendar::{Calendar, Overlap, Window};
use gpu_bridge_core::demand::Demand;
use gpu_bridge_core::facts::Facts;
use gpu_bridge_core::facts::slurm::{self, Free, Index};
use gpu_bridge_core::ids::{PolicyName, PoolName, Ticket};
use gpu_bridge_core::model::{Domain, Node, Site};
use gpu_bridge_core::planner::{Priority, Want};
use jiff::{SignedDuration, Timestamp};

use crate::policy::{Health, Outcome, Policy, abi};

/// Something that decides on a snapshot. In the daemon a WASM policy; in tests whatever they need.
#[async_trait]
pub trait Decider: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> PolicyName;

    /// What it wants; an error is one line for people, and means nothing is wanted anew.
    async fn decide(&self, snapshot: Arc<abi::Snapshot>) -> Result<Vec<abi::Proposal>, String>;
}

#[async_trait]
impl Decider for Policy {
    fn name(&self) -> PolicyName {
        PolicyName::new(Policy::name(self))
    }

    async fn decide(&self, snapshot: Arc<abi::Snapshot>) -> Result<Vec<abi::Proposal>, String> {
        let decided = self.decide_on_worker(snapshot).await.map_err(|failure| failure.to_string())?;
        Ok(decided.proposals)
    }
}

/// A policy with its mode and its health.
pub struct Seat {
    /// The policy.
    pub decider: Box<dyn Decider>,
    /// Whether its proposals count.
    pub mode: Mode,
    /// Its priority among policies; the higher goes first.
    pub priority: u32,
    /// How it is doing.
    pub health: Health,
    /// What it wanted at its last good decision: kept while it fails (fail static). `None` until it has decided once since
    /// the daemon's start: what it wanted before is not known then, so nothing is taken away from it.
    pub wants: Option<Vec<Want>>,
    /// Its last error.
    pub error: Option<String>,
}

/// Whether a policy's proposals count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They do.
    Active,
    /// They are shown, and nothing follows from them.
    Shadow,
}

impl Seat {
    /// A policy that begins.
    pub fn new(decider: Box<dyn Decider>, mode: Mode, priority: u32) -> Self {
        Self { decider, mode, priority, health: Health::default(), wants: None, error: None }
    }

    /// Asks the policy, unless it is out of service.
    pub async fn ask(&mut self, site: &Site, snapshot: &Arc<abi::Snapshot>) {
        if let Err(out) = self.health.may_run(snapshot.now) {
            self.error = Some(out.to_string());
            return;
        }
        match self.decider.decide(Arc::clone(snapshot)).await {
            Ok(proposals) => {
                self.health = self.health.after(Outcome::Decided, snapshot.now);
                self.error = None;
                let name = self.decider.name();
                let want = |proposal| want(&name, self.priority, site, snapshot, proposal);
                self.wants = Some(proposals.iter().filter_map(want).collect());
            }
            Err(error) => {
                tracing::warn!(policy = %self.decider.name(), %error, "the policy failed; running loans go on");
                self.health = self.health.after(Outcome::Failed, snapshot.now);
                self.error = Some(error);
            }
        }
    }
}

fn want(
    policy: &PolicyName,
    priority: u32,
    site: &Site,
    snapshot: &abi::Snapshot,
    proposal: &abi::Proposal,
) -> Option<Want> {
    let pool = snapshot.pools.get(usize::try_from(proposal.pool).ok()?)?;
    let pool = site.pools.get(&PoolName::new(&pool.name))?;
    Some(Want {
        policy: policy.clone(),
        pool: pool.name.clone(),
        count: proposal.count,
        from: Timestamp::from_second(proposal.from).ok()?,
        until: Timestamp::from_second(proposal.until).ok()?,
        priority: Priority { policy: priority, proposal: proposal.priority },
        why: proposal.reason.clone(),
        ticket: ticket(snapshot, &proposal.reason),
    })
}

/// The ticket of the first window that a reason names.
fn ticket(snapshot: &abi::Snapshot, reason: &str) -> Option<Ticket> {
    let named = snapshot.windows.iter().filter_map(|window| Some((named_at(reason, &window.name)?, window)));
    let (_, window) = named.min_by_key(|(at, window)| (*at, std::cmp::Reverse(window.name.len())))?;
    window.attrs.iter().find(|(key, _)| key == "ticket").map(|(_, value)| Ticket::new(value))
}

/// Where a name stands in a text, whole: `friday` does not stand in `friday-promotion`.
fn named_at(text: &str, name: &str) -> Option<usize> {
    let part_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    text.match_indices(name).map(|(at, _)| at).find(|at| {
        let (before, after) = (text.get(..*at), text.get(at + name.len()..));
        !before.is_some_and(|text| text.ends_with(part_of_a_name))
            && !after.is_some_and(|text| text.starts_with(part_of_a_name))
    })
}

/// What the snapshot is made of.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    /// The instant.
    pub now: Timestamp,
    /// Seconds between two decisions.
    pub tick_period_s: u32,
    /// The site.
    pub site: &'a Site,
    /// The book.
    pub book: &'a Book,
    /// The look at both schedulers.
    pub facts: &'a Facts,
    /// Slurm's half of it, ordered by node.
    pub index: &'a Index<'a>,
    /// The calendar.
    pub calendar: &'a Calendar,
    /// Slurm jobs that wait for less may yet start by themselves, and are no demand.
    pub demand_age: SignedDuration,
}

/// The facts of one tick, as policies see them.
pub fn snapshot(situation: Situation<'_>) -> abi::Snapshot {
    let Situation { now, tick_period_s, site, book, calendar, .. } = situation;
    let pools: Vec<&PoolName> = site.pools.keys().collect();
    let index = |name: &PoolName| pools.binary_search(&name).ok().and_then(|i| u32::try_from(i).ok());
    let census = Census::new(site, book, now);
    let nodes: Vec<abi::Node> = site.nodes.values().map(|node| self::node(situation, node, &index)).collect();
    let ready = |pool: u32| nodes.iter().filter(|n| n.pool == Some(pool) && is_ready(n.state)).count();
    let pools = site.pools.values().enumerate().map(|(i, pool)| {
        let i = u32::try_from(i).unwrap_or(u32::MAX);
        let count = census.of(&pool.name);
        abi::Pool {
            name: pool.name.to_string(),
            domain: domain_code(Some(pool.domain())),
            floor: pool.floor,
            ceiling: pool.ceiling,
            ready: u32::try_from(ready(i)).unwrap_or(u32::MAX),
            arriving: count.arriving,
            leaving: count.leaving,
            home_nodes: u32::try_from(site.nodes.values().filter(|n| n.home == pool.name).count())
                .unwrap_or(u32::MAX),
            attrs: Vec::new(),
        }
    });
    let pools = pools.collect();
    abi::Snapshot {
        now: now.as_second(),
        tick_period: tick_period_s,
        nodes,
        pools,
        queues: queues(situation, &index),
        windows: calendar.windows().filter_map(|w| Some(window(w, index(&w.spec().pool)?, now))).collect(),
        blackouts: calendar
            .blackout_at(now)
            .and_then(|b| Some((b, b.on_at(now)?)))
            .map(|(blackout, end)| abi::Blackout {
                name: blackout.spec().name.clone(),
                start: now.as_second(),
                end: end.as_second(),
                attrs: vec![("reason".to_owned(), blackout.spec().reason.clone())],
            })
            .into_iter()
            .collect(),
        loans: Vec::new(),
        attrs: Vec::new(),
    }
}

const FREE: u8 = 0;
const BUSY: u8 = 1;
const MOVING: u8 = 2;
const QUARANTINED: u8 = 3;
const UNMANAGED: u8 = 4;
const AWAY: u8 = 5;

fn is_ready(state: u8) -> bool {
    state == FREE || state == BUSY
}

fn domain_code(domain: Option<Domain>) -> u8 {
    match domain {
        None => 0,
        Some(Domain::Slurm) => 1,
        Some(Domain::Kubernetes) => 2,
    }
}

fn node(situation: Situation<'_>, node: &Node, index: &impl Fn(&PoolName) -> Option<u32>) -> abi::Node {
    let record = situation.book.nodes.get(&node.name);
    let handover = situation.book.handover_of(&node.name);
    let owner = match record.map(|r| r.management) {
        Some(Management::Managed { owner }) if handover.is_none() => Some(owner),
        Some(
            Management::Managed { .. }
            | Management::Unmanaged
            | Management::Adopting
            | Management::Releasing { .. },
        )
        | None => None,
    };
    let (busy, busy_until) = owner.map_or((false, None), |owner| busy(situation, node, owner));
    let state = match (record, owner) {
        (Some(record), _) if record.quarantine.is_some() => QUARANTINED,
        (_, _) if handover.is_some() => MOVING,
        (Some(_), Some(owner)) if !healthy(situation.facts, node, owner) => AWAY,
        (Some(_), Some(_)) if busy => BUSY,
        (Some(_), Some(_)) => FREE,
        (Some(_) | None, None) | (None, Some(_)) => UNMANAGED,
    };
    let placed = record.and_then(|r| r.placement.as_ref()).map(|placement| &placement.pool);
    abi::Node {
        name: node.name.to_string(),
        pool: owner.and(placed).and_then(index),
        home: index(&node.home),
        owner: domain_code(owner),
        gpu_model: node.gpu_model.clone(),
        gpus: node.gpus,
        block: node.topology_block.clone().unwrap_or_default(),
        state,
        handover: handover.map_or(0, |h| match h.to {
            Domain::Kubernetes => 1,
            Domain::Slurm => 2,
        }),
        busy_until,
        attrs: Vec::new(),
    }
}

/// Whether work runs on the node, and until when at the latest; no instant for work without a limit.
fn busy(situation: Situation<'_>, node: &Node, owner: Domain) -> (bool, Option<i64>) {
    match owner {
        Domain::Slurm => match situation.index.free(&node.slurm) {
            Free::Now => (false, None),
            Free::By(end) => (true, Some(end.as_second())),
            Free::Never => (true, None),
        },
        // Pods have no time limit; which node holds any is not part of every look.
        Domain::Kubernetes => (false, None),
    }
}

fn healthy(facts: &Facts, node: &Node, owner: Domain) -> bool {
    match owner {
        Domain::Slurm => {
            let seen = facts.slurm.value().and_then(|slurm| slurm.nodes.get(&node.slurm));
            seen.is_some_and(slurm::Node::takes_jobs)
        }
        Domain::Kubernetes => {
            let seen = facts.kubernetes.value().and_then(|kubernetes| kubernetes.nodes.get(&node.kubernetes));
            seen.is_some_and(|seen| seen.takes_pods(node.gpus))
        }
    }
}

fn queues(situation: Situation<'_>, index: &impl Fn(&PoolName) -> Option<u32>) -> Vec<abi::Queue> {
    use std::collections::BTreeMap;
    /// Pool, GPU type, GPUs in all, nodes at once.
    type Alike = (u32, Option<String>, u32, u32);
    // How many, and for how long.
    let mut groups: BTreeMap<Alike, (u32, u64)> = BTreeMap::new();
    let age = |since: Timestamp| u64::try_from(since.duration_until(situation.now).as_secs()).unwrap_or(0);
    if let Some(slurm) = situation.facts.slurm.value() {
        let demand = Demand::of(slurm, situation.now, situation.demand_age);
        for pool in situation.site.pools.values() {
            let gpu_bridge_core::model::PoolKind::Partition { partition } = &pool.kind else { continue };
            let Some(pool) = index(&pool.name) else { continue };
            for (alike, waiting) in demand.waiting.iter().filter(|(alike, _)| alike.partition == *partition) {
                let key = (pool, alike.gpu_type.clone(), alike.gpus, alike.nodes);
                groups.insert(key, (waiting.jobs, waiting.since.map_or(0, age)));
            }
        }
    }
    if let Some(kubernetes) = situation.facts.kubernetes.value() {
        for pod in &kubernetes.pending {
            let pool = situation.site.pools.values().find(|pool| match &pool.kind {
                gpu_bridge_core::model::PoolKind::Partition { .. } => false,
                gpu_bridge_core::model::PoolKind::NodePool { labels, .. } => {
                    pod.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                }
            });
            let Some(pool) = pool.and_then(|pool| index(&pool.name)) else { continue };
            let group = groups.entry((pool, None, pod.gpus, 1)).or_default();
            group.0 += 1;
            group.1 = group.1.max(age(pod.since));
        }
    }
    groups
        .into_iter()
        .map(|((pool, gpu_type, gpus, gang), (count, age))| abi::Queue {
            pool,
            count,
            gpus,
            gang,
            age,
            attrs: gpu_type.map(|gpu_type| ("gpu_type".to_owned(), gpu_type)).into_iter().collect(),
        })
        .collect()
}

fn window(window: &Window, pool: u32, now: Timestamp) -> abi::Window {
    let spec = window.spec();
    let on = window.on_at(now);
    let last = window.last_started(now);
    let next = window.occurrences(now).find(|o| o.start > now);
    let mut attrs = vec![("owner".to_owned(), spec.owner.clone())];
    attrs.extend(spec.ticket.iter().map(|ticket| ("ticket".to_owned(), ticket.to_string())));
    abi::Window {
        name: spec.name.to_string(),
        pool,
        nodes: spec.nodes,
        overlap: match spec.overlap {
            Overlap::Max => 0,
            Overlap::Add => 1,
        },
        on: on.is_some(),
        start: last.map(|o| o.start.as_second()),
        end: last.map(|o| o.end.as_second()),
        next_start: next.map(|o| o.start.as_second()),
        next_end: next.map(|o| o.end.as_second()),
        lead: u32::try_from(spec.lead.as_secs()).unwrap_or(u32::MAX),
        cool_down: u32::try_from(spec.cooldown.as_secs()).unwrap_or(u32::MAX),
        attrs,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_bridge_core::facts::slurm::{Job, JobState, Partition, Slurm};
    use gpu_bridge_core::facts::{NodeSet, Seen};
    use gpu_bridge_core::ids::{JobId, SlurmNodeName};
    use gpu_bridge_core::model::{Escalation, NodeWordRule, Pool, PoolKind};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn job(id: u32, submitted: i64, gpu_type: Option<&str>, waits_for: &str) -> Job {
        Job {
            id: JobId(id),
            state: JobState::Pending,
            user: "alice".into(),
            partition: "gpu".into(),
            nodes: NodeSet::default(),
            required_nodes: NodeSet::default(),
            node_count: 2,
            gpus_per_node: 8,
            time_limit: None,
            start: None,
            end_by: None,
            requeue: true,
            pending_reason: Some(waits_for.into()),
            submitted: Some(at(submitted)),
            gpu_type: gpu_type.map(str::to_owned),
            tasks: Some(10),
            het_leader: None,
        }
    }

    /// One pool over a partition of two nodes.
    fn site() -> Site {
        let train = Pool {
            name: PoolName::from("train"),
            kind: PoolKind::Partition { partition: "gpu".into() },
            floor: 0,
            ceiling: None,
            max_handovers: 1,
            deadline: SignedDuration::from_mins(1),
            escalation: Escalation::Wait,
            protected_priority: None,
            node_word: NodeWordRule::AbsentAllowed { reason: "tests".into() },
        };
        Site { nodes: BTreeMap::new(), pools: [(train.name.clone(), train)].into() }
    }

    #[test]
    fn policies_see_what_waits_for_nodes_for_long_enough() {
        let site = site();
        let nodes: NodeSet = ["gpu1", "gpu2"].map(SlurmNodeName::from).into();
        let jobs = [
            job(1, 100, None, "Resources"),
            job(2, 400, None, "Priority"),
            job(3, 500, Some("h100"), "Resources"),
            job(4, 100, None, "Dependency"),
            job(5, 940, None, "Resources"),
        ];
        let slurm = Slurm {
            partitions: [("gpu".to_owned(), Partition { nodes, max_time: None, up: true })].into(),
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
            ..Slurm::default()
        };
        let facts = Facts {
            slurm: Seen::At { at: at(1_000), value: slurm },
            kubernetes: Seen::Unknown { why: "tests".into() },
            kubernetes_missed: None,
        };
        let seen = |demand_age| {
            let situation = Situation {
                now: at(1_000),
                tick_period_s: 2,
                site: &site,
                book: &Book::default(),
                facts: &facts,
                index: &Index::new(&facts.slurm),
                calendar: &Calendar::default(),
                demand_age,
            };
            snapshot(situation)
                .queues
                .into_iter()
                .map(|queue| {
                    let gpu_type = queue.attrs.first().map_or("any", |(_, value)| value.as_str()).to_owned();
                    (gpu_type, queue.count, queue.gpus, queue.gang, queue.age)
                })
                .collect::<Vec<_>>()
        };
        let h100 = |count| ("h100".to_owned(), count, 16, 2, 500);
        let any = |count| ("any".to_owned(), count, 16, 2, 900);
        assert_eq!(seen(SignedDuration::from_secs(61)), [any(20), h100(10)]);
        assert_eq!(seen(SignedDuration::from_secs(60)), [any(30), h100(10)]);
        assert_eq!(seen(SignedDuration::ZERO), [any(30), h100(10)]);
        assert_eq!(seen(SignedDuration::from_secs(601)), [any(10)]);
    }

    #[test]
    fn a_name_stands_in_a_reason_only_whole() {
        for (text, name, at) in [
            ("window friday", "friday", Some(7)),
            ("window friday-promotion", "friday", None),
            ("window friday-promotion, friday and 2 more", "friday", Some(25)),
            ("window black_friday", "friday", None),
            ("friday2", "friday", None),
            ("\"friday\".", "friday", Some(1)),
            ("fridäy", "frid", None),
            ("", "friday", None),
        ] {
            assert_eq!(named_at(text, name), at, "{text:?}");
        }
    }
}
