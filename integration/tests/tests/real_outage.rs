//! A scheduler that goes away in mid-handover and comes back, on real Slurm 24.11 and real Kubernetes 1.36. Runs with
//! `GPU_BRIDGE_LABS=1`.

use std::time::Duration;

use anyhow::{bail, ensure};
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::model::Domain::{self, Kubernetes, Slurm};
use gpu_bridge_integration::daemon::Daemon;
use gpu_bridge_integration::labs::{LIMIT, Labs};
use gpu_bridge_labs::kubernetes::Part;
use gpu_bridge_labs::slurm;

/// How long each is away; long enough that slurmrestd has given up on slurmctld (20 s), and nobody thinks of a hiccup.
const AWAY: Duration = Duration::from_secs(25);

/// Waits until the daemon says that it can't see a domain: that gate is Unknown, the other one stands as it stood.
async fn goes_unknown(daemon: &Daemon, node: &str, away: Domain) -> anyhow::Result<()> {
    let other = daemon.node(node).await?;
    let published = daemon
        .until(&format!("{away} to be unknown"), LIMIT, |published| {
            published.domains.iter().any(|d| d.domain == away && d.unknown.is_some())
        })
        .await?;
    let Some(now) = published.nodes.into_iter().find(|n| n.node.as_str() == node) else { bail!("no {node}") };
    let (its, others, before) = match away {
        Slurm => (now.slurm, now.kubernetes, other.kubernetes),
        Kubernetes => (now.kubernetes, now.slurm, other.slurm),
    };
    ensure!(matches!(its, Gate::Unknown { .. }), "{away} is away, and its gate is {its}");
    ensure!(others == before, "the other gate was {before} and is {others}");
    ensure!(now.management == "managed", "an outage quarantines nothing: {}", now.management);
    Ok(())
}

async fn is_seen_again(daemon: &Daemon, domain: Domain) -> anyhow::Result<()> {
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

    // Each of Slurm's two in turn, while a job still runs on the draining node.
    for part in [slurm::Daemon::Slurmrestd, slurm::Daemon::Slurmctld] {
        labs.slurm.stop(&part).await?;
        goes_unknown(&daemon, "gpu1", Slurm).await?;
        tokio::time::sleep(AWAY).await;
        ensure!(daemon.node("gpu1").await?.kubernetes == Gate::Closed);
        labs.slurm.start(&part).await?;
        is_seen_again(&daemon, Slurm).await?;
        labs.marks_are("gpu1", &before).await?;
    }
    // And the API server.
    labs.kubernetes.stop(&Part::ApiServer).await?;
    goes_unknown(&daemon, "gpu1", Kubernetes).await?;
    tokio::time::sleep(AWAY).await;
    labs.kubernetes.start(&Part::ApiServer).await?;
    is_seen_again(&daemon, Kubernetes).await?;
    labs.marks_are("gpu1", &before).await?;
    labs.no_job_was_lost(&[job]).await?;
    labs.slurm.exec_as("alice", &["scancel", &job.to_string()]).await?.ok()?;
    daemon.arrives("gpu1", Kubernetes).await?;

    // On the way back: the API server goes while a budget keeps a pod.
    labs.burst_pod("held", 4).await?;
    labs.pod_runs("held").await?;
    labs.keep_one("default", "held").await?;
    daemon.start_move("gpu1", Slurm).await?;
    daemon.reaches("gpu1", "evicting").await?;
    labs.kubernetes.stop(&Part::ApiServer).await?;
    goes_unknown(&daemon, "gpu1", Kubernetes).await?;
    tokio::time::sleep(AWAY).await;
    ensure!(labs.slurm.node_state("gpu1").await?.contains("DRAIN"), "Slurm opened on a guess");
    labs.kubernetes.start(&Part::ApiServer).await?;
    is_seen_again(&daemon, Kubernetes).await?;
    labs.let_go("default", "held").await?;
    daemon.arrives("gpu1", Slurm).await?;
    watch.end().await?;
    daemon.stop().await
}
