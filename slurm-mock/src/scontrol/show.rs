//! What `scontrol show` prints, in the lines of 24.11.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::Output;
use crate::{
    Cluster, hostlist,
    model::{Job, JobId, NodeName, NodeView, Reservation},
    rest::uid,
};

/// `-o` and `-d`.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) one_line: bool,
    pub(super) details: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Node,
    Job,
    Reservation,
}

pub(super) fn show(cluster: &Cluster, kind: Kind, name: Option<&str>, layout: Layout) -> Output {
    let records: Result<Vec<String>, Output> = match kind {
        Kind::Node => nodes(cluster, name, layout),
        Kind::Job => jobs(cluster, name),
        Kind::Reservation => reservations(cluster, name),
    };
    match records {
        Err(output) => output,
        Ok(records) => {
            let print = |r: &String| {
                if layout.one_line { r.replace("\n   ", " ") + "\n" } else { format!("{r}\n\n") }
            };
            Output::ok(records.iter().map(print).collect::<String>())
        }
    }
}

fn missing(text: String) -> Output {
    Output { exit: 1, stdout: text, stderr: String::new() }
}

fn nodes(cluster: &Cluster, name: Option<&str>, layout: Layout) -> Result<Vec<String>, Output> {
    let views = cluster.nodes();
    let Some(names) = name else { return Ok(views.iter().map(|v| node(v, layout)).collect()) };
    let names = hostlist::expand(names).ok_or_else(|| missing(format!("Node {names} not found\n")))?;
    let one = |name: &NodeName| {
        let view = views.iter().find(|v| v.spec.name == *name);
        view.map(|v| node(v, layout)).ok_or_else(|| missing(format!("Node {name} not found\n")))
    };
    names.iter().map(one).collect()
}

fn jobs(cluster: &Cluster, name: Option<&str>) -> Result<Vec<String>, Output> {
    let now = cluster.now();
    let Some(id) = name else { return Ok(cluster.jobs().map(|j| job(j, now)).collect()) };
    let found = id.parse().ok().and_then(|id| cluster.job(JobId(id)));
    match found {
        Some(j) => Ok(vec![job(j, now)]),
        None => Err(Output::failed("slurm_load_jobs error: Invalid job id specified")),
    }
}

fn reservations(cluster: &Cluster, name: Option<&str>) -> Result<Vec<String>, Output> {
    let Some(name) = name else {
        let all: Vec<String> = cluster.reservations().map(|r| reservation(cluster, r)).collect();
        if all.is_empty() {
            return Err(Output::ok("No reservations in the system\n"));
        }
        return Ok(all);
    };
    match cluster.reservation(name) {
        Some(r) => Ok(vec![reservation(cluster, r)]),
        None => Err(missing(format!("Reservation {name} not found\n"))),
    }
}

fn time(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

fn duration(d: SignedDuration) -> String {
    let seconds = d.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

fn node(view: &NodeView, layout: Layout) -> String {
    let spec = &view.spec;
    let all: BTreeSet<u32> = spec.indices(None).into_iter().collect();
    let billing = format!("billing={}", spec.cpus);
    let features = spec.features.join(",");
    let mut lines = vec![
        format!("NodeName={} Arch=x86_64 CoresPerSocket={} ", spec.name, spec.cpus / 2),
        format!("CPUAlloc={} CPUEfctv={} CPUTot={} CPULoad=0.79", view.alloc_cpus, spec.cpus, spec.cpus),
        format!("AvailableFeatures={features}"),
        format!("ActiveFeatures={features}"),
        format!("Gres={}", spec.gres()),
        "NodeAddr=127.0.0.1 NodeHostName=vm Port=35421 Version=24.11.5".to_owned(),
        "OS=Linux 6.1.0-amd64 #1 SMP PREEMPT_DYNAMIC @0 ".to_owned(),
        format!(
            "RealMemory={} AllocMem={} FreeMem=20185 Sockets=2 Boards=1",
            spec.memory_mb, view.alloc_memory_mb
        ),
        format!("State={} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A", view.state_text()),
        format!("Partitions={} ", view.partitions.join(",")),
        format!("BootTime={} SlurmdStartTime={}", time(view.slurmd_start), time(view.slurmd_start)),
        format!("LastBusyTime={} ResumeAfterTime=None", time(view.last_busy)),
        format!("CfgTRES={}", spec.tres(spec.cpus, spec.memory_mb, &all, &billing)),
        format!("AllocTRES={}", view.tres_used()),
        "CurrentWatts=0 AveWatts=0".to_owned(),
        String::new(),
    ];
    if layout.details {
        let gres = lines.iter().position(|l| l.starts_with("Gres=")).map_or(0, |at| at + 1);
        let details = ["GresDrain=N/A".to_owned(), format!("GresUsed={}", view.gres_used())];
        lines.splice(gres..gres, details);
    }
    if let Some(reason) = &view.reason {
        lines.push(format!("Reason={} [{}@{}]", reason.text, reason.user, time(reason.changed_at)));
    }
    if let Some(reservation) = &view.reservation {
        lines.push(format!("ReservationName={reservation}"));
    }
    lines.join("\n   ")
}

fn job(job: &Job, now: Timestamp) -> String {
    let spec = &job.spec;
    let shown = |t: Option<Timestamp>| t.map_or("Unknown".to_owned(), time);
    let none = |text: String| if text.is_empty() { "(null)".to_owned() } else { text };
    let state = if job.is_completing() { "COMPLETING" } else { job.state.as_str() };
    [
        format!("JobId={} JobName={}", job.id, spec.name),
        format!("UserId={}({}) Priority={}", spec.user, uid(&spec.user), spec.priority),
        format!("JobState={state} Reason={} Dependency=(null)", job.reason.code()),
        format!("Requeue={} Restarts={} BatchFlag=1 Reboot=0", i32::from(spec.requeue), job.restarts),
        format!("TimeLimit={} SubmitTime={}", duration(job.time_limit), time(job.submitted_at)),
        format!("EligibleTime={}", time(job.eligible_at)),
        format!(
            "StartTime={} EndTime={}",
            shown(job.started_at),
            shown(job.ended_at.or_else(|| job.expected_end(now)))
        ),
        format!("Partition={}", job.partition),
        format!("ReqNodeList={} ExcNodeList=(null)", none(hostlist::compress(&spec.required_nodes))),
        format!("NodeList={}", hostlist::compress(job.allocation.keys())),
        format!("Reservation={}", none(spec.reservation.clone().unwrap_or_default())),
    ]
    .join("\n   ")
}

fn reservation(cluster: &Cluster, r: &Reservation) -> String {
    let cores: u32 = r.nodes.iter().filter_map(|n| cluster.node_spec(n)).map(|n| n.cpus).sum();
    let flags: Vec<&str> = r.flags.iter().map(|f| f.as_str()).collect();
    let state = if r.is_active(cluster.now()) { "ACTIVE" } else { "INACTIVE" };
    [
        format!(
            "ReservationName={} StartTime={} EndTime={} Duration={}",
            r.name,
            time(r.start),
            time(r.end),
            duration(r.end.duration_since(r.start))
        ),
        format!(
            "Nodes={} NodeCnt={} CoreCnt={cores} Features=(null) PartitionName=(null) Flags={}",
            hostlist::compress(&r.nodes),
            r.nodes.len(),
            flags.join(",")
        ),
        format!("TRES=cpu={cores}"),
        format!(
            "Users={} Groups=(null) Accounts=(null) Licenses=(null) State={state} BurstBuffer=(null)",
            r.users.join(",")
        ),
        "MaxStartDelay=(null)".to_owned(),
    ]
    .join("\n   ")
}
