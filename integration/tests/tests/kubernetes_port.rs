//! The Kubernetes port against a real control plane and real kubelets. Runs with `GPU_BRIDGE_LABS=1`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, helpers included")]

use std::collections::BTreeSet;
use std::time::Duration;

use gpu_bridge::certainty::Certainty;
use gpu_bridge::kubernetes::client::{Client, Options};
use gpu_bridge::kubernetes::manifests::ManifestOptions;
use gpu_bridge::kubernetes::{Error, Kubernetes as _};
use gpu_bridge_core::facts::kubernetes::{
    Acted, Action, BindingProbe, Effect, Eviction, GuardState, Guards, Holder, Marks, NodeLook, PodRef,
    Ready, Taint,
};
use gpu_bridge_core::ids::KubeNodeName;
use gpu_bridge_core::mark::{LABEL_OWNER, TAINT_DRAINING, TAINT_SLURM};
use gpu_bridge_labs::kubernetes::{Lab, Node, Options as LabOptions, Part, unsupported};
use gpu_bridge_labs::wait_until;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::request::Request;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const GATES: &str = "/apis/gpu-bridge.io/v1/gates";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const POLICY_BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const DRA: &str = "/apis/resource.k8s.io/v1";

struct World {
    admin: kube::Client,
    /// The port with the daemon's own rights.
    port: Client,
    lab: Lab,
}

/// A lab with guards, its nodes registered as Slurm's.
async fn world() -> Option<World> {
    if std::env::var("GPU_BRIDGE_LABS").as_deref() != Ok("1") {
        eprintln!("skipped: set GPU_BRIDGE_LABS=1 to run against real Kubernetes");
        return None;
    }
    if let Some(reason) = unsupported().await {
        eprintln!("skipped: {reason}");
        return None;
    }
    let nodes = ["gpu1", "gpu2"].map(|name| Node::new(name).tainted(format!("{TAINT_SLURM}=:NoExecute")));
    let lab = Lab::up(LabOptions { nodes: nodes.into(), ..LabOptions::default() }).await.unwrap();
    let guards = ManifestOptions::new(["gpu1", "gpu2"].map(KubeNodeName::from), "gpu-bridge");
    let options = |kubeconfig| Options { kubeconfig: Some(kubeconfig), ..Options::new(guards.clone()) };
    let installer = Client::connect(options(lab.kubeconfig())).await.unwrap();
    installer.install().await.unwrap();
    installer.install().await.unwrap();
    let port = Client::connect(options(lab.kubeconfig_of("gpu-bridge").unwrap())).await.unwrap();
    Some(World { admin: lab.client().await.unwrap(), port, lab })
}

impl World {
    async fn create(&self, path: &str, object: &Value) -> Result<Value, Box<kube::core::Status>> {
        let request = Request::new(path).create(&PostParams::default(), object.to_string().into_bytes());
        api(self.admin.request(request.unwrap()).await)
    }

    /// Makes a pod as a node's kubelet does.
    async fn create_as(&self, node: &str, pod: &Value) -> Result<Value, Box<kube::core::Status>> {
        let mut request =
            Request::new(PODS).create(&PostParams::default(), pod.to_string().into_bytes()).unwrap();
        let headers = request.headers_mut();
        headers.insert("Impersonate-User", format!("system:node:{node}").parse().unwrap());
        headers.insert("Impersonate-Group", "system:nodes".parse().unwrap());
        api(self.admin.request(request).await)
    }

    async fn delete(&self, path: &str, name: &str, params: &DeleteParams) {
        let request = Request::new(path).delete(name, params).unwrap();
        let _: Value = self.admin.request(request).await.unwrap();
    }

    async fn get(&self, path: &str, name: &str) -> Value {
        self.admin
            .request(Request::new(path).get(name, &kube::api::GetParams::default()).unwrap())
            .await
            .unwrap()
    }

    async fn overlay(
        &self,
        path: &str,
        name: &str,
        change: &Value,
    ) -> Result<Value, Box<kube::core::Status>> {
        let request = Request::new(path).patch(name, &PatchParams::default(), &Patch::Merge(change));
        api(self.admin.request(request.unwrap()).await)
    }

    async fn act(&self, action: Action) -> Acted {
        self.port.act(&action).await.unwrap()
    }

    async fn mark(&self, node: &str, taints: &[(&str, Effect)], owner: Option<&str>) -> Result<Acted, Error> {
        let uid = self.get(NODES, node).await["metadata"]["uid"].as_str().unwrap().to_owned();
        let taint = |(key, effect): &(&str, Effect)| Taint {
            key: (*key).to_owned(),
            value: String::new(),
            effect: effect.clone(),
        };
        let marks = Marks {
            node: node.into(),
            uid,
            taints: taints.iter().map(taint).collect(),
            taint_keys: [TAINT_DRAINING, TAINT_SLURM].map(str::to_owned).into(),
            labels: [(LABEL_OWNER.to_owned(), owner.map(str::to_owned))].into(),
            annotation: owner.map(|owner| format!("{{\"owner\":\"{owner}\"}}")),
        };
        self.port.act(&Action::Mark(marks)).await
    }

    /// Opens a node for Kubernetes. A Gate that is not there yet is made first, with both nodes on it.
    async fn open(&self, node: &str) {
        self.act(Action::CreateGate { closed: ["gpu1", "gpu2"].map(KubeNodeName::from).into() }).await;
        self.act(Action::OpenGate { node: node.into() }).await;
        self.mark(node, &[], Some("kubernetes")).await.unwrap();
        wait_until("the list to let bindings through", LIMIT, async || {
            match self.port.probe_binding(&node.into()).await {
                Ok(BindingProbe::Passed) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }

    /// Makes a pod and waits until it runs on `gpu1`.
    async fn running(&self, name: &str, spec: &Value) -> PodRef {
        let pod = self.create(PODS, &pod(name, spec)).await.unwrap();
        self.reaches(name, |pod| pod["status"]["phase"] == "Running").await;
        reference(&pod)
    }

    async fn reaches(&self, name: &str, is: impl Fn(&Value) -> bool) {
        wait_until(name, LIMIT, async || {
            let pod = self.get(PODS, name).await;
            if is(&pod) { Ok(()) } else { Err(pod["status"].to_string()) }
        })
        .await
        .unwrap();
    }

    async fn gone(&self, pod: &PodRef) {
        wait_until("the pod to be gone", LIMIT, async || {
            let request = Request::new(PODS).get(&pod.name, &kube::api::GetParams::default()).unwrap();
            let found: Result<Value, _> = api(self.admin.request(request).await);
            match found {
                Err(status) if status.code == 404 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }

    async fn look_at(&self, node: &str) -> NodeLook {
        self.port.look_at(&node.into()).await.unwrap()
    }
}

fn api<T>(result: kube::Result<T>) -> Result<T, Box<kube::core::Status>> {
    result.map_err(|error| match error {
        kube::Error::Api(status) => status,
        other => panic!("{other}"),
    })
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": spec })
}

fn asks(gpus: u32) -> Value {
    let resources =
        if gpus == 0 { json!({}) } else { json!({ "limits": { "nvidia.com/gpu": gpus.to_string() } }) };
    json!({ "containers": [{ "name": "main", "image": "lab/none", "resources": resources }] })
}

fn reference(pod: &Value) -> PodRef {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    PodRef { namespace: text("namespace"), name: text("name"), uid: text("uid") }
}

fn budget(name: &str, app: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": app } } } })
}

fn holders(look: &NodeLook) -> BTreeSet<(String, u32)> {
    let pods = look.holders.iter().map(|holder| match holder {
        Holder::Pod { pod, .. } => (pod.pod.name.clone(), pod.gpus),
        Holder::Claim { claim, .. } => (claim.clone(), 0),
    });
    pods.collect()
}

fn standing() -> Guards {
    Guards {
        bindings: GuardState::Standing,
        pods: GuardState::Standing,
        marks: GuardState::Standing,
        gate: GuardState::Standing,
    }
}

/// Another UID is another pod; one budget says not now; two say never.
async fn evictions_mean_what_they_say(world: &World, gpu: &PodRef) {
    let stranger = PodRef { uid: "11111111-2222-3333-4444-555555555555".into(), ..gpu.clone() };
    assert_eq!(world.act(Action::Evict { pod: stranger }).await, Acted::Done);
    assert_eq!(holders(&world.look_at("gpu1").await).len(), 2);
    world.create(BUDGETS, &budget("one", "gpu")).await.unwrap();
    wait_until("the budget to be counted", LIMIT, async || {
        let status = world.get(BUDGETS, "one").await["status"].clone();
        if status["currentHealthy"] == 1 { Ok(()) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();
    let start = std::time::Instant::now();
    let acted = world.act(Action::Evict { pod: gpu.clone() }).await;
    assert!(matches!(&acted, Acted::Budget { why } if why.contains("one")), "{acted:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "it comes back at once");
    world.create(BUDGETS, &budget("two", "gpu")).await.unwrap();
    wait_until("two budgets to be refused", LIMIT, async || {
        match world.act(Action::Evict { pod: gpu.clone() }).await {
            Acted::Refused { .. } => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    world.delete(BUDGETS, "one", &DeleteParams::default()).await;
    world.delete(BUDGETS, "two", &DeleteParams::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_closed_emptied_and_opened() {
    let Some(world) = world().await else { return };
    let gpu1 = KubeNodeName::from("gpu1");

    // As registered: Slurm's, no Gate yet. Without one every binding to a managed node is refused.
    let look = world.port.look().await.unwrap();
    assert_eq!(look.guards, standing());
    assert_eq!((look.gate, look.pending.len(), look.nodes.len()), (None, 0, 2));
    let node = &look.nodes[&gpu1];
    assert_eq!((node.ready, node.allocatable_gpus, node.unschedulable), (Ready::True, 4, false));
    assert_eq!(
        node.taints,
        [Taint { key: TAINT_SLURM.into(), value: String::new(), effect: Effect::NoExecute }]
    );
    wait_until("a Lease", LIMIT, async || {
        let node = world.port.look().await.unwrap().nodes.swap_remove(&gpu1).unwrap();
        node.lease_renewed_at.map(drop).ok_or_else(|| format!("{node:?}"))
    })
    .await
    .unwrap();
    wait_until("the guard to refuse while there is no Gate", LIMIT, async || {
        match world.port.probe_binding(&gpu1).await {
            Err(Error::Odd { why, .. } | Error::Forbidden { why, .. })
                if why.contains("gpu-bridge-bindings") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    // Open: only that node.
    world.open("gpu1").await;
    assert_eq!(world.port.probe_binding(&"gpu2".into()).await.unwrap(), BindingProbe::Refused);
    let look = world.port.look().await.unwrap();
    assert_eq!(look.gate.unwrap().closed, [KubeNodeName::from("gpu2")].into());
    assert_eq!(look.nodes[&gpu1].labels[LABEL_OWNER], "kubernetes");
    assert_eq!(look.nodes[&gpu1].handover_annotation.as_deref(), Some("{\"owner\":\"kubernetes\"}"));

    // Who is there.
    let gpu = world.running("gpu", &asks(2)).await;
    let mut init = asks(0);
    init["initContainers"] =
        json!([{ "name": "i", "image": "lab/none", "resources": { "limits": { "nvidia.com/gpu": "1" } } }]);
    world.create(PODS, &pod("init-only", &init)).await.unwrap();
    world.reaches("init-only", |pod| pod["spec"]["nodeName"] == "gpu1").await;
    let plain = world.running("plain", &asks(0)).await;
    let look = world.look_at("gpu1").await;
    assert_eq!(holders(&look), [("gpu".to_owned(), 2), ("init-only".to_owned(), 1)].into());
    assert_eq!(look.others.iter().map(|pod| &pod.pod).collect::<Vec<_>>(), [&plain]);

    evictions_mean_what_they_say(&world, &gpu).await;

    // Close: list, proof, NoSchedule; what the scheduler had decided is refused too.
    world.act(Action::CloseGate { node: gpu1.clone() }).await;
    wait_until("the list to refuse bindings", LIMIT, async || match world.port.probe_binding(&gpu1).await {
        Ok(BindingProbe::Refused) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    world.mark("gpu1", &[(TAINT_DRAINING, Effect::NoSchedule)], Some("kubernetes")).await.unwrap();
    world.create(PODS, &pod("late", &asks(1))).await.unwrap();
    let binding = json!({ "metadata": { "name": "late" }, "target": { "kind": "Node", "name": "gpu1" } });
    let bound = world.create(&format!("{PODS}/late/binding"), &binding).await;
    assert!(matches!(&bound, Err(status) if status.message.contains("closed to Kubernetes")), "{bound:?}");
    wait_until("the pod to be seen waiting", LIMIT, async || {
        let pending = world.port.look().await.unwrap().pending;
        match pending.as_slice() {
            [one] if one.pod.name == "late" && one.gpus == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();

    // Empty it.
    for name in ["gpu", "init-only", "plain"] {
        let pod = reference(&world.get(PODS, name).await);
        wait_until("the eviction", LIMIT, async || {
            match world.act(Action::Evict { pod: pod.clone() }).await {
                Acted::Done => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        world.gone(&pod).await;
        assert_eq!(world.act(Action::Evict { pod }).await, Acted::Done, "asking twice is as asking once");
    }
    let both = [(TAINT_DRAINING, Effect::NoSchedule), (TAINT_SLURM, Effect::NoExecute)];
    world.mark("gpu1", &both, Some("slurm")).await.unwrap();
    assert!(world.look_at("gpu1").await.is_empty());
    let node = world.port.look().await.unwrap().nodes.swap_remove(&gpu1).unwrap();
    assert_eq!((node.taints.len(), node.labels[LABEL_OWNER].as_str()), (2, "slurm"));

    // And back: what waited runs.
    world.open("gpu1").await;
    world
        .reaches("late", |pod| pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] == "gpu1")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_marks_survive_and_ours_are_guarded() {
    let Some(world) = world().await else { return };
    world.open("gpu1").await;

    // Foreign taints written between our reads and writes survive, and ours come out as asked.
    let foreign = async {
        for number in 0..30 {
            let taint = json!({ "key": format!("race.test/{number}"), "effect": "PreferNoSchedule" });
            wait_until("a foreign taint", LIMIT, async || {
                let node = world.get(NODES, "gpu1").await;
                let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                taints.push(taint.clone());
                let patch = json!({
                    "metadata": { "resourceVersion": node["metadata"]["resourceVersion"] },
                    "spec": { "taints": taints },
                });
                world.overlay(NODES, "gpu1", &patch).await.map_err(|status| status.message)
            })
            .await
            .unwrap();
        }
    };
    let ours = async {
        for turn in 0..30 {
            let taints: &[_] = if turn % 2 == 0 { &[(TAINT_DRAINING, Effect::NoSchedule)] } else { &[] };
            wait_until("our marks", LIMIT, async || {
                match world.mark("gpu1", taints, Some("kubernetes")).await {
                    Ok(Acted::Done) => Ok(()),
                    Err(error @ Error::Conflict { .. }) => Err(error.to_string()),
                    other => panic!("{other:?}"),
                }
            })
            .await
            .unwrap();
        }
    };
    tokio::join!(foreign, ours);
    let taints =
        world.port.look().await.unwrap().nodes.swap_remove(&KubeNodeName::from("gpu1")).unwrap().taints;
    let keys: Vec<_> = taints.iter().map(|taint| taint.key.clone()).collect();
    assert_eq!(keys, (0..30).map(|number| format!("race.test/{number}")).collect::<Vec<_>>());

    // Another Node under the same name is not marked.
    let marks = Marks {
        node: "gpu1".into(),
        uid: "other".into(),
        taints: vec![],
        taint_keys: BTreeSet::new(),
        labels: [("a".to_owned(), Some("b".to_owned()))].into(),
        annotation: None,
    };
    assert!(matches!(world.port.act(&Action::Mark(marks)).await, Err(Error::NotFound { .. })));

    // The guards, against one who may do anything.
    let mut named = asks(1);
    named["nodeName"] = json!("gpu1");
    let mut tolerant = asks(1);
    tolerant["tolerations"] = json!([{ "operator": "Exists" }]);
    let mut ours = asks(1);
    ours["tolerations"] = json!([{ "key": TAINT_SLURM, "operator": "Exists", "effect": "NoExecute" }]);
    for (name, spec, why) in [
        ("named", named, "must not name"),
        ("tolerant", tolerant, "must not tolerate"),
        ("ours", ours, "must not tolerate"),
    ] {
        let made = world.create(PODS, &pod(name, &spec)).await;
        assert!(matches!(&made, Err(status) if status.message.contains(why)), "{name}: {made:?}");
    }
    let mut cpu = asks(0);
    cpu["nodeName"] = json!("gpu1");
    world.create(PODS, &pod("cpu", &cpu)).await.unwrap();
    for patch in [
        json!({ "metadata": { "labels": { LABEL_OWNER: "slurm" } } }),
        json!({ "metadata": { "annotations": { "gpu-bridge.io/handover": null } } }),
        json!({ "spec": { "taints": [{ "key": TAINT_DRAINING, "effect": "NoSchedule" }] } }),
    ] {
        let written = world.overlay(NODES, "gpu1", &patch).await;
        assert!(
            matches!(&written, Err(status) if status.message.contains("only gpu-bridge")),
            "{patch}: {written:?}"
        );
    }
    let written = world.overlay(GATES, "gate", &json!({ "spec": { "closed": [] } })).await;
    assert!(matches!(&written, Err(status) if status.message.contains("only gpu-bridge")), "{written:?}");

    // Altered and missing guards are seen.
    world
        .overlay(POLICIES, "gpu-bridge-pods", &json!({ "spec": { "failurePolicy": "Ignore" } }))
        .await
        .unwrap();
    world.delete(POLICY_BINDINGS, "gpu-bridge-marks", &DeleteParams::default()).await;
    let guards = world.port.look().await.unwrap().guards;
    assert!(
        matches!(&guards.pods, GuardState::Altered { what } if what.contains("failurePolicy")),
        "{guards:?}"
    );
    assert_eq!(
        (guards.bindings, guards.marks, guards.gate),
        (GuardState::Standing, GuardState::Missing, GuardState::Standing)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_and_a_frozen_server_leaves_it_open() {
    let Some(world) = world().await else { return };
    world.open("gpu1").await;
    let guards = ManifestOptions::new(["gpu1", "gpu2"].map(KubeNodeName::from), "gpu-bridge");
    let options = |kubeconfig| Options {
        kubeconfig: Some(kubeconfig),
        deadline: Duration::from_secs(5),
        ..Options::new(guards.clone())
    };
    // What admission refuses even to one who may do anything certainly was not done.
    let close = Action::CloseGate { node: "gpu1".into() };
    let admin = Client::connect(options(world.lab.kubeconfig())).await.unwrap();
    let error = admin.act(&close).await.unwrap_err();
    assert_eq!(error.certainty(), Certainty::NotDone, "{error}");
    assert!(error.to_string().contains("only gpu-bridge changes its Gate"), "{error}");

    // Without the printed rights nothing is seen, and the error says what to do.
    let path = world.lab.path().join("stranger");
    let text = std::fs::read_to_string(world.lab.kubeconfig_of("gpu-bridge").unwrap()).unwrap();
    std::fs::write(&path, text.replace(world.lab.token("gpu-bridge").unwrap(), "not-a-token")).unwrap();
    let stranger = Client::connect(options(path)).await.unwrap();
    assert!(matches!(stranger.look().await, Err(Error::Unauthorized { .. })));
    let rights = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    world.delete(rights, "gpu-bridge", &DeleteParams::default()).await;
    let error = wait_until("the rights to be gone", LIMIT, async || match world.port.look().await {
        Err(error @ Error::Forbidden { .. }) => Ok(error),
        other => Err(format!("{other:?}")),
    });
    let error = error.await.unwrap().to_string();
    assert!(
        error.contains("not allowed to") && error.contains("apply the printed RBAC manifests"),
        "{error}"
    );

    world.lab.pause(&Part::ApiServer).unwrap();
    let error = admin.act(&close).await.unwrap_err();
    let look = admin.look_at(&"gpu1".into()).await;
    world.lab.resume(&Part::ApiServer).unwrap();
    assert_eq!(error.certainty(), Certainty::MayBeDone, "{error}");
    assert!(matches!(look, Err(Error::Unanswered { .. })), "{look:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_nominated_pods_hold() {
    let Some(world) = world().await else { return };
    world.open("gpu1").await;
    let slice = json!({ "metadata": { "name": "gpu1-slice" }, "spec": {
        "driver": "gpu.example.com", "nodeName": "gpu1",
        "pool": { "name": "gpu1", "generation": 1, "resourceSliceCount": 1 }, "devices": [{ "name": "gpu-0" }],
    } });
    world.create(&format!("{DRA}/resourceslices"), &slice).await.unwrap();
    let class = json!({ "metadata": { "name": "gpu" }, "spec": { "selectors": [
        { "cel": { "expression": "device.driver == 'gpu.example.com'" } },
    ] } });
    world.create(&format!("{DRA}/deviceclasses"), &class).await.unwrap();
    let claim = json!({ "metadata": { "name": "mine" }, "spec": { "devices": { "requests": [
        { "name": "r", "exactly": { "deviceClassName": "gpu" } },
    ] } } });
    world.create(&format!("{DRA}/namespaces/default/resourceclaims"), &claim).await.unwrap();
    let mut spec = asks(0);
    spec["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "mine" }]);
    spec["containers"][0]["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    world.create(PODS, &pod("dra", &spec)).await.unwrap();
    world.reaches("dra", |pod| pod["spec"]["nodeName"] == "gpu1").await;
    let look = world.look_at("gpu1").await;
    assert_eq!(holders(&look), [("dra".to_owned(), 1)].into(), "{look:?}");

    // A pod that only has a nomination holds.
    let mut spec = asks(1);
    spec["schedulerName"] = json!("nobody");
    world.create(PODS, &pod("nominated", &spec)).await.unwrap();
    let patch = json!({ "status": { "nominatedNodeName": "gpu1" } });
    let request = Request::new(PODS)
        .patch_subresource("status", "nominated", &PatchParams::default(), &Patch::Merge(&patch))
        .unwrap();
    let _: Value = world.admin.request(request).await.unwrap();
    let look = world.look_at("gpu1").await;
    let nominated = look.holders.iter().any(|holder| {
        matches!(holder, Holder::Pod { pod, .. } if pod.pod.name == "nominated" && pod.eviction == Eviction::Nominated)
    });
    assert!(nominated, "{look:?}");
    assert!(world.look_at("gpu2").await.is_empty());
}

/// A static pod runs whatever the API server says: refusing its mirror would only hide it.
#[tokio::test(flavor = "multi_thread")]
async fn a_static_gpu_pod_is_never_hidden() {
    let Some(world) = world().await else { return };
    world.open("gpu1").await;
    // The kubelet would delete the mirror of a static pod that it does not have.
    world.lab.pause(&Part::Kubelet("gpu1".into())).unwrap();
    let uid = world.get(NODES, "gpu1").await["metadata"]["uid"].clone();
    let mirror = |node: &str| {
        let mut spec = asks(1);
        spec["nodeName"] = json!(node);
        spec["tolerations"] = json!([{ "operator": "Exists", "effect": "NoExecute" }]);
        json!({ "spec": spec, "metadata": {
            "name": format!("static-{node}"),
            "annotations": { "kubernetes.io/config.mirror": "0123", "kubernetes.io/config.hash": "0123" },
            "ownerReferences":
                [{ "apiVersion": "v1", "kind": "Node", "name": "gpu1", "uid": uid, "controller": true }],
        } })
    };

    // The annotation alone is anybody's to write.
    let made = world.create(PODS, &mirror("gpu1")).await;
    assert!(matches!(&made, Err(status) if status.message.contains("gpu-bridge")), "{made:?}");
    let made = world.create_as("gpu2", &mirror("gpu1")).await;
    assert!(matches!(&made, Err(status) if status.code == 403), "{made:?}");
    // What is no mirror is no kubelet's either.
    let mut plain = mirror("gpu1");
    plain["metadata"]["annotations"] = json!({});
    let made = world.create_as("gpu1", &plain).await;
    assert!(matches!(&made, Err(status) if matches!(status.code, 403 | 422)), "{made:?}");

    world.create_as("gpu1", &mirror("gpu1")).await.unwrap();
    let look = world.look_at("gpu1").await;
    let pinned = |holder: &Holder| matches!(holder, Holder::Pod { pod, .. } if pod.pod.name == "static-gpu1" && pod.eviction == Eviction::Pinned);
    assert!(matches!(look.holders.as_slice(), [holder] if pinned(holder)), "{look:?}");
}
