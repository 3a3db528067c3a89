//! The evening on real Slurm 24.11 and a real Kubernetes 1.36 control plane, shortened to a few minutes of real time, with
//! the daemon as a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gpu_bridge_core::calendar::Zone;
use gpu_bridge_core::model::Domain;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use super::timeline::Timeline;
use super::verdict::Verdict;
use crate::daemon::Daemon;
use crate::labs::Labs;
use crate::policies;
use crate::site::NODES;

const BUDGET: &str = "inference";
const POLL: Duration = Duration::from_millis(500);
const LEAD: SignedDuration = SignedDuration::from_secs(60);
const UNTIL_OPEN: SignedDuration = SignedDuration::from_secs(110);
const LENGTH: SignedDuration = SignedDuration::from_secs(40);
const LIMIT: SignedDuration = SignedDuration::from_secs(240);

/// Tells the evening; true where everything happened that should.
pub async fn run() -> anyhow::Result<bool> {
    println!(
        "A promotion evening on real Slurm and real Kubernetes. Both are started first: seconds, minutes if they"
    );
    println!("must be built.\n");
    if std::env::var_os("GPU_BRIDGE_LABS").is_none()
        && let Some(reason) = gpu_bridge_labs::slurm::unsupported()
    {
        bail!("this machine cannot run the labs: {reason}");
    }
    let labs = Labs::up().await?;
    let mut site = labs.site()?;
    site.prewarm = Some(policies::prewarm().await?);
    site.floor = 1;
    let running = submit(&labs).await?;
    // A plain daemon adopts first; the window comes with a reload of the configuration, at a restart.
    let daemon = labs.daemon(&site).await?;
    daemon.cli(&["adopt", "gpu[1-4]", "--owner", "slurm", "--yes"]).await?;
    daemon
        .until("the nodes to be adopted", crate::labs::LIMIT, |p| {
            p.nodes.iter().all(|n| n.management == "managed")
        })
        .await?;
    daemon.stop().await?;
    let opens = Timestamp::from_second(Timestamp::now().as_second())? + UNTIL_OPEN;
    let closes = opens + LENGTH;
    site.calendar = window(opens, closes)?;
    let daemon = labs.daemon(&site).await?;
    let waiting = [long_job(&labs).await?, long_job(&labs).await?];
    let mut evening = Evening {
        timeline: Timeline::new(Zone::get("UTC").context("zone data")?, &labs.state_dir()),
        verdict: Verdict::default(),
        jobs: BTreeMap::new(),
        pods: BTreeSet::new(),
        waiting,
        opens,
        closes,
    };
    let mut wanted = false;
    let mut budget_stands = true;
    let end = opens + LIMIT;
    while Timestamp::now() < end {
        let now = Timestamp::now();
        if !wanted && now >= opens {
            evening.timeline.say(
                now,
                "window",
                "promotion opens: 3 inference pods with 4 GPUs each are wanted",
            );
            for pod in ["inference-1", "inference-2", "inference-3"] {
                labs.burst_pod(pod, 4).await?;
            }
            budget(&labs).await?;
            wanted = true;
        }
        evening.timeline.follow()?;
        if budget_stands && evening.timeline.evictions_blocked() > 4 {
            evening.timeline.say(now, "kubernetes", "the service's owner lifts the budget");
            budgets(&labs).await?.delete(BUDGET, &DeleteParams::default()).await?;
            budget_stands = false;
        }
        evening.watch(now, &labs, &daemon).await?;
        if now > closes && evening.is_over(&daemon).await? {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    evening.judge(&labs, &daemon, &running).await?;
    daemon.stop().await?;
    let blocked = evening.timeline.evictions_blocked();
    evening.verdict.print(&labs.state_dir(), blocked)
}

/// Jobs everywhere: three end soon, one is long.
async fn submit(labs: &Labs) -> anyhow::Result<Vec<u32>> {
    let mut jobs = Vec::new();
    for (node, seconds, limit) in
        [("gpu1", 45, "1"), ("gpu2", 55, "2"), ("gpu3", 65, "2"), ("gpu4", 400, "60")]
    {
        let script = format!("sleep {seconds}");
        jobs.push(labs.slurm.submit("alice", &["--gres=gpu:4", "-w", node, "-t", limit], &script).await?);
    }
    Ok(jobs)
}

/// Too long to end before the window.
async fn long_job(labs: &Labs) -> anyhow::Result<u32> {
    Ok(labs.slurm.submit("bob", &["--gres=gpu:4", "-t", "60"], "sleep 600").await?)
}

fn window(opens: Timestamp, closes: Timestamp) -> anyhow::Result<String> {
    let utc = Zone::get("UTC").context("zone data")?;
    Ok(format!(
        r#"
[[window]]
name = "promotion"
pool = "gpu-burst"
nodes = 3
start = "{}"
end = "{}"
zone = "UTC"
lead = "{}s"
cooldown = "10s"
owner = "retail-platform"
ticket = "CHG-1187"
"#,
        utc.wall_clock(opens).strftime("%Y-%m-%dT%H:%M:%S"),
        utc.wall_clock(closes).strftime("%Y-%m-%dT%H:%M:%S"),
        LEAD.as_secs(),
    ))
}

async fn budgets(labs: &Labs) -> anyhow::Result<Api<PodDisruptionBudget>> {
    Ok(Api::default_namespaced(labs.client().await?))
}

/// At least two of the three pods: one may go, the others not before the budget is lifted.
async fn budget(labs: &Labs) -> anyhow::Result<()> {
    let budget = serde_json::json!({
        "metadata": {"name": BUDGET},
        "spec": {"minAvailable": 2, "selector": {"matchExpressions": [
            {"key": "app", "operator": "In", "values": ["inference-1", "inference-2", "inference-3"]}]}},
    });
    budgets(labs).await?.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    Ok(())
}

struct Evening {
    timeline: Timeline,
    verdict: Verdict,
    jobs: BTreeMap<u32, String>,
    pods: BTreeSet<String>,
    waiting: [u32; 2],
    opens: Timestamp,
    closes: Timestamp,
}

impl Evening {
    async fn watch(&mut self, now: Timestamp, labs: &Labs, daemon: &Daemon) -> anyhow::Result<()> {
        let listing = labs.slurm.run(&["squeue", "-h", "-t", "all", "-o", "%i %u %T %N"]).await?;
        let mut running_on: BTreeSet<String> = BTreeSet::new();
        for line in listing.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [id, user, state, rest @ ..] = words.as_slice() else { continue };
            let (id, node) = (id.parse::<u32>()?, rest.first().copied().unwrap_or_default());
            if *state == "RUNNING" {
                running_on.insert(node.to_owned());
            }
            if self.jobs.insert(id, (*state).to_owned()).as_deref() != Some(*state) {
                let on = if node.is_empty() { String::new() } else { format!(" on {node}") };
                self.timeline.say(now, "slurm", &format!("job {id} of {user}: {}{on}", state.to_lowercase()));
                if *state == "RUNNING" && self.waiting.contains(&id) && now > self.opens {
                    self.verdict.waiting_started += 1;
                }
            }
        }
        let pods = labs.pods().await?;
        let running: BTreeSet<String> = pods
            .iter()
            .filter(|(_, _, phase)| phase == "Running")
            .map(|(name, node, _)| format!("{name} on {node}"))
            .collect();
        for pod in running.difference(&self.pods) {
            self.timeline.say(now, "kubernetes", &format!("pod {pod} runs"));
        }
        for pod in self.pods.difference(&running) {
            self.timeline.say(now, "kubernetes", &format!("pod {pod} is gone"));
        }
        if now < self.closes {
            self.verdict.pods_running = self.verdict.pods_running.max(running.len());
        }
        let pods_on: BTreeSet<&str> = pods
            .iter()
            .filter(|(_, node, phase)| phase == "Running" && !node.is_empty())
            .map(|(_, node, _)| node.as_str())
            .collect();
        self.pods.clone_from(&running);
        let published = daemon.published().await?;
        for node in &published.nodes {
            let both_run = running_on.contains(node.node.as_str()) && pods_on.contains(node.node.as_str());
            let both_open = node.management == "managed"
                && node.slurm == gpu_bridge_core::gate::Gate::Open
                && node.kubernetes == gpu_bridge_core::gate::Gate::Open;
            if both_run || both_open {
                self.verdict.double_open += 1;
                self.timeline.say(now, "DANGER", &format!("{} is open on both sides", node.node));
            }
        }
        let delivered = published
            .nodes
            .iter()
            .filter(|n| n.owner == Some(Domain::Kubernetes) && n.handover.is_none())
            .count();
        if self.verdict.late_s.is_none() && delivered >= 3 {
            self.verdict.late_s = Some(self.opens.duration_until(now).as_secs());
            self.timeline.say(now, "window", "all three nodes are delivered");
        }
        Ok(())
    }

    async fn is_over(&self, daemon: &Daemon) -> anyhow::Result<bool> {
        let published = daemon.published().await?;
        let home =
            published.nodes.iter().filter(|n| n.owner == Some(Domain::Slurm) && n.handover.is_none()).count();
        Ok(home == NODES.len() && self.verdict.waiting_started > 0)
    }

    async fn judge(&mut self, labs: &Labs, daemon: &Daemon, running: &[u32]) -> anyhow::Result<()> {
        self.timeline.follow()?;
        for job in running.iter().chain(&self.waiting) {
            let state = labs.slurm.job_state(*job).await?.unwrap_or_default();
            match state.split(' ').next().unwrap_or_default() {
                "COMPLETED" => self.verdict.jobs_finished += 1,
                "RUNNING" | "PENDING" | "COMPLETING" => {}
                _ => self.verdict.jobs_killed += 1,
            }
        }
        let published = daemon.published().await?;
        self.verdict.home =
            published.nodes.iter().filter(|n| n.owner == Some(Domain::Slurm) && n.handover.is_none()).count();
        Ok(())
    }
}
