//! scontrol as a function: words in, exit code and text out. It covers what REST v0.0.42 cannot do
//! (reservations) and what people type in a handover. Times are read and printed in UTC.

mod parse;
mod show;

use http::{Method, Request};
use hyper::body::Bytes;

use self::{
    parse::{Assignment, Op},
    show::Layout,
};
use crate::{
    Cluster, hostlist,
    model::{
        Error, JobId, ListChange, NodeAction, NodeName, NodeUpdate, ReservationChange, ReservationFlag,
        ReservationRequest,
    },
    rest::{Api, Auth, Peer},
};

/// What a command leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit code.
    pub exit: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    fn ok(stdout: impl Into<String>) -> Self {
        Self { exit: 0, stdout: stdout.into(), stderr: String::new() }
    }

    fn failed(stderr: impl std::fmt::Display) -> Self {
        Self { exit: 1, stdout: String::new(), stderr: format!("{stderr}\n") }
    }
}

/// Runs a command as root. `argv` starts after the program's name.
pub fn run(cluster: &mut Cluster, argv: &[String]) -> Output {
    run_as(cluster, "root", argv)
}

/// Runs a command as a user.
pub fn run_as(cluster: &mut Cluster, user: &str, argv: &[String]) -> Output {
    let json = argv.iter().any(|a| a == "--json" || a.starts_with("--json="));
    let layout = Layout {
        one_line: argv.iter().any(|a| a == "-o" || a == "--oneliner"),
        details: argv.iter().any(|a| a == "-d" || a == "--details"),
    };
    let words: Vec<&str> = argv.iter().map(String::as_str).filter(|a| !a.starts_with('-')).collect();
    let Some((command, rest)) = words.split_first() else { return Output::failed("no command") };
    match (command.to_ascii_lowercase().as_str(), rest) {
        ("ping", []) => {
            let state = if cluster.controller_is_up() { "UP" } else { "DOWN" };
            let exit = i32::from(!cluster.controller_is_up());
            Output { exit, stdout: format!("Slurmctld(primary) at vm is {state}\n"), stderr: String::new() }
        }
        ("show", [what, names @ ..]) => show(cluster, what, names, json, layout),
        ("create", rest) => create(cluster, user, rest),
        ("update", rest) => update(cluster, user, rest),
        ("delete", rest) => delete(cluster, user, rest),
        ("suspend", [ids]) => jobs(ids, |id| cluster.suspend(id, user)),
        ("resume", [ids]) => jobs(ids, |id| cluster.resume_job(id, user)),
        ("requeue", [ids]) => jobs(ids, |id| cluster.requeue(id, user)),
        ("release", [ids]) => jobs(ids, |id| cluster.release(id, user)),
        _ => Output::failed(format_args!("invalid keyword: {}", words.join(" "))),
    }
}

fn show(cluster: &mut Cluster, what: &str, names: &[&str], json: bool, layout: Layout) -> Output {
    let what = what.to_ascii_lowercase();
    let (what, assigned) = what.split_once('=').unwrap_or((what.as_str(), ""));
    let name = names.first().copied().or((!assigned.is_empty()).then_some(assigned));
    if what == "config" {
        if !cluster.controller_is_up() {
            return Output::failed(format_args!("slurm_load_ctl_conf error: {}", Error::ControllerDown));
        }
        let next = cluster.next_job_id().0.to_string();
        let lines = [
            ("AccountingStorageType", "(null)"),
            ("NEXT_JOB_ID", next.as_str()),
            ("PrivateData", "none"),
            ("SlurmUser", "slurm(64030)"),
            ("SLURM_VERSION", "24.11.5"),
        ];
        return Output::ok(lines.map(|(name, value)| format!("{name:<24}= {value}\n")).concat());
    }
    let (kind, path, error) = match what {
        "node" | "nodes" | "nodename" => (show::Kind::Node, "node", "slurm_load_node error"),
        "job" | "jobs" | "jobid" => (show::Kind::Job, "job", "slurm_load_jobs error"),
        "res" | "reservation" | "reservations" | "reservationname" => {
            (show::Kind::Reservation, "reservation", "slurm_load_reservations error")
        }
        _ => return Output::failed(format_args!("invalid entity:{what} for keyword:show")),
    };
    if !cluster.controller_is_up() {
        return Output::failed(format_args!("{error}: {}", Error::ControllerDown));
    }
    if json {
        let path = name.map_or_else(|| format!("{path}s"), |name| format!("{path}/{name}"));
        return match document(cluster, &path) {
            Ok(body) => Output::ok(body + "\n"),
            Err(problem) => Output::failed(problem),
        };
    }
    show::show(cluster, kind, name, layout)
}

/// `--json` prints what REST would answer root.
fn document(cluster: &mut Cluster, path: &str) -> Result<String, String> {
    let mut api = Api::new(Auth::default()).map_err(|e| e.to_string())?;
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("/slurm/v0.0.42/{path}"))
        .body(Bytes::new())
        .map_err(|e| e.to_string())?;
    let response = api.respond(cluster, &request, Peer::Socket);
    Ok(String::from_utf8_lossy(response.body()).into_owned())
}

fn create(cluster: &mut Cluster, user: &str, rest: &[&str]) -> Output {
    match creation(cluster, rest) {
        Err(problem) => Output::failed(problem),
        Ok(request) => match cluster.create_reservation(request, user) {
            Ok(name) => Output::ok(format!("Reservation created: {name}\n")),
            Err(error) => Output::failed(format_args!("Error creating the reservation: {error}")),
        },
    }
}

fn creation(cluster: &Cluster, rest: &[&str]) -> Result<ReservationRequest, String> {
    let now = cluster.now();
    let mut request = ReservationRequest {
        name: None,
        start: None,
        duration: jiff::SignedDuration::ZERO,
        nodes: Vec::new(),
        users: Vec::new(),
        flags: Vec::new(),
    };
    let (mut end, mut duration) = (None, None);
    for word in rest.iter().filter(|w| !w.eq_ignore_ascii_case("reservation")) {
        let Assignment { key, value, .. } = parse::assignment(word)?;
        match key.as_str() {
            "reservationname" | "reservation" => request.name = Some(value),
            "starttime" | "start" => request.start = Some(parse::time(&value, now)?),
            "endtime" | "end" => end = Some(parse::time(&value, now)?),
            "duration" => duration = Some(parse::duration(&value)?),
            "nodes" | "node" => request.nodes = nodes(cluster, &value)?,
            "users" | "user" => request.users = list(&value),
            "flags" | "flag" => request.flags = flags(&value)?,
            _ => return Err(format!("scontrol: error: Unknown parameter {word}.  No reservation created.")),
        }
    }
    if request.users.is_empty() {
        let problem = "scontrol: error: Either Users/Groups and/or Accounts must be specified.";
        return Err(format!("{problem}  No reservation created."));
    }
    let start =
        request.start.ok_or("scontrol: error: A start time must be given.  No reservation created.")?;
    request.duration = match (duration, end) {
        (Some(duration), _) => duration,
        (None, Some(end)) => end.duration_since(start),
        (None, None) => {
            return Err(
                "scontrol: error: An end time or duration must be given.  No reservation created.".to_owned()
            );
        }
    };
    Ok(request)
}

fn update(cluster: &mut Cluster, user: &str, rest: &[&str]) -> Output {
    let assignments: Result<Vec<Assignment>, String> = rest.iter().map(|w| parse::assignment(w)).collect();
    let assignments = match assignments {
        Ok(assignments) => assignments,
        Err(problem) => return Output::failed(problem),
    };
    let value_of =
        |keys: &[&str]| assignments.iter().find(|a| keys.contains(&a.key.as_str())).map(|a| a.value.clone());
    if let Some(name) = value_of(&["reservationname", "reservation"]) {
        return match change(cluster, &name, &assignments) {
            Err(problem) => Output::failed(problem),
            Ok(change) => match cluster.update_reservation(&name, &change, user) {
                Ok(()) => Output::ok("Reservation updated.\n"),
                Err(error) => Output::failed(format_args!("slurm_update error: {error}")),
            },
        };
    }
    match value_of(&["nodename", "node", "nodes"]) {
        Some(names) => update_nodes(cluster, user, &names, &assignments),
        None => Output::failed("No valid entity in update command"),
    }
}

fn change(cluster: &Cluster, name: &str, assignments: &[Assignment]) -> Result<ReservationChange, String> {
    let now = cluster.now();
    let mut change = ReservationChange::default();
    for Assignment { key, op, value } in assignments {
        match key.as_str() {
            "reservationname" | "reservation" => {}
            "starttime" | "start" => change.start = Some(parse::time(value, now)?),
            "endtime" | "end" => change.end = Some(parse::time(value, now)?),
            "duration" if value.starts_with(['+', '-']) => {
                return Err(format!(
                    "scontrol: error: Invalid duration duration={value}.  No reservation update."
                ));
            }
            "duration" => {
                let given = parse::duration(value)?;
                let old = cluster.reservation(name).map_or(given, |r| r.end.duration_since(r.start));
                change.duration = Some(match op {
                    Op::Set => given,
                    Op::Add => old.saturating_add(given),
                    Op::Remove => old.saturating_sub(given),
                });
            }
            "nodes" | "node" => change.nodes = Some(list_change(*op, nodes(cluster, value)?)),
            "users" | "user" => change.users = Some(list_change(*op, list(value))),
            "flags" | "flag" => change.flags = Some(list_change(*op, flags(value)?)),
            _ => return Err(format!("scontrol: error: Unknown parameter {key}.  No reservation update.")),
        }
    }
    Ok(change)
}

fn update_nodes(cluster: &mut Cluster, user: &str, names: &str, assignments: &[Assignment]) -> Output {
    let mut update = NodeUpdate::default();
    for Assignment { key, value, .. } in assignments {
        match key.as_str() {
            // A comment is no part of the model.
            "nodename" | "node" | "nodes" | "comment" => {}
            "reason" => update.reason = Some(value.trim_matches(['"', '\'']).to_owned()),
            "state" => match NodeAction::parse(value) {
                Some(action) => update.action = Some(action),
                None => return Output::failed(format_args!("Invalid input: state={value}\nRequest aborted")),
            },
            _ => {
                return Output::failed(format_args!(
                    "Update of this parameter is not supported: {key}={value}"
                ));
            }
        }
    }
    let needs_reason = matches!(update.action, Some(NodeAction::Drain | NodeAction::Down | NodeAction::Fail));
    if needs_reason && update.reason.is_none() {
        return Output::failed("You must specify a reason when DOWNING or DRAINING a node. Request denied");
    }
    let Some(names) = hostlist::expand(names) else {
        return Output::failed(format_args!("slurm_update error: {}", Error::InvalidNodeName));
    };
    let results: Vec<_> = names.iter().map(|name| cluster.update_node(name, &update, user)).collect();
    match results.into_iter().collect::<Result<(), Error>>() {
        Ok(()) => Output::default(),
        Err(error) => Output::failed(format_args!("slurm_update error: {error}")),
    }
}

fn delete(cluster: &mut Cluster, user: &str, rest: &[&str]) -> Output {
    let name = match rest {
        [word, name] if word.eq_ignore_ascii_case("reservation") => (*name).to_owned(),
        [word] => match parse::assignment(word) {
            Ok(a) if matches!(a.key.as_str(), "reservation" | "reservationname") => a.value,
            Ok(_) | Err(_) => return Output::failed("Invalid option for delete command"),
        },
        _ => return Output::failed("Invalid option for delete command"),
    };
    match cluster.delete_reservation(&name, user) {
        Ok(()) => Output::default(),
        // As the real one: the first word, whatever it is.
        Err(error) => {
            let word = rest.first().copied().unwrap_or_default();
            Output::failed(format_args!("delete_reservation {word}: {error}"))
        }
    }
}

fn jobs(ids: &str, mut act: impl FnMut(JobId) -> Result<(), Error>) -> Output {
    let mut failures = Vec::new();
    for id in ids.split(',') {
        let outcome = id.parse().map_err(|_| Error::InvalidJobId).and_then(|id| act(JobId(id)));
        if let Err(refused) = outcome {
            failures.push(format!("{refused} for job {id}\n"));
        }
    }
    Output { exit: i32::from(!failures.is_empty()), stdout: String::new(), stderr: failures.concat() }
}

fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

fn list_change<T>(op: Op, items: Vec<T>) -> ListChange<T> {
    match op {
        Op::Set => ListChange::Set(items),
        Op::Add => ListChange::Add(items),
        Op::Remove => ListChange::Remove(items),
    }
}

fn nodes(cluster: &Cluster, value: &str) -> Result<Vec<NodeName>, String> {
    if value.eq_ignore_ascii_case("ALL") {
        return Ok(cluster.nodes().into_iter().map(|n| n.spec.name).collect());
    }
    hostlist::expand(value).ok_or_else(|| format!("Error: Invalid node list: {value}"))
}

fn flags(value: &str) -> Result<Vec<ReservationFlag>, String> {
    let mut flags = Vec::new();
    for word in list(value) {
        match ReservationFlag::parse(&word) {
            Some(flag) => flags.push(flag),
            // Slurm sets it itself and takes it silently.
            None if word.eq_ignore_ascii_case("SPEC_NODES") => {}
            None => {
                return Err(format!("scontrol: error: Error parsing flags {word}.  No reservation created."));
            }
        }
    }
    Ok(flags)
}
