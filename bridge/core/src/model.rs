//! The site: its GPU nodes, its pools and the rules that people set for them. Plain data from the configuration; decides
//! nothing and knows nothing of what was observed.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::facts::kubernetes::Taint;
use crate::ids::{KubeNodeName, NodeName, PoolName, SlurmNodeName};

/// One of the two schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Slurm.
    Slurm,
    /// Kubernetes.
    Kubernetes,
}

impl Domain {
    /// The one that is not this.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Slurm => Self::Kubernetes,
            Self::Kubernetes => Self::Slurm,
        }
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A GPU host of the inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name here.
    pub name: NodeName,
    /// Its name in Slurm.
    pub slurm: SlurmNodeName,
    /// Its name in Kubernetes.
    pub kubernetes: KubeNodeName,
    /// GPU model, such as `a100`.
    pub gpu_model: String,
    /// GPUs it has.
    pub gpus: u32,
    /// Switch, rack or NVLink block it belongs to.
    pub topology_block: Option<String>,
    /// The pool it belongs to when nobody borrows it.
    pub home: PoolName,
}

/// What a pool is in its domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// A Slurm partition.
    Partition {
        /// Its name in Slurm.
        partition: String,
    },
    /// Kubernetes Nodes with these labels and taints.
    NodePool {
        /// Labels set on a node of the pool.
        labels: BTreeMap<String, String>,
        /// Taints set on a node of the pool.
        taints: Vec<Taint>,
    },
}

/// What happens when a handover's jobs or pods are not gone by its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Escalation {
    /// Wait on, with an alarm.
    Wait,
    /// Give the node back to the domain that it was leaving.
    RollBack,
}

/// Whether a node's own word is needed before a gate opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeWordRule {
    /// It must say that no process holds a GPU.
    Required,
    /// The site has no node check for this pool, and says why that is acceptable.
    AbsentAllowed {
        /// The site's reason; shown on every status line.
        reason: String,
    },
}

/// Named capacity inside one domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// What it is in its domain.
    pub kind: PoolKind,
    /// Nodes that it must keep: none is taken below this.
    pub floor: u32,
    /// Nodes that it may have at most; `None` for no limit.
    pub ceiling: Option<u32>,
    /// Handovers into or out of it at once.
    pub max_handovers: u32,
    /// How long leaving jobs (Slurm) or pods (Kubernetes) may take before the escalation decides.
    pub deadline: SignedDuration,
    /// What happens then.
    pub escalation: Escalation,
    /// Pods at or above this priority are never evicted; `None` for no such limit.
    pub protected_priority: Option<i32>,
    /// Whether the node's own word is needed when a node enters or leaves the pool.
    pub node_word: NodeWordRule,
}

impl Pool {
    /// The domain it is in.
    pub fn domain(&self) -> Domain {
        match self.kind {
            PoolKind::Partition { .. } => Domain::Slurm,
            PoolKind::NodePool { .. } => Domain::Kubernetes,
        }
    }
}

/// Everything that the configuration says about nodes and pools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Site {
    /// The inventory.
    pub nodes: BTreeMap<NodeName, Node>,
    /// The pools.
    pub pools: BTreeMap<PoolName, Pool>,
}

impl Site {
    /// Every taint key that some Kubernetes pool uses; several pools', several times.
    pub fn pool_taint_keys(&self) -> impl Iterator<Item = &str> {
        self.node_pools().flat_map(|(_, taints)| taints.iter().map(|taint| taint.key.as_str()))
    }

    /// Every label key that some Kubernetes pool uses; several pools', several times.
    pub fn pool_label_keys(&self) -> impl Iterator<Item = &str> {
        self.node_pools().flat_map(|(labels, _)| labels.keys().map(String::as_str))
    }

    fn node_pools(&self) -> impl Iterator<Item = (&BTreeMap<String, String>, &Vec<Taint>)> {
        self.pools.values().filter_map(|pool| match &pool.kind {
            PoolKind::Partition { .. } => None,
            PoolKind::NodePool { labels, taints } => Some((labels, taints)),
        })
    }
}
