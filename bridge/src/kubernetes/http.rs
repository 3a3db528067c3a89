//! One request to the API server: under a deadline, with a bound on the answer's size, and with every refusal turned into
//! one of our errors. Knows HTTP and the server's Status objects; nothing of what is asked.

use std::time::Duration;

use axum::body::Bytes;
use http::Request;
use kube::core::params::ListParams;
use kube::core::request::Request as KubeRequest;
use serde::de::DeserializeOwned;

use super::Error;
use super::wire::{Listed, Page, Status};

/// Bytes of one answer; a page of 500 Nodes with their images stays below 30 MB.
const ANSWER_LIMIT: usize = 64 << 20;
const PAGE_SIZE: u32 = 500;
/// Pages of one LIST: 500,000 objects.
const PAGES: usize = 1000;
/// How often a LIST starts again when its snapshot was compacted away.
const RESTARTS: usize = 3;
const RBAC: &str = "apply the printed RBAC manifests with this user name";

/// What is asked for, for people.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
}

impl Ask {
    pub(super) const fn new(verb: &'static str, resource: &'static str) -> Self {
        Self { verb, resource }
    }
}

/// Which of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    /// The client library may try again (429, 503, 504), within the deadline.
    Retries,
    /// One try. For writes, and for everything that an answer of 429 says something about.
    OneTry,
}

/// The two connections to one server.
#[derive(Clone)]
pub(super) struct Http {
    reads: kube::Client,
    writes: kube::Client,
    server: String,
    deadline: Duration,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("server", &self.server)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// An answer, whatever its code.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) call: String,
    pub(super) code: u16,
    body: Bytes,
    ask: Ask,
}

impl Http {
    pub(super) fn new(reads: kube::Client, writes: kube::Client, server: String, deadline: Duration) -> Self {
        Self { reads, writes, server, deadline }
    }

    pub(super) async fn send(
        &self,
        with: With,
        ask: Ask,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Error> {
        let request = request.map_err(|error| Error::Odd {
            call: format!("{} {}", ask.verb, ask.resource),
            why: format!("the request cannot be built: {error}"),
        })?;
        let call = format!("{} {}{}", request.method(), self.server, request.uri().path());
        let client = match with {
            With::Retries => &self.reads,
            With::OneTry => &self.writes,
        };
        let exchange = async {
            let answer = client.send(request.map(kube::client::Body::from)).await?;
            let (parts, body) = answer.into_parts();
            Ok((parts.status.as_u16(), axum::body::to_bytes(axum::body::Body::new(body), ANSWER_LIMIT).await))
        };
        match tokio::time::timeout(self.deadline, exchange).await {
            Err(_) => Err(Error::Unanswered { why: format!("{call}: no answer within {:?}", self.deadline) }),
            Ok(Err(error)) => Err(failed(call, &error)),
            Ok(Ok((_, Err(error)))) => Err(Error::Unanswered {
                why: format!(
                    "{call}: the answer broke off or is larger than {ANSWER_LIMIT} bytes: {}",
                    chain(&error)
                ),
            }),
            Ok(Ok((code, Ok(body)))) => Ok(Answer { call, code, body, ask }),
        }
    }

    /// GET of one object.
    pub(super) async fn get(
        &self,
        with: With,
        resource: &'static str,
        path: &str,
        name: &str,
    ) -> Result<Answer, Error> {
        let request = KubeRequest::new(path).get(name, &kube::core::params::GetParams::default());
        self.send(with, Ask::new("get", resource), request).await
    }

    /// A consistent LIST, page by page: no `resourceVersion`, so the first page is a quorum read and the rest its snapshot.
    pub(super) async fn list<T: Listed>(
        &self,
        resource: &'static str,
        path: &str,
        selector: Option<&str>,
    ) -> Result<Vec<T>, Error> {
        self.list_at(resource, path, selector).await.map(|(items, _)| items)
    }

    /// [`Http::list`], and the `resourceVersion` of the state that it shows, where that is a number.
    pub(super) async fn list_at<T: Listed>(
        &self,
        resource: &'static str,
        path: &str,
        selector: Option<&str>,
    ) -> Result<(Vec<T>, Option<u64>), Error> {
        let mut params = ListParams { limit: Some(PAGE_SIZE), ..ListParams::default() };
        params.field_selector = selector.map(str::to_owned);
        let mut restarts = 0;
        let mut items = Vec::new();
        let mut pages = 0;
        loop {
            let request = KubeRequest::new(path).list(&params);
            let answer = self.send(With::Retries, Ask::new("list", resource), request).await?;
            if answer.code == 410 && restarts < RESTARTS {
                restarts += 1;
                params.continue_token = None;
                items.clear();
                pages = 0;
                continue;
            }
            let call = answer.call.clone();
            let page: Page<T> = answer.json()?;
            if page.kind != T::LIST_KIND {
                let why = format!("asked for a {}, found {:?}", T::LIST_KIND, page.kind);
                return Err(Error::Odd { call, why });
            }
            items.extend(page.items);
            pages += 1;
            match page.metadata.next.filter(|next| !next.is_empty()) {
                None => {
                    let revision = page.metadata.version.and_then(|version| version.parse().ok());
                    return Ok((items, revision));
                }
                Some(_) if pages >= PAGES => {
                    return Err(Error::Odd { call, why: format!("more than {PAGES} pages of {PAGE_SIZE}") });
                }
                Some(next) => params.continue_token = Some(next),
            }
        }
    }
}

impl Answer {
    /// Whether the server did what it was asked.
    pub(super) fn done(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The server's words where it said no; empty where they are not a Status.
    pub(super) fn status(&self) -> Status {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The server's words, whatever their form, cut to a line.
    pub(super) fn words(&self) -> String {
        let status = self.status();
        let text = if status.message.is_empty() {
            String::from_utf8_lossy(&self.body)
        } else {
            status.message.into()
        };
        let text: String = text.trim().chars().take(500).collect();
        if text.is_empty() { format!("HTTP {}", self.code) } else { text.replace('\n', " ") }
    }

    /// Checks the code only.
    pub(super) fn ok(self) -> Result<(), Error> {
        if self.done() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Checks the code and reads the body; only for reads.
    pub(super) fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        if !self.done() {
            return Err(self.refusal());
        }
        let mut json = serde_json::Deserializer::from_slice(&self.body);
        serde_path_to_error::deserialize(&mut json)
            .map_err(|error| Error::Odd { call: self.call, why: error.to_string() })
    }

    /// As [`Answer::json`]; `None` where the thing, or its whole API, does not exist.
    pub(super) fn json_if_there<T: DeserializeOwned>(self) -> Result<Option<T>, Error> {
        if self.code == 404 { Ok(None) } else { self.json().map(Some) }
    }

    /// What a code outside 2xx means.
    pub(super) fn refusal(self) -> Error {
        let why = self.words();
        let call = self.call;
        match self.code {
            401 => Error::Unauthorized { call, why },
            403 => {
                Error::Forbidden { call, verb: self.ask.verb, resource: self.ask.resource, why, advice: RBAC }
            }
            404 => Error::NotFound {
                call,
                what: format!("such object or API among {} ({why})", self.ask.resource),
                advice: "see whether it was deleted, and whether the server has this API",
            },
            409 => Error::Conflict { call, why },
            429 => Error::Busy { call, why },
            400..=499 => Error::Odd { call, why: format!("HTTP {}: {why}", self.code) },
            code => Error::Unanswered { why: format!("{call}: HTTP {code}: {why}") },
        }
    }
}

/// No HTTP answer came.
fn failed(call: String, error: &kube::Error) -> Error {
    let why = chain(error);
    if matches!(error, kube::Error::Auth(_)) {
        return Error::Unauthorized { call, why };
    }
    Error::Unanswered {
        why: format!("{call}: {why}; see whether the API server runs and is reachable from here"),
    }
}

/// An error with its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
