//! A window of the calendar moves real nodes from real Slurm to real Kubernetes and back. Runs with `GPU_BRIDGE_LABS=1`.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use gpu_bridge_core::calendar::Zone;
use gpu_bridge_core::model::Domain::{Kubernetes, Slurm};
use gpu_bridge_integration::daemon::ledger;
use gpu_bridge_integration::labs::{LIMIT, Labs};
use gpu_bridge_integration::policies;
use gpu_bridge_labs::wait_until;
use jiff::{SignedDuration, Timestamp};

/// From the start of the daemon to the start of the lead: a job of one minute fits before it, one of ten does not.
const UNTIL_LEAD: SignedDuration = SignedDuration::from_secs(80);
const LEAD: SignedDuration = SignedDuration::from_secs(15);
const LENGTH: SignedDuration = SignedDuration::from_secs(25);

fn window(opens: Timestamp, closes: Timestamp) -> anyhow::Result<String> {
    let utc = Zone::get("UTC").context("zone data")?;
    let local = |t: Timestamp| utc.wall_clock(t).strftime("%Y-%m-%dT%H:%M:%S").to_string();
    Ok(format!(
        r#"
[[window]]
name = "promotion"
pool = "gpu-burst"
nodes = 2
start = "{}"
end = "{}"
zone = "UTC"
lead = "{}s"
cooldown = "2s"
owner = "retail-platform"
ticket = "CHG-1187"
"#,
        local(opens),
        local(closes),
        LEAD.as_secs()
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_evening() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let watch = labs.watch().await?;
    let mut site = labs.site()?;
    site.prewarm = Some(policies::prewarm().await?);
    site.floor = 1;
    let daemon = labs.daemon(&site).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    daemon.stop().await?;

    let submit = async |node: &str, limit: &str, seconds: u32| {
        let arguments = ["--gres=gpu:4", "-w", node, "-t", limit];
        labs.slurm.submit("alice", &arguments, &format!("sleep {seconds}")).await
    };
    // Two nodes are taken for long. Of the other two one has a job that ends by itself, one is idle: these are wanted.
    let ends = submit("gpu1", "1", 20).await?;
    let long = [submit("gpu3", "60", 3000).await?, submit("gpu4", "60", 3000).await?];
    for job in [ends, long[0], long[1]] {
        labs.slurm.job_reaches(job, "RUNNING", LIMIT).await?;
    }
    let opens = Timestamp::from_second(Timestamp::now().as_second())? + UNTIL_LEAD + LEAD;
    let closes = opens + LENGTH;
    site.calendar = window(opens, closes)?;
    let daemon = labs.daemon(&site).await?;
    wait_until("two reservations", LIMIT, async || {
        let reservations = labs.reservations().await.map_err(|error| error.to_string())?;
        if reservations.len() == 2 { Ok(()) } else { Err(format!("{reservations:?}")) }
    })
    .await?;
    let reserved: BTreeSet<String> = labs.reservations().await?.into_values().collect();
    for node in ["gpu1", "gpu2"] {
        ensure!(reserved.iter().any(|text| text.contains(&format!("Nodes={node} "))), "{reserved:?}");
    }
    // Until then Slurm goes on using them for what ends in time, and only for that.
    let overruns = submit("gpu2", "10", 5).await?;
    let short = submit("gpu2", "1", 5).await?;
    labs.slurm.job_reaches(short, "COMPLETED", LIMIT).await?;
    ensure!(labs.slurm.job_state(overruns).await?.as_deref() == Some("PENDING"));
    ensure!(Timestamp::now() < opens - LEAD, "the short job ran before the lead began");

    labs.burst_pod("inference-1", 4).await?;
    labs.burst_pod("inference-2", 4).await?;
    daemon.arrives("gpu1", Kubernetes).await?;
    daemon.arrives("gpu2", Kubernetes).await?;
    let late = opens.duration_until(Timestamp::now());
    eprintln!("two nodes were delivered {}s after the window's opening", late.as_secs());
    let nodes = BTreeSet::from([labs.pod_runs("inference-1").await?, labs.pod_runs("inference-2").await?]);
    ensure!(nodes == BTreeSet::from(["gpu1".to_owned(), "gpu2".to_owned()]), "{nodes:?}");
    ensure!(Timestamp::now() < closes, "pods ran in the window");
    ensure!(labs.slurm.job_state(overruns).await?.as_deref() == Some("PENDING"));

    // The window ends, and after the cool-down everything goes home; the job that had to wait runs.
    daemon.arrives("gpu1", Slurm).await?;
    daemon.arrives("gpu2", Slurm).await?;
    ensure!(Timestamp::now() > closes, "the nodes were there until the window's end");
    labs.slurm.job_reaches(overruns, "COMPLETED", LIMIT).await?;
    ensure!(labs.reservations().await?.is_empty());
    labs.no_job_was_lost(&[ends, long[0], long[1], overruns, short]).await?;
    let nodes: Vec<String> =
        daemon.published().await?.nodes.iter().map(|n| format!("{:?}", n.handover)).collect();
    ensure!(nodes.iter().all(|handover| handover == "None"), "{nodes:?}");
    ensure!(!ledger(&labs.state_dir())?.is_empty());
    watch.end().await?;
    daemon.stop().await
}
