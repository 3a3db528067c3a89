//! The local interface: versioned JSON over HTTP on a Unix socket. It shows what the daemon publishes and passes requests
//! to it in the name of whoever is at the other end of the socket (by the kernel's word, not by theirs). It decides nothing.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use tokio::net::UnixListener;

use crate::daemon::command::{Command, Refusal};
use crate::daemon::{Handle, Stop};

/// Version of the interface; the first part of every path.
pub const VERSION: &str = "v1";
/// Rights of the socket: its owner and its group.
const SOCKET_MODE: u32 = 0o660;
/// Longest request body.
const BODY_BYTES: usize = 1 << 20;

/// Why the socket can't be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "the socket {path} cannot be served ({doing}); is another gpu-bridge running, and may this user write there?"
)]
pub struct Error {
    path: String,
    doing: &'static str,
    #[source]
    source: io::Error,
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        "GB0702"
    }
}

/// Who is at the other end.
#[derive(Debug, Clone)]
struct Peer {
    user: String,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let user = match stream.io().peer_cred() {
            Ok(cred) => user_name(cred.uid()),
            Err(error) => {
                tracing::warn!(%error, "a caller's user could not be told");
                "unknown".to_owned()
            }
        };
        Self { user }
    }
}

fn user_name(uid: u32) -> String {
    uzers::get_user_by_uid(uid)
        .map_or_else(|| format!("uid {uid}"), |user| user.name().to_string_lossy().into_owned())
}

/// Binds the socket. One that a dead daemon left behind is replaced; a live one is an error.
pub async fn bind(path: &Path) -> Result<UnixListener, Error> {
    let fail = |doing| move |source| Error { path: path.display().to_string(), doing, source };
    if tokio::net::UnixStream::connect(path).await.is_ok() {
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        return Err(fail("a daemon answers there")(source));
    }
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail("removing the old one")(error)),
    }
    let listener = UnixListener::bind(path).map_err(fail("binding"))?;
    let rights = std::fs::Permissions::from_mode(SOCKET_MODE);
    std::fs::set_permissions(path, rights).map_err(fail("setting its rights"))?;
    Ok(listener)
}

/// Serves until the daemon stops.
pub async fn serve(listener: UnixListener, handle: Handle, stop: Stop) -> io::Result<()> {
    let router = Router::new()
        .route(&format!("/{VERSION}/published"), get(published))
        .route(&format!("/{VERSION}/request"), post(request))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(handle);
    let service = router.into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).with_graceful_shutdown(async move { stop.stopped().await }).await
}

async fn published(State(handle): State<Handle>) -> Response {
    Json(&*handle.published()).into_response()
}

async fn request(
    State(handle): State<Handle>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(command): Json<Command>,
) -> Response {
    tracing::info!(user = %peer.user, ?command, "request");
    match handle.request(&peer.user, command).await {
        Ok(reply) => Json(reply).into_response(),
        Err(refusal) => {
            let status = match refusal {
                Refusal::Denied { .. } => StatusCode::CONFLICT,
                Refusal::Invalid { .. } => StatusCode::BAD_REQUEST,
                Refusal::Ledger { .. } => StatusCode::INSUFFICIENT_STORAGE,
                Refusal::Away { .. } => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, Json(refusal)).into_response()
        }
    }
}
