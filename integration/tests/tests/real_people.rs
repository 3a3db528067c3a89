//! Adoption and release of what a real site looks like, and what people do by hand before and during handovers, on real
//! Slurm 24.11 and real Kubernetes 1.36. Runs with `GPU_BRIDGE_LABS=1`.

use std::collections::BTreeMap;

use anyhow::ensure;
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::model::Domain::{Kubernetes, Slurm};
use gpu_bridge_integration::labs::{LIMIT, Labs};
use gpu_bridge_integration::site::NODES;
use gpu_bridge_labs::wait_until;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_open_on_both_sides_are_adopted_and_released_as_found() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    // A daemon that manages nothing is in nobody's way: jobs and pods start as before.
    let daemon = labs.daemon(&labs.site()?).await?;
    let job = async |node| {
        labs.slurm.submit("alice", &["--gres=gpu:2", "-w", node, "-t", "60"], "sleep 3000").await
    };
    let jobs = [job("gpu2").await?, job("gpu4").await?];
    for one in jobs {
        labs.slurm.job_reaches(one, "RUNNING", LIMIT).await?;
    }
    labs.pod_on("on-gpu3", 2, "gpu3").await?;
    labs.pod_on("on-gpu4", 2, "gpu4").await?;
    labs.pod_runs("on-gpu3").await?;
    labs.pod_runs("on-gpu4").await?;
    // What a site has on its nodes: taints, a pool's label, annotations, a reservation of next year.
    labs.patch_node(
        "gpu1",
        &json!({
            "metadata": {"labels": {"nodepool": "gpu-inference", "rack": "r7"}, "annotations": {"owner": "ml"}},
            "spec": {"taints": [{"key": "rack", "value": "r7", "effect": "PreferNoSchedule"}]},
        }),
    )
    .await?;
    labs.slurm
        .run(&[
            "scontrol",
            "create",
            "reservation",
            "ReservationName=next-year",
            "StartTime=now+300days",
            "Duration=60",
            "Users=alice",
            "Nodes=gpu2",
        ])
        .await?;
    let mut before = BTreeMap::new();
    for node in NODES {
        before.insert(node, labs.marks(node).await?);
    }

    let published = daemon.published().await?;
    ensure!(published.nodes.iter().all(|n| n.management == "unmanaged"));
    // A plan changes nothing.
    let plan = daemon.cli_raw(&["adopt", "gpu[1-4]"]).await?;
    let said = String::from_utf8_lossy(&plan.stdout);
    ensure!(!plan.status.success(), "one of them must be refused: {said}\n{}", daemon.log_tail());
    for node in NODES {
        ensure!(labs.marks(node).await? == before[node], "{node} was touched by a plan");
    }
    let adopted = daemon.cli_raw(&["adopt", "gpu[1-4]", "--yes"]).await?;
    ensure!(adopted.status.code() == Some(1), "gpu4 is refused");
    let answer: serde_json::Value = serde_json::from_slice(&adopted.stdout)?;
    let denied = &answer["nodes"][3]["denied"];
    ensure!(denied["code"] == "GB0621", "{answer}");
    let refusal = denied["message"].to_string();
    ensure!(refusal.contains("on-gpu4") && refusal.contains(&format!("job {}", jobs[1])), "{answer}");
    for (node, owner) in [("gpu1", Slurm), ("gpu2", Slurm), ("gpu3", Kubernetes)] {
        daemon.arrives(node, owner).await?;
    }
    ensure!(labs.marks("gpu4").await? == before["gpu4"], "a refused node is not touched");
    ensure!(daemon.node("gpu4").await?.management == "unmanaged");
    // Closed means closed: the other side gives these nodes to nobody.
    ensure!(labs.bind("default", "nowhere", "gpu1").await.is_err());
    ensure!(labs.slurm.node_state("gpu3").await?.contains("DRAIN"));
    ensure!(labs.reservations().await?.len() == 2, "{:?}", labs.reservations().await?);

    daemon.releases_all_as_found().await?;
    for node in NODES {
        labs.marks_are(node, &before[node]).await?;
    }
    for one in jobs {
        ensure!(labs.slurm.job_state(one).await?.as_deref() == Some("RUNNING"));
    }
    ensure!(labs.pod_runs("on-gpu3").await? == "gpu3" && labs.pod_runs("on-gpu4").await? == "gpu4");
    daemon.stop().await
}

/// The DRAIN reason of a person.
const BAD_FAN: &str = "bad fan, ask Ann";

async fn drain(labs: &Labs, node: &str) -> anyhow::Result<()> {
    let reason = format!("Reason={BAD_FAN}");
    labs.slurm.run(&["scontrol", "update", &format!("NodeName={node}"), "State=DRAIN", &reason]).await?;
    Ok(())
}

async fn is_drained_by_ann(labs: &Labs, node: &str) -> anyhow::Result<bool> {
    let marks = labs.marks(node).await?;
    Ok(marks["state"].contains("DRAIN") && marks["reason"] == BAD_FAN)
}

async fn is_cordoned(labs: &Labs, node: &str) -> anyhow::Result<bool> {
    Ok(labs.marks(node).await?["unschedulable"] == "true")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_did_before_us_stands_after_us() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let cordon = json!({"spec": {"unschedulable": true}});
    drain(&labs, "gpu1").await?;
    labs.patch_node("gpu1", &cordon).await?;
    labs.slurm.node_reaches("gpu1", |state| state.contains("DRAIN"), LIMIT).await?;
    let mut before = BTreeMap::new();
    for node in NODES {
        before.insert(node, labs.marks(node).await?);
    }
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    ensure!(is_drained_by_ann(&labs, "gpu1").await? && is_cordoned(&labs, "gpu1").await?);

    // There: our drain stands over hers as long as the node is away. The cordon is not ours to lift.
    daemon.moves("gpu1", Kubernetes).await?;
    ensure!(is_cordoned(&labs, "gpu1").await?);
    // And back: hers stands again, word for word.
    daemon.moves("gpu1", Slurm).await?;
    ensure!(is_drained_by_ann(&labs, "gpu1").await? && is_cordoned(&labs, "gpu1").await?);
    watch.end().await?;
    daemon.releases_all_as_found().await?;
    for node in NODES {
        labs.marks_are(node, &before[node]).await?;
    }
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_do_during_a_handover_is_left_alone() -> anyhow::Result<()> {
    let Some(labs) = Labs::up_or_skip().await? else { return Ok(()) };
    let cordon = json!({"spec": {"unschedulable": true}});
    let watch = labs.watch().await?;
    let daemon = labs.daemon(&labs.site()?).await?;
    daemon.adopt("gpu[1-4]", Slurm).await?;
    let job = labs.slurm.submit("alice", &["--gres=gpu:4", "-w", "gpu1", "-t", "5"], "sleep 12").await?;
    labs.slurm.job_reaches(job, "RUNNING", LIMIT).await?;

    // A person drains over our drain, and cordons: the gate counts as weakened, and the other does not open.
    daemon.start_move("gpu1", Kubernetes).await?;
    daemon.reaches("gpu1", "draining").await?;
    wait_until("our drain", LIMIT, async || {
        let marks = labs.marks("gpu1").await.map_err(|error| error.to_string())?;
        if marks["reason"].starts_with("gpu-bridge:") { Ok(()) } else { Err(format!("{marks:?}")) }
    })
    .await?;
    drain(&labs, "gpu1").await?;
    labs.patch_node("gpu1", &cordon).await?;
    labs.slurm.job_reaches(job, "COMPLETED", LIMIT).await?;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let node = daemon.node("gpu1").await?;
    ensure!(matches!(node.slurm, Gate::Weakened { .. }) && node.kubernetes == Gate::Closed, "{node:?}");
    ensure!(node.handover.as_ref().is_some_and(|handover| handover.step == "draining"), "{node:?}");
    ensure!(is_drained_by_ann(&labs, "gpu1").await?);
    // She lifts it: ours goes back on, and the handover goes on. The cordon stays.
    labs.slurm.run(&["scontrol", "update", "NodeName=gpu1", "State=RESUME"]).await?;
    daemon.arrives("gpu1", Kubernetes).await?;
    ensure!(is_cordoned(&labs, "gpu1").await?);

    // On the way back she drains again: the node comes home drained, and she is the one to lift it.
    daemon.start_move("gpu1", Slurm).await?;
    drain(&labs, "gpu1").await?;
    daemon.arrives("gpu1", Slurm).await?;
    ensure!(is_drained_by_ann(&labs, "gpu1").await? && is_cordoned(&labs, "gpu1").await?);
    ensure!(!labs.reservations().await?.keys().any(|name| name.starts_with("gpu-bridge_")));
    labs.no_job_was_lost(&[job]).await?;
    watch.end().await?;
    daemon.stop().await
}
