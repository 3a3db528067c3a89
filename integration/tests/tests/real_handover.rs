//! Handovers on real Slurm (24.11 where nothing else is said) and real Kubernetes 1.36, by the daemon as its users run it. Runs with `GPU_BRIDGE_LABS=1`.

use std::time::Duration;

use anyhow::ensure;
use gpu_bridge::slurm::Mode;
use gpu_bridge_core::event::{Action, Event, Outcome};
use gpu_bridge_core::facts::kubernetes;
use gpu_bridge_core::handover;
use gpu_bridge_core::model::Domain::{Kubernetes, Slurm};
use gpu_bridge_integration::daemon::{Daemon, ledger};
use gpu_bridge_integration::labs::{LIMIT, Labs};
use gpu_bridge_integration::site::Site;
use gpu_bridge_labs::slurm::Release;
use gpu_bridge_labs::wait_until;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V24_11, Mode::Rest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn with_slurm_22_05_a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V22_05, Mode::Rest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn with_slurm_26_05_a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V26_05, Mode::Rest).await
}

/// With `mode = "cli"`, and no slurmrestd at all.
#[tokio::test(flavor = "multi_thread")]
async fn without_slurmrestd_on_24_11_a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V24_11, Mode::Cli).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "heavy: the port's suite runs by the commands on this release in any case"]
async fn without_slurmrestd_on_22_05_a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V22_05, Mode::Cli).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "heavy: the port's suite runs by the commands on this release in any case"]
async fn without_slurmrestd_on_26_05_a_node_goes_to_kubernetes_and_comes_back() -> anyhow::Result<()> {
    there_and_back(Release::V26_05, Mode::Cli).await
}

async fn there_and_back(release: Release, mode: Mode) -> anyhow::Result<()> {
    let Some(labs) = Labs::of_release_or_skip(release).await? else { return Ok(()) };
    if mode == Mode::Cli {
        labs.slurm.stop(&gpu_bridge_labs::slurm::Daemon::Slurmrestd).await?;
    }
    let before = labs.marks("gpu1").await?;
    let job = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1", "-t", "5"], "sleep 12").await?;
    labs.slurm.job_reaches(job, "RUNNING", LIMIT).await?;
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&Site { mode, ..labs.site()? }).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    labs.burst_pod("first", 4).await?;
    daemon.moves("gpu1", Kubernetes).await?;
    ensure!(labs.pod_runs("first").await? == "gpu1", "the pod runs on the node that moved");
    daemon.moves("gpu1", Slurm).await?;
    let next = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1"], "sleep 1").await?;
    labs.slurm.job_reaches(next, "COMPLETED", LIMIT).await?;
    labs.no_job_was_lost(&[job, next]).await?;
    watch.end().await?;
    daemon.releases_all_as_found().await?;
    labs.marks_are("gpu1", &before).await?;
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_blocks_is_waited_for() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu[1-2]", Kubernetes).await?;
    labs.pod_on("serving", 4, "gpu1").await?;
    labs.pod_runs("serving").await?;
    labs.keep_one("default", "serving").await?;
    daemon.start_move("gpu1", Slurm).await?;
    daemon.reaches("gpu1", "evicting").await?;
    // Asked for more than once, refused each time; the pod lives and Slurm stays closed.
    let blocked = || {
        let lines = ledger(&labs.state_dir())?;
        let budget = |e: &Event| matches!(e, Event::Outcome { outcome: Outcome::Budget { .. }, .. });
        anyhow::Ok(lines.iter().filter(|(_, event)| budget(event)).count())
    };
    wait_until("the budget to refuse twice", LIMIT, async || match blocked() {
        Ok(2..) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    ensure!(labs.pod_runs("serving").await? == "gpu1");
    ensure!(labs.slurm.node_state("gpu1").await?.contains("DRAIN"));
    let node = daemon.node("gpu1").await?;
    ensure!(node.waits_for.iter().any(|wait| wait.contains("serving")), "{:?}", node.waits_for);
    let asked = blocked()?;
    ensure!(asked < 20, "evictions are asked for in peace, not {asked} times");
    // A second pod of the app elsewhere: now one may go.
    labs.pod("serving-2", 4, &json!({"nodeSelector": {"kubernetes.io/hostname": "gpu2"}})).await?;
    labs.pod_runs("serving-2").await?;
    labs.relabel("serving-2", "serving").await?;
    daemon.arrives("gpu1", Slurm).await?;
    let pods = labs.pods().await?;
    ensure!(pods.len() == 1 && pods[0].1 == "gpu2", "{pods:?}");
    watch.end().await?;
    daemon.stop().await
}

/// Starts a move and has the daemon die right after our NoSchedule taint is on: nobody has looked since.
async fn dies_after_the_taint(labs: &Labs, node: &str) -> anyhow::Result<()> {
    let last = ledger(&labs.state_dir())?.last().map_or(0, |(seq, _)| *seq);
    let config = labs.write(&labs.site()?)?;
    // Began, planned, closing started, and two intents with their outcomes.
    let mut daemon =
        Daemon::spawn(&config, &labs.socket(), &[("GPU_BRIDGE_ABORT_AFTER_SEQ", (last + 7).to_string())])?;
    daemon.ready().await?;
    // Its death may be faster than its answer.
    let _ = daemon.cli_raw(&["move", node, "--to", "slurm", "--reason", "a test"]).await?;
    daemon.ended(LIMIT).await?;
    let lines = ledger(&labs.state_dir())?;
    let marked = |event: &Event| {
        let Event::Intent { action: Action::Kubernetes(kubernetes::Action::Mark(marks)), .. } = event else {
            return false;
        };
        marks.taints.iter().any(|taint| taint.key == gpu_bridge_core::mark::TAINT_DRAINING)
    };
    let tail = &lines[lines.len() - 2..];
    ensure!(marked(&tail[0].1), "{tail:?}");
    ensure!(matches!(tail[1].1, Event::Outcome { outcome: Outcome::Done, .. }), "{tail:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_bound_after_our_taint_is_seen() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu1", Kubernetes).await?;
    daemon.stop().await?;
    dies_after_the_taint(&labs, "gpu1").await?;
    ensure!(labs.bind("default", "stranger", "gpu1").await.is_err(), "the Gate refuses everybody else");
    labs.bind("kube-system", "late", "gpu1").await?;
    labs.keep_one("kube-system", "late").await?;

    let daemon = labs.daemon(&labs.site()?).await?;
    daemon
        .until("the late pod to be waited for", LIMIT, |published| {
            published.nodes.iter().any(|n| n.waits_for.iter().any(|wait| wait.contains("kube-system/late")))
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(labs.slurm.node_state("gpu1").await?.contains("DRAIN"), "Slurm is opened over a pod");
    ensure!(daemon.node("gpu1").await?.handover.is_some());
    labs.let_go("kube-system", "late").await?;
    daemon.arrives("gpu1", Slurm).await?;
    // It was evicted, and only then was the opening allowed.
    let lines = ledger(&labs.state_dir())?;
    let evicted = lines.iter().rposition(|(_, event)| {
        matches!(event, Event::Intent { action: Action::Kubernetes(kubernetes::Action::Evict { pod }), .. }
            if pod.name == "late")
    });
    let permitted = lines.iter().rposition(|(_, event)| {
        matches!(event, Event::Handover { event: handover::Event::Permitted(_), .. })
    });
    ensure!(evicted.is_some() && evicted < permitted, "evicted at {evicted:?}, permitted at {permitted:?}");
    watch.end().await?;
    daemon.stop().await
}
