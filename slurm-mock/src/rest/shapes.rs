//! The JSON of data_parser v0.0.42 (and v0.0.41): only how things are written, nothing about what is asked.
//! Fields that the model does not know keep the values of `templates/`, which real 24.11 answered.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Api;
use crate::{
    hostlist,
    model::{
        BaseState, Cluster, Job, JobState, NodeName, NodeSpec, NodeView, Partition, PartitionState,
        Reservation, Share, tres_memory,
    },
};

/// The API versions that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// v0.0.41.
    V41,
    /// v0.0.42.
    V42,
}

impl Version {
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "v0.0.41" => Some(Self::V41),
            "v0.0.42" => Some(Self::V42),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::V41 => "v0.0.41",
            Self::V42 => "v0.0.42",
        }
    }
}

/// The constant parts of the answers.
#[derive(Clone, Debug)]
pub(super) struct Templates {
    node: Map<String, Value>,
    job: Map<String, Value>,
    partition: Map<String, Value>,
    diag: Map<String, Value>,
}

impl Templates {
    pub(super) fn load() -> Result<Self, serde_json::Error> {
        Ok(Self {
            node: serde_json::from_str(include_str!("templates/node.json"))?,
            job: serde_json::from_str(include_str!("templates/job.json"))?,
            partition: serde_json::from_str(include_str!("templates/partition.json"))?,
            diag: serde_json::from_str(include_str!("templates/diag.json"))?,
        })
    }
}

/// What GET node/X does not refresh: it is what the last GET nodes saw.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    base: BaseState,
    cpus: u32,
    memory_mb: u64,
    tres: String,
}

impl Usage {
    pub(super) fn of(view: &NodeView) -> Self {
        Self {
            base: view.base,
            cpus: view.alloc_cpus,
            memory_mb: view.alloc_memory_mb,
            tres: view.tres_used(),
        }
    }
}

/// A set number.
pub(super) fn sin(number: impl Into<Value>) -> Value {
    json!({"set": true, "infinite": false, "number": number.into()})
}

fn unset() -> Value {
    json!({"set": false, "infinite": false, "number": 0})
}

/// A time in whole seconds; `None` is 0, as Slurm has it.
pub(super) fn time(t: Option<Timestamp>) -> Value {
    sin(t.map_or(0, Timestamp::as_second))
}

pub(super) fn meta(version: Version, user: &str, cluster: &str) -> Value {
    json!({
        "plugin": {
            "type": "openapi/slurmctld",
            "name": "Slurm OpenAPI slurmctld",
            "data_parser": format!("data_parser/{}", version.as_str()),
            "accounting_storage": "accounting_storage/slurmdbd",
        },
        "client": {"source": "[localhost]:41854(fd:9)", "user": user, "group": user},
        "command": [],
        "slurm": {
            "version": {"major": "24", "micro": "5", "minor": "11"},
            "release": "24.11.5",
            "cluster": cluster,
        },
    })
}

pub(super) fn ping(version: Version, up: bool) -> Value {
    let state = if up { "UP" } else { "DOWN" };
    let mut one = json!({"hostname": "vm", "pinged": state, "latency": 950, "mode": "primary"});
    if version == Version::V42 {
        one["responding"] = up.into();
        one["primary"] = true.into();
    }
    json!([one])
}

impl Api {
    pub(super) fn node(&self, view: &NodeView, usage: &Usage) -> Value {
        let mut out = self.templates.node.clone();
        let spec = &view.spec;
        // A mark that is no matter of load is never stale.
        let base = match view.base {
            BaseState::Down | BaseState::Unknown => view.base,
            BaseState::Idle | BaseState::Mixed | BaseState::Allocated => match usage.base {
                BaseState::Down | BaseState::Unknown => view.base,
                BaseState::Idle | BaseState::Mixed | BaseState::Allocated => usage.base,
            },
        };
        let state: Vec<&str> =
            std::iter::once(base.as_str()).chain(view.flags.iter().map(|f| f.as_str())).collect();
        let reason = view.reason.as_ref();
        let all = spec.indices(None).into_iter().collect();
        let billing = format!("billing={}", spec.cpus);
        let fields = [
            ("name", spec.name.as_str().into()),
            ("boot_time", time(Some(view.slurmd_start))),
            ("slurmd_start_time", time(Some(view.slurmd_start))),
            ("last_busy", time(Some(view.last_busy))),
            ("cpus", spec.cpus.into()),
            ("effective_cpus", spec.cpus.into()),
            ("cores", (spec.cpus / 2).into()),
            ("features", spec.features.clone().into()),
            ("active_features", spec.features.clone().into()),
            ("gres", spec.gres().into()),
            ("gres_used", view.gres_used().into()),
            ("state", state.into()),
            ("partitions", view.partitions.clone().into()),
            ("real_memory", spec.memory_mb.into()),
            ("reason", reason.map_or("", |r| &r.text).into()),
            ("reason_changed_at", time(reason.map(|r| r.changed_at))),
            ("reason_set_by_user", reason.map_or("", |r| &r.user).into()),
            ("reservation", view.reservation.as_deref().unwrap_or_default().into()),
            ("alloc_memory", usage.memory_mb.into()),
            ("alloc_cpus", usage.cpus.into()),
            ("alloc_idle_cpus", spec.cpus.saturating_sub(usage.cpus).into()),
            ("tres_used", usage.tres.as_str().into()),
            ("tres_weighted", usage.cpus.into()),
            ("tres", spec.tres(spec.cpus, spec.memory_mb, &all, &billing).into()),
        ];
        overlay(&mut out, fields);
        Value::Object(out)
    }

    pub(super) fn job(&self, version: Version, cluster: &Cluster, job: &Job) -> Value {
        let mut out = self.templates.job.clone();
        let now = cluster.now();
        let spec = &job.spec;
        let specs = allocated(cluster, job);
        let nodes =
            if job.allocation.is_empty() { spec.nodes.into() } else { Value::from(job.allocation.len()) };
        let (start, end) = times(job, now);
        let signaled =
            matches!(job.state, JobState::Cancelled | JobState::Timeout) && job.started_at.is_some();
        let uid = uid(&spec.user);
        let holds = job.state.holds_nodes();
        let allocated_tres =
            if specs.is_empty() { String::new() } else { tres(specs.iter().map(|(n, s)| (Some(*n), *s))) };
        let fields = [
            ("job_id", job.id.0.into()),
            ("name", spec.name.as_str().into()),
            ("user_name", spec.user.as_str().into()),
            ("mail_user", spec.user.as_str().into()),
            ("group_name", spec.user.as_str().into()),
            ("user_id", uid.into()),
            ("group_id", uid.into()),
            ("cluster", cluster.config().cluster_name.as_str().into()),
            ("partition", job.partition.as_str().into()),
            ("job_state", job.state_words(now).into()),
            ("state_reason", job.reason.code().into()),
            ("state_description", job.reason.description().into()),
            ("hold", spec.hold.into()),
            ("requeue", spec.requeue.into()),
            ("restart_cnt", job.restarts.into()),
            ("priority", sin(spec.priority)),
            ("accrue_time", time(Some(job.eligible_at))),
            ("eligible_time", time(Some(job.eligible_at))),
            ("submit_time", time(Some(job.submitted_at))),
            ("last_sched_evaluation", time(Some(now))),
            ("start_time", time(start)),
            ("end_time", time(end)),
            ("suspend_time", time(job.suspended_at)),
            ("pre_sus_time", sin(job.suspended_for.as_secs())),
            ("time_limit", sin(job.time_limit.as_mins())),
            ("nodes", hostlist::compress(job.allocation.keys()).into()),
            ("batch_host", job.allocation.keys().next().map_or("", NodeName::as_str).into()),
            ("required_nodes", hostlist::compress(&spec.required_nodes).into()),
            (
                "scheduled_nodes",
                job.planned.as_ref().map_or(String::new(), |(_, nodes)| hostlist::compress(nodes)).into(),
            ),
            ("resv_name", spec.reservation.as_deref().unwrap_or_default().into()),
            ("node_count", sin(nodes)),
            ("cpus", sin(spec.cpus_per_node.saturating_mul(spec.nodes))),
            ("minimum_cpus_per_node", sin(spec.cpus_per_node)),
            ("memory_per_node", sin(spec.memory_mb_per_node)),
            ("tres_per_node", tres_per_node(job).into()),
            ("tres_req_str", requested_tres(job).into()),
            ("tres_alloc_str", allocated_tres.into()),
            (
                "gres_detail",
                specs
                    .iter()
                    .filter(|_| holds)
                    .filter_map(|(n, s)| n.gres_detail(&s.gpus))
                    .collect::<Vec<_>>()
                    .into(),
            ),
            ("job_resources", resources(&specs)),
            ("exit_code", exit_code(signaled)),
        ];
        overlay(&mut out, fields);
        if version == Version::V41 {
            out.remove("priority_by_partition");
            out.remove("required_switches");
            let older = [
                ("exclusive", json!([])),
                ("minimum_switches", 0.into()),
                ("oversubscribe", true.into()),
                ("show_flags", json!([])),
            ];
            overlay(&mut out, older);
        }
        Value::Object(out)
    }

    pub(super) fn partition(&self, cluster: &Cluster, partition: &Partition) -> Value {
        let mut out = self.templates.partition.clone();
        let nodes: Vec<NodeView> =
            cluster.nodes().into_iter().filter(|n| partition.nodes.contains(&n.spec.name)).collect();
        let cpus: u32 = nodes.iter().map(|n| n.spec.cpus).sum();
        let everything: Vec<(NodeSpec, Share)> = nodes
            .into_iter()
            .map(|n| {
                let gpus = n.spec.indices(None).into_iter().collect();
                let share = Share { cpus: n.spec.cpus, memory_mb: n.spec.memory_mb, gpus };
                (n.spec, share)
            })
            .collect();
        let state = match partition.state {
            PartitionState::Up => "UP",
            PartitionState::Down => "DOWN",
        };
        let mut nested = [
            ("nodes", "configured", hostlist::compress(&partition.nodes).into()),
            ("nodes", "total", partition.nodes.len().into()),
            ("cpus", "total", cpus.into()),
            ("tres", "configured", tres(everything.iter().map(|(n, s)| (Some(n), s))).into()),
            ("defaults", "time", sin(partition.default_time.as_mins())),
            (
                "maximums",
                "time",
                partition
                    .max_time
                    .map_or(json!({"set": false, "infinite": true, "number": 0}), |t| sin(t.as_mins())),
            ),
            ("partition", "state", json!([state])),
        ];
        for (outer, inner, value) in &mut nested {
            if let Some(Value::Object(map)) = out.get_mut(*outer) {
                map.insert((*inner).to_owned(), value.take());
            }
        }
        out.insert("name".to_owned(), partition.name.as_str().into());
        Value::Object(out)
    }

    pub(super) fn statistics(&self, cluster: &Cluster) -> Value {
        let mut out = self.templates.diag.clone();
        let count = |state: JobState| cluster.jobs().filter(|j| j.state == state).count();
        let fields = [
            ("req_time", time(Some(cluster.now()))),
            ("jobs_pending", count(JobState::Pending).into()),
            ("jobs_running", count(JobState::Running).into()),
            ("jobs_canceled", count(JobState::Cancelled).into()),
            ("jobs_completed", count(JobState::Completed).into()),
            ("job_states_ts", time(Some(cluster.now()))),
        ];
        overlay(&mut out, fields);
        Value::Object(out)
    }
}

pub(super) fn reservation(cluster: &Cluster, r: &Reservation) -> Value {
    let cores: u32 =
        cluster.nodes().iter().filter(|n| r.nodes.contains(&n.spec.name)).map(|n| n.spec.cpus).sum();
    json!({
        "accounts": "",
        "burst_buffer": "",
        "core_count": cores,
        "core_specializations": [],
        "end_time": time(Some(r.end)),
        "features": "",
        "flags": r.flags.iter().map(|f| f.as_str()).collect::<Vec<_>>(),
        "groups": "",
        "licenses": "",
        "max_start_delay": 0,
        "name": r.name,
        "node_count": r.nodes.len(),
        "node_list": hostlist::compress(&r.nodes),
        "partition": "",
        "purge_completed": {"time": sin(300)},
        "start_time": time(Some(r.start)),
        "watts": {},
        "tres": format!("cpu={cores}"),
        "users": r.users.join(","),
    })
}

/// A start and an end, as far as slurmctld knows or plans them.
fn times(job: &Job, now: Timestamp) -> (Option<Timestamp>, Option<Timestamp>) {
    let start = match job.state {
        JobState::Pending => match &job.planned {
            Some((start, _)) => Some(*start),
            None => (job.eligible_at > now).then_some(job.eligible_at),
        },
        JobState::Running
        | JobState::Suspended
        | JobState::Completed
        | JobState::Cancelled
        | JobState::Timeout
        | JobState::NodeFail => job.started_at.or(job.ended_at),
    };
    let limit = start.and_then(|start| start.checked_add(job.time_limit).ok());
    (start, job.ended_at.or(job.expected_end(now)).or(limit))
}

fn allocated<'a>(cluster: &'a Cluster, job: &'a Job) -> Vec<(&'a NodeSpec, &'a Share)> {
    job.allocation.iter().filter_map(|(name, share)| Some((cluster.node_spec(name)?, share))).collect()
}

/// A node's description, where it is known which, and what is taken of it.
fn tres<'a>(shares: impl Iterator<Item = (Option<&'a NodeSpec>, &'a Share)>) -> String {
    let (mut cpus, mut memory_mb, mut nodes, mut gpus) = (0, 0, 0, 0);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (spec, share) in shares {
        cpus += share.cpus;
        memory_mb += share.memory_mb;
        nodes += 1;
        gpus += share.gpus.len();
        for kind in spec.into_iter().flat_map(|s| &s.gpus) {
            let of_kind = spec.map_or(Vec::new(), |s| s.indices(Some(&kind.kind)));
            *kinds.entry(&kind.kind).or_default() +=
                of_kind.iter().filter(|i| share.gpus.contains(i)).count();
        }
    }
    let mut parts = vec![
        format!("cpu={cpus}"),
        format!("mem={}", tres_memory(memory_mb)),
        format!("node={nodes}"),
        format!("billing={cpus}"),
    ];
    if gpus > 0 {
        parts.push(format!("gres/gpu={gpus}"));
    }
    parts.extend(kinds.iter().filter(|(_, n)| **n > 0).map(|(kind, n)| format!("gres/gpu:{kind}={n}")));
    parts.join(",")
}

fn requested_tres(job: &Job) -> String {
    let spec = &job.spec;
    let share = Share {
        cpus: spec.cpus_per_node,
        memory_mb: spec.memory_mb_per_node,
        gpus: (0..spec.gpus_per_node).collect(),
    };
    tres((0..spec.nodes).map(|_| (None, &share)))
}

fn tres_per_node(job: &Job) -> String {
    match (job.spec.gpus_per_node, &job.spec.gpu_kind) {
        (0, _) => String::new(),
        (count, None) => format!("gres/gpu:{count}"),
        (count, Some(kind)) => format!("gres/gpu:{kind}:{count}"),
    }
}

fn exit_code(signaled: bool) -> Value {
    if signaled {
        return json!({"status": ["SIGNALED"], "return_code": unset(), "signal": {"id": sin(15), "name": "TERM"}});
    }
    json!({"status": ["SUCCESS"], "return_code": sin(0), "signal": {"id": unset(), "name": ""}})
}

fn resources(shares: &[(&NodeSpec, &Share)]) -> Value {
    if shares.is_empty() {
        return Value::Null;
    }
    let core = |index: u32, taken: bool| json!({"index": index, "status": [if taken { "ALLOCATED" } else { "UNALLOCATED" }]});
    let node = |(index, (spec, share)): (usize, &(&NodeSpec, &Share))| {
        let cores = (spec.cpus / 2).max(1);
        let socket = |s: u32| {
            let cores: Vec<Value> = (0..cores).map(|c| core(c, s * cores + c < share.cpus)).collect();
            json!({"index": s, "cores": cores})
        };
        json!({
            "index": index,
            "name": spec.name.as_str(),
            "cpus": {"count": share.cpus, "used": 0},
            "memory": {"used": 0, "allocated": share.memory_mb},
            "sockets": [socket(0), socket(1)],
        })
    };
    json!({
        "select_type": ["CORE"],
        "nodes": {
            "count": shares.len(),
            "select_type": ["ONE_ROW"],
            "list": hostlist::compress(shares.iter().map(|(spec, _)| &spec.name)),
            "whole": false,
            "allocation": shares.iter().enumerate().map(node).collect::<Vec<_>>(),
        },
        "cpus": shares.iter().map(|(_, s)| s.cpus).sum::<u32>(),
        "threads_per_core": unset(),
    })
}

/// A number for a user: 0 for root, else stable and above 1000.
pub(crate) fn uid(user: &str) -> u32 {
    match user {
        "root" => 0,
        _ => 2000 + user.bytes().fold(0_u32, |sum, b| (sum * 31 + u32::from(b)) % 30_011),
    }
}

fn overlay<const N: usize>(out: &mut Map<String, Value>, fields: [(&str, Value); N]) {
    for (key, value) in fields {
        out.insert(key.to_owned(), value);
    }
}
