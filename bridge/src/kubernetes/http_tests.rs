//! Lists against a server that answers by script.

use serde_json::{Value, json};

use super::super::script::{answer, server};
use super::super::wire::Lease;
use super::*;

fn page(names: &[&str], next: &str) -> Value {
    let items: Vec<Value> = names.iter().map(|name| json!({ "metadata": { "name": name } })).collect();
    json!({ "kind": "LeaseList", "metadata": { "continue": next }, "items": items })
}

async fn list(http: &Http) -> Result<Vec<String>, Error> {
    let leases = http.list::<Lease>("leases", "/leases", Some("a=b")).await?;
    Ok(leases.into_iter().map(|lease| lease.metadata.name).collect())
}

#[tokio::test]
async fn a_list_is_one_snapshot_page_by_page() {
    let (http, mut server) = server();
    let script = async {
        let mut paths = vec![answer(&mut server, 200, page(&["a", "b"], "next")).await.1];
        // The snapshot was compacted away: what was read of it is worth nothing.
        paths.push(answer(&mut server, 410, json!({ "reason": "Expired" })).await.1);
        paths.push(answer(&mut server, 200, page(&["b"], "other")).await.1);
        paths.push(answer(&mut server, 200, page(&["c"], "")).await.1);
        paths
    };
    let (found, paths) = tokio::join!(list(&http), script);
    assert_eq!(found.unwrap(), ["b", "c"]);
    let first = "/leases?&fieldSelector=a%3Db&limit=500";
    assert_eq!(paths, [first, &format!("{first}&continue=next"), first, &format!("{first}&continue=other")]);
}

#[tokio::test]
async fn the_revision_of_a_list_is_read_where_it_is_a_number() {
    for (version, expected) in [(json!("4711"), Some(4_711)), (json!("v1-a"), None), (json!(null), None)] {
        let (http, mut server) = server();
        let body = json!({ "kind": "LeaseList", "metadata": { "resourceVersion": version }, "items": [] });
        let list = http.list_at::<Lease>("leases", "/leases", None);
        let (found, _) = tokio::join!(list, answer(&mut server, 200, body));
        assert_eq!(found.unwrap().1, expected);
    }
}

#[tokio::test]
async fn a_list_that_never_holds_still_is_an_error() {
    let (http, mut server) = server();
    let script = async {
        for _ in 0..=RESTARTS {
            answer(&mut server, 410, json!({ "message": "too old" })).await;
        }
    };
    let (found, ()) = tokio::join!(list(&http), script);
    assert!(matches!(&found, Err(Error::Odd { why, .. }) if why.contains("too old")), "{found:?}");
}

#[tokio::test]
async fn what_is_not_the_asked_list_is_never_an_empty_one() {
    for body in [
        json!({}),
        json!(null),
        json!([]),
        json!({ "kind": "LeaseList", "metadata": {} }),
        json!({ "kind": "LeaseList", "metadata": {}, "items": null }),
        json!({ "kind": "PodList", "metadata": {}, "items": [] }),
        json!({ "kind": "LeaseList", "metadata": {}, "items": [{}] }),
    ] {
        let (http, mut server) = server();
        let (found, _) = tokio::join!(list(&http), answer(&mut server, 200, body.clone()));
        assert!(matches!(found, Err(Error::Odd { .. })), "{body}: {found:?}");
    }
    for (code, expected) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (429, "Busy"),
        (302, "Unanswered"),
        (500, "Unanswered"),
    ] {
        let (http, mut server) = server();
        let (found, _) = tokio::join!(list(&http), answer(&mut server, code, json!("x")));
        assert!(format!("{:?}", found.unwrap_err()).starts_with(expected), "{code}");
    }
}
