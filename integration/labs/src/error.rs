//! What can go wrong with a lab, always with the thing that failed.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a lab could not be made, started or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot run the lab at all; tests are to be listed as skipped with this reason.
    #[error("this machine cannot run it: {0}")]
    Unsupported(String),
    /// A file or folder could not be read, written or made.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program ended with a failure.
    #[error("{command} failed ({status}): {output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// Something did not come true in time.
    #[error("waited {} s for {what}; last seen: {last}", .limit.as_secs_f32())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was seen at the last look.
        last: String,
    },
    /// The Kubernetes API refused or did not answer.
    #[error("Kubernetes API: {0}")]
    Kubernetes(#[from] Box<kube::Error>),
    /// A caller asked for something that the lab does not have.
    #[error("{0}")]
    Unknown(String),
}

/// Result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Kubernetes(Box::new(error))
    }
}

/// Puts the path into an I/O error.
pub(crate) fn at(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.as_ref().to_owned();
    move |source| Error::File { path, source }
}
