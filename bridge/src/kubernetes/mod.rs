//! The Kubernetes port: looks and writes in the words of [`gpu_bridge_core::facts::kubernetes`]. Types of the client
//! library never leave this module; it decides nothing.

use async_trait::async_trait;
use gpu_bridge_core::facts::kubernetes::{
    Acted, Action, BindingProbe, Kubernetes as KubernetesFacts, NodeLook,
};
use gpu_bridge_core::ids::KubeNodeName;

/// A Kubernetes cluster, real or simulated.
#[async_trait]
pub trait Kubernetes: Send + Sync {
    /// Looks at Nodes, Leases, the Gate, the guards and waiting GPU pods.
    async fn look(&self) -> Result<KubernetesFacts, Error>;

    /// Looks at what is on one node: one quorum LIST, never a cache.
    async fn look_at(&self, node: &KubeNodeName) -> Result<NodeLook, Error>;

    /// Asks by a dry run whether a binding to the node would be refused.
    async fn probe_binding(&self, node: &KubeNodeName) -> Result<BindingProbe, Error>;

    /// Carries out one write. `Ok` means that the server said it is so.
    async fn act(&self, action: &Action) -> Result<Acted, Error>;
}

/// Why a look or a write did not come off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time, or none that can be believed: a write may or may not have taken effect.
    #[error("kubernetes did not answer: {why}")]
    Unanswered {
        /// What happened.
        why: String,
    },
}
