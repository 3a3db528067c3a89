//! The cluster: its objects, its time, and what happens in it by itself.
//!
//! Decides in which order things happen: whatever is due runs in the order of time, then of asking; after every change
//! the controllers look once around. What they do is in [`scheduler`], [`kubelet`], [`admission`] and [`disruption`].

mod admission;
mod disruption;
mod kubelet;
mod resource;
mod scheduler;
mod spec;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::Failure;

pub use kubelet::{Machine, Process};
pub use resource::{Id, Resource};
pub use spec::{NodeSpec, PodSpec, Workload};

/// Changes that a watch can still be given; older ones are answered with 410.
const LOG_CHANGES: usize = 20_000;

/// How long things take. All by the cluster's own clock.
#[derive(Debug, Clone)]
pub struct Settings {
    /// From the scheduler's decision to the binding: what may come up in between is the race.
    pub bind_delay: Duration,
    /// From the binding to the running process.
    pub start_delay: Duration,
    /// How long a process takes to end when asked (its grace cuts that short). A pod overrides it with the
    /// annotation `kube-mock/stop-seconds`; `kube-mock/run-seconds` lets it end by itself.
    pub stop_takes: Duration,
    /// Until a node whose kubelet is silent is no longer Ready.
    pub silence: Duration,
    /// How often a kubelet renews its lease.
    pub lease_period: Duration,
    /// How long the scheduler waits with a pod whose binding was refused.
    pub retry: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            bind_delay: Duration::ZERO,
            start_delay: Duration::from_secs(2),
            stop_takes: Duration::from_secs(2),
            silence: Duration::from_secs(40),
            lease_period: Duration::from_secs(10),
            retry: Duration::from_secs(1),
        }
    }
}

/// What a `SelfSubjectAccessReview` is told to refuse. An empty field matches everything.
#[derive(Debug, Clone, Default)]
pub struct Denied {
    /// Verb, such as `patch`.
    pub verb: String,
    /// Resource, such as `nodes`.
    pub resource: String,
    /// Subresource, such as `eviction`.
    pub subresource: String,
}

/// A Kubernetes cluster without I/O, clock or randomness.
#[derive(Debug, Clone)]
pub struct Cluster {
    now: Timestamp,
    version: u64,
    uids: u64,
    objects: BTreeMap<Id, Value>,
    pub(crate) log: VecDeque<Change>,
    agenda: BTreeMap<(Timestamp, u64), Task>,
    tasks: u64,
    machines: BTreeMap<String, kubelet::Host>,
    processes: BTreeMap<String, Process>,
    workloads: BTreeMap<(String, String), Workload>,
    /// Pods that the scheduler has decided about, by uid, with the node it chose.
    decided: BTreeMap<String, String>,
    /// How long things take.
    pub settings: Settings,
    /// What access reviews refuse.
    pub denied: Vec<Denied>,
}

/// One change of one object, for watches.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) id: Id,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// What is due at some time.
#[derive(Debug, Clone)]
enum Task {
    Bind {
        pod: Id,
        uid: String,
        node: String,
    },
    /// The scheduler may look at this pod again.
    Retry {
        uid: String,
    },
    Start {
        pod: Id,
        uid: String,
    },
    Stop {
        pod: Id,
        uid: String,
    },
    Finish {
        pod: Id,
        uid: String,
    },
    Silent {
        node: String,
        since: Timestamp,
    },
}

impl Cluster {
    /// An empty cluster at a time, with the namespaces `default`, `kube-system` and `kube-node-lease`.
    pub fn new(now: Timestamp) -> Self {
        let mut cluster = Cluster {
            now,
            version: 1000,
            uids: 0,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            agenda: BTreeMap::new(),
            tasks: 0,
            machines: BTreeMap::new(),
            processes: BTreeMap::new(),
            workloads: BTreeMap::new(),
            decided: BTreeMap::new(),
            settings: Settings::default(),
            denied: Vec::new(),
        };
        for name in ["default", "kube-system", "kube-node-lease"] {
            cluster.insert(&Id::cluster(Resource::Namespaces, name), json!({"status": {"phase": "Active"}}));
        }
        cluster
    }

    /// The cluster's time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Lets time pass, and everything happen that is due until then. Time never goes back.
    pub fn advance_to(&mut self, to: Timestamp) {
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > to {
                break;
            }
            let ((due, _), task) = entry.remove_entry();
            self.now = self.now.max(due);
            self.run(task);
            self.settle();
        }
        self.now = self.now.max(to);
        self.renew_leases();
        self.settle();
    }

    /// When something is due next, if anything is.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.agenda.first_key_value().map(|((due, _), _)| *due)
    }

    /// An object as it stands.
    pub fn get(&self, id: &Id) -> Option<&Value> {
        self.objects.get(id)
    }

    /// All objects of a resource, in the order of namespace and name.
    pub fn all(&self, resource: Resource) -> impl Iterator<Item = (&Id, &Value)> {
        self.objects.iter().filter(move |(id, _)| id.resource == resource)
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Creates an object as it is, past all admission. For setting the stage; `None` if it exists.
    pub fn create(&mut self, id: &Id, object: Value) -> Option<&Value> {
        if self.objects.contains_key(id) {
            return None;
        }
        self.insert(id, object);
        self.settle();
        self.objects.get(id)
    }

    /// Changes an object past all admission, as a controller or a person would. Says whether it is there.
    pub fn edit(&mut self, id: &Id, change: impl FnOnce(&mut Value)) -> bool {
        let there = self.change(id, change);
        self.settle();
        there
    }

    fn run(&mut self, task: Task) {
        match task {
            Task::Bind { pod, uid, node } => self.bind_decided(&pod, &uid, &node),
            Task::Retry { uid } => {
                self.decided.remove(&uid);
            }
            Task::Start { pod, uid } => self.start_process(&pod, &uid),
            Task::Stop { pod, uid } => self.stop_process(&pod, &uid),
            Task::Finish { pod, uid } => self.finish_process(&pod, &uid),
            Task::Silent { node, since } => self.note_silence(&node, since),
        }
    }

    /// The controllers' look around after a change. Each only acts on what it sees, so this comes to rest.
    pub(crate) fn settle(&mut self) {
        for _ in 0..8 {
            let before = self.version;
            self.run_workloads();
            self.evict_by_taint();
            self.schedule();
            self.update_budgets();
            if self.version == before {
                return;
            }
        }
    }

    fn later(&mut self, delay: Duration, task: Task) {
        let due = self.now.checked_add(delay).unwrap_or(Timestamp::MAX);
        self.tasks += 1;
        self.agenda.insert((due, self.tasks), task);
    }

    /// Puts a new object in place, with uid and times.
    pub(crate) fn insert(&mut self, id: &Id, mut object: Value) {
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(id.name);
        if id.resource.info().namespaced {
            metadata["namespace"] = json!(id.namespace);
        }
        metadata["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.uids));
        metadata["creationTimestamp"] = json!(seconds(self.now));
        metadata["generation"] = json!(1);
        self.put(id, object);
    }

    /// Changes an object; nothing happens where the change changes nothing. Says whether the object is there.
    pub(crate) fn change(&mut self, id: &Id, change: impl FnOnce(&mut Value)) -> bool {
        let Some(before) = self.objects.get(id) else { return false };
        let mut after = before.clone();
        change(&mut after);
        if after != *before {
            if after.get("spec") != before.get("spec") {
                after["metadata"]["generation"] =
                    json!(before["metadata"]["generation"].as_u64().unwrap_or_default() + 1);
            }
            self.put(id, after);
        }
        true
    }

    fn put(&mut self, id: &Id, mut object: Value) {
        let info = id.resource.info();
        self.version += 1;
        object["apiVersion"] = json!(info.api_version());
        object["kind"] = json!(info.kind);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.insert(id.clone(), object.clone());
        self.record(id, before, Some(object));
    }

    pub(crate) fn remove(&mut self, id: &Id) -> Option<Value> {
        let before = self.objects.remove(id)?;
        self.version += 1;
        self.record(id, Some(before.clone()), None);
        Some(before)
    }

    fn record(&mut self, id: &Id, before: Option<Value>, after: Option<Value>) {
        self.log.push_back(Change { version: self.version, id: id.clone(), before, after });
        if self.log.len() > LOG_CHANGES {
            self.log.pop_front();
        }
    }

    /// The changes after a version; `Gone` if they are not remembered any more.
    pub(crate) fn changes_after(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Failure> {
        let oldest = self.log.front().map_or(self.version, |change| change.version - 1);
        if version < oldest {
            return Err(Failure::new(
                410,
                "Expired",
                format!("too old resource version: {version} ({oldest})"),
            ));
        }
        let start = self.log.partition_point(|change| change.version <= version);
        Ok(self.log.range(start..))
    }
}

/// A time as `metav1.Time` is written.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as `metav1.MicroTime` is written.
pub(crate) fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The text at a JSON pointer, empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer, empty if there is none.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets a condition of an object's status.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let old = conditions.iter().position(|c| c["type"] == kind);
    let mut new = json!({"type": kind, "status": status, "lastTransitionTime": seconds(now)});
    if !reason.is_empty() {
        new["reason"] = json!(reason);
        new["message"] = json!(message);
    }
    match old {
        Some(at) => {
            if conditions[at]["status"] == status {
                new["lastTransitionTime"] = conditions[at]["lastTransitionTime"].clone();
            }
            conditions[at] = new;
        }
        None => conditions.push(new),
    }
}
