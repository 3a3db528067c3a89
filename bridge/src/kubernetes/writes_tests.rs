//! Writes against a server that answers by script.

use std::collections::BTreeMap;

use http::Method;

use super::super::script::{answer, server};
use super::*;
use crate::certainty::Certainty;

fn status(reason: &str, message: &str, cause: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": message,
        "details": { "causes": [{ "reason": cause, "message": "the cause" }] } })
}

fn pod() -> PodRef {
    PodRef { namespace: "ns".into(), name: "p".into(), uid: "u1".into() }
}

#[tokio::test]
async fn an_eviction_names_the_uid_and_each_answer_means_one_thing() {
    let budget = status("TooManyRequests", "Cannot evict pod", "DisruptionBudget");
    let two =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    for (code, body, expected) in [
        (201, json!({}), "Ok(Done)"),
        (404, status("NotFound", "pods p not found", ""), "Ok(Done)"),
        (404, json!("a proxy's page"), "Err(NotFound"),
        (429, budget, "Ok(Budget { why: \"Cannot evict pod the cause\" })"),
        (429, status("TooManyRequests", "slow down", ""), "Err(Busy"),
        (403, status("Forbidden", "namespace is terminating", "NamespaceTerminating"), "Ok(Budget"),
        (403, status("Forbidden", "no", ""), "Err(Forbidden"),
        (401, status("Unauthorized", "no", ""), "Err(Unauthorized"),
        (500, status("InternalError", two, ""), "Ok(Refused"),
        (500, status("InternalError", "etcd", ""), "Err(Unanswered"),
        (503, json!(null), "Err(Unanswered"),
        (422, status("Invalid", "x", ""), "Err(Odd"),
    ] {
        let (http, mut server) = server();
        let pod = pod();
        let (found, sent) = tokio::join!(evict(&http, &pod), answer(&mut server, code, body));
        let found = format!("{found:?}");
        assert!(found.starts_with(expected), "{code}: {found}");
        let (method, path, body) = sent;
        assert_eq!((method, path.as_str()), (Method::POST, "/api/v1/namespaces/ns/pods/p/eviction?"));
        assert_eq!(body["deleteOptions"], json!({ "preconditions": { "uid": "u1" } }));
        drop(http);
        assert!(server.next_request().await.is_none(), "{code}: one try only");
    }
}

#[tokio::test]
async fn a_conflict_at_an_eviction_is_settled_by_looking_at_the_uid() {
    for (code, body, expected) in [
        (200, json!({ "metadata": { "uid": "u2" } }), "Ok(Done)"),
        (404, status("NotFound", "", ""), "Ok(Done)"),
        (200, json!({ "metadata": { "uid": "u1" } }), "Err(Conflict"),
        (503, json!(null), "Err(Unanswered"),
    ] {
        let (http, mut server) = server();
        let pod = pod();
        let script = async {
            answer(&mut server, 409, status("Conflict", "Precondition failed", "")).await;
            answer(&mut server, code, body).await.0
        };
        let (found, method) = tokio::join!(evict(&http, &pod), script);
        assert!(format!("{found:?}").starts_with(expected), "{code}: {found:?}");
        assert_eq!(method, Method::GET);
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_in_time_leaves_open_whether_it_was_done() {
    let (http, _server) = server();
    let error = evict(&http, &pod()).await.unwrap_err();
    assert_eq!(error.certainty(), Certainty::MayBeDone);
    assert!(error.to_string().contains("no answer within 5s"), "{error}");
}

#[tokio::test]
async fn the_gate_is_read_changed_and_replaced_as_it_was_read() {
    let node = KubeNodeName::from("gpu1");
    let found = |closed: Value| json!({ "metadata": { "resourceVersion": "7", "labels": { "a": "b" } }, "spec": { "closed": closed } });
    // Once refused because others were faster, it reads again.
    let (http, mut server) = server();
    let script = async {
        answer(&mut server, 200, found(json!(["gpu9"]))).await;
        answer(&mut server, 409, status("Conflict", "", "")).await;
        answer(&mut server, 200, found(json!(["gpu8"]))).await;
        answer(&mut server, 200, json!({})).await
    };
    let (done, (method, path, body)) = tokio::join!(gate(&http, &node, Listing::On), script);
    assert_eq!(done.unwrap(), Acted::Done);
    assert_eq!((method, path.as_str()), (Method::PUT, "/apis/gpu-bridge.io/v1/gates/gate?"));
    assert_eq!(body, found(json!(["gpu1", "gpu8"])));
    // Nothing to do, nothing sent.
    for (closed, listing) in [(json!(["gpu1"]), Listing::On), (json!([]), Listing::Off)] {
        let (http, mut server) = self::server();
        let (done, _) = tokio::join!(gate(&http, &node, listing), answer(&mut server, 200, found(closed)));
        assert_eq!(done.unwrap(), Acted::Done);
    }
    // One that is gone is not made here, where nobody knows its list.
    for listing in [Listing::On, Listing::Off] {
        let (http, mut server) = self::server();
        let gone = answer(&mut server, 404, json!("404 page not found"));
        let (done, _) = tokio::join!(gate(&http, &node, listing), gone);
        assert!(matches!(&done, Err(error) if error.certainty() == Certainty::NotDone), "{done:?}");
        assert!(matches!(done, Err(Error::NotFound { .. })), "{done:?}");
    }
    // What we can't read we don't write over.
    for odd in [json!({ "spec": {} }), json!({ "spec": { "closed": [1] } }), json!([])] {
        let (http, mut server) = self::server();
        let (done, _) = tokio::join!(gate(&http, &node, Listing::On), answer(&mut server, 200, odd));
        assert!(matches!(done, Err(Error::Odd { .. })), "{done:?}");
    }
}

fn marks(taints: &[(&str, &str, Effect)]) -> Marks {
    let taint = |(key, value, effect): &(&str, &str, Effect)| Taint {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        effect: effect.clone(),
    };
    Marks {
        node: "gpu1".into(),
        uid: "u1".to_owned(),
        taints: taints.iter().map(taint).collect(),
        taint_keys: ["ours", "workload"].map(str::to_owned).into(),
        labels: BTreeMap::new(),
        annotation: None,
    }
}

#[test]
fn others_taints_stay_as_they_are() {
    let foreign = json!({ "key": "theirs", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" });
    let ours = json!({ "key": "ours", "effect": "NoSchedule" });
    let pool = json!({ "key": "workload", "effect": "NoSchedule", "value": "online-infer" });
    let timed = json!({ "key": "ours", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" });
    let want = [("ours", "", Effect::NoSchedule)];
    for (before, wanted, after) in [
        (vec![], &want[..], vec![ours.clone()]),
        (vec![foreign.clone()], &want[..], vec![foreign.clone(), ours.clone()]),
        (vec![timed.clone(), foreign.clone()], &want[..], vec![timed.clone(), foreign.clone()]),
        (vec![timed, foreign.clone()], &[], vec![foreign.clone()]),
        (vec![pool.clone(), foreign.clone()], &want[..], vec![foreign.clone(), ours]),
        (
            vec![foreign.clone()],
            &[("workload", "online-infer", Effect::NoSchedule)],
            vec![foreign.clone(), pool.clone()],
        ),
        (
            vec![json!({ "key": "workload", "effect": "NoSchedule", "value": "x" }), foreign.clone()],
            &[("workload", "online-infer", Effect::NoSchedule)],
            vec![foreign, pool],
        ),
    ] {
        assert_eq!(taints(&before, &marks(wanted)), after, "{before:?}");
    }
}

#[tokio::test]
async fn marks_are_one_patch_with_the_version_that_they_were_made_from() {
    let foreign = json!({ "key": "theirs", "effect": "NoSchedule" });
    let node = |version: &str, taints: Value| {
        json!({ "metadata": { "uid": "u1", "resourceVersion": version, "labels": { "keep": "1", "go": "x", "same": "y" },
            "annotations": { ANNOTATION_HANDOVER: "old" } }, "spec": { "taints": taints } })
    };
    let mut marks = marks(&[("ours", "", Effect::NoExecute)]);
    marks.labels = [("go", None), ("gone", None), ("same", Some("y")), ("new", Some("z"))]
        .map(|(key, value)| (key.to_owned(), value.map(str::to_owned)))
        .into();
    let (http, mut server) = server();
    let script = async {
        answer(&mut server, 200, node("7", json!([]))).await;
        answer(&mut server, 409, status("Conflict", "", "")).await;
        answer(&mut server, 200, node("8", json!([foreign]))).await;
        answer(&mut server, 200, json!({})).await
    };
    let (done, (method, path, body)) = tokio::join!(mark(&http, &marks), script);
    assert_eq!(done.unwrap(), Acted::Done);
    assert_eq!((method, path.as_str()), (Method::PATCH, "/api/v1/nodes/gpu1?"));
    assert_eq!(
        body,
        json!({
            "metadata": { "resourceVersion": "8", "labels": { "go": null, "new": "z" }, "annotations": { ANNOTATION_HANDOVER: null } },
            "spec": { "taints": [{ "key": "theirs", "effect": "NoSchedule" }, { "key": "ours", "effect": "NoExecute" }] },
        })
    );
    // Others are faster every time: after some tries it is theirs to decide again.
    let (http, mut server) = self::server();
    let script = async {
        for _ in 0..TRIES {
            answer(&mut server, 200, node("7", json!([]))).await;
            answer(&mut server, 409, status("Conflict", "", "")).await;
        }
    };
    let (done, ()) = tokio::join!(mark(&http, &marks), script);
    assert!(
        matches!(&done, Err(error @ Error::Conflict { .. }) if error.certainty() == Certainty::NotDone),
        "{done:?}"
    );
    // Another Node under the same name, and none at all.
    let mut other = node("7", json!([]));
    other["metadata"]["uid"] = json!("u2");
    for (code, body) in [(200, other), (404, status("NotFound", "", ""))] {
        let (http, mut server) = self::server();
        let (done, _) = tokio::join!(mark(&http, &marks), answer(&mut server, code, body));
        assert!(matches!(done, Err(Error::NotFound { .. })), "{done:?}");
    }
    // It is so already: nothing is sent.
    let (http, mut server) = self::server();
    let mut as_asked = node("7", json!([{ "key": "ours", "effect": "NoExecute" }]));
    as_asked["metadata"]["labels"] = json!({ "same": "y", "new": "z" });
    as_asked["metadata"]["annotations"] = json!({});
    let (done, _) = tokio::join!(mark(&http, &marks), answer(&mut server, 200, as_asked));
    assert_eq!(done.unwrap(), Acted::Done);
}
