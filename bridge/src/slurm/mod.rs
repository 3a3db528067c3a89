//! The Slurm port: one look, one write at a time, in the words of [`gpu_bridge_core::facts::slurm`]. REST versions and
//! JSON shapes never leave this module; it decides nothing.

mod answer;
#[cfg(test)]
mod captures;
mod command;
pub(crate) mod decode;
mod error;
#[cfg(test)]
mod fuzz;
mod gres;
mod hostlist;
mod http;
mod jobs;
mod json;
pub mod plan;
pub mod rest;
mod rights;
pub mod scontrol;
mod shape;
mod tasks;
mod token;
mod version;

use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Action, Slurm as SlurmFacts};
use gpu_bridge_core::ids::JobId;

pub use self::error::Error;
pub(crate) use self::gres::{Detail, Gres};
pub use self::rest::{Client, connect};
pub(crate) use self::shape::JobRecord;
pub use self::token::TokenSource;

/// A Slurm cluster, real or simulated.
#[async_trait]
pub trait Slurm: Send + Sync {
    /// Looks at the whole cluster. `watched` are jobs that must be asked for by id, because node-based listings leave
    /// them out while their epilog runs; those that still exist are in the answer's `jobs` whatever their state.
    async fn look(&self, watched: &[JobId]) -> Result<SlurmFacts, Error>;

    /// Carries out one write and reads it back. `Ok` means seen done; what an error means for the write is
    /// [`Error::certainty`].
    async fn act(&self, action: &Action) -> Result<(), Error>;
}

/// How to reach a real cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// `http://HOST:PORT`, or `unix:///PATH` for a slurmrestd with rest_auth/local.
    pub url: String,
    /// The user that the token is for: root, SlurmUser, or one with AdminLevel=Administrator.
    pub user: String,
    /// Who makes the JWT. Needed for `http://`.
    pub token: Option<TokenSource>,
    /// The REST version, such as `v0.0.42`; `None` takes the newest that both sides know.
    pub api_version: Option<String>,
    /// The command line that scontrol's arguments are appended to; never passed to a shell.
    pub scontrol: Vec<String>,
    /// Deadline of each request and each run of scontrol. slurmrestd itself waits 20 s for a slurmctld that is away.
    pub timeout: Duration,
    /// The largest answer that is read, in bytes.
    pub max_response_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:6820".to_owned(),
            user: "slurm".to_owned(),
            token: None,
            api_version: None,
            scontrol: vec!["scontrol".to_owned()],
            timeout: Duration::from_secs(30),
            max_response_bytes: 64 * 1024 * 1024,
        }
    }
}
