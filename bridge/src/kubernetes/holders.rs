//! Who holds a GPU of a node, and whom NoExecute would surprise: a pure reading of one look's pods and claims. In doubt a
//! pod holds. It knows what the API server says and nothing else; a process that outlives its pod is the node check's to
//! find.
//!
//! A node's own daemons (DaemonSet pods, static pods) never surprise: NoExecute ends them or not, and they come back with
//! the node. Where they ask for GPUs they hold like everyone.

use std::collections::BTreeSet;

use gpu_bridge_core::facts::kubernetes::{Eviction, Holder, NodeLook, Pod as PodFact, PodRef};
use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::mark::TAINT_SLURM;

use super::gpus::GpuResources;
use super::wire::{Allocation, Claim, ContainerStatus, Device, Pod, Slice, Toleration};

/// Stands on what a kubelet writes of its own static pods.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// What a pod without a grace of its own gets, in seconds.
const DEFAULT_GRACE_S: u32 = 30;

/// What the site says about pods.
#[derive(Debug, Clone)]
pub(super) struct Rules<'a> {
    pub(super) gpus: &'a GpuResources,
    /// Annotations that forbid evicting a pod, unless their value is `false`.
    pub(super) do_not_disrupt: &'a BTreeSet<String>,
}

/// Dynamic resource allocation as one look saw it.
#[derive(Debug)]
pub(super) enum Claims {
    /// The server has no `resource.k8s.io/v1`.
    NotServed,
    /// All claims, and the slices of the node.
    Listed { claims: Vec<Claim>, slices: Vec<Slice> },
}

/// What the lists say about a node. `nominated` was listed before `on_node`, and `claims` after it: a pod or claim that
/// changed its place between two lists is then in the later one.
pub(super) fn look(
    node: &KubeNodeName,
    nominated: &[Pod],
    on_node: &[Pod],
    claims: &Claims,
    rules: &Rules<'_>,
) -> NodeLook {
    let mut holders = Vec::new();
    let mut others = Vec::new();
    let mut used = BTreeSet::new();
    let mut ended = BTreeSet::new();
    for pod in on_node {
        let alive = alive_container(pod);
        let finished = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        if finished && alive.is_none() {
            ended.insert(pod.metadata.uid.clone());
            continue;
        }
        match holds(pod, claims, rules) {
            Some(held) => {
                let why = match alive {
                    Some(container) if finished => format!(
                        "{}; it reads {}, but container {container:?} is not terminated",
                        held.why, pod.status.phase
                    ),
                    Some(_) | None => held.why,
                };
                used.extend(claim_names(pod).map(|name| (pod.metadata.namespace.clone(), name)));
                let eviction = if finished { Eviction::Terminating } else { eviction(pod, rules) };
                holders.push(Holder::Pod { pod: fact(pod, eviction, held.gpus), why });
            }
            None if tolerates_slurm(pod) || pinned(pod) || finished => {}
            None => others.push(fact(pod, eviction(pod, rules), 0)),
        }
    }
    for pod in nominated.iter().filter(|pod| pod.status.nominated_node_name.as_deref() == Some(node.as_str()))
    {
        let listed = on_node.iter().any(|other| other.metadata.uid == pod.metadata.uid);
        if let Some(held) = (!listed).then(|| holds(pod, claims, rules)).flatten() {
            let why = format!("nominated to the node; {}", held.why);
            holders.push(Holder::Pod { pod: fact(pod, Eviction::Nominated, held.gpus), why });
        }
    }
    holders.extend(held_claims(node, claims, &used));
    NodeLook { holders, others, ended, lease_renewed_at: None }
}

struct Held {
    gpus: u32,
    why: String,
}

/// Whether a pod that is not finished has a GPU, by request or by claim.
fn holds(pod: &Pod, claims: &Claims, rules: &Rules<'_>) -> Option<Held> {
    let asked = rules.gpus.asked(pod);
    let mut gpus = asked.as_ref().map_or(0, |asked| asked.gpus);
    let mut whys: Vec<String> = asked.into_iter().map(|asked| asked.why).collect();
    for claim in pod_claims(pod) {
        match resolve(pod, &claim, claims) {
            Resolved::Devices(devices) => {
                // What was asked for by resource name and served by a claim is one and the same.
                if !matches!(claim, PodClaimRef::Extended(_)) {
                    gpus = gpus.saturating_add(devices);
                }
                whys.push(format!("{claim} has {devices} device(s)"));
            }
            Resolved::Nothing => {}
            Resolved::Unclear(why) => whys.push(format!("{claim} {why}")),
        }
    }
    (!whys.is_empty()).then(|| Held { gpus, why: whys.join(", ") })
}

/// A claim that a pod refers to.
enum PodClaimRef {
    /// By its own name.
    Named(String),
    /// The claim that the scheduler made for extended resources.
    Extended(String),
    /// A template's, not made yet.
    Unmade(String),
}

impl std::fmt::Display for PodClaimRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) | Self::Extended(name) => write!(f, "claim {name:?}"),
            Self::Unmade(name) => write!(f, "claim for {name:?}"),
        }
    }
}

fn pod_claims(pod: &Pod) -> Vec<PodClaimRef> {
    let statuses = &pod.status.resource_claim_statuses;
    let mut claims: Vec<PodClaimRef> = pod
        .spec
        .resource_claims
        .iter()
        .filter_map(|claim| {
            match (&claim.resource_claim_name, statuses.iter().find(|s| s.name == claim.name)) {
                (Some(name), _) => Some(PodClaimRef::Named(name.clone())),
                (None, Some(status)) => status.resource_claim_name.clone().map(PodClaimRef::Named),
                (None, None) => Some(PodClaimRef::Unmade(claim.name.clone())),
            }
        })
        .collect();
    if let Some(extended) = &pod.status.extended_resource_claim_status {
        claims.push(PodClaimRef::Extended(extended.resource_claim_name.clone()));
    }
    claims
}

fn claim_names(pod: &Pod) -> impl Iterator<Item = String> {
    pod_claims(pod).into_iter().filter_map(|claim| match claim {
        PodClaimRef::Named(name) | PodClaimRef::Extended(name) => Some(name),
        PodClaimRef::Unmade(_) => None,
    })
}

enum Resolved {
    /// Allocated: so many devices, those for administration not counted.
    Devices(u32),
    /// Not allocated (a kubelet starts no such pod), or for administration only.
    Nothing,
    /// Can't be told, so it counts.
    Unclear(&'static str),
}

fn resolve(pod: &Pod, claim: &PodClaimRef, claims: &Claims) -> Resolved {
    let name = match claim {
        PodClaimRef::Named(name) | PodClaimRef::Extended(name) => name,
        PodClaimRef::Unmade(_) => return Resolved::Unclear("is not made yet"),
    };
    let Claims::Listed { claims, .. } = claims else {
        return Resolved::Unclear("cannot be looked up: the server has no resource.k8s.io/v1");
    };
    let found = claims
        .iter()
        .find(|found| found.metadata.namespace == pod.metadata.namespace && found.metadata.name == *name);
    match found {
        None => Resolved::Unclear("does not exist"),
        Some(found) => match found.status.allocation.as_ref().map_or(0, devices) {
            0 => Resolved::Nothing,
            devices => Resolved::Devices(devices),
        },
    }
}

fn counted(allocation: &Allocation) -> impl Iterator<Item = &Device> {
    allocation.devices.results.iter().filter(|device| device.admin_access != Some(true))
}

fn devices(allocation: &Allocation) -> u32 {
    u32::try_from(counted(allocation).count()).unwrap_or(u32::MAX)
}

/// Claims allocated on the node that no holding pod uses.
fn held_claims(node: &KubeNodeName, claims: &Claims, used: &BTreeSet<(String, String)>) -> Vec<Holder> {
    let Claims::Listed { claims, slices } = claims else { return Vec::new() };
    let pools: BTreeSet<(&str, &str)> =
        slices.iter().map(|slice| (slice.spec.driver.as_str(), slice.spec.pool.name.as_str())).collect();
    let held = claims.iter().filter_map(|claim| {
        let key = (claim.metadata.namespace.clone(), claim.metadata.name.clone());
        let allocation = claim.status.allocation.as_ref().filter(|_| !used.contains(&key))?;
        let named = selects(allocation, node);
        let here: Vec<&str> = counted(allocation)
            .filter(|device| named || pools.contains(&(device.driver.as_str(), device.pool.as_str())))
            .map(|device| device.name.as_str())
            .collect();
        let users: Vec<String> =
            claim.status.reserved_for.iter().map(|user| format!("{} {}", user.resource, user.name)).collect();
        let users = if users.is_empty() { "nobody".to_owned() } else { users.join(", ") };
        (!here.is_empty()).then(|| Holder::Claim {
            claim: format!("{}/{}", key.0, key.1),
            why: format!("has {} of this node, reserved for {users}", here.join(", ")),
        })
    });
    held.collect()
}

/// Whether an allocation names the node itself (its slices may be gone).
fn selects(allocation: &Allocation, node: &KubeNodeName) -> bool {
    allocation.node_selector.iter().flat_map(|selector| &selector.node_selector_terms).any(|term| {
        term.match_fields.iter().any(|field| {
            field.key == "metadata.name"
                && field.operator == "In"
                && field.values.iter().any(|value| value == node.as_str())
        })
    })
}

/// A container that was started and is not terminated.
fn alive_container(pod: &Pod) -> Option<&str> {
    let status = &pod.status;
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses);
    let alive = |status: &&ContainerStatus| {
        status.state.terminated.is_none()
            && (status.state.running.is_some() || !status.container_id.is_empty())
    };
    all.filter(alive).map(|status| status.name.as_str()).next()
}

fn pinned(pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(MIRROR)
        || pod.metadata.owner_references.iter().any(|owner| owner.kind == "DaemonSet" && owner.controller)
}

fn eviction(pod: &Pod, rules: &Rules<'_>) -> Eviction {
    let protecting = rules
        .do_not_disrupt
        .iter()
        .find(|key| pod.metadata.annotations.get(*key).is_some_and(|value| value != "false"));
    if pod.metadata.deletion_timestamp.is_some() {
        Eviction::Terminating
    } else if pinned(pod) {
        Eviction::Pinned
    } else if let Some(key) = protecting {
        Eviction::Protected { by: format!("annotation {key}") }
    } else {
        Eviction::Allowed
    }
}

/// Whether the pod may stay for good under our NoExecute taint.
fn tolerates_slurm(pod: &Pod) -> bool {
    let tolerates = |toleration: &Toleration| {
        let key = if toleration.key.is_empty() {
            toleration.operator == "Exists"
        } else {
            toleration.key == TAINT_SLURM && (toleration.operator == "Exists" || toleration.value.is_empty())
        };
        key && matches!(toleration.effect.as_str(), "" | "NoExecute") && toleration.seconds.is_none()
    };
    pod.spec.tolerations.iter().any(tolerates)
}

fn fact(pod: &Pod, eviction: Eviction, gpus: u32) -> PodFact {
    let told_to_end = pod.metadata.deletion_timestamp.is_some();
    let grace = pod.spec.termination_grace_period_seconds;
    let grace = if told_to_end { pod.metadata.deletion_grace_period_seconds.or(grace) } else { grace };
    PodFact {
        pod: reference(pod),
        priority: pod.spec.priority.unwrap_or_default(),
        eviction,
        gpus,
        // A negative one counts as the shortest that a kubelet gives.
        grace_s: grace.map_or(DEFAULT_GRACE_S, |seconds| u32::try_from(seconds.max(1)).unwrap_or(u32::MAX)),
        told_to_end,
    }
}

/// A pod's identity.
pub(super) fn reference(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    }
}

#[cfg(test)]
#[path = "holders_tests.rs"]
mod tests;
