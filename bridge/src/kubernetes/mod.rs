//! The Kubernetes port: looks and writes in the words of [`gpu_bridge_core::facts::kubernetes`]. Types of the client
//! library never leave this module; it decides nothing.
//!
//! [`client`] is the real one: `http` sends one request, `wire` has the parts of objects that we read, `holders` tells from
//! them who holds a GPU, `writes` carries out actions. [`manifests`] prints what a cluster must be given, `guards` sees
//! whether it stands.

use async_trait::async_trait;
use gpu_bridge_core::facts::kubernetes::{
    Acted, Action, BindingProbe, Kubernetes as KubernetesFacts, NodeLook,
};
use gpu_bridge_core::ids::KubeNodeName;

pub mod client;
mod error;
mod gpus;
mod guards;
mod holders;
mod http;
pub mod manifests;
#[cfg(test)]
mod script;
mod wire;
mod writes;

pub use error::Error;
pub use gpus::{BadQuantity, GpuResources, count};
pub(crate) use manifests::is_name;

/// A Kubernetes cluster, real or simulated.
#[async_trait]
pub trait Kubernetes: Send + Sync {
    /// Looks at Nodes, Leases, the Gate, the guards and waiting GPU pods.
    async fn look(&self) -> Result<KubernetesFacts, Error>;

    /// Looks at what is on one node: quorum LISTs, never a cache.
    async fn look_at(&self, node: &KubeNodeName) -> Result<NodeLook, Error>;

    /// Asks by a dry run whether a binding to the node would be refused.
    async fn probe_binding(&self, node: &KubeNodeName) -> Result<BindingProbe, Error>;

    /// Carries out one write. `Ok` means that the server said it is so.
    async fn act(&self, action: &Action) -> Result<Acted, Error>;
}
