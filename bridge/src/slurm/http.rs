//! One conversation with slurmrestd: one connection, one request at a time, every answer bounded in time and size. It
//! knows which connections can be used again, and nothing of what the answers mean.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method};
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::answer::{Asked, judge};
use super::error::Error;
use super::rights::User;
use super::token::{TokenSource, Tokens};
use crate::daemon::clock::{Clock, SystemClock};

/// Where slurmrestd listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// `http://host:port`, with a JWT.
    Tcp(String),
    /// A Unix socket (rest_auth/local: slurmrestd's own uid or root).
    Unix(PathBuf),
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::Options(format!("url {url:?} {why}"));
        // As in the configuration (`unix:/PATH`), or as a URL (`unix:///PATH`).
        if let Some(rest) = url.strip_prefix("unix:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if !path.starts_with('/') {
                return Err(bad("names no absolute path; expected unix:///run/slurmrestd/slurmrestd.sock"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')).unwrap_or_default();
        if host.is_empty() || host.contains(['/', '?', '#', '@']) {
            return Err(bad("is neither http://HOST:PORT nor unix:///PATH"));
        }
        Ok(Self::Tcp(format!("http://{host}")))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(base) => f.write_str(base),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The conversation.
pub(super) struct Http {
    address: Address,
    user: String,
    tokens: Option<Tokens>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    max_bytes: usize,
    /// The client that holds our one connection; taken out for each request, and put back only after a clean answer.
    idle: Mutex<Option<reqwest::Client>>,
}

/// What is sent.
struct Request<'a> {
    method: Method,
    path: &'a str,
    body: Option<String>,
    /// For the answer, in bytes.
    limit: usize,
}

/// How one attempt went wrong.
enum Attempt {
    /// Nothing of an answer came: an idempotent request may be tried once more.
    Dropped(Error),
    /// The token was not accepted.
    BadToken(Error, Option<HeaderValue>),
    Failed(Error),
}

impl Http {
    pub(super) fn new(
        address: Address,
        user: String,
        token: Option<TokenSource>,
        timeout: Duration,
        max_bytes: usize,
    ) -> Self {
        let tokens = token.map(|source| Tokens::new(source, user.clone(), timeout));
        let clock = Arc::new(SystemClock);
        Self { address, user, tokens, clock, timeout, max_bytes, idle: Mutex::new(None) }
    }

    /// The same on another clock, for tokens that are made anew before they end.
    pub(super) fn on_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// When the token in use ends, where a person has to replace it.
    pub(super) async fn token_ends(&self) -> Option<Timestamp> {
        self.tokens.as_ref()?.ends().await
    }

    /// Whom Slurm takes our requests to be from: the token's user, or, over a socket, the one that slurmrestd runs as.
    pub(super) async fn acts_as(&self) -> Result<User, Error> {
        let Address::Unix(path) = &self.address else { return Ok(User::Named(self.user.clone())) };
        let work = async { tokio::net::UnixStream::connect(path).await?.peer_cred() };
        let answer = tokio::time::timeout(self.timeout, work).await;
        let peer = answer.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let unreachable = |error: std::io::Error| Error::Unreachable {
            asked: "whom slurmrestd runs as".to_owned(),
            at: self.address.to_string(),
            why: error.to_string(),
        };
        peer.map(|peer| User::Id(peer.uid())).map_err(unreachable)
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// What `read` makes of an answer with status 2xx. Errors can stand in it all the same, so `read` must be `Ok` for clean
    /// answers only. `limit` is a smaller limit than the configured one, in bytes.
    pub(super) async fn get<T>(
        &self,
        path: &str,
        limit: Option<usize>,
        read: impl Fn(&Asked<'_>, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = limit.unwrap_or(self.max_bytes).min(self.max_bytes);
        self.request(Request { method: Method::GET, path, body: None, limit }, read).await
    }

    /// Never sent twice, except where the token was refused, which means that nothing was done.
    pub(super) async fn post(&self, path: &str, body: String) -> Result<(), Error> {
        let request = Request { method: Method::POST, path, body: Some(body), limit: self.max_bytes };
        self.request(request, judge).await
    }

    /// As [`Self::post`].
    pub(super) async fn delete(&self, path: &str) -> Result<(), Error> {
        let request = Request { method: Method::DELETE, path, body: None, limit: self.max_bytes };
        self.request(request, judge).await
    }

    async fn request<T>(
        &self,
        request: Request<'_>,
        read: impl Fn(&Asked<'_>, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let asked = format!("{} {}", request.method, request.path);
        let work = async {
            let mut retried = false;
            let mut renewed = None;
            loop {
                match self.attempt(&request, &asked, renewed.take(), &read).await {
                    Ok(found) => return Ok(found),
                    Err(Attempt::Dropped(error)) if !retried && request.method == Method::GET => {
                        tracing::debug!(%error, "asking once more");
                        retried = true;
                    }
                    Err(Attempt::BadToken(error, Some(refused))) if !retried => {
                        retried = true;
                        renewed = match &self.tokens {
                            Some(tokens) => tokens.other_than(&refused, self.clock.now()).await?,
                            None => None,
                        };
                        if renewed.is_none() {
                            return Err(error);
                        }
                    }
                    Err(Attempt::Dropped(error) | Attempt::BadToken(error, _) | Attempt::Failed(error)) => {
                        return Err(error);
                    }
                }
            }
        };
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            Err(Error::Unanswered { why: format!("{asked}: no answer within {} s", self.timeout.as_secs()) })
        })
    }

    async fn attempt<T>(
        &self,
        wanted: &Request<'_>,
        asked: &str,
        renewed: Option<HeaderValue>,
        read: impl Fn(&Asked<'_>, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Attempt> {
        let Request { method, path, body, limit } = wanted;
        let token = match (&self.tokens, renewed) {
            (_, Some(token)) => Some(token),
            (Some(tokens), None) => Some(tokens.current(self.clock.now()).await.map_err(Attempt::Failed)?),
            (None, None) => None,
        };
        let mut idle = self.idle.lock().await;
        let client = match idle.take() {
            Some(client) => client,
            None => self.connection().map_err(Attempt::Failed)?,
        };
        let base = match &self.address {
            Address::Tcp(base) => base.as_str(),
            Address::Unix(_) => "http://localhost",
        };
        let mut request = client
            .request(method.clone(), format!("{base}{path}"))
            .header(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = &token {
            request = request.header("X-SLURM-USER-NAME", &self.user).header("X-SLURM-USER-TOKEN", token);
        }
        if let Some(body) = body {
            // slurmrestd refuses a charset here.
            request = request
                .header(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(body.clone());
        }
        let sent = Instant::now();
        let mut response = request.send().await.map_err(|error| self.lost(asked, &error))?;
        let status = response.status().as_u16();
        let too_large = || Attempt::Failed(Error::TooLarge { asked: asked.to_owned(), limit: *limit });
        let announced = response.content_length().unwrap_or(0);
        if usize::try_from(announced).unwrap_or(usize::MAX) > *limit {
            return Err(too_large());
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(asked, &error))? {
            if answer.len() + chunk.len() > *limit {
                return Err(too_large());
            }
            answer.extend_from_slice(&chunk);
        }
        let asked = Asked::new(asked, &self.user).answered(status, sent.elapsed());
        let found = match status {
            200..300 => read(&asked, &answer),
            _ => asked.judge(&answer).and_then(|()| read(&asked, &answer)),
        };
        match found {
            // Never reuse a connection after anything else: 25.11 and later send a second answer after most errors, those
            // with status 200 too.
            Ok(found) => {
                *idle = Some(client);
                Ok(found)
            }
            Err(error @ (Error::Credentials { .. } | Error::TokenOrDatabase { .. })) => {
                Err(Attempt::BadToken(error, token))
            }
            Err(error @ Error::TokenOrController { .. }) if *method == Method::GET => {
                Err(Attempt::BadToken(error, token))
            }
            Err(error) => Err(Attempt::Failed(error)),
        }
    }

    /// A client with no connection yet. Dropping it closes the one it made.
    fn connection(&self) -> Result<reqwest::Client, Error> {
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(1);
        if let Address::Unix(path) = &self.address {
            builder = builder.unix_socket(path.as_path());
        }
        builder
            .build()
            .map_err(|error| Error::Options(format!("cannot make an HTTP client: {}", chain(&error))))
    }

    fn lost(&self, asked: &str, error: &reqwest::Error) -> Attempt {
        let why = chain(error);
        if error.is_connect() {
            let at = self.address.to_string();
            Attempt::Failed(Error::Unreachable { asked: asked.to_owned(), at, why })
        } else {
            Attempt::Dropped(Error::Unanswered { why: format!("{asked}: the connection broke ({why})") })
        }
    }
}

/// An error with its causes, without the URL (which reqwest repeats).
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, address) in [
            ("http://127.0.0.1:6820", Some(Address::Tcp("http://127.0.0.1:6820".into()))),
            ("http://head:6820/", Some(Address::Tcp("http://head:6820".into()))),
            ("unix:///run/s.sock", Some(Address::Unix("/run/s.sock".into()))),
            ("unix://run/s.sock", None),
            ("https://head", None),
            ("http://", None),
            ("http://head/slurm", None),
            ("head:6820", None),
        ] {
            assert_eq!(Address::parse(url).ok(), address, "{url}");
        }
    }
}
