//! The types of the ABI, as the host sends and receives them. `policy-sdk/wit/policy.wit` is the definition and has the
//! documentation of every value; these structs repeat its fields in its order, and every load checks one against the
//! other. They also are the shape of recorded snapshots (JSON). Nothing is decided here.

use serde::{Deserialize, Serialize};
use wasmtime::component::{ComponentType, Lift, Lower};

/// Further facts, as key and value.
pub type Attrs = Vec<(String, String)>;

/// Domains (of pools) and owners (of nodes).
pub mod domain {
    /// No domain may start work on the node.
    pub const NOBODY: u8 = 0;
    /// Slurm.
    pub const SLURM: u8 = 1;
    /// Kubernetes.
    pub const KUBERNETES: u8 = 2;
}

/// States of a node.
pub mod state {
    /// Ready, no GPU in use.
    pub const FREE: u8 = 0;
    /// Ready, GPUs in use.
    pub const BUSY: u8 = 1;
    /// A handover is in progress.
    pub const MOVING: u8 = 2;
    /// Something was wrong with it; a person must look.
    pub const QUARANTINED: u8 = 3;
    /// Never touched by the daemon.
    pub const UNMANAGED: u8 = 4;
    /// Down, unreachable, or not ready.
    pub const AWAY: u8 = 5;
}

/// Directions of a handover.
pub mod direction {
    /// None in progress.
    pub const NONE: u8 = 0;
    /// From Slurm to Kubernetes.
    pub const TO_KUBERNETES: u8 = 1;
    /// From Kubernetes to Slurm.
    pub const TO_SLURM: u8 = 2;
}

/// How windows of one pool that are on at once combine.
pub mod overlap {
    /// The largest of them counts.
    pub const MAX: u8 = 0;
    /// It is added to what the others need.
    pub const ADD: u8 = 1;
}

/// Kinds of proposals.
pub mod kind {
    /// A pool should have a number of ready nodes during an interval.
    pub const WANT_READY: u32 = 1;
    /// All that this daemon understands.
    pub const ALL: [u32; 1] = [WANT_READY];
}

/// All that a policy knows, except its settings, which the host adds. Instants in seconds since 1970, durations in
/// seconds; indices are positions in these lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The present instant.
    pub now: i64,
    /// Seconds between two decisions.
    pub tick_period: u32,
    /// Every node of the inventory.
    pub nodes: Vec<Node>,
    /// Every pool of both domains.
    pub pools: Vec<Pool>,
    /// What waits for GPUs, grouped.
    pub queues: Vec<Queue>,
    /// The calendar's windows, one entry each.
    pub windows: Vec<Window>,
    /// Intervals in which the daemon takes no node.
    pub blackouts: Vec<Blackout>,
    /// Running loans.
    pub loans: Vec<Loan>,
    /// Further facts of the whole site.
    pub attrs: Attrs,
}

/// A snapshot on its way into a policy, with the settings; borrows, because ten thousand nodes are not worth a copy.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct Call<'a> {
    pub(super) settings: &'a str,
    pub(super) now: i64,
    #[component(name = "tick-period")]
    pub(super) tick_period: u32,
    pub(super) nodes: &'a [Node],
    pub(super) pools: &'a [Pool],
    pub(super) queues: &'a [Queue],
    pub(super) windows: &'a [Window],
    pub(super) blackouts: &'a [Blackout],
    pub(super) loans: &'a [Loan],
    pub(super) attrs: &'a [(String, String)],
}

impl<'a> Call<'a> {
    pub(super) fn new(settings: &'a str, snapshot: &'a Snapshot) -> Self {
        let Snapshot { now, tick_period, nodes, pools, queues, windows, blackouts, loans, attrs } = snapshot;
        Self {
            settings,
            now: *now,
            tick_period: *tick_period,
            nodes,
            pools,
            queues,
            windows,
            blackouts,
            loans,
            attrs,
        }
    }
}

/// One physical GPU host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Node {
    /// Name in the inventory.
    pub name: String,
    /// Index of the pool it serves now.
    pub pool: Option<u32>,
    /// Index of the pool it belongs to when nobody borrows it.
    pub home: Option<u32>,
    /// See [`domain`].
    pub owner: u8,
    /// GPU model as the inventory spells it.
    #[component(name = "gpu-model")]
    pub gpu_model: String,
    /// GPUs in it.
    pub gpus: u32,
    /// Topology block; empty when not given.
    pub block: String,
    /// See [`state`].
    pub state: u8,
    /// See [`direction`].
    pub handover: u8,
    /// Latest end of the work on it by time limits; `None` when nothing runs, or (state busy) without limit.
    #[component(name = "busy-until")]
    pub busy_until: Option<i64>,
    /// Further facts.
    pub attrs: Attrs,
}

/// Named capacity inside one domain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Pool {
    /// Name in the configuration.
    pub name: String,
    /// See [`domain`].
    pub domain: u8,
    /// Nodes it never goes below.
    pub floor: u32,
    /// Nodes it never goes above.
    pub ceiling: Option<u32>,
    /// Nodes that serve it now.
    pub ready: u32,
    /// Nodes in a handover towards it.
    pub arriving: u32,
    /// Nodes in a handover away from it, or promised to one.
    pub leaving: u32,
    /// Nodes whose home it is, wherever they are.
    #[component(name = "home-nodes")]
    pub home_nodes: u32,
    /// Further facts.
    pub attrs: Attrs,
}

/// A group of like requests that wait in one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Queue {
    /// Index of the pool.
    pub pool: u32,
    /// Requests in the group.
    pub count: u32,
    /// GPUs that one request needs in all.
    pub gpus: u32,
    /// Nodes that one request needs at the same time.
    pub gang: u32,
    /// Seconds that the oldest has waited.
    pub age: u64,
    /// Further facts.
    pub attrs: Attrs,
}

/// A calendar interval in which a pool must have a number of nodes ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Window {
    /// Name in the calendar.
    pub name: String,
    /// Index of the pool.
    pub pool: u32,
    /// Nodes to be ready.
    pub nodes: u32,
    /// See [`overlap`].
    pub overlap: u8,
    /// Whether it is on now.
    pub on: bool,
    /// Start of the occurrence that is on; when none is, of the one that ended last.
    pub start: Option<i64>,
    /// End of that same occurrence.
    pub end: Option<i64>,
    /// Start of the first occurrence after now.
    #[component(name = "next-start")]
    pub next_start: Option<i64>,
    /// End of that same occurrence.
    #[component(name = "next-end")]
    pub next_end: Option<i64>,
    /// Seconds before its start from which nodes may be taken for it.
    pub lead: u32,
    /// Seconds after its end that its nodes stay.
    #[component(name = "cool-down")]
    pub cool_down: u32,
    /// Further facts: `owner`, `ticket`.
    pub attrs: Attrs,
}

/// An interval in which no node is taken from anybody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Blackout {
    /// Name in the calendar.
    pub name: String,
    /// First second.
    pub start: i64,
    /// First second after it.
    pub end: i64,
    /// Further facts: `reason`.
    pub attrs: Attrs,
}

/// Nodes lent by one pool to another until an instant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lower)]
#[component(record)]
pub struct Loan {
    /// Its id in the ledger.
    pub id: String,
    /// Index of the pool that lends.
    pub lender: u32,
    /// Index of the pool that borrows.
    pub borrower: u32,
    /// Indices of the nodes that have been handed over for it.
    pub nodes: Vec<u32>,
    /// Nodes that were agreed.
    pub count: u32,
    /// When it began.
    pub since: i64,
    /// When it ends.
    pub until: i64,
    /// Further facts: `policy`, `requester`, `ticket`, `reason`.
    pub attrs: Attrs,
}

/// What a policy answers, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub(super) struct Decision {
    pub(super) proposals: Vec<Proposal>,
    pub(super) attrs: Attrs,
}

/// One wish of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ComponentType, Lift)]
#[component(record)]
pub struct Proposal {
    /// See [`kind`].
    pub kind: u32,
    /// Index of the pool.
    pub pool: u32,
    /// Nodes in all.
    pub count: u32,
    /// Indices of the nodes that would be best, best first; empty when the policy does not mind.
    pub nodes: Vec<u32>,
    /// First instant at which it holds.
    pub from: i64,
    /// First instant at which it holds no more.
    pub until: i64,
    /// The greater one wins when two cannot both be had.
    pub priority: u32,
    /// Why, in one line.
    pub reason: String,
}

/// What a policy is, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ComponentType, Lift)]
#[component(record)]
pub struct Description {
    /// Short name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// One sentence for people.
    pub summary: String,
    /// The kinds of proposals that it makes.
    pub kinds: Vec<u32>,
    /// JSON Schema of its settings.
    #[component(name = "settings-schema")]
    pub settings_schema: String,
    /// Further facts.
    pub attrs: Attrs,
}

/// One thing that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ComponentType, Lift)]
#[component(record)]
pub struct SettingsError {
    /// The field, dotted when nested; empty when the whole is wrong.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}
