//! The GET endpoints, with the traps of `update_time` and of the single node.

use http::{Response, StatusCode};
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Answer, Api, Call, Complaint, respond,
    shapes::{self, Usage, Version, sin, time},
    warning,
};
use crate::{
    Cluster,
    model::{Error, JobId, JobState, NodeName},
};

type Raw = Box<Response<Bytes>>;

/// Whether a table changed since the caller's `update_time`.
enum Since {
    Changed,
    Unchanged(i64),
}

fn since(call: &Call<'_>, updated: Timestamp, source: &str) -> Result<Since, Answer> {
    let Some(text) = call.query.get("update_time") else { return Ok(Since::Changed) };
    let number = match call.version {
        Version::V41 => text.strip_prefix("uts"),
        Version::V42 => Some(text.as_str()),
    };
    let Some(asked) = number.and_then(|n| n.parse::<i64>().ok()) else {
        let mut answer = Answer::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            Complaint::new(
                format!("Parsing of {text} for timestamp failed"),
                9202,
                "Unable to convert Data type",
                "#/update_time/",
            ),
        );
        answer.errors.push(Complaint::new(
            "Rejecting request. Failure parsing query.",
            9000,
            "Query empty or not RFC7320 compliant",
            source,
        ));
        return Err(answer);
    };
    if asked > updated.as_second() { Ok(Since::Unchanged(asked)) } else { Ok(Since::Changed) }
}

fn not_modified() -> Raw {
    Box::new(respond(StatusCode::NOT_MODIFIED, "application/json", String::new()))
}

fn not_compliant(description: String, source: &str) -> Answer {
    let complaint = Complaint::new(description, 9000, "Query empty or not RFC7320 compliant", source);
    Answer::error(StatusCode::UNPROCESSABLE_ENTITY, complaint)
}

fn partitions_not_queried() -> Answer {
    let complaint = Complaint::new("Unable to query partitions", -1, "Unspecified error", "_dump_nodes");
    Answer::error(StatusCode::INTERNAL_SERVER_ERROR, complaint)
}

impl Api {
    pub(super) fn get_nodes(&mut self, cluster: &Cluster, call: &Call<'_>) -> Result<Answer, Raw> {
        let updated = cluster.last_update();
        match (since(call, updated.nodes, "_dump_nodes"), since(call, updated.partitions, "_dump_nodes")) {
            (Err(answer), _) | (_, Err(answer)) => return Ok(answer),
            (Ok(Since::Unchanged(_)), _) => return Err(not_modified()),
            // The trap: nodes changed, partitions did not.
            (Ok(Since::Changed), Ok(Since::Unchanged(_))) => return Ok(partitions_not_queried()),
            (Ok(Since::Changed), Ok(Since::Changed)) => {}
        }
        let views = cluster.nodes();
        self.seen = views.iter().map(|v| (v.spec.name.clone(), Usage::of(v))).collect();
        let nodes: Vec<Value> = views.iter().map(|v| self.node(v, &Usage::of(v))).collect();
        Ok(Answer::ok([("nodes", nodes.into()), ("last_update", time(Some(updated.nodes)))]))
    }

    pub(super) fn get_node(&mut self, cluster: &Cluster, call: &Call<'_>, name: &str) -> Answer {
        match since(call, cluster.last_update().partitions, "_dump_nodes") {
            Err(answer) => return answer,
            Ok(Since::Unchanged(_)) => return partitions_not_queried(),
            Ok(Since::Changed) => {}
        }
        let name = NodeName::from(name);
        let Some(view) = cluster.node(&name) else {
            // 200 does not mean "found".
            let complaint =
                Complaint::new(format!("Failure to query node {name}"), 0, "No error", "_dump_nodes");
            return Answer::error(StatusCode::OK, complaint);
        };
        let fresh = Usage::of(&view);
        let usage =
            if self.stale_single_node { self.seen.entry(name).or_insert(fresh).clone() } else { fresh };
        let updated = time(Some(cluster.last_update().nodes));
        Answer::ok([("nodes", json!([self.node(&view, &usage)])), ("last_update", updated)])
    }

    pub(super) fn get_jobs(&self, cluster: &Cluster, call: &Call<'_>) -> Answer {
        let updated = cluster.last_update().jobs;
        match since(call, updated, "op_handler_jobs") {
            Err(answer) => answer,
            Ok(Since::Unchanged(asked)) => {
                let mut answer =
                    Answer::ok([("jobs", json!([])), ("last_backfill", sin(0)), ("last_update", sin(0))]);
                let when = Timestamp::from_second(asked)
                    .unwrap_or(updated)
                    .strftime("%Y-%m-%dT%H:%M:%S")
                    .to_string();
                let text = format!("No job changes since update_time[{asked}]={when}");
                answer.warnings.push(warning(&text, "op_handler_jobs"));
                answer
            }
            Ok(Since::Changed) => {
                let jobs: Vec<Value> = cluster.jobs().map(|j| self.job(call.version, cluster, j)).collect();
                job_list(jobs, updated)
            }
        }
    }

    pub(super) fn get_job(&self, cluster: &Cluster, call: &Call<'_>, id: &str) -> Answer {
        let Ok(number) = id.parse::<u32>() else {
            return not_compliant(
                "Rejecting request. Failure parsing parameters".to_owned(),
                "op_handler_job",
            );
        };
        if let Some(job) = cluster.job(JobId(number)) {
            return job_list(vec![self.job(call.version, cluster, job)], cluster.last_update().jobs);
        }
        let mut answer = Answer::refused(
            Error::InvalidJobId,
            format!("Unable to query JobId={number}"),
            "_handle_job_get",
        );
        answer.body =
            Answer::ok([("jobs", json!([])), ("last_backfill", sin(0)), ("last_update", sin(0))]).body;
        answer
    }

    pub(super) fn get_partitions(&self, cluster: &Cluster, call: &Call<'_>) -> Result<Answer, Raw> {
        let updated = cluster.last_update().partitions;
        match since(call, updated, "op_handler_partitions") {
            Err(answer) => return Ok(answer),
            Ok(Since::Unchanged(_)) => return Err(not_modified()),
            Ok(Since::Changed) => {}
        }
        let all: Vec<Value> = cluster.partitions().iter().map(|p| self.partition(cluster, p)).collect();
        Ok(Answer::ok([("partitions", all.into()), ("last_update", time(Some(updated)))]))
    }

    pub(super) fn get_partition(&self, cluster: &Cluster, name: &str) -> Answer {
        match cluster.partitions().iter().find(|p| p.name == name) {
            Some(p) => {
                let updated = time(Some(cluster.last_update().partitions));
                Answer::ok([("partitions", json!([self.partition(cluster, p)])), ("last_update", updated)])
            }
            None => not_compliant(format!("Unable to find partition {name}"), "op_handler_partition"),
        }
    }
}

fn job_list(jobs: Vec<Value>, updated: Timestamp) -> Answer {
    Answer::ok([
        ("jobs", jobs.into()),
        ("last_backfill", time(Some(updated))),
        ("last_update", time(Some(updated))),
    ])
}

pub(super) fn job_states(cluster: &Cluster) -> Answer {
    let now = cluster.now();
    let one = |j: &crate::model::Job| json!({"job_id": j.id.to_string(), "state": j.state_words(now)});
    Answer::ok([("jobs", cluster.jobs().map(one).collect::<Vec<_>>().into())])
}

pub(super) fn reservations(cluster: &Cluster, call: &Call<'_>) -> Result<Answer, Raw> {
    let updated = cluster.last_update().reservations;
    match since(call, updated, "op_handler_reservations") {
        Err(answer) => return Ok(answer),
        Ok(Since::Unchanged(_)) => return Err(not_modified()),
        Ok(Since::Changed) => {}
    }
    let all: Vec<Value> = cluster.reservations().map(|r| shapes::reservation(cluster, r)).collect();
    Ok(Answer::ok([("reservations", all.into()), ("last_update", time(Some(updated)))]))
}

pub(super) fn reservation(cluster: &Cluster, name: &str) -> Answer {
    match cluster.reservation(name) {
        Some(r) => {
            let updated = time(Some(cluster.last_update().reservations));
            Answer::ok([("reservations", json!([shapes::reservation(cluster, r)])), ("last_update", updated)])
        }
        None => not_compliant(format!("Unable to find reservation {name}"), "op_handler_reservation"),
    }
}

/// Whether a kill request reaches a job in this state.
pub(super) fn can_be_killed(state: JobState) -> bool {
    !state.is_final()
}
