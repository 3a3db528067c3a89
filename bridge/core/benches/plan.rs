//! How long one decision takes on 10,000 nodes, 100,000 jobs and 100,000 pods: views, events and writes for every managed
//! node, and a plan. Half of the nodes are Slurm's, busy with twenty jobs each; half are Kubernetes', each with our
//! reservation. Every twentieth is being evicted and so has a LIST of its hundred pods, eight of which hold its GPUs; the
//! other pods wait for room. (Of pods on nodes that stay where they are the daemon has no facts.)

#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "not part of the product")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpu_bridge_core::book::{Book, Management, Placement, Record};
use gpu_bridge_core::facts::kubernetes::{
    self, BindingProbe, Effect, Eviction, GateObject, GuardState, Guards, Holder, Kubernetes, NodeLook,
    PendingPod, Pod, PodRef, Ready, Taint,
};
use gpu_bridge_core::facts::slurm::{
    self, BaseState, Index, Job, JobState, NodeFlag, Partition, Reason, Reservation, Slurm,
};
use gpu_bridge_core::facts::{Facts, NodeSet, Seen};
use gpu_bridge_core::handover::{Handover, Looks, Purpose, Requester, State};
use gpu_bridge_core::ids::{Epoch, HandoverId, JobId, KubeNodeName, NodeName, PoolName, SlurmNodeName};
use gpu_bridge_core::mark::{self, DrainReason, HandoverAnnotation, TAINT_DRAINING, TAINT_SLURM};
use gpu_bridge_core::model::{Domain, Escalation, Node, NodeWordRule, Pool, PoolKind, Site};
use gpu_bridge_core::planner::{self, Heard, Situation, Want};
use gpu_bridge_core::safety;
use gpu_bridge_core::step::next_event;
use gpu_bridge_core::view::{Inputs, View};
use gpu_bridge_core::want::{EVICTIONS_AT_ONCE, SEAL_LENGTH, actions};
use jiff::{SignedDuration, Timestamp};

const NODES: u32 = 10_000;
const JOBS_A_NODE: u32 = 20;
const GPUS: u32 = 8;
const PODS_A_NODE: u32 = 100;
const PODS: u32 = 100_000;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn name(i: u32) -> String {
    format!("gpu{i:05}")
}

fn of_slurm(i: u32) -> bool {
    i.is_multiple_of(2)
}

fn in_handover(i: u32) -> bool {
    i % 20 == 1
}

fn pool(name: &str, kind: PoolKind) -> Pool {
    Pool {
        name: PoolName::from(name),
        kind,
        floor: 100,
        ceiling: None,
        max_handovers: 1000,
        deadline: SignedDuration::from_hours(4),
        escalation: Escalation::RollBack,
        protected_priority: None,
        node_word: NodeWordRule::AbsentAllowed { reason: "bench".into() },
    }
}

fn site() -> Site {
    let labels = BTreeMap::from([("example.org/pool".to_owned(), "burst".to_owned())]);
    let pools = [
        pool("train", PoolKind::Partition { partition: "train".into() }),
        pool("burst", PoolKind::NodePool { labels, taints: vec![] }),
    ];
    let node = |i| Node {
        name: NodeName::new(name(i)),
        slurm: SlurmNodeName::new(name(i)),
        kubernetes: KubeNodeName::new(name(i)),
        gpu_model: "h100".into(),
        gpus: GPUS,
        topology_block: Some(format!("b{}", i / 32)),
        home: PoolName::from("train"),
    };
    Site {
        nodes: (0..NODES).map(node).map(|node| (node.name.clone(), node)).collect(),
        pools: pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect(),
    }
}

fn slurm() -> Slurm {
    let mut slurm = Slurm::default();
    let node_name = |i| SlurmNodeName::new(name(i));
    for i in 0..NODES {
        let mut node = slurm::Node {
            state: if of_slurm(i) { BaseState::Mixed } else { BaseState::Idle },
            flags: BTreeSet::new(),
            reason: None,
            gpus: GPUS,
            gpus_used: Some(if of_slurm(i) { GPUS } else { 0 }),
            partitions: BTreeSet::from(["train".to_owned()]),
        };
        if of_slurm(i) {
            for j in 0..JOBS_A_NODE {
                let id = JobId(i * JOBS_A_NODE + j);
                let end_by = now() + SignedDuration::from_mins(i64::from(1 + j + i % 600));
                let job = Job {
                    id,
                    state: JobState::Running,
                    user: format!("user{}", j % 7),
                    partition: "train".into(),
                    nodes: NodeSet::from([node_name(i)]),
                    required_nodes: NodeSet::default(),
                    node_count: 1,
                    gpus_per_node: 1,
                    time_limit: Some(SignedDuration::from_hours(10)),
                    start: Some(now()),
                    end_by: Some(end_by),
                    requeue: true,
                    pending_reason: None,
                    submitted: None,
                    gpu_type: None,
                    tasks: Some(1),
                    het_leader: None,
                };
                slurm.jobs.insert(id, job);
            }
        } else {
            let id = HandoverId(u64::from(i));
            node.flags.insert(NodeFlag::Drain);
            let reason = DrainReason { handover: id, epoch: Epoch(1), why: "bench".into() };
            node.reason = Some(Reason { text: reason.to_string(), user: "root".into(), at: None });
            let reservation = Reservation {
                name: mark::reservation_name(id),
                nodes: NodeSet::from([node_name(i)]),
                users: BTreeSet::from(["root".to_owned()]),
                accounts: BTreeSet::new(),
                flags: BTreeSet::from(["MAINT".to_owned()]),
                start: now() - SignedDuration::from_hours(1),
                end: now() + SEAL_LENGTH,
            };
            slurm.reservations.insert(reservation.name.clone(), reservation);
        }
        slurm.nodes.insert(node_name(i), node);
    }
    let nodes = (0..NODES).map(node_name).collect();
    let partition = Partition { nodes, max_time: Some(SignedDuration::from_hours(24)), up: true };
    slurm.partitions.insert("train".into(), partition);
    slurm
}

fn kubernetes() -> Kubernetes {
    let taint = |key: &str, effect| Taint { key: key.into(), value: String::new(), effect };
    let draining = || taint(TAINT_DRAINING, Effect::NoSchedule);
    let node = |i| {
        let (taints, owner, step) = if of_slurm(i) {
            (vec![draining(), taint(TAINT_SLURM, Effect::NoExecute)], "slurm", "closed")
        } else if in_handover(i) {
            (vec![draining()], "kubernetes", "closing")
        } else {
            (vec![], "kubernetes", "open")
        };
        let id = if in_handover(i) { handover(i).id } else { HandoverId(u64::from(i)) };
        let mut labels = BTreeMap::from([(mark::LABEL_OWNER.to_owned(), owner.to_owned())]);
        if !of_slurm(i) {
            labels.insert("example.org/pool".into(), "burst".into());
        }
        let annotation = HandoverAnnotation { handover: id, epoch: Epoch(1), step: step.into() };
        kubernetes::Node {
            uid: name(i),
            ready: Ready::True,
            allocatable_gpus: GPUS,
            taints,
            labels,
            handover_annotation: Some(annotation.to_string()),
            unschedulable: false,
            lease_renewed_at: Some(now()),
        }
    };
    let pending = |i| PendingPod {
        pod: pod_ref(&format!("waiting-{i}")),
        gpus: 1,
        node_selector: BTreeMap::from([("example.org/pool".to_owned(), "burst".to_owned())]),
        since: now(),
    };
    let looked_at = (0..NODES).filter(|i| in_handover(*i)).count();
    let pods_looked_at = PODS_A_NODE * u32::try_from(looked_at).unwrap();
    Kubernetes {
        revision: None,
        nodes: (0..NODES).map(|i| (KubeNodeName::new(name(i)), node(i))).collect(),
        gate: Some(GateObject {
            closed: (0..NODES)
                .filter(|i| of_slurm(*i) || in_handover(*i))
                .map(|i| KubeNodeName::new(name(i)))
                .collect(),
        }),
        guards: Guards {
            bindings: GuardState::Standing,
            pods: GuardState::Standing,
            marks: GuardState::Standing,
            gate: GuardState::Standing,
        },
        pending: (pods_looked_at..PODS).map(pending).collect(),
    }
}

fn pod_ref(name: &str) -> PodRef {
    PodRef { namespace: "apps".into(), name: name.to_owned(), uid: format!("{name}-uid") }
}

/// A LIST of every node in a handover.
fn looks() -> NodeLooks {
    let pod = |node: u32, i: u32, gpus: u32| Pod {
        pod: pod_ref(&format!("serve-{node}-{i}")),
        priority: i32::try_from(i % 3).unwrap(),
        eviction: Eviction::Allowed,
        gpus,
        grace_s: 30,
        told_to_end: false,
    };
    let holder = |node: u32, i: u32| Holder::Pod {
        pod: pod(node, i, 1),
        why: "container \"main\" asks for nvidia.com/gpu: 1".into(),
    };
    let look = |node: u32| {
        let value = NodeLook {
            holders: (0..GPUS).map(|i| holder(node, i)).collect(),
            others: (GPUS..PODS_A_NODE).map(|i| pod(node, i, 0)).collect(),
            ..NodeLook::default()
        };
        (NodeName::new(name(node)), Seen::At { at: now(), value })
    };
    (0..NODES).filter(|i| in_handover(*i)).map(look).collect()
}

fn handover(i: u32) -> Handover {
    Handover {
        id: HandoverId(u64::from(NODES + i)),
        node: NodeName::new(name(i)),
        to: Domain::Slurm,
        purpose: Purpose::Move,
        pool: PoolName::from("train"),
        why: "bench".into(),
        requester: Requester::Policy { policy: "bench".into() },
        ticket: None,
        epoch: Epoch(1),
        planned_at: now(),
        reserve_at: now(),
        start_at: now(),
        deadline: now() + SignedDuration::from_hours(1),
        late_since: None,
        due_back: None,
        state: State::Evicting,
        since: now(),
        jobs_seen: BTreeMap::new(),
        lease_at_last_holder: None,
        pods_seen: BTreeMap::new(),
        looks: Looks::default(),
        node_uid: Some(name(i)),
        rollback: None,
    }
}

fn book() -> Book {
    let mut book = Book::default();
    for i in 0..NODES {
        let id = HandoverId(u64::from(i));
        let owner = if of_slurm(i) { Domain::Slurm } else { Domain::Kubernetes };
        let mut record = Record {
            management: Management::Managed { owner },
            slurm_closed_by: (!of_slurm(i)).then_some(id),
            kubernetes_closed_by: of_slurm(i).then_some(id),
            placement: Some(Placement {
                pool: PoolName::from(if of_slurm(i) { "train" } else { "burst" }),
                by: Requester::Policy { policy: "bench".into() },
                since: now(),
            }),
            ..Record::default()
        };
        if in_handover(i) {
            let handover = handover(i);
            record.handover = Some(handover.id);
            record.kubernetes_closed_by = Some(handover.id);
            book.handovers.insert(handover.id, handover);
        }
        book.nodes.insert(NodeName::new(name(i)), record);
    }
    book
}

fn want(count: u32, from_hours: i64) -> Want {
    Want {
        policy: "bench".into(),
        pool: PoolName::from("burst"),
        count,
        from: now() + SignedDuration::from_hours(from_hours),
        until: now() + SignedDuration::from_hours(from_hours + 8),
        priority: gpu_bridge_core::planner::Priority::default(),
        why: "window".into(),
        ticket: None,
    }
}

type NodeLooks = BTreeMap<NodeName, Seen<NodeLook>>;

fn tick(site: &Site, book: &Book, facts: &Facts, looks: &NodeLooks, wants: &[Want]) -> usize {
    let none = Seen::unknown("not looked at in this tick");
    let probe: Seen<BindingProbe> = Seen::unknown("not asked in this tick");
    let index = Index::new(&facts.slurm);
    let mut found = 0;
    for node in site.nodes.values() {
        let Some(record) = book.nodes.get(&node.name) else { continue };
        let view = View::new(Inputs {
            now: now(),
            epoch: Epoch(1),
            site,
            node,
            record,
            handover: record.handover.and_then(|id| book.handovers.get(&id)),
            backwards: &book.backwards,
            facts,
            index: &index,
            look: looks.get(&node.name).unwrap_or(&none),
            probe: &probe,
        });
        found += usize::from(next_event(&view).is_some());
        found += actions(&view).len();
        found += usize::from(safety::violation(&view).is_some()) + safety::alarms(&view).len();
    }
    let plan =
        planner::plan(Situation { now: now(), site, book, facts, index: &index }, wants, &None, Heard::All);
    found + plan.moves.len()
}

fn plan(criterion: &mut Criterion) {
    let (site, book, looks) = (site(), book(), looks());
    let facts = Facts {
        slurm: Seen::At { at: now(), value: slurm() },
        kubernetes: Seen::At { at: now(), value: kubernetes() },
        kubernetes_missed: None,
    };
    let wants = [want(5500, 0), want(6000, 12), want(5200, 36), want(5800, 60)];
    let index = Index::new(&facts.slurm);
    let situation = Situation { now: now(), site: &site, book: &book, facts: &facts, index: &index };
    let moves = planner::plan(situation, &wants, &None, Heard::All).moves.len();
    assert!(moves > 500, "{moves} moves: the bench plans next to nothing");
    let evictions = tick(&site, &book, &facts, &looks, &wants) - moves;
    assert_eq!(
        evictions,
        looks.len() * (EVICTIONS_AT_ONCE + 1),
        "steady nodes need no write, each look some evictions and the note of its pods"
    );
    criterion.bench_function("decide and plan for 10,000 nodes (goal 50 ms)", |bencher| {
        bencher.iter(|| black_box(tick(&site, &book, black_box(&facts), &looks, &wants)));
    });
    criterion.bench_function("of which index", |bencher| {
        bencher.iter(|| Index::new(black_box(&facts.slurm)).jobs_on(&SlurmNodeName::new("gpu00002")).len());
    });
    criterion.bench_function("of which plan", |bencher| {
        bencher.iter(|| black_box(planner::plan(situation, &wants, &None, Heard::All).moves.len()));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = plan
}
criterion_main!(benches);
