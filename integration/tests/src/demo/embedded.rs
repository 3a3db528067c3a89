//! The evening on embedded stand-ins, in virtual time: four and a half hours in about half a minute. The daemon's code is
//! the real one, down to HTTP; only the clock and the two servers are ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use gpu_bridge::assemble;
use gpu_bridge::config::{self, Config};
use gpu_bridge::daemon::clock::{Clock, ManualClock};
use gpu_bridge::daemon::command::{Command, Go};
use gpu_bridge::daemon::engine::{Engine, Parts};
use gpu_bridge::daemon::journal::Journal;
use gpu_bridge::daemon::published::NodeStatus;
use gpu_bridge::kubernetes::manifests;
use gpu_bridge::ledger::FileDisk;
use gpu_bridge::slurm::Mode;
use gpu_bridge_core::calendar::Zone;
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::Domain;
use jiff::{SignedDuration, Timestamp};
use kube_mock::{PodSpec, Workload};
use slurm_mock::model::{JobSpec, JobState};

use super::timeline::Timeline;
use super::verdict::Verdict;
use crate::policies;
use crate::site::{BURST_LABEL, NODES, Site};
use crate::standins::Standins;

const STEP: SignedDuration = SignedDuration::from_secs(20);
/// Well into the give-back, which begins 20 minutes after the window's end.
const SCALE_DOWN_AFTER: SignedDuration = SignedDuration::from_mins(24);
const SCALE_DOWN_PERIOD: SignedDuration = SignedDuration::from_mins(3);
const ZONE: &str = "Asia/Shanghai";
const CALENDAR: &str = r#"
[[window]]
name = "friday-promotion"
pool = "gpu-burst"
nodes = 3
cron = "0 18 * * FRI"
zone = "Asia/Shanghai"
duration = "2h"
lead = "45m"
cooldown = "20m"
owner = "retail-platform"
ticket = "CHG-1187"
expires = "2027-12-31"
"#;

/// Tells the evening; true where everything happened that should.
pub async fn run() -> anyhow::Result<bool> {
    let zone = Zone::get(ZONE).context("zone data")?;
    let instant = |text: &str| -> anyhow::Result<Timestamp> { Ok(text.parse()?) };
    let (begin, opens, closes, end) = (
        instant("2026-11-13T08:30:00Z")?,
        instant("2026-11-13T10:00:00Z")?,
        instant("2026-11-13T12:00:00Z")?,
        instant("2026-11-13T13:15:00Z")?,
    );
    println!(
        "A promotion evening. Times are Shanghai's; the stand-ins and the daemon run in virtual time.\n"
    );
    let clock = ManualClock::new(begin);
    let standins = Standins::up(&clock, &NODES).await?;
    let folder = tempfile::tempdir()?;
    let mut engine = engine(folder.path(), &standins, &clock).await?;
    let mut evening = Evening {
        timeline: Timeline::new(zone, &folder.path().join("state")),
        standins,
        verdict: Verdict::default(),
        started: BTreeMap::new(),
        ended: BTreeSet::new(),
        running_pods: BTreeSet::new(),
        waiting: Vec::new(),
    };
    evening.submit(begin, opens)?;
    engine.tick().await;
    adopt(&mut engine).await?;
    let mut pods = Pods::NotYet;
    let (mut replicas, mut scale_down) = (3, closes + SCALE_DOWN_AFTER);
    while clock.now() < end {
        clock.advance(STEP);
        let now = clock.now();
        if pods == Pods::NotYet && now >= opens {
            evening.timeline.say(
                now,
                "window",
                "friday-promotion opens: 3 inference pods with 4 GPUs each are wanted",
            );
            evening.pods(replicas);
            evening.standins.budget("inference", 1);
            pods = Pods::Wanted;
        }
        if pods == Pods::Wanted && now >= closes {
            evening.timeline.say(now, "window", "friday-promotion closes; its nodes stay 20 minutes more");
            pods = Pods::Over;
        }
        // Evicted pods find no other node, so the budget holds the rest until the autoscaler asks for fewer.
        while pods == Pods::Over && replicas > 0 && now >= scale_down {
            replicas -= 1;
            evening.timeline.say(
                now,
                "kubernetes",
                &format!("the autoscaler wants {replicas} inference pods"),
            );
            evening.pods(replicas);
            scale_down += SCALE_DOWN_PERIOD;
        }
        engine.tick().await;
        evening.timeline.follow()?;
        evening.watch(now, opens, closes, &engine);
    }
    engine.stop()?;
    evening.judge(&engine);
    let blocked = evening.timeline.evictions_blocked();
    let good = evening.verdict.print(&folder.path().join("state"), blocked)?;
    if !good {
        for node in engine.published().nodes {
            println!("  {} {:?} waits for {:?}", node.node, node.handover, node.waits_for);
        }
    }
    Ok(good)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pods {
    NotYet,
    Wanted,
    Over,
}

async fn engine(folder: &Path, standins: &Standins, clock: &ManualClock) -> anyhow::Result<Engine<FileDisk>> {
    let token_file = folder.join("token");
    std::fs::write(&token_file, standins.slurm_token())?;
    let kubeconfig = folder.join("kubeconfig");
    standins.kubernetes.kubeconfig_file(&kubeconfig)?;
    let site = Site {
        state_dir: folder.join("state"),
        socket: folder.join("socket"),
        mode: Mode::Rest,
        slurm_url: standins.slurm_url()?,
        token_file,
        scontrol: standins.scontrol()?,
        kubeconfig,
        kubernetes_user: "gpu-bridge".to_owned(),
        prewarm: Some(policies::prewarm().await?),
        calendar: CALENDAR.to_owned(),
        deadline: "2h".to_owned(),
        escalation: "wait".to_owned(),
        floor: 1,
    };
    let path = folder.join("gpu-bridge.toml");
    std::fs::write(&path, site.toml())?;
    let config: Config = config::check(&path).map_err(|problems| {
        anyhow::anyhow!(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })?;
    std::fs::create_dir_all(&config.daemon.state_dir)?;
    let (journal, _) = Journal::open(&config.daemon.state_dir, clock.now())?;
    standins.install(&manifests::objects(&assemble::manifest_options(&config)?)?);
    let kubernetes = assemble::kubernetes_port(&config).await?;
    let parts = Parts {
        seats: assemble::seats(&config)?,
        slurm: assemble::slurm_port(&config.slurm, Arc::new(clock.clone()))?,
        kubernetes: Arc::new(kubernetes),
        clock: Arc::new(clock.clone()),
        token_alarm_before: SignedDuration::ZERO,
        demand_age: SignedDuration::from_secs(30),
        tick_period_s: 20,
        site: config.site,
        calendar: config.calendar,
    };
    Ok(Engine::begin(parts, journal)?)
}

async fn adopt(engine: &mut Engine<FileDisk>) -> anyhow::Result<()> {
    let nodes = NODES.map(NodeName::from).to_vec();
    let command = Command::Adopt { nodes, owner: Some(Domain::Slurm), go: Go::Yes };
    engine.request("admin", command).await?;
    Ok(())
}

struct Evening {
    timeline: Timeline,
    standins: Standins,
    verdict: Verdict,
    started: BTreeMap<u32, String>,
    ended: BTreeSet<u32>,
    running_pods: BTreeSet<String>,
    waiting: Vec<u32>,
}

impl Evening {
    /// Jobs everywhere, and some that wait for the evening to be over.
    fn submit(&mut self, begin: Timestamp, opens: Timestamp) -> anyhow::Result<()> {
        let until = |minutes: i64| begin.duration_until(opens) + SignedDuration::from_mins(minutes);
        let minutes = SignedDuration::from_mins;
        let running =
            [("gpu1", until(-50)), ("gpu2", until(-46)), ("gpu3", until(-30)), ("gpu4", until(200))];
        let waiting = self.standins.slurm.cluster(|cluster| {
            for (node, length) in running {
                cluster.submit(JobSpec::new("alice", 1, 4, length).limit(length + minutes(5)).on(&[node]))?;
            }
            // Too long to end before the window: they must not start on its nodes.
            let long = JobSpec::new("bob", 1, 4, minutes(55)).limit(minutes(180));
            let first = cluster.submit(long.clone())?;
            let second = cluster.submit(long)?;
            Ok::<_, slurm_mock::model::Error>(vec![first.0, second.0])
        })?;
        self.waiting = waiting;
        Ok(())
    }

    fn pods(&self, replicas: usize) {
        let (key, value) = BURST_LABEL;
        let pod = PodSpec {
            namespace: "default".to_owned(),
            name: "inference".to_owned(),
            gpus: 4,
            labels: BTreeMap::from([("app".to_owned(), "inference".to_owned())]),
            node_selector: BTreeMap::from([(key.to_owned(), value.to_owned())]),
            ..PodSpec::default()
        };
        self.standins.kubernetes.cluster(|cluster| {
            cluster.set_workload(Workload::new(replicas, pod));
        });
    }

    /// Looks at both worlds as they really are.
    fn watch(&mut self, now: Timestamp, opens: Timestamp, closes: Timestamp, engine: &Engine<FileDisk>) {
        let jobs = self.standins.slurm.cluster(|cluster| {
            cluster
                .jobs()
                .map(|job| {
                    (job.id.0, job.state, format!("{} of {}", job.id.0, job.spec.user), job_nodes(job))
                })
                .collect::<Vec<_>>()
        });
        for (id, state, name, nodes) in jobs {
            if state == JobState::Running && self.started.insert(id, nodes.clone()).is_none() {
                self.timeline.say(now, "slurm", &format!("job {name} runs on {nodes}"));
                if self.waiting.contains(&id) && now >= opens {
                    self.verdict.waiting_started += 1;
                }
            }
            if state.is_final() && self.ended.insert(id) {
                self.timeline.say(now, "slurm", &format!("job {name} ended"));
            }
        }
        let pods: BTreeSet<String> = self.standins.kubernetes.cluster(|cluster| {
            cluster.processes().map(|process| format!("{} on {}", process.pod, process.node)).collect()
        });
        for pod in pods.difference(&self.running_pods) {
            self.timeline.say(now, "kubernetes", &format!("pod {pod} runs"));
        }
        for pod in self.running_pods.difference(&pods) {
            self.timeline.say(now, "kubernetes", &format!("pod {pod} is gone"));
        }
        if now < closes {
            self.verdict.pods_running = self.verdict.pods_running.max(pods.len());
        }
        self.running_pods = pods;
        for node in NODES {
            if self.standins.may_start_both(node) {
                self.verdict.double_open += 1;
                self.timeline.say(now, "DANGER", &format!("{node} is open on both sides"));
            }
        }
        let delivered = engine
            .published()
            .nodes
            .iter()
            .filter(|n| n.owner == Some(Domain::Kubernetes) && n.handover.is_none())
            .count();
        if self.verdict.late_s.is_none() && delivered >= 3 {
            self.verdict.late_s = Some(opens.duration_until(now).as_secs());
            self.timeline.say(now, "window", "all three nodes are delivered");
        }
    }

    fn judge(&mut self, engine: &Engine<FileDisk>) {
        let (killed, finished) = self.standins.slurm.cluster(|cluster| {
            let truth = cluster.truth();
            (truth.kills().count(), truth.endings().len() - truth.kills().count())
        });
        self.verdict.jobs_killed = killed;
        self.verdict.jobs_finished = finished;
        self.verdict.home = engine.published().nodes.iter().filter(|node| is_home(node)).count();
    }
}

fn job_nodes(job: &slurm_mock::model::Job) -> String {
    job.allocation.keys().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Slurm may start work on it. (It may be reserved for the next window already.)
fn is_home(node: &NodeStatus) -> bool {
    let closed = node.slurm == Gate::Closed;
    node.owner == Some(Domain::Slurm) && !closed && node.kubernetes == Gate::Closed
}
