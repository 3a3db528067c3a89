//! Excerpts of what slurmrestd 24.11.5 answered over v0.0.42, and what each spoiled part of them becomes.

use gpu_bridge_core::facts::slurm::NodeFlag as Flag;
use serde_json::{Value, json};

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::facts::slurm::{BaseState, Job, JobState, Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::{SignedDuration, Timestamp};

use super::super::version::Family;
use super::*;

const ASKED: fn(&'static str) -> Asked<'static> = |what| Asked::new(what, "slurm");

type Nodes = BTreeMap<SlurmNodeName, Result<Node, String>>;

fn nodes(what: &'static str, body: &[u8]) -> Result<Nodes, Error> {
    super::nodes(Family::Lists, &ASKED(what), body)
}

fn job_marks(what: &'static str, body: &[u8]) -> Result<BTreeMap<JobId, JobMark>, Error> {
    super::job_marks(&ASKED(what), body)
}

fn job(what: &'static str, body: &[u8], id: JobId) -> Result<Option<Job>, Error> {
    Ok(super::job(Family::Lists, &ASKED(what), body, id)?.map(|record| record.job))
}

fn reservations(what: &'static str, body: &[u8]) -> Result<BTreeMap<String, Reservation>, Error> {
    super::reservations(&ASKED(what), body)
}

fn partitions(what: &'static str, body: &[u8]) -> Result<BTreeMap<String, Partition>, Error> {
    super::partitions(Family::Lists, &ASKED(what), body)
}

const NODES: &str = include_str!("../fixtures/nodes.json");
const JOBS: &str = include_str!("../fixtures/jobs.json");
const JOBS_STATE: &str = include_str!("../fixtures/jobs-state.json");
const RESERVATIONS: &str = include_str!("../fixtures/reservations.json");
const PARTITIONS: &str = include_str!("../fixtures/partitions.json");

fn names(list: &[&str]) -> NodeSet {
    list.iter().map(|name| SlurmNodeName::from(*name)).collect()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The first node of the fixture after `change`; the others are read all the same.
fn changed(change: impl Fn(&mut Value)) -> Result<Node, String> {
    let mut body: Value = serde_json::from_str(NODES).unwrap();
    change(&mut body["nodes"][0]);
    let mut nodes = nodes("GET nodes", body.to_string().as_bytes()).unwrap();
    let node = nodes.remove(&SlurmNodeName::from("gpu1")).unwrap();
    assert!(nodes.values().all(Result::is_ok));
    node
}

fn node_after(change: impl Fn(&mut Value)) -> Node {
    changed(change).unwrap()
}

#[test]
fn nodes_are_read() {
    let nodes = nodes("GET nodes", NODES.as_bytes()).unwrap();
    let gpu = |name: &str| nodes[&SlurmNodeName::from(name)].as_ref().unwrap();
    assert_eq!(
        *gpu("gpu1"),
        Node {
            state: BaseState::Mixed,
            flags: BTreeSet::new(),
            reason: None,
            gpus: 4,
            gpus_used: Some(4),
            partitions: ["main", "debug"].map(str::to_owned).into(),
        }
    );
    // Shards beside GPUs, and two types of GPU.
    assert_eq!((gpu("gpu3").gpus, gpu("gpu3").gpus_used), (4, Some(1)));
    assert_eq!((gpu("gpu4").gpus, gpu("gpu4").gpus_used), (4, Some(1)));
    let draining = gpu("draining");
    assert_eq!(draining.state, BaseState::Idle);
    assert_eq!(draining.flags, BTreeSet::from([Flag::Drain]));
    assert_eq!(draining.reason.as_ref().map(|reason| reason.user.as_str()), Some("slurm"));
    assert!(draining.reason.as_ref().is_some_and(|reason| reason.at.is_some()));
}

#[test]
fn a_node_that_cannot_be_read_is_never_available() {
    let odd: [(&str, Value); 6] = [
        ("state", json!(null)),
        ("state", json!("IDLE")),
        ("state", json!([])),
        ("state", json!([""])),
        ("state", json!([7])),
        ("partitions", json!({"a": 1})),
    ];
    // Without its flags nobody could tell whether it is drained: it is not among the facts at all.
    for (field, value) in odd {
        let node = changed(|node| node[field] = value.clone());
        assert!(node.is_err(), "{field} {value}: {node:?}");
    }
    assert!(changed(|node| drop(node.as_object_mut().unwrap().remove("state"))).is_err());
    // With its flags it is, but in no state that can be used.
    let drained = |node: &mut Value| node["state"] = json!(["IDLE", "DRAIN"]);
    for (field, value) in [
        ("state", json!(["DRAIN"])),
        ("state", json!(["IDLE", "DOWN", "DRAIN"])),
        ("gres", json!("gpu:a100:4(")),
    ] {
        let node = node_after(|node| {
            drained(node);
            node[field] = value.clone();
        });
        let unreadable = matches!(&node.state, BaseState::Other(why) if why.starts_with("unreadable: "));
        assert!(unreadable && node.flags.contains(&Flag::Drain), "{field} {value}: {node:?}");
    }
    for used in [json!(null), json!(""), json!("gpu:a100:x"), json!("shard:0")] {
        let node = node_after(|node| node["gres_used"] = used.clone());
        assert_eq!((&node.state, node.gpus_used), (&BaseState::Mixed, None), "{used}");
    }
}

#[test]
fn unknown_words_are_kept_as_such() {
    let node = node_after(|node| node["state"] = json!(["IDLE", "DRAIN", "BLOCKED", "POWERING_UP"]));
    assert_eq!(node.flags, BTreeSet::from([Flag::Drain, Flag::Power, Flag::Other("BLOCKED".into())]));
    let node = node_after(|node| node["state"] = json!(["HIBERNATING"]));
    assert!(matches!(node.state, BaseState::Other(_)) && node.flags.len() == 1);
    let node = node_after(|node| node["state"] = json!(["IDLE", "REBOOT_ISSUED", "INVALID_REG", "FAIL"]));
    assert_eq!(node.flags, BTreeSet::from([Flag::Reboot, Flag::InvalidReg, Flag::Fail]));
}

#[test]
fn a_missing_list_is_not_an_empty_one() {
    for body in [r#"{"errors":[]}"#, r#"{"nodes":null}"#, r#"{"nodes":{}}"#, r#"{"nodes":[{}]}"#, "[]"] {
        assert!(matches!(nodes("GET", body.as_bytes()), Err(Error::Unreadable { .. })), "{body}");
    }
    assert_eq!(nodes("GET", br#"{"nodes":[]}"#).unwrap().len(), 0);
}

#[test]
fn job_states_are_read_the_cautious_way() {
    use JobState::{Completing, Configuring, Finished, Other, Pending, Running, Suspended};
    for (words, state) in [
        (&["PENDING"][..], Pending),
        (&["PENDING", "REQUEUED"], Pending),
        (&["PENDING", "COMPLETING"], Completing),
        (&["RUNNING"], Running),
        (&["RUNNING", "STOPPED"], Running),
        (&["RUNNING", "CONFIGURING", "POWER_UP_NODE"], Configuring),
        (&["SUSPENDED"], Suspended),
        (&["CANCELLED", "COMPLETING"], Completing),
        (&["COMPLETED", "STAGE_OUT"], Completing),
        (&["TIMEOUT"], Finished),
        (&[], Other(String::new())),
        (&["COMPLETING"], Other("COMPLETING".into())),
        (&["RUNNING", "LEVITATING"], Other("RUNNING,LEVITATING".into())),
        (&["COMPLETED", "RUNNING"], Other("COMPLETED,RUNNING".into())),
    ] {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(job_state(&words), state, "{words:?}");
    }
}

#[test]
fn job_marks_are_by_the_jobs_own_number() {
    let marks = job_marks("GET", JOBS_STATE.as_bytes()).unwrap();
    // 17_0 is job 17, task 0 of array 10; 10_1 … 10_3 wait in job 10; 12+0 and 13+1 are two jobs.
    let ids: Vec<u32> = marks.keys().map(|id| id.0).collect();
    assert_eq!(ids, (1..=17).collect::<Vec<_>>());
    assert_eq!(marks[&JobId(17)].state, JobState::Running);
    assert_eq!(marks[&JobId(10)].state, JobState::Pending);
    assert_eq!(marks[&JobId(15)].state, JobState::Finished);
    for bad in [r#"{"jobs":[{"job_id":"x","state":[]}]}"#, r#"{"jobs":[{"job_id":1}]}"#] {
        assert!(job_marks("GET", bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn of_two_records_with_one_number_the_one_that_may_be_on_a_node_counts() {
    let all: Value = serde_json::from_str(JOBS).unwrap();
    let running = all["jobs"].as_array().unwrap().iter().find(|job| job["job_id"] == json!(5)).unwrap();
    let as_if = |state: &str| {
        let mut job = running.clone();
        job["job_state"] = json!([state]);
        job
    };
    for (first, second, counts) in [
        ("RUNNING", "PENDING", JobState::Running),
        ("PENDING", "RUNNING", JobState::Running),
        ("SUSPENDED", "COMPLETED", JobState::Suspended),
        ("COMPLETED", "PENDING", JobState::Pending),
    ] {
        let body = json!({"jobs": [as_if(first), as_if(second)]}).to_string();
        let records = super::jobs(Family::Lists, &ASKED("GET jobs"), body.as_bytes()).unwrap();
        assert_eq!(records[&JobId(5)].job.state, counts, "{first}, {second}");
        let words = |state| json!({"job_id": "5", "state": [state]});
        let marks = job_marks("GET", json!({"jobs": [words(first), words(second)]}).to_string().as_bytes());
        assert_eq!(marks.unwrap()[&JobId(5)].state, counts, "{first}, {second}");
    }
}

#[test]
fn a_requeued_job_without_a_start_is_on_no_node_where_null_stands_for_that() {
    let read = |state: &str, start: i64, count: u32| {
        let job =
            json!({"job_id": 3, "job_state": state, "nodes": null, "start_time": start, "node_count": count});
        let body = json!({"jobs": [job]}).to_string();
        super::jobs(Family::Words, &ASKED("GET jobs"), body.as_bytes())
    };
    for state in ["REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "PENDING"] {
        for (start, count) in [(0, 1), (1_796_009_183, 0)] {
            let records = read(state, start, count).unwrap();
            assert_eq!(records[&JobId(3)].job.nodes, names(&[]), "{state} {start} {count}");
        }
    }
    for (state, start) in [("REQUEUE_HOLD", 1_796_009_183), ("RUNNING", 0), ("COMPLETING", 0)] {
        assert!(matches!(read(state, start, 1), Err(Error::Unreadable { .. })), "{state}");
    }
}

#[test]
fn jobs_are_read() {
    let read = |id| job("GET job", JOBS.as_bytes(), JobId(id)).unwrap();
    let two_nodes = read(5).unwrap();
    assert_eq!(
        two_nodes,
        Job {
            id: JobId(5),
            state: JobState::Running,
            user: "alice".into(),
            partition: "main".into(),
            nodes: names(&["gpu3", "gpu4"]),
            required_nodes: names(&["gpu3", "gpu4"]),
            node_count: 2,
            gpus_per_node: 1,
            time_limit: Some(SignedDuration::from_mins(30)),
            start: Some(at(1_796_009_183)),
            end_by: Some(at(1_796_010_983)),
            requeue: true,
            pending_reason: None,
            submitted: None,
            gpu_type: None,
            tasks: Some(1),
            het_leader: None,
        }
    );
    // Waits with an expected start: that is not when it started.
    let waits = read(6).unwrap();
    assert_eq!((waits.start, waits.end_by, waits.gpus_per_node), (None, None, 4));
    assert_eq!((waits.nodes, waits.required_nodes), (names(&[]), names(&["gpu2"])));
    assert_eq!(waits.pending_reason.as_deref(), Some("Resources"));
    assert_eq!(read(4).unwrap().gpus_per_node, 0, "shards are not GPUs");
    assert_eq!(read(10).unwrap().state, JobState::Pending);
    assert_eq!(read(999), None);
}

#[test]
fn a_job_whose_nodes_cannot_be_read_spoils_the_look() {
    let mut body: Value = serde_json::from_str(JOBS).unwrap();
    for odd in [json!(null), json!("gpu[1"), json!(["gpu1"])] {
        for job in body["jobs"].as_array_mut().unwrap() {
            job["nodes"] = odd.clone();
        }
        let read = job("GET job/5", body.to_string().as_bytes(), JobId(5));
        assert!(matches!(read, Err(Error::Unreadable { .. })), "{odd}: {read:?}");
    }
}

#[test]
fn nodes_that_are_asked_for_and_cannot_be_read_spoil_no_look() {
    let mut body: Value = serde_json::from_str(JOBS).unwrap();
    let whole = job("GET job/6", body.to_string().as_bytes(), JobId(6)).unwrap().unwrap();
    assert_eq!(whole.required_nodes, names(&["gpu2"]));
    for job in body["jobs"].as_array_mut().unwrap() {
        job["required_nodes"] = json!("gpu[1-");
    }
    let odd = job("GET job/6", body.to_string().as_bytes(), JobId(6)).unwrap().unwrap();
    assert_eq!(odd, Job { required_nodes: names(&[]), ..whole });
}

#[test]
fn unlimited_and_suspended_jobs_have_no_known_end() {
    let mut body: Value = serde_json::from_str(JOBS).unwrap();
    for job in body["jobs"].as_array_mut().unwrap() {
        job["time_limit"] = json!({"set": true, "infinite": true, "number": 0});
    }
    let unlimited = job("GET", body.to_string().as_bytes(), JobId(5)).unwrap().unwrap();
    assert_eq!((unlimited.time_limit, unlimited.end_by), (None, None));
    let suspended = JOBS.replace("\"RUNNING\"", "\"SUSPENDED\"");
    let suspended = job("GET", suspended.as_bytes(), JobId(5)).unwrap().unwrap();
    assert_eq!((suspended.state, suspended.end_by), (JobState::Suspended, None));
}

#[test]
fn reservations_and_partitions_are_read() {
    let reservations = reservations("GET", RESERVATIONS.as_bytes()).unwrap();
    assert_eq!(
        reservations["maint1"],
        Reservation {
            name: "maint1".into(),
            nodes: names(&["gpu2"]),
            users: ["root", "alice"].map(str::to_owned).into(),
            accounts: BTreeSet::new(),
            flags: ["MAINT", "IGNORE_JOBS", "SPEC_NODES"].map(str::to_owned).into(),
            start: at(1_796_016_390),
            end: at(1_796_019_990),
        }
    );
    let partitions = partitions("GET", PARTITIONS.as_bytes()).unwrap();
    assert_eq!(
        partitions["main"],
        Partition {
            nodes: names(&["gpu1", "gpu2", "gpu3", "gpu4"]),
            max_time: Some(SignedDuration::from_mins(10_080)),
            up: true,
        }
    );
    assert_eq!(partitions["debug"].max_time, Some(SignedDuration::from_mins(30)));
    for odd in [RESERVATIONS.replace("\"gpu2\"", "\"gpu[\""), RESERVATIONS.replace("node_list", "nodes")] {
        assert!(self::reservations("GET", odd.as_bytes()).is_err());
    }
    let down = PARTITIONS.replace("\"UP\"", "\"DRAIN\"");
    assert!(!self::partitions("GET", down.as_bytes()).unwrap()["main"].up);
}
