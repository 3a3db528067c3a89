//! One seed: a world, a daemon in it, some hours of trouble, and a calm in which everything must come to rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gpu_bridge::daemon::clock::ManualClock;
use gpu_bridge::daemon::command::{Command, Go};
use gpu_bridge::daemon::decider::{Mode, Seat};
use gpu_bridge::daemon::engine::{Engine, Parts};
use gpu_bridge::daemon::journal::Journal;
use gpu_bridge::ledger::{Keep, SimDisk};
use gpu_bridge_core::book::Record;
use gpu_bridge_core::calendar::Calendar;
use gpu_bridge_core::event::ReleaseMode;
use gpu_bridge_core::ids::{KubeNodeName, NodeName, PoolName, SlurmNodeName};
use gpu_bridge_core::model::{Domain, Escalation, Node, NodeWordRule, Pool, PoolKind, Site};
use jiff::{SignedDuration, Timestamp};
use kube_mock::NodeSpec;

use super::decider::{BURST, Spans};
use super::dice::Dice;
use super::people::{ADMIN, People};
use super::shared::Shared;
use super::world::{Counts, Rates, World};
use super::{check, kubernetes, slurm};

/// GPUs of a node.
pub(super) const GPUS: u32 = 4;
/// The label of pools.
pub(super) const POOL_LABEL: &str = "nodepool";
/// Nodes.
const NODES: i64 = 4;
/// Once faults stop, everything rests within this.
const REST_WITHIN: SignedDuration = SignedDuration::from_hours(3);
/// It must be seen at rest so many ticks in a row.
const TICKS_AT_REST: u32 = 3;
/// In the calm a person comes by after so many ticks.
const TICKS_TO_ADOPT: u32 = 15;
/// 2026-01-01T00:00:00Z.
const START_S: i64 = 1_767_225_600;

/// How one seed went.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was done and endured.
    pub counts: Counts,
    /// What went wrong, if anything.
    pub failure: Option<String>,
    /// What happened, line by line.
    pub story: Vec<String>,
}

/// Runs one seed for so many ticks of trouble, and the calm after it.
pub fn run(seed: u64, ticks: u32) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async { Run::new(seed)?.play(ticks).await })
}

pub(super) struct Run {
    pub(super) world: Shared,
    site: Site,
    slurm: Arc<slurm::Port>,
    kubernetes: Arc<kubernetes::Port>,
    spans: Vec<Spans>,
    pub(super) engine: Option<Engine<SimDisk>>,
    starts_at: Timestamp,
    watch: check::Watch,
}

fn rates(dice: &mut Dice) -> Rates {
    let quiet = Rates {
        lost_before: 0,
        lost_after: 0,
        late: 0,
        slow: 0,
        stale: 0,
        dies_after_write: 0,
        happenings: 8,
    };
    let usual = Rates {
        lost_before: 20,
        lost_after: 20,
        late: 10,
        slow: 8,
        stale: 5,
        dies_after_write: 10,
        happenings: 15,
    };
    let rough = Rates {
        lost_before: 60,
        lost_after: 60,
        late: 40,
        slow: 20,
        stale: 20,
        dies_after_write: 30,
        happenings: 30,
    };
    dice.weighed(&[(1, quiet), (3, usual), (2, rough)]).unwrap_or(usual)
}

fn site(dice: &mut Dice, names: &[String]) -> Site {
    let escalation =
        |dice: &mut Dice| if dice.permille(300) { Escalation::Wait } else { Escalation::RollBack };
    let pool = |name: &str, kind: PoolKind, floor: u32, dice: &mut Dice| Pool {
        name: PoolName::new(name),
        kind,
        floor,
        ceiling: None,
        max_handovers: 3,
        deadline: SignedDuration::from_mins(dice.within(5..45)),
        escalation: escalation(dice),
        protected_priority: Some(i32::try_from(super::world::PROTECTED_PRIORITY).unwrap_or(i32::MAX)),
        node_word: NodeWordRule::AbsentAllowed { reason: "simulated".to_owned() },
    };
    let floor = u32::try_from(dice.within(0..2)).unwrap_or(0);
    let main = pool("main", PoolKind::Partition { partition: "main".to_owned() }, floor, dice);
    let labels: BTreeMap<String, String> = [(POOL_LABEL.to_owned(), BURST.to_owned())].into();
    let burst = pool(BURST, PoolKind::NodePool { labels, taints: Vec::new() }, 0, dice);
    let node = |name: &String| Node {
        name: NodeName::new(name.as_str()),
        slurm: SlurmNodeName::new(name.as_str()),
        kubernetes: KubeNodeName::new(name.as_str()),
        gpu_model: "a100".to_owned(),
        gpus: GPUS,
        topology_block: None,
        home: PoolName::new("main"),
    };
    Site {
        nodes: names.iter().map(|name| (NodeName::new(name.as_str()), node(name))).collect(),
        pools: [main, burst].into_iter().map(|pool| (pool.name.clone(), pool)).collect(),
    }
}

impl Run {
    pub(super) fn new(seed: u64) -> anyhow::Result<Self> {
        let mut dice = Dice::new(seed);
        let start = Timestamp::from_second(START_S)?;
        let nodes: Vec<String> = (1..=NODES).map(|number| format!("gpu{number}")).collect();
        let mut slurm = slurm_mock::Cluster::uniform(u32::try_from(NODES)?, GPUS, start);
        slurm.config_mut().administrators.insert(ADMIN.to_owned());
        let mut kube = kube_mock::Cluster::new(start);
        kube.settings.bind_delay = std::time::Duration::from_secs(u64::try_from(dice.within(0..8))?);
        for node in &nodes {
            let spec = NodeSpec {
                name: node.clone(),
                gpus: u64::from(GPUS),
                labels: [("example.com/rack".to_owned(), "r1".to_owned())].into(),
                taints: vec![("example.com/team".to_owned(), "ml".to_owned(), "PreferNoSchedule".to_owned())],
            };
            kube.add_node(&spec);
        }
        let guards = kubernetes::guards(&nodes);
        kubernetes::install(&mut kube, &guards)?;
        let site = site(&mut dice, &nodes);
        let (rates, end) = (rates(&mut dice), START_S + 3 * 3600);
        let mut spans = vec![Spans::windows(&mut dice, START_S, end, NODES)];
        if dice.permille(300) {
            spans.push(Spans::flips(&mut dice, START_S, end, NODES));
        }
        let world = Shared::new(World {
            clock: ManualClock::new(start),
            start,
            dice,
            slurm,
            kube,
            disk: SimDisk::new(),
            mirror: super::mirror::Mirror::default(),
            rates,
            people: People::default(),
            nodes,
            after_looks: VecDeque::new(),
            unwritable: BTreeSet::new(),
            calm: false,
            slurm_away_until: start,
            kube_away_until: start,
            disk_bad_until: None,
            late: Vec::new(),
            excused: BTreeMap::new(),
            found_open: BTreeMap::new(),
            both_before_us: BTreeSet::new(),
            counts: Counts::default(),
            faults_in_tick: 0,
            story: Vec::new(),
            failure: None,
        });
        Ok(Self {
            slurm: slurm::Port::new(world.clone()),
            kubernetes: kubernetes::Port::new(world.clone(), guards)?,
            world,
            site,
            spans,
            engine: None,
            starts_at: start,
            watch: check::Watch::default(),
        })
    }

    async fn play(mut self, ticks: u32) -> anyhow::Result<Outcome> {
        let mut progress = false;
        for _ in 0..ticks {
            if self.failed() {
                break;
            }
            let pause = self.pause(progress);
            self.world.lock().pass(pause);
            self.ask().await;
            progress = self.tick().await;
        }
        if !self.failed() {
            self.calm().await;
        }
        let mut world = self.world.lock();
        // The mirror has read the whole ledger since the last start.
        world.counts.opened = world.mirror.opened;
        world.counts.rolled_back = world.mirror.rolled_back;
        Ok(Outcome {
            counts: world.counts,
            failure: world.failure.take(),
            story: std::mem::take(&mut world.story),
        })
    }

    /// From here on nothing happens by itself.
    #[cfg(test)]
    pub(super) fn silence(&mut self) {
        self.spans.clear();
        self.world.lock().calm = true;
    }

    /// The nodes.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<NodeName> {
        self.site.nodes.keys().cloned().collect()
    }

    fn failed(&self) -> bool {
        self.world.lock().failure.is_some()
    }

    fn pause(&self, progress: bool) -> i64 {
        if progress { 1 } else { self.world.lock().dice.within(5..40) }
    }

    /// One tick, or a start where the daemon is not running. Tells whether it went on.
    pub(super) async fn tick(&mut self) -> bool {
        {
            let mut world = self.world.lock();
            world.mend();
            world.faults_in_tick = 0;
        }
        if self.engine.is_none() && self.world.lock().now() >= self.starts_at {
            self.start();
        }
        let Some(engine) = &mut self.engine else { return false };
        let ticked = engine.tick().await;
        let mut world = self.world.lock();
        world.counts.ticks += 1;
        if world.disk.is_crashed() {
            world.counts.crashes += 1;
            world.tell("the daemon is dead");
            let away = world.dice.within(1..200);
            self.starts_at = world.now() + SignedDuration::from_secs(away);
            self.engine = None;
            return false;
        }
        self.watch.after_tick(&mut world, &engine.published());
        ticked.progress
    }

    /// The daemon starts on what survived.
    fn start(&mut self) {
        let mut world = self.world.lock();
        if world.disk.is_crashed() || world.counts.ticks > 0 {
            let bytes = usize::try_from(world.dice.within(0..300)).unwrap_or(0);
            let keep = world.dice.weighed(&[(1, Keep::Synced), (1, Keep::Bytes(bytes)), (1, Keep::All)]);
            world.disk.restart(keep.unwrap_or(Keep::All));
        }
        world.mirror = super::mirror::Mirror::default();
        let now = world.now();
        let (journal, _) = match Journal::open_on(world.disk.clone(), now) {
            Ok(opened) => opened,
            Err(error) => {
                // A disk that takes nothing, or a machine that dies again, keeps the daemon from starting; a broken
                // ledger there must not be.
                if world.disk_bad_until.is_none() && !world.disk.is_crashed() {
                    world.fail(format!("the daemon cannot start on what survived: {error}"));
                }
                self.starts_at = now + SignedDuration::from_secs(30);
                return;
            }
        };
        let parts = Parts {
            site: self.site.clone(),
            calendar: Calendar::default(),
            seats: self
                .spans
                .iter()
                .map(|spans| Seat::new(Box::new(spans.clone()), Mode::Active, 100))
                .collect(),
            slurm: self.slurm.clone(),
            kubernetes: self.kubernetes.clone(),
            clock: Arc::new(world.clock.clone()),
            token_alarm_before: SignedDuration::ZERO,
            demand_age: SignedDuration::from_secs(30),
            tick_period_s: 10,
        };
        match Engine::begin(parts, journal) {
            Ok(engine) => {
                self.engine = Some(engine);
                // What the old ledger's lines say again was told before.
                let disk = world.disk.clone();
                if let Err(why) = world.mirror.sync(&disk) {
                    world.fail(why);
                }
                world.mirror.news.clear();
                world.tell("the daemon starts");
            }
            Err(error) => {
                world.tell(format!("the daemon does not start: {error}"));
                self.starts_at = now + SignedDuration::from_secs(30);
            }
        }
    }

    /// People ask the daemon for something.
    async fn ask(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        let command = {
            let mut world = self.world.lock();
            if world.disk.is_crashed() {
                return;
            }
            command(&mut world)
        };
        let Some(command) = command else { return };
        let asked = format!("{command:?}");
        let answer = engine.request("rita", command).await;
        let answer = match answer {
            Ok(reply) => format!("{reply:?}").chars().take(300).collect::<String>(),
            Err(refusal) => format!("no: {refusal}"),
        };
        self.world.lock().tell(format!("rita asks {asked}: {answer}"));
    }

    /// No more trouble: everything comes to rest.
    async fn calm(&mut self) {
        self.spans.clear();
        if let Some(engine) = self.engine.take() {
            // The last start is an orderly one, without policies.
            let mut engine = engine;
            if let Err(error) = engine.stop() {
                self.world.lock().tell(format!("the stop is not recorded: {error}"));
            }
        }
        let until = {
            let mut world = self.world.lock();
            world.tell("--- calm ---");
            world.calm = true;
            let now = world.now();
            world.mend_all();
            let most = world.late.iter().map(|(at, _)| *at).max().unwrap_or(now).max(now);
            let wait = now.duration_until(most).as_secs() + 1;
            world.let_go();
            world.pass(wait);
            world.disk.restart(Keep::All);
            world.now() + REST_WITHIN
        };
        self.starts_at = self.world.lock().now();
        let (mut at_rest, mut ticks) = (0, 0);
        let mut unrest = Vec::new();
        let mut progress = false;
        while self.world.lock().now() < until && !self.failed() {
            self.world.lock().pass(if progress { 1 } else { 20 });
            progress = self.tick().await;
            let Some(engine) = &mut self.engine else { continue };
            ticks += 1;
            if ticks % TICKS_TO_ADOPT == 0 {
                adopt_quarantined(&self.world, engine).await;
            }
            unrest = check::unrest(&self.world.lock(), &engine.published());
            at_rest = if unrest.is_empty() { at_rest + 1 } else { 0 };
            if at_rest >= TICKS_AT_REST {
                check::ledger(&mut self.world.lock(), engine);
                return;
            }
        }
        if !self.failed() {
            let why = format!("not at rest {REST_WITHIN:#} after the trouble ended: {}", unrest.join("; "));
            self.world.lock().fail(why);
        }
    }
}

/// A person looks at what is in quarantine, and adopts it.
async fn adopt_quarantined(world: &Shared, engine: &mut Engine<SimDisk>) {
    let quarantined =
        |(node, record): (&NodeName, &Record)| record.quarantine.is_some().then(|| node.clone());
    let nodes: Vec<NodeName> = world.lock().mirror.book.nodes.iter().filter_map(quarantined).collect();
    if !nodes.is_empty() {
        let answer = engine.request("rita", Command::Adopt { nodes, owner: None, go: Go::Yes }).await;
        world.lock().tell(format!("rita adopts what is in quarantine: {answer:?}"));
    }
}

/// What somebody asks for now, if anything.
fn command(world: &mut World) -> Option<Command> {
    let first = world.counts.ticks == 1;
    let names: Vec<NodeName> = world.nodes.iter().map(|node| NodeName::new(node.as_str())).collect();
    if first {
        return Some(Command::Adopt { nodes: names, owner: None, go: Go::Yes });
    }
    if !world.strikes(60) {
        return None;
    }
    let node = world.dice.pick(&names).cloned()?;
    let to = if world.dice.permille(500) { Domain::Slurm } else { Domain::Kubernetes };
    match world.dice.weighed(&[(5, 0), (2, 1), (6, 2), (1, 3)])? {
        0 => Some(Command::Move { node, to, reason: "by hand".to_owned(), ticket: None }),
        1 => {
            let under_way: Vec<_> = world.mirror.book.under_way().map(|handover| handover.id).collect();
            let handover = world.dice.pick(&under_way).copied()?;
            Some(Command::Cancel { handover, reason: "changed my mind".to_owned() })
        }
        2 => {
            let owner = world.dice.weighed(&[(2, None), (1, Some(to))])?;
            Some(Command::Adopt { nodes: vec![node], owner, go: Go::Yes })
        }
        _ => {
            let mode = if world.dice.permille(500) { ReleaseMode::Plain } else { ReleaseMode::AsFound };
            Some(Command::Release { nodes: vec![node], mode, go: Go::Yes })
        }
    }
}
