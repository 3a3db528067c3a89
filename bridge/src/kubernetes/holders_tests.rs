//! The table of who holds a GPU.

use serde_json::{Value, json};

use super::*;

const DRA: &str = "gpu.nvidia.com";

/// A running pod with this laid over it (objects merged, all else replaced).
fn pod(over: &Value) -> Pod {
    let mut base = json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "u1" },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running", "containerStatuses": [
            { "name": "main", "state": { "running": {} }, "containerID": "c://1" },
        ] },
    });
    merge(&mut base, over);
    serde_json::from_value(base).unwrap()
}

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

fn claim(name: &str, allocation: &Value) -> Claim {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "ns" },
        "status": { "allocation": allocation, "reservedFor": [] },
    }))
    .unwrap()
}

fn allocated(pool: &str, admin: bool) -> Value {
    json!({ "devices": { "results": [
        { "request": "r", "driver": DRA, "pool": pool, "device": "gpu-0", "adminAccess": admin },
    ] } })
}

fn claims() -> Claims {
    let by_name = json!({
        "devices": { "results": [{ "request": "r", "driver": "gone", "pool": "p", "device": "gpu-7" }] },
        "nodeSelector": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["gpu1"] }] },
        ] },
    });
    let slice = json!({ "spec": { "driver": DRA, "pool": { "name": "gpu1" }, "nodeName": "gpu1" } });
    Claims::Listed {
        claims: vec![
            claim("here", &allocated("gpu1", false)),
            claim("elsewhere", &allocated("gpu2", false)),
            claim("admin", &allocated("gpu1", true)),
            claim("waiting", &Value::Null),
            claim("slice-gone", &by_name),
        ],
        slices: vec![serde_json::from_value(slice).unwrap()],
    }
}

fn no_claims() -> Claims {
    Claims::Listed { claims: vec![], slices: vec![] }
}

fn see(nominated: &[Pod], on_node: &[Pod], claims: &Claims) -> NodeLook {
    let rules = Rules { gpus: &GpuResources::default(), do_not_disrupt: &["keep.me".to_owned()].into() };
    look(&"gpu1".into(), nominated, on_node, claims, &rules)
}

fn gpu(amount: &str) -> Value {
    json!({ "limits": { "nvidia.com/gpu": amount }, "requests": { "nvidia.com/gpu": amount } })
}

#[test]
fn every_place_where_a_gpu_can_be_asked_for_counts() {
    let mig = json!({ "limits": { "nvidia.com/mig-1g.10gb": "2" } });
    let class = json!({ "limits": { "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1" } });
    let init = |policy: Value| json!([{ "name": "i", "resources": gpu("1"), "restartPolicy": policy }]);
    let both = json!([
        { "name": "sidecar", "resources": gpu("1"), "restartPolicy": "Always" },
        { "name": "setup", "resources": gpu("4") },
    ]);
    // (what, spec, GPUs, why)
    for (what, spec, gpus, why) in [
        (
            "container",
            json!({ "containers": [{ "name": "c", "resources": gpu("2") }] }),
            2,
            r#"container "c" asks"#,
        ),
        (
            "two",
            json!({ "containers": [{ "name": "a", "resources": gpu("2") }, { "name": "b", "resources": gpu("1") }] }),
            3,
            "gpu: 1",
        ),
        ("limit only", json!({ "containers": [{ "name": "c", "resources": mig }] }), 2, "mig-1g.10gb: 2"),
        ("class", json!({ "containers": [{ "name": "c", "resources": class }] }), 1, "deviceclass"),
        ("init", json!({ "initContainers": init(Value::Null) }), 1, r#"init container "i""#),
        ("sidecar", json!({ "initContainers": init(json!("Always")) }), 1, r#"init container "i""#),
        ("init beside a sidecar", json!({ "initContainers": both }), 5, "setup"),
        (
            "ephemeral",
            json!({ "ephemeralContainers": [{ "name": "e", "resources": gpu("1") }] }),
            1,
            "ephemeral",
        ),
        ("pod level", json!({ "resources": gpu("8") }), 8, "the pod asks"),
        (
            "unreadable",
            json!({ "containers": [{ "name": "c", "resources": gpu("-1") }] }),
            0,
            r#""-1" is not"#,
        ),
        ("empty", json!({ "containers": [{ "name": "c", "resources": gpu("") }] }), 0, r#""" is not"#),
    ] {
        let look = see(&[], &[pod(&json!({ "spec": spec }))], &no_claims());
        let [Holder::Pod { pod, why: found }] = look.holders.as_slice() else { panic!("{what}: {look:?}") };
        assert_eq!(pod.gpus, gpus, "{what}");
        assert!(found.contains(why), "{what}: {found}");
        assert_eq!(look.others, [], "{what}");
    }
    for spec in [json!({}), json!({ "containers": [{ "name": "c", "resources": gpu("0") }] })] {
        let look = see(&[], &[pod(&json!({ "spec": spec }))], &no_claims());
        assert_eq!((look.holders.len(), look.others.len()), (0, 1), "{spec}");
    }
}

#[test]
fn a_pod_holds_until_its_last_container_has_ended() {
    let spec = json!({ "containers": [{ "name": "main", "resources": gpu("1") }] });
    let running = json!([{ "name": "main", "state": { "running": {} }, "containerID": "c://1" }]);
    let ended =
        json!([{ "name": "main", "state": { "terminated": { "exitCode": 0 } }, "containerID": "c://1" }]);
    let never = json!([{ "name": "main", "state": { "waiting": { "reason": "PodInitializing" } }, "containerID": "" }]);
    let lost = json!([{ "name": "main", "state": { "waiting": {} }, "containerID": "c://1" }]);
    for (phase, statuses, holds) in [
        ("Pending", json!([]), true),
        ("Running", running.clone(), true),
        ("Unknown", running.clone(), true),
        ("", json!([]), true),
        ("Succeeded", running.clone(), true),
        ("Failed", running, true),
        ("Failed", lost, true),
        ("Succeeded", ended.clone(), false),
        ("Failed", ended.clone(), false),
        ("Failed", never, false),
        ("Failed", json!([]), false),
        ("Running", ended, true),
    ] {
        let status = json!({ "phase": phase, "containerStatuses": statuses });
        let look = see(&[], &[pod(&json!({ "spec": spec, "status": status }))], &no_claims());
        assert_eq!(look.holders.len(), usize::from(holds), "{phase} {status}");
        assert_eq!(look.others, [], "{phase}");
    }
    // Finalizers of a finished pod don't hold; an ephemeral container that still runs does.
    let ephemeral = json!([{ "name": "debug", "state": { "running": {} } }]);
    for (statuses, holds) in [(json!([]), false), (ephemeral, true)] {
        let status =
            json!({ "phase": "Succeeded", "containerStatuses": [], "ephemeralContainerStatuses": statuses });
        let over = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": spec, "status": status });
        assert_eq!(see(&[], &[pod(&over)], &no_claims()).holders.len(), usize::from(holds), "{status}");
    }
}

#[test]
fn claims_count_from_both_ends() {
    let spec = |name: &str| json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }] });
    let made =
        |name: &str| json!({ "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": name }] });
    let template = json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "t" }] });
    let extended = json!({ "extendedResourceClaimStatus": { "resourceClaimName": "here" } });
    // (what, spec, status, GPUs where it holds)
    for (what, spec, status, holds) in [
        ("named", spec("here"), json!({}), Some(1)),
        ("from a template", template.clone(), made("here"), Some(1)),
        ("template, not made", template.clone(), json!({}), Some(0)),
        ("template, none needed", template, json!({ "resourceClaimStatuses": [{ "name": "gpu" }] }), None),
        ("of no slice of ours, but used here", spec("elsewhere"), json!({}), Some(1)),
        ("extended", json!({}), extended, Some(0)),
        ("missing", spec("nowhere"), json!({}), Some(0)),
        ("not allocated", spec("waiting"), json!({}), None),
        ("for administration", spec("admin"), json!({}), None),
    ] {
        let look = see(&[], &[pod(&json!({ "spec": spec, "status": status }))], &claims());
        let held = look.holders.iter().find_map(|holder| match holder {
            Holder::Pod { pod, .. } => Some(pod.gpus),
            Holder::Claim { .. } => None,
        });
        assert_eq!(held, holds, "{what}: {look:?}");
        assert_eq!(look.others.len(), usize::from(holds.is_none()), "{what}");
        let not_served = see(&[], &[pod(&json!({ "spec": spec, "status": status }))], &Claims::NotServed);
        assert_eq!(not_served.holders.len(), usize::from(what != "template, none needed"), "{what}");
    }
    // From the claims' side: nobody uses them, they hold all the same; another node's and administration's do not.
    let names = |look: &NodeLook| -> Vec<String> {
        let claims = look.holders.iter().filter_map(|holder| match holder {
            Holder::Claim { claim, .. } => Some(claim.clone()),
            Holder::Pod { .. } => None,
        });
        claims.collect()
    };
    assert_eq!(names(&see(&[], &[], &claims())), ["ns/here", "ns/slice-gone"]);
    // A holder is named once; a finished pod frees nothing.
    let user = pod(&json!({ "spec": spec("here") }));
    assert_eq!(names(&see(&[], &[user], &claims())), ["ns/slice-gone"]);
    let done = json!({ "spec": spec("here"), "status": { "phase": "Succeeded", "containerStatuses": [] } });
    assert_eq!(names(&see(&[], &[pod(&done)], &claims())), ["ns/here", "ns/slice-gone"]);
}

#[test]
fn how_a_holder_may_be_moved() {
    let daemon = json!({ "ownerReferences": [{ "kind": "DaemonSet", "controller": true }] });
    let other_owner =
        json!({ "ownerReferences": [{ "kind": "ReplicaSet", "controller": true }, { "kind": "DaemonSet" }] });
    let ending = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { "keep.me": "true" } });
    for (metadata, expected) in [
        (json!({}), Eviction::Allowed),
        (other_owner, Eviction::Allowed),
        (
            json!({ "annotations": { "keep.me": "true" } }),
            Eviction::Protected { by: "annotation keep.me".into() },
        ),
        (
            json!({ "annotations": { "keep.me": "" } }),
            Eviction::Protected { by: "annotation keep.me".into() },
        ),
        (json!({ "annotations": { "keep.me": "false" } }), Eviction::Allowed),
        (daemon, Eviction::Pinned),
        (json!({ "annotations": { MIRROR: "x" } }), Eviction::Pinned),
        (ending, Eviction::Terminating),
    ] {
        let spec = json!({ "priority": 7, "containers": [{ "name": "main", "resources": gpu("1") }] });
        let look = see(&[], &[pod(&json!({ "metadata": metadata, "spec": spec }))], &no_claims());
        let [Holder::Pod { pod, .. }] = look.holders.as_slice() else { panic!("{look:?}") };
        assert_eq!((&pod.eviction, pod.priority), (&expected, 7));
        // Without a GPU, a node's own daemons surprise nobody; everyone else does.
        let look = see(&[], &[super::tests::pod(&json!({ "metadata": metadata }))], &no_claims());
        let others: Vec<_> = look.others.iter().map(|pod| &pod.eviction).collect();
        assert_eq!(others, if expected == Eviction::Pinned { vec![] } else { vec![&expected] });
    }
}

#[test]
fn nominated_pods_hold_and_are_named_once() {
    let spec = json!({ "containers": [{ "name": "main", "resources": gpu("1") }] });
    let waiting =
        pod(&json!({ "spec": spec, "status": { "phase": "Pending", "nominatedNodeName": "gpu1" } }));
    let look = see(std::slice::from_ref(&waiting), &[], &no_claims());
    assert!(
        matches!(look.holders.as_slice(), [Holder::Pod { pod, .. }] if pod.eviction == Eviction::Nominated)
    );
    // It was bound between the two lists.
    let look = see(std::slice::from_ref(&waiting), std::slice::from_ref(&waiting), &no_claims());
    assert!(
        matches!(look.holders.as_slice(), [Holder::Pod { pod, .. }] if pod.eviction == Eviction::Allowed)
    );
    // One without GPUs takes none.
    assert!(see(&[pod(&json!({ "status": { "phase": "Pending" } }))], &[], &no_claims()).is_empty());
}

#[test]
fn only_a_lasting_toleration_of_our_taint_keeps_a_pod_from_being_evicted() {
    for (toleration, stays) in [
        (json!({ "operator": "Exists" }), true),
        (json!({ "operator": "Exists", "effect": "NoExecute" }), true),
        (json!({ "key": TAINT_SLURM, "operator": "Exists" }), true),
        (json!({ "key": TAINT_SLURM }), true),
        (json!({ "key": TAINT_SLURM, "operator": "Equal", "value": "" }), true),
        (json!({ "key": TAINT_SLURM, "value": "x" }), false),
        (json!({ "key": TAINT_SLURM, "operator": "Exists", "effect": "NoSchedule" }), false),
        (json!({ "operator": "Exists", "tolerationSeconds": 300 }), false),
        (
            json!({ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" }),
            false,
        ),
        (json!({}), false),
    ] {
        let look = see(&[], &[pod(&json!({ "spec": { "tolerations": [toleration] } }))], &no_claims());
        assert_eq!(look.others.is_empty(), stays, "{toleration}");
    }
}

#[test]
fn a_pod_tells_how_long_it_may_take_to_end_and_that_it_has() {
    let gpus = json!([{ "name": "main", "resources": gpu("1") }]);
    for (metadata, grace, expected) in [
        (json!({}), json!(null), (30, false)),
        (json!({}), json!(600), (600, false)),
        (json!({}), json!(0), (1, false)),
        (json!({}), json!(-5), (1, false)),
        (json!({}), json!(1_000_000_000_000_i64), (u32::MAX, false)),
        (
            json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 90 }),
            json!(600),
            (90, true),
        ),
        (json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), json!(600), (600, true)),
    ] {
        let spec = json!({ "terminationGracePeriodSeconds": grace, "containers": gpus });
        let look = see(&[], &[pod(&json!({ "metadata": metadata, "spec": spec }))], &no_claims());
        let [Holder::Pod { pod, .. }] = look.holders.as_slice() else { panic!("{look:?}") };
        assert_eq!((pod.grace_s, pod.told_to_end), expected, "{metadata} {grace}");
        assert!(look.ended.is_empty());
    }
    let state = |state: Value| json!({ "phase": "Failed", "containerStatuses": [{ "name": "main", "state": state }] });
    for (state, ended) in [
        (state(json!({ "terminated": { "exitCode": 0 } })), true),
        (state(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })), false),
    ] {
        let pod = pod(&json!({ "spec": { "containers": gpus }, "status": state }));
        let look = see(&[], std::slice::from_ref(&pod), &no_claims());
        assert_eq!(look.ended.contains(&pod.metadata.uid), ended, "{look:?}");
        assert_eq!(look.holders.is_empty(), ended);
    }
}
