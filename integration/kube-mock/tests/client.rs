//! A real kube client against the server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::api::policy::v1::Eviction;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, Patch, PatchParams,
    PostParams, WatchEvent, WatchParams,
};
use kube::config::KubeConfigOptions;
use kube::core::Status;
use kube::{Api, Client};
use kube_mock::server::{Fault, Handle, Injection, serve};
use kube_mock::{Cluster, Denied, Id, NodeSpec, PodSpec};
use serde_json::json;

/// A cluster a hundred times faster than life, with nodes `a` and `b`, and a client of it.
async fn started() -> (Handle, Client) {
    let begin: Timestamp = "2026-11-30T18:00:00Z".parse().unwrap();
    let mut cluster = Cluster::new(begin);
    for name in ["a", "b"] {
        cluster.add_node(&NodeSpec { name: name.to_owned(), gpus: 8, ..NodeSpec::default() });
    }
    let start = Instant::now();
    let clock = Arc::new(move || begin.checked_add(start.elapsed() * 100).unwrap());
    let handle = serve(cluster, clock).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    handle.kubeconfig_file(&path).unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(&path).unwrap();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    (handle, Client::try_from(config).unwrap())
}

fn pod(name: &str) -> PodSpec {
    PodSpec { namespace: "default".to_owned(), name: name.to_owned(), gpus: 8, ..PodSpec::default() }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer: {other:?}"),
    }
}

/// Waits for something the cluster does by itself.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn nodes_are_read_listed_and_patched_with_their_version() {
    let (_server, client) = started().await;
    let nodes: Api<Node> = Api::all(client.clone());
    let all = nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 2);
    assert!(all.metadata.resource_version.is_some());
    let first = nodes.list(&ListParams::default().limit(1)).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = nodes.list(&ListParams::default().limit(1).continue_token(&token)).await.unwrap();
    assert_eq!((second.items[0].metadata.name.as_deref(), second.metadata.continue_), (Some("b"), None));
    let node = nodes.get("a").await.unwrap();
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version, "labels": {"gpu-bridge.io/owner": "slurm"}},
        "spec": {"taints": [{"key": "gpu-bridge.io/draining", "effect": "NoSchedule"}]},
    });
    let patched = nodes.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    assert_eq!(patched.spec.unwrap().taints.unwrap().len(), 1);
    let stale = nodes.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap_err();
    assert_eq!(code(&stale), 409);
    let mut node = nodes.get("a").await.unwrap();
    node.metadata.labels = None;
    let replaced = nodes.replace("a", &PostParams::default(), &node).await.unwrap();
    assert_eq!(replaced.metadata.labels, None);
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    assert!(leases.get("a").await.unwrap().spec.unwrap().renew_time.is_some());
    assert_eq!(code(&nodes.get("c").await.unwrap_err()), 404);
}

#[tokio::test]
async fn pods_are_created_run_are_evicted_and_go() {
    let (server, client) = started().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let spec: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }))
    .unwrap();
    let pod = pods.create(&PostParams::default(), &spec).await.unwrap();
    assert_eq!(code(&pods.create(&PostParams::default(), &spec).await.unwrap_err()), 409);
    until("the pod runs", || server.cluster(|c| c.processes_on("a").count() == 1)).await;
    let on_a = ListParams::default().fields("spec.nodeName=a,status.phase=Running");
    assert_eq!(Api::<Pod>::all(client).list(&on_a).await.unwrap().items.len(), 1);
    let eviction = |uid: &str| Eviction {
        delete_options: serde_json::from_value(json!({"preconditions": {"uid": uid}})).unwrap(),
        metadata: ObjectMeta { name: Some("p".to_owned()), ..ObjectMeta::default() },
    };
    let post = PostParams::default();
    let wrong = eviction("x");
    let wrong =
        pods.create_subresource::<Eviction, Status>("eviction", "p", &post, &wrong).await.unwrap_err();
    assert_eq!(code(&wrong), 409);
    let right = eviction(&pod.metadata.uid.unwrap());
    pods.create_subresource::<Eviction, Status>("eviction", "p", &post, &right).await.unwrap();
    until("the process ends", || server.cluster(|c| c.processes().count() == 0)).await;
    assert_eq!(pods.get_opt("p").await.unwrap(), None);
    assert_eq!(code(&pods.delete("p", &DeleteParams::default()).await.unwrap_err()), 404);
}

#[tokio::test]
async fn a_dry_run_binding_of_a_pod_that_is_not_there_is_404_without_a_guard() {
    let (_server, client) = started().await;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let target =
        ObjectReference { kind: Some("Node".into()), name: Some("a".into()), ..ObjectReference::default() };
    let binding = Binding { target, ..Binding::default() };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refused =
        pods.create_subresource::<Binding, Status>("binding", "none", &dry, &binding).await.unwrap_err();
    assert_eq!(code(&refused), 404);
}

#[tokio::test]
async fn a_gate_is_created_replaced_with_its_version_and_never_without() {
    let (_server, client) = started().await;
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("gpu-bridge.io", "v1", "Gate"), "gates");
    let gates: Api<DynamicObject> = Api::all_with(client, &resource);
    let gate = DynamicObject::new("gate", &resource).data(json!({"spec": {"closed": []}}));
    let mut created = gates.create(&PostParams::default(), &gate).await.unwrap();
    assert_eq!(code(&gates.replace("gate", &PostParams::default(), &gate).await.unwrap_err()), 422);
    created.data["spec"]["closed"] = json!(["a"]);
    gates.replace("gate", &PostParams::default(), &created).await.unwrap();
    assert_eq!(code(&gates.replace("gate", &PostParams::default(), &created).await.unwrap_err()), 409);
    assert_eq!(gates.get("gate").await.unwrap().data["spec"]["closed"], json!(["a"]));
}

#[tokio::test]
async fn a_watch_sees_what_comes_into_and_leaves_its_selection() {
    let (server, client) = started().await;
    let pods: Api<Pod> = Api::all(client);
    let pending = "spec.nodeName=,status.phase=Pending";
    let version =
        pods.list(&ListParams::default().fields(pending)).await.unwrap().metadata.resource_version.unwrap();
    let mut events = pods.watch(&WatchParams::default().fields(pending), &version).await.unwrap().boxed();
    server.cluster(|c| {
        c.settings.bind_delay = Duration::from_secs(5);
        c.add_pod(&pod("p"));
    });
    let mut seen = Vec::new();
    while seen.last() != Some(&"deleted") {
        let event =
            tokio::time::timeout(Duration::from_secs(20), events.next()).await.unwrap().unwrap().unwrap();
        seen.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Bookmark(_) => "bookmark",
            WatchEvent::Error(status) => panic!("{status:?}"),
        });
    }
    seen.retain(|kind| *kind != "bookmark");
    assert_eq!(seen, ["added", "deleted"]);
}

#[tokio::test]
async fn a_watch_from_a_version_that_is_forgotten_is_410() {
    let (_server, client) = started().await;
    let old = Api::<Pod>::all(client).watch(&WatchParams::default(), "1").await.err().unwrap();
    assert_eq!(code(&old), 410);
}

#[tokio::test]
async fn versions_and_access_reviews_answer() {
    let (server, client) = started().await;
    assert_eq!(client.apiserver_version().await.unwrap().minor, "33");
    let groups = client.list_api_groups().await.unwrap().groups;
    assert!(groups.iter().any(|group| group.name == "gpu-bridge.io"));
    server.cluster(|c| {
        c.denied =
            vec![Denied { verb: "patch".into(), resource: "nodes".into(), subresource: String::new() }];
    });
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
    for (verb, allowed) in [("patch", false), ("get", true)] {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            resource: Some("nodes".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        assert_eq!(answer.status.unwrap().allowed, allowed, "{verb}");
    }
}

#[tokio::test]
async fn faults_hit_the_requests_they_are_for_and_no_others() {
    let (server, client) = started().await;
    let nodes: Api<Node> = Api::all(client);
    for (fault, refused) in [
        (Fault::Refuse(500), Some(500)),
        (Fault::Refuse(401), Some(401)),
        (Fault::Refuse(403), Some(403)),
        (Fault::Refuse(429), Some(429)),
        (Fault::Html, None),
        (Fault::Reset, None),
        (Fault::CutBody(40), None),
    ] {
        server.inject(Injection::new("/nodes/a", 1, fault.clone()).on("GET"));
        nodes.get("b").await.unwrap();
        let failed = nodes.get("a").await.unwrap_err();
        match (&failed, refused) {
            (kube::Error::Api(status), Some(code)) => assert_eq!(status.code, code),
            (kube::Error::Api(status), None) => panic!("{fault:?}: {status:?}"),
            (_, refused) => assert_eq!(refused, None, "{fault:?}: {failed:?}"),
        }
        nodes.get("a").await.unwrap();
    }
    server.inject(Injection::new("/nodes/a", 1, Fault::Delay(Duration::from_millis(300))));
    let start = Instant::now();
    nodes.get("a").await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_lost_answer_took_effect_and_a_reset_did_not() {
    let (server, client) = started().await;
    let nodes: Api<Node> = Api::all(client);
    for (fault, expected) in [(Fault::Reset, None), (Fault::LostAnswer, Some(true))] {
        server.inject(Injection::new("/nodes/a", 1, fault).on("PATCH"));
        let patch = json!({"spec": {"unschedulable": true}});
        assert!(nodes.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.is_err());
        let cordoned = server.cluster(|c| c.get(&Id::node("a")).unwrap()["spec"]["unschedulable"].as_bool());
        assert_eq!(cordoned, expected);
    }
    assert!(server.take_requests().iter().all(|request| request.starts_with("PATCH /api/v1/nodes/a?")));
}
