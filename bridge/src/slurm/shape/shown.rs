//! The texts of scontrol and squeue, the same in every release from 22.05 to 26.05, as the shapes that slurmrestd's answers
//! have: what these mean is decided where those are read. Users and admins put words of their own into these texts (a reason,
//! a comment, the GPUs a job asks for, with line ends in them), so that a field counts only where it can be no such word.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use gpu_bridge_core::facts::slurm::{Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};

use super::super::answer::Asked;
use super::super::error::Error;
use super::super::json::{Sin, Text, Words};
use super::super::version::Family;
use super::job::{self, JobRecord};
use super::node::{self, FromNode};
use super::rest::{self, Reserved};

/// What stands behind the last field of a node that nobody can put words of his own into.
const FREE: [&str; 6] =
    [" Reason=", " Comment=", " Extra=", " InstanceId=", " InstanceType=", " ReservationName="];
/// Fields that stand before all of those: behind one of these, somebody's words (an MCS label of a job) passed for it.
const BEFORE_FREE: [&str; 2] = [" Partitions=", " CfgTRES="];
/// scontrol begins a further line of a reason so, where it writes a record on one line.
const NEXT_LINE: &str = "        ";
/// The last field of a reservation, which is an admin's own.
const COMMENT: [&str; 1] = [" Comment="];

/// The value of a field that stands in the record exactly once; `None` where it stands there not at all.
fn field<'a>(record: &'a str, name: &str) -> Result<Option<&'a str>, String> {
    let key = format!(" {name}=");
    let mut values = record.match_indices(&key).map(|(at, _)| {
        let value = &record[at + key.len()..];
        value.split(' ').next().unwrap_or_default()
    });
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(format!("{name} twice in {record:?}")),
    }
}

/// The same, where it must be there.
fn needed<'a>(record: &'a str, name: &str) -> Result<&'a str, String> {
    field(record, name)?.ok_or_else(|| format!("no {name} in {record:?}"))
}

/// Seconds since 1970; `N/A` and the like are none. (`NONE` is the end of a job without a time limit.)
fn seconds(text: &str) -> Result<Sin, String> {
    match text {
        "N/A" | "NONE" | "None" | "Unknown" | "(null)" => Ok(Sin::Number(0)),
        _ => text.parse().map(Sin::Number).map_err(|_| {
            format!(
                "the time {text:?} is not in seconds since 1970: does SLURM_TIME_FORMAT reach the command?"
            )
        }),
    }
}

/// `1-02:03:04`, `2:03:04` or `3:04`, in minutes, begun ones counted whole; what is not one is no limit that could be told.
fn minutes(text: &str) -> Sin {
    let read = || {
        let (days, rest) = text.split_once('-').unwrap_or(("0", text));
        let mut parts = rest.split(':').map(|part| part.parse::<u32>().ok());
        let (hours, minutes, seconds) = match (parts.next()?, parts.next()?, parts.next()) {
            (minutes, seconds, None) => (0, minutes?, seconds?),
            (hours, minutes, Some(seconds)) => (hours?, minutes?, seconds?),
        };
        let days: u32 = days.parse().ok()?;
        let hours = i64::from(days) * 24 + i64::from(hours);
        parts.next().is_none().then(|| hours * 60 + i64::from(minutes) + i64::from(seconds.div_ceil(60)))
    };
    match text {
        "UNLIMITED" => Sin::Infinite,
        _ => read().map_or(Sin::Unset, Sin::Number),
    }
}

/// What `scontrol show nodes` says of each node, or why that cannot be read.
pub(in crate::slurm) fn shown_nodes<T: FromNode>(
    asked: &Asked<'_>,
    text: &str,
) -> Result<BTreeMap<SlurmNodeName, Result<T, String>>, Error> {
    let mut nodes: BTreeMap<SlurmNodeName, Result<T, String>> = BTreeMap::new();
    for record in records(asked, text, "No nodes in the system", "NodeName=", &FREE)? {
        match nodes.entry(SlurmNodeName::new(record.split(' ').next().unwrap_or_default())) {
            Entry::Vacant(free) => drop(free.insert(shown_node(record))),
            Entry::Occupied(mut known) => {
                drop(
                    known.insert(Err("two records of this node, one of them in somebody's words".to_owned())),
                );
            }
        }
    }
    Ok(nodes)
}

fn shown_node<T: FromNode>(record: &str) -> Result<T, String> {
    let end = FREE.iter().filter_map(|key| record.find(key)).min().unwrap_or(record.len());
    let (head, free) = record.split_at(end);
    if let Some(field) = BEFORE_FREE.iter().find(|field| free.contains(**field)) {
        return Err(format!("{field:?} behind what is to stand last in {record:?}"));
    }
    let name = head.split(' ').next().unwrap_or_default();
    let state = needed(head, "State")?;
    let mut shape = node::Shape {
        name: name.into(),
        state: Words::Many(state.split('+').map(Text::from).collect()),
        state_flags: None,
        reason: None,
        reason_set_by_user: None,
        reason_changed_at: Sin::Unset,
        gres: Some(needed(head, "Gres")?.into()),
        gres_used: field(head, "GresUsed")?.map(Text::from),
        partitions: field(head, "Partitions")?.map(|list| list.split(',').map(Text::from).collect()),
    };
    let reason;
    if let Some(text) = free.strip_prefix(FREE[0]) {
        let said = shown_reason(text)?;
        reason = said.text;
        shape.reason = Some(reason.as_str().into());
        shape.reason_set_by_user = said.by.map(|(user, _)| user.into());
        shape.reason_changed_at = said.by.map_or(Sin::Unset, |(_, at)| Sin::Number(at));
        return node::read(Family::Lists, &shape);
    }
    node::read(Family::Lists, &shape)
}

/// A reason as scontrol shows it.
struct Said<'a> {
    text: String,
    /// User and time.
    by: Option<(&'a str, i64)>,
}

/// `bad disk [root@1796051439]`: scontrol puts who and when behind the first line of a reason. What looks so counts only
/// where the line, or the reason, ends there.
fn shown_reason(text: &str) -> Result<Said<'_>, String> {
    let mut found = None;
    for (at, _) in text.match_indices(" [") {
        let Some((inside, rest)) = text[at + 2..].split_once(']') else { continue };
        let Some((user, time)) = inside.rsplit_once('@') else { continue };
        let ends =
            rest.is_empty() || rest.starts_with(NEXT_LINE) || FREE.iter().any(|key| rest.starts_with(key));
        if !ends {
            continue;
        }
        let Sin::Number(time) = seconds(time)? else { continue };
        if found.replace((at, user, time, rest)).is_some() {
            return Err(format!("the reason {text:?} names more than one user and time"));
        }
    }
    let Some((at, user, time, rest)) = found else {
        // A reason of slurm.conf has no user, and what stands behind it cannot be told from it.
        if FREE.iter().any(|key| text.contains(key)) {
            return Err(format!("where the reason ends in {text:?}"));
        }
        return Ok(Said { text: text.to_owned(), by: None });
    };
    let end = FREE.iter().filter_map(|key| rest.find(key)).min().unwrap_or(rest.len());
    let text = format!("{}{}", &text[..at], rest[..end].replace(NEXT_LINE, "\n"));
    Ok(Said { text, by: Some((user, time)) })
}

/// What `scontrol show reservations` says.
pub(in crate::slurm) fn shown_reservations(
    asked: &Asked<'_>,
    text: &str,
) -> Result<BTreeMap<String, Reservation>, Error> {
    let mut reservations = BTreeMap::new();
    for record in records(asked, text, "No reservations in the system", "ReservationName=", &COMMENT)? {
        let odd = |found| asked.unreadable(found, "a reservation, each field once");
        // Its name may hold anything, and so may a comment, which stands last.
        let mut starts = record.match_indices(" StartTime=").map(|(at, _)| at).filter(|at| {
            let rest = record[at + 1..].split(' ').nth(1).unwrap_or_default();
            rest.starts_with("EndTime=")
        });
        let (Some(at), None) = (starts.next(), starts.next()) else {
            return Err(odd(format!("no one StartTime and EndTime in {record:?}")));
        };
        let (name, fields) = record.split_at(at);
        let fields = fields.split(COMMENT[0]).next().unwrap_or_default();
        let list = |text: &'static str| {
            let value = needed(fields, text).map_err(odd)?;
            Ok::<_, Error>(if value == "(null)" { "" } else { value })
        };
        let time = |name| needed(fields, name).and_then(seconds).map_err(odd);
        let flags = list("Flags")?;
        let reservation = Reserved {
            name: name.into(),
            node_list: list("Nodes")?.into(),
            flags: flags.split(',').filter(|flag| !flag.is_empty()).map(str::to_owned).collect(),
            start_time: time("StartTime")?,
            end_time: time("EndTime")?,
            users: Some(list("Users")?.into()),
            accounts: Some(list("Accounts")?.into()),
        }
        .read(asked)?;
        if reservations.insert(name.to_owned(), reservation).is_some() {
            return Err(odd(format!("two reservations {name:?}")));
        }
    }
    Ok(reservations)
}

/// What `scontrol show partitions` says.
pub(in crate::slurm) fn shown_partitions(
    asked: &Asked<'_>,
    text: &str,
) -> Result<BTreeMap<String, Partition>, Error> {
    let mut partitions = BTreeMap::new();
    for record in records(asked, text, "No partitions in the system", "PartitionName=", &[])? {
        let odd = |found| asked.unreadable(found, "a partition, each field once");
        let (name, fields) = record.split_once(' ').ok_or_else(|| odd(format!("{record:?}")))?;
        let fields = format!(" {fields}");
        let need = |text| needed(&fields, text).map_err(odd);
        let up = need("State")? == "UP";
        let max_time = need("MaxTime")?;
        let max_time = match minutes(max_time) {
            Sin::Unset => return Err(odd(format!("MaxTime={max_time}"))),
            read @ (Sin::Infinite | Sin::Number(_)) => read,
        };
        let partition = rest::partition(asked, name, need("Nodes")?, max_time, up)?;
        if partitions.insert(name.to_owned(), partition).is_some() {
            return Err(odd(format!("two partitions {name:?}")));
        }
    }
    Ok(partitions)
}

/// A record in each line, without the word that it begins with. `none` is what stands there instead of no record. A line
/// end in somebody's words makes a line that is no record; it can stand only behind a record with one of the fields `free`.
fn records<'a>(
    asked: &Asked<'_>,
    text: &'a str,
    none: &str,
    start: &str,
    free: &[&str],
) -> Result<Vec<&'a str>, Error> {
    // Each line is whole: a flag, a node or a user that was cut off would not be missed.
    let Some(text) = text.strip_suffix('\n') else {
        let rest = text.lines().last().unwrap_or("nothing");
        return Err(asked.unreadable(format!("{rest:?}, which breaks off"), format!("lines with {start}")));
    };
    if text.trim() == none {
        return Ok(Vec::new());
    }
    let mut records: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix(start), records.last()) {
            (Some(record), _) => records.push(record),
            (None, Some(before)) if free.iter().any(|key| before.contains(key)) => {}
            (None, _) => return Err(asked.unreadable(format!("{line:?}"), format!("a line with {start}"))),
        }
    }
    if records.is_empty() {
        return Err(asked.unreadable("nothing", format!("a line with {start}, or {none:?}")));
    }
    Ok(records)
}

/// What squeue is asked for of each job: numbers, names that Slurm has checked …
const FIELDS: [&str; 18] = [
    "JobID",
    "State",
    "UserName",
    "Partition",
    "NumNodes",
    "NodeList",
    "ReqNodes",
    "TimeLimit",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "Requeue",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "NumTasks",
    "tres-alloc",
];
/// … and texts in which a user's own words may stand, line ends and all.
const USERS: [&str; 4] = ["Reason", "tres-per-node", "tres-per-job", "tres-per-task"];

/// The format of squeue, with a word behind each text of users that none of them can have known.
pub(in crate::slurm) fn squeue_format(nonce: &str) -> String {
    let fields = FIELDS.iter().map(|field| format!("{field}:|"));
    let users = USERS.iter().map(|field| format!("{field}:{nonce}"));
    fields.chain(users).collect::<Vec<_>>().join(",")
}

/// A heading of squeue, for tests.
#[cfg(test)]
pub(in crate::slurm) fn squeue_heading(nonce: &str) -> String {
    let names = FIELDS.map(|field| field.to_ascii_uppercase().replace('-', "_")).join("|");
    let users = USERS.map(|field| field.to_ascii_uppercase().replace('-', "_")).join(nonce);
    format!("{names}|{users}{nonce}\n")
}

/// What squeue says of each job, asked in [`squeue_format`]. Its first line is the heading: without that, an empty text would be
/// no jobs.
pub(in crate::slurm) fn shown_jobs(
    asked: &Asked<'_>,
    text: &str,
    nonce: &str,
) -> Result<BTreeMap<JobId, JobRecord>, Error> {
    let odd =
        |found: String| asked.unreadable(found, "a heading and jobs, in the fields that were asked for");
    let mut parts: Vec<&str> = text.split(nonce).collect();
    if parts.pop() != Some("\n") || parts.is_empty() || !parts.len().is_multiple_of(USERS.len()) {
        let start: String = text.chars().take(160).collect();
        return Err(odd(format!("{} texts of users and a rest, from {start:?} on", parts.len())));
    }
    let mut jobs = BTreeMap::new();
    for (number, line) in parts.chunks_exact(USERS.len()).enumerate() {
        let [first, per_node, per_job, per_task] = *line else { return Err(odd(format!("{line:?}"))) };
        // The line end of the one before.
        let fields = if number == 0 { Some(first) } else { first.strip_prefix('\n') };
        let mut fields = fields.into_iter().flat_map(|fields| fields.splitn(FIELDS.len() + 1, '|'));
        let checked: [&str; FIELDS.len()] = std::array::from_fn(|_| fields.next().unwrap_or_default());
        let reason = fields.next().ok_or_else(|| odd(format!("{first:?}")))?;
        let users = [reason, per_node, per_job, per_task];
        if number == 0 {
            if !is_heading(&checked, &users) {
                return Err(odd(format!("{first:?} for a heading")));
            }
            continue;
        }
        let record = shown_job(asked, &checked, users).map_err(|error| match error {
            NotRead::Field(found) => odd(found),
            NotRead::Job(error) => error,
        })?;
        let id = record.job.id;
        if jobs.insert(id, record).is_some() {
            return Err(odd(format!("two lines of job {id}")));
        }
    }
    Ok(jobs)
}

/// `JOBID|STATE|…|REASON` and so on; some of the names differ from those of the fields.
fn is_heading(checked: &[&str], users: &[&str]) -> bool {
    let name = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    checked.first() == Some(&"JOBID") && checked.iter().chain(users).all(name)
}

/// Why a job could not be read.
enum NotRead {
    /// What was found in a field.
    Field(String),
    /// What it means as a whole.
    Job(Error),
}

impl From<String> for NotRead {
    fn from(found: String) -> Self {
        Self::Field(found)
    }
}

fn shown_job(
    asked: &Asked<'_>,
    checked: &[&str; FIELDS.len()],
    users: [&str; USERS.len()],
) -> Result<JobRecord, NotRead> {
    let [
        id,
        state,
        user,
        partition,
        nodes_wanted,
        nodes,
        required,
        limit,
        submitted,
        start,
        end,
        requeue,
        array_id,
        task,
        het_id,
        het_offset,
        tasks,
        alloc,
    ] = *checked;
    let [reason, per_node, per_job, per_task] = users;
    // squeue writes the description where there is one, REST its first word.
    let reason = reason.split(',').next().unwrap_or_default();
    let text = |text: &'_ str| text.parse::<u32>().map_err(|_| format!("{text:?} for a number"));
    let number = |field: &str| match field {
        "N/A" => Ok(Sin::Unset),
        field => text(field).map(|number| Sin::Number(i64::from(number))),
    };
    // Which job is where, and since when, must be known. All else is not told where it can't be read: one odd job would
    // blind whole looks.
    let or_unset = |field: &str, read: Result<Sin, String>| {
        read.unwrap_or_else(|found| {
            tracing::debug!(job = id, field, found, "squeue shows something that can't be read");
            Sin::Unset
        })
    };
    let requeue = match requeue {
        "0" => Sin::Number(0),
        "1" => Sin::Number(1),
        other => or_unset("Requeue", Err(format!("{other:?} for whether it may be requeued"))),
    };
    let in_array = task != "N/A";
    let shape = job::Shape {
        job_id: text(id)?,
        job_state: Words::One(state.into()),
        nodes: Some(nodes.into()),
        required_nodes: Some(required.into()),
        user_name: Some(user.into()),
        partition: Some(partition.into()),
        node_count: or_unset("NumNodes", count(nodes_wanted)),
        tasks: or_unset("NumTasks", count(tasks)),
        tres_per_node: Some(per_node.into()),
        tres_per_job: Some(per_job.into()),
        tres_per_task: Some(per_task.into()),
        tres_req_str: None,
        tres_alloc_str: Some(alloc.into()),
        gres_detail: None,
        time_limit: minutes(limit),
        submit_time: or_unset("SubmitTime", seconds(submitted)),
        start_time: seconds(start)?,
        end_time: or_unset("EndTime", seconds(end)),
        requeue: requeue.count().map(|may| may == 1),
        state_reason: Some(reason.into()),
        array_job_id: if in_array { or_unset("ArrayJobID", number(array_id)) } else { Sin::Unset },
        array_task_id: text(task).map_or(Sin::Unset, |task| Sin::Number(i64::from(task))),
        array_task_string: in_array.then(|| task.into()),
        het_job_id: or_unset("HetJobID", number(het_id)),
        het_job_offset: or_unset("HetJobOffset", number(het_offset)),
    };
    job::read(Family::Words, asked, &shape).map_err(NotRead::Job)
}

/// A count; whole multiples of 1024 are written `2K`.
fn count(text: &str) -> Result<Sin, String> {
    let (digits, times) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| format!("{text:?} for a count"))?;
    Ok(Sin::Number(i64::from(number) * times))
}

#[cfg(test)]
mod tests;
