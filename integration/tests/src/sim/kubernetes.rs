//! The Kubernetes port: the daemon's real client, over a connection that ends in the model instead of a network, with what
//! can go wrong on the way.

use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge::kubernetes::client::{Client, Options};
use gpu_bridge::kubernetes::manifests::{self, ManifestOptions};
use gpu_bridge::kubernetes::{Error, Kubernetes};
use gpu_bridge_core::event::Action as AnyAction;
use gpu_bridge_core::facts::kubernetes::{Acted, Action, BindingProbe, Kubernetes as Facts, NodeLook};
use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::model::Domain;
use kube::client::Body;
use kube_mock::{Answer, Cluster, Id, Request, Resource};

use super::shared::Shared;
use super::world::{Late, Look, Who, World, text};

/// The port.
pub(super) struct Port {
    world: Shared,
    client: Client,
}

/// The guards of the simulated site.
pub(super) fn guards(nodes: &[String]) -> ManifestOptions {
    ManifestOptions::new(nodes.iter().map(|node| KubeNodeName::new(node.as_str())), "gpu-bridge")
}

/// Puts the guards in place, as a person applies them.
pub(super) fn install(cluster: &mut Cluster, guards: &ManifestOptions) -> anyhow::Result<()> {
    for (_, document) in manifests::documents(guards)? {
        let resource = match text(&document, "/kind") {
            "ValidatingAdmissionPolicy" => Resource::ValidatingAdmissionPolicies,
            "ValidatingAdmissionPolicyBinding" => Resource::ValidatingAdmissionPolicyBindings,
            _ => continue,
        };
        let id = Id::cluster(resource, text(&document, "/metadata/name"));
        cluster.create(&id, document);
    }
    Ok(())
}

impl Port {
    pub(super) fn new(world: Shared, guards: ManifestOptions) -> anyhow::Result<Arc<Self>> {
        let connection = world.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let world = connection.clone();
            async move { exchange(&world, request).await }
        });
        let client = kube::Client::new(service, "default");
        let mut options = Options::new(guards);
        options.pool_labels = [super::run::POOL_LABEL.to_owned()].into();
        let client = Client::over(client.clone(), client, "https://model".to_owned(), options)?;
        Ok(Arc::new(Self { world, client }))
    }
}

#[async_trait]
impl Kubernetes for Port {
    async fn look(&self) -> Result<Facts, Error> {
        let looked = self.client.look().await;
        self.world.lock().looked(Look::Kubernetes);
        looked
    }

    async fn look_at(&self, node: &KubeNodeName) -> Result<NodeLook, Error> {
        let looked = self.client.look_at(node).await;
        self.world.lock().looked(Look::Node);
        looked
    }

    async fn probe_binding(&self, node: &KubeNodeName) -> Result<BindingProbe, Error> {
        self.client.probe_binding(node).await
    }

    async fn act(&self, action: &Action) -> Result<Acted, Error> {
        {
            let mut world = self.world.lock();
            if world.disk.is_crashed() {
                return Err(Error::Unanswered { why: "the daemon is dead".to_owned() });
            }
            world.announced(&AnyAction::Kubernetes(action.clone()));
            let node = match action {
                Action::CloseGate { node } | Action::OpenGate { node } => Some(node),
                Action::Mark(marks) => Some(&marks.node),
                Action::CreateGate { .. } | Action::Evict { .. } => None,
            };
            if node.is_some_and(|node| world.is_unwritable(Domain::Kubernetes, node.as_str())) {
                return Err(Error::Forbidden {
                    call: "PUT".to_owned(),
                    verb: "update",
                    resource: "gates",
                    why: "the script says so".to_owned(),
                    advice: "ask the script",
                });
            }
        }
        self.client.act(action).await
    }
}

async fn exchange(world: &Shared, request: http::Request<Body>) -> Result<http::Response<Body>, Lost> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(|_| Lost("the body broke off"))?;
    let query = parts.uri.query().unwrap_or_default();
    let header = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let request = Request {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: query.split('&').filter(|pair| !pair.is_empty()).map(decoded).collect(),
        content_type: header.unwrap_or_default().to_owned(),
        body: body.to_vec(),
    };
    let (code, body) = answer(&mut world.lock(), request)?;
    let response = http::Response::builder().status(code).body(Body::from(body));
    response.map_err(|_| Lost("no such code"))
}

fn decoded(pair: &str) -> (String, String) {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    let value = value.replace('+', " ");
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let coded = (*byte == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        if let Some(byte) = coded.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*byte);
            rest = after;
        }
    }
    (key.to_owned(), String::from_utf8_lossy(&bytes).into_owned())
}

/// One request, and what can happen to it.
fn answer(world: &mut World, request: Request) -> Result<(u16, Vec<u8>), Lost> {
    if world.disk.is_crashed() {
        return Err(Lost("the daemon is dead"));
    }
    if world.now() < world.kube_away_until {
        world.faults_in_tick += 1;
        return Err(Lost("connection refused"));
    }
    world.dawdle();
    let writes = request.method != "GET" && !request.query.iter().any(|(key, _)| key == "dryRun");
    let what = format!("{} {}", request.method, request.path);
    // A look is many requests: each is lost less often.
    let lost_before = if writes { world.rates.lost_before } else { world.rates.lost_before / 10 };
    if world.strikes(lost_before) {
        world.fault(&format!("{what} is lost"));
        return Err(Lost("lost before"));
    }
    if writes && world.strikes(world.rates.late) {
        let after = world.dice.within(5..900);
        world.fault(&format!("{what} is late by {after} s"));
        let due = world.now() + jiff::SignedDuration::from_secs(after);
        world.late.push((due, Late::Kubernetes(request)));
        return Err(Lost("late"));
    }
    let answer = if writes {
        world.change(Who::Daemon, |world| world.kube.request(&request))
    } else {
        world.kube.request(&request)
    };
    if writes && world.strikes(world.rates.dies_after_write) {
        world.die(&format!("the daemon dies after {what}"));
    }
    if writes && world.strikes(world.rates.lost_after) {
        world.fault(&format!("the answer to {what} is lost"));
        return Err(Lost("lost after"));
    }
    match answer {
        Answer::Json { code, body } => Ok((code, body.to_string().into_bytes())),
        Answer::Text(text) => Ok((200, text.as_bytes().to_vec())),
        Answer::Watch(_) => Err(Lost("the daemon does not watch")),
    }
}

/// No answer came.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(&'static str);
