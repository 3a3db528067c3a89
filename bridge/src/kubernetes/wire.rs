//! The parts of Kubernetes objects that we read, and no others: a Node's images or a pod's volumes are never kept. What
//! safety hangs on (a pod's spec, a list's items) is required, so that an answer of another shape is an error, not an
//! empty list. Own types, because the client library's are of one version each: DRA's are not in 1.33, and claims for
//! extended resources came in 1.34.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// One page of a LIST.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    pub(super) kind: String,
    pub(super) metadata: PageMeta,
    pub(super) items: Vec<T>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PageMeta {
    #[serde(rename = "continue", default)]
    pub(super) next: Option<String>,
    #[serde(rename = "resourceVersion", default)]
    pub(super) version: Option<String>,
}

/// An object that we LIST.
pub(super) trait Listed: serde::de::DeserializeOwned {
    const LIST_KIND: &'static str;
}

macro_rules! listed {
    ($($type:ty => $kind:literal),*) => {
        $(impl Listed for $type { const LIST_KIND: &'static str = $kind; })*
    };
}
listed!(
    Node => "NodeList",
    Lease => "LeaseList",
    Pod => "PodList",
    Claim => "ResourceClaimList",
    Slice => "ResourceSliceList"
);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) owner_references: Vec<Owner>,
    #[serde(default)]
    pub(super) creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    pub(super) deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    pub(super) deletion_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Owner {
    pub(super) kind: String,
    #[serde(default)]
    pub(super) controller: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) spec: NodeSpec,
    #[serde(default)]
    pub(super) status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct NodeSpec {
    #[serde(default)]
    pub(super) taints: Vec<Taint>,
    #[serde(default)]
    pub(super) unschedulable: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Taint {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) effect: String,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct NodeStatus {
    #[serde(default)]
    pub(super) conditions: Vec<Condition>,
    #[serde(default)]
    pub(super) allocatable: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Lease {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) spec: LeaseSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseSpec {
    #[serde(default)]
    pub(super) renew_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    #[serde(default)]
    pub(super) status: PodStatus,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) containers: Vec<Container>,
    #[serde(default)]
    pub(super) init_containers: Vec<Container>,
    #[serde(default)]
    pub(super) ephemeral_containers: Vec<Container>,
    #[serde(default)]
    pub(super) resources: Option<Resources>,
    #[serde(default)]
    pub(super) resource_claims: Vec<PodClaim>,
    #[serde(default)]
    pub(super) tolerations: Vec<Toleration>,
    #[serde(default)]
    pub(super) priority: Option<i32>,
    #[serde(default)]
    pub(super) termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    pub(super) node_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) scheduling_gates: Vec<IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    #[serde(default)]
    pub(super) resources: Resources,
    #[serde(default)]
    pub(super) restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Resources {
    #[serde(default)]
    pub(super) limits: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) requests: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodClaim {
    pub(super) name: String,
    #[serde(default)]
    pub(super) resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Toleration {
    #[serde(default)]
    pub(super) key: String,
    #[serde(default)]
    pub(super) operator: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(default)]
    pub(super) effect: String,
    #[serde(rename = "tolerationSeconds", default)]
    pub(super) seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    #[serde(default)]
    pub(super) phase: String,
    #[serde(default)]
    pub(super) conditions: Vec<Condition>,
    #[serde(default)]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    pub(super) ephemeral_container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    pub(super) nominated_node_name: Option<String>,
    /// The claims made for `spec.resourceClaims`; an entry without a claim means that none is needed.
    #[serde(default)]
    pub(super) resource_claim_statuses: Vec<PodClaim>,
    #[serde(default)]
    pub(super) extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExtendedClaim {
    pub(super) resource_claim_name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(default)]
    pub(super) state: ContainerState,
    /// Empty until it was started for the first time.
    #[serde(rename = "containerID", default)]
    pub(super) container_id: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct ContainerState {
    #[serde(default)]
    pub(super) running: Option<IgnoredAny>,
    #[serde(default)]
    pub(super) terminated: Option<IgnoredAny>,
}

/// A ResourceClaim.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Claim {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) status: ClaimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimStatus {
    #[serde(default)]
    pub(super) allocation: Option<Allocation>,
    #[serde(default)]
    pub(super) reserved_for: Vec<Consumer>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Consumer {
    pub(super) resource: String,
    pub(super) name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allocation {
    #[serde(default)]
    pub(super) devices: Devices,
    #[serde(default)]
    pub(super) node_selector: Option<NodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Devices {
    #[serde(default)]
    pub(super) results: Vec<Device>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    pub(super) driver: String,
    pub(super) pool: String,
    #[serde(rename = "device")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) admin_access: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeSelector {
    #[serde(default)]
    pub(super) node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Term {
    #[serde(default)]
    pub(super) match_fields: Vec<Requirement>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) operator: String,
    #[serde(default)]
    pub(super) values: Vec<String>,
}

/// A ResourceSlice.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Slice {
    pub(super) spec: SliceSpec,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct SliceSpec {
    pub(super) driver: String,
    pub(super) pool: SlicePool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct SlicePool {
    pub(super) name: String,
}

/// What the server says where it says no.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) details: StatusDetails,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct StatusDetails {
    #[serde(default)]
    pub(super) causes: Vec<Cause>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cause {
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
}
