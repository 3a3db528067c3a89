//! The scheduler: which pending pod goes to which node, and the binding, which comes later.
//!
//! Decides with what it sees at the moment of decision; the binding goes through admission at its own moment. In
//! between a taint may have come, which the binding does not look at: that is the race that the Gate closes.

use serde_json::{Value, json};

use super::{Cluster, Id, Resource, Task, list, set_condition, text};
use crate::api::Failure;

impl Cluster {
    pub(super) fn schedule(&mut self) {
        let waiting: Vec<Id> = self
            .all(Resource::Pods)
            .filter(|(_, pod)| {
                text(pod, "/spec/nodeName").is_empty()
                    && text(pod, "/metadata/deletionTimestamp").is_empty()
                    && text(pod, "/status/phase") == "Pending"
                    && text(pod, "/spec/schedulerName") == "default-scheduler"
                    && list(pod, "/spec/schedulingGates").is_empty()
                    && !self.decided.contains_key(text(pod, "/metadata/uid"))
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in waiting {
            let Some(pod) = self.objects.get(&id) else { continue };
            let uid = text(pod, "/metadata/uid").to_owned();
            let Some(node) = self.choose(pod) else {
                let now = self.now;
                let message = format!("0/{} nodes are available.", self.all(Resource::Nodes).count());
                self.change(&id, |pod| {
                    set_condition(pod, "PodScheduled", "False", "Unschedulable", &message, now);
                });
                continue;
            };
            self.decided.insert(uid.clone(), node.clone());
            let delay = self.settings.bind_delay;
            if delay.is_zero() {
                self.bind_decided(&id, &uid, &node);
            } else {
                self.later(delay, Task::Bind { pod: id, uid, node });
            }
        }
    }

    fn choose(&self, pod: &Value) -> Option<String> {
        let wanted = gpus_of(pod);
        let fits = |(id, node): (&Id, &Value)| {
            let ready = list(node, "/status/conditions")
                .iter()
                .any(|c| c["type"] == "Ready" && c["status"] == "True");
            let open = node["spec"]["unschedulable"] != true
                && list(node, "/spec/taints")
                    .iter()
                    .filter(|t| t["effect"] != "PreferNoSchedule")
                    .all(|taint| tolerates(pod, taint));
            let labels = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
            let asked = labels.is_none_or(|all| {
                all.iter().all(|(key, value)| node["metadata"]["labels"].get(key) == Some(value))
            });
            (ready && open && asked && wanted <= self.free_gpus(&id.name, node)).then(|| id.name.clone())
        };
        self.all(Resource::Nodes).find_map(fits)
    }

    fn free_gpus(&self, name: &str, node: &Value) -> u64 {
        let all: u64 = text(node, "/status/allocatable/nvidia.com~1gpu").parse().unwrap_or(0);
        let taken: u64 = self
            .all(Resource::Pods)
            .filter(|(_, pod)| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"))
            .filter(|(_, pod)| {
                text(pod, "/spec/nodeName") == name
                    || self.decided.get(text(pod, "/metadata/uid")).is_some_and(|node| node == name)
            })
            .map(|(_, pod)| gpus_of(pod))
            .sum();
        all.saturating_sub(taken)
    }

    pub(super) fn bind_decided(&mut self, id: &Id, uid: &str, node: &str) {
        if self.objects.get(id).is_none_or(|pod| text(pod, "/metadata/uid") != uid) {
            self.decided.remove(uid);
            return;
        }
        match self.bind(id, node) {
            Ok(()) => {
                self.decided.remove(uid);
            }
            Err(refused) => {
                let now = self.now;
                self.change(id, |pod| {
                    set_condition(pod, "PodScheduled", "False", "SchedulerError", &refused.message, now);
                });
                self.later(self.settings.retry, Task::Retry { uid: uid.to_owned() });
            }
        }
    }

    /// The binding subresource.
    pub(crate) fn bind(&mut self, id: &Id, node: &str) -> Result<(), Failure> {
        self.admit_binding(&id.namespace, node)?;
        let pod = self.objects.get(id).ok_or_else(|| Failure::not_found(id))?;
        if !text(pod, "/spec/nodeName").is_empty() {
            let message =
                format!("pod {} is already assigned to node {:?}", id.name, text(pod, "/spec/nodeName"));
            return Err(Failure::conflict(id, &message));
        }
        if !text(pod, "/metadata/deletionTimestamp").is_empty() {
            return Err(Failure::conflict(
                id,
                &format!("pod {} is being deleted, cannot be assigned to a host", id.name),
            ));
        }
        let now = self.now;
        self.change(id, |pod| {
            pod["spec"]["nodeName"] = json!(node);
            set_condition(pod, "PodScheduled", "True", "", "", now);
        });
        self.take_in(id);
        Ok(())
    }
}

/// GPUs that a pod asks for: the larger of its containers together and of any init container alone.
pub(super) fn gpus_of(pod: &Value) -> u64 {
    let of = |container: &Value| -> u64 {
        ["limits", "requests"]
            .iter()
            .filter_map(|kind| container["resources"][kind].get("nvidia.com/gpu"))
            .filter_map(|count| count.as_u64().or_else(|| count.as_str()?.parse().ok()))
            .max()
            .unwrap_or(0)
    };
    let main = list(pod, "/spec/containers").iter().map(of).sum::<u64>();
    main.max(list(pod, "/spec/initContainers").iter().map(of).max().unwrap_or(0))
}

/// Whether a pod tolerates a taint, for ever.
pub(super) fn tolerates(pod: &Value, taint: &Value) -> bool {
    list(pod, "/spec/tolerations").iter().any(|t| {
        let effect = text(t, "/effect");
        let key = text(t, "/key");
        let value_fits = t["operator"] == "Exists" || text(t, "/value") == text(taint, "/value");
        (effect.is_empty() || taint["effect"] == effect)
            && (key == text(taint, "/key") || (key.is_empty() && t["operator"] == "Exists"))
            && value_fits
    })
}
