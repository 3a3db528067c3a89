//! Setting the stage: nodes, pods and workloads in a few words.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::kubelet::Host;
use super::{Cluster, Id, Machine, Resource, seconds, text};

/// A node to register.
#[derive(Debug, Clone, Default)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// Its GPUs, all healthy.
    pub gpus: u64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Taints that it registers with: key, value, effect.
    pub taints: Vec<(String, String, String)>,
}

/// A pod to create.
#[derive(Debug, Clone, Default)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// GPUs that its one container asks for.
    pub gpus: u64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Node labels that it asks for.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations, as in the API.
    pub tolerations: Vec<Value>,
}

/// A number of like pods, kept up as a Deployment would. Pods are named after it, with a number behind.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// How many pods there should be.
    pub replicas: usize,
    /// What each is; its `name` is the workload's.
    pub pod: PodSpec,
    pub(super) created: u64,
}

impl Workload {
    /// So many pods like this one.
    pub fn new(replicas: usize, pod: PodSpec) -> Self {
        Workload { replicas, pod, created: 0 }
    }
}

impl Cluster {
    /// Registers a node with a running kubelet, or registers one again whose Node object was deleted.
    pub fn add_node(&mut self, spec: &NodeSpec) {
        let taints: Vec<Value> = spec
            .taints
            .iter()
            .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
            .collect();
        let mut labels = spec.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), spec.name.clone());
        let resources =
            json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": spec.gpus.to_string()});
        let mut node = json!({
            "metadata": {"labels": labels},
            "spec": {},
            "status": {"capacity": resources, "allocatable": resources},
        });
        if !taints.is_empty() {
            node["spec"]["taints"] = json!(taints);
        }
        self.insert(&Id::node(&spec.name), node);
        let host = Host { machine: Machine::Up, since: self.now };
        self.machines.insert(spec.name.clone(), host);
        self.set_ready(&spec.name, "True", "KubeletReady", "kubelet is posting ready status");
        self.renew_leases();
        self.settle();
    }

    /// Creates a pod, past admission; `false` if there is one of that name.
    pub fn add_pod(&mut self, spec: &PodSpec) -> bool {
        let id = Id::pod(&spec.namespace, &spec.name);
        if self.objects.contains_key(&id) {
            return false;
        }
        self.insert_pod(&id, spec.object());
        self.settle();
        true
    }

    /// Keeps up a workload from now on; another of the same name is replaced (its pods stay its pods).
    pub fn set_workload(&mut self, mut workload: Workload) {
        let key = (workload.pod.namespace.clone(), workload.pod.name.clone());
        workload.created = self.workloads.get(&key).map_or(0, |old| old.created);
        self.workloads.insert(key, workload);
        self.settle();
    }

    /// Puts a pod in place with the API server's defaults.
    pub(crate) fn insert_pod(&mut self, id: &Id, mut pod: Value) {
        pod["status"] = json!({"phase": "Pending"});
        let spec = &mut pod["spec"];
        for (field, default) in [
            ("terminationGracePeriodSeconds", json!(30)),
            ("restartPolicy", json!("Always")),
            ("schedulerName", json!("default-scheduler")),
        ] {
            if spec.get(field).is_none() {
                spec[field] = default;
            }
        }
        self.insert(id, pod);
        if !self.objects.get(id).is_none_or(|pod| text(pod, "/spec/nodeName").is_empty()) {
            self.take_in(id);
        }
    }

    pub(super) fn run_workloads(&mut self) {
        let keys: Vec<_> = self.workloads.keys().cloned().collect();
        for key in keys {
            let Some(workload) = self.workloads.get(&key).cloned() else { continue };
            let mut alive: Vec<Id> = self
                .all(Resource::Pods)
                .filter(|(id, pod)| {
                    id.namespace == key.0
                        && text(pod, "/metadata/labels/kube-mock~1workload") == key.1
                        && text(pod, "/metadata/deletionTimestamp").is_empty()
                        && !matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
                })
                .map(|(id, _)| id.clone())
                .collect();
            let mut created = workload.created;
            for _ in alive.len()..workload.replicas {
                created += 1;
                let mut pod = workload.pod.clone();
                pod.name = format!("{}-{created}", key.1);
                pod.labels.insert("kube-mock/workload".to_owned(), key.1.clone());
                self.insert_pod(&Id::pod(&key.0, &pod.name), pod.object());
            }
            if let Some(workload) = self.workloads.get_mut(&key) {
                workload.created = created;
            }
            while alive.len() > workload.replicas {
                // The youngest goes first, as with a Deployment's.
                if let Some(id) = alive.pop() {
                    self.delete_pod(&id, None);
                }
            }
        }
    }
}

impl PodSpec {
    fn object(&self) -> Value {
        let mut container = json!({"name": "main", "image": "example/app:1"});
        if self.gpus > 0 {
            let gpus = json!({"nvidia.com/gpu": self.gpus.to_string()});
            container["resources"] = json!({"limits": gpus, "requests": gpus});
        }
        let mut spec = json!({"containers": [container]});
        if !self.node_selector.is_empty() {
            spec["nodeSelector"] = json!(self.node_selector);
        }
        if !self.tolerations.is_empty() {
            spec["tolerations"] = json!(self.tolerations);
        }
        json!({"metadata": {"labels": self.labels, "annotations": self.annotations}, "spec": spec})
    }
}

impl Cluster {
    /// Sets the node's Ready condition.
    pub(super) fn set_ready(&mut self, node: &str, status: &str, reason: &str, message: &str) {
        let now = self.now;
        self.change(&Id::node(node), |node| {
            super::set_condition(node, "Ready", status, reason, message, now);
            for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
                condition["lastHeartbeatTime"] = serde_json::json!(seconds(now));
            }
        });
    }
}
