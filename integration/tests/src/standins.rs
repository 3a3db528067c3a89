//! The two stand-ins side by side on one virtual clock, with the same nodes in both.

use std::sync::Arc;

use gpu_bridge::daemon::clock::{Clock as _, ManualClock};
use gpu_bridge_core::mark::TAINT_SLURM;
use kube_mock::{Id, NodeSpec, Resource};
use serde_json::{Value, json};

/// slurm-mock and kube-mock.
pub struct Standins {
    /// slurmrestd and scontrol.
    pub slurm: slurm_mock::server::Handle,
    /// The API server.
    pub kubernetes: kube_mock::server::Handle,
}

impl Standins {
    /// Starts both with these nodes, four GPUs each, open on both sides.
    pub async fn up(clock: &ManualClock, nodes: &[&str]) -> anyhow::Result<Self> {
        let count = u32::try_from(nodes.len())?;
        let time = || {
            let clock = clock.clone();
            move || clock.now()
        };
        let cluster = slurm_mock::Cluster::uniform(count, 4, clock.now());
        let slurm =
            slurm_mock::server::serve(slurm_mock::server::Options::new(cluster, Arc::new(time()))).await?;
        let mut cluster = kube_mock::Cluster::new(clock.now());
        for node in nodes {
            cluster.add_node(&NodeSpec { name: (*node).to_owned(), gpus: 4, ..NodeSpec::default() });
        }
        let kubernetes = kube_mock::server::serve(cluster, Arc::new(time())).await?;
        Ok(Self { slurm, kubernetes })
    }

    /// slurmrestd's URL.
    pub fn slurm_url(&self) -> anyhow::Result<String> {
        Ok(self.slurm.url())
    }

    /// A token that it takes.
    pub fn slurm_token(&self) -> &'static str {
        "mock-token"
    }

    /// The command line for scontrol: this very program.
    pub fn scontrol(&self) -> anyhow::Result<Vec<String>> {
        let program = std::env::current_exe()?.into_os_string().into_string();
        let program = program.map_err(|name| anyhow::anyhow!("{} is not UTF-8", name.display()))?;
        Ok(vec![program, "scontrol".to_owned(), self.slurm_url()?, "--".to_owned()])
    }

    /// Puts the guards in place. What the stand-in has no notion of (roles) is left out.
    pub fn install(&self, objects: &[Value]) {
        self.kubernetes.cluster(|cluster| {
            for object in objects {
                let resource = match object["kind"].as_str() {
                    Some("ValidatingAdmissionPolicy") => Resource::ValidatingAdmissionPolicies,
                    Some("ValidatingAdmissionPolicyBinding") => Resource::ValidatingAdmissionPolicyBindings,
                    _ => continue,
                };
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                cluster.create(&Id::cluster(resource, name), object.clone());
            }
        });
    }

    /// A PodDisruptionBudget over the pods of an app.
    pub fn budget(&self, app: &str, max_unavailable: u32) {
        let budget = json!({
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"maxUnavailable": max_unavailable, "selector": {"matchLabels": {"app": app}}},
        });
        self.kubernetes.cluster(|cluster| {
            cluster.create(&Id::namespaced(Resource::PodDisruptionBudgets, "default", app), budget.clone());
        });
    }

    /// The truth: could both schedulers start new work on the node, or do both have processes on it?
    pub fn may_start_both(&self, node: &str) -> bool {
        let name = slurm_mock::model::NodeName::from(node);
        let (slurm_open, slurm_runs) = self.slurm.cluster(|cluster| {
            let now = cluster.now();
            let drained = cluster.node(&name).is_some_and(|view| view.state().contains(&"DRAIN"));
            let runs = cluster.truth().processes_on(&name, now).next().is_some();
            (!drained, runs)
        });
        let (kubernetes_open, kubernetes_runs) = self.kubernetes.cluster(|cluster| {
            let tainted = cluster.get(&Id::node(node)).is_some_and(has_taint);
            (!tainted, cluster.processes_on(node).next().is_some())
        });
        (slurm_runs && kubernetes_runs) || (slurm_open && kubernetes_open && self.is_adopted(node))
    }

    fn is_adopted(&self, node: &str) -> bool {
        self.kubernetes.cluster(|cluster| {
            let object = cluster.get(&Id::node(node));
            object.is_some_and(|object| object.pointer("/metadata/labels/gpu-bridge.io~1owner").is_some())
        })
    }
}

fn has_taint(node: &Value) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == TAINT_SLURM))
}
