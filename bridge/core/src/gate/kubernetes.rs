//! The Kubernetes gate, and what empty means in Kubernetes.
//!
//! Closed: on the Gate's list with a standing bindings policy behind it, and both our taints on the Node. Empty: NoExecute
//! is on, a quorum LIST shows neither GPU holder nor any pod that NoExecute would surprise, the Node is Ready, its Lease
//! was renewed after the last holder went, and each pod that was seen was seen to end or has had the time to.

use jiff::Timestamp;

use super::{Emptiness, Gate, from_guards};
use crate::facts::Seen;
use crate::facts::kubernetes::{
    Effect, Eviction, GuardState, Holder, Kubernetes, Node, NodeLook, Pod, Ready,
};
use crate::ids::KubeNodeName;
use crate::mark::{TAINT_DRAINING, TAINT_SLURM};

pub mod pods_seen;

pub use pods_seen::PodsSeen;

/// A Node as one look shows it.
#[derive(Debug, Clone, Copy)]
pub struct SeenNode<'a> {
    /// The look.
    pub kubernetes: &'a Kubernetes,
    /// The Node.
    pub node: &'a Node,
    /// Which of its guards stand.
    pub standing: Standing,
}

/// The Node in this look, or why it can't be judged.
pub fn find<'a>(facts: &'a Seen<Kubernetes>, name: &KubeNodeName) -> Result<SeenNode<'a>, String> {
    let kubernetes = match facts {
        Seen::Unknown { why } => return Err(why.clone()),
        Seen::At { value, .. } => value,
    };
    let node = kubernetes.nodes.get(name).ok_or_else(|| format!("Kubernetes has no Node {name}"))?;
    Ok(SeenNode { kubernetes, node, standing: standing(kubernetes, node, name) })
}

/// Which of the node's guards stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// On the Gate's closed list.
    pub listed: bool,
    /// Our NoSchedule taint.
    pub draining: bool,
    /// Our NoExecute taint.
    pub no_execute: bool,
}

/// Reads the guards off a look.
fn standing(kubernetes: &Kubernetes, node: &Node, name: &KubeNodeName) -> Standing {
    let taint = |key: &str, effect: &Effect| node.taints.iter().any(|t| t.key == key && t.effect == *effect);
    Standing {
        listed: kubernetes.gate.as_ref().is_some_and(|gate| gate.closed.contains(name)),
        draining: taint(TAINT_DRAINING, &Effect::NoSchedule),
        no_execute: taint(TAINT_SLURM, &Effect::NoExecute),
    }
}

/// The gate as this look shows it.
pub fn gate(seen: &Result<SeenNode<'_>, String>) -> Gate {
    let SeenNode { kubernetes, standing, .. } = match seen {
        Ok(seen) => seen,
        Err(why) => return Gate::Unknown { why: why.clone() },
    };
    let gate = from_guards([
        (!standing.listed).then(|| "not on the Gate's closed list".to_owned()),
        (!standing.draining).then(|| format!("taint {TAINT_DRAINING} is missing")),
        (!standing.no_execute).then(|| format!("taint {TAINT_SLURM} is missing")),
    ]);
    match (&gate, &kubernetes.guards.bindings) {
        (Gate::Open | Gate::Weakened { .. } | Gate::Unknown { .. }, _)
        | (Gate::Closed, GuardState::Standing) => gate,
        (Gate::Closed, GuardState::Missing) => Gate::Weakened {
            missing: vec!["the bindings policy is missing: the list refuses nobody".to_owned()],
        },
        (Gate::Closed, GuardState::Altered { what }) => {
            Gate::Weakened { missing: vec![format!("the bindings policy was altered: {what}")] }
        }
    }
}

/// Is the Kubernetes side of the node empty? `look` is a LIST of this tick; `lease_at_last_holder`
/// the Lease (by the kubelet's own clock, so that no two clocks are compared) when a holder was last seen, `pods_seen` the
/// GPU pods that were seen since the handover began.
pub fn emptiness(
    seen: &Result<SeenNode<'_>, String>,
    look: &Seen<NodeLook>,
    lease_at_last_holder: Option<Timestamp>,
    pods_seen: &PodsSeen,
) -> Emptiness {
    let SeenNode { node, standing, .. } = match seen {
        Ok(seen) => seen,
        Err(why) => return Emptiness::Unknown { why: why.clone() },
    };
    let look = match look {
        Seen::Unknown { why } => return Emptiness::Unknown { why: why.clone() },
        Seen::At { value, .. } => value,
    };
    if node.ready != Ready::True {
        return Emptiness::Unknown { why: "the Node is not Ready".to_owned() };
    }
    let mut by: Vec<String> = look.holders.iter().map(describe).collect();
    by.extend(look.others.iter().map(|pod| format!("{} (NoExecute would evict it)", describe_pod(pod))));
    if !by.is_empty() {
        return Emptiness::Busy { by };
    }
    if !standing.no_execute {
        return Emptiness::Busy { by: vec![format!("taint {TAINT_SLURM}:NoExecute is not on yet")] };
    }
    if let Some(why) = pods_seen::may_live(pods_seen, look, node.lease_renewed_at) {
        return Emptiness::Unknown { why };
    }
    match (node.lease_renewed_at, lease_at_last_holder) {
        (None, _) => Emptiness::Unknown { why: "the Node has no Lease: its kubelet may be dead".to_owned() },
        (Some(renewed), Some(last)) if renewed <= last => Emptiness::Unknown {
            why: format!("the kubelet has not renewed its Lease of {renewed} since a holder was seen"),
        },
        (Some(_), _) => Emptiness::Empty,
    }
}

/// A holder in words.
pub fn describe(holder: &Holder) -> String {
    match holder {
        Holder::Pod { pod, why } => format!("{}: {why}", describe_pod(pod)),
        Holder::Claim { claim, why } => format!("claim {claim}: {why}"),
    }
}

fn describe_pod(pod: &Pod) -> String {
    let state = match &pod.eviction {
        Eviction::Allowed => String::new(),
        Eviction::Protected { by } => format!(" (protected by {by})"),
        Eviction::Terminating => " (terminating)".to_owned(),
        Eviction::Nominated => " (nominated)".to_owned(),
        Eviction::Pinned => " (DaemonSet or static)".to_owned(),
    };
    format!("pod {}/{}{state}", pod.pod.namespace, pod.pod.name)
}

/// Every pod of a look, holders first.
pub fn pods(look: &NodeLook) -> impl Iterator<Item = &Pod> {
    holding_pods(look).chain(&look.others)
}

/// Those of a look that hold GPUs.
fn holding_pods(look: &NodeLook) -> impl Iterator<Item = &Pod> {
    look.holders.iter().filter_map(|holder| match holder {
        Holder::Pod { pod, .. } => Some(pod),
        Holder::Claim { .. } => None,
    })
}

#[cfg(test)]
mod tests;
