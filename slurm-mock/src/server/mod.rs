//! slurmrestd over TCP and a Unix socket. It brings the model to the clock's time on every request, carries
//! out injected faults, and adds `POST /mock/scontrol`, which the real one does not have.

mod wire;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::Semaphore,
    task::JoinSet,
};

use self::wire::{Mischief, Stream, Trouble, Wire};
use crate::{
    Cluster,
    rest::{
        Api, Auth, Peer,
        faults::{Action, Fault, Faults},
        respond,
    },
    scontrol,
};

/// Where [`Handle`] and the requests take the time from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Connections that are served at once, as by the real one; others wait.
const MAX_CONNECTIONS: usize = 124;
/// Bytes of a request's body.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Paths whose last answer is kept for [`Action::Stale`].
const MAX_REMEMBERED: usize = 256;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener cannot be opened.
    #[error("cannot listen on {0}")]
    Listen(String, #[source] io::Error),
    /// The built-in templates are broken.
    #[error("built-in template")]
    Template(#[from] serde_json::Error),
}

/// What a server needs.
pub struct Options {
    /// The cluster.
    pub cluster: Cluster,
    /// Its time.
    pub clock: Clock,
    /// Where to listen; port 0 takes a free one.
    pub tcp: SocketAddr,
    /// A Unix socket beside it. A file that is there already is replaced.
    pub socket: Option<PathBuf>,
    /// Tokens and users.
    pub auth: Auth,
}

impl Options {
    /// On a free port of 127.0.0.1, without a Unix socket, with the token `mock-token` of user `slurm`.
    pub fn new(cluster: Cluster, clock: Clock) -> Self {
        Self {
            cluster,
            clock,
            tcp: SocketAddr::from(([127, 0, 0, 1], 0)),
            socket: None,
            auth: Auth::default(),
        }
    }
}

struct State {
    cluster: Cluster,
    api: Api,
    faults: Faults,
    last: BTreeMap<String, Response<Bytes>>,
    requests: u64,
}

struct Shared {
    state: Mutex<State>,
    clock: Clock,
}

impl Shared {
    /// The state, brought to the clock's time.
    fn lock(&self) -> MutexGuard<'_, State> {
        let now = (self.clock)();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cluster.advance_to(now);
        state
    }
}

/// A running server. Dropping it stops it and ends its connections.
pub struct Handle {
    shared: Arc<Shared>,
    address: SocketAddr,
    socket: Option<PathBuf>,
    _tasks: JoinSet<()>,
}

impl Handle {
    /// Works on the cluster, at the clock's time.
    pub fn cluster<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        work(&mut self.shared.lock().cluster)
    }

    /// Works on the interface: tokens, staleness.
    pub fn api<T>(&self, work: impl FnOnce(&mut Api) -> T) -> T {
        work(&mut self.shared.lock().api)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The Unix socket.
    pub fn socket_path(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Lets something go wrong.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.inject(fault);
    }

    /// Forgets all faults that are still to come.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// How many requests came in so far.
    pub fn requests(&self) -> u64 {
        self.shared.lock().requests
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // It may be gone already; nothing depends on it.
            drop(std::fs::remove_file(socket));
        }
    }
}

/// Starts a server.
pub async fn serve(options: Options) -> Result<Handle, Error> {
    let listener =
        TcpListener::bind(options.tcp).await.map_err(|e| Error::Listen(options.tcp.to_string(), e))?;
    let address = listener.local_addr().map_err(|e| Error::Listen(options.tcp.to_string(), e))?;
    let state = State {
        cluster: options.cluster,
        api: Api::new(options.auth)?,
        faults: Faults::default(),
        last: BTreeMap::new(),
        requests: 0,
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), clock: options.clock });
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut tasks = JoinSet::new();
    if let Some(path) = &options.socket {
        let listen = |e| Error::Listen(path.display().to_string(), e);
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(listen(e)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(listen)?;
        let (shared, slots) = (shared.clone(), slots.clone());
        let accept = async move || listener.accept().await.map(|(stream, _)| Stream::Unix(stream));
        tasks.spawn(accept_all(accept, shared, slots, Peer::Socket));
    }
    let accept = async move || listener.accept().await.map(|(stream, _)| Stream::Tcp(stream));
    tasks.spawn(accept_all(accept, shared.clone(), slots, Peer::Tcp));
    Ok(Handle { shared, address, socket: options.socket, _tasks: tasks })
}

async fn accept_all(
    accept: impl AsyncFn() -> io::Result<Stream>,
    shared: Arc<Shared>,
    slots: Arc<Semaphore>,
    peer: Peer,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match accept().await {
            Ok(stream) => {
                let shared = shared.clone();
                connections.spawn(async move {
                    serve_connection(stream, shared, peer).await;
                    drop(slot);
                });
            }
            // Out of descriptors or an aborted handshake: the next accept may work.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve_connection(stream: Stream, shared: Arc<Shared>, peer: Peer) {
    let (wire, mischief) = Wire::new(stream);
    let service = service_fn(move |request| {
        let (shared, mischief) = (shared.clone(), mischief.clone());
        async move { Ok::<_, Infallible>(answer(request, &shared, &mischief, peer).await) }
    });
    // A broken connection is the client's business, or was wanted.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(wire), service).await);
}

async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
    mischief: &Mischief,
    peer: Peer,
) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
        return respond(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", String::new()).map(Full::new);
    };
    let request = Request::from_parts(parts, body.to_bytes());
    let path = request.uri().path().to_owned();
    let action = {
        let mut state = shared.lock();
        state.requests += 1;
        state.faults.take(request.method(), &path)
    };
    if let Some(Action::Delay(wait)) = action {
        tokio::time::sleep(wait).await;
    }
    let response = match &action {
        Some(Action::Reset) => Response::default(),
        Some(Action::Stale) => shared.lock().last.get(&path).cloned().unwrap_or_default(),
        Some(Action::Status(status)) => failure(*status),
        Some(Action::Html) => {
            let page = "<html><head><title>Service</title></head><body><h1>It works!</h1></body></html>";
            respond(StatusCode::OK, "text/html", page.to_owned())
        }
        Some(Action::NotModified) => respond(StatusCode::NOT_MODIFIED, "application/json", String::new()),
        None
        | Some(
            Action::Delay(_)
            | Action::LateAnswer(_)
            | Action::LoseAnswer
            | Action::CutBody(_)
            | Action::ApplyButFail
            | Action::SecondResponse
            | Action::HugeBody(_),
        ) => apply(shared, &request, peer, &path),
    };
    distort(action, response, mischief).await.map(Full::new)
}

/// Carries a request out and remembers what was answered.
fn apply(shared: &Shared, request: &Request<Bytes>, peer: Peer, path: &str) -> Response<Bytes> {
    let mut guard = shared.lock();
    let state = &mut *guard;
    if path == "/mock/scontrol" && request.method() == Method::POST {
        return run_scontrol(&mut state.cluster, request.body());
    }
    let response = state.api.respond(&mut state.cluster, request, peer);
    if request.method() == Method::GET {
        if state.last.len() >= MAX_REMEMBERED {
            state.last.clear();
        }
        state.last.insert(path.to_owned(), response.clone());
    }
    response
}

/// Does to an answer what the fault wants, on its way out.
async fn distort(
    action: Option<Action>,
    mut response: Response<Bytes>,
    mischief: &Mischief,
) -> Response<Bytes> {
    match action {
        Some(Action::LateAnswer(wait)) => tokio::time::sleep(wait).await,
        Some(Action::Reset | Action::LoseAnswer) => mischief.set(Trouble::Reset),
        Some(Action::CutBody(bytes)) => mischief.set(Trouble::CutBody(bytes)),
        Some(Action::ApplyButFail) => return failure(500),
        Some(Action::SecondResponse) => {
            let reason = "Requested reservation is invalid";
            let second = format!(
                "HTTP/1.1 422 UNPROCESSABLE CONTENT\r\nConnection: Close\r\nContent-Length: {}\r\nContent-Type: \
                 text/plain\r\n\r\n{reason}",
                reason.len()
            );
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Close"));
            mischief.set(Trouble::Append(Bytes::from(second)));
        }
        Some(Action::HugeBody(bytes)) => {
            let mut body = response.body().to_vec();
            body.resize(body.len().max(bytes), b' ');
            *response.body_mut() = Bytes::from(body);
        }
        None
        | Some(Action::Delay(_) | Action::Stale | Action::Status(_) | Action::Html | Action::NotModified) => {
        }
    }
    response
}

/// slurmrestd's words for a status that has nothing to do with the request.
fn failure(status: u16) -> Response<Bytes> {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (number, error) = match status {
        401 => return respond(code, "text/plain", "Authentication failure".to_owned()),
        511 => (1007, "Protocol authentication error"),
        502 => (1800, "Unable to contact slurm controller (connect failure)"),
        _ => (-1, "Unspecified error"),
    };
    let complaint = serde_json::json!({
        "errors": [{"description": "injected", "error_number": number, "error": error, "source": "mock"}],
        "warnings": [],
    });
    respond(code, "application/json", complaint.to_string())
}

/// The body of `POST /mock/scontrol`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScontrolRequest {
    /// Words after the program's name.
    pub argv: Vec<String>,
    /// Who runs it.
    pub user: String,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScontrolAnswer {
    /// Exit code.
    pub exit: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

fn run_scontrol(cluster: &mut Cluster, body: &Bytes) -> Response<Bytes> {
    let request: ScontrolRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(e) => return respond(StatusCode::BAD_REQUEST, "text/plain", e.to_string()),
    };
    let scontrol::Output { exit, stdout, stderr } = scontrol::run_as(cluster, &request.user, &request.argv);
    match serde_json::to_string(&ScontrolAnswer { exit, stdout, stderr }) {
        Ok(answer) => respond(StatusCode::OK, "application/json", answer),
        Err(e) => respond(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", e.to_string()),
    }
}
