//! A server that answers by script, for tests.

use std::time::Duration;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, from_slice};

use super::http::Http;

pub(super) type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

pub(super) fn client() -> (kube::Client, Server) {
    let (service, server) = tower_test::mock::pair();
    (kube::Client::new(service, "default"), server)
}

pub(super) fn server() -> (Http, Server) {
    let (client, server) = client();
    (Http::new(client.clone(), client, "https://k8s".to_owned(), Duration::from_secs(5)), server)
}

/// Answers one request; returns its method, path and body.
pub(super) async fn answer(server: &mut Server, code: u16, body: Value) -> (Method, String, Value) {
    let (request, respond) = server.next_request().await.unwrap();
    let (parts, sent) = request.into_parts();
    let sent = axum::body::to_bytes(axum::body::Body::new(sent), 1 << 20).await.unwrap();
    let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
    respond.send_response(response);
    (
        parts.method,
        parts.uri.to_string(),
        if sent.is_empty() { Value::Null } else { from_slice(&sent).unwrap() },
    )
}
