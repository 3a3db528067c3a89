//! The four admission policies. Each function says what its policy is for; `guards` sees whether they stand. They print every
//! field that the server would fill in, so that a comparison can be exact.

use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::mark::{GATE_NAME, TAINT_SLURM};
use serde_json::{Value, json};

use super::ManifestOptions;
use crate::kubernetes::Error;
use crate::kubernetes::holders::MIRROR;

/// Characters that the server allows in one CEL expression.
const EXPRESSION_LIMIT: usize = 100_000;
const CLOSED: &str = "is closed to Kubernetes";
const BINDINGS: &str = "gpu-bridge-bindings";
const PODS: &str = "gpu-bridge-pods";
const MARKS: &str = "gpu-bridge-marks";
const GATE: &str = "gpu-bridge-gate";
const PREFIX: &str = "gpu-bridge.io/";
/// Their names.
pub(in crate::kubernetes) const NAMES: [&str; 4] = [BINDINGS, PODS, MARKS, GATE];

/// One admission policy and its binding, which have the same name.
#[derive(Debug, Clone)]
pub(in crate::kubernetes) struct Guard {
    pub(in crate::kubernetes) name: &'static str,
    pub(in crate::kubernetes) policy: Value,
    pub(in crate::kubernetes) binding: Value,
}

/// Whether a refusal is our bindings policy's for a node on the closed list.
pub(in crate::kubernetes) fn is_closed_refusal(message: &str) -> bool {
    message.contains(BINDINGS) && message.contains(CLOSED)
}

/// Nothing untrusted is bound to a node on the Gate's list, whenever the scheduler decided it. A lost Gate stops bindings
/// to managed nodes, and to no others.
pub(in crate::kubernetes) fn bindings(options: &ManifestOptions) -> Result<Guard, Error> {
    let policy = json!({
        "failurePolicy": "Fail",
        "paramKind": { "apiVersion": "gpu-bridge.io/v1", "kind": "Gate" },
        "matchConstraints": constraints("", &["v1"], &["CREATE"], &["pods/binding", "bindings"]),
        "matchConditions": [
            { "name": "managed", "expression": format!("object.target.name in {}", node_list(options)?) },
            untrusted(options)?,
        ],
        "validations": [{
            "expression": "!(object.target.name in params.spec.closed)",
            "messageExpression": format!("'gpu-bridge: node ' + object.target.name + ' {CLOSED}'"),
        }],
    });
    let param = json!({ "name": GATE_NAME, "parameterNotFoundAction": "Deny" });
    Ok(guard(BINDINGS, &policy, Some(param)))
}

/// A GPU pod neither names a managed node (that would pass the scheduler by) nor tolerates our taints (or every taint).
/// The mirror that a kubelet makes of its own static pod is let in: the pod runs without it, and would be unseen.
pub(in crate::kubernetes) fn pods(options: &ManifestOptions) -> Result<Guard, Error> {
    let is_gpu = format!("k.matches({})", quoted(&options.gpus.regex()));
    let asks = |what: &str| {
        format!(
            "({what}.?resources.?limits.orValue({{}}).exists(k, {is_gpu}) || {what}.?resources.?requests.orValue({{}}).exists(k, {is_gpu}))"
        )
    };
    let gpu = format!(
        "object.spec.containers.exists(c, {container}) || object.spec.?initContainers.orValue([]).exists(c, {container}) \
         || {pod} || object.spec.?resourceClaims.orValue([]).size() > 0",
        container = asks("c"),
        pod = asks("object.spec"),
    );
    let tolerates = |whose: &str| {
        format!(
            "{whose}.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('').startsWith('{PREFIX}') \
             || (t.?key.orValue('') == '' && t.?operator.orValue('Equal') == 'Exists'))"
        )
    };
    let mirror = format!(
        "!('{MIRROR}' in object.metadata.?annotations.orValue({{}}) \
         && request.userInfo.username == 'system:node:' + object.spec.?nodeName.orValue(''))"
    );
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": constraints("", &["v1"], &["CREATE", "UPDATE"], &["pods"]),
        "matchConditions": [
            untrusted(options)?,
            { "name": "no-mirror", "expression": mirror },
            { "name": "not-ending", "expression": "request.operation != 'UPDATE' || !has(object.metadata.deletionTimestamp)" },
        ],
        "variables": [
            { "name": "gpu", "expression": gpu },
            { "name": "names", "expression": format!("object.spec.?nodeName.orValue('') in {}", node_list(options)?) },
            { "name": "tolerates", "expression": tolerates("object") },
            // An older pod keeps what it has, or nobody could remove its finalizers.
            { "name": "tolerated", "expression": format!("oldObject != null && {}", tolerates("oldObject")) },
        ],
        "validations": [
            {
                "expression": "request.operation != 'CREATE' || !variables.names || !variables.gpu",
                "message": "gpu-bridge: a GPU pod must not name a managed node in spec.nodeName",
            },
            {
                "expression": "!variables.tolerates || variables.tolerated || !variables.gpu",
                "message": format!("gpu-bridge: a GPU pod must not tolerate {PREFIX} taints, nor every taint"),
            },
        ],
    });
    Ok(guard(PODS, &policy, None))
}

/// Only the daemon changes our marks on a managed Node, and such a Node registers closed.
pub(in crate::kubernetes) fn marks(options: &ManifestOptions) -> Result<Guard, Error> {
    let taints = |whose: &str| {
        format!(
            "{whose}.spec.?taints.orValue([]).filter(t, t.key.startsWith('{PREFIX}'))\
             .map(t, t.key + '=' + t.?value.orValue('') + ':' + t.effect)"
        )
    };
    let before = |empty: &str, expression: String| format!("oldObject == null ? {empty} : {expression}");
    let map = |whose: &str, name: &str| format!("{whose}.metadata.?{name}.orValue({{}})");
    let same = |was: &str, is: &str| {
        let (was, is) = (format!("variables.{was}"), format!("variables.{is}"));
        format!(
            "{was}.all(k, !k.startsWith('{PREFIX}') || (k in {is} && {is}[k] == {was}[k])) \
             && {is}.all(k, !k.startsWith('{PREFIX}') || k in {was})"
        )
    };
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": constraints("", &["v1"], &["CREATE", "UPDATE"], &["nodes", "nodes/status"]),
        "matchConditions": [
            { "name": "managed", "expression": format!("object.metadata.name in {}", node_list(options)?) },
            { "name": "not-us", "expression": format!("request.userInfo.username != {}", quoted(&options.writer)) },
        ],
        "variables": [
            { "name": "taintsBefore", "expression": before("[]", taints("oldObject")) },
            { "name": "taints", "expression": taints("object") },
            { "name": "labelsBefore", "expression": before("{}", map("oldObject", "labels")) },
            { "name": "labels", "expression": map("object", "labels") },
            { "name": "annotationsBefore", "expression": before("{}", map("oldObject", "annotations")) },
            { "name": "annotations", "expression": map("object", "annotations") },
        ],
        "validations": [
            {
                "expression": format!("request.operation != 'CREATE' || variables.taints.exists(t, t.startsWith('{TAINT_SLURM}=') && t.endsWith(':NoExecute'))"),
                "message": format!("gpu-bridge: a managed Node registers with taint {TAINT_SLURM}:NoExecute"),
            },
            {
                "expression": "request.operation != 'UPDATE' || (variables.taintsBefore.all(t, t in variables.taints) && variables.taints.all(t, t in variables.taintsBefore))",
                "message": "gpu-bridge: only gpu-bridge changes its taints",
            },
            {
                "expression": format!(
                    "request.operation != 'UPDATE' || ({} && {})",
                    same("labelsBefore", "labels"),
                    same("annotationsBefore", "annotations"),
                ),
                "message": "gpu-bridge: only gpu-bridge changes its labels and annotations",
            },
        ],
    });
    Ok(guard(MARKS, &policy, None))
}

/// Only the daemon changes the Gate.
pub(in crate::kubernetes) fn gate(options: &ManifestOptions) -> Guard {
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": constraints("gpu-bridge.io", &["*"], &["CREATE", "UPDATE", "DELETE"], &["gates"]),
        "validations": [{
            "expression": format!("request.userInfo.username == {}", quoted(&options.writer)),
            "message": format!("gpu-bridge: only gpu-bridge changes its Gate (break-glass: delete the policy binding {GATE})"),
        }],
    });
    guard(GATE, &policy, None)
}

fn guard(name: &'static str, policy: &Value, param: Option<Value>) -> Guard {
    let object = |kind: &str, spec: &Value| json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name }, "spec": spec });
    let mut binding = json!({ "policyName": name, "validationActions": ["Deny"] });
    if let Some(param) = param {
        binding["paramRef"] = param;
    }
    Guard {
        name,
        policy: object("ValidatingAdmissionPolicy", policy),
        binding: object("ValidatingAdmissionPolicyBinding", &binding),
    }
}

fn constraints(group: &str, versions: &[&str], operations: &[&str], resources: &[&str]) -> Value {
    json!({
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "resourceRules": [{
            "apiGroups": [group],
            "apiVersions": versions,
            "operations": operations,
            "resources": resources,
            "scope": "*",
        }],
    })
}

fn untrusted(options: &ManifestOptions) -> Result<Value, Error> {
    let names = options.trusted_namespaces.iter().map(String::as_str);
    let list = name_list("trusted namespaces", names)?;
    Ok(json!({ "name": "untrusted", "expression": format!("!(request.namespace in {list})") }))
}

fn node_list(options: &ManifestOptions) -> Result<String, Error> {
    name_list("managed nodes", options.nodes.iter().map(KubeNodeName::as_str))
}

/// A CEL list. The limit leaves room for the expression around it.
fn name_list<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<String, Error> {
    let list = format!("[{}]", names.map(quoted).collect::<Vec<_>>().join(", "));
    if list.len() + 100 > EXPRESSION_LIMIT {
        let why =
            format!("their names take {} characters, one expression holds {EXPRESSION_LIMIT}", list.len());
        return Err(Error::Config { what: what.to_owned(), why });
    }
    Ok(list)
}

/// A CEL text.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_quoted() {
        let options = ManifestOptions::new([], "it's \\ me");
        let text = gate(&options).policy["spec"]["validations"][0]["expression"].clone();
        assert_eq!(text, r"request.userInfo.username == 'it\'s \\ me'");
    }
}
