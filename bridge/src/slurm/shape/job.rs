//! Jobs: whole records, and the bare states of jobs/state.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::facts::slurm::{Job, JobState};
use gpu_bridge_core::ids::JobId;
use serde::{Deserialize, Serialize};

use super::super::answer::Asked;
use super::super::error::Error;
use super::super::json::{Odd, Sin, Text, Words, each, leading_number};
use super::super::version::Family;
use super::super::{gres, tasks};
use super::hosts;

/// A job's id and its states, as jobs/state gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::slurm) struct JobMark {
    pub(in crate::slurm) state: JobState,
    /// Slurm's words, for noticing a change.
    pub(in crate::slurm) words: Vec<String>,
}

/// The answer of GET jobs/state. Tasks of one pending array share their id and are one mark.
pub(in crate::slurm) fn job_marks(asked: &Asked<'_>, body: &[u8]) -> Result<BTreeMap<JobId, JobMark>, Error> {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(deserialize_with = "leading_number")]
        job_id: u32,
        state: Vec<String>,
    }
    let mut marks = BTreeMap::new();
    each(asked, body, "jobs", |element: Result<Shape, Odd<'_>>| {
        let shape = element.map_err(|odd| odd.error(asked, "a job with job_id and state"))?;
        let mark = JobMark { state: job_state(&shape.state), words: shape.state };
        put(&mut marks, JobId(shape.job_id), mark, |mark| &mark.state);
        Ok(())
    })?;
    Ok(marks)
}

/// Never lets a task that waits or has ended hide one that runs under the same id.
pub(super) fn put<T>(all: &mut BTreeMap<JobId, T>, id: JobId, found: T, state: impl Fn(&T) -> &JobState) {
    match all.entry(id) {
        Entry::Vacant(free) => drop(free.insert(found)),
        Entry::Occupied(mut known) if rank(state(&found)) > rank(state(known.get())) => {
            known.insert(found);
        }
        Entry::Occupied(_) => {}
    }
}

fn rank(state: &JobState) -> u8 {
    match state {
        JobState::Finished => 0,
        JobState::Pending => 1,
        JobState::Configuring
        | JobState::Running
        | JobState::Suspended
        | JobState::Completing
        | JobState::Other(_) => 2,
    }
}

/// A job's state from Slurm's words, the most cautious reading of them.
pub(in crate::slurm) fn job_state<W: AsRef<str>>(words: &[W]) -> JobState {
    let other = || JobState::Other(words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(","));
    let mut base = None;
    let (mut completing, mut configuring) = (false, false);
    for word in words {
        let found = match word.as_ref() {
            "PENDING" => JobState::Pending,
            "RUNNING" => JobState::Running,
            "SUSPENDED" => JobState::Suspended,
            "COMPLETED" | "CANCELLED" | "FAILED" | "TIMEOUT" | "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL"
            | "DEADLINE" | "OUT_OF_MEMORY" => JobState::Finished,
            "COMPLETING" | "STAGE_OUT" | "SIGNALING" => {
                completing = true;
                continue;
            }
            "CONFIGURING" | "POWER_UP_NODE" => {
                configuring = true;
                continue;
            }
            // How it came to be, not where it stands. (STOPPED: its processes got SIGSTOP, it is still there.)
            "LAUNCH_FAILED" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
            | "RESV_DEL_HOLD" | "RECONFIG_FAIL" | "RESIZING" | "STOPPED" | "UPDATE_DB" | "REVOKED"
            | "EXPEDITING" => continue,
            _ => return other(),
        };
        if base.replace(found).is_some() {
            return other();
        }
    }
    match base {
        None => other(),
        Some(_) if completing => JobState::Completing,
        Some(JobState::Running) if configuring => JobState::Configuring,
        Some(base) => base,
    }
}

/// A job's state where it is one word: its flags, when they stand, stand in its place.
fn one_word(word: &str) -> JobState {
    match word {
        "COMPLETING" | "STAGE_OUT" | "SIGNALING" => JobState::Completing,
        "CONFIGURING" => JobState::Configuring,
        // It waits, or its epilog runs: the word hides which.
        "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" => JobState::Other(word.to_owned()),
        word => job_state(&[word]),
    }
}

#[derive(Deserialize)]
pub(super) struct Shape<'a> {
    pub(super) job_id: u32,
    #[serde(borrow)]
    pub(super) job_state: Words<'a>,
    #[serde(borrow)]
    pub(super) nodes: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) required_nodes: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) user_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) partition: Option<Text<'a>>,
    #[serde(default)]
    pub(super) node_count: Sin,
    #[serde(default)]
    pub(super) tasks: Sin,
    #[serde(borrow)]
    pub(super) tres_per_node: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) tres_per_job: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) tres_per_task: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) tres_req_str: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) tres_alloc_str: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) gres_detail: Option<Vec<Text<'a>>>,
    #[serde(default)]
    pub(super) time_limit: Sin,
    #[serde(default)]
    pub(super) submit_time: Sin,
    #[serde(default)]
    pub(super) start_time: Sin,
    #[serde(default)]
    pub(super) end_time: Sin,
    pub(super) requeue: Option<bool>,
    #[serde(borrow)]
    pub(super) state_reason: Option<Text<'a>>,
    #[serde(default)]
    pub(super) array_job_id: Sin,
    #[serde(default)]
    pub(super) array_task_id: Sin,
    #[serde(borrow)]
    pub(super) array_task_string: Option<Text<'a>>,
    #[serde(default)]
    pub(super) het_job_id: Sin,
    #[serde(default)]
    pub(super) het_job_offset: Sin,
}

/// A job, with what it is a part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct JobRecord {
    /// The facts.
    #[serde(flatten)]
    pub(crate) job: Job,
    /// Its place in an array.
    pub(crate) array: Option<Array>,
    /// Its place in a heterogeneous job.
    pub(crate) het: Option<Het>,
}

/// A job's place in an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Array {
    /// The array's own number.
    pub(crate) job: JobId,
    /// The task that it is; `None` for the record of those that wait.
    pub(crate) task: Option<u32>,
    /// Tasks that wait in this record; `None` where it is one task, or where Slurm cut their list short.
    pub(crate) waiting: Option<u32>,
}

/// A job's place in a heterogeneous job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Het {
    /// The leader's number.
    pub(crate) job: JobId,
    /// Which component it is, from 0.
    pub(crate) offset: u32,
}

const EXPECTED: &str = "a job with job_id, job_state and nodes";

/// The answer of GET jobs, whole.
pub(in crate::slurm) fn jobs(
    family: Family,
    asked: &Asked<'_>,
    body: &[u8],
) -> Result<BTreeMap<JobId, JobRecord>, Error> {
    let mut jobs = BTreeMap::new();
    each(asked, body, "jobs", |element: Result<Shape<'_>, Odd<'_>>| {
        let shape = element.map_err(|odd| odd.error(asked, EXPECTED))?;
        let record = read(family, asked, &shape)?;
        put(&mut jobs, record.job.id, record, |record| &record.job.state);
        Ok(())
    })?;
    Ok(jobs)
}

/// The answer of GET job/ID: this job's record among those of its array or heterogeneous job. `None` where it is not
/// among them.
pub(in crate::slurm) fn job(
    family: Family,
    asked: &Asked<'_>,
    body: &[u8],
    id: JobId,
) -> Result<Option<JobRecord>, Error> {
    #[derive(Deserialize)]
    struct Numbered {
        job_id: u32,
    }
    let mut job = None;
    each(asked, body, "jobs", |element: Result<Shape<'_>, Odd<'_>>| {
        match element {
            Ok(shape) if shape.job_id == id.0 => job = Some(read(family, asked, &shape)?),
            Ok(_) => {}
            // Another record of its array may be as odd as it likes.
            Err(odd) => match odd.read() {
                Some(Numbered { job_id }) if job_id != id.0 => {}
                Some(Numbered { .. }) | None => return Err(odd.error(asked, EXPECTED)),
            },
        }
        Ok(())
    })?;
    Ok(job)
}

/// What the shape of a job says.
pub(super) fn read(family: Family, asked: &Asked<'_>, shape: &Shape<'_>) -> Result<JobRecord, Error> {
    let id = JobId(shape.job_id);
    let state = match (family, &shape.job_state) {
        (Family::Words | Family::Mixed, Words::One(word)) => one_word(word),
        (Family::Lists, Words::Many(words)) => job_state(words),
        (Family::Words | Family::Mixed | Family::Lists, Words::One(_) | Words::Many(_)) => {
            return Err(asked.unreadable(format!("{:?}", shape.job_state), format!("the state of job {id}")));
        }
    };
    let node_count = shape.node_count.count().unwrap_or(0);
    let never_started = shape.node_count == Sin::Number(0) || shape.start_time == Sin::Number(0);
    let nodes = match (family, &shape.nodes, &state) {
        (_, Some(nodes), _) => &**nodes,
        // 23.11 has null over v0.0.38 where there are none. Else it is not "no nodes".
        (Family::Words, None, JobState::Pending | JobState::Finished) => "",
        // The word (REQUEUE_HOLD and others) hides that it waits; what has nodes has a start.
        (Family::Words, None, JobState::Other(_)) if never_started => "",
        (Family::Words | Family::Mixed | Family::Lists, None, _) => {
            return Err(asked.unreadable("null or nothing", format!("the nodes of job {id}")));
        }
    };
    let list = |text: &str| hosts(asked, text, &format!("job {id}"));
    // Only what waits is judged by these, never what is on a node.
    let required_nodes = list(shape.required_nodes.as_deref().unwrap_or_default()).unwrap_or_else(|error| {
        tracing::debug!(job = %id, %error, "the nodes that it asks for can't be read, and count as none");
        NodeSet::default()
    });
    let text = |text: &Option<Text<'_>>| text.as_deref().unwrap_or_default().to_owned();
    let pending = state == JobState::Pending;
    let time_limit = shape.time_limit.minutes();
    let start = shape.start_time.instant().filter(|_| !pending);
    // A suspended job's end moves with its resumption: nobody can tell it.
    let end_by = match state {
        JobState::Pending | JobState::Suspended => None,
        JobState::Configuring
        | JobState::Running
        | JobState::Completing
        | JobState::Finished
        | JobState::Other(_) => {
            let end = shape.end_time.instant().filter(|_| time_limit.is_some());
            end.filter(|end| start.is_none_or(|start| start <= *end))
        }
    };
    let reason = shape.state_reason.as_deref();
    let leader = |id: Sin| id.count().filter(|id| *id > 0).map(JobId);
    let array = leader(shape.array_job_id).map(|job| {
        let task = shape.array_task_id.count();
        let waiting = shape.array_task_string.as_deref().filter(|_| task.is_none()).and_then(tasks::count);
        Array { job, task, waiting }
    });
    let het =
        leader(shape.het_job_id).map(|job| Het { job, offset: shape.het_job_offset.count().unwrap_or(0) });
    let job = Job {
        id,
        nodes: list(nodes)?,
        required_nodes,
        user: text(&shape.user_name),
        partition: text(&shape.partition),
        node_count,
        gpus_per_node: gpus_per_node(shape, node_count),
        time_limit,
        start,
        end_by,
        requeue: shape.requeue.unwrap_or(false),
        pending_reason: reason
            .filter(|reason| pending && !reason.is_empty() && *reason != "None")
            .map(str::to_owned),
        submitted: shape.submit_time.instant(),
        gpu_type: wanted(shape).find_map(gres::gpu_type),
        tasks: array.map_or(Some(1), |array| if array.task.is_some() { Some(1) } else { array.waiting }),
        het_leader: het.map(|het| het.job),
        state,
    };
    Ok(JobRecord { job, array, het })
}

/// What it asks for, per node, in all and per task.
fn wanted<'a>(shape: &'a Shape<'_>) -> impl Iterator<Item = &'a str> {
    [&shape.tres_per_node, &shape.tres_per_job, &shape.tres_per_task]
        .into_iter()
        .filter_map(|text| text.as_deref())
}

/// What it has is told per node; what it wants per node, in all, or per task.
fn gpus_per_node(shape: &Shape<'_>, node_count: u32) -> u32 {
    let has = shape.gres_detail.iter().flatten().filter_map(|text| gres::gpus(text)).max().unwrap_or(0);
    let asked = |text: &Option<Text<'_>>| text.as_deref().and_then(gres::asked_gpus).unwrap_or(0);
    let nodes = node_count.max(1);
    let tasks = shape.tasks.count().unwrap_or(0);
    let in_all = shape
        .tres_alloc_str
        .as_deref()
        .filter(|text| !text.is_empty())
        .or(shape.tres_req_str.as_deref())
        .and_then(gres::tres_gpus)
        .unwrap_or(0);
    [
        has,
        asked(&shape.tres_per_node),
        asked(&shape.tres_per_job).div_ceil(nodes),
        asked(&shape.tres_per_task).saturating_mul(tasks).div_ceil(nodes),
        in_all.div_ceil(nodes),
    ]
    .into_iter()
    .find(|gpus| *gpus > 0)
    .unwrap_or(0)
}
