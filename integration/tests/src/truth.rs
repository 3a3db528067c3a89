//! What stands on the two real schedulers, read past the daemon: by scontrol and with an administrator's Kubernetes client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gpu_bridge_core::mark::{GATE_NAME, LABEL_OWNER, TAINT_DRAINING, TAINT_SLURM};
use gpu_bridge_labs::wait_until;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{GetParams, ListParams};
use kube::core::request::Request;
use kube::{Api, Client};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::labs::{LIMIT, Labs};

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// Everything on a node that gpu-bridge could change, by name.
pub type Marks = BTreeMap<&'static str, String>;

impl Labs {
    /// What stands on a node in both, byte for byte. Of a DRAIN the reason, not who wrote it when.
    pub async fn marks(&self, node: &str) -> anyhow::Result<Marks> {
        let mut marks = Marks::new();
        let shown = self.slurm.run(&["scontrol", "-o", "show", "node", node]).await?;
        let field = |name: &str| shown.split_once(name).map(|(_, rest)| rest);
        let state = field(" State=").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        marks.insert("state", state.to_owned());
        // Without accounting, 24.11 keeps the text of a DRAIN that was lifted until the next job; it means nothing then.
        let reason = field(" Reason=").filter(|_| state.contains("DRAIN"));
        let reason = reason.map(|rest| rest.split(" [").next().unwrap_or(rest));
        marks.insert("reason", reason.unwrap_or_default().trim().to_owned());
        let reservations = self.reservations().await?;
        let ours: Vec<&str> = reservations
            .iter()
            .filter(|(_, text)| text.contains(node))
            .map(|(_, text)| text.as_str())
            .collect();
        marks.insert("reservations", ours.join("\n"));
        let object = self.kube_node(node).await?;
        let spec = object.spec.unwrap_or_default();
        marks.insert("taints", serde_json::to_string(&spec.taints.unwrap_or_default())?);
        marks.insert("unschedulable", spec.unschedulable.unwrap_or_default().to_string());
        marks.insert("labels", serde_json::to_string(&object.metadata.labels)?);
        marks.insert("annotations", serde_json::to_string(&object.metadata.annotations)?);
        marks.insert("listed", self.listed(node).await?.to_string());
        Ok(marks)
    }

    /// Slurm's reservations: their names, and the whole of them as scontrol prints them.
    pub async fn reservations(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let shown = self.slurm.run(&["scontrol", "-o", "show", "reservation"]).await?;
        let named = shown.lines().filter_map(|line| {
            let name = line.strip_prefix("ReservationName=")?.split(' ').next()?;
            Some((name.to_owned(), line.to_owned()))
        });
        Ok(named.collect())
    }

    /// Whether the Gate closes the node.
    pub async fn listed(&self, node: &str) -> anyhow::Result<bool> {
        let request = Request::new("/apis/gpu-bridge.io/v1/gates").get(GATE_NAME, &GetParams::default())?;
        match self.client().await?.request::<serde_json::Value>(request).await {
            Ok(gate) => {
                Ok(gate["spec"]["closed"].as_array().is_some_and(|all| all.iter().any(|n| n == node)))
            }
            // The first who closes a node makes it.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until what stands on a node is as given.
    pub async fn marks_are(&self, node: &str, wanted: &Marks) -> anyhow::Result<()> {
        wait_until(&format!("{node} to bear what it bore"), LIMIT, async || {
            let now = self.marks(node).await.map_err(|error| error.to_string())?;
            let differ: Vec<String> = wanted
                .iter()
                .filter(|(name, value)| now.get(*name) != Some(value))
                .map(|(name, value)| format!("{name}: {value:?} became {:?}", now.get(name)))
                .collect();
            if differ.is_empty() { Ok(()) } else { Err(differ.join("\n")) }
        })
        .await?;
        Ok(())
    }

    /// Fails where a job was lost: each must be waiting, at work or completed.
    pub async fn no_job_was_lost(&self, jobs: &[u32]) -> anyhow::Result<()> {
        for job in jobs {
            let state = self.slurm.job_state(*job).await?;
            match state.as_deref() {
                // slurmctld forgets completed jobs after a while.
                None | Some("COMPLETED" | "COMPLETING" | "RUNNING" | "PENDING") => {}
                Some(other) => bail!("job {job} is {other}"),
            }
            let shown = self.slurm.exec(&["scontrol", "-o", "show", "job", &job.to_string()]).await?;
            if shown.stdout.contains(" Restarts=") && !shown.stdout.contains(" Restarts=0 ") {
                bail!("job {job} was started again: {}", shown.stdout);
            }
        }
        Ok(())
    }

    /// Begins to watch for nodes that both may use.
    pub async fn watch(&self) -> anyhow::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut scontrol = self.slurm.command_prefix();
        scontrol.extend(["scontrol", "-o", "show", "nodes"].map(str::to_owned));
        let task = tokio::spawn(look_on(Arc::clone(&stop), scontrol, self.client().await?));
        Ok(Watch { stop, task })
    }
}

/// Looks at both schedulers all the time, past the daemon. A node counts from when it bears an owner's label.
pub struct Watch {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    looks: u32,
    wrong: Vec<String>,
}

impl Watch {
    /// Ends it; fails where a node was ever open on both sides, or had work of both.
    pub async fn end(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.task.await?;
        if seen.looks < 5 {
            bail!("the watch saw both schedulers only {} times", seen.looks);
        }
        if !seen.wrong.is_empty() {
            bail!("double allocation: {}", seen.wrong.join("\n"));
        }
        Ok(())
    }
}

async fn look_on(stop: Arc<AtomicBool>, scontrol: Vec<String>, client: Client) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        // One of the two may be away: that is not what is watched for.
        if let Ok(wrong) = look(&scontrol, &client).await {
            seen.looks += 1;
            seen.wrong.extend(wrong);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    seen
}

async fn look(scontrol: &[String], client: &Client) -> anyhow::Result<Vec<String>> {
    let before = slurm(scontrol).await?;
    let limit = Duration::from_secs(5);
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = tokio::time::timeout(limit, nodes.list(&ListParams::default())).await??;
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = tokio::time::timeout(limit, pods.list(&ListParams::default())).await??;
    let after = slurm(scontrol).await?;
    let mut wrong = Vec::new();
    for node in nodes.items {
        let name = node.metadata.name.unwrap_or_default();
        if !node.metadata.labels.unwrap_or_default().contains_key(LABEL_OWNER) {
            continue;
        }
        let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
        let open = !taints.iter().any(|taint| taint.key == TAINT_DRAINING || taint.key == TAINT_SLURM);
        let works = pods.items.iter().any(|pod| {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            on == Some(name.as_str()) && phase == Some("Running")
        });
        // It may have changed in between: only what was so before and after was so.
        let slurm =
            |is: fn(&str) -> bool| [&before, &after].iter().all(|s| s.get(&name).is_some_and(|s| is(s)));
        if open && slurm(|state| !state.contains("DRAIN")) {
            wrong.push(format!("{name} is open on both sides: {before:?}, taints {taints:?}"));
        }
        if works && slurm(|state| state.contains("ALLOCATED") || state.contains("MIXED")) {
            wrong.push(format!("{name} has jobs and pods: {before:?}"));
        }
    }
    Ok(wrong)
}

/// State of each node, by name.
async fn slurm(scontrol: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let (program, args) = scontrol.split_first().context("no scontrol")?;
    let output = Command::new(program).args(args).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(5), output).await??;
    if !output.status.success() {
        bail!("scontrol: {}", String::from_utf8_lossy(&output.stderr));
    }
    let shown = String::from_utf8(output.stdout)?;
    let nodes = shown.lines().filter_map(|line| {
        let word = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        Some((word("NodeName=")?.to_owned(), word("State=")?.to_owned()))
    });
    Ok(nodes.collect())
}
