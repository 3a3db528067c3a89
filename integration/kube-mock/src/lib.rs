//! A small model of a Kubernetes cluster, and the HTTP API on top of it, for tests and the demo.
//!
//! [`Cluster`] is pure: no I/O, no clock, no randomness; time comes in by [`Cluster::advance_to`], requests by
//! [`Cluster::request`]. It models what gpu-bridge's safety hangs on (the gap between the scheduler's decision and the
//! binding, taints, budgets, grace, kubelets that freeze, the Gate's policy) and keeps the truth (which process
//! really runs on which node) apart from what the API says. [`server`] puts it behind HTTP, with faults on request.

mod api;
mod cluster;
mod selector;
pub mod server;

pub use api::{Answer, Failure, Request, WatchQuery};
pub use cluster::{Cluster, Denied, Id, Machine, NodeSpec, PodSpec, Process, Resource, Settings, Workload};
