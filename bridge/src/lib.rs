//! Moves GPU nodes between Slurm and Kubernetes without ever letting both start work on one node: the daemon and its
//! command line. The rules live in `gpu-bridge-core`; here is the shell around them.

pub mod api;
pub mod assemble;
pub mod certainty;
pub mod cli;
mod code;
pub mod config;
pub mod daemon;
pub mod kubernetes;
pub mod ledger;
pub mod policy;
pub mod slurm;
pub mod store;
