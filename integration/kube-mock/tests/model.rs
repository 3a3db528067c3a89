//! The model in virtual time: what happens by itself, and what the API answers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::time::Duration;

use jiff::Timestamp;
use kube_mock::{Answer, Cluster, Id, Machine, NodeSpec, PodSpec, Request, Resource, Workload};
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_061_600 + second).unwrap()
}

fn cluster(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(at(0));
    for name in nodes {
        cluster.add_node(&NodeSpec { name: (*name).to_owned(), gpus: 8, ..NodeSpec::default() });
    }
    cluster
}

fn pod(name: &str, gpus: u64) -> PodSpec {
    PodSpec { namespace: "default".to_owned(), name: name.to_owned(), gpus, ..PodSpec::default() }
}

fn call(cluster: &mut Cluster, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        content_type: if method == "PATCH" { "application/merge-patch+json" } else { "application/json" }
            .to_owned(),
        body: body.to_string().into_bytes(),
    };
    match cluster.request(&request) {
        Answer::Json { code, body } => (code, body),
        other => panic!("{method} {path}: {other:?}"),
    }
}

fn taint(cluster: &mut Cluster, node: &str, effect: &str) {
    let taints = json!([{"key": "gpu-bridge.io/test", "effect": effect}]);
    assert!(cluster.edit(&Id::node(node), |node| node["spec"]["taints"] = taints));
}

fn node_of(cluster: &Cluster, pod: &str) -> String {
    cluster
        .get(&Id::pod("default", pod))
        .map_or_else(String::new, |pod| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

fn phase_of(cluster: &Cluster, pod: &str) -> String {
    let found = cluster.get(&Id::pod("default", pod));
    found.map_or_else(
        || "gone".to_owned(),
        |pod| pod["status"]["phase"].as_str().unwrap_or_default().to_owned(),
    )
}

fn running(cluster: &Cluster) -> Vec<(String, String)> {
    cluster.processes().map(|process| (process.node.clone(), process.pod.clone())).collect()
}

#[test]
fn pods_go_where_gpus_are_free_and_taints_and_labels_allow() {
    let mut cluster = cluster(&["a", "b"]);
    taint(&mut cluster, "a", "NoSchedule");
    cluster.edit(&Id::node("b"), |node| node["metadata"]["labels"]["nodepool"] = json!("gpu-burst"));
    cluster.add_pod(&pod("p1", 6));
    cluster.add_pod(&pod("p2", 4));
    cluster.add_pod(&PodSpec { tolerations: vec![json!({"operator": "Exists"})], ..pod("p3", 4) });
    let selector = [("nodepool".to_owned(), "gpu-burst".to_owned())].into();
    cluster.add_pod(&PodSpec { node_selector: selector, ..pod("p4", 2) });
    let places = ["p1", "p2", "p3", "p4"].map(|name| node_of(&cluster, name));
    assert_eq!(places, ["b", "", "a", "b"]);
    let waiting = cluster.get(&Id::pod("default", "p2")).unwrap();
    assert_eq!(waiting["status"]["conditions"][0]["reason"], "Unschedulable");
    assert_eq!(running(&cluster), []);
    cluster.advance_to(at(2));
    assert_eq!(running(&cluster).len(), 3);
    assert_eq!(phase_of(&cluster, "p1"), "Running");
}

#[test]
fn a_binding_decided_before_a_taint_comes_after_it_and_runs() {
    let mut cluster = cluster(&["a"]);
    cluster.settings.bind_delay = Duration::from_secs(5);
    cluster.add_pod(&pod("late", 8));
    cluster.advance_to(at(1));
    taint(&mut cluster, "a", "NoSchedule");
    cluster.advance_to(at(4));
    assert_eq!(node_of(&cluster, "late"), "");
    cluster.advance_to(at(7));
    assert_eq!(running(&cluster), [("a".to_owned(), "late".to_owned())]);
}

#[test]
fn with_no_execute_a_late_binding_is_evicted_and_never_runs() {
    let mut cluster = cluster(&["a"]);
    cluster.settings.bind_delay = Duration::from_secs(5);
    cluster.add_pod(&pod("late", 8));
    taint(&mut cluster, "a", "NoExecute");
    for second in 1..60 {
        cluster.advance_to(at(second));
        assert_eq!(running(&cluster), []);
    }
}

/// As in the guard manifests, for node `a`.
fn guard(cluster: &mut Cluster) {
    let policy = json!({"spec": {
        "paramKind": {"apiVersion": "gpu-bridge.io/v1", "kind": "Gate"},
        "matchConstraints": {"resourceRules": [{"resources": ["pods/binding", "bindings"]}]},
        "matchConditions": [
            {"name": "managed", "expression": "object.target.name in ['a', 'c']"},
            {"name": "untrusted", "expression": "!(request.namespace in ['kube-system'])"},
        ],
    }});
    let binding = json!({"spec": {
        "policyName": "bindings", "validationActions": ["Deny"],
        "paramRef": {"name": "gate", "parameterNotFoundAction": "Deny"},
    }});
    cluster.create(&Id::cluster(Resource::ValidatingAdmissionPolicies, "bindings"), policy).unwrap();
    cluster.create(&Id::cluster(Resource::ValidatingAdmissionPolicyBindings, "bindings"), binding).unwrap();
}

#[test]
fn the_gate_refuses_bindings_to_closed_nodes_while_policy_and_binding_stand() {
    let mut cluster = cluster(&["a", "b"]);
    let gate = Id::cluster(Resource::Gates, "gate");
    cluster.create(&gate, json!({"spec": {"closed": ["a", "b"]}})).unwrap();
    let probe = |cluster: &mut Cluster, namespace: &str, node: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/pods/no-such-pod/binding?dryRun=All");
        call(cluster, "POST", &path, &json!({"target": {"kind": "Node", "name": node}})).0
    };
    assert_eq!(probe(&mut cluster, "default", "a"), 404, "no guard yet");
    guard(&mut cluster);
    assert_eq!(probe(&mut cluster, "default", "a"), 422);
    assert_eq!(probe(&mut cluster, "default", "b"), 404, "not a managed node");
    assert_eq!(probe(&mut cluster, "kube-system", "a"), 404, "a trusted namespace");
    cluster.edit(&Id::node("b"), |node| node["spec"]["unschedulable"] = json!(true));
    cluster.add_pod(&pod("p", 1));
    cluster.advance_to(at(10));
    assert_eq!(node_of(&cluster, "p"), "", "the scheduler is refused too");
    cluster.edit(&gate, |gate| gate["spec"]["closed"] = json!([]));
    cluster.advance_to(at(12));
    assert_eq!(node_of(&cluster, "p"), "a", "and tries again");
    call(&mut cluster, "DELETE", "/apis/gpu-bridge.io/v1/gates/gate", &json!({}));
    assert_eq!(probe(&mut cluster, "default", "a"), 422, "a lost Gate denies");
}

#[test]
fn eviction_honours_budgets_uid_and_grace_in_the_servers_order() {
    let mut cluster = cluster(&["a"]);
    let labels = [("app".to_owned(), "x".to_owned())].into();
    cluster.add_pod(&PodSpec { labels, ..pod("p", 1) });
    cluster.advance_to(at(5));
    let budget = Id::namespaced(Resource::PodDisruptionBudgets, "default", "budget");
    let spec = json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    cluster.create(&budget, spec.clone()).unwrap();
    let path = "/api/v1/namespaces/default/pods/p/eviction";
    let evict = |cluster: &mut Cluster, uid: &str| {
        call(
            cluster,
            "POST",
            path,
            &json!({"deleteOptions": {"preconditions": {"uid": uid}, "gracePeriodSeconds": 20}}),
        )
    };
    let (code, status) = evict(&mut cluster, "another");
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (429, &json!("DisruptionBudget")));
    cluster.create(&Id::namespaced(Resource::PodDisruptionBudgets, "default", "second"), spec).unwrap();
    assert_eq!(evict(&mut cluster, "another").0, 500, "two budgets");
    call(
        &mut cluster,
        "DELETE",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets/second",
        &json!({}),
    );
    cluster.edit(&budget, |budget| budget["spec"]["minAvailable"] = json!(0));
    assert_eq!(evict(&mut cluster, "another").0, 409);
    let uid = cluster.get(&Id::pod("default", "p")).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(evict(&mut cluster, &uid).0, 201);
    let going = cluster.get(&Id::pod("default", "p")).unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 20);
    assert_eq!(running(&cluster).len(), 1);
    cluster.advance_to(at(7));
    assert_eq!((phase_of(&cluster, "p").as_str(), running(&cluster).len()), ("gone", 0));
    assert_eq!(evict(&mut cluster, &uid).0, 404);
}

#[test]
fn a_frozen_kubelet_looks_well_while_a_deleted_pods_process_lives() {
    let mut cluster = cluster(&["a"]);
    cluster.add_pod(&pod("p", 8));
    cluster.advance_to(at(5));
    assert!(cluster.set_machine("a", Machine::Frozen));
    call(&mut cluster, "DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", &json!({}));
    let ready =
        |cluster: &Cluster| cluster.get(&Id::node("a")).unwrap()["status"]["conditions"][0]["status"].clone();
    let lease = |cluster: &Cluster| {
        let lease = cluster.get(&Id::namespaced(Resource::Leases, "kube-node-lease", "a")).unwrap();
        lease["spec"]["renewTime"].clone()
    };
    let renewed = lease(&cluster);
    cluster.advance_to(at(44));
    assert_eq!((phase_of(&cluster, "p").as_str(), ready(&cluster)), ("gone", json!("True")));
    assert_eq!(running(&cluster).len(), 1);
    cluster.advance_to(at(46));
    assert_eq!((ready(&cluster), lease(&cluster)), (json!("Unknown"), renewed.clone()));
    cluster.set_machine("a", Machine::Up);
    cluster.advance_to(at(50));
    assert_eq!((ready(&cluster), running(&cluster).len()), (json!("True"), 0));
    assert_ne!(lease(&cluster), renewed);
}

#[test]
fn without_power_nothing_runs_and_what_was_bound_comes_back_with_it() {
    let mut cluster = cluster(&["a"]);
    cluster.add_pod(&pod("p", 8));
    cluster.advance_to(at(5));
    cluster.set_machine("a", Machine::Down);
    assert_eq!((running(&cluster).len(), phase_of(&cluster, "p").as_str()), (0, "Running"));
    cluster.set_machine("a", Machine::Up);
    cluster.advance_to(at(10));
    assert_eq!(running(&cluster).len(), 1);
}

#[test]
fn a_workload_is_kept_up_and_scaled() {
    let mut cluster = cluster(&["a", "b"]);
    cluster.set_workload(Workload::new(2, pod("web", 8)));
    cluster.advance_to(at(5));
    assert_eq!(running(&cluster).len(), 2);
    taint(&mut cluster, "a", "NoExecute");
    cluster.advance_to(at(10));
    assert_eq!(running(&cluster).iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(cluster.all(Resource::Pods).count(), 2, "one waits");
    cluster.set_workload(Workload::new(0, pod("web", 8)));
    cluster.advance_to(at(20));
    assert_eq!((running(&cluster).len(), cluster.all(Resource::Pods).count()), (0, 0));
}

#[test]
fn a_pod_that_ends_by_itself_is_succeeded_and_frees_its_gpus() {
    let mut cluster = cluster(&["a"]);
    let annotations = [("kube-mock/run-seconds".to_owned(), "30".to_owned())].into();
    cluster.add_pod(&PodSpec { annotations, ..pod("job", 8) });
    cluster.add_pod(&pod("next", 8));
    cluster.advance_to(at(31));
    assert_eq!((phase_of(&cluster, "job").as_str(), node_of(&cluster, "next").as_str()), ("Running", ""));
    cluster.advance_to(at(40));
    assert_eq!(
        (phase_of(&cluster, "job").as_str(), phase_of(&cluster, "next").as_str()),
        ("Succeeded", "Running")
    );
}

#[test]
fn writes_with_a_stale_version_are_refused_and_foreign_fields_survive_fresh_ones() {
    let mut cluster = cluster(&["a"]);
    let path = "/api/v1/nodes/a";
    let (_, node) = call(&mut cluster, "GET", path, &json!({}));
    let version = node["metadata"]["resourceVersion"].clone();
    let labelled = |version: &Value| json!({"metadata": {"resourceVersion": version, "labels": {"x": "y"}}});
    assert_eq!(call(&mut cluster, "PATCH", path, &labelled(&version)).0, 200);
    assert_eq!(call(&mut cluster, "PATCH", path, &labelled(&version)).0, 409);
    let (_, node) = call(&mut cluster, "GET", path, &json!({}));
    assert_eq!(node["metadata"]["labels"], json!({"x": "y", "kubernetes.io/hostname": "a"}));
    // Status and spec are written apart.
    call(&mut cluster, "PATCH", path, &json!({"status": {"allocatable": {"nvidia.com/gpu": "0"}}}));
    assert_eq!(cluster.get(&Id::node("a")).unwrap()["status"]["allocatable"]["nvidia.com/gpu"], "8");
    let both = json!({"status": {"allocatable": {"nvidia.com/gpu": "0"}}, "spec": {"unschedulable": true}});
    call(&mut cluster, "PATCH", "/api/v1/nodes/a/status", &both);
    let node = cluster.get(&Id::node("a")).unwrap();
    assert_eq!(
        (&node["status"]["allocatable"]["nvidia.com/gpu"], &node["spec"]["unschedulable"]),
        (&json!("0"), &Value::Null)
    );
}

#[test]
fn a_write_that_changes_nothing_is_no_change() {
    let mut cluster = cluster(&["a"]);
    let before = cluster.version();
    call(&mut cluster, "PATCH", "/api/v1/nodes/a", &json!({"spec": {}}));
    cluster.advance_to(at(1));
    assert_eq!(cluster.version(), before);
}

#[test]
fn the_same_calls_give_the_same_cluster() {
    let run = || {
        let mut cluster = cluster(&["a", "b", "c"]);
        cluster.set_workload(Workload::new(5, pod("web", 4)));
        cluster.advance_to(at(3));
        taint(&mut cluster, "b", "NoExecute");
        cluster.advance_to(at(60));
        format!("{cluster:?}")
    };
    assert_eq!(run(), run());
}

#[test]
fn what_is_not_modelled_is_refused() {
    let mut cluster = cluster(&["a"]);
    for (method, path, code) in [
        ("GET", "/apis/batch/v1/jobs", 404),
        ("GET", "/api/v1/nodes?labelSelector=a in (b)", 400),
        ("GET", "/api/v1/pods/p", 404),
        ("POST", "/api/v1/nodes/a", 405),
        ("POST", "/api/v1/namespaces/nowhere/pods", 422),
    ] {
        assert_eq!(call(&mut cluster, method, path, &json!({})).0, code, "{method} {path}");
    }
}
