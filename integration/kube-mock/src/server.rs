//! The cluster behind HTTP, for real clients, with faults on request.
//!
//! Decides only how bytes come and go: the cluster's time is what the given clock says, and is brought up to it before
//! every request and every few milliseconds, so that watches see what happens by itself.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use futures::StreamExt;
use futures::stream;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::api::{Answer, Request, WatchQuery};
use crate::cluster::Cluster;

const MAX_BODY_BYTES: usize = 4 << 20;
const TICK: Duration = Duration::from_millis(5);
const BOOKMARK_EVERY: Duration = Duration::from_secs(1);

/// What time it is in the cluster.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What goes wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The answer comes so much later (in real time).
    Delay(Duration),
    /// The connection ends without an answer, and the request had no effect.
    Reset,
    /// The request takes effect, but the connection ends without an answer.
    LostAnswer,
    /// The body of the answer ends after so many bytes.
    CutBody(usize),
    /// The server refuses with this HTTP status and a `Status` object, and does nothing.
    Refuse(u16),
    /// A proxy answers in the server's place.
    Html,
}

/// Which requests a fault is for. The first that fits a request is used.
#[derive(Debug, Clone)]
pub struct Injection {
    /// Method, or any.
    pub method: Option<String>,
    /// What the path with its query must contain.
    pub path_contains: String,
    /// For how many requests.
    pub times: u32,
    /// What happens.
    pub fault: Fault,
}

impl Injection {
    /// A fault for the next `times` requests of any method whose path or query contains this.
    pub fn new(path_contains: &str, times: u32, fault: Fault) -> Self {
        Injection { method: None, path_contains: path_contains.to_owned(), times, fault }
    }

    /// Only for this method.
    #[must_use]
    pub fn on(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }
}

struct Shared {
    cluster: Mutex<Cluster>,
    clock: Clock,
    faults: Mutex<Vec<Injection>>,
    requests: Mutex<Vec<String>>,
}

/// A running server; it stops when this is dropped.
pub struct Handle {
    shared: Arc<Shared>,
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves a cluster on a free port of the loopback address.
pub async fn serve(cluster: Cluster, clock: Clock) -> io::Result<Handle> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let shared = Arc::new(Shared {
        cluster: Mutex::new(cluster),
        clock,
        faults: Mutex::new(Vec::new()),
        requests: Mutex::new(Vec::new()),
    });
    let ticking = Arc::clone(&shared);
    let ticker = tokio::spawn(async move {
        loop {
            drop(ticking.cluster());
            tokio::time::sleep(TICK).await;
        }
    });
    let accepting = Arc::clone(&shared);
    let acceptor = tokio::spawn(async move {
        // Connections live in this task, so that they end with it.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(connection(Arc::clone(&accepting), stream));
                    }
                }
                Some(_ended) = connections.join_next() => {}
            }
        }
    });
    Ok(Handle { shared, address, tasks: [ticker, acceptor] })
}

impl Handle {
    /// Looks at or changes the cluster, at its present time.
    pub fn cluster<T>(&self, with: impl FnOnce(&mut Cluster) -> T) -> T {
        with(&mut self.shared.cluster())
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig for it.
    pub fn kubeconfig_file(&self, path: &Path) -> io::Result<()> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "mock",
            "clusters": [{"name": "mock", "cluster": {"server": self.url()}}],
            "users": [{"name": "gpu-bridge", "user": {"token": "mock"}}],
            "contexts": [{"name": "mock", "context": {"cluster": "mock", "user": "gpu-bridge"}}],
        });
        // JSON is YAML.
        std::fs::write(path, config.to_string())
    }

    /// Lets coming requests fail.
    pub fn inject(&self, injection: Injection) {
        lock(&self.shared.faults).push(injection);
    }

    /// Takes back all faults that wait.
    pub fn heal(&self) {
        lock(&self.shared.faults).clear();
    }

    /// All requests so far: method, path and query. The list begins anew.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.requests))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        let now = (self.clock)();
        let mut cluster = lock(&self.cluster);
        cluster.advance_to(now);
        cluster
    }

    fn fault_for(&self, method: &str, uri: &str) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let at = faults.iter().position(|injection| {
            injection.method.as_deref().is_none_or(|wanted| wanted == method)
                && uri.contains(&injection.path_contains)
        })?;
        let fault = faults[at].fault.clone();
        faults[at].times = faults[at].times.saturating_sub(1);
        if faults[at].times == 0 {
            faults.remove(at);
        }
        Some(fault)
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream) {
    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
    // An error here is a client that went away, or a fault that we were asked for.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

fn connection_reset() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

async fn answer(
    shared: Arc<Shared>,
    request: hyper::Request<hyper::body::Incoming>,
) -> io::Result<http::Response<Body>> {
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), MAX_BODY_BYTES).await.map_err(io::Error::other)?;
    let uri = head.uri.to_string();
    let method = head.method.to_string();
    lock(&shared.requests).push(format!("{method} {uri}"));
    let content_type = head.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let request = Request {
        method: method.clone(),
        path: head.uri.path().to_owned(),
        query: decode_query(head.uri.query().unwrap_or_default()),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: body.to_vec(),
    };
    let fault = shared.fault_for(&method, &uri);
    match fault {
        Some(Fault::Reset) => return Err(connection_reset()),
        Some(Fault::Html) => {
            let page = "<html><body><h1>503 Service Unavailable</h1></body></html>";
            return respond(200, "text/html", Body::from(page));
        }
        Some(Fault::Refuse(code)) => return json_response(code, &refusal(code)),
        Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
        Some(Fault::LostAnswer | Fault::CutBody(_)) | None => {}
    }
    let answer = shared.cluster().request(&request);
    match (answer, fault) {
        (_, Some(Fault::LostAnswer)) => Err(connection_reset()),
        (Answer::Json { code, body }, Some(Fault::CutBody(bytes))) => {
            let whole = body.to_string();
            let cut = Bytes::from(whole.as_bytes()[..bytes.min(whole.len())].to_vec());
            let parts = [Ok(cut), Err(connection_reset())];
            respond(code, "application/json", Body::from_stream(stream::iter(parts)))
        }
        (Answer::Json { code, body }, _) => json_response(code, &body),
        (Answer::Text(text), _) => respond(200, "text/plain", Body::from(text)),
        (Answer::Watch(query), _) => respond(200, "application/json", watch_body(shared, query)),
    }
}

fn json_response(code: u16, body: &Value) -> io::Result<http::Response<Body>> {
    respond(code, "application/json", Body::from(body.to_string()))
}

fn respond(code: u16, content_type: &str, body: Body) -> io::Result<http::Response<Body>> {
    let response = http::Response::builder().status(code).header(http::header::CONTENT_TYPE, content_type);
    response.body(body).map_err(io::Error::other)
}

fn refusal(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "injected",
        "reason": reason, "code": code,
    })
}

struct Watching {
    shared: Arc<Shared>,
    query: WatchQuery,
    until: Option<Instant>,
    bookmark_at: Instant,
    over: bool,
}

fn watch_body(shared: Arc<Shared>, query: WatchQuery) -> Body {
    let start = Instant::now();
    let until = query.timeout_s.map(|seconds| start + Duration::from_secs(seconds));
    let state = Watching { shared, query, until, bookmark_at: start + BOOKMARK_EVERY, over: false };
    let chunks = stream::unfold(state, |mut state| async move {
        loop {
            if state.over || state.until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            let lines = state.next_lines();
            if !lines.is_empty() {
                return Some((Bytes::from(lines), state));
            }
            tokio::time::sleep(TICK).await;
        }
    });
    Body::from_stream(chunks.map(Ok::<_, Infallible>))
}

impl Watching {
    fn next_lines(&mut self) -> String {
        let cluster = self.shared.cluster();
        let mut events = match cluster.watch_events(&self.query) {
            Ok((events, version)) => {
                self.query.after = version;
                self.query.initial = false;
                events
            }
            Err(failure) => {
                self.over = true;
                match failure.answer() {
                    Answer::Json { body, .. } => vec![json!({"type": "ERROR", "object": body})],
                    Answer::Text(_) | Answer::Watch(_) => Vec::new(),
                }
            }
        };
        if self.query.bookmarks && Instant::now() >= self.bookmark_at {
            self.bookmark_at = Instant::now() + BOOKMARK_EVERY;
            events.push(cluster.bookmark(self.query.resource));
        }
        let mut lines = String::new();
        for event in events {
            lines += &event.to_string();
            lines.push('\n');
        }
        lines
    }
}

/// Query parameters, percent-decoded.
fn decode_query(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let hex = tail.first_chunk::<2>().and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
