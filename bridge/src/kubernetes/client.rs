//! The real Kubernetes: looks and the binding probe. Decides nothing; writes are in `writes`, the reading of pods in
//! `holders`, that of policies in `guards`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::kubernetes::{
    Acted, Action, BindingProbe, Effect, GateObject, Kubernetes as KubernetesFacts, Node, NodeLook,
    PendingPod, Ready, Taint,
};
use gpu_bridge_core::facts::{Names, Told};
use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::mark::{ANNOTATION_HANDOVER, GATE_NAME};
use jiff::Timestamp;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::params::PostParams;
use kube::core::request::Request as KubeRequest;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;

use super::guards::{self, Expected};
use super::holders::{self, Claims, Rules};
use super::http::{Ask, Http, With};
use super::manifests::{self, ManifestOptions, PROBE_NAMESPACE, PROBE_POD};
use super::{Error, Kubernetes, wire, writes};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub(super) const GATES: &str = "/apis/gpu-bridge.io/v1/gates";
const OUR_LABELS: &str = "gpu-bridge.io/";

/// How to reach a cluster, and what to look for in it.
#[derive(Debug, Clone)]
pub struct Options {
    /// A kubeconfig; `None` for the usual places (`KUBECONFIG`, `~/.kube/config`, inside a pod).
    pub kubeconfig: Option<PathBuf>,
    /// A context of it; `None` for its current one.
    pub context: Option<String>,
    /// How long one request may take.
    pub deadline: Duration,
    /// Label keys of the configured pools; ours are always kept.
    pub pool_labels: BTreeSet<String>,
    /// Annotations that forbid evicting a pod, unless their value is `false`.
    pub do_not_disrupt: BTreeSet<String>,
    /// The guards as they must stand, and what counts as a GPU.
    pub guards: ManifestOptions,
}

impl Options {
    /// The usual cluster with these guards: 10 s a request, `gpu-bridge.io/do-not-disrupt`.
    pub fn new(guards: ManifestOptions) -> Self {
        Self {
            kubeconfig: None,
            context: None,
            deadline: Duration::from_secs(10),
            pool_labels: BTreeSet::new(),
            do_not_disrupt: ["gpu-bridge.io/do-not-disrupt".to_owned()].into(),
            guards,
        }
    }
}

/// A Kubernetes cluster behind its API server. Use it in the runtime that it was made in.
#[derive(Debug)]
pub struct Client {
    pub(super) http: Http,
    pub(super) options: Options,
    expected: Expected,
}

impl Client {
    /// Reads the configuration and gets ready; the server need not be up.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let config = config(&options).await?;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = |retry: bool| {
            let mut config = config.clone();
            config.default_retry = retry;
            config.connect_timeout = Some(options.deadline);
            kube::Client::try_from(config).map_err(|error| Error::Config {
                what: format!("connection to {server}"),
                why: error.to_string(),
            })
        };
        Self::over(client(true)?, client(false)?, server.clone(), options)
    }

    /// The same over ready-made connections (a service in the same process too): the first may retry, the second must not.
    ///
    /// # Errors
    /// [`Error::Config`] where no guards can be made of the options.
    pub fn over(
        reads: kube::Client,
        writes: kube::Client,
        server: String,
        options: Options,
    ) -> Result<Self, Error> {
        let expected = Expected::new(&options.guards)?;
        Ok(Self { http: Http::new(reads, writes, server, options.deadline), options, expected })
    }

    /// Applies the Gate's definition, the guards and the RBAC rules, and waits until the definition is served. For labs and
    /// tests: at a site a person applies [`manifests::render`]'s text.
    pub async fn install(&self) -> Result<(), Error> {
        manifests::install(&self.http, &self.options.guards).await
    }

    /// The Nodes, and the revision that they were listed at.
    async fn nodes(&self) -> Result<(Told<KubeNodeName, Node>, Option<u64>), Error> {
        let ((nodes, revision), leases) = tokio::try_join!(
            self.http.list_at::<wire::Node>("nodes", NODES, None),
            self.http.list::<wire::Lease>("leases in kube-node-lease", LEASES, None),
        )?;
        let mut renewed: BTreeMap<String, Timestamp> = leases
            .into_iter()
            .filter_map(|lease| Some((lease.metadata.name, lease.spec.renew_time?)))
            .collect();
        let nodes = nodes.into_iter().map(|node| {
            let lease = renewed.remove(&node.metadata.name);
            (KubeNodeName::new(node.metadata.name.as_str()), self.node(node, lease))
        });
        Ok((nodes.collect(), revision))
    }

    fn node(&self, node: wire::Node, lease_renewed_at: Option<Timestamp>) -> Node {
        let ready = node.status.conditions.iter().find(|condition| condition.kind == "Ready");
        let mut annotations = node.metadata.annotations;
        Node {
            ready: match ready.map(|condition| condition.status.as_str()) {
                Some("True") => Ready::True,
                Some("False") => Ready::False,
                Some(_) | None => Ready::Unknown,
            },
            allocatable_gpus: self
                .options
                .guards
                .gpus
                .allocatable(&node.metadata.name, &node.status.allocatable),
            uid: node.metadata.uid,
            taints: node.spec.taints.into_iter().map(taint).collect(),
            labels: node
                .metadata
                .labels
                .into_iter()
                .filter(|(key, _)| key.starts_with(OUR_LABELS) || self.options.pool_labels.contains(key))
                .collect(),
            handover_annotation: annotations.remove(ANNOTATION_HANDOVER),
            unschedulable: node.spec.unschedulable,
            lease_renewed_at,
        }
    }

    async fn gate(&self) -> Result<Option<GateObject>, Error> {
        #[derive(Deserialize)]
        struct Gate {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            closed: Names<KubeNodeName>,
        }
        let answer = self.http.get(With::Retries, "gates", GATES, GATE_NAME).await?;
        let gate: Option<Gate> = answer.json_if_there()?;
        Ok(gate.map(|gate| GateObject { closed: gate.spec.closed }))
    }

    async fn pending(&self) -> Result<Vec<PendingPod>, Error> {
        let selector = Some("spec.nodeName=,status.phase=Pending");
        let pods = self.http.list::<wire::Pod>("pods", PODS, selector).await?;
        Ok(pods.iter().filter_map(|pod| self.waiting(pod)).collect())
    }

    /// A GPU pod for which no node has room. Pods that ask by ResourceClaim alone are not among them.
    fn waiting(&self, pod: &wire::Pod) -> Option<PendingPod> {
        let condition = pod.status.conditions.iter().find(|condition| {
            condition.kind == "PodScheduled"
                && condition.status == "False"
                && condition.reason == "Unschedulable"
        })?;
        if !pod.spec.scheduling_gates.is_empty() || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let asked = self.options.guards.gpus.asked(pod)?;
        Some(PendingPod {
            pod: holders::reference(pod),
            gpus: asked.gpus,
            node_selector: pod.spec.node_selector.clone(),
            since: condition.last_transition_time.or(pod.metadata.creation_timestamp)?,
        })
    }

    /// All claims, and the node's slices; a server without DRA has none.
    async fn claims(&self, node: &KubeNodeName) -> Result<Claims, Error> {
        let selector = format!("spec.nodeName={node}");
        let listed = tokio::try_join!(
            self.http.list::<wire::Claim>("resourceclaims", CLAIMS, None),
            self.http.list::<wire::Slice>("resourceslices", SLICES, Some(&selector)),
        );
        match listed {
            Ok((claims, slices)) => Ok(Claims::Listed { claims, slices }),
            Err(Error::NotFound { .. }) => Ok(Claims::NotServed),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Kubernetes for Client {
    async fn look(&self) -> Result<KubernetesFacts, Error> {
        let ((nodes, revision), gate, guards, pending) = tokio::try_join!(
            self.nodes(),
            self.gate(),
            guards::look(&self.http, &self.expected),
            self.pending(),
        )?;
        Ok(KubernetesFacts { nodes, revision, gate, guards, pending })
    }

    async fn look_at(&self, node: &KubeNodeName) -> Result<NodeLook, Error> {
        // One after the other, in the order in which a pod or a claim comes to a node: none can slip from a list not yet
        // asked for into one already answered.
        let nominated = format!("status.nominatedNodeName={node},spec.nodeName=");
        let nominated = self.http.list::<wire::Pod>("pods", PODS, Some(&nominated)).await?;
        let on_node = format!("spec.nodeName={node}");
        let on_node = self.http.list::<wire::Pod>("pods", PODS, Some(&on_node)).await?;
        let claims = self.claims(node).await?;
        // Last: a renewal that it shows can be from before the lists, one that is newer can't.
        let named = format!("metadata.name={node}");
        let leases = self.http.list::<wire::Lease>("leases in kube-node-lease", LEASES, Some(&named)).await?;
        let lease_renewed_at = leases.into_iter().find_map(|lease| lease.spec.renew_time);
        let rules = Rules { gpus: &self.options.guards.gpus, do_not_disrupt: &self.options.do_not_disrupt };
        Ok(NodeLook { lease_renewed_at, ..holders::look(node, &nominated, &on_node, &claims, &rules) })
    }

    async fn probe_binding(&self, node: &KubeNodeName) -> Result<BindingProbe, Error> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": PROBE_POD, "namespace": PROBE_NAMESPACE },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let request = KubeRequest::new(format!("/api/v1/namespaces/{PROBE_NAMESPACE}/pods"))
            .create_subresource("binding", PROBE_POD, &params, body.to_string().into_bytes());
        let answer = self.http.send(With::OneTry, Ask::new("create", "pods/binding"), request).await?;
        match answer.code {
            404 => Ok(BindingProbe::Passed),
            code if (200..300).contains(&code) => Ok(BindingProbe::Passed),
            422 | 403 if manifests::is_closed_refusal(&answer.status().message) => Ok(BindingProbe::Refused),
            _ => Err(answer.refusal()),
        }
    }

    async fn act(&self, action: &Action) -> Result<Acted, Error> {
        match action {
            Action::CreateGate { closed } => writes::create(&self.http, closed).await,
            Action::CloseGate { node } => writes::gate(&self.http, node, writes::Listing::On).await,
            Action::OpenGate { node } => writes::gate(&self.http, node, writes::Listing::Off).await,
            Action::Mark(marks) => writes::mark(&self.http, marks).await,
            Action::Evict { pod } => writes::evict(&self.http, pod).await,
        }
    }
}

fn taint(taint: wire::Taint) -> Taint {
    let effect = match taint.effect.as_str() {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => Effect::Other(taint.effect),
    };
    Taint { key: taint.key, value: taint.value, effect }
}

async fn config(options: &Options) -> Result<kube::Config, Error> {
    let context = KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let Some(path) = &options.kubeconfig else {
        let config = if options.context.is_some() {
            kube::Config::from_kubeconfig(&context).await.map_err(|error| error.to_string())
        } else {
            kube::Config::infer().await.map_err(|error| error.to_string())
        };
        return config
            .map_err(|why| Error::Config { what: "kubeconfig in the usual places".to_owned(), why });
    };
    let bad = |error: kube::config::KubeconfigError| Error::Config {
        what: format!("kubeconfig {}", path.display()),
        why: error.to_string(),
    };
    let file = Kubeconfig::read_from(path).map_err(bad)?;
    let config = kube::Config::from_custom_kubeconfig(file, &context).await.map_err(bad)?;
    let why = token_trouble(&config.auth_info).map_or(Ok(()), Err);
    why.map_err(|why| Error::Config { what: format!("kubeconfig {}", path.display()), why })?;
    Ok(config)
}

/// What is wrong with the token of a kubeconfig, if it has one; never a word of it. The client sends it as it stands, and each
/// request would fail.
fn token_trouble(user: &AuthInfo) -> Option<String> {
    let trouble = |token: &str| match token {
        "" => Some("is empty"),
        _ if token.bytes().all(|byte| byte.is_ascii_graphic()) => None,
        _ if token.trim_end().bytes().all(|byte| byte.is_ascii_graphic()) && !token.trim_end().is_empty() => {
            Some("ends in white space, which would be sent along: write it without a line break (printf %s)")
        }
        _ => Some("holds white space or other characters that no token has"),
    };
    // As the client chooses: a token beside a file goes before it.
    if let Some(token) = &user.token {
        return trouble(token.expose_secret()).map(|why| format!("its user's token {why}"));
    }
    let path = user.token_file.as_ref()?;
    let why = match std::fs::read_to_string(path) {
        Ok(token) => trouble(&token)?.to_owned(),
        Err(error) => format!("cannot be read: {error}"),
    };
    Some(format!("its user's token file {path} {why}"))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
