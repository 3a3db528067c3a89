//! The world: both model schedulers on one clock, what goes wrong between them and the daemon, and the truth about every
//! node. What each change of it means is judged in [`judge`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpu_bridge::daemon::clock::{Clock as _, ManualClock};
use gpu_bridge::ledger::SimDisk;
use gpu_bridge_core::book::Management;
use gpu_bridge_core::event::Action;
use gpu_bridge_core::handover::{Handover, Purpose};
use gpu_bridge_core::ids::{HandoverId, NodeName};
use gpu_bridge_core::mark::{
    ANNOTATION_HANDOVER, DrainReason, GATE_NAME, HandoverAnnotation, STEP_QUARANTINE, TAINT_DRAINING,
    TAINT_RELEASED, TAINT_SLURM, reservation_handover,
};
use gpu_bridge_core::model::Domain;
use jiff::{SignedDuration, Timestamp};
use kube_mock::{Id, Machine, Resource};
use serde_json::Value;

use super::dice::Dice;
use super::mirror::Mirror;
use super::people::People;

mod judge;

/// Seconds in which nobody looks: nothing that matters begins and ends within.
const STEP_S: i64 = 5;
/// Pods at or above it are never evicted.
pub(super) const PROTECTED_PRIORITY: i64 = 1_000_000;
/// Lines of a story that are kept.
const STORY_MAX: usize = 100_000;

/// What was done and endured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ticks of the daemon.
    pub ticks: u64,
    /// Handovers that ended open.
    pub opened: u64,
    /// Handovers that rolled back.
    pub rolled_back: u64,
    /// Calls lost, late or not answered.
    pub faults: u64,
    /// Crashes of the daemon.
    pub crashes: u64,
    /// What people and machines did.
    pub happenings: u64,
    /// Guards of ours that others took away.
    pub guards_lost: u64,
    /// Closed gates that others broke open whole.
    pub broken_open: u64,
    /// Jobs and pods that ran on GPUs.
    pub work: u64,
}

/// How much goes wrong, in a thousand calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) lost_before: u32,
    pub(super) lost_after: u32,
    pub(super) late: u32,
    pub(super) slow: u32,
    pub(super) stale: u32,
    pub(super) dies_after_write: u32,
    /// Happenings in a thousand seconds.
    pub(super) happenings: u32,
}

/// Whether something of one side may start on a node, and who keeps it from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlurmSide {
    /// The reason of the DRAIN that stands.
    pub(super) drain: Option<String>,
    /// Our reservation is in force.
    pub(super) reserved: bool,
}

impl SlurmSide {
    pub(super) fn drained_by_us(&self) -> bool {
        self.drain.as_deref().is_some_and(|text| DrainReason::parse(text).is_some())
    }

    pub(super) fn is_open(&self) -> bool {
        self.drain.is_none() && !self.reserved
    }

    pub(super) fn is_whole(&self) -> bool {
        self.drained_by_us() && self.reserved
    }
}

/// The same of Kubernetes.
#[expect(clippy::struct_excessive_bools, reason = "each is a mark that stands or does not")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KubeSide {
    pub(super) there: bool,
    pub(super) listed: bool,
    pub(super) draining: bool,
    pub(super) sealed: bool,
    pub(super) cordoned: bool,
    /// Taints and labels that are not ours.
    foreign: BTreeSet<String>,
}

impl KubeSide {
    pub(super) fn is_open(&self) -> bool {
        self.there && !self.listed && !self.draining && !self.sealed
    }

    pub(super) fn is_whole(&self) -> bool {
        self.listed && self.draining && self.sealed
    }
}

/// Which sides were open when a node's adoption began, or were opened by others since: what it may put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundOpen {
    /// By which adoption.
    by: (HandoverId, Timestamp),
    slurm: bool,
    kubernetes: bool,
}

impl FoundOpen {
    pub(super) fn both(self) -> bool {
        self.slurm && self.kubernetes
    }
}

/// Who changes the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Daemon,
    Others,
}

/// A write of ours that is still on its way.
pub(super) enum Late {
    Kubernetes(kube_mock::Request),
    SlurmNode(slurm_mock::model::NodeName, slurm_mock::model::NodeUpdate),
    Scontrol(Vec<String>),
}

/// What a script lets happen.
pub(super) type Happens = Box<dyn FnOnce(&mut World) + Send>;

/// A look of the daemon's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// At all of Slurm.
    Slurm,
    /// At all of Kubernetes.
    Kubernetes,
    /// At what Kubernetes has on one node.
    Node,
}

pub(super) struct World {
    pub(super) clock: ManualClock,
    pub(super) start: Timestamp,
    pub(super) dice: Dice,
    pub(super) slurm: slurm_mock::Cluster,
    pub(super) kube: kube_mock::Cluster,
    pub(super) disk: SimDisk,
    pub(super) mirror: Mirror,
    pub(super) rates: Rates,
    pub(super) people: People,
    pub(super) nodes: Vec<String>,
    /// What a script lets happen in order, each right after the next look of its kind.
    pub(super) after_looks: VecDeque<(Look, Happens)>,
    /// Nodes that a script lets every write fail on, by side.
    pub(super) unwritable: BTreeSet<(Domain, String)>,
    /// Faults are over.
    pub(super) calm: bool,
    pub(super) slurm_away_until: Timestamp,
    pub(super) kube_away_until: Timestamp,
    /// The ledger's disk is full or read-only until then.
    pub(super) disk_bad_until: Option<Timestamp>,
    pub(super) late: Vec<(Timestamp, Late)>,
    /// Nodes whose closed gate others broke open, with how: what follows there is not the daemon's doing.
    pub(super) excused: BTreeMap<String, String>,
    /// Of each node, how its last adoption found it.
    pub(super) found_open: BTreeMap<String, FoundOpen>,
    /// Nodes that run work of both while they are not ours: released with both sides open, say.
    pub(super) both_before_us: BTreeSet<String>,
    pub(super) counts: Counts,
    pub(super) faults_in_tick: u32,
    pub(super) story: Vec<String>,
    pub(super) failure: Option<String>,
}

impl World {
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Does a script let this write fail?
    pub(super) fn is_unwritable(&mut self, domain: Domain, node: &str) -> bool {
        let fails = self.unwritable.contains(&(domain, node.to_owned()));
        self.faults_in_tick += u32::from(fails);
        fails
    }

    pub(super) fn tell(&mut self, text: impl AsRef<str>) {
        if self.story.len() < STORY_MAX {
            let at = self.now().duration_since(self.start).as_secs();
            self.story.push(format!("+{at:>6}s {}", text.as_ref()));
        }
    }

    pub(super) fn fail(&mut self, why: impl AsRef<str>) {
        self.tell(format!("FAILED: {}", why.as_ref()));
        self.failure.get_or_insert_with(|| why.as_ref().to_owned());
    }

    pub(super) fn fault(&mut self, what: &str) {
        self.counts.faults += 1;
        self.faults_in_tick += 1;
        self.tell(format!("  fault: {what}"));
    }

    /// One in a thousand chances of `rate`, never once all is calm.
    pub(super) fn strikes(&mut self, rate: u32) -> bool {
        !self.calm && self.dice.permille(rate)
    }

    /// Reads the ledger on.
    pub(super) fn sync(&mut self) {
        let disk = self.disk.clone();
        if let Err(why) = self.mirror.sync(&disk) {
            self.fail(why);
        }
        for news in std::mem::take(&mut self.mirror.news) {
            self.tell(format!("  {news}"));
        }
        self.note_adoptions();
    }

    /// Nothing was written yet for an adoption that the ledger has just begun to tell of.
    fn note_adoptions(&mut self) {
        let begun = |handover: &&Handover| handover.purpose == Purpose::Adoption;
        let begun: Vec<_> = self.mirror.book.under_way().filter(begun).collect();
        let known = |node: &str, by| self.found_open.get(node).is_some_and(|found| found.by == by);
        let new: Vec<_> = begun
            .into_iter()
            .map(|handover| (handover.node.as_str().to_owned(), (handover.id, handover.planned_at)))
            .filter(|(node, by)| !known(node, *by))
            .collect();
        if new.is_empty() {
            return;
        }
        let sides = self.sides();
        for (node, by) in new {
            let Some((slurm, kube)) = sides.get(&node) else { continue };
            let found = FoundOpen { by, slurm: slurm.is_open(), kubernetes: kube.is_open() };
            self.found_open.insert(node, found);
        }
    }

    /// Lets time pass, with all that happens in it.
    pub(super) fn pass(&mut self, seconds: i64) {
        let mut left = seconds;
        while left > 0 {
            let step = left.min(STEP_S);
            left -= step;
            self.clock.advance(SignedDuration::from_secs(step));
            let now = self.now();
            self.change(Who::Others, |world| {
                world.slurm.advance_to(now);
                world.kube.advance_to(now);
            });
            self.arrive();
            let chance = u32::try_from(step).unwrap_or(0) * self.rates.happenings;
            if self.strikes(chance) {
                self.happen();
            }
        }
    }

    /// A slow call: the world goes on meanwhile.
    pub(super) fn dawdle(&mut self) {
        if self.strikes(self.rates.slow) {
            let seconds = self.dice.within(1..16);
            self.fault(&format!("a call takes {seconds} s"));
            self.pass(seconds);
        }
    }

    /// The daemon has looked: what a script has waiting for that happens.
    pub(super) fn looked(&mut self, look: Look) {
        if let Some((_, happens)) = self.after_looks.pop_front_if(|(awaited, _)| *awaited == look) {
            happens(self);
        }
    }

    /// What was on its way arrives.
    fn arrive(&mut self) {
        let now = self.now();
        let (due, waiting) = std::mem::take(&mut self.late).into_iter().partition(|(at, _)| *at <= now);
        self.late = waiting;
        let due: Vec<(Timestamp, Late)> = due;
        for (_, late) in due {
            match late {
                Late::Kubernetes(request) => {
                    self.tell(format!("  late: {} {}", request.method, request.path));
                    self.change(Who::Daemon, |world| drop(world.kube.request(&request)));
                }
                Late::SlurmNode(node, update) => {
                    self.tell(format!("  late: {node} {update:?}"));
                    // Whatever comes of it, nobody hears.
                    self.change(Who::Daemon, |world| {
                        whatever(world.slurm.update_node(&node, &update, "root"));
                    });
                }
                Late::Scontrol(words) => {
                    self.tell(format!("  late: scontrol {}", words.join(" ")));
                    self.change(Who::Daemon, |world| {
                        slurm_mock::scontrol::run(&mut world.slurm, &words);
                    });
                }
            }
        }
    }

    /// Changes the world, and judges the change by who made it.
    pub(super) fn change<R>(&mut self, who: Who, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.sides();
        let going = if who == Who::Daemon { self.going_pods() } else { BTreeSet::new() };
        let result = f(self);
        let after = self.sides();
        for (node, (slurm, kube)) in &after {
            let Some((old_slurm, old_kube)) = before.get(node) else { continue };
            let slurm_opened = slurm.is_open() && !old_slurm.is_open();
            let kube_opened = kube.is_open() && !old_kube.is_open();
            match who {
                Who::Daemon => {
                    if slurm_opened && !self.excused.contains_key(node) {
                        self.judge_opening(node, Domain::Slurm, kube.is_open(), &self.kube_work(node));
                    }
                    if kube_opened && !self.excused.contains_key(node) {
                        self.judge_opening(node, Domain::Kubernetes, slurm.is_open(), &self.slurm_work(node));
                    }
                    self.judge_marks(node, (old_slurm, old_kube), (slurm, kube));
                }
                Who::Others => {
                    self.note_lost_guards(node, (old_slurm, old_kube), (slurm, kube));
                    if let Some(found) = self.found_open.get_mut(node) {
                        found.slurm |= slurm_opened;
                        found.kubernetes |= kube_opened;
                    }
                    let kubes = slurm_opened && self.is_kubernetes_own(node);
                    if kubes || (slurm_opened && kube.is_open()) || (kube_opened && slurm.is_open()) {
                        self.excuse(node, "others broke its closed gate open");
                    }
                }
            }
        }
        if who == Who::Daemon {
            self.judge_going(&going);
        }
        self.observe();
        result
    }

    /// Managed, and not on its way out.
    pub(super) fn is_ours(&self, node: &str) -> bool {
        match self.mirror.book.nodes.get(&NodeName::new(node)).map(|record| record.management) {
            Some(Management::Managed { .. }) => true,
            Some(Management::Unmanaged | Management::Adopting | Management::Releasing { .. }) | None => false,
        }
    }

    /// Managed, Kubernetes', and not about to be opened in Slurm: a job that starts there broke in.
    fn is_kubernetes_own(&self, node: &str) -> bool {
        let node = NodeName::new(node);
        let owned = match self.mirror.book.record(&node).management {
            Management::Managed { owner } => owner == Domain::Kubernetes,
            Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => false,
        };
        owned && !self.mirror.book.handover_of(&node).is_some_and(|handover| handover.state.is_opening())
    }

    /// GPU processes of Slurm's that live on a node.
    pub(super) fn slurm_work(&self, node: &str) -> Vec<String> {
        let name = slurm_mock::model::NodeName::from(node);
        let now = self.slurm.now();
        let living = self.slurm.truth().processes_on(&name, now).filter(|process| process.gpus > 0);
        living.map(|process| format!("job {} of {}", process.job, process.user)).collect()
    }

    /// GPU processes of Kubernetes' that live on a node. What a running kubelet is about to end because its pod is gone
    /// counts where the node's handover has noted the pod: of others nothing but the node itself can tell.
    pub(super) fn kube_work(&self, node: &str) -> Vec<String> {
        let handover = self.mirror.book.handover_of(&NodeName::new(node));
        let noted = |uid: &String| handover.is_some_and(|handover| handover.pods_seen.contains_key(uid));
        let up = self.people.kubelets.get(node).is_none_or(|machine| *machine == Machine::Up);
        self.kube
            .processes_on(node)
            .filter(|process| process.gpus > 0)
            .filter(|process| {
                let pod = self.kube.get(&Id::pod(&process.namespace, &process.pod));
                let listed = pod.is_some_and(|pod| text(pod, "/metadata/uid") == process.uid);
                listed || !up || noted(&process.uid)
            })
            .map(|process| format!("pod {}/{}", process.namespace, process.pod))
            .collect()
    }

    /// Does our annotation on the node say that it is in quarantine?
    pub(super) fn marks_tell_of_quarantine(&self, node: &str) -> bool {
        let node = self.kube.get(&Id::node(node));
        let annotation = node.and_then(|node| node["metadata"]["annotations"][ANNOTATION_HANDOVER].as_str());
        annotation.and_then(HandoverAnnotation::parse).is_some_and(|marks| marks.step == STEP_QUARANTINE)
    }

    /// Both sides of every node, as they really are.
    pub(super) fn sides(&self) -> BTreeMap<String, (SlurmSide, KubeSide)> {
        let now = self.slurm.now();
        let gate = self.kube.get(&Id::cluster(Resource::Gates, GATE_NAME));
        let closed: BTreeSet<&str> = gate
            .map(|gate| list(gate, "/spec/closed").iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let mut sides = BTreeMap::new();
        for view in self.slurm.nodes() {
            let drained = view.flags.contains(&slurm_mock::model::NodeFlag::Drain);
            let drain = drained.then(|| view.reason.as_ref().map(|r| r.text.clone()).unwrap_or_default());
            let reserved = self.slurm.reservations().any(|reservation| {
                reservation.is_active(now)
                    && reservation.nodes.contains(&view.spec.name)
                    && reservation_handover(&reservation.name).is_some()
            });
            let name = view.spec.name.as_str();
            let kube = self.kube_side(name, closed.contains(name));
            sides.insert(name.to_owned(), (SlurmSide { drain, reserved }, kube));
        }
        sides
    }

    fn kube_side(&self, name: &str, listed: bool) -> KubeSide {
        let Some(node) = self.kube.get(&Id::node(name)) else {
            return KubeSide { listed, ..KubeSide::default() };
        };
        let taints = list(node, "/spec/taints");
        let has = |key: &str| taints.iter().any(|taint| taint["key"] == key);
        let foreign_taints = taints
            .iter()
            // The plain taint of a release is ours to set.
            .filter(|taint| {
                !text(taint, "/key").starts_with("gpu-bridge.io/") && taint["key"] != TAINT_RELEASED
            })
            .map(|taint| format!("taint {taint}"));
        let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
        let foreign_labels = labels
            .filter(|(key, _)| !key.starts_with("gpu-bridge.io/") && key.as_str() != super::run::POOL_LABEL)
            .map(|(key, value)| format!("label {key}={value}"));
        KubeSide {
            there: true,
            listed,
            draining: has(TAINT_DRAINING),
            sealed: has(TAINT_SLURM),
            cordoned: node["spec"]["unschedulable"] == true,
            foreign: foreign_taints.chain(foreign_labels).collect(),
        }
    }

    /// The daemon is about to act: its ledger must say so on the disk, unless it only closes and the disk takes nothing.
    pub(super) fn announced(&mut self, action: &Action) {
        self.sync();
        let excused = action.is_closing() && self.disk_bad_until.is_some();
        if !self.mirror.announces(action) && !excused {
            self.fail(format!("an effect without a durable intent: {action:?}"));
        }
        if let Action::Kubernetes(gpu_bridge_core::facts::kubernetes::Action::Evict { pod }) = action {
            self.people.asked_to_go.insert(format!("{}/{}", pod.namespace, pod.name));
        }
    }

    /// The daemon's machine dies at its next write.
    pub(super) fn die(&mut self, why: &str) {
        self.tell(format!("  {why}"));
        self.disk.crash_at(self.disk.operations(), 0);
    }
}

/// What Slurm refuses a person has no consequences; what it refuses the daemon is seen in the next look.
pub(super) fn whatever<E>(_: Result<(), E>) {}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Counts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.ticks += other.ticks;
        self.opened += other.opened;
        self.rolled_back += other.rolled_back;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.happenings += other.happenings;
        self.guards_lost += other.guards_lost;
        self.broken_open += other.broken_open;
        self.work += other.work;
    }

    /// On one line, with the ticks of each second.
    pub fn text(&self, took: std::time::Duration) -> String {
        let per_second = u128::from(self.ticks) * 1000 / took.as_millis().max(1);
        format!(
            "{} ticks in {:.1} s ({per_second} a second): {} handovers opened, {} rolled back, {} jobs and workloads, \
             {} happenings, {} faults, {} crashes, {} guards lost, {} gates broken open",
            self.ticks,
            took.as_secs_f64(),
            self.opened,
            self.rolled_back,
            self.work,
            self.happenings,
            self.faults,
            self.crashes,
            self.guards_lost,
            self.broken_open,
        )
    }

    /// What so many seeds exercised too little, if anything.
    pub fn idle(&self, seeds: u64) -> Option<String> {
        let least = [
            ("handovers opened", self.opened, 3 * seeds),
            ("handovers rolled back", self.rolled_back, seeds / 4),
            ("jobs and workloads", self.work, 5 * seeds),
            ("faults", self.faults, 3 * seeds),
            ("crashes", self.crashes, seeds / 4),
            ("guards lost", self.guards_lost, seeds / 2),
        ];
        let idle: Vec<String> = least
            .into_iter()
            .filter(|(_, found, least)| found < least)
            .map(|(what, found, least)| format!("{found} {what}, at least {least} were expected"))
            .collect();
        (!idle.is_empty()).then(|| idle.join("; "))
    }
}
