//! Real Slurm and a real Kubernetes control plane, side by side, with the same four nodes in both, and a daemon's site on
//! them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use gpu_bridge::slurm::Mode;
use gpu_bridge::{assemble, config};
use gpu_bridge_labs::{kubernetes, slurm, wait_until};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::request::Request;
use kube::{Api, Client};

use crate::daemon::Daemon;
use crate::site::{BURST_LABEL, NODES, Site};

/// Anything that a real scheduler does takes at most this long, also on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(2);
/// The daemon's user in Kubernetes.
pub const WRITER: &str = "gpu-bridge";

/// Why this machine can't run Slurm, where it can't.
pub fn slurm_unsupported() -> Option<String> {
    if std::env::var_os("GPU_BRIDGE_LABS").is_none() {
        return Some("GPU_BRIDGE_LABS is not set: `cargo xtask test` sets it".to_owned());
    }
    slurm::unsupported()
}

/// Why this machine can't run both, where it can't.
pub async fn unsupported() -> Option<String> {
    match slurm_unsupported() {
        Some(reason) => Some(reason),
        None => gpu_bridge_labs::kubernetes::unsupported().await,
    }
}

/// The two schedulers and a folder for a daemon.
pub struct Labs {
    /// Slurm, of release 24.11 where no other one was asked for.
    pub slurm: slurm::Lab,
    /// Kubernetes 1.36.
    pub kubernetes: kubernetes::Lab,
    folder: tempfile::TempDir,
}

impl Labs {
    /// Starts both, or says why this machine can't.
    pub async fn up_or_skip() -> anyhow::Result<Option<Self>> {
        Self::of_release_or_skip(slurm::Options::default().release).await
    }

    /// The same with another Slurm.
    pub async fn of_release_or_skip(release: slurm::Release) -> anyhow::Result<Option<Self>> {
        if let Some(reason) = unsupported().await {
            eprintln!("skipped: {reason}");
            return Ok(None);
        }
        Self::of_release(release).await.map(Some)
    }

    /// Starts both, guards installed.
    pub async fn up() -> anyhow::Result<Self> {
        Self::of_release(slurm::Options::default().release).await
    }

    async fn of_release(release: slurm::Release) -> anyhow::Result<Self> {
        let options = kubernetes::Options {
            users: vec![kubernetes::User::new(WRITER)],
            nodes: kubernetes::Node::several(NODES.len()),
            ..kubernetes::Options::default()
        };
        let (slurm, kubernetes) = tokio::try_join!(
            async {
                slurm::Lab::up(slurm::Options { release, ..Default::default() }).await.context("Slurm lab")
            },
            async { kubernetes::Lab::up(options).await.context("Kubernetes lab") }
        )?;
        let labs = Self { slurm, kubernetes, folder: tempfile::tempdir()? };
        labs.write_token(Duration::from_hours(24)).await?;
        labs.install().await?;
        Ok(labs)
    }

    /// Installs guards and rights, as an admin would with what `gpu-bridge kubernetes manifests` prints.
    pub async fn install(&self) -> anyhow::Result<()> {
        let mut site = self.site()?;
        site.kubeconfig = self.kubernetes.kubeconfig();
        let config =
            config::check(&self.write(&site)?).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
        assemble::kubernetes_port(&config).await?.install().await.context("the guards")?;
        Ok(())
    }

    /// Writes a token for the daemon that lives this long.
    pub async fn write_token(&self, lifespan: Duration) -> anyhow::Result<()> {
        let token = self.slurm.token("slurm", lifespan).await?;
        std::fs::write(self.token_file(), token)?;
        Ok(())
    }

    /// The daemon's token file.
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("slurm.jwt")
    }

    /// The daemon's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The daemon's state folder.
    pub fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The small site on these two.
    pub fn site(&self) -> anyhow::Result<Site> {
        Ok(Site {
            state_dir: self.state_dir(),
            socket: self.socket(),
            mode: Mode::Rest,
            slurm_url: self.slurm.rest_url(),
            token_file: self.token_file(),
            scontrol: self.slurm.scontrol_command(),
            kubeconfig: self.kubernetes.kubeconfig_of(WRITER)?,
            kubernetes_user: WRITER.to_owned(),
            prewarm: None,
            calendar: String::new(),
            deadline: "10m".to_owned(),
            escalation: "wait".to_owned(),
            floor: 0,
        })
    }

    /// Writes the configuration file of a site.
    pub fn write(&self, site: &Site) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join("gpu-bridge.toml");
        std::fs::write(&path, site.toml())?;
        Ok(path)
    }

    /// Starts a daemon on a site.
    pub async fn daemon(&self, site: &Site) -> anyhow::Result<Daemon> {
        Daemon::start(&self.write(site)?, &site.socket).await
    }

    /// An administrator's Kubernetes client.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(self.kubernetes.client().await?)
    }

    /// A Node.
    pub async fn kube_node(&self, name: &str) -> anyhow::Result<Node> {
        Ok(Api::<Node>::all(self.client().await?).get(name).await?)
    }

    /// Creates a GPU pod of the burst pool.
    pub async fn burst_pod(&self, name: &str, gpus: u32) -> anyhow::Result<()> {
        let (key, value) = BURST_LABEL;
        self.pod(name, gpus, &serde_json::json!({"nodeSelector": {key: value}})).await
    }

    /// Creates a GPU pod that wants one node.
    pub async fn pod_on(&self, name: &str, gpus: u32, node: &str) -> anyhow::Result<()> {
        self.pod(name, gpus, &serde_json::json!({"nodeSelector": {"kubernetes.io/hostname": node}})).await
    }

    /// Creates a pod with further fields of its spec.
    pub async fn pod(&self, name: &str, gpus: u32, spec: &serde_json::Value) -> anyhow::Result<()> {
        let mut pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "registry.example/inference:1",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]
            }
        });
        if let (Some(all), Some(more)) = (pod["spec"].as_object_mut(), spec.as_object()) {
            all.extend(more.clone());
        }
        let pods: Api<Pod> = Api::default_namespaced(self.client().await?);
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// Patches a Node as an administrator.
    pub async fn patch_node(&self, node: &str, patch: &serde_json::Value) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Gives a pod of the default namespace another app.
    pub async fn relabel(&self, pod: &str, app: &str) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::default_namespaced(self.client().await?);
        let patch = serde_json::json!({"metadata": {"labels": {"app": app}}});
        pods.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Makes a budget that never lets the last pod of an app go; returns once it counts.
    pub async fn keep_one(&self, namespace: &str, app: &str) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client().await?, namespace);
        let budget = serde_json::json!({
            "metadata": {"name": app},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
        });
        budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        wait_until("the budget to count its pod", LIMIT, async || {
            let budget = budgets.get(app).await.map_err(|error| error.to_string())?;
            let status = budget.status.unwrap_or_default();
            if status.current_healthy == 1 { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await?;
        Ok(())
    }

    /// Takes the budget away.
    pub async fn let_go(&self, namespace: &str, app: &str) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client().await?, namespace);
        budgets.delete(app, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a GPU pod that no scheduler knows, binds it to a node as a scheduler would, and waits until it runs.
    pub async fn bind(&self, namespace: &str, pod: &str, node: &str) -> anyhow::Result<()> {
        let client = self.client().await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let spec = serde_json::json!({
            "metadata": {"name": pod, "labels": {"app": pod}},
            "spec": {
                "schedulerName": "none",
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "registry.example/late:1",
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
            }
        });
        pods.create(&PostParams::default(), &serde_json::from_value(spec)?).await?;
        let binding = serde_json::json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}
        });
        let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods")).create_subresource(
            "binding",
            pod,
            &PostParams::default(),
            serde_json::to_vec(&binding)?,
        )?;
        let _: serde_json::Value = client.request(request).await?;
        wait_until(&format!("pod {pod} to run"), LIMIT, async || {
            let pod = pods.get(pod).await.map_err(|error| error.to_string())?;
            let status = pod.status.unwrap_or_default();
            if status.phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await?;
        Ok(())
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, name: &str) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::default_namespaced(self.client().await?);
        pods.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// All pods of the default namespace, as (name, node, phase).
    pub async fn pods(&self) -> anyhow::Result<Vec<(String, String, String)>> {
        let pods: Api<Pod> = Api::default_namespaced(self.client().await?);
        let list = pods.list(&ListParams::default()).await?;
        Ok(list
            .items
            .into_iter()
            .map(|pod| {
                let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
                let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
                (pod.metadata.name.unwrap_or_default(), node, phase)
            })
            .collect())
    }

    /// Waits until a pod runs; gives its node.
    pub async fn pod_runs(&self, name: &str) -> anyhow::Result<String> {
        let client = self.client().await?;
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let events: Api<Event> = Api::default_namespaced(client);
        let node = wait_until(&format!("pod {name} to run"), LIMIT, async || {
            let pod = pods.get_opt(name).await.map_err(|error| error.to_string())?.unwrap_or_default();
            let phase = pod.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Running") {
                return Ok(pod.spec.and_then(|spec| spec.node_name).unwrap_or_default());
            }
            // What happened to it, for the message.
            let its = ListParams::default().fields(&format!("involvedObject.name={name}"));
            let events = events.list(&its).await.map_err(|error| error.to_string())?.items;
            let says = events.into_iter().filter_map(|event| event.message).collect::<Vec<_>>().join("; ");
            Err(format!("{phase:?}: {says}"))
        })
        .await?;
        Ok(node)
    }
}
