//! The Slurm port: one look, one write at a time, in the words of [`gpu_bridge_core::facts::slurm`]. REST versions and
//! JSON shapes never leave this module; it decides nothing.

mod answer;
#[cfg(test)]
mod captures;
mod client;
mod command;
mod commands;
pub mod decode;
mod error;
#[cfg(test)]
mod fuzz;
mod gres;
mod hostlist;
mod http;
mod jobs;
mod json;
pub mod plan;
mod rest;
mod rights;
pub mod scontrol;
mod shape;
mod source;
mod standing;
mod tasks;
mod token;
mod trouble;
mod version;

use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Action, Slurm as SlurmFacts};
use gpu_bridge_core::ids::JobId;

pub use self::client::{Client, connect};
pub(crate) use self::command::is_there;
pub(crate) use self::commands::squeue_beside;
pub use self::error::Error;
pub(crate) use self::gres::{Detail, Gres};
pub(crate) use self::shape::JobRecord;
pub use self::token::TokenSource;
pub(crate) use self::token::doubt as doubt_token;

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

/// What looks come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// slurmrestd, and the commands for what its version cannot do.
    #[default]
    Rest,
    /// `scontrol` and `squeue` alone; slurmrestd is not needed.
    Cli,
}

/// How to reach a real cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// What looks come from. With [`Mode::Cli`] `url`, `user`, `token` and `api_version` are not used.
    pub mode: Mode,
    /// `http://HOST:PORT`, or `unix:///PATH` for a slurmrestd with rest_auth/local.
    pub url: String,
    /// The user that the token is for: root, SlurmUser, or one with AdminLevel=Administrator.
    pub user: String,
    /// Who makes the JWT. Needed for `http://`.
    pub token: Option<TokenSource>,
    /// The REST version, such as `v0.0.42`; `None` takes the newest that both sides know.
    pub api_version: Option<String>,
    /// The command line that scontrol's arguments are appended to; never passed to a shell. What runs must get our
    /// environment: `SLURM_TIME_FORMAT` above all.
    pub scontrol: Vec<String>,
    /// The same for squeue; `None` is scontrol's with squeue in its place. All words but the last must be scontrol's: what
    /// scontrol's user may see stands for what squeue's may. Where Slurm hides something from users, the last must be
    /// squeue in scontrol's place, too.
    pub squeue: Option<Vec<String>>,
    /// Deadline of each request and each run of a command. slurmrestd itself waits 20 s for a slurmctld that is away.
    pub timeout: Duration,
    /// The largest answer, or output of a command, that is read, in bytes.
    pub max_response_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Rest,
            url: "http://127.0.0.1:6820".to_owned(),
            user: "slurm".to_owned(),
            token: None,
            api_version: None,
            scontrol: vec!["scontrol".to_owned()],
            squeue: None,
            timeout: Duration::from_secs(30),
            max_response_bytes: 64 * 1024 * 1024,
        }
    }
}
