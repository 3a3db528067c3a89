//! The codes of the ABI by name. A code that is not here came from a newer daemon: treat it as "something else".

/// Owners of nodes and domains of pools.
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
}
