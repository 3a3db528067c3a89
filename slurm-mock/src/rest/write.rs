//! The POST and DELETE endpoints. As with the real one, part of a wrong request may be applied.

use std::time::Duration;

use http::{Response, StatusCode, header};
use hyper::body::Bytes;
use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use super::{Answer, Call, Complaint, read::can_be_killed, shapes::sin, text, warning};
use crate::{
    Cluster, hostlist,
    model::{Error, JobId, JobSpec, NodeAction, NodeName, NodeUpdate},
};

type Raw = Box<Response<Bytes>>;

fn parse_body(call: &Call<'_>) -> Result<Result<Map<String, Value>, Answer>, Raw> {
    let unparsed = || Box::new(text(StatusCode::BAD_REQUEST, "Unable to parse query."));
    let kind = call.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    if kind != Some("application/json") {
        return Err(unparsed());
    }
    if call.body.is_empty() {
        return Ok(Ok(Map::new()));
    }
    match serde_json::from_slice(call.body) {
        Err(_) => Err(unparsed()),
        Ok(Value::Object(map)) => Ok(Ok(map)),
        Ok(_) => Ok(Err(Answer::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            Complaint::new(
                "Rejecting list when dictionary expected",
                9209,
                "Data parser expected a dictionary or object",
                "#/",
            ),
        ))),
    }
}

fn unknown_fields(map: &Map<String, Value>, known: &[&str], at: &str, parser: &str) -> Vec<Value> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "64 bit integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "dictionary",
    };
    map.iter()
        .filter(|(key, _)| !known.contains(&key.as_str()))
        .map(|(key, value)| {
            let text = format!("Ignoring unknown field \"{key}\" of type {} in {parser}", kind(value));
            warning(&text, format!("#/{at}{key}/"))
        })
        .collect()
}

/// A list, or a text with commas where a list is expected.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// A number, plain or as `{"set":…,"number":…}`.
fn number(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Object(map) if map.get("set") == Some(&Value::Bool(false)) => None,
        Value::Object(map) => map.get("number")?.as_i64(),
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

/// Why a state word is no action.
enum NoAction {
    /// Slurm knows it; the model does not, and refuses it.
    Unmodelled,
    /// Slurm does not know it.
    Unknown,
}

fn action(word: &str) -> Result<NodeAction, NoAction> {
    NodeAction::parse(word).ok_or(match word.to_ascii_uppercase().as_str() {
        "FUTURE" | "POWER_DOWN" | "POWER_UP" | "ALLOCATED" | "MIXED" | "ERROR" | "UNKNOWN" => {
            NoAction::Unmodelled
        }
        _ => NoAction::Unknown,
    })
}

/// POST node/X and POST nodes/.
pub(super) fn update_node(cluster: &mut Cluster, call: &Call<'_>, path: Option<&str>) -> Result<Answer, Raw> {
    let body = match parse_body(call)? {
        Ok(body) => body,
        Err(answer) => return Ok(answer),
    };
    let known =
        ["state", "reason", "name", "comment", "extra", "reason_uid", "features", "features_act", "gres"];
    let mut answer = Answer::ok([]);
    answer.warnings = unknown_fields(&body, &known, "", "DATA_PARSER_UPDATE_NODE_MSG");
    let names = match (path, body.get("name")) {
        (Some(path), _) => path.to_owned(),
        (None, Some(Value::String(list))) => {
            let text = "Expected OpenAPI type=array (Slurm type=list) but got OpenAPI type=string (Slurm type=string)";
            answer.warnings.push(warning(&format!("{text}: \"{list}\""), "#/name/"));
            list.clone()
        }
        (None, Some(list)) => words(list).join(","),
        (None, None) => String::new(),
    };
    let states = body.get("state").map(words).unwrap_or_default();
    let mut actions = Vec::new();
    for (index, state) in states.iter().enumerate() {
        match action(state) {
            Ok(action) => actions.push(Some(action)),
            Err(NoAction::Unmodelled) => actions.push(None),
            Err(NoAction::Unknown) => answer.errors.push(Complaint::new(
                format!("Unknown flag \"{state}\""),
                9207,
                "Data parser unable to parse invalid flag",
                format!("#/state[{index}]/"),
            )),
        }
    }
    let outcome = match actions.as_slice() {
        [] if states.is_empty() => apply(cluster, call, &names, None, &body),
        [Some(action)] => apply(cluster, call, &names, Some(*action), &body),
        // None that is known, one that the model refuses, or several.
        [] | [None] | [_, _, ..] => Err(Error::InvalidNodeState),
    };
    if let Err(error) = outcome {
        let refused = Answer::refused(error, format!("Failure to update node {names}"), "_update_node");
        answer.errors.extend(refused.errors);
    }
    if !answer.errors.is_empty() {
        answer.status = StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(answer)
}

fn apply(
    cluster: &mut Cluster,
    call: &Call<'_>,
    names: &str,
    action: Option<NodeAction>,
    body: &Map<String, Value>,
) -> Result<(), Error> {
    let reason = body.get("reason").and_then(Value::as_str).map(str::to_owned);
    let update = NodeUpdate { action, reason };
    let names = hostlist::expand(names).ok_or(Error::InvalidNodeName)?;
    if names.iter().any(|n| cluster.node_spec(n).is_none()) {
        return Err(Error::InvalidNodeName);
    }
    let results: Vec<Result<(), Error>> =
        names.iter().map(|name| cluster.update_node(name, &update, call.user)).collect();
    results.into_iter().collect()
}

/// POST job/submit. The job runs as long as its script's `sleep N` says, else until its limit.
pub(super) fn submit(cluster: &mut Cluster, call: &Call<'_>) -> Result<Answer, Raw> {
    let body = match parse_body(call)? {
        Ok(body) => body,
        Err(answer) => return Ok(answer),
    };
    let empty = Map::new();
    let job = body.get("job").and_then(Value::as_object).unwrap_or(&empty);
    let known = [
        "script",
        "name",
        "partition",
        "environment",
        "time_limit",
        "tres_per_node",
        "nodes",
        "minimum_nodes",
        "required_nodes",
        "reservation",
        "hold",
        "priority",
        "cpus_per_task",
        "memory_per_node",
        "requeue",
        "current_working_directory",
        "standard_output",
        "standard_error",
        "standard_input",
        "comment",
        "account",
        "qos",
        "shared",
        "exclusive",
        "user_id",
        "tasks",
    ];
    let warnings = unknown_fields(job, &known, "job/", "DATA_PARSER_JOB_DESC_MSG");
    let field = |name: &str| job.get(name);
    let text_of = |name: &str| field(name).and_then(Value::as_str).map(str::to_owned);
    let script = body.get("script").and_then(Value::as_str).map(str::to_owned).or_else(|| text_of("script"));
    let mut answer = if let Some(script) = script {
        if field("environment").is_none() {
            let complaint = Complaint::new(
                "Batch job submission failed",
                2019,
                "I/O error writing script/environment to file",
                "slurm_submit_batch_job()",
            );
            Answer::error(StatusCode::INTERNAL_SERVER_ERROR, complaint)
        } else {
            accept(cluster, spec(call.user, job, &script))
        }
    } else {
        Answer::error(
            StatusCode::UNPROCESSABLE_ENTITY,
            Complaint::new(
                "Populated \"script\" field is required for job submission",
                9000,
                "Query empty or not RFC7320 compliant",
                "_job_post",
            ),
        )
    };
    answer.warnings.extend(warnings);
    Ok(answer)
}

fn accept(cluster: &mut Cluster, spec: JobSpec) -> Answer {
    match cluster.submit(spec) {
        Ok(id) => Answer::ok([
            ("job_id", id.0.into()),
            ("step_id", "batch".into()),
            ("job_submit_user_msg", "".into()),
        ]),
        Err(error) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            let mut answer =
                Answer::refused(error, "Batch job submission failed", "slurm_submit_batch_job()");
            answer.status = if error == Error::ControllerDown { answer.status } else { status };
            answer
        }
    }
}

fn spec(user: &str, job: &Map<String, Value>, script: &str) -> JobSpec {
    let field = |name: &str| job.get(name);
    let text_of = |name: &str| field(name).and_then(Value::as_str).map(str::to_owned);
    let count = |name: &str| number(field(name)).and_then(|n| u32::try_from(n).ok());
    let (kind, gpus) = gpus(&text_of("tres_per_node").unwrap_or_default());
    let limit = number(field("time_limit")).map(SignedDuration::from_mins);
    // Far beyond any limit: the limit ends it.
    let run_time = sleep_in(script).unwrap_or(SignedDuration::from_hours(10 * 365 * 24));
    let mut spec = JobSpec::new(user, count("nodes").or(count("minimum_nodes")).unwrap_or(1), gpus, run_time);
    spec.name = text_of("name").unwrap_or_else(|| "wrap".to_owned());
    spec.partition = text_of("partition");
    spec.gpu_kind = kind;
    spec.time_limit = limit;
    spec.cpus_per_node = count("cpus_per_task").unwrap_or(spec.cpus_per_node);
    spec.memory_mb_per_node = number(field("memory_per_node"))
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(spec.memory_mb_per_node);
    spec.required_nodes = field("required_nodes")
        .map(words)
        .and_then(|words| hostlist::expand(&words.join(",")))
        .unwrap_or_default();
    spec.reservation = text_of("reservation");
    spec.priority = count("priority").unwrap_or(spec.priority);
    spec.hold = field("hold").and_then(Value::as_bool).unwrap_or_default();
    spec.requeue = field("requeue").and_then(Value::as_bool).unwrap_or(true);
    spec
}

/// `gres/gpu:2`, `gres:gpu:a100:2`.
fn gpus(tres: &str) -> (Option<String>, u32) {
    let words: Vec<&str> = tres.split([':', '/']).collect();
    match words.as_slice() {
        ["gres", "gpu", count] => (None, count.parse().unwrap_or(0)),
        ["gres", "gpu", kind, count] => (Some((*kind).to_owned()), count.parse().unwrap_or(0)),
        _ => (None, 0),
    }
}

fn sleep_in(script: &str) -> Option<SignedDuration> {
    let mut words = script.split_whitespace().skip_while(|&word| word != "sleep").skip(1);
    let seconds: f64 = words.next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().and_then(|d| SignedDuration::try_from(d).ok())
}

/// DELETE job/ID. An unknown job is a 200 with the error in `status[]`.
pub(super) fn kill(cluster: &mut Cluster, call: &Call<'_>, id: &str) -> Answer {
    let mut status = Vec::new();
    let mut errors = Vec::new();
    let signal = call.query.get("signal").map_or("KILL", String::as_str);
    if matches!(signal.trim_start_matches("SIG"), "KILL" | "TERM" | "9" | "15") {
        let known = id.parse().ok().map(JobId).filter(|id| cluster.job(*id).is_some());
        let outcome = known.ok_or(Error::InvalidJobId).and_then(|id| cluster.cancel(id, call.user));
        if let Err(error) = outcome {
            status.push(status_entry(id, known, error));
        }
    } else if !matches!(signal.trim_start_matches("SIG"), "USR1" | "USR2" | "CONT" | "HUP" | "INT") {
        errors.push(Complaint::new("Unknown signal (null)", 0, "No error", "#/signal/"));
    }
    let mut answer = Answer::ok([("status", status.into())]);
    answer.errors = errors;
    answer
}

fn status_entry(step: &str, known: Option<JobId>, error: Error) -> Value {
    let id = match known {
        Some(id) => sin(id.0),
        None => json!({"set": false, "infinite": false, "number": 0}),
    };
    json!({
        "error": {"string": error.to_string(), "code": error.code(), "message": error.to_string()},
        "step_id": step,
        "job_id": id,
        "federation": {"sibling": ""},
    })
}

/// DELETE jobs/ by filter: every field that is given must match.
pub(super) fn kill_many(cluster: &mut Cluster, call: &Call<'_>) -> Result<Answer, Raw> {
    let body = match parse_body(call)? {
        Ok(body) => body,
        Err(answer) => return Ok(answer),
    };
    let list = |name: &str| body.get(name).map(words);
    let (ids, states, nodes) = (list("jobs"), list("job_state"), list("nodes"));
    let nodes: Option<Vec<NodeName>> = nodes.and_then(|words| hostlist::expand(&words.join(",")));
    let user = body.get("user_name").and_then(Value::as_str);
    let now = cluster.now();
    let filtered = ids.is_some() || states.is_some() || nodes.is_some() || user.is_some();
    let matching: Vec<JobId> = cluster
        .jobs()
        .filter(|j| filtered && can_be_killed(j.state))
        .filter(|j| ids.as_ref().is_none_or(|ids| ids.contains(&j.id.to_string())))
        .filter(|j| user.is_none_or(|user| j.spec.user == user))
        .filter(|j| nodes.as_ref().is_none_or(|nodes| nodes.iter().any(|n| j.allocation.contains_key(n))))
        .filter(|j| {
            let words = j.state_words(now);
            states.as_ref().is_none_or(|states| states.iter().all(|s| words.contains(&s.as_str())))
        })
        .map(|j| j.id)
        .collect();
    let mut refusals = Vec::new();
    for id in matching {
        if let Err(error) = cluster.cancel(id, call.user) {
            refusals.push(status_entry(&id.to_string(), Some(id), error));
        }
    }
    Ok(Answer::ok([("status", refusals.into())]))
}
