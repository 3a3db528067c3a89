//! The REST interface against what a real 24.11 answered (`fixtures/`): same keys, same types, same
//! statuses and numbers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may")]

use std::path::Path;

use http::{Request, Response};
use hyper::body::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slurm_mock::{
    Cluster,
    model::{JobSpec, NodeAction, NodeUpdate, PartitionState, ReservationFlag, ReservationRequest},
    rest::{Api, Auth, Peer},
};

const START: i64 = 1_796_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

fn s(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

struct World {
    cluster: Cluster,
    api: Api,
}

fn world() -> World {
    let mut auth = Auth::default();
    auth.tokens.insert("alice-token".to_owned(), "alice".to_owned());
    World { cluster: Cluster::uniform(4, 4, at(0)), api: Api::new(auth).unwrap() }
}

impl World {
    fn raw(&mut self, request: &Request<Bytes>) -> Response<Bytes> {
        self.api.respond(&mut self.cluster, request, Peer::Tcp)
    }

    fn send(&mut self, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("X-SLURM-USER-TOKEN", token);
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let response = self.raw(&request.body(Bytes::from(body.to_owned())).unwrap());
        let status = response.status().as_u16();
        let closes = response.headers().contains_key("connection");
        assert_eq!(closes, !response.status().is_success(), "every error closes the connection");
        (status, serde_json::from_slice(response.body()).unwrap_or(Value::Null))
    }

    fn get(&mut self, path: &str) -> (u16, Value) {
        self.send("mock-token", "GET", &format!("/slurm/v0.0.42/{path}"), "")
    }

    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.send("mock-token", "POST", &format!("/slurm/v0.0.42/{path}"), &body.to_string())
    }

    fn node(&mut self, name: &str) -> Value {
        let (_, body) = self.get("nodes");
        body["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).unwrap().clone()
    }
}

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Where two documents differ in keys or types.
fn differences(real: &Value, ours: &Value, at: &str, found: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            for key in real.keys().chain(ours.keys()) {
                match (real.get(key), ours.get(key)) {
                    (Some(r), Some(o)) => differences(r, o, &format!("{at}.{key}"), found),
                    (Some(_), None) => found.push(format!("{at}.{key} is missing")),
                    (None, _) => found.push(format!("{at}.{key} is not real")),
                }
            }
        }
        (Value::Array(real), Value::Array(ours)) => {
            if let (Some(r), Some(o)) = (real.first(), ours.first()) {
                differences(r, o, &format!("{at}[0]"), found);
            }
        }
        (Value::Null, Value::Null)
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_)) => {}
        (real, ours) => found.push(format!("{at}: {real} became {ours}")),
    }
}

fn assert_same_shape(name: &str, ours: &Value) {
    let mut found = Vec::new();
    differences(&fixture(name), ours, name, &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

fn busy() -> World {
    let mut w = world();
    w.cluster.submit(JobSpec::new("alice", 1, 2, s(600)).limit(s(1800)).on(&["gpu1"])).unwrap();
    w.cluster.submit(JobSpec { exclusive: true, ..JobSpec::new("bob", 1, 4, s(600)).on(&["gpu2"]) }).unwrap();
    w.cluster.submit(JobSpec::new("alice", 1, 4, s(600)).on(&["gpu2"])).unwrap();
    let request = ReservationRequest {
        name: Some("maint1".to_owned()),
        start: Some(at(7200)),
        duration: s(3600),
        nodes: vec!["gpu2".into()],
        users: vec!["root".to_owned(), "alice".to_owned()],
        flags: vec![ReservationFlag::Maint, ReservationFlag::IgnoreJobs],
    };
    w.cluster.create_reservation(request, "root").unwrap();
    w
}

#[test]
fn reads_have_the_shape_of_the_real_ones() {
    let mut w = busy();
    for (path, name) in [
        ("ping", "ping"),
        ("diag", "diag"),
        ("nodes", "nodes"),
        ("node/gpu1", "nodes"),
        ("job/1", "job-run_gpu1"),
        ("job/3", "job-pend_res"),
        ("jobs/state", "jobs-state"),
        ("reservations", "reservations"),
        ("reservation/maint1", "reservations"),
        ("partitions", "partitions"),
        ("partition/main/", "partitions"),
    ] {
        let (status, body) = w.get(path);
        assert_eq!(status, 200, "{path}");
        assert_same_shape(name, &body);
    }
    let update = NodeUpdate { action: Some(NodeAction::Drain), reason: Some("x".to_owned()) };
    w.cluster.update_node(&"gpu1".into(), &update, "root").unwrap();
    assert_same_shape("nodes", &w.get("nodes").1);
}

#[test]
fn values_are_written_as_the_real_ones() {
    let mut w = busy();
    let node = w.node("gpu1");
    assert_eq!(node["state"], json!(["MIXED"]));
    assert_eq!(node["gres"], "gpu:a100:4(S:0-1)");
    assert_eq!(node["gres_used"], "gpu:a100:2(IDX:0-1)");
    assert_eq!(node["tres"], "cpu=16,mem=62.50G,billing=16,gres/gpu=4,gres/gpu:a100=4");
    assert_eq!(node["tres_used"], "cpu=2,mem=1G,gres/gpu=2,gres/gpu:a100=2");
    assert_eq!(w.node("gpu2")["state"], json!(["ALLOCATED", "PLANNED"]));
    let (_, running) = w.get("job/1");
    let job = &running["jobs"][0];
    assert_eq!(job["tres_req_str"], "cpu=2,mem=1G,node=1,billing=2,gres/gpu=2");
    assert_eq!(job["tres_alloc_str"], "cpu=2,mem=1G,node=1,billing=2,gres/gpu=2,gres/gpu:a100=2");
    assert_eq!(job["gres_detail"], json!(["gpu:a100:2(IDX:0-1)"]));
    assert_eq!(job["end_time"]["number"], START + 1800);
    assert_eq!(job["time_limit"], json!({"set": true, "infinite": false, "number": 30}));
    let (_, reservations) = w.get("reservations");
    let real = fixture("reservations");
    for key in ["flags", "users", "node_list", "core_count", "tres", "name"] {
        assert_eq!(reservations["reservations"][0][key], real["reservations"][0][key], "{key}");
    }
}

#[test]
fn the_older_version_has_its_own_job_fields() {
    let mut w = busy();
    let (_, job) = w.send("mock-token", "GET", "/slurm/v0.0.41/job/1", "");
    let job = &job["jobs"][0];
    assert!(job.get("required_switches").is_none() && job.get("oversubscribe").is_some());
    let (_, ping) = w.send("mock-token", "GET", "/slurm/v0.0.41/ping", "");
    assert!(ping["pings"][0].get("responding").is_none());
}

#[test]
fn errors_are_the_real_ones() {
    let mut w = busy();
    let drain = json!({"state": ["DRAIN"], "reason": "x"});
    for (token, method, path, body, status, real) in [
        ("mock-token", "GET", "node/nosuch", Value::Null, 200, "node-unknown"),
        ("mock-token", "GET", "node/gpu1%2Cgpu2", Value::Null, 200, "node-unknown"),
        ("mock-token", "GET", "job/999999", Value::Null, 404, "job-unknown"),
        ("mock-token", "GET", "reservation/nosuch", Value::Null, 422, "reservation-unknown"),
        ("garbage", "GET", "nodes", Value::Null, 511, "err-bad-token-nodes"),
        ("alice-token", "POST", "node/gpu1", drain, 500, "nodeupd-alice"),
        ("mock-token", "POST", "node/gpu3", json!({"state": ["DRAIN", "FOO"]}), 500, "nodeupd-half"),
        ("alice-token", "DELETE", "job/1", Value::Null, 200, "kill-own"),
        ("alice-token", "DELETE", "job/1", Value::Null, 200, "kill-again"),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (got, answer) = w.send(token, method, &format!("/slurm/v0.0.42/{path}"), &body);
        assert_eq!(got, status, "{method} {path}");
        assert_same_shape(real, &answer);
        let wanted = fixture(real);
        for field in ["error_number", "error", "source"] {
            assert_eq!(answer["errors"][0][field], wanted["errors"][0][field], "{method} {path}");
        }
        assert_eq!(answer["status"][0]["error"], wanted["status"][0]["error"], "{method} {path}");
    }
    assert_eq!(w.node("gpu3")["state"], json!(["IDLE", "DRAIN"]), "500 does not mean: not applied");
}

#[test]
fn node_updates_by_rest() {
    for (body, status, number, state) in [
        (json!({"state": ["DRAIN"], "reason": "r"}), 200, 0, json!(["IDLE", "DRAIN"])),
        (json!({"state": "drain", "reason": "r"}), 200, 0, json!(["IDLE", "DRAIN"])),
        (json!({"state": ["RESUME"]}), 500, 2028, json!(["IDLE"])),
        (json!({"state": ["IDLE", "DRAIN"], "reason": "r"}), 500, 2028, json!(["IDLE"])),
        (json!({"state": ["FOO"]}), 500, 9207, json!(["IDLE"])),
        (json!({"state": ["FUTURE"]}), 500, 2028, json!(["IDLE"])),
        (json!({}), 200, 0, json!(["IDLE"])),
        (json!([1, 2]), 500, 9209, json!(["IDLE"])),
    ] {
        let mut w = world();
        let (got, answer) = w.post("node/gpu1", &body);
        assert_eq!(got, status, "{body}");
        assert_eq!(answer["errors"][0]["error_number"].as_i64().unwrap_or(0), number, "{body}");
        assert_eq!(w.node("gpu1")["state"], state, "{body}");
    }
    let mut w = world();
    for path in ["node/gpu%5B1-2%5D", "node/gpu1%2Cgpu2"] {
        assert_eq!(w.post(path, &json!({"state": ["DRAIN"], "reason": "several"})).0, 200);
        assert_eq!(w.node("gpu2")["reason"], "several");
        assert_eq!(w.post(path, &json!({"state": ["UNDRAIN"]})).0, 200);
        assert_eq!(w.node("gpu2")["state"], json!(["IDLE", "NOT_RESPONDING"]));
        let later = w.cluster.now().checked_add(s(2)).unwrap();
        w.cluster.advance_to(later);
        assert_eq!(w.node("gpu2")["state"], json!(["IDLE"]));
    }
    let (status, answer) =
        w.post("nodes/", &json!({"name": "gpu1,gpu2", "state": ["DRAIN"], "reason": "many"}));
    assert_eq!((status, answer["warnings"][0]["source"].as_str()), (200, Some("#/name/")));
    assert_eq!(w.node("gpu1")["reason_set_by_user"], "slurm");
    assert_eq!(w.post("node/nosuch", &json!({"state": ["DRAIN"]})).1["errors"][0]["error_number"], 2018);
    let (_, answer) = w.post("node/gpu1", &json!({"statex": ["DRAIN"]}));
    let text = "Ignoring unknown field \"statex\" of type list in DATA_PARSER_UPDATE_NODE_MSG";
    assert_eq!(answer["warnings"][0]["description"], text);
}

#[test]
fn requests_that_never_reach_slurmctld() {
    let json = "application/json";
    for (method, path, header, body, status) in [
        ("GET", "/slurm/v0.0.42/ping", ("x-none", "1"), "", 401),
        ("GET", "/slurm/v0.0.42/nosuch", ("x-slurm-user-token", "mock-token"), "", 404),
        ("GET", "/slurm/v0.0.44/nodes", ("x-slurm-user-token", "mock-token"), "", 404),
        ("PUT", "/slurm/v0.0.42/nodes", ("x-slurm-user-token", "mock-token"), "", 404),
        ("GET", "/slurm/v0.0.42/nodes", ("accept", "text/html"), "", 415),
        ("GET", "/slurm/v0.0.42/nodes", ("authorization", "Bearer mock-token"), "", 200),
        ("GET", "/slurm/v0.0.42/job/abc", ("authorization", "Bearer mock-token"), "", 422),
    ] {
        let request = Request::builder().method(method).uri(path).header(header.0, header.1);
        let request = request.body(Bytes::from_static(body.as_bytes())).unwrap();
        assert_eq!(world().raw(&request).status().as_u16(), status, "{method} {path} {header:?}");
    }
    for (kind, body, status) in [
        (Some(json), "{", 400),
        (Some("application/json; charset=utf-8"), "{}", 400),
        (None, "{}", 400),
        (Some(json), "{}", 200),
    ] {
        let mut request =
            Request::post("/slurm/v0.0.42/node/gpu1").header("x-slurm-user-token", "mock-token");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let request = request.body(Bytes::from_static(body.as_bytes())).unwrap();
        assert_eq!(world().raw(&request).status().as_u16(), status, "{kind:?} {body}");
    }
}

#[test]
fn a_socket_needs_no_token_and_slurm_acts_for_others() {
    let mut w = world();
    let drain = json!({"state": ["DRAIN"], "reason": "x"}).to_string();
    let post = |w: &mut World, peer, headers: &[(&str, &str)]| {
        let mut request =
            Request::post("/slurm/v0.0.42/node/gpu1").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::from(drain.clone())).unwrap();
        w.api.respond(&mut w.cluster, &request, peer).status().as_u16()
    };
    assert_eq!(post(&mut w, Peer::Socket, &[]), 200);
    let token = ("x-slurm-user-token", "mock-token");
    assert_eq!(post(&mut w, Peer::Tcp, &[token, ("x-slurm-user-name", "alice")]), 500);
    assert_eq!(post(&mut w, Peer::Tcp, &[token, ("x-slurm-user-name", "root")]), 200);
    let alice = ("x-slurm-user-token", "alice-token");
    assert_eq!(post(&mut w, Peer::Tcp, &[alice, ("x-slurm-user-name", "root")]), 511);
}

#[test]
fn a_bad_token_and_a_dead_controller_still_ping_with_200() {
    let mut w = world();
    let (status, body) = w.send("garbage", "GET", "/slurm/v0.0.42/ping", "");
    assert_eq!((status, &body["pings"][0]["pinged"]), (200, &json!("DOWN")));
    w.cluster.stop_controller();
    let (status, body) = w.get("ping");
    assert_eq!((status, &body["pings"][0]["pinged"]), (200, &json!("DOWN")));
    let (status, body) = w.get("nodes");
    assert_eq!((status, &body["errors"][0]["error_number"]), (502, &json!(1800)));
}

#[test]
fn a_single_node_is_stale_and_the_list_is_not() {
    let mut w = world();
    w.get("nodes");
    w.cluster.submit(JobSpec::new("alice", 1, 2, s(600)).on(&["gpu1"])).unwrap();
    let (_, stale) = w.get("node/gpu1");
    assert_eq!(stale["nodes"][0]["state"], json!(["IDLE"]));
    assert_eq!(stale["nodes"][0]["alloc_cpus"], 0);
    assert_eq!(stale["nodes"][0]["gres_used"], "gpu:a100:2(IDX:0-1)", "gres_used is fresh");
    assert_eq!(w.node("gpu1")["state"], json!(["MIXED"]));
    w.cluster.cancel(slurm_mock::model::JobId(1), "root").unwrap();
    w.cluster.advance_to(at(10));
    assert_eq!(w.get("node/gpu1").1["nodes"][0]["state"], json!(["MIXED"]));
    w.api.stale_single_node = false;
    assert_eq!(w.get("node/gpu1").1["nodes"][0]["state"], json!(["IDLE"]));
}

#[test]
fn update_time_has_its_traps() {
    let mut w = world();
    w.cluster.advance_to(at(100));
    assert_eq!(w.get(&format!("nodes?update_time={}", START + 50)).0, 304);
    assert_eq!(w.get(&format!("nodes?update_time={START}")).0, 200);
    w.post("node/gpu1", &json!({"state": ["DRAIN"], "reason": "x"}));
    let (status, body) = w.get(&format!("nodes?update_time={}", START + 50));
    assert_eq!(status, 500, "nodes changed, partitions did not");
    assert_same_shape("nodes-ut-changed-one", &body);
    w.cluster.set_partition_state("main", PartitionState::Down).unwrap();
    assert_eq!(w.get(&format!("nodes?update_time={}", START + 50)).0, 200);
    assert_eq!(w.get("nodes?update_time=abc").0, 500);
    let (status, body) = w.get(&format!("jobs?update_time={}", START + 50));
    assert_eq!((status, &body["last_update"]["number"]), (200, &json!(0)));
    assert_same_shape("jobs-ut-future", &body);
    let older = |epoch: &str| format!("/slurm/v0.0.41/nodes?update_time={epoch}");
    assert_eq!(w.send("mock-token", "GET", &older(&format!("uts{}", START + 200)), "").0, 304);
    assert_eq!(w.send("mock-token", "GET", &older(&format!("{}", START + 200)), "").0, 500);
}

#[test]
fn jobs_are_submitted_and_cancelled() {
    let mut w = world();
    let job = json!({"name": "n", "environment": ["PATH=/bin"], "time_limit": 10, "tres_per_node": "gres/gpu:a100:1"});
    let (status, body) = w.post("job/submit", &json!({"script": "#!/bin/sh\nsleep 90\n", "job": job}));
    assert_eq!((status, &body["job_id"]), (200, &json!(1)));
    assert_same_shape("submit-envarr-tpn", &body);
    w.cluster.advance_to(at(89));
    assert_eq!(w.get("job/1").1["jobs"][0]["job_state"], json!(["RUNNING"]));
    w.cluster.advance_to(at(90));
    assert_eq!(w.get("job/1").1["jobs"][0]["job_state"], json!(["COMPLETED", "COMPLETING"]));
    for (body, status, number) in [
        (json!({}), 422, 9000),
        (json!({"job": {"script": "x"}}), 500, 2019),
        (json!({"job": {"script": "x", "environment": [], "tres_per_node": "gres/gpu:9"}}), 500, 2014),
    ] {
        let (got, answer) = w.post("job/submit", &body);
        assert_eq!((got, answer["errors"][0]["error_number"].as_i64()), (status, Some(number)), "{body}");
    }
    let (_, body) = w.send("mock-token", "DELETE", "/slurm/v0.0.42/job/99", "");
    assert_eq!(body["status"][0]["error"]["code"], 2017);
    w.cluster.submit(JobSpec::new("bob", 1, 1, s(600))).unwrap();
    w.cluster.submit(JobSpec::new("alice", 1, 1, s(600))).unwrap();
    let filter = json!({"user_name": "bob"}).to_string();
    assert_eq!(w.send("mock-token", "DELETE", "/slurm/v0.0.42/jobs/", &filter).0, 200);
    let shown: Vec<_> = w.cluster.jobs().map(|j| j.state.as_str()).collect();
    assert_eq!(shown, ["COMPLETED", "CANCELLED", "RUNNING"]);
}
