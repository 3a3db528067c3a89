//! A daemon that dies after every ledger line of a handover, in both directions, on real Slurm 24.11 and real
//! Kubernetes 1.36. Runs with `GPU_BRIDGE_LABS=1`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpu_bridge_core::event::Event;
use gpu_bridge_core::model::Domain::{self, Kubernetes, Slurm};
use gpu_bridge_integration::daemon::{Daemon, ledger};
use gpu_bridge_integration::labs::{LIMIT, Labs};

/// Lives that a handover may take.
const MOST_LIVES: usize = 120;
/// After this long a life that neither died nor came to an end is a hang.
const LIFE: Duration = Duration::from_mins(1);

/// How a life ended.
enum End {
    /// By the failpoint.
    Died,
    /// The node has arrived; nothing is left to write.
    Arrived(Box<Daemon>),
}

/// One life: ends right after the ledger's line `last`, or with the node at home in `to`.
async fn live(labs: &Labs, node: &str, to: Domain, last: u64) -> anyhow::Result<End> {
    let config = labs.write(&labs.site()?)?;
    let mut daemon =
        Daemon::spawn(&config, &labs.socket(), &[("GPU_BRIDGE_ABORT_AFTER_SEQ", last.to_string())])?;
    let begun = Instant::now();
    while begun.elapsed() < LIFE {
        if !daemon.runs()? {
            return Ok(End::Died);
        }
        if let Ok(status) = daemon.node(node).await
            && status.owner == Some(to)
            && status.handover.is_none()
        {
            return Ok(End::Arrived(Box::new(daemon)));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("a life neither ended nor got anywhere\n{}", daemon.log_tail())
}

/// Tears the last line: the effect happened, and the word of it was half written when the power went.
fn tear(state_dir: &Path) -> anyhow::Result<()> {
    let path = gpu_bridge::ledger::path_in(state_dir);
    let text = std::fs::read_to_string(&path)?;
    let line = text.lines().next_back().context("an empty ledger")?;
    let keep = text.len() - line.len() / 2;
    std::fs::File::options().write(true).open(&path)?.set_len(u64::try_from(keep)?)?;
    Ok(())
}

/// Carries a move through with a death after every line; gives the number of lives and the daemon of the last one.
async fn walk(labs: &Labs, node: &str, to: Domain) -> anyhow::Result<(usize, Daemon)> {
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.start_move(node, to).await?;
    daemon.kill9().await?;
    // Lines of a life after its first one (which says that it began).
    let mut lines = 1;
    for lives in 1..=MOST_LIVES {
        let before = ledger(&labs.state_dir())?;
        let last = before.last().map_or(0, |(seq, _)| *seq) + 1 + lines;
        match live(labs, node, to, last).await? {
            End::Arrived(daemon) => {
                // It would die of its next line.
                daemon.kill9().await?;
                return Ok((lives, labs.daemon(&labs.site()?).await?));
            }
            End::Died => {}
        }
        let after = ledger(&labs.state_dir())?;
        // A death after an intent is before its effect: the next life says the same again, and may go one line further.
        match &after.last().context("an empty ledger")?.1 {
            Event::Intent { .. } => lines += 1,
            // Done, but the line is lost: the next life must see it for itself.
            Event::Outcome { .. } => {
                tear(&labs.state_dir())?;
                lines = 1;
            }
            _ => lines = 1,
        }
    }
    bail!("{MOST_LIVES} lives were not enough: {:?}", ledger(&labs.state_dir())?.last())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_after_every_line_hurts_nobody() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    daemon.stop().await?;
    let bystander =
        labs.slurm.submit("bob", &["--gres=gpu:4", "-w", "gpu2", "-t", "60"], "sleep 3000").await?;
    let job = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1", "-t", "5"], "sleep 15").await?;
    labs.slurm.job_reaches(job, "RUNNING", LIMIT).await?;
    let watch = labs.watch().await?;

    let (lives, daemon) = walk(&labs, "gpu1", Kubernetes).await?;
    eprintln!("to kubernetes: {lives} lives");
    ensure!(lives > 8, "only {lives} lives: the failpoint was not hit");
    daemon.arrives("gpu1", Kubernetes).await?;
    let ours: Vec<String> = labs.reservations().await?.into_values().collect();
    ensure!(ours.len() == 1 && ours[0].contains("Nodes=gpu1 "), "{ours:?}");
    labs.no_job_was_lost(&[job, bystander]).await?;
    labs.burst_pod("served", 4).await?;
    ensure!(labs.pod_runs("served").await? == "gpu1");
    daemon.stop().await?;

    let (lives, daemon) = walk(&labs, "gpu1", Slurm).await?;
    eprintln!("to slurm: {lives} lives");
    ensure!(lives > 8, "only {lives} lives: the failpoint was not hit");
    daemon.arrives("gpu1", Slurm).await?;
    ensure!(labs.reservations().await?.is_empty(), "{:?}", labs.reservations().await?);
    let marks = labs.marks("gpu1").await?;
    ensure!(marks["reason"].is_empty() && marks["listed"] == "true", "{marks:?}");
    let next = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1", "-t", "1"], "true").await?;
    labs.slurm.job_reaches(next, "COMPLETED", LIMIT).await?;
    labs.no_job_was_lost(&[job, bystander, next]).await?;
    ensure!(labs.slurm.job_state(bystander).await?.as_deref() == Some("RUNNING"));
    watch.end().await?;
    ensure!(gpu_bridge::ledger::verify(&gpu_bridge::ledger::path_in(&labs.state_dir()))?.broken.is_none());
    daemon.stop().await
}
