//! What a cluster must be given before the daemon can work there: the Gate's definition, the four admission policies with
//! their bindings, and the daemon's rights. Decides their text; whether they stand is for `guards` to see. The Gate object
//! itself is not among them: applying an empty one again would open every closed node.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use gpu_bridge_core::ids::KubeNodeName;
use kube::core::params::{Patch, PatchParams};
use kube::core::request::Request as KubeRequest;
use serde_json::{Value, json};

use super::Error;
use super::gpus::GpuResources;
use super::http::{Ask, Http, With};

mod policies;

pub(super) use policies::{Guard, bindings, gate, is_closed_refusal, marks, pods};

/// The pod that the binding probe names; it never exists.
pub const PROBE_POD: &str = "gpu-bridge-probe";
/// The namespace of the probe's pod. It can't be a trusted one.
pub const PROBE_NAMESPACE: &str = "default";
/// Nodes that one policy can name.
pub const NODES_LIMIT: usize = 5000;

const CRD: &str = "gates.gpu-bridge.io";
const CRDS_PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const POLICIES_PATH: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
pub(super) const BINDINGS_PATH: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const RBAC_PATH: &str = "/apis/rbac.authorization.k8s.io/v1";
const ESTABLISHED_LIMIT: Duration = Duration::from_secs(30);
const ESTABLISHED_LOOK: Duration = Duration::from_millis(100);

/// What the manifests of one site depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    /// The managed nodes.
    pub nodes: BTreeSet<KubeNodeName>,
    /// Namespaces whose pods may be bound to closed nodes and tolerate our taints: CNI, device plugin, node check.
    pub trusted_namespaces: BTreeSet<String>,
    /// The daemon's user name as the API server knows it (`system:serviceaccount:NAMESPACE:NAME` for a service account).
    pub writer: String,
    /// What counts as a GPU.
    pub gpus: GpuResources,
}

impl ManifestOptions {
    /// These nodes and this user; `kube-system` is trusted, GPUs are the usual ones.
    pub fn new(nodes: impl IntoIterator<Item = KubeNodeName>, writer: impl Into<String>) -> Self {
        Self {
            nodes: nodes.into_iter().collect(),
            trusted_namespaces: ["kube-system".to_owned()].into(),
            writer: writer.into(),
            gpus: GpuResources::default(),
        }
    }

    /// Whether manifests can be made of them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str, why: String| Err(Error::Config { what: what.to_owned(), why });
        if self.nodes.len() > NODES_LIMIT {
            let why = format!("{} given, one policy can name {NODES_LIMIT}", self.nodes.len());
            return bad("managed nodes", why);
        }
        // Names go into expressions: nothing in them may end a quoted text.
        for (what, name) in self
            .nodes
            .iter()
            .map(|node| ("managed nodes", node.as_str()))
            .chain(self.trusted_namespaces.iter().map(|name| ("trusted namespaces", name.as_str())))
        {
            if !is_name(name) {
                return bad(what, format!("{name:?} is no Kubernetes name"));
            }
        }
        if self.trusted_namespaces.contains(PROBE_NAMESPACE) {
            let why = format!(
                "{PROBE_NAMESPACE} cannot be one: anyone's pods land there, and the probe asks there"
            );
            return bad("trusted namespaces", why);
        }
        if self.writer.is_empty() || self.writer.chars().any(char::is_control) {
            return bad("the daemon's user name", format!("{:?} is none", self.writer));
        }
        Ok(())
    }
}

/// Whether an object can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(good)
}

/// All manifests as YAML documents for `kubectl apply -f -`, in the order in which they must be applied.
///
/// # Errors
/// [`Error::Config`] where the options can't be expressed: more than [`NODES_LIMIT`] nodes, bad names, `default` trusted.
pub fn render(options: &ManifestOptions) -> Result<String, Error> {
    let mut text = String::new();
    for (_, document) in documents(options)? {
        text.push_str("---\n");
        for line in yaml(&document) {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// The same objects as values, for a stand-in that takes no text.
///
/// # Errors
/// As [`render`].
pub fn objects(options: &ManifestOptions) -> Result<Vec<Value>, Error> {
    Ok(documents(options)?.into_iter().map(|(_, object)| object).collect())
}

/// Each document with the collection that it goes into.
/// The manifests as objects, each with the path of its collection.
pub fn documents(options: &ManifestOptions) -> Result<Vec<(String, Value)>, Error> {
    options.check()?;
    let mut documents = vec![(CRDS_PATH.to_owned(), definition())];
    documents.extend(rights(options));
    for guard in [bindings(options)?, pods(options)?, marks(options)?, gate(options)] {
        documents.push((POLICIES_PATH.to_owned(), guard.policy));
        documents.push((BINDINGS_PATH.to_owned(), guard.binding));
    }
    Ok(documents)
}

/// Applies all of them, server side.
pub(super) async fn install(http: &Http, options: &ManifestOptions) -> Result<(), Error> {
    for (path, document) in documents(options)? {
        let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_crd = path == CRDS_PATH;
        let params = PatchParams::apply("gpu-bridge").force();
        // The printed text itself, so that what a lab is given is what a person applies.
        let text = yaml(&document).join("\n").into_bytes();
        let request = KubeRequest::new(path).patch(&name, &params, &Patch::Apply(&document));
        let request = request.map(|request| request.map(|_| text));
        http.send(With::OneTry, Ask::new("patch", "guard manifests"), request).await?.ok()?;
        if is_crd {
            let served = tokio::time::timeout(ESTABLISHED_LIMIT, established(http)).await;
            served.map_err(|_| Error::Unanswered {
                why: format!("{CRD} was applied, but not served within {ESTABLISHED_LIMIT:?}"),
            })??;
        }
    }
    Ok(())
}

async fn established(http: &Http) -> Result<(), Error> {
    loop {
        let found: Value =
            http.get(With::OneTry, "customresourcedefinitions", CRDS_PATH, CRD).await?.json()?;
        let conditions = found.pointer("/status/conditions").and_then(Value::as_array);
        let is = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        if conditions.is_some_and(|conditions| conditions.iter().any(is)) {
            return Ok(());
        }
        tokio::time::sleep(ESTABLISHED_LOOK).await;
    }
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": CRD },
        "spec": {
            "group": "gpu-bridge.io",
            "scope": "Cluster",
            "names": { "kind": "Gate", "listKind": "GateList", "plural": "gates", "singular": "gate" },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "The nodes that no untrusted pod may be bound to. Written by gpu-bridge.",
                    "required": ["spec"],
                    "properties": { "spec": {
                        "type": "object",
                        "required": ["closed"],
                        "properties": { "closed": {
                            "type": "array",
                            "maxItems": 50000,
                            "x-kubernetes-list-type": "set",
                            "items": { "type": "string", "maxLength": 253 },
                        } },
                    } },
                } },
            }],
        },
    })
}

/// The daemon's rights: exactly the verbs of this port.
fn rights(options: &ManifestOptions) -> Vec<(String, Value)> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let named = |mut rule: Value, names: &[&str]| {
        rule["resourceNames"] = json!(names);
        rule
    };
    let policies = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    let grant = |kind: &str, metadata: Value, rules: Vec<Value>| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules });
    let binding = |kind: &str, to: &str, metadata: Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": to, "name": "gpu-bridge" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": options.writer }],
        })
    };
    let cluster = json!({ "name": "gpu-bridge" });
    let leases = json!({ "name": "gpu-bridge", "namespace": "kube-node-lease" });
    let namespaced = |resource: &str| format!("{RBAC_PATH}/namespaces/kube-node-lease/{resource}");
    let rules = vec![
        rule("", &["nodes"], &["get", "list", "patch"]),
        rule("", &["pods"], &["get", "list"]),
        rule("", &["pods/eviction"], &["create"]),
        named(rule("", &["pods/binding"], &["create"]), &[PROBE_POD]),
        rule("gpu-bridge.io", &["gates"], &["get", "create", "update"]),
        named(rule("admissionregistration.k8s.io", &policies, &["get"]), &policies::NAMES),
        rule("resource.k8s.io", &["resourceclaims", "resourceslices"], &["list"]),
    ];
    let lease_rules = vec![rule("coordination.k8s.io", &["leases"], &["list"])];
    vec![
        (format!("{RBAC_PATH}/clusterroles"), grant("ClusterRole", cluster.clone(), rules)),
        (format!("{RBAC_PATH}/clusterrolebindings"), binding("ClusterRoleBinding", "ClusterRole", cluster)),
        (namespaced("roles"), grant("Role", leases.clone(), lease_rules)),
        (namespaced("rolebindings"), binding("RoleBinding", "Role", leases)),
    ]
}

/// Block-style YAML whose scalars are JSON.
fn yaml(value: &Value) -> Vec<String> {
    let is_block = |value: &Value| match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    match value {
        Value::Object(map) if !map.is_empty() => map
            .iter()
            .flat_map(|(key, value)| {
                let mut lines = vec![format!("{key}:")];
                if is_block(value) {
                    lines.extend(yaml(value).into_iter().map(|line| format!("  {line}")));
                } else {
                    lines[0] = format!("{key}: {value}");
                }
                lines
            })
            .collect(),
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .flat_map(|value| {
                let lines = yaml(value).into_iter().enumerate();
                lines
                    .map(|(index, line)| format!("{}{line}", if index == 0 { "- " } else { "  " }))
                    .collect::<Vec<_>>()
            })
            .collect(),
        scalar => vec![scalar.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ManifestOptions {
        ManifestOptions::new(["gpu1", "gpu2"].map(KubeNodeName::from), "it's \\ me")
    }

    #[test]
    fn names_cannot_break_out_of_an_expression() {
        for (nodes, namespaces, writer) in [
            (vec!["gpu1'"], vec![], "w"),
            (vec![""], vec![], "w"),
            (vec!["GPU1"], vec![], "w"),
            (vec![], vec!["a b"], "w"),
            (vec![], vec!["default"], "w"),
            (vec![], vec![], ""),
            (vec![], vec![], "a\nb"),
        ] {
            let options = ManifestOptions {
                trusted_namespaces: namespaces.iter().map(|name: &&str| (*name).to_owned()).collect(),
                ..ManifestOptions::new(nodes.iter().map(|name: &&str| KubeNodeName::from(*name)), writer)
            };
            let found = render(&options);
            assert!(
                matches!(found, Err(Error::Config { .. })),
                "{nodes:?} {namespaces:?} {writer:?}: {found:?}"
            );
        }
    }

    #[test]
    fn more_nodes_than_a_policy_can_name_are_refused() {
        let of = |count: usize, length: usize| {
            let nodes = (0..count).map(|number| KubeNodeName::new(format!("{number:0length$}")));
            render(&ManifestOptions::new(nodes, "w"))
        };
        assert!(of(NODES_LIMIT, 12).is_ok());
        assert!(
            matches!(of(NODES_LIMIT + 1, 12), Err(Error::Config { why, .. }) if why.contains("5001 given"))
        );
        assert!(matches!(of(NODES_LIMIT, 40), Err(Error::Config { why, .. }) if why.contains("characters")));
    }

    #[test]
    fn the_definition_comes_first_and_no_gate_is_printed() {
        let text = render(&options()).unwrap();
        let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
        assert_eq!(kinds[0], "\"CustomResourceDefinition\"");
        assert_eq!(kinds.iter().filter(|kind| **kind == "\"ValidatingAdmissionPolicy\"").count(), 4);
        assert_eq!(kinds.iter().filter(|kind| **kind == "\"ValidatingAdmissionPolicyBinding\"").count(), 4);
        assert!(!kinds.contains(&"\"Gate\""));
    }

    #[test]
    fn yaml_is_laid_out_in_blocks() {
        let value = json!({ "a": [{ "b": 1, "c": ["x: 'y'\n"] }, [], ["z", [true]]], "d": {}, "e": null });
        let expected = [
            "a:",
            "  - b: 1",
            "    c:",
            "      - \"x: 'y'\\n\"",
            "  - []",
            "  - - \"z\"",
            "    - - true",
            "d: {}",
            "e: null",
        ];
        assert_eq!(yaml(&value), expected);
    }
}
