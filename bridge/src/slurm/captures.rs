//! What real slurmrestd versions answered (`fixtures/`), read and held against what `scontrol` and `squeue` showed of the
//! same moment. The folder is walked: a new version's answers are tested by putting them there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_bridge_core::facts::slurm::{BaseState, JobState, Node, NodeFlag, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::answer::Asked;
use super::decode::{Decoded, Kind, NodeSaid, decode};
use super::gres::{Detail, Gres};
use super::shape::{JobRecord, NodeRecord};
use super::version::Version;
use super::{gres, hostlist, shape};

mod spoiled;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/slurm/fixtures")
}

pub(super) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap()
}

/// Every folder of one version's answers: release folder, version.
fn versions() -> Vec<(PathBuf, Version)> {
    let mut versions = Vec::new();
    for release in entries(&fixtures())
        .into_iter()
        .filter(|path| path.is_dir() && !["errors", "cli"].contains(&name(path)))
    {
        for folder in entries(&release).into_iter().filter(|path| path.is_dir()) {
            let version = Version::named(name(&folder));
            versions
                .push((folder.clone(), version.unwrap_or_else(|| panic!("{folder:?} is not in version.rs"))));
        }
    }
    assert!(versions.len() >= 12, "{versions:?}");
    versions
}

/// Every answer, with its kind.
pub(super) fn answers() -> Vec<(PathBuf, Version, Kind)> {
    let mut answers = Vec::new();
    for (folder, version) in versions() {
        for file in entries(&folder) {
            let kind = match name(&file).trim_end_matches(".json") {
                "nodes" | "node-states" => Kind::Nodes,
                "jobs" | "job-states" => Kind::Jobs,
                "jobs-state" => Kind::JobStates,
                "reservations" => Kind::Reservations,
                "partitions" => Kind::Partitions,
                "ping" => Kind::Ping,
                single if single.starts_with("node-") => Kind::Node,
                single if single.starts_with("job-") => Kind::Job,
                other => panic!("{other}: what kind of answer is it?"),
            };
            answers.push((file, version, kind));
        }
    }
    answers
}

fn decoded(file: &Path, version: Version, kind: Kind) -> Decoded {
    decode("x", version.name, kind, read(file).as_bytes())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn readable(said: NodeSaid) -> NodeRecord {
    match said {
        NodeSaid::Read(record) => record,
        NodeSaid::Unreadable { unreadable } => panic!("{unreadable}"),
    }
}

fn nodes(file: &Path, version: Version) -> BTreeMap<SlurmNodeName, NodeRecord> {
    match decoded(file, version, Kind::Nodes) {
        Decoded::Nodes(nodes) => nodes.into_iter().map(|(name, said)| (name, readable(said))).collect(),
        other => panic!("{other:?}"),
    }
}

fn jobs(body: &str, version: Version) -> BTreeMap<JobId, JobRecord> {
    match decode("x", version.name, Kind::Jobs, body.as_bytes()) {
        Ok(Decoded::Jobs(jobs)) => jobs,
        other => panic!("{other:?}"),
    }
}

/// A table of columns between tabs; missing ones are empty.
fn table<const N: usize>(path: &Path) -> Vec<[String; N]> {
    let rows = read(path);
    let row = |line: &str| {
        let mut cells = line.split('\t').map(str::to_owned);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    };
    rows.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

/// A node's state and flags in Slurm's words, joined as scontrol joins them.
fn state_of(words: &str) -> (BaseState, BTreeSet<NodeFlag>) {
    let words: Vec<&str> = words.split('+').collect();
    let body = json!({"nodes": [{"name": "n", "state": words}]}).to_string();
    let asked = Asked::new("words", "me");
    let mut nodes: BTreeMap<SlurmNodeName, Result<Node, String>> =
        shape::nodes(super::version::Family::Lists, &asked, body.as_bytes()).unwrap();
    let node = nodes.pop_first().unwrap().1.unwrap();
    (node.state, node.flags)
}

#[test]
fn every_answer_is_read() {
    for (file, version, kind) in answers() {
        let empty = match decoded(&file, version, kind) {
            Decoded::Nodes(nodes) => {
                for (name, said) in &nodes {
                    let whole = matches!(said, NodeSaid::Read(record) if !matches!(record.node.state, BaseState::Other(_)));
                    assert!(whole, "{}: {name}: {said:?}", file.display());
                }
                nodes.is_empty()
            }
            Decoded::Jobs(jobs) => jobs.is_empty(),
            Decoded::JobStates(states) => states.is_empty(),
            Decoded::Reservations(reservations) => reservations.is_empty(),
            Decoded::Partitions(partitions) => partitions.is_empty(),
            Decoded::Pings(pings) => !pings.iter().any(|ping| ping.responding && ping.primary == Some(true)),
        };
        assert!(!empty, "{}", file.display());
    }
}

#[test]
fn nodes_in_every_situation_are_as_scontrol_shows_them() {
    let mut seen = 0;
    for (folder, version) in versions() {
        let nodes = nodes(&folder.join("node-states.json"), version);
        for [situation, shown, later] in table(&folder.with_file_name("node-states.tsv")) {
            let Some(record) = nodes.get(&SlurmNodeName::from(situation.as_str())) else {
                assert_eq!(shown, "?", "{}: {situation} is missing", folder.display());
                continue;
            };
            seen += 1;
            let found = (record.node.state.clone(), record.node.flags.clone());
            let right =
                [shown, later].iter().filter(|words| !words.is_empty()).any(|words| found == state_of(words));
            assert!(right, "{}: {situation}: {found:?}", folder.display());
            assert_eq!(record.node.gpus, 4, "{situation}");
            let used = if situation.starts_with("allocated") { 4 } else { 0 };
            assert_eq!(record.node.gpus_used, Some(used), "{}: {situation}", folder.display());
            let drained = record.node.flags.contains(&NodeFlag::Drain);
            let reason = record.node.reason.as_ref();
            assert!(
                !drained || reason.is_some_and(|reason| reason.user == "root"),
                "{situation}: {reason:?}"
            );
        }
    }
    assert!(seen > 250, "{seen}");
}

/// `Key=Value` pairs of one record of `scontrol show`.
fn shown(record: &str) -> BTreeMap<&str, &str> {
    record.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

fn records<'a>(text: &'a str, key: &str) -> Vec<BTreeMap<&'a str, &'a str>> {
    let mut starts: Vec<usize> = text.match_indices(&format!("{key}=")).map(|(at, _)| at).collect();
    starts.push(text.len());
    starts.windows(2).map(|pair| shown(&text[pair[0]..pair[1]])).collect()
}

/// How many GPUs a GRES text names, as a person counts them.
fn counted(text: &str) -> u32 {
    let mut outside = String::new();
    let mut inside = false;
    for c in text.chars() {
        inside = (inside || c == '(') && c != ')';
        if !inside && c != ')' {
            outside.push(c);
        }
    }
    let parts = outside.split(',').filter(|part| part.starts_with("gpu:"));
    parts.map(|part| part.rsplit(':').next().unwrap().parse::<u32>().unwrap()).sum()
}

#[test]
fn nodes_are_as_scontrol_shows_them() {
    for (folder, version) in versions() {
        let nodes = nodes(&folder.join("nodes.json"), version);
        let text = read(&folder.with_file_name("scontrol-nodes.txt"));
        let records = records(&text, "NodeName");
        assert_eq!(records.len(), nodes.len());
        for record in records {
            let found = &nodes[&SlurmNodeName::from(record["NodeName"])];
            let at = format!("{}: {}", folder.display(), record["NodeName"]);
            assert_eq!(
                (found.node.state.clone(), found.node.flags.clone()),
                state_of(record["State"]),
                "{at}"
            );
            assert_eq!(found.node.gpus, counted(record["Gres"]), "{at}");
            assert_eq!(found.node.gpus_used, Some(counted(record["GresUsed"])), "{at}");
            let partitions = record["Partitions"].split(',').map(str::to_owned).collect();
            assert_eq!(found.node.partitions, partitions, "{at}");
            assert_eq!(found.gres, gres::list(record["Gres"]), "{at}");
            // What is in use lists as many devices as it counts, for GPUs.
            for Gres { kind, count, detail, .. } in &found.gres_used {
                if let Detail::Index(devices) = detail
                    && kind == "gpu"
                {
                    assert_eq!(*count, Some(devices.len() as u64), "{at}");
                }
            }
        }
    }
}

#[test]
fn jobs_in_every_situation_are_read_alike_in_every_version() {
    let truth: Vec<[String; 5]> = table(&fixtures().join("job-states.tsv"));
    for (folder, version) in versions() {
        let answer: Value = serde_json::from_str(&read(&folder.join("job-states.json"))).unwrap();
        let rows = answer["jobs"].as_array().unwrap();
        let situations: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        let expected: Vec<&str> = truth.iter().map(|[situation, ..]| situation.as_str()).collect();
        assert_eq!(situations, expected, "{}", folder.display());
        for (row, [situation, state, nodes, why, part]) in rows.iter().zip(&truth) {
            let at = format!("{}: {situation}", folder.display());
            let body = json!({"jobs": [row], "errors": []}).to_string();
            let record = jobs(&body, version).pop_first().unwrap().1;
            let found = serde_json::to_value(&record.job.state).unwrap();
            assert_eq!(found, json!(state), "{at}");
            assert_eq!(record.job.nodes, hostlist::expand(nodes).unwrap(), "{at}");
            assert_eq!(record.job.pending_reason.as_deref().unwrap_or_default(), why, "{at}");
            let found = match (record.array, record.het) {
                (None, None) => String::new(),
                (Some(array), None) => match (array.task, array.waiting) {
                    (Some(task), None) => format!("task {task}"),
                    (None, Some(waiting)) => format!("{waiting} tasks"),
                    other => panic!("{at}: {other:?}"),
                },
                (None, Some(het)) => format!("het {}", het.offset),
                (Some(_), Some(_)) => panic!("{at}: both"),
            };
            assert_eq!(found, *part, "{at}");
        }
    }
}

#[test]
fn jobs_are_as_squeue_shows_them() {
    let mut compared = 0;
    for (folder, version) in versions().into_iter().filter(|(folder, _)| folder.join("jobs.json").exists()) {
        let jobs = jobs(&read(&folder.join("jobs.json")), version);
        let mut unfinished: BTreeSet<JobId> = jobs
            .values()
            .filter(|record| record.job.state != JobState::Finished)
            .map(|record| record.job.id)
            .collect();
        for line in read(&folder.with_file_name("squeue.txt")).lines().skip(1) {
            let [shown, _, state, reason, nodes, tres] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            // 10_[1-3%1] waits in job 10, 10_0 is another job; 12+1 is the second one of 12.
            let record = jobs
                .values()
                .find(|record| match (record.array, record.het) {
                    (Some(array), _) => match array.task {
                        Some(task) => shown == format!("{}_{task}", array.job),
                        None => shown.starts_with(&format!("{}_[", array.job)),
                    },
                    (None, Some(het)) => shown == format!("{}+{}", het.job, het.offset),
                    (None, None) => shown == record.job.id.to_string(),
                })
                .unwrap_or_else(|| panic!("{}: {line}", folder.display()));
            let at = format!("{}: {line}", folder.display());
            let job = &record.job;
            unfinished.remove(&job.id);
            assert_eq!(json!(job.state), json!(state.to_lowercase()), "{at}");
            assert_eq!(job.nodes, hostlist::expand(nodes).unwrap(), "{at}");
            let waits_for = (reason != "None").then(|| reason.split(',').next().unwrap());
            assert_eq!(job.pending_reason.as_deref(), waits_for, "{at}");
            assert_eq!(job.gpus_per_node, gres::gpus(tres).unwrap(), "{at}");
            assert_eq!((job.user.as_str(), job.requeue), ("alice", true), "{at}");
            assert_eq!(job.end_by.is_some(), state == "RUNNING", "{at}");
            compared += 1;
        }
        assert_eq!(unfinished, BTreeSet::new(), "{}", folder.display());
    }
    assert_eq!(compared, 4 * 15);
}

#[test]
fn the_same_job_is_the_same_in_every_version_of_a_release() {
    for file in ["job-array.json", "job-het.json", "job-run_2node.json"] {
        let mut by_release: BTreeMap<PathBuf, BTreeMap<JobId, JobRecord>> = BTreeMap::new();
        for (folder, version) in versions() {
            let found = jobs(&read(&folder.join(file)), version);
            let release = folder.parent().unwrap().to_owned();
            let known = by_release.entry(release).or_insert_with(|| found.clone());
            assert_eq!(*known, found, "{}: {file}", folder.display());
        }
    }
}

#[test]
fn reservations_are_as_scontrol_shows_them() {
    for (folder, version) in versions() {
        let Decoded::Reservations(found) =
            decoded(&folder.join("reservations.json"), version, Kind::Reservations)
        else {
            panic!()
        };
        let text = read(&folder.with_file_name("scontrol-reservations.txt"));
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
        for record in records(&text, "ReservationName") {
            let at = |time: &str| format!("{time}Z").parse().unwrap();
            let expected = Reservation {
                name: record["ReservationName"].to_owned(),
                nodes: hostlist::expand(record["Nodes"]).unwrap(),
                users: list(record["Users"]),
                accounts: list(record["Accounts"]).into_iter().filter(|name| name != "(null)").collect(),
                flags: list(record["Flags"]),
                start: at(record["StartTime"]),
                end: at(record["EndTime"]),
            };
            assert_eq!(found[record["ReservationName"]], expected, "{}", folder.display());
        }
        assert!(!found.is_empty());
    }
}

#[test]
fn partitions_are_read() {
    let hosts = |list: &str| hostlist::expand(list).unwrap();
    for (folder, version) in versions() {
        let Decoded::Partitions(found) = decoded(&folder.join("partitions.json"), version, Kind::Partitions)
        else {
            panic!()
        };
        // v0.0.39 does not tell a partition's state.
        let up = version.name != "v0.0.39";
        let main =
            Partition { nodes: hosts("gpu[1-4]"), max_time: Some(SignedDuration::from_mins(10_080)), up };
        assert_eq!(found["main"], main, "{}", folder.display());
    }
}

#[test]
fn every_error_is_the_one_of_the_table() {
    let folder = fixtures().join("errors");
    let rows: Vec<[String; 3]> = table(&fixtures().join("errors.tsv"));
    let listed: BTreeSet<&str> = rows.iter().map(|[_, file, _]| file.as_str()).collect();
    let there = entries(&folder);
    assert_eq!(listed, there.iter().map(|path| name(path)).collect(), "files and errors.tsv");
    for [situation, file, expected] in &rows {
        let text = read(&folder.join(file));
        let (head, body) = text.split_once("\n\n").unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (kind, took) = expected.split_once(" after ").unwrap_or((expected, "0 s"));
        let took = Duration::from_secs(took.trim_end_matches(" s").parse().unwrap());
        let judged = Asked::new("GET x", "me").answered(status, took).judge(body.as_bytes());
        let found = match &judged {
            Ok(()) => "clean".to_owned(),
            Err(error) => format!("{error:?}").split([' ', '(']).next().unwrap().to_owned(),
        };
        assert_eq!(found, kind, "{situation}: {file}: {judged:?}");
    }
}
