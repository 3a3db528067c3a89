//! The kubelets: what really runs on the nodes.
//!
//! Decides when a process starts and ends. The truth is here, and differs from the API's objects where it does in life:
//! a frozen kubelet's processes live on after their pods were deleted.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::scheduler::{gpus_of, tolerates};
use super::{Cluster, Id, Resource, Task, list, micros, seconds, set_condition, text};

/// What a node's machine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// All is well.
    Up,
    /// The kubelet is stopped, what runs on the node runs on.
    Frozen,
    /// No power: nothing runs.
    Down,
}

#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) machine: Machine,
    pub(super) since: Timestamp,
}

/// A pod's process that really runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Where it runs.
    pub node: String,
    /// Whose it is.
    pub namespace: String,
    /// Whose it is.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// GPUs that it holds.
    pub gpus: u64,
    /// Since when.
    pub since: Timestamp,
    /// How long it takes to end when asked.
    stop_takes: Duration,
}

impl Cluster {
    /// Everything that really runs, whatever the API says.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// What really runs on a node.
    pub fn processes_on(&self, node: &str) -> impl Iterator<Item = &Process> {
        self.processes.values().filter(move |process| process.node == node)
    }

    /// Freezes, cuts or brings back a node's machine. Says whether there is such a node.
    pub fn set_machine(&mut self, node: &str, machine: Machine) -> bool {
        let Some(host) = self.machines.get_mut(node) else { return false };
        *host = Host { machine, since: self.now };
        match machine {
            Machine::Up => self.wake(node),
            Machine::Frozen => {}
            Machine::Down => self.processes.retain(|_, process| process.node != node),
        }
        if machine != Machine::Up {
            self.later(self.settings.silence, Task::Silent { node: node.to_owned(), since: self.now });
        }
        self.settle();
        true
    }

    fn is_up(&self, node: &str) -> bool {
        self.machines.get(node).is_some_and(|host| host.machine == Machine::Up)
    }

    /// A kubelet that comes back looks at all that is its.
    fn wake(&mut self, node: &str) {
        self.set_ready(node, "True", "KubeletReady", "kubelet is posting ready status");
        self.renew_leases();
        let orphans: Vec<Process> = self
            .processes_on(node)
            .filter(|p| {
                self.get(&Id::pod(&p.namespace, &p.pod)).is_none_or(|pod| text(pod, "/metadata/uid") != p.uid)
            })
            .cloned()
            .collect();
        for process in orphans {
            let pod = Id::pod(&process.namespace, &process.pod);
            self.later(process.stop_takes, Task::Stop { pod, uid: process.uid });
        }
        let pods: Vec<(Id, Option<i64>)> = self
            .all(Resource::Pods)
            .filter(|(_, pod)| text(pod, "/spec/nodeName") == node)
            .map(|(id, pod)| (id.clone(), pod["metadata"]["deletionGracePeriodSeconds"].as_i64()))
            .collect();
        for (id, grace) in pods {
            match grace {
                Some(grace) => self.plan_stop(&id, grace),
                None => self.take_in(&id),
            }
        }
    }

    pub(super) fn note_silence(&mut self, node: &str, since: Timestamp) {
        let silent =
            self.machines.get(node).is_some_and(|host| host.machine != Machine::Up && host.since == since);
        if silent {
            self.set_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.");
        }
    }

    /// A kubelet learns of a pod that is its.
    pub(super) fn take_in(&mut self, id: &Id) {
        let Some(pod) = self.objects.get(id) else { return };
        let uid = text(pod, "/metadata/uid").to_owned();
        let done = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        if !done && !self.processes.contains_key(&uid) {
            self.later(self.settings.start_delay, Task::Start { pod: id.clone(), uid });
        }
    }

    pub(super) fn start_process(&mut self, id: &Id, uid: &str) {
        let Some(pod) = self.same_pod(id, uid) else { return };
        let node = text(pod, "/spec/nodeName").to_owned();
        let going = !text(pod, "/metadata/deletionTimestamp").is_empty();
        if going || !self.is_up(&node) || self.processes.contains_key(uid) {
            return;
        }
        let gpus = gpus_of(pod);
        let Some(node_object) = self.get(&Id::node(&node)) else { return };
        let all: u64 = text(node_object, "/status/capacity/nvidia.com~1gpu").parse().unwrap_or(0);
        let held: u64 = self.processes_on(&node).map(|process| process.gpus).sum();
        let forbidden = list(node_object, "/spec/taints")
            .iter()
            .find(|t| t["effect"] == "NoExecute" && !tolerates(pod, t));
        let refusal = match forbidden {
            Some(taint) => Some(("Taint", format!("Pod does not tolerate {}", text(taint, "/key")))),
            None if gpus > 0 && held + gpus > all => {
                Some(("UnexpectedAdmissionError", "Allocate failed: not enough GPUs".to_owned()))
            }
            None => None,
        };
        let now = self.now;
        if let Some((reason, message)) = refusal {
            self.change(id, |pod| {
                pod["status"]["phase"] = json!("Failed");
                pod["status"]["reason"] = json!(reason);
                pod["status"]["message"] = json!(message);
            });
            return;
        }
        let annotated =
            |name: &str| text(pod, &format!("/metadata/annotations/kube-mock~1{name}")).parse().ok();
        let stop_takes = annotated("stop-seconds").map_or(self.settings.stop_takes, Duration::from_secs);
        let run_for = annotated("run-seconds").map(Duration::from_secs);
        let process = Process {
            node,
            namespace: id.namespace.clone(),
            pod: id.name.clone(),
            uid: uid.to_owned(),
            gpus,
            since: now,
            stop_takes,
        };
        self.processes.insert(uid.to_owned(), process);
        self.change(id, |pod| {
            pod["status"]["phase"] = json!("Running");
            pod["status"]["startTime"] = json!(seconds(now));
            set_condition(pod, "Ready", "True", "", "", now);
            set_container_states(pod, &json!({"running": {"startedAt": seconds(now)}}));
        });
        if let Some(run_for) = run_for {
            self.later(run_for, Task::Finish { pod: id.clone(), uid: uid.to_owned() });
        }
    }

    /// Plans the end of a pod's process, and with it of the pod's object.
    pub(super) fn plan_stop(&mut self, id: &Id, grace: i64) {
        let Some(pod) = self.objects.get(id) else { return };
        let uid = text(pod, "/metadata/uid").to_owned();
        let takes = self.processes.get(&uid).map_or(Duration::ZERO, |process| process.stop_takes);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        self.later(takes.min(grace), Task::Stop { pod: id.clone(), uid });
    }

    pub(super) fn stop_process(&mut self, id: &Id, uid: &str) {
        let node = match (self.processes.get(uid), self.same_pod(id, uid)) {
            (Some(process), _) => process.node.clone(),
            (None, Some(pod)) => text(pod, "/spec/nodeName").to_owned(),
            (None, None) => return,
        };
        // A frozen kubelet ends nothing and reports nothing; it will when it wakes.
        if !self.is_up(&node) {
            return;
        }
        self.processes.remove(uid);
        if self.same_pod(id, uid).is_some() {
            self.report_end(id, "Failed", 143);
            self.let_go(id);
        }
    }

    pub(super) fn finish_process(&mut self, id: &Id, uid: &str) {
        let Some(process) = self.processes.get(uid) else { return };
        let reports = self.is_up(&process.node);
        self.processes.remove(uid);
        if reports && self.same_pod(id, uid).is_some() {
            self.report_end(id, "Succeeded", 0);
        }
    }

    fn report_end(&mut self, id: &Id, phase: &str, code: i64) {
        let now = self.now;
        self.change(id, |pod| {
            pod["status"]["phase"] = json!(phase);
            set_condition(pod, "Ready", "False", "PodCompleted", "", now);
            set_container_states(pod, &json!({"terminated": {"exitCode": code, "finishedAt": seconds(now)}}));
        });
    }

    fn same_pod(&self, id: &Id, uid: &str) -> Option<&Value> {
        self.objects.get(id).filter(|pod| text(pod, "/metadata/uid") == uid)
    }

    /// Every kubelet that is up renews its lease, at the last multiple of the period.
    pub(super) fn renew_leases(&mut self) {
        let period = i64::try_from(self.settings.lease_period.as_secs()).unwrap_or(10).max(1);
        let up: Vec<(String, Timestamp)> = self
            .machines
            .iter()
            .filter(|(name, host)| host.machine == Machine::Up && self.objects.contains_key(&Id::node(name)))
            .map(|(name, host)| (name.clone(), host.since))
            .collect();
        for (name, since) in up {
            let age = self.now.as_second() - since.as_second();
            let at = since
                .checked_add(jiff::SignedDuration::from_secs(age - age.rem_euclid(period)))
                .unwrap_or(since);
            let id = Id::namespaced(Resource::Leases, "kube-node-lease", &name);
            let renewed = json!({
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": micros(at),
            });
            if !self.change(&id, |lease| lease["spec"] = renewed.clone()) {
                self.insert(&id, json!({"spec": renewed}));
            }
        }
    }
}

fn set_container_states(pod: &mut Value, state: &Value) {
    let statuses: Vec<Value> = list(pod, "/spec/containers")
        .iter()
        .map(|container| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                "ready": state.get("running").is_some(), "started": state.get("running").is_some(), "state": state,
            })
        })
        .collect();
    pod["status"]["containerStatuses"] = json!(statuses);
}
