//! A scheduler that goes away in mid-handover and comes back, on real Slurm 24.11 and real Kubernetes 1.36. Runs with
//! `GPU_BRIDGE_LABS=1`.

use std::time::Duration;

use anyhow::{bail, ensure};
use gpu_bridge::daemon::published::NodeStatus;
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::model::Domain::{self, Kubernetes, Slurm};
use gpu_bridge_integration::daemon::Daemon;
use gpu_bridge_integration::labs::{LIMIT, Labs};
use gpu_bridge_labs::{kubernetes, slurm};
use tokio::time::Instant;

/// How long each is away: three times as long as slurmrestd waits for slurmctld, longer than a Node's Lease is good for.
const AWAY: Duration = Duration::from_mins(1);

/// What is stopped.
enum Part {
    Slurm(slurm::Daemon),
    KubernetesApi,
}

/// Waits until the daemon says that it can't see a domain: that gate is Unknown, the other one stands as it stood.
async fn goes_unknown(daemon: &Daemon, before: &NodeStatus, away: Domain) -> anyhow::Result<()> {
    let published = daemon
        .until(&format!("{away} to be unknown"), LIMIT, |published| {
            published.domains.iter().any(|d| d.domain == away && d.unknown.is_some())
        })
        .await?;
    let Some(now) = published.nodes.into_iter().find(|n| n.node == before.node) else {
        bail!("no {}", before.node)
    };
    let (its, others, stood) = match away {
        Slurm => (now.slurm, now.kubernetes, &before.kubernetes),
        Kubernetes => (now.kubernetes, now.slurm, &before.slurm),
    };
    ensure!(matches!(its, Gate::Unknown { .. }), "{away} is away, and its gate is {its}");
    ensure!(others == *stood, "the other gate was {stood} and is {others}");
    ensure!(now.management == "managed", "an outage quarantines nothing: {}", now.management);
    Ok(())
}

/// Stops a part in the middle of gpu1's handover, sees that nothing moves while it is away, and starts it again.
async fn away(labs: &Labs, daemon: &Daemon, part: Part) -> anyhow::Result<()> {
    let domain = match part {
        Part::Slurm(_) => Slurm,
        Part::KubernetesApi => Kubernetes,
    };
    let before = daemon.node("gpu1").await?;
    let back = Instant::now() + AWAY;
    match &part {
        Part::Slurm(part) => labs.slurm.stop(part).await?,
        Part::KubernetesApi => labs.kubernetes.stop(&kubernetes::Part::ApiServer).await?,
    }
    goes_unknown(daemon, &before, domain).await?;
    tokio::time::sleep_until(back).await;
    goes_unknown(daemon, &before, domain).await?;
    match &part {
        Part::Slurm(part) => labs.slurm.start(part).await?,
        Part::KubernetesApi => labs.kubernetes.start(&kubernetes::Part::ApiServer).await?,
    }
    daemon
        .until(&format!("{domain} to be seen again"), LIMIT, |published| {
            published.domains.iter().all(|d| d.unknown.is_none())
        })
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_away_changes_nothing() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    let job = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1", "-t", "10"], "sleep 300").await?;
    labs.slurm.job_reaches(job, "RUNNING", LIMIT).await?;
    daemon.start_move("gpu1", Kubernetes).await?;
    daemon
        .until("the Slurm gate to be closed", LIMIT, |published| {
            published.nodes.iter().any(|n| n.node.as_str() == "gpu1" && n.slurm == Gate::Closed)
        })
        .await?;
    // Slurm shows a reservation that has begun some seconds late.
    labs.slurm
        .node_reaches("gpu1", |state| state.contains("MAINT") && state.contains("RESERVED"), LIMIT)
        .await?;
    let before = labs.marks("gpu1").await?;

    // The API server, then each of Slurm's two, while a job still runs on the draining node.
    away(&labs, &daemon, Part::KubernetesApi).await?;
    labs.marks_are("gpu1", &before).await?;
    for part in [slurm::Daemon::Slurmrestd, slurm::Daemon::Slurmctld] {
        away(&labs, &daemon, Part::Slurm(part)).await?;
        labs.marks_are("gpu1", &before).await?;
    }
    labs.no_job_was_lost(&[job]).await?;
    labs.slurm.exec_as("alice", &["scancel", &job.to_string()]).await?.ok()?;
    daemon.arrives("gpu1", Kubernetes).await?;

    // On the way back: the API server goes while a budget keeps a pod.
    labs.burst_pod("held", 4).await?;
    labs.pod_runs("held").await?;
    labs.keep_one("default", "held").await?;
    daemon.start_move("gpu1", Slurm).await?;
    daemon.reaches("gpu1", "evicting").await?;
    away(&labs, &daemon, Part::KubernetesApi).await?;
    ensure!(labs.slurm.node_state("gpu1").await?.contains("DRAIN"), "Slurm opened on a guess");
    labs.let_go("default", "held").await?;
    daemon.arrives("gpu1", Slurm).await?;
    watch.end().await?;
    daemon.stop().await
}
