//! The real Kubernetes lab. Where this machine can't build it, each test says so and ends: `cargo xtask test` lists it as
//! skipped.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, helpers included")]

use std::time::Duration;

use gpu_bridge_labs::kubernetes::{Lab, Node, Options, Part, unsupported};
use gpu_bridge_labs::wait_until;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

const LIMIT: Duration = Duration::from_mins(1);
const TAINT: &str = "gpu-bridge.io/slurm=:NoExecute";

async fn skip() -> bool {
    let reason = unsupported().await;
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

fn gpu_pod(name: &str) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": { "name": name },
        "spec": { "containers": [{
            "name": "main", "image": "lab/none", "resources": { "limits": { "nvidia.com/gpu": "2" } },
        }] },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_users_have_the_rights_they_have_and_parts_stop_and_start() {
    if skip().await {
        return;
    }
    let options =
        Options { nodes: vec![Node::new("gpu1"), Node::new("gpu2").tainted(TAINT)], ..Options::default() };
    let lab = Lab::up(options).await.unwrap();
    let client = lab.client().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("one")).await.unwrap();
    let node = wait_until("the pod to run", LIMIT, async || {
        let pod = pods.get("one").await.map_err(|error| error.to_string())?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        if phase.as_deref() == Some("Running") {
            Ok(pod.spec.and_then(|spec| spec.node_name))
        } else {
            Err(format!("{phase:?}"))
        }
    });
    assert_eq!(node.await.unwrap().as_deref(), Some("gpu1"), "gpu2 has a taint");

    // RBAC is on: a user without groups may do nothing.
    let stranger: Api<Pod> = Api::namespaced(lab.client_of("gpu-bridge").await.unwrap(), "default");
    assert!(matches!(stranger.get("one").await, Err(kube::Error::Api(status)) if status.code == 403));
    assert!(lab.token("nobody").is_err());

    // A frozen API server answers nobody, a killed one comes back with what it knew.
    lab.pause(&Part::ApiServer).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), pods.get("one")).await.is_err());
    lab.resume(&Part::ApiServer).unwrap();
    pods.get("one").await.unwrap();
    lab.stop(&Part::ApiServer).await.unwrap();
    assert!(pods.get("one").await.is_err());
    lab.start(&Part::ApiServer).await.unwrap();
    lab.client().await.unwrap();
    pods.get("one").await.unwrap();

    // A deleted Node comes back, tainted, with a restarted kubelet; a new node can be added.
    let nodes: Api<KubeNode> = Api::all(client);
    nodes.delete("gpu2", &DeleteParams::default()).await.unwrap();
    let fewer = Node { gpus: 0, ..Node::new("gpu2").tainted(TAINT) };
    lab.restart_node(&fewer).await.unwrap();
    lab.node_ready("gpu2").await.unwrap();
    let node = nodes.get("gpu2").await.unwrap();
    assert!(node.spec.unwrap().taints.unwrap().iter().any(|taint| taint.key == "gpu-bridge.io/slurm"));
    let gpus = node.status.unwrap().allocatable.unwrap().remove("nvidia.com/gpu");
    assert_eq!(gpus.map(|quantity| quantity.0).as_deref(), Some("0"));
    lab.add_node(&Node::new("gpu3")).await.unwrap();

    let path = lab.path().to_owned();
    drop(lab);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_labs_at_once_are_strangers() {
    if skip().await {
        return;
    }
    let options = || Options { nodes: vec![Node::new("gpu1")], ..Options::default() };
    let (one, two) = tokio::join!(Lab::up(options()), Lab::up(options()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.server(), two.server());
    let nodes: Api<KubeNode> = Api::all(one.client().await.unwrap());
    nodes.delete("gpu1", &DeleteParams::default()).await.unwrap();
    two.node_ready("gpu1").await.unwrap();
}
