//! What the daemon shows of itself: one value, made after every tick, that the API serves. Serializable as it stands;
//! its JSON is part of the versioned interface.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::demand::{Alike, Waiting, WaitsFor};
use gpu_bridge_core::facts::slurm::Reached;
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::handover::Handover;
use gpu_bridge_core::ids::{Epoch, HandoverId, JobId, NodeName, PoolName};
use gpu_bridge_core::model::Domain;
use gpu_bridge_core::planner::Plan;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Version of the daemon.
    pub version: String,
    /// The instant of the tick.
    pub at: Timestamp,
    /// The leadership.
    pub epoch: Epoch,
    /// Each domain: when it was last seen, or why it can't be.
    pub domains: Vec<DomainStatus>,
    /// Each node of the inventory.
    pub nodes: Vec<NodeStatus>,
    /// Each pool.
    pub pools: Vec<PoolStatus>,
    /// Each window.
    pub windows: Vec<WindowStatus>,
    /// What waits for GPUs in Slurm; absent while Slurm is not seen.
    #[serde(default)]
    pub demand: Option<DemandStatus>,
    /// Each policy.
    pub policies: Vec<PolicyStatus>,
    /// Conditions that a person should know of.
    pub alarms: Vec<String>,
    /// What the last tick planned, granted and denied.
    pub plan: Plan,
    /// Handovers under way.
    pub handovers: Vec<Handover>,
    /// The ledger's last line.
    pub ledger_seq: u64,
}

/// A domain, as the last look had it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// Which.
    pub domain: Domain,
    /// When it was seen in the last tick; absent where it was not.
    pub seen_at: Option<Timestamp>,
    /// Why it was not seen.
    pub unknown: Option<String>,
    /// How Slurm was reached; absent where it was not, and for Kubernetes.
    #[serde(default)]
    pub reached: Option<Reached>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: NodeName,
    /// `unmanaged`, `adopting`, `managed`, `releasing`, `quarantined`.
    pub management: String,
    /// Whose it is; absent while nobody's or not managed.
    pub owner: Option<Domain>,
    /// The pool it serves; absent where it serves none.
    pub pool: Option<PoolName>,
    /// The Slurm gate.
    pub slurm: Gate,
    /// The Kubernetes gate.
    pub kubernetes: Gate,
    /// Its handover, and the step of it.
    pub handover: Option<UnderWay>,
    /// What the handover waits for.
    pub waits_for: Vec<String>,
    /// Whether the node itself is asked before it moves, or why not.
    pub node_word: String,
}

/// A node's handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// Its id.
    pub id: HandoverId,
    /// The name of its step.
    pub step: String,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub pool: PoolName,
    /// Its domain.
    pub domain: Domain,
    /// Nodes that serve it.
    pub present: u32,
    /// Nodes on their way to it.
    pub arriving: u32,
    /// Nodes on their way from it.
    pub leaving: u32,
    /// Its floor.
    pub floor: u32,
    /// Its ceiling.
    pub ceiling: Option<u32>,
}

/// A window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowStatus {
    /// Its name.
    pub window: String,
    /// Its pool.
    pub pool: PoolName,
    /// Nodes it needs ready.
    pub nodes: u32,
    /// Whether it is on.
    pub on: bool,
    /// Start of the occurrence that is on, or comes next.
    pub start: Option<Timestamp>,
    /// Its end.
    pub end: Option<Timestamp>,
    /// Its owner.
    pub owner: String,
    /// Its ticket.
    pub ticket: Option<String>,
}

/// Jobs that are alike, and how many of them wait. In JSON the members of both stand side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// In what they are alike.
    #[serde(flatten)]
    pub alike: Alike,
    /// How many, and since when.
    #[serde(flatten)]
    pub waiting: Waiting,
}

/// What waits for GPUs in Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandStatus {
    /// Jobs that more nodes would let start, by partition, GPU type and size.
    pub waiting: Vec<WaitingStatus>,
    /// Jobs that wait for something else, by what.
    pub aside: BTreeMap<WaitsFor, u32>,
    /// Jobs that are too young to count.
    pub young: u32,
    /// Jobs that no nodes of their partitions could run, the first hundred.
    pub never: BTreeSet<JobId>,
    /// Pending jobs that are counted and no more: beyond what one look reads, or of more kinds than are told apart.
    pub unread: u32,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Its name.
    pub policy: String,
    /// `active` or `shadow`.
    pub mode: String,
    /// Its last error.
    pub error: Option<String>,
    /// What it wants; `None` until it has decided once since the daemon's start.
    pub wants: Option<Vec<gpu_bridge_core::planner::Want>>,
}
