//! Real Slurm and a real Kubernetes control plane on one machine, for tests.
//!
//! [`slurm::Lab`] runs slurmctld, slurmd and slurmrestd from Debian packages in a namespace of its own (root needed);
//! [`kubernetes::Lab`] runs the real control plane and real kubelets over a fake container runtime (no root needed).
//! Several of each run side by side on loopback ports of their own, also from several processes. A lab goes down when it
//! is dropped, and when its process ends in any other way. What is slow to make (a root filesystem, a Go binary) is made
//! once, under a lock, into the user's cache folder. This package knows nothing about gpu-bridge.

pub mod cache;
pub mod command;
mod error;
pub mod kubernetes;
mod random;
pub mod run;
pub mod slurm;
mod wait;
pub mod wasm;

pub use error::{Error, Result};
pub use wait::wait_until;
