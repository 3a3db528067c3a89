//! slurmrestd as a function: one request in, one answer out, on a [`Cluster`] that the caller has brought to
//! the right time. It opens no socket and reads no clock, so that virtual time can drive it too.

mod auth;
pub mod faults;
mod read;
mod shapes;
mod write;

use std::collections::BTreeMap;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};

pub(crate) use self::shapes::uid;
pub use self::{auth::Auth, shapes::Version};
use self::{
    auth::Identity,
    shapes::{Templates, Usage},
};
use crate::{
    Cluster,
    model::{Error, NodeName},
};

/// Which listener a request came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP: a token is needed.
    Tcp,
    /// Unix socket: the peer's own user is known.
    Socket,
}

/// The REST interface of a cluster.
#[derive(Clone, Debug)]
pub struct Api {
    templates: Templates,
    /// Who may come in.
    pub auth: Auth,
    /// Whether `GET node/X` shows the load that the last `GET nodes` saw, as every real release does.
    pub stale_single_node: bool,
    seen: BTreeMap<NodeName, Usage>,
}

/// One complaint in `errors[]`.
pub(super) struct Complaint {
    pub(super) description: String,
    pub(super) number: i32,
    pub(super) error: String,
    pub(super) source: String,
}

impl Complaint {
    fn new(description: impl Into<String>, number: i32, error: &str, source: impl Into<String>) -> Self {
        Self { description: description.into(), number, error: error.to_owned(), source: source.into() }
    }

    fn to_json(&self) -> Value {
        json!({
            "description": self.description,
            "error_number": self.number,
            "error": self.error,
            "source": self.source,
        })
    }
}

/// One entry of `warnings[]`.
pub(super) fn warning(description: &str, source: impl Into<String>) -> Value {
    json!({"description": description, "source": source.into()})
}

/// What an endpoint answers, before `meta` is added.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Map<String, Value>,
    pub(super) errors: Vec<Complaint>,
    pub(super) warnings: Vec<Value>,
}

impl Answer {
    pub(super) fn ok<const N: usize>(fields: [(&str, Value); N]) -> Self {
        let body = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Self { status: StatusCode::OK, body, errors: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn error(status: StatusCode, complaint: Complaint) -> Self {
        Self { status, body: Map::new(), errors: vec![complaint], warnings: Vec::new() }
    }

    /// A refusal by slurmctld with the status that 24.11 gives it.
    pub(super) fn refused(error: Error, description: impl Into<String>, source: &str) -> Self {
        let status = match error {
            Error::ControllerDown => StatusCode::BAD_GATEWAY,
            Error::InvalidJobId => StatusCode::NOT_FOUND,
            Error::InvalidPartition
            | Error::AccessDenied
            | Error::InvalidUser
            | Error::ConfigUnavailable
            | Error::NodesBusy
            | Error::InvalidNodeName
            | Error::AlreadyDone
            | Error::InvalidNodeState
            | Error::ReservationAccess
            | Error::ReservationInvalid
            | Error::InvalidTime
            | Error::ReservationStarted
            | Error::ReservationBusy
            | Error::ReservationOverlap
            | Error::ReservationNameTaken
            | Error::ReservationEmpty
            | Error::JobNotRunning
            | Error::JobNotSuspended
            | Error::Disabled => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::error(status, Complaint::new(description, error.code(), &error.to_string(), source))
    }
}

/// An endpoint with what its path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Ping,
    Diag,
    Nodes,
    Node(String),
    UpdateNode(String),
    UpdateNodes,
    Jobs,
    JobStates,
    Job(String),
    Submit,
    Kill(String),
    KillMany,
    Reservations,
    Reservation(String),
    Partitions,
    Partition(String),
}

impl Route {
    fn parse(method: &Method, path: &[&str]) -> Option<Self> {
        let word = |w: &&str| (*w).to_owned();
        let route = match (method.as_str(), path) {
            ("GET", ["ping"]) => Self::Ping,
            ("GET", ["diag"]) => Self::Diag,
            ("GET", ["nodes"]) => Self::Nodes,
            ("GET", ["node", name]) => Self::Node(word(name)),
            ("POST", ["node", name]) => Self::UpdateNode(word(name)),
            ("POST", ["nodes"]) => Self::UpdateNodes,
            ("GET", ["jobs"]) => Self::Jobs,
            ("GET", ["jobs", "state"]) => Self::JobStates,
            ("POST", ["job", "submit"]) => Self::Submit,
            ("GET", ["job", id]) => Self::Job(word(id)),
            ("DELETE", ["job", id]) => Self::Kill(word(id)),
            ("DELETE", ["jobs"]) => Self::KillMany,
            ("GET", ["reservations"]) => Self::Reservations,
            ("GET", ["reservation", name]) => Self::Reservation(word(name)),
            ("GET", ["partitions"]) => Self::Partitions,
            ("GET", ["partition", name]) => Self::Partition(word(name)),
            _ => return None,
        };
        Some(route)
    }

    /// How it complains when slurmctld is away or the token is bad.
    fn complaint(&self) -> (String, &'static str) {
        match self {
            Self::Ping => ("Failure to ping".to_owned(), "ping"),
            Self::Diag => ("Failure to query statistics".to_owned(), "slurm_get_statistics()"),
            Self::Nodes => ("Failure to query nodes".to_owned(), "_dump_nodes"),
            Self::Node(name) => (format!("Failure to query node {name}"), "_dump_nodes"),
            Self::UpdateNode(name) => (format!("Failure to update node {name}"), "_update_node"),
            Self::UpdateNodes => ("Failure to update nodes".to_owned(), "_update_node"),
            Self::Jobs => ("Unable to query jobs".to_owned(), "slurm_load_jobs()"),
            Self::JobStates => ("Unable to query job states".to_owned(), "slurm_load_job_state()"),
            Self::Job(id) => (format!("Unable to query JobId={id}"), "_handle_job_get"),
            Self::Submit => ("Batch job submission failed".to_owned(), "slurm_submit_batch_job()"),
            Self::Kill(_) | Self::KillMany => ("Signal request failed".to_owned(), "slurm_kill_jobs()"),
            Self::Reservations | Self::Reservation(_) => {
                ("Unable to query reservations".to_owned(), "slurm_load_reservations()")
            }
            Self::Partitions | Self::Partition(_) => {
                ("Unable to query partitions".to_owned(), "slurm_load_partitions()")
            }
        }
    }
}

/// What an endpoint works with.
pub(super) struct Call<'a> {
    pub(super) version: Version,
    pub(super) user: &'a str,
    pub(super) query: BTreeMap<String, String>,
    pub(super) body: &'a Bytes,
    pub(super) headers: &'a HeaderMap,
}

impl Api {
    /// An interface for the given tokens. Fails if the built-in templates cannot be read.
    pub fn new(auth: Auth) -> Result<Self, serde_json::Error> {
        Ok(Self { templates: Templates::load()?, auth, stale_single_node: true, seen: BTreeMap::new() })
    }

    /// Answers one request.
    pub fn respond(
        &mut self,
        cluster: &mut Cluster,
        request: &Request<Bytes>,
        peer: Peer,
    ) -> Response<Bytes> {
        let headers = request.headers();
        if let Some(answer) = unacceptable(request) {
            return answer;
        }
        let path = request.uri().path();
        if path.contains(['[', ']']) {
            return text(StatusCode::BAD_REQUEST, "Unable to parse URL path.");
        }
        let segments: Vec<String> = path.trim_matches('/').split('/').map(percent_decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let ["slurm", version, rest @ ..] = segments.as_slice() else { return not_found() };
        let Some(version) = Version::parse(version) else { return not_found() };
        let Some(route) = Route::parse(request.method(), rest) else { return not_found() };
        let Some(identity) = self.auth.identify(headers, peer) else {
            return text(StatusCode::UNAUTHORIZED, "Authentication failure");
        };
        let user = match &identity {
            Identity::User(user) => user.as_str(),
            Identity::BadToken => "root",
        };
        let query = parse_query(request.uri().query().unwrap_or_default());
        let call = Call { version, user, query, body: request.body(), headers };
        let valid = identity != Identity::BadToken;
        let answer = if route == Route::Ping {
            Ok(Answer::ok([("pings", shapes::ping(version, valid && cluster.controller_is_up()))]))
        } else if !cluster.controller_is_up() {
            let (description, source) = route.complaint();
            Ok(Answer::refused(Error::ControllerDown, description, source))
        } else if valid {
            self.dispatch(cluster, &route, &call)
        } else {
            let (description, source) = route.complaint();
            let complaint = Complaint::new(description, 1007, "Protocol authentication error", source);
            Ok(Answer::error(StatusCode::NETWORK_AUTHENTICATION_REQUIRED, complaint))
        };
        match answer {
            Ok(answer) => finish(answer, shapes::meta(version, user, &cluster.config().cluster_name)),
            Err(raw) => *raw,
        }
    }

    fn dispatch(
        &mut self,
        cluster: &mut Cluster,
        route: &Route,
        call: &Call<'_>,
    ) -> Result<Answer, Box<Response<Bytes>>> {
        match route {
            Route::Ping => Ok(Answer::ok([("pings", shapes::ping(call.version, true))])),
            Route::Diag => Ok(Answer::ok([("statistics", self.statistics(cluster))])),
            Route::Nodes => self.get_nodes(cluster, call),
            Route::Node(name) => Ok(self.get_node(cluster, call, name)),
            Route::Jobs => Ok(self.get_jobs(cluster, call)),
            Route::JobStates => Ok(read::job_states(cluster)),
            Route::Job(id) => Ok(self.get_job(cluster, call, id)),
            Route::Reservations => read::reservations(cluster, call),
            Route::Reservation(name) => Ok(read::reservation(cluster, name)),
            Route::Partitions => self.get_partitions(cluster, call),
            Route::Partition(name) => Ok(self.get_partition(cluster, name)),
            Route::UpdateNode(name) => write::update_node(cluster, call, Some(name)),
            Route::UpdateNodes => write::update_node(cluster, call, None),
            Route::Submit => write::submit(cluster, call),
            Route::Kill(id) => Ok(write::kill(cluster, call, id)),
            Route::KillMany => write::kill_many(cluster, call),
        }
    }
}

/// Requests that are refused before anything else is looked at.
fn unacceptable(request: &Request<Bytes>) -> Option<Response<Bytes>> {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if header(header::TRANSFER_ENCODING).contains("chunked") {
        return Some(text(StatusCode::NOT_ACCEPTABLE, ""));
    }
    if request.method() == Method::HEAD {
        return Some(text(StatusCode::LENGTH_REQUIRED, ""));
    }
    let accept = header(header::ACCEPT);
    let accepts = |part: &str| {
        let kind = part.split(';').next().unwrap_or_default().trim();
        matches!(kind, "" | "*/*" | "application/*" | "application/json")
    };
    if !accept.split(',').any(accepts) {
        return Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unable to find any MIME type."));
    }
    None
}

fn finish(answer: Answer, meta: Value) -> Response<Bytes> {
    let mut body = answer.body;
    body.insert("meta".to_owned(), meta);
    body.insert("errors".to_owned(), answer.errors.iter().map(Complaint::to_json).collect());
    body.insert("warnings".to_owned(), answer.warnings.into());
    respond(answer.status, "application/json", Value::Object(body).to_string())
}

pub(super) fn text(status: StatusCode, body: &str) -> Response<Bytes> {
    respond(status, "text/plain", body.to_owned())
}

fn not_found() -> Response<Bytes> {
    text(StatusCode::NOT_FOUND, "Unable find requested URL. Please view /openapi/v3 for API reference.")
}

pub(crate) fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    if !status.is_success() {
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("Close"));
    }
    response
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        (percent_decode(key), percent_decode(value))
    };
    query.split('&').filter(|p| !p.is_empty()).map(pair).collect()
}

fn percent_decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}
