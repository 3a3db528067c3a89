//! The safety rule against a world that does not help: a node whose two sides are modelled here, with people who take
//! marks away, jobs that are shrunk off it, kubelets that freeze, looks that fail, effects that are lost or come late,
//! and a daemon that crashes. What is asserted is asserted on the world's own truth, not on what was observed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

use crate::book::{Book, Management};
use crate::event::{Action, Event};
use crate::facts::kubernetes::{
    self, BindingProbe, Effect, Eviction, GateObject, GuardState, Guards, Kubernetes, NodeLook, Ready, Taint,
};
use crate::facts::slurm::{
    self, BaseState, Index, JobState, NodeFlag, Reason, Reservation, RunningJobs, Slurm,
};
use crate::facts::{Facts, Seen};
use crate::fixtures::{at, found, handover, holder, k, kube_node, n, pod, s, site, slurm_node};
use crate::gate::Gate;
use crate::handover::{Event as Step, Purpose, State};
use crate::ids::{Epoch, HandoverId, JobId};
use crate::mark::{DrainReason, TAINT_DRAINING, TAINT_SLURM, reservation_handover};
use crate::model::{Domain, Site};
use crate::safety;
use crate::step::next_event;
use crate::view::{Inputs, View, needs_look, needs_probe};
use crate::want::actions;

/// Between two ticks.
const TICK: SignedDuration = SignedDuration::from_secs(20);

/// A job in Slurm with its process.
#[derive(Debug, Clone)]
struct Job {
    start: Timestamp,
    state: JobState,
    /// Slurm lists it on the node; a shrunk job is not, and its process lives on.
    named: bool,
}

/// A pod in Kubernetes with its process.
#[derive(Debug, Clone)]
struct Pod {
    name: String,
    /// The object exists; a force-deleted pod's process may outlive it on a frozen kubelet.
    listed: bool,
    terminating: bool,
}

/// The truth about one node on both sides.
#[derive(Debug, Clone)]
struct World {
    now: Timestamp,
    drain: Option<Reason>,
    reservations: BTreeMap<String, Reservation>,
    jobs: BTreeMap<JobId, Job>,
    listed: bool,
    gate_version: u64,
    node: kubernetes::Node,
    node_version: u64,
    pods: Vec<Pod>,
    /// Pods that the scheduler decided to bind here, and has not bound yet.
    decided: u32,
    frozen_since: Option<Timestamp>,
    next_id: u32,
    late: Vec<(Action, u64, u64)>,
}

impl World {
    fn new() -> Self {
        let mut node = kube_node(1);
        node.lease_renewed_at = Some(at(0));
        Self {
            now: at(0),
            drain: None,
            reservations: BTreeMap::new(),
            jobs: BTreeMap::new(),
            listed: false,
            gate_version: 0,
            node,
            node_version: 0,
            pods: vec![],
            decided: 0,
            frozen_since: None,
            next_id: 1,
            late: vec![],
        }
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn has_taint(&self, key: &str) -> bool {
        self.node.taints.iter().any(|taint| taint.key == key)
    }

    fn reserved_for_us(&self) -> bool {
        self.reservations.values().any(|r| r.is_active(self.now))
    }

    fn slurm_starts_work(&self) -> bool {
        self.drain.is_none() && !self.reserved_for_us()
    }

    fn kubernetes_starts_work(&self) -> bool {
        !self.listed && !self.has_taint(TAINT_DRAINING) && !self.has_taint(TAINT_SLURM)
    }

    fn slurm_closed(&self) -> bool {
        self.drain.is_some() && self.reserved_for_us()
    }

    fn kubernetes_closed(&self) -> bool {
        self.listed && self.has_taint(TAINT_DRAINING) && self.has_taint(TAINT_SLURM)
    }

    fn pass_time(&mut self) {
        self.now += TICK;
        let now = self.now;
        self.reservations.retain(|_, r| r.end > now);
        match self.frozen_since {
            // The kubelet lives: deleted pods end, NoExecute evicts, then the Lease is renewed.
            None => {
                let evicts = self.has_taint(TAINT_SLURM);
                self.pods.retain(|pod| pod.listed && !pod.terminating && !evicts);
                self.node.lease_renewed_at = Some(now);
                self.node.ready = Ready::True;
            }
            Some(since) if since + TICK * 2 <= now => self.node.ready = Ready::Unknown,
            Some(_) => {}
        }
    }

    fn facts(&self) -> Facts {
        let mut node = slurm_node();
        if self.drain.is_some() {
            node.flags.insert(NodeFlag::Drain);
            node.reason.clone_from(&self.drain);
        }
        let named = |job: &&Job| job.named && job.state != JobState::Finished;
        if self.jobs.values().any(|job| named(&job)) {
            node.state = BaseState::Allocated;
            node.gpus_used = Some(8);
        }
        let job = |(id, job): (&JobId, &Job)| {
            let on: &[u32] = if job.named { &[1] } else { &[2] };
            (*id, crate::fixtures::job(id.0, job.state.clone(), on, job.start))
        };
        let slurm = Slurm {
            nodes: BTreeMap::from([(s(1), node)]),
            jobs: self.jobs.iter().map(job).collect(),
            reservations: self.reservations.clone(),
            partitions: BTreeMap::new(),
            ..Slurm::default()
        };
        let kubernetes = Kubernetes {
            revision: None,
            nodes: BTreeMap::from([(k(1), self.node.clone())]),
            gate: Some(GateObject { closed: if self.listed { [k(1)].into() } else { BTreeSet::new() } }),
            guards: Guards {
                bindings: GuardState::Standing,
                pods: GuardState::Standing,
                marks: GuardState::Standing,
                gate: GuardState::Standing,
            },
            pending: vec![],
        };
        Facts {
            slurm: Seen::At { at: self.now, value: slurm },
            kubernetes: Seen::At { at: self.now, value: kubernetes },
            kubernetes_missed: None,
        }
    }

    fn look(&self) -> Seen<NodeLook> {
        let eviction = |terminating| if terminating { Eviction::Terminating } else { Eviction::Allowed };
        let listed = self.pods.iter().filter(|pod| pod.listed);
        let holders = listed.map(|p| holder(pod(&p.name, eviction(p.terminating)))).collect();
        let value = NodeLook { holders, others: vec![] };
        Seen::At { at: self.now, value }
    }

    /// Carries an effect out. Writes on Kubernetes are guarded by the versions known when they were asked for.
    fn act(&mut self, action: &Action, gate_version: u64, node_version: u64) {
        match action {
            Action::Slurm(slurm::Action::Drain { reason, over, .. }) => {
                let may = match &self.drain {
                    None => true,
                    Some(standing) => {
                        DrainReason::parse(&standing.text).is_some()
                            || over.as_deref() == Some(standing.text.as_str())
                    }
                };
                if may {
                    self.drain = Some(Reason { text: reason.clone(), user: "root".into(), at: None });
                }
            }
            Action::Slurm(slurm::Action::Undrain { reason, .. }) => {
                self.drain.take_if(|standing| standing.text == *reason);
            }
            Action::Slurm(slurm::Action::Reserve(spec)) => {
                let mut start = spec.start.max(self.now);
                if let Some(standing) = self.reservations.get(&spec.name).filter(|r| r.is_active(self.now)) {
                    start = standing.start;
                }
                let busy = self.jobs.values().any(|job| job.named && job.state != JobState::Finished);
                let ignore = match spec.jobs {
                    RunningJobs::Ignore => true,
                    RunningJobs::None => false,
                };
                if spec.end <= self.now || (busy && !ignore) {
                    return;
                }
                let mut flags = BTreeSet::from(["MAINT".to_owned(), "SPEC_NODES".to_owned()]);
                if ignore {
                    flags.insert("IGNORE_JOBS".to_owned());
                }
                let reservation = Reservation {
                    name: spec.name.clone(),
                    nodes: [spec.node.clone()].into(),
                    users: ["root".to_owned()].into(),
                    accounts: BTreeSet::new(),
                    flags,
                    start,
                    end: spec.end,
                };
                self.reservations.insert(spec.name.clone(), reservation);
            }
            Action::Slurm(slurm::Action::Unreserve { name }) => {
                assert!(reservation_handover(name).is_some(), "deletes others' reservation {name}");
                self.reservations.remove(name);
            }
            // This world's Gate is always there.
            Action::Kubernetes(kubernetes::Action::CreateGate { .. }) => {}
            Action::Kubernetes(kubernetes::Action::CloseGate { .. }) => {
                self.listed = true;
                self.gate_version += 1;
            }
            Action::Kubernetes(kubernetes::Action::OpenGate { .. }) => {
                if gate_version == self.gate_version {
                    self.listed = false;
                    self.gate_version += 1;
                }
            }
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                if node_version != self.node_version || marks.uid != self.node.uid {
                    return;
                }
                self.node_version += 1;
                self.node.taints.retain(|t| !marks.taint_keys.contains(&t.key));
                self.node.taints.extend(marks.taints.iter().cloned());
                for (key, value) in &marks.labels {
                    match value {
                        Some(value) => _ = self.node.labels.insert(key.clone(), value.clone()),
                        None => _ = self.node.labels.remove(key),
                    }
                }
                self.node.handover_annotation.clone_from(&marks.annotation);
            }
            Action::Kubernetes(kubernetes::Action::Evict { pod }) => {
                for standing in self.pods.iter_mut().filter(|p| p.name == pod.name) {
                    standing.terminating = true;
                }
            }
        }
    }

    /// Something that is not the daemon's doing.
    #[expect(clippy::too_many_lines, reason = "one list of everything that can happen")]
    fn happen(&mut self, what: Happening, seen: &BTreeSet<JobId>) {
        match what {
            Happening::JobStarts => {
                let free = !self.jobs.values().any(|job| job.named && job.state != JobState::Finished);
                if self.slurm_starts_work() && free {
                    let id = JobId(self.id());
                    self.jobs.insert(id, Job { start: self.now, state: JobState::Running, named: true });
                }
            }
            Happening::JobSuspended => {
                for job in self.jobs.values_mut().filter(|job| job.named) {
                    job.state = match &job.state {
                        JobState::Running => JobState::Suspended,
                        JobState::Suspended => JobState::Running,
                        other => other.clone(),
                    };
                }
            }
            // Only a job that the daemon has seen: what it could not know of is for the node's own word.
            Happening::JobShrunk => {
                for (_, job) in self.jobs.iter_mut().filter(|(id, _)| seen.contains(id)) {
                    job.named = false;
                }
            }
            Happening::JobEnds => {
                if let Some(id) = self.jobs.keys().next().copied() {
                    self.jobs.remove(&id);
                }
            }
            Happening::PodDecided => {
                if self.kubernetes_starts_work() && self.frozen_since.is_none() {
                    self.decided = (self.decided + 1).min(2);
                }
            }
            Happening::PodBound => {
                if self.decided > 0 {
                    self.decided -= 1;
                    if !self.listed {
                        let name = format!("pod-{}", self.id());
                        self.pods.push(Pod { name, listed: true, terminating: false });
                    }
                }
            }
            Happening::PodEnds => {
                if self.frozen_since.is_none() {
                    self.pods.pop();
                }
            }
            Happening::PodForceDeleted => {
                for pod in &mut self.pods {
                    pod.listed = false;
                }
            }
            Happening::KubeletFreezes => _ = self.frozen_since.get_or_insert(self.now),
            Happening::KubeletThaws => self.frozen_since = None,
            // People take one guard away from a side that is whole; two at once is what no daemon can survive.
            Happening::Undrained => {
                if self.slurm_closed() {
                    self.drain = None;
                }
            }
            Happening::DrainedByHand => {
                if self.drain.is_none() || self.slurm_closed() {
                    self.drain = Some(Reason { text: "bad fan".into(), user: "eve".into(), at: None });
                }
            }
            Happening::HandDrainLifted => {
                if self.reserved_for_us() || self.kubernetes_closed() {
                    self.drain.take_if(|drain| drain.user == "eve");
                }
            }
            Happening::Unreserved => {
                if self.slurm_closed() {
                    self.reservations.clear();
                }
            }
            Happening::Unlisted => {
                // A binding that was decided before and never tried would now be tried.
                if self.kubernetes_closed() && self.decided == 0 {
                    self.listed = false;
                    self.gate_version += 1;
                }
            }
            Happening::Untainted => {
                if self.kubernetes_closed() {
                    self.node.taints.retain(|taint| taint.key != TAINT_SLURM);
                    self.node_version += 1;
                }
            }
            Happening::NodeReplaced => {
                if self.listed && self.pods.is_empty() {
                    let id = self.id();
                    self.node.uid = format!("uid-{id}");
                    self.node.labels.clear();
                    self.node.handover_annotation = None;
                    // Kubelets register with the taint.
                    self.node.taints = vec![Taint {
                        key: TAINT_SLURM.into(),
                        value: String::new(),
                        effect: Effect::NoExecute,
                    }];
                    self.node_version += 1;
                }
            }
            Happening::LateEffect => {
                if let Some((action, gate, node)) = self.late.pop() {
                    self.act(&action, gate, node);
                }
            }
        }
    }

    fn gpu_work_of_slurm(&self) -> bool {
        self.jobs.values().any(|job| job.state != JobState::Finished)
    }
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    JobStarts,
    JobSuspended,
    JobShrunk,
    JobEnds,
    PodDecided,
    PodBound,
    PodEnds,
    PodForceDeleted,
    KubeletFreezes,
    KubeletThaws,
    Undrained,
    DrainedByHand,
    HandDrainLifted,
    Unreserved,
    Unlisted,
    Untainted,
    NodeReplaced,
    LateEffect,
}

/// What becomes of the writes of a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Done,
    Lost,
    Late,
    /// The daemon crashes after so many.
    Crash(usize),
}

#[derive(Debug, Clone)]
enum Op {
    Happens(Happening),
    Tick {
        slurm: bool,
        kubernetes: bool,
        look: bool,
        between: Option<Happening>,
        fate: Fate,
    },
    /// A handover to the other side begins, with so many ticks until its deadline.
    Plan {
        ticks: i32,
    },
    Cancel,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => Just(Happening::JobStarts),
        1 => Just(Happening::JobSuspended),
        1 => Just(Happening::JobShrunk),
        4 => Just(Happening::JobEnds),
        4 => Just(Happening::PodDecided),
        6 => Just(Happening::PodBound),
        3 => Just(Happening::PodEnds),
        1 => Just(Happening::PodForceDeleted),
        1 => Just(Happening::KubeletFreezes),
        3 => Just(Happening::KubeletThaws),
        1 => Just(Happening::Undrained),
        1 => Just(Happening::DrainedByHand),
        3 => Just(Happening::HandDrainLifted),
        1 => Just(Happening::Unreserved),
        1 => Just(Happening::Unlisted),
        1 => Just(Happening::Untainted),
        1 => Just(Happening::NodeReplaced),
        2 => Just(Happening::LateEffect),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let fate = prop_oneof![
        12 => Just(Fate::Done),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Late),
        1 => (0..3_usize).prop_map(Fate::Crash),
    ];
    let tick = (
        prop::bool::weighted(0.93),
        prop::bool::weighted(0.93),
        prop::bool::weighted(0.93),
        prop::option::weighted(0.3, happening()),
        fate,
    )
        .prop_map(|(slurm, kubernetes, look, between, fate)| Op::Tick {
            slurm,
            kubernetes,
            look,
            between,
            fate,
        });
    prop_oneof![
        6 => happening().prop_map(Op::Happens),
        12 => tick,
        2 => (20..400_i32).prop_map(|ticks| Op::Plan { ticks }),
        1 => Just(Op::Cancel),
    ]
}

/// The daemon, as far as the core needs one: a ledger, the book that it adds up to, and the loop.
struct Daemon {
    site: Site,
    ledger: Vec<(Timestamp, Event)>,
    book: Book,
}

impl Daemon {
    fn new() -> Self {
        Self { site: site(), ledger: vec![], book: Book::default() }
    }

    fn log(&mut self, at: Timestamp, event: Event) {
        let seq = self.ledger.len() as u64;
        self.book.apply(seq, at, &event).unwrap_or_else(|error| panic!("{event:?}: {error}"));
        self.ledger.push((at, event));
    }

    fn crash(&mut self) {
        let mut book = Book::default();
        for (seq, (at, event)) in self.ledger.iter().enumerate() {
            book.apply(seq as u64, *at, event).unwrap();
        }
        assert_eq!(book, self.book, "replay gives the same book");
        self.book = book;
    }

    fn plan(&mut self, now: Timestamp, to: Domain, purpose: Purpose, ticks: i32) {
        let id = self.book.next_handover();
        let mut handover = handover(id, 1, to, State::Planned);
        handover.purpose = purpose;
        (handover.planned_at, handover.since) = (now, now);
        (handover.reserve_at, handover.start_at) = (now, now + TICK);
        handover.deadline = now + TICK * ticks;
        self.log(now, Event::Planned(Box::new(handover)));
    }

    fn view<R>(
        &self,
        now: Timestamp,
        facts: &Facts,
        look: &Seen<NodeLook>,
        probe: &Seen<BindingProbe>,
        judge: impl FnOnce(&View<'_>) -> R,
    ) -> R {
        let record = self.book.record(&n(1));
        let index = Index::new(&facts.slurm);
        judge(&View::new(Inputs {
            now,
            epoch: Epoch(1),
            site: &self.site,
            node: &self.site.nodes[&n(1)],
            record: &record,
            handover: self.book.handover_of(&n(1)),
            backwards: &self.book.backwards,
            facts,
            index: &index,
            look,
            probe,
        }))
    }
}

struct Run {
    world: World,
    daemon: Daemon,
    /// Handovers that got through, for the test of the test.
    opened: BTreeMap<Domain, u32>,
}

impl Run {
    fn new(owner: Domain) -> Self {
        let mut run = Self { world: World::new(), daemon: Daemon::new(), opened: BTreeMap::new() };
        let now = run.world.now;
        run.daemon.log(now, Event::Started { epoch: Epoch(1), version: "test".into() });
        run.daemon.log(now, Event::Found { node: n(1), found: found(None) });
        run.daemon.plan(now, owner, Purpose::Adoption, 100_000);
        run
    }

    fn seen_jobs(&self) -> BTreeSet<JobId> {
        self.daemon
            .book
            .handover_of(&n(1))
            .map(|handover| handover.jobs_seen.keys().copied().collect())
            .unwrap_or_default()
    }

    fn op(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Happens(what) => {
                let seen = self.seen_jobs();
                self.world.happen(*what, &seen);
            }
            Op::Plan { ticks } => {
                let record = self.daemon.book.record(&n(1));
                if let (Management::Managed { owner }, None) = (record.management, record.handover) {
                    self.daemon.plan(self.world.now, owner.other(), Purpose::Move, *ticks);
                }
            }
            Op::Cancel => {
                let cancelled =
                    self.daemon.book.handover_of(&n(1)).map(|handover| (handover.id, handover.purpose));
                if let Some((id, Purpose::Move)) = cancelled {
                    let event = Event::Handover { id, event: Step::RollBack { why: "cancelled".into() } };
                    if self.daemon.book.accepts(self.world.now, &event).is_ok() {
                        self.daemon.log(self.world.now, event);
                    }
                }
            }
            Op::Tick { slurm, kubernetes, look, between, fate } => {
                self.tick(*slurm, *kubernetes, *look, *between, *fate)?;
            }
        }
        self.rule()
    }

    fn tick(
        &mut self,
        slurm: bool,
        kubernetes: bool,
        look: bool,
        between: Option<Happening>,
        fate: Fate,
    ) -> Result<(), TestCaseError> {
        self.world.pass_time();
        let now = self.world.now;
        let mut facts = self.world.facts();
        if !slurm {
            facts.slurm = Seen::unknown("timeout");
        }
        if !kubernetes {
            facts.kubernetes = Seen::unknown("timeout");
        }
        let record = self.daemon.book.record(&n(1));
        let handover = self.daemon.book.handover_of(&n(1));
        let node_look =
            if look && needs_look(&record, handover) { self.world.look() } else { Seen::unknown("timeout") };
        let probe = if needs_probe(handover) && kubernetes {
            let value = if self.world.listed { BindingProbe::Refused } else { BindingProbe::Passed };
            Seen::At { at: now, value }
        } else {
            Seen::unknown("not asked")
        };
        let lacks = self.daemon.view(now, &facts, &node_look, &probe, |view: &View<'_>| view.lacks_look());
        let node_look = if look && lacks { self.world.look() } else { node_look };
        let mut events = 0;
        while let Some(event) = self.daemon.view(now, &facts, &node_look, &probe, next_event) {
            events += 1;
            prop_assert!(events < 20, "no end of events: {event:?}");
            let handover = self.daemon.book.handover_of(&n(1)).unwrap();
            let (id, to) = (handover.id, handover.to);
            if event == Step::Opened && handover.state != State::RollingBack {
                *self.opened.entry(to).or_default() += 1;
            }
            self.daemon.log(now, Event::Handover { id, event });
        }
        let (writes, violation) = self
            .daemon
            .view(now, &facts, &node_look, &probe, |view| (actions(view), safety::violation(view)));
        prop_assert_eq!(
            violation,
            None,
            "{:?} {:?}",
            self.world,
            self.daemon.ledger.iter().rev().take(12).collect::<Vec<_>>()
        );
        let seen = self.seen_jobs();
        let (gate_version, node_version) = (self.world.gate_version, self.world.node_version);
        if let Some(what) = between {
            self.world.happen(what, &seen);
        }
        let mut versions = (gate_version, node_version);
        for (i, action) in writes.iter().enumerate() {
            match fate {
                Fate::Crash(after) if i >= after => break,
                Fate::Done | Fate::Crash(_) => {}
                Fate::Lost => break,
                Fate::Late => {
                    self.world.late.push((action.clone(), versions.0, versions.1));
                    self.world.late.truncate(4);
                    break;
                }
            }
            self.opening_is_allowed(action)?;
            let before = (self.world.gate_version, self.world.node_version);
            self.world.act(action, versions.0, versions.1);
            // A write's answer carries the new version.
            versions.0 += self.world.gate_version - before.0;
            versions.1 += self.world.node_version - before.1;
        }
        if let Fate::Crash(_) = fate {
            self.daemon.crash();
        }
        Ok(())
    }

    /// What the daemon writes when it opens a gate of a managed node must find the other side really closed and empty.
    /// (Somebody may take one guard away between look and write: the others stand.)
    fn opening_is_allowed(&self, action: &Action) -> Result<(), TestCaseError> {
        if self.adopting() {
            return Ok(());
        }
        let world = &self.world;
        let opens_slurm =
            matches!(action, Action::Slurm(slurm::Action::Undrain { .. } | slurm::Action::Unreserve { .. }));
        let opens_kubernetes = match action {
            Action::Kubernetes(kubernetes::Action::OpenGate { .. }) => true,
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                (world.has_taint(TAINT_SLURM) && !marks.taints.iter().any(|taint| taint.key == TAINT_SLURM))
                    && marks.taint_keys.contains(TAINT_SLURM)
            }
            Action::Kubernetes(
                kubernetes::Action::CreateGate { .. }
                | kubernetes::Action::CloseGate { .. }
                | kubernetes::Action::Evict { .. },
            )
            | Action::Slurm(_) => false,
        };
        if opens_slurm {
            prop_assert!(!world.kubernetes_starts_work() && world.pods.is_empty(), "{action:?} in {world:?}");
        }
        if opens_kubernetes {
            prop_assert!(!world.slurm_starts_work() && !world.gpu_work_of_slurm(), "{action:?} in {world:?}");
        }
        Ok(())
    }

    fn adopting(&self) -> bool {
        match self.daemon.book.record(&n(1)).management {
            Management::Unmanaged | Management::Adopting => true,
            Management::Managed { .. } | Management::Releasing { .. } => false,
        }
    }

    /// The rule itself.
    fn rule(&self) -> Result<(), TestCaseError> {
        if self.adopting() {
            return Ok(());
        }
        let world = &self.world;
        let both = world.slurm_starts_work() && world.kubernetes_starts_work();
        prop_assert!(!both, "both sides start work: {world:?}");
        let double = world.gpu_work_of_slurm() && !world.pods.is_empty();
        prop_assert!(!double, "double allocation: {world:?}");
        Ok(())
    }

    /// Everything works and nobody interferes: where does it settle?
    fn settle(&mut self, ticks: u32) -> Result<(), TestCaseError> {
        self.world.jobs.clear();
        self.world.frozen_since = None;
        self.world.decided = 0;
        for tick in 0..ticks {
            // A hand drain is lifted when the daemon has put back what was missing beside it: with both gone at once the
            // gate would be open, and no daemon can survive that.
            if tick == 10 {
                self.world.happen(Happening::HandDrainLifted, &BTreeSet::new());
            }
            self.op(&Op::Tick {
                slurm: true,
                kubernetes: true,
                look: true,
                between: None,
                fate: Fate::Done,
            })?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(Config { cases: 64, max_shrink_iters: 300, failure_persistence: None, ..Config::default() })]

    /// 64 runs of 100 to 300 steps, some 12,000 altogether, from either owner.
    #[test]
    fn the_rule_holds_in_a_hostile_world(
        of_slurm in any::<bool>(),
        ops in prop::collection::vec(op(), 100..300),
    ) {
        let mut run = Run::new(if of_slurm { Domain::Slurm } else { Domain::Kubernetes });
        for op in &ops {
            run.op(op)?;
        }
        // Left alone, it ends with one owner whose gate is open, and the other's closed.
        run.settle(300)?;
        let record = run.daemon.book.record(&n(1));
        prop_assert_eq!(record.handover, None, "{:?}", run.daemon.book.handover_of(&n(1)));
        if let Some(owner) = record.owner() {
            let facts = run.world.facts();
            let gates = run.daemon.view(
                run.world.now, &facts, &Seen::unknown("not asked"), &Seen::unknown("not asked"),
                |view| (view.gate(owner).clone(), view.gate(owner.other()).clone()),
            );
            prop_assert_eq!(gates, (Gate::Open, Gate::Closed), "owner {}: {:?}", owner, run.world);
        }
    }
}

/// The model is no good if nothing ever gets through in it.
#[test]
fn in_a_kind_world_a_node_goes_both_ways() {
    let mut run = Run::new(Domain::Slurm);
    run.settle(20).unwrap();
    for _ in 0..3 {
        run.op(&Op::Plan { ticks: 1000 }).unwrap();
        run.settle(30).unwrap();
    }
    assert_eq!(run.opened, BTreeMap::from([(Domain::Slurm, 2), (Domain::Kubernetes, 2)]));
    assert_eq!(run.daemon.book.highest_handover, Some(HandoverId(4)));
}
