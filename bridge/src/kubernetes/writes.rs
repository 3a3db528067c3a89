//! The four writes, each idempotent and each guarded: the Gate and a Node by `resourceVersion`, an eviction by the pod's
//! UID. They bring about what they are told; whether that is right was decided before.

use std::collections::BTreeSet;

use gpu_bridge_core::facts::kubernetes::{Acted, Effect, Marks, PodRef, Taint};
use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::mark::{ANNOTATION_HANDOVER, GATE_NAME};
use kube::core::params::{Patch, PatchParams, PostParams};
use kube::core::request::Request as KubeRequest;
use serde_json::{Map, Value, json};

use super::Error;
use super::client::GATES;
use super::http::{Answer, Ask, Http, With};

const NODES: &str = "/api/v1/nodes";
/// How often a write reads again and tries again when others were faster.
const TRIES: usize = 5;

/// Where a node is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    /// On the closed list.
    On,
    /// Off it.
    Off,
}

/// Puts a node on the Gate's list or takes it off. While there is no Gate the guard refuses every binding to a node of the
/// inventory: it is not made here, where nobody knows the whole list.
pub(super) async fn gate(http: &Http, node: &KubeNodeName, listing: Listing) -> Result<Acted, Error> {
    let mut last = None;
    for _ in 0..TRIES {
        let found = http.get(With::OneTry, "gates", GATES, GATE_NAME).await?;
        let call = found.call.clone();
        let answer = match found.json_if_there::<Value>()? {
            None => {
                let advice = "it is made anew, whole, by the next tick";
                return Err(Error::NotFound { call, what: format!("Gate {GATE_NAME}"), advice });
            }
            Some(mut gate) => {
                let odd = || Error::Odd {
                    call: call.clone(),
                    why: format!("a Gate without a list of names: {gate}"),
                };
                let names = gate.pointer("/spec/closed").and_then(Value::as_array).ok_or_else(odd)?;
                let names: Option<BTreeSet<String>> =
                    names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
                let mut names = names.ok_or_else(odd)?;
                let changed = match listing {
                    Listing::On => names.insert(node.as_str().to_owned()),
                    Listing::Off => names.remove(node.as_str()),
                };
                if !changed {
                    return Ok(Acted::Done);
                }
                gate["spec"]["closed"] = json!(names);
                let request =
                    KubeRequest::new(GATES).replace(GATE_NAME, &PostParams::default(), bytes(&gate));
                http.send(With::OneTry, Ask::new("update", "gates"), request).await?
            }
        };
        match answer.code {
            409 => last = Some(answer.refusal()),
            _ => return answer.ok().map(|()| Acted::Done),
        }
    }
    Err(last.unwrap_or_else(|| exhausted("gates")))
}

/// Creates the Gate with its whole list; one that is there by now stays as it is.
pub(super) async fn create(http: &Http, closed: &BTreeSet<KubeNodeName>) -> Result<Acted, Error> {
    let answer = create_gate(http, closed).await?;
    if answer.code == 409 { Ok(Acted::Done) } else { answer.ok().map(|()| Acted::Done) }
}

async fn create_gate(http: &Http, closed: &BTreeSet<KubeNodeName>) -> Result<Answer, Error> {
    let gate = json!({
        "apiVersion": "gpu-bridge.io/v1",
        "kind": "Gate",
        "metadata": { "name": GATE_NAME },
        "spec": { "closed": closed },
    });
    let request = KubeRequest::new(GATES).create(&PostParams::default(), bytes(&gate));
    let answer = http.send(With::OneTry, Ask::new("create", "gates"), request).await?;
    if answer.code == 404 {
        return Err(Error::NotFound {
            call: answer.call,
            what: "kind Gate (gates.gpu-bridge.io/v1)".to_owned(),
            advice: "apply the printed guard manifests",
        });
    }
    Ok(answer)
}

/// Brings our marks on a Node to the asked shape by one merge patch that names the `resourceVersion` it was made from.
pub(super) async fn mark(http: &Http, marks: &Marks) -> Result<Acted, Error> {
    let mut last = None;
    for _ in 0..TRIES {
        let answer = http.get(With::OneTry, "nodes", NODES, marks.node.as_str()).await?;
        let call = answer.call.clone();
        let gone = |what: String| Error::NotFound {
            call: call.clone(),
            what,
            advice: "it was deleted or registered anew: look again, the handover starts from the top",
        };
        let node = answer.json_if_there::<Value>()?.ok_or_else(|| gone(format!("Node {}", marks.node)))?;
        let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let uid = text("/metadata/uid");
        if uid != marks.uid {
            return Err(gone(format!("Node {} with UID {} (it has {uid:?})", marks.node, marks.uid)));
        }
        let version = text("/metadata/resourceVersion");
        if version.is_empty() {
            return Err(Error::Odd { call, why: "a Node without resourceVersion".to_owned() });
        }
        let Some(patch) = patch(&node, version, marks) else { return Ok(Acted::Done) };
        let request =
            KubeRequest::new(NODES).patch(marks.node.as_str(), &PatchParams::default(), &Patch::Merge(patch));
        let answer = http.send(With::OneTry, Ask::new("patch", "nodes"), request).await?;
        match answer.code {
            409 => last = Some(answer.refusal()),
            _ => return answer.ok().map(|()| Acted::Done),
        }
    }
    Err(last.unwrap_or_else(|| exhausted("nodes")))
}

/// The patch that makes a Node as asked; `None` where it is so already.
fn patch(node: &Value, version: &str, marks: &Marks) -> Option<Value> {
    let mut metadata = Map::new();
    let labels: Map<String, Value> = marks
        .labels
        .iter()
        .filter(|(key, value)| differs(node, "labels", key, value.as_deref()))
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), Value::Object(labels));
    }
    if differs(node, "annotations", ANNOTATION_HANDOVER, marks.annotation.as_deref()) {
        metadata.insert("annotations".to_owned(), json!({ ANNOTATION_HANDOVER: marks.annotation }));
    }
    let before: &[Value] = node.pointer("/spec/taints").and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let after = taints(before, marks);
    let mut patch = json!({});
    if before != after {
        patch["spec"] = json!({ "taints": after });
    } else if metadata.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(version));
    patch["metadata"] = Value::Object(metadata);
    Some(patch)
}

fn differs(node: &Value, map: &str, key: &str, wanted: Option<&str>) -> bool {
    node["metadata"][map].get(key).and_then(Value::as_str) != wanted
}

/// The full list: others' taints untouched and in their order, of ours exactly those asked for.
fn taints(before: &[Value], marks: &Marks) -> Vec<Value> {
    let is = |found: &Value, taint: &Taint| {
        found["key"] == taint.key.as_str()
            && found["effect"] == effect(&taint.effect)
            && found.get("value").and_then(Value::as_str).unwrap_or_default() == taint.value
    };
    let ours = |found: &Value| found["key"].as_str().is_some_and(|key| marks.taint_keys.contains(key));
    let mut after: Vec<Value> = before
        .iter()
        .filter(|found| !ours(found) || marks.taints.iter().any(|taint| is(found, taint)))
        .cloned()
        .collect();
    for taint in &marks.taints {
        if !after.iter().any(|found| is(found, taint)) {
            let mut new = json!({ "key": taint.key, "effect": effect(&taint.effect) });
            if !taint.value.is_empty() {
                new["value"] = json!(taint.value);
            }
            after.push(new);
        }
    }
    after
}

fn effect(effect: &Effect) -> &str {
    match effect {
        Effect::NoSchedule => "NoSchedule",
        Effect::PreferNoSchedule => "PreferNoSchedule",
        Effect::NoExecute => "NoExecute",
        Effect::Other(word) => word,
    }
}

/// Evicts exactly this pod. One try: when to ask again is the handover's to say.
pub(super) async fn evict(http: &Http, pod: &PodRef) -> Result<Acted, Error> {
    let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
    // By hand: the client library's own call names the options wrongly, and the server never sees the precondition.
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    let request = KubeRequest::new(&path).create_subresource(
        "eviction",
        &pod.name,
        &PostParams::default(),
        bytes(&eviction),
    );
    let answer = http.send(With::OneTry, Ask::new("create", "pods/eviction"), request).await?;
    let status = answer.status();
    let cause = |reason: &str| status.details.causes.iter().find(|cause| cause.reason == reason);
    match answer.code {
        code if (200..300).contains(&code) => Ok(Acted::Done),
        // A proxy's 404 is not the server's word that the pod is gone.
        404 if status.reason == "NotFound" => Ok(Acted::Done),
        409 => match still_there(http, &path, pod).await? {
            StillThere::No => Ok(Acted::Done),
            StillThere::Yes => Err(answer.refusal()),
        },
        429 => match cause("DisruptionBudget") {
            Some(cause) => {
                Ok(Acted::Budget { why: format!("{} {}", status.message, cause.message).trim().to_owned() })
            }
            None => Err(answer.refusal()),
        },
        403 if cause("NamespaceTerminating").is_some() => Ok(Acted::Budget { why: answer.words() }),
        500 if status.message.contains("more than one PodDisruptionBudget") => {
            Ok(Acted::Refused { why: status.message })
        }
        _ => Err(answer.refusal()),
    }
}

enum StillThere {
    Yes,
    No,
}

/// Whether the pod with this very UID exists.
async fn still_there(http: &Http, path: &str, pod: &PodRef) -> Result<StillThere, Error> {
    let answer = http.get(With::OneTry, "pods", path, &pod.name).await?;
    let found = answer.json_if_there::<Value>()?;
    let uid = found.as_ref().and_then(|found| found.pointer("/metadata/uid")).and_then(Value::as_str);
    Ok(if uid == Some(pod.uid.as_str()) { StillThere::Yes } else { StillThere::No })
}

fn exhausted(resource: &str) -> Error {
    Error::Conflict { call: format!("update of {resource}"), why: "no tries were left".to_owned() }
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

#[cfg(test)]
#[path = "writes_tests.rs"]
mod tests;
