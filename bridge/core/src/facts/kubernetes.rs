//! What Kubernetes says: Nodes, the Gate object, the guards, who holds GPUs and who waits for them, in its own words but
//! free of the client library's types.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Names, Told};
use crate::ids::KubeNodeName;

/// One look at the cluster, GPU holders aside (see [`NodeLook`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kubernetes {
    /// The Nodes. One that is missing here does not exist: its gate is Unknown.
    pub nodes: Told<KubeNodeName, Node>,
    /// The `resourceVersion` of the LIST of Nodes; `None` where it is no number.
    pub revision: Option<u64>,
    /// The Gate object; `None` where it does not exist: nothing is on a list, and the bindings policy, which needs its
    /// parameter, refuses every binding to every managed node.
    pub gate: Option<GateObject>,
    /// Our admission policies.
    pub guards: Guards,
    /// GPU pods that wait because no node has room (`PodScheduled=False`, `Unschedulable`).
    pub pending: Vec<PendingPod>,
}

/// The Gate object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GateObject {
    /// Nodes that no untrusted pod may be bound to.
    pub closed: Names<KubeNodeName>,
}

/// The admission policies that back the gate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Guards {
    /// Refuses bindings to nodes on the Gate's list.
    pub bindings: GuardState,
    /// Refuses GPU pods that name a managed node or tolerate our taints.
    pub pods: GuardState,
    /// Refuses others' changes of our marks.
    pub marks: GuardState,
    /// Refuses others' changes of the Gate.
    pub gate: GuardState,
}

/// One admission policy with its binding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardState {
    /// Policy and binding stand as we print them.
    Standing,
    /// Policy or binding is missing.
    #[default]
    Missing,
    /// They are there, but not as we print them.
    Altered {
        /// What differs, for people.
        what: String,
    },
}

/// Condition `Ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// True.
    True,
    /// False.
    False,
    /// Unknown, or the condition is absent.
    Unknown,
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.uid`: another UID is another Node, even under the same name.
    pub uid: String,
    /// Condition Ready.
    pub ready: Ready,
    /// Allocatable GPUs, all configured resource names together.
    pub allocatable_gpus: u32,
    /// All taints, others' too.
    pub taints: Vec<Taint>,
    /// Labels that concern us: ours, and those of the configured pools.
    pub labels: BTreeMap<String, String>,
    /// Annotation [`crate::mark::ANNOTATION_HANDOVER`] as it stands there, unparsed.
    pub handover_annotation: Option<String>,
    /// `spec.unschedulable`: a person's (or kured's) cordon. Never ours.
    pub unschedulable: bool,
    /// `spec.renewTime` of the node's Lease; `None` where there is no Lease.
    pub lease_renewed_at: Option<Timestamp>,
}

impl Node {
    /// Is it Ready, not cordoned, and does it offer all of its GPUs?
    pub fn takes_pods(&self, gpus: u32) -> bool {
        self.ready == Ready::True && !self.unschedulable && self.allocatable_gpus == gpus
    }
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty where absent.
    pub value: String,
    /// Effect.
    pub effect: Effect,
}

/// A taint's effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Effect {
    /// NoSchedule.
    NoSchedule,
    /// PreferNoSchedule.
    PreferNoSchedule,
    /// NoExecute.
    NoExecute,
    /// A word that we don't know.
    Other(String),
}

/// A pod's identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a pod with the same name and another UID is a different pod.
    pub uid: String,
}

/// A GPU pod that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingPod {
    /// Which.
    pub pod: PodRef,
    /// GPUs that it asks for.
    pub gpus: u32,
    /// Its `nodeSelector`, for telling which pool could hold it.
    pub node_selector: BTreeMap<String, String>,
    /// Since when it waits.
    pub since: Timestamp,
}

/// One quorum LIST of what is on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeLook {
    /// Everything that holds a GPU of the node, or may get one (nominated).
    pub holders: Vec<Holder>,
    /// Other pods that NoExecute would evict (not tolerated, not finished): they too go through eviction first.
    pub others: Vec<Pod>,
    /// UIDs of pods that are still listed and whose containers are all terminated.
    pub ended: BTreeSet<String>,
    /// `spec.renewTime` of the node's Lease, read after the pods were listed.
    pub lease_renewed_at: Option<Timestamp>,
}

impl NodeLook {
    /// No GPU holder and nobody whom NoExecute would surprise.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.others.is_empty()
    }
}

/// Something that holds a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// A pod.
    Pod {
        /// Which.
        pod: Pod,
        /// Why it counts (`container "main" asks for nvidia.com/gpu: 2`).
        why: String,
    },
    /// A claim allocated on this node that no listed pod uses.
    Claim {
        /// `namespace/name`.
        claim: String,
        /// Why it counts.
        why: String,
    },
}

/// What eviction must know of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Which.
    pub pod: PodRef,
    /// Its priority (`spec.priority`), 0 where absent.
    pub priority: i32,
    /// How it may be moved.
    pub eviction: Eviction,
    /// GPUs that it holds; 0 for a CPU pod.
    pub gpus: u32,
    /// How long its containers may take to end once they are told to, in seconds.
    pub grace_s: u32,
    /// It has a deletion timestamp: its grace runs.
    pub told_to_end: bool,
}

/// May a pod be evicted, and how does it stand with that?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// Through the eviction API.
    Allowed,
    /// Never: marked do-not-disrupt. The handover waits, then rolls back.
    Protected {
        /// By what (`annotation …`).
        by: String,
    },
    /// It already has a deletion timestamp: wait for its end.
    Terminating,
    /// Only nominated to the node: it holds nothing yet, but may be bound at any moment.
    Nominated,
    /// A DaemonSet's or a static pod's mirror: evicting it is pointless.
    Pinned,
}

/// A write on Kubernetes. Each is idempotent: asking twice is as asking once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Create the missing Gate with its whole list; one that exists by then is left as it is.
    CreateGate {
        /// The nodes that are closed.
        closed: BTreeSet<KubeNodeName>,
    },
    /// Put a node on the Gate's closed list. Not done where the Gate went missing meanwhile.
    CloseGate {
        /// Which node.
        node: KubeNodeName,
    },
    /// Take a node off the list.
    OpenGate {
        /// Which node.
        node: KubeNodeName,
    },
    /// Bring our marks on the Node to this shape in one patch guarded by `resourceVersion`. Everything else on it stays.
    Mark(Marks),
    /// Evict a pod, with UID precondition, honouring budgets and grace.
    Evict {
        /// Which.
        pod: PodRef,
    },
}

/// Our marks on a Node, and the pool's labels and taints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Which Node.
    pub node: KubeNodeName,
    /// The UID it must have.
    pub uid: String,
    /// Taints that must be there.
    pub taints: Vec<Taint>,
    /// Taint keys of which no other may be there (ours, and those of configured pools). A taint whose key is not in
    /// here is never touched.
    pub taint_keys: BTreeSet<String>,
    /// Labels to set (`Some`) or to remove (`None`).
    pub labels: BTreeMap<String, Option<String>>,
    /// Our annotation: text, or `None` to remove it.
    pub annotation: Option<String>,
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acted {
    /// Done, or it was so already.
    Done,
    /// An eviction that a PodDisruptionBudget does not allow now: try again in some seconds.
    Budget {
        /// The server's words.
        why: String,
    },
    /// An eviction that can never succeed as things are (two budgets on one pod …): for a person.
    Refused {
        /// The server's words.
        why: String,
    },
}

/// What a dry-run binding to a node was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingProbe {
    /// Our policy refused it: the guard stands and the node is on the list.
    Refused,
    /// It got past admission: the guard does not stand for this node.
    Passed,
}
