//! The JSON of slurmrestd, as far as we read it, and its translation into facts. What is missing or odd never becomes a
//! fact: a node that cannot be read is `Other("unreadable: …")`; a job or a reservation whose nodes cannot be read spoils
//! the whole look, because it could be on any node.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::facts::slurm::{
    BaseState, Job, JobState, Node, NodeFlag, Partition, Reason, Reservation,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::{SignedDuration, Timestamp};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use super::error::Error;
use super::{gres, hostlist};

/// A number that slurmrestd may leave out or call infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sin {
    /// Not set, null or absent.
    #[default]
    Unset,
    /// Infinite.
    Infinite,
    /// Set.
    Number(i64),
}

impl<'de> Deserialize<'de> for Sin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Fraction(f64),
            Object {
                #[serde(default)]
                set: bool,
                #[serde(default)]
                infinite: bool,
                number: Option<f64>,
            },
        }
        #[allow(clippy::cast_possible_truncation)] // whole seconds and counts, far below 2^53
        let whole = |number: f64| number as i64;
        Ok(match Option::<Form>::deserialize(deserializer)? {
            Some(Form::Number(number)) => Self::Number(number),
            Some(Form::Object { infinite: true, .. }) => Self::Infinite,
            Some(Form::Fraction(number) | Form::Object { set: true, number: Some(number), .. }) => {
                Self::Number(whole(number))
            }
            Some(Form::Object { set: true, number: None, .. }) => {
                return Err(D::Error::custom("a number that is set, but not there"));
            }
            None | Some(Form::Object { set: false, .. }) => Self::Unset,
        })
    }
}

impl Sin {
    /// An instant; 0 means none.
    fn instant(self) -> Option<Timestamp> {
        match self {
            Self::Number(seconds) if seconds > 0 => Timestamp::from_second(seconds).ok(),
            Self::Number(_) | Self::Unset | Self::Infinite => None,
        }
    }

    /// A duration in minutes; `None` is unlimited or not told.
    fn minutes(self) -> Option<SignedDuration> {
        match self {
            Self::Number(minutes) => minutes.checked_mul(60).map(SignedDuration::from_secs),
            Self::Unset | Self::Infinite => None,
        }
    }

    fn count(self) -> Option<u32> {
        match self {
            Self::Number(number) => u32::try_from(number).ok(),
            Self::Unset | Self::Infinite => None,
        }
    }
}

fn unreadable(asked: &str, found: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::Unreadable { asked: asked.to_owned(), found: found.into(), expected: expected.into() }
}

/// The elements of an answer's list, each unread. A missing list is never an empty one.
fn elements<'a>(asked: &str, body: &'a [u8], list: &'static str) -> Result<Vec<&'a RawValue>, Error> {
    let answer: BTreeMap<&str, &'a RawValue> = serde_json::from_slice(body)
        .map_err(|error| unreadable(asked, error.to_string(), format!("an object with {list:?}")))?;
    let raw =
        answer.get(list).ok_or_else(|| unreadable(asked, "no such list", format!("a list {list:?}")))?;
    serde_json::from_str(raw.get())
        .map_err(|error| unreadable(asked, error.to_string(), format!("a list in {list:?}")))
}

fn element<'a, T: Deserialize<'a>>(asked: &str, raw: &'a RawValue, expected: &str) -> Result<T, Error> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let start: String = raw.get().chars().take(160).collect();
        unreadable(asked, format!("{error} in {start}"), expected)
    })
}

#[derive(Deserialize)]
struct NodeShape {
    state: Vec<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    reason_set_by_user: Option<String>,
    #[serde(default)]
    reason_changed_at: Sin,
    #[serde(default)]
    gres: Option<String>,
    #[serde(default)]
    gres_used: Option<String>,
    #[serde(default)]
    partitions: Option<Vec<String>>,
}

/// The answer of GET nodes.
pub(super) fn nodes(asked: &str, body: &[u8]) -> Result<BTreeMap<SlurmNodeName, Node>, Error> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let mut nodes = BTreeMap::new();
    for raw in elements(asked, body, "nodes")? {
        let Named { name } = element(asked, raw, "a node with a name")?;
        let node = match serde_json::from_str(raw.get()) {
            Ok(shape) => node(shape),
            Err(error) => unreadable_node(&error.to_string()),
        };
        nodes.insert(SlurmNodeName::new(name), node);
    }
    Ok(nodes)
}

fn unreadable_node(why: &str) -> Node {
    Node {
        state: BaseState::Other(format!("unreadable: {why}")),
        flags: BTreeSet::new(),
        reason: None,
        gpus: 0,
        gpus_used: None,
        partitions: BTreeSet::new(),
    }
}

fn node(shape: NodeShape) -> Node {
    let mut bases = Vec::new();
    let mut flags = BTreeSet::new();
    for word in shape.state {
        match node_word(word) {
            Word::Base(base) => bases.push(base),
            Word::Flag(flag) => {
                flags.insert(flag);
            }
        }
    }
    let gres = shape.gres.unwrap_or_default();
    let gpus = gres::gpus(&gres);
    let mut state = match (bases.pop(), bases.is_empty()) {
        (Some(base), true) => base,
        (Some(base), false) => BaseState::Other(format!("unreadable: states {bases:?} and {base:?} at once")),
        (None, _) => BaseState::Other("unreadable: no base state".to_owned()),
    };
    if gpus.is_none() {
        state = BaseState::Other(format!("unreadable: gres {gres:?}"));
    }
    let gpus = gpus.unwrap_or(0);
    let reason = shape.reason.filter(|text| !text.is_empty()).map(|text| Reason {
        text,
        user: shape.reason_set_by_user.unwrap_or_default(),
        at: shape.reason_changed_at.instant(),
    });
    Node {
        state,
        flags,
        reason,
        gpus,
        gpus_used: gres::gpus_used(shape.gres_used.as_deref(), gpus),
        partitions: shape.partitions.unwrap_or_default().into_iter().collect(),
    }
}

enum Word {
    Base(BaseState),
    Flag(NodeFlag),
}

fn node_word(word: String) -> Word {
    Word::Flag(match word.as_str() {
        "IDLE" => return Word::Base(BaseState::Idle),
        "MIXED" => return Word::Base(BaseState::Mixed),
        "ALLOCATED" => return Word::Base(BaseState::Allocated),
        "DOWN" => return Word::Base(BaseState::Down),
        "FUTURE" => return Word::Base(BaseState::Future),
        "ERROR" => return Word::Base(BaseState::Error),
        "UNKNOWN" => return Word::Base(BaseState::Unknown),
        "INVALID" => return Word::Base(BaseState::Other(word)),
        "DRAIN" => NodeFlag::Drain,
        "COMPLETING" => NodeFlag::Completing,
        "PLANNED" => NodeFlag::Planned,
        "RESERVED" => NodeFlag::Reserved,
        "MAINTENANCE" => NodeFlag::Maintenance,
        "CLOUD" => NodeFlag::Cloud,
        "DYNAMIC_NORM" => NodeFlag::DynamicNorm,
        "NOT_RESPONDING" => NodeFlag::NotResponding,
        "FAIL" => NodeFlag::Fail,
        "INVALID_REG" => NodeFlag::InvalidReg,
        "REBOOT_REQUESTED" | "REBOOT_ISSUED" | "REBOOT_CANCELED" => NodeFlag::Reboot,
        "POWERED_DOWN" | "POWERING_DOWN" | "POWERING_UP" | "POWER_DOWN" | "POWER_UP" | "POWER_DRAIN" => {
            NodeFlag::Power
        }
        _ => NodeFlag::Other(word),
    })
}

/// A job's id and its states, as jobs/state gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobMark {
    pub(super) state: JobState,
    /// Slurm's words, for noticing a change.
    pub(super) words: Vec<String>,
}

/// The answer of GET jobs/state. Tasks of one pending array share their id and are one mark.
pub(super) fn job_marks(asked: &str, body: &[u8]) -> Result<BTreeMap<JobId, JobMark>, Error> {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(deserialize_with = "leading_number")]
        job_id: u32,
        state: Vec<String>,
    }
    let mut marks = BTreeMap::new();
    for raw in elements(asked, body, "jobs")? {
        let shape: Shape = element(asked, raw, "a job with job_id and state")?;
        let mark = JobMark { state: job_state(&shape.state), words: shape.state };
        marks
            .entry(JobId(shape.job_id))
            .and_modify(|known: &mut JobMark| {
                // Never let a waiting task hide one that runs under the same id.
                if rank(&mark.state) > rank(&known.state) {
                    *known = mark.clone();
                }
            })
            .or_insert(mark);
    }
    Ok(marks)
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

/// `17`, `"17"`, `"17_0"` (task 0 of an array) and `"12+1"` (part of a heterogeneous job) are all job 17 or 12.
fn leading_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Visit;
    impl de::Visitor<'_> for Visit {
        type Value = u32;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a job id")
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(E::custom)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<u32, E> {
            let digits = text.split(['_', '+']).next().unwrap_or_default();
            digits.parse().map_err(|_| E::custom(format!("job id {text:?}")))
        }
    }
    deserializer.deserialize_any(Visit)
}

/// A job's state from Slurm's words, the most cautious reading of them.
pub(super) fn job_state(words: &[String]) -> JobState {
    let mut base = None;
    let (mut completing, mut configuring) = (false, false);
    for word in words {
        let found = match word.as_str() {
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
            _ => return JobState::Other(words.join(",")),
        };
        if base.replace(found).is_some() {
            return JobState::Other(words.join(","));
        }
    }
    match base {
        None => JobState::Other(words.join(",")),
        Some(_) if completing => JobState::Completing,
        Some(JobState::Running) if configuring => JobState::Configuring,
        Some(base) => base,
    }
}

#[derive(Deserialize)]
struct JobShape {
    job_state: Vec<String>,
    /// Must be there: `null` or absent is not "no nodes".
    nodes: String,
    #[serde(default)]
    required_nodes: Option<String>,
    #[serde(default)]
    user_name: Option<String>,
    #[serde(default)]
    partition: Option<String>,
    #[serde(default)]
    node_count: Sin,
    #[serde(default)]
    tres_per_node: Option<String>,
    #[serde(default)]
    tres_req_str: Option<String>,
    #[serde(default)]
    tres_alloc_str: Option<String>,
    #[serde(default)]
    gres_detail: Option<Vec<String>>,
    #[serde(default)]
    time_limit: Sin,
    #[serde(default)]
    start_time: Sin,
    #[serde(default)]
    end_time: Sin,
    #[serde(default)]
    requeue: bool,
    #[serde(default)]
    state_reason: Option<String>,
}

/// The answer of GET job/ID: this job's record among those of its array or heterogeneous job. `None` where it is not
/// among them.
pub(super) fn job(asked: &str, body: &[u8], id: JobId) -> Result<Option<Job>, Error> {
    #[derive(Deserialize)]
    struct Numbered {
        job_id: u32,
    }
    for raw in elements(asked, body, "jobs")? {
        let Numbered { job_id } = element(asked, raw, "a job with a job_id")?;
        if job_id == id.0 {
            let shape: JobShape = element(asked, raw, "a job with job_state and nodes")?;
            return read_job(asked, id, shape).map(Some);
        }
    }
    Ok(None)
}

fn read_job(asked: &str, id: JobId, shape: JobShape) -> Result<Job, Error> {
    let list = |text: &str| {
        hostlist::expand(text)
            .map_err(|error| unreadable(asked, error.to_string(), format!("the nodes of job {id}")))
    };
    let state = job_state(&shape.job_state);
    let nodes = list(&shape.nodes)?;
    let pending = state == JobState::Pending;
    let node_count = shape.node_count.count().unwrap_or(0);
    let gpus_per_node = gpus_per_node(&shape, node_count);
    let time_limit = shape.time_limit.minutes();
    let start = shape.start_time.instant().filter(|_| !pending);
    // A suspended job's end moves with its resumption: nobody can tell it.
    let end_by = match state {
        JobState::Pending | JobState::Suspended => None,
        JobState::Configuring
        | JobState::Running
        | JobState::Completing
        | JobState::Finished
        | JobState::Other(_) => shape.end_time.instant().filter(|_| time_limit.is_some()),
    };
    Ok(Job {
        id,
        state,
        user: shape.user_name.unwrap_or_default(),
        partition: shape.partition.unwrap_or_default(),
        nodes,
        required_nodes: list(shape.required_nodes.as_deref().unwrap_or_default())?,
        node_count,
        gpus_per_node,
        time_limit,
        start,
        end_by,
        requeue: shape.requeue,
        pending_reason: shape.state_reason.filter(|reason| pending && !reason.is_empty() && reason != "None"),
    })
}

/// What it has is told per node; what it wants per node, or in all.
fn gpus_per_node(shape: &JobShape, node_count: u32) -> u32 {
    let has = shape.gres_detail.iter().flatten().filter_map(|text| gres::gpus(text)).max().unwrap_or(0);
    let wants = shape.tres_per_node.as_deref().and_then(gres::gpus).unwrap_or(0);
    let in_all = shape
        .tres_alloc_str
        .as_deref()
        .filter(|text| !text.is_empty())
        .or(shape.tres_req_str.as_deref())
        .and_then(gres::tres_gpus)
        .unwrap_or(0);
    [has, wants, in_all.div_ceil(node_count.max(1))].into_iter().find(|gpus| *gpus > 0).unwrap_or(0)
}

/// The answer of GET reservations.
pub(super) fn reservations(asked: &str, body: &[u8]) -> Result<BTreeMap<String, Reservation>, Error> {
    #[derive(Deserialize)]
    struct Shape {
        name: String,
        node_list: String,
        flags: Vec<String>,
        start_time: Sin,
        end_time: Sin,
        #[serde(default)]
        users: Option<String>,
        #[serde(default)]
        accounts: Option<String>,
    }
    let words = |text: Option<String>| -> BTreeSet<String> {
        text.unwrap_or_default().split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let mut reservations = BTreeMap::new();
    for raw in elements(asked, body, "reservations")? {
        let expected = "a reservation with name, node_list, flags, start_time and end_time";
        let shape: Shape = element(asked, raw, expected)?;
        let nodes = hostlist::expand(&shape.node_list).map_err(|error| {
            unreadable(asked, error.to_string(), format!("the nodes of reservation {}", shape.name))
        })?;
        let (Some(start), Some(end)) = (shape.start_time.instant(), shape.end_time.instant()) else {
            let found = format!("{:?} to {:?}", shape.start_time, shape.end_time);
            return Err(unreadable(asked, found, format!("the times of reservation {}", shape.name)));
        };
        let reservation = Reservation {
            name: shape.name.clone(),
            nodes,
            users: words(shape.users),
            accounts: words(shape.accounts),
            flags: shape.flags.into_iter().collect(),
            start,
            end,
        };
        reservations.insert(shape.name, reservation);
    }
    Ok(reservations)
}

/// The answer of GET partitions.
pub(super) fn partitions(asked: &str, body: &[u8]) -> Result<BTreeMap<String, Partition>, Error> {
    #[derive(Deserialize)]
    struct Shape {
        name: String,
        nodes: Nodes,
        partition: State,
        maximums: Maximums,
    }
    #[derive(Deserialize)]
    struct Nodes {
        configured: String,
    }
    #[derive(Deserialize)]
    struct State {
        state: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Maximums {
        time: Sin,
    }
    let mut partitions = BTreeMap::new();
    for raw in elements(asked, body, "partitions")? {
        let expected = "a partition with name, nodes.configured, partition.state and maximums.time";
        let shape: Shape = element(asked, raw, expected)?;
        let nodes = hostlist::expand(&shape.nodes.configured).map_err(|error| {
            unreadable(asked, error.to_string(), format!("the nodes of partition {}", shape.name))
        })?;
        let up = shape.partition.state == ["UP"];
        partitions.insert(shape.name, Partition { nodes, max_time: shape.maximums.time.minutes(), up });
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests;
