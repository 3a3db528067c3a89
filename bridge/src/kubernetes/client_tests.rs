//! Looks and the probe against a server that answers by script.

use http::Method;
use serde_json::Value;

use super::super::script::{self, Server, answer};
use super::*;

fn port() -> (Client, Server) {
    let (client, server) = script::client();
    let mut options = Options::new(ManifestOptions::new([KubeNodeName::from("gpu1")], "gpu-bridge"));
    options.pool_labels = ["nodepool".to_owned()].into();
    (Client::over(client.clone(), client, "https://k8s".to_owned(), options).unwrap(), server)
}

/// Answers by path until there is no more to answer.
async fn serve(server: &mut Server, known: &[(&str, Value)], requests: usize) -> Vec<String> {
    let mut paths = Vec::new();
    for _ in 0..requests {
        let (request, respond) = server.next_request().await.unwrap();
        let uri = request.uri().to_string();
        let found = known.iter().find(|(path, _)| uri.starts_with(path));
        let (code, body) = found.map_or((404, Value::Null), |(_, body)| (200, body.clone()));
        let body = kube::client::Body::from(body.to_string().into_bytes());
        respond.send_response(::http::Response::builder().status(code).body(body).unwrap());
        paths.push(uri);
    }
    paths
}

fn list(kind: &str, items: &Value) -> Value {
    json!({ "kind": kind, "metadata": {}, "items": items })
}

#[tokio::test]
async fn a_look_reads_nodes_leases_gate_guards_and_who_waits() {
    let node = json!({
        "metadata": { "name": "gpu1", "uid": "u1",
            "labels": { "nodepool": "infer", "gpu-bridge.io/owner": "slurm", "other": "x" },
            "annotations": { ANNOTATION_HANDOVER: "text", "other": "x" } },
        "spec": { "unschedulable": true, "taints": [{ "key": "k", "effect": "NoSchedule" }, { "key": "l", "value": "v", "effect": "Strange" }] },
        "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }], "allocatable": { "nvidia.com/gpu": "4", "cpu": "64" } },
    });
    let scheduled = |reason: &str, at: Value| json!([{ "type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": at }]);
    let waits = |name: &str, reason: &str, spec: Value| {
        let mut pod = json!({ "metadata": { "name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeSelector": { "nodepool": "infer" }, "containers": [{ "name": "m", "resources": { "limits": { "nvidia.com/gpu": "2" } } }] },
            "status": { "phase": "Pending", "conditions": scheduled(reason, json!("2026-01-02T00:00:00Z")) } });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let pods = json!([
        waits("yes", "Unschedulable", json!({})),
        waits("gated", "SchedulingGated", json!({ "schedulingGates": [{ "name": "g" }] })),
        waits("cpu", "Unschedulable", json!({ "containers": [{ "name": "m" }] })),
    ]);
    let lease =
        json!([{ "metadata": { "name": "gpu1" }, "spec": { "renewTime": "2026-01-01T00:00:00.123456Z" } }]);
    let known = [
        (NODES, list("NodeList", &json!([node]))),
        (LEASES, list("LeaseList", &lease)),
        (PODS, list("PodList", &pods)),
        (GATES, json!({ "spec": { "closed": ["gpu1"] } })),
    ];
    let (port, mut server) = port();
    let (facts, _) = tokio::join!(port.look(), serve(&mut server, &known, 12));
    let facts = facts.unwrap();
    let found = &facts.nodes[&KubeNodeName::from("gpu1")];
    assert_eq!(
        (found.uid.as_str(), found.ready, found.allocatable_gpus, found.unschedulable),
        ("u1", Ready::Unknown, 4, true)
    );
    assert_eq!(found.labels.keys().collect::<Vec<_>>(), ["gpu-bridge.io/owner", "nodepool"]);
    assert_eq!(found.handover_annotation.as_deref(), Some("text"));
    assert_eq!(found.taints[1].effect, Effect::Other("Strange".to_owned()));
    assert_eq!(found.lease_renewed_at, Some("2026-01-01T00:00:00.123456Z".parse().unwrap()));
    assert_eq!(facts.gate.unwrap().closed, [KubeNodeName::from("gpu1")].into());
    assert_eq!(facts.guards, gpu_bridge_core::facts::kubernetes::Guards::default());
    let [waiting] = facts.pending.as_slice() else { panic!("{:?}", facts.pending) };
    assert_eq!((waiting.pod.name.as_str(), waiting.gpus), ("yes", 2));
    assert_eq!(waiting.since, "2026-01-02T00:00:00Z".parse().unwrap());
}

#[tokio::test]
async fn a_look_at_a_node_asks_in_the_order_in_which_pods_come_to_it() {
    let lease = json!([{ "metadata": { "name": "gpu1" }, "spec": { "renewTime": "2026-01-01T00:00:00Z" } }]);
    let empty = json!([]);
    let known = [
        (PODS, list("PodList", &empty)),
        (CLAIMS, list("ResourceClaimList", &empty)),
        (SLICES, list("ResourceSliceList", &empty)),
        (LEASES, list("LeaseList", &lease)),
    ];
    let (port, mut server) = port();
    let node = KubeNodeName::from("gpu1");
    // Both DRA lists are asked for at once. The Lease comes last: a renewal that it does not show is from after the lists.
    let (look, paths) = tokio::join!(port.look_at(&node), serve(&mut server, &known, 5));
    let look = look.unwrap();
    assert!(look.is_empty());
    assert_eq!(look.lease_renewed_at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    let expected = [
        "/api/v1/pods?&fieldSelector=status.nominatedNodeName%3Dgpu1%2Cspec.nodeName%3D&limit=500",
        "/api/v1/pods?&fieldSelector=spec.nodeName%3Dgpu1&limit=500",
    ];
    assert_eq!(paths[..2], expected);
    assert!(paths[2..4].iter().all(|path| path.starts_with("/apis/resource.k8s.io/v1/")), "{paths:?}");
    assert_eq!(paths[4], format!("{LEASES}?&fieldSelector=metadata.name%3Dgpu1&limit=500"));
}

#[tokio::test]
async fn only_our_own_refusal_proves_that_a_node_is_closed() {
    let ours = "ValidatingAdmissionPolicy 'gpu-bridge-bindings' with binding 'gpu-bridge-bindings' denied request: \
                gpu-bridge: node gpu1 is closed to Kubernetes";
    for (code, message, expected) in [
        (422, ours, "Ok(Refused)"),
        (403, ours, "Ok(Refused)"),
        (404, "pods \"gpu-bridge-probe\" not found", "Ok(Passed)"),
        (201, "", "Ok(Passed)"),
        (422, "policy 'gpu-bridge-bindings' ... no params found", "Err(Odd"),
        (422, "another policy: node is closed to Kubernetes", "Err(Odd"),
        (403, "cannot create resource pods/binding", "Err(Forbidden"),
        (500, ours, "Err(Unanswered"),
        (409, "", "Err(Conflict"),
    ] {
        let (port, mut server) = port();
        let node = KubeNodeName::from("gpu1");
        let (found, sent) =
            tokio::join!(port.probe_binding(&node), answer(&mut server, code, json!({ "message": message })));
        assert!(format!("{found:?}").starts_with(expected), "{code} {message}: {found:?}");
        let (method, path, body) = sent;
        assert_eq!(method, Method::POST);
        assert_eq!(path, "/api/v1/namespaces/default/pods/gpu-bridge-probe/binding?&dryRun=All");
        assert_eq!(body["target"]["name"], "gpu1");
    }
}

#[tokio::test]
async fn connecting_needs_no_server_but_a_readable_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let options = |path: &std::path::Path| Options {
        kubeconfig: Some(path.to_owned()),
        deadline: Duration::from_secs(1),
        ..Options::new(ManifestOptions::new([], "gpu-bridge"))
    };
    assert!(matches!(Client::connect(options(&path)).await, Err(Error::Config { .. })));
    let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                users: [{name: u, user: {token: t}}], clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}";
    std::fs::write(&path, text).unwrap();
    let port = Client::connect(options(&path)).await.unwrap();
    let error = port.probe_binding(&"gpu1".into()).await.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:1/api/v1/"), "{error}");
    let missing = Options { context: Some("nope".to_owned()), ..options(&path) };
    assert!(matches!(Client::connect(missing).await, Err(Error::Config { .. })));
}
