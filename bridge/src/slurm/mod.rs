//! The Slurm port: one look, one write at a time, in the words of [`gpu_bridge_core::facts::slurm`]. REST versions and
//! JSON shapes never leave this module; it decides nothing.

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Action, Slurm as SlurmFacts};
use gpu_bridge_core::ids::JobId;

/// A Slurm cluster, real or simulated.
#[async_trait]
pub trait Slurm: Send + Sync {
    /// Looks at the whole cluster. `watched` are jobs that must be asked for by id, because node-based listings leave
    /// them out while their epilog runs; those that still exist are in the answer's `jobs` whatever their state.
    async fn look(&self, watched: &[JobId]) -> Result<SlurmFacts, Error>;

    /// Carries out one write and reads it back. `Ok` means seen done.
    async fn act(&self, action: &Action) -> Result<(), Error>;
}

/// Why a look or a write did not come off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time, or none that can be believed: a write may or may not have taken effect.
    #[error("slurm did not answer: {why}")]
    Unanswered {
        /// What happened.
        why: String,
    },
}
