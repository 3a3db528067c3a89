//! Talks to the running daemon over its socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::VERSION;
use crate::daemon::command::{Command, Refusal, Reply};
use crate::daemon::published::Published;

/// A command may have to look at nodes first.
const DEADLINE: Duration = Duration::from_mins(1);

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nobody answers there.
    #[error(
        "no daemon answers on {socket}: is it running (`systemctl status gpu-bridge`), and may you use the socket?"
    )]
    NoAnswer {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        #[source]
        source: reqwest::Error,
    },
    /// It answered something else than this version understands.
    #[error(
        "the daemon on {socket} answered {status} with something this version does not understand: {body:.200}"
    )]
    Odd {
        /// The socket.
        socket: PathBuf,
        /// HTTP status.
        status: u16,
        /// What it said.
        body: String,
    },
    /// It said no.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::NoAnswer { .. } => "GB0710",
            Self::Odd { .. } => "GB0711",
            Self::Refused(refusal) => refusal.code(),
        }
    }
}

/// A connection to the daemon.
pub(super) struct Client {
    http: reqwest::Client,
    socket: PathBuf,
}

impl Client {
    /// To the daemon on this socket.
    pub(super) fn new(socket: &Path) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .timeout(DEADLINE)
            .build()
            .map_err(|source| Error::NoAnswer { socket: socket.to_owned(), source })?;
        Ok(Self { http, socket: socket.to_owned() })
    }

    /// What the daemon shows of itself.
    pub(super) async fn published(&self) -> Result<Published, Error> {
        self.answer(self.http.get(url("published"))).await
    }

    /// Asks for something.
    pub(super) async fn request(&self, command: &Command) -> Result<Reply, Error> {
        self.answer(self.http.post(url("request")).json(command)).await
    }

    async fn answer<T: DeserializeOwned + Serialize>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, Error> {
        let no_answer = |source| Error::NoAnswer { socket: self.socket.clone(), source };
        let response = request.send().await.map_err(no_answer)?;
        let status = response.status();
        let body = response.text().await.map_err(no_answer)?;
        let odd = || Error::Odd { socket: self.socket.clone(), status: status.as_u16(), body: body.clone() };
        if status.is_success() {
            serde_json::from_str(&body).map_err(|_| odd())
        } else {
            match serde_json::from_str::<Refusal>(&body) {
                Ok(refusal) => Err(refusal.into()),
                Err(_) => Err(odd()),
            }
        }
    }
}

/// The host is not used on a Unix socket, but a URL must have one.
fn url(path: &str) -> String {
    format!("http://gpu-bridge/{VERSION}/{path}")
}
