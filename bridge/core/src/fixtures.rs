//! A small site with both sides' facts, for the tests of this crate: four nodes, of which tests judge `n1`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::backwards::Backwards;
use crate::book::{Management, Placement, Record};
use crate::event::Found;
use crate::facts::kubernetes::{
    self, BindingProbe, Effect, Eviction, GateObject, GuardState, Guards, Holder, Kubernetes, NodeLook, Pod,
    PodRef, Ready, Taint,
};
use crate::facts::slurm::{
    self, BaseState, Index, Job, JobState, NodeFlag, Partition, Reason, Reservation, Slurm,
};
use crate::facts::{Facts, NodeSet, Seen, Told};
use crate::handover::{Handover, Looks, Purpose, Requester, State};
use crate::ids::{Epoch, HandoverId, JobId, KubeNodeName, NodeName, PoolName, SlurmNodeName};
use crate::mark::{self, DrainReason, HandoverAnnotation, TAINT_DRAINING, TAINT_SLURM};
use crate::model::{Domain, Escalation, Node, NodeWordRule, Pool, PoolKind, Site};
use crate::view::{Inputs, View};
use crate::want::SEAL_LENGTH;

/// The handover that closed the side that does not own the node.
pub(crate) const EARLIER: HandoverId = HandoverId(1);
/// The handover under test.
pub(crate) const CURRENT: HandoverId = HandoverId(2);

/// So many minutes after the tests' beginning.
pub(crate) fn at(minutes: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + minutes * 60).unwrap()
}

pub(crate) fn minutes(n: i64) -> SignedDuration {
    SignedDuration::from_mins(n)
}

pub(crate) fn n(number: u32) -> NodeName {
    NodeName::new(format!("n{number}"))
}

pub(crate) fn s(number: u32) -> SlurmNodeName {
    SlurmNodeName::new(format!("n{number}"))
}

pub(crate) fn k(number: u32) -> KubeNodeName {
    KubeNodeName::new(format!("n{number}.k8s"))
}

pub(crate) fn pool_taint() -> Taint {
    Taint { key: "example.org/burst".into(), value: "yes".into(), effect: Effect::NoSchedule }
}

pub(crate) fn taint(key: &str, effect: Effect) -> Taint {
    Taint { key: key.into(), value: String::new(), effect }
}

fn pool(name: &str, kind: PoolKind) -> Pool {
    Pool {
        name: PoolName::from(name),
        kind,
        floor: 0,
        ceiling: None,
        max_handovers: 10,
        deadline: minutes(60),
        escalation: Escalation::RollBack,
        protected_priority: Some(1000),
        node_word: NodeWordRule::AbsentAllowed { reason: "tests".into() },
    }
}

/// Nodes n1 … n4 with 8 GPUs, all at home in the partition `train`; the Kubernetes pools `burst` and `inference`.
pub(crate) fn site() -> Site {
    let labels = |pool: &str| BTreeMap::from([("example.org/pool".to_owned(), pool.to_owned())]);
    let pools = [
        pool("train", PoolKind::Partition { partition: "train".into() }),
        pool("burst", PoolKind::NodePool { labels: labels("burst"), taints: vec![pool_taint()] }),
        pool("inference", PoolKind::NodePool { labels: labels("inference"), taints: vec![] }),
    ];
    let node = |i| Node {
        name: n(i),
        slurm: s(i),
        kubernetes: k(i),
        gpu_model: "a100".into(),
        gpus: 8,
        topology_block: None,
        home: PoolName::from("train"),
    };
    Site {
        nodes: (1..=4).map(|i| (n(i), node(i))).collect(),
        pools: pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect(),
    }
}

pub(crate) fn slurm_node() -> slurm::Node {
    slurm::Node {
        state: BaseState::Idle,
        flags: BTreeSet::new(),
        reason: None,
        gpus: 8,
        gpus_used: Some(0),
        partitions: BTreeSet::from(["train".to_owned()]),
    }
}

pub(crate) fn kube_node(i: u32) -> kubernetes::Node {
    kubernetes::Node {
        uid: format!("uid-{i}"),
        ready: Ready::True,
        allocatable_gpus: 8,
        taints: vec![],
        labels: BTreeMap::new(),
        handover_annotation: None,
        unschedulable: false,
        lease_renewed_at: Some(at(0)),
    }
}

/// Both sides with their marks as on four nodes of Slurm's, as seen at `now`.
pub(crate) fn facts(now: Timestamp) -> Facts {
    let partition = Partition {
        nodes: (1..=4).map(s).collect(),
        max_time: Some(SignedDuration::from_hours(4)),
        up: true,
    };
    let slurm = Slurm {
        nodes: (1..=4).map(|i| (s(i), slurm_node())).collect(),
        jobs: Told::default(),
        reservations: BTreeMap::new(),
        partitions: BTreeMap::from([("train".to_owned(), partition)]),
        ..Slurm::default()
    };
    let mut kubernetes = Kubernetes {
        revision: Some(1_000),
        nodes: (1..=4).map(|i| (k(i), kube_node(i))).collect(),
        gate: Some(GateObject::default()),
        guards: Guards {
            bindings: GuardState::Standing,
            pods: GuardState::Standing,
            marks: GuardState::Standing,
            gate: GuardState::Standing,
        },
        pending: vec![],
    };
    for i in 1..=4 {
        close_kubernetes(&mut kubernetes, i, EARLIER);
    }
    Facts {
        slurm: Seen::At { at: now, value: slurm },
        kubernetes: Seen::At { at: now, value: kubernetes },
        kubernetes_missed: None,
    }
}

pub(crate) fn close_kubernetes(kubernetes: &mut Kubernetes, i: u32, by: HandoverId) {
    kubernetes.gate.get_or_insert_default().closed.insert(k(i));
    let node = kubernetes.nodes.get_mut(&k(i)).unwrap();
    node.taints = vec![taint(TAINT_DRAINING, Effect::NoSchedule), taint(TAINT_SLURM, Effect::NoExecute)];
    node.labels = BTreeMap::from([(mark::LABEL_OWNER.to_owned(), "slurm".to_owned())]);
    let annotation = HandoverAnnotation { handover: by, epoch: Epoch(1), step: "closed".into() };
    node.handover_annotation = Some(annotation.to_string());
}

pub(crate) fn open_kubernetes(kubernetes: &mut Kubernetes, i: u32, by: HandoverId) {
    kubernetes.gate.get_or_insert_default().closed.swap_remove(&k(i));
    let node = kubernetes.nodes.get_mut(&k(i)).unwrap();
    node.taints = vec![pool_taint()];
    node.labels = BTreeMap::from([
        (mark::LABEL_OWNER.to_owned(), "kubernetes".to_owned()),
        ("example.org/pool".to_owned(), "burst".to_owned()),
    ]);
    let annotation = HandoverAnnotation { handover: by, epoch: Epoch(1), step: "open".into() };
    node.handover_annotation = Some(annotation.to_string());
}

/// A reservation in our shape, without IGNORE_JOBS, from an hour ago for as long as a sealed one lasts.
pub(crate) fn reservation_of_ours(by: HandoverId, i: u32, now: Timestamp) -> Reservation {
    Reservation {
        name: mark::reservation_name(by),
        nodes: NodeSet::from([s(i)]),
        users: BTreeSet::from(["root".to_owned()]),
        accounts: BTreeSet::new(),
        flags: BTreeSet::from(["MAINT".to_owned(), "SPEC_NODES".to_owned()]),
        start: now - minutes(60),
        end: now + SEAL_LENGTH,
    }
}

pub(crate) fn their_reservation(name: &str, i: u32, start: Timestamp, end: Timestamp) -> Reservation {
    Reservation { name: name.into(), start, end, ..reservation_of_ours(EARLIER, i, start) }
}

#[expect(clippy::unnecessary_wraps, reason = "as the field that it is for")]
pub(crate) fn reason(text: impl Into<String>) -> Option<Reason> {
    Some(Reason { text: text.into(), user: "root".into(), at: None })
}

pub(crate) fn close_slurm(slurm: &mut Slurm, i: u32, by: HandoverId, now: Timestamp) {
    let node = slurm.nodes.get_mut(&s(i)).unwrap();
    node.flags = BTreeSet::from([NodeFlag::Drain, NodeFlag::Reserved, NodeFlag::Maintenance]);
    node.reason = reason(DrainReason { handover: by, epoch: Epoch(1), why: "test".into() }.to_string());
    let reservation = reservation_of_ours(by, i, now);
    slurm.reservations.insert(reservation.name.clone(), reservation);
}

pub(crate) fn job(id: u32, state: JobState, on: &[u32], now: Timestamp) -> Job {
    Job {
        id: JobId(id),
        state,
        user: "alice".into(),
        partition: "train".into(),
        nodes: on.iter().map(|i| s(*i)).collect(),
        required_nodes: NodeSet::default(),
        node_count: 1,
        gpus_per_node: 8,
        time_limit: Some(minutes(60)),
        start: Some(now),
        end_by: Some(now + minutes(60)),
        requeue: true,
        pending_reason: None,
        submitted: None,
        gpu_type: None,
        tasks: Some(1),
        het_leader: None,
    }
}

pub(crate) fn pod(name: &str, eviction: Eviction) -> Pod {
    let pod = PodRef { namespace: "apps".into(), name: name.into(), uid: format!("uid-of-{name}") };
    let told_to_end = eviction == Eviction::Terminating;
    Pod { pod, priority: 0, eviction, gpus: 1, grace_s: 30, told_to_end }
}

pub(crate) fn holder(pod: Pod) -> Holder {
    Holder::Pod { pod, why: "container \"main\" asks for nvidia.com/gpu: 1".into() }
}

pub(crate) fn handover(id: HandoverId, node: u32, to: Domain, state: State) -> Handover {
    Handover {
        id,
        node: n(node),
        to,
        purpose: Purpose::Move,
        pool: PoolName::from(match to {
            Domain::Slurm => "train",
            Domain::Kubernetes => "burst",
        }),
        why: "test".into(),
        requester: Requester::Policy { policy: "prewarm".into() },
        ticket: None,
        epoch: Epoch(1),
        planned_at: at(0),
        reserve_at: at(0),
        start_at: at(0),
        deadline: at(600),
        due_back: None,
        state,
        since: at(0),
        jobs_seen: BTreeMap::new(),
        lease_at_last_holder: None,
        pods_seen: BTreeMap::new(),
        looks: Looks::default(),
        late_since: None,
        node_uid: None,
        rollback: None,
    }
}

pub(crate) fn managed(owner: Domain, pool: &str) -> Record {
    let closed = |domain: Domain| (owner != domain).then_some(EARLIER);
    Record {
        management: Management::Managed { owner },
        slurm_closed_by: closed(Domain::Slurm),
        kubernetes_closed_by: closed(Domain::Kubernetes),
        placement: Some(Placement {
            pool: PoolName::from(pool),
            by: Requester::Policy { policy: "prewarm".into() },
            since: at(0),
        }),
        ..Record::default()
    }
}

pub(crate) fn found(slurm_drain: Option<&str>) -> Found {
    Found {
        slurm_drain: slurm_drain.map(str::to_owned),
        taints: vec![pool_taint()],
        labels: BTreeMap::from([("example.org/pool".to_owned(), "inference".to_owned())]),
        annotation: None,
        listed: false,
    }
}

/// Everything that a view of `n1` is made of, to be altered by a test and then judged.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) now: Timestamp,
    pub(crate) site: Site,
    pub(crate) record: Record,
    pub(crate) handover: Option<Handover>,
    pub(crate) backwards: Backwards,
    pub(crate) facts: Facts,
    pub(crate) look: Seen<NodeLook>,
    pub(crate) probe: Seen<BindingProbe>,
}

impl Case {
    /// Slurm's node in no handover, as it should look, at minute 10.
    pub(crate) fn of_slurm() -> Self {
        let now = at(10);
        let mut case = Self {
            now,
            site: site(),
            record: managed(Domain::Slurm, "train"),
            handover: None,
            backwards: Backwards::default(),
            facts: facts(now),
            look: Seen::At { at: now, value: NodeLook::default() },
            probe: Seen::unknown("not asked"),
        };
        case.kube_node().lease_renewed_at = Some(now);
        case
    }

    /// Kubernetes' node in no handover, as it should look, at minute 10.
    pub(crate) fn of_kubernetes() -> Self {
        let mut case = Self { record: managed(Domain::Kubernetes, "burst"), ..Self::of_slurm() };
        let now = case.now;
        close_slurm(case.slurm(), 1, EARLIER, now);
        open_kubernetes(case.kubernetes(), 1, EARLIER);
        case
    }

    /// On its way to Kubernetes: Slurm closed and empty by the handover, seen twice; Kubernetes still closed.
    pub(crate) fn to_kubernetes(state: State) -> Self {
        let mut case = Self::of_slurm();
        let now = case.now;
        close_slurm(case.slurm(), 1, CURRENT, now);
        close_kubernetes(case.kubernetes(), 1, CURRENT);
        case.record.slurm_closed_by = Some(CURRENT);
        case.go(Domain::Kubernetes, state);
        case
    }

    /// On its way to Slurm: Kubernetes closed and empty by the handover, seen twice; Slurm still closed.
    pub(crate) fn to_slurm(state: State) -> Self {
        let mut case = Self::of_kubernetes();
        close_kubernetes(case.kubernetes(), 1, CURRENT);
        case.record.kubernetes_closed_by = Some(CURRENT);
        case.go(Domain::Slurm, state);
        case
    }

    fn go(&mut self, to: Domain, state: State) {
        self.record.handover = Some(CURRENT);
        let mut handover = handover(CURRENT, 1, to, state);
        handover.looks = Looks { count: 2, last: Some(at(9)) };
        handover.lease_at_last_holder = (to == Domain::Slurm).then(|| at(8));
        handover.node_uid = (to == Domain::Slurm).then(|| "uid-1".to_owned());
        self.handover = Some(handover);
    }

    pub(crate) fn slurm(&mut self) -> &mut Slurm {
        seen(&mut self.facts.slurm)
    }

    pub(crate) fn slurm_node(&mut self) -> &mut slurm::Node {
        self.slurm().nodes.get_mut(&s(1)).unwrap()
    }

    pub(crate) fn reservation(&mut self, of: HandoverId) -> &mut Reservation {
        self.slurm().reservations.get_mut(&mark::reservation_name(of)).unwrap()
    }

    pub(crate) fn add_job(&mut self, job: Job) {
        self.slurm().jobs.insert(job.id, job);
    }

    pub(crate) fn add_reservation(&mut self, reservation: Reservation) {
        self.slurm().reservations.insert(reservation.name.clone(), reservation);
    }

    pub(crate) fn kubernetes(&mut self) -> &mut Kubernetes {
        seen(&mut self.facts.kubernetes)
    }

    pub(crate) fn kube_node(&mut self) -> &mut kubernetes::Node {
        self.kubernetes().nodes.get_mut(&k(1)).unwrap()
    }

    pub(crate) fn untaint(&mut self, key: &str) {
        self.kube_node().taints.retain(|taint| taint.key != key);
    }

    pub(crate) fn node_look(&mut self) -> &mut NodeLook {
        seen(&mut self.look)
    }

    pub(crate) fn current(&mut self) -> &mut Handover {
        self.handover.as_mut().unwrap()
    }

    pub(crate) fn pool(&mut self, name: &str) -> &mut Pool {
        self.site.pools.get_mut(&PoolName::from(name)).unwrap()
    }

    /// Looks again, `minutes` later, at the same things; kubelets renewed their Leases.
    pub(crate) fn later(&mut self, by_minutes: i64) {
        let now = self.now + minutes(by_minutes);
        self.now = now;
        if let Seen::At { at, .. } = &mut self.look {
            *at = now;
        }
        if let Seen::At { at, .. } = &mut self.facts.slurm {
            *at = now;
        }
        if let Seen::At { at, value } = &mut self.facts.kubernetes {
            *at = now;
            for node in value.nodes.values_mut() {
                node.lease_renewed_at = Some(now);
            }
        }
    }

    /// Judges `n1`.
    pub(crate) fn judge<R>(&self, judge: impl FnOnce(&View<'_>) -> R) -> R {
        let index = Index::new(&self.facts.slurm);
        judge(&View::new(Inputs {
            now: self.now,
            epoch: Epoch(1),
            site: &self.site,
            node: &self.site.nodes[&n(1)],
            record: &self.record,
            handover: self.handover.as_ref(),
            backwards: &self.backwards,
            facts: &self.facts,
            index: &index,
            look: &self.look,
            probe: &self.probe,
        }))
    }
}

fn seen<T>(seen: &mut Seen<T>) -> &mut T {
    match seen {
        Seen::At { value, .. } => value,
        Seen::Unknown { why } => panic!("not seen: {why}"),
    }
}
