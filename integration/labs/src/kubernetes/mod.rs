//! Real Kubernetes on one machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and per node the real kubelet
//! over a fake container runtime (kubemark's hollow node). No root, no containers, no other programs than Go for the build.
//!
//! [`Lab`] starts and drives it; `binary` builds the one binary that is all of these; `parts` knows their command lines.
//! What it is not: pods run no processes, and a container stops at once when it is told to.

mod binary;
mod lab;
mod parts;

pub use binary::{VERSION, prepare, unsupported};
pub use lab::Lab;
pub use parts::Part;

/// A user with a bearer token and a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<String>,
}

impl User {
    /// A user without groups: it may do what RBAC is told to allow it, so nothing at first.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), groups: Vec::new() }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `nvidia.com/gpu` that it reports; 0 makes a Ready node without GPUs.
    pub gpus: u32,
    /// The taint that its kubelet registers with, e.g. `gpu-bridge.io/slurm=:NoExecute`.
    pub register_taint: Option<String>,
    /// Further flags of the hollow node, e.g. `--node-labels=a=b`.
    pub flags: Vec<String>,
}

impl Node {
    /// A node with four GPUs and no taint.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), gpus: 4, register_taint: None, flags: Vec::new() }
    }

    /// `gpu1` … `gpuN`, four GPUs each, no taint.
    pub fn several(count: usize) -> Vec<Self> {
        (1..=count).map(|number| Self::new(format!("gpu{number}"))).collect()
    }

    /// The same with a taint that its kubelet registers with.
    #[must_use]
    pub fn tainted(mut self, taint: impl Into<String>) -> Self {
        self.register_taint = Some(taint.into());
        self
    }
}

/// What a lab is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// The nodes that are there from the start; [`Lab::add_node`] adds more.
    pub nodes: Vec<Node>,
    /// Users besides `admin` (group `system:masters`).
    pub users: Vec<User>,
    /// Further flags of kube-apiserver.
    pub apiserver: Vec<String>,
    /// Further flags of kube-controller-manager.
    pub controllers: Vec<String>,
    /// Whether the lab outlives its handle.
    pub life: crate::run::Life,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: Node::several(4),
            users: vec![User::new("gpu-bridge")],
            apiserver: Vec::new(),
            controllers: Vec::new(),
            life: crate::run::Life::Owned,
        }
    }
}

/// The user that may do anything.
const ADMIN: &str = "admin";
