//! The Slurm gate, and what empty means in Slurm.
//!
//! Closed: DRAIN with our reason, inside our active reservation. Empty: base state IDLE with DRAIN and no flag that casts
//! doubt, no job that names the node or was seen on it is unfinished, no GRES in use, no foreign reservation ahead.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Emptiness, Gate, from_guards};
use crate::facts::Seen;
use crate::facts::slurm::{BaseState, Index, Job, JobState, Node, NodeFlag, Reason, Reservation, Slurm};
use crate::ids::{HandoverId, JobId, SlurmNodeName};
use crate::mark::{DrainReason, reservation_handover};

/// Flags that a reservation of ours may have: those that we set, and the one that Slurm sets where nodes are named.
const OUR_FLAGS: [&str; 3] = ["MAINT", "IGNORE_JOBS", "SPEC_NODES"];

/// Flags that somebody may set on a reservation of ours and no release takes away again (scontrol and slurmrestd of 22.05 to
/// 26.05). They let nothing start on our node: with OVERLAP a reservation may be *made* over others, and which jobs run where two
/// overlap is decided by MAINT; NO_HOLD_JOBS_AFTER_END is about jobs that may use it, which are root's alone.
pub const STUCK_FLAGS: [&str; 2] = ["OVERLAP", "NO_HOLD_JOBS_AFTER_END"];

/// Jobs that are named when a node is busy: enough for people, and no more words than a large site can bear each tick.
const JOBS_NAMED: usize = 4;

/// A node as one look shows it.
#[derive(Debug, Clone)]
pub struct SeenNode<'a> {
    /// The look.
    pub slurm: &'a Slurm,
    /// The node.
    pub node: &'a Node,
    /// Whose DRAIN stands on it.
    pub drain: Drain,
}

/// The node in this look, or why it can't be judged.
pub fn find<'a>(facts: &'a Seen<Slurm>, name: &SlurmNodeName) -> Result<SeenNode<'a>, String> {
    let slurm = match facts {
        Seen::Unknown { why } => return Err(why.clone()),
        Seen::At { value, .. } => value,
    };
    if let Some(found) = slurm.unreadable_nodes.get(name) {
        return Err(format!("node {name} could not be read from Slurm's answer: {found}"));
    }
    let node = slurm.nodes.get(name).ok_or_else(|| format!("Slurm does not list node {name}"))?;
    Ok(SeenNode { slurm, node, drain: drain_of(node) })
}

/// The gate as this look shows it, for a node whose Slurm side `closed_by` closed (or should have).
pub fn gate(
    seen: &Result<SeenNode<'_>, String>,
    index: &Index<'_>,
    name: &SlurmNodeName,
    closed_by: Option<HandoverId>,
    now: Timestamp,
) -> Gate {
    let SeenNode { drain, .. } = match seen {
        Ok(seen) => seen,
        Err(why) => return Gate::Unknown { why: why.clone() },
    };
    let reservation = our_reservation(index, name, closed_by);
    if closed_by.is_none() {
        // Nothing of ours should be here: any mark of ours that still stands keeps the gate from being open.
        return match (drain, reservation) {
            (Drain::Ours(_), _) | (_, Some(_)) => {
                Gate::Weakened { missing: vec!["marks of ours that no handover on record explains".into()] }
            }
            (Drain::None | Drain::Theirs { .. }, None) => Gate::Open,
        };
    }
    let drain = match drain {
        Drain::Ours(reason) if Some(reason.handover) == closed_by => None,
        Drain::Ours(reason) => Some(format!("DRAIN is of {}, not of this handover", reason.handover)),
        Drain::Theirs { text, user } => Some(format!("DRAIN is {user}'s ({text:?}), not ours")),
        Drain::None => Some("DRAIN is gone".to_owned()),
    };
    let reservation = match reservation {
        Some(reservation) => {
            flaw(reservation, name, now).map(|flaw| format!("reservation {} {flaw}", reservation.name))
        }
        None => Some("our reservation is gone".to_owned()),
    };
    from_guards([drain, reservation])
}

/// Whose DRAIN stands on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// The flag is not set.
    None,
    /// Ours.
    Ours(DrainReason),
    /// Somebody else's: not ours to touch.
    Theirs {
        /// Their reason.
        text: String,
        /// Who.
        user: String,
    },
}

/// Ownership is the DRAIN flag *and* our reason: some releases keep an old reason after a RESUME.
fn drain_of(node: &Node) -> Drain {
    if !node.flags.contains(&NodeFlag::Drain) {
        return Drain::None;
    }
    let Some(Reason { text, user, .. }) = &node.reason else {
        return Drain::Theirs { text: String::new(), user: String::new() };
    };
    match DrainReason::parse(text) {
        Some(ours) => Drain::Ours(ours),
        None => Drain::Theirs { text: text.clone(), user: user.clone() },
    }
}

impl SeenNode<'_> {
    /// The text of our DRAIN as it stands, to the letter: a write names it exactly, and another hand may have written it.
    pub fn our_reason(&self) -> Option<String> {
        match self.drain {
            Drain::Ours(_) => self.node.reason.as_ref().map(|reason| reason.text.clone()),
            Drain::None | Drain::Theirs { .. } => None,
        }
    }
}

/// The reservation of handover `of` (or, without one, any of ours that names the node).
pub fn our_reservation<'a>(
    index: &Index<'a>,
    name: &SlurmNodeName,
    of: Option<HandoverId>,
) -> Option<&'a Reservation> {
    match of {
        Some(handover) => index.reservation_of(handover),
        None => index.reservations_on(name).iter().copied().find(|r| reservation_handover(&r.name).is_some()),
    }
}

/// What keeps a reservation of ours from being a guard now.
pub fn flaw(reservation: &Reservation, name: &SlurmNodeName, now: Timestamp) -> Option<String> {
    if !reservation.is_active(now) {
        return Some(format!("is not active (from {} to {})", reservation.start, reservation.end));
    }
    shape_flaw(reservation, name)
}

/// What differs from the shape that we give our reservations, times aside.
pub fn shape_flaw(reservation: &Reservation, name: &SlurmNodeName) -> Option<String> {
    if reservation.nodes.len() != 1 || !reservation.nodes.contains(name) {
        let nodes: Vec<_> = reservation.nodes.iter().map(SlurmNodeName::as_str).collect();
        return Some(format!("has nodes {} instead of exactly {name}", nodes.join(",")));
    }
    if reservation.users.len() != 1 || !reservation.users.contains("root") {
        let users: Vec<_> = reservation.users.iter().map(String::as_str).collect();
        return Some(format!("admits users {} instead of only root", users.join(",")));
    }
    if !reservation.accounts.is_empty() {
        return Some("admits accounts".to_owned());
    }
    if !reservation.flags.contains("MAINT") {
        return Some("lacks the flag MAINT".to_owned());
    }
    let known = |flag: &str| OUR_FLAGS.contains(&flag) || STUCK_FLAGS.contains(&flag);
    let foreign = reservation.flags.iter().find(|flag| !known(flag));
    foreign.map(|flag| format!("has the flag {flag}, which we never set"))
}

/// Jobs that were seen on a node, each with the start of the run that was seen.
pub type JobsSeen = BTreeMap<JobId, Option<Timestamp>>;

/// Is the Slurm side of the node empty? `jobs_seen` are the jobs that were seen on it since the handover began; `due_back` is
/// when the node is to return to Slurm, where that is known.
pub fn emptiness(
    seen: &Result<SeenNode<'_>, String>,
    index: &Index<'_>,
    name: &SlurmNodeName,
    jobs_seen: &JobsSeen,
    due_back: Option<Timestamp>,
    now: Timestamp,
) -> Emptiness {
    let SeenNode { node, .. } = match seen {
        Ok(seen) => seen,
        Err(why) => return Emptiness::Unknown { why: why.clone() },
    };
    if let Some(why) = node.doubt() {
        return Emptiness::Unknown { why };
    }
    let mut by: Vec<String> =
        index.jobs_on(name).iter().filter_map(|job| holds(job)).take(JOBS_NAMED).collect();
    by.extend(shrunk_off(seen, name, jobs_seen));
    if !node.flags.contains(&NodeFlag::Drain) {
        by.push("it is not drained".to_owned());
    }
    if node.flags.contains(&NodeFlag::Completing) {
        by.push("a job is completing".to_owned());
    }
    if node.state != BaseState::Idle {
        by.push(format!("its state is {}", node.state.word()));
    }
    match node.gpus_used {
        None => return Emptiness::Unknown { why: "its GPUs in use could not be read".to_owned() },
        Some(0) => {}
        Some(used) => by.push(format!("{used} GPUs in use")),
    }
    by.extend(foreign_reservations(index, name, due_back, now));
    if by.is_empty() { Emptiness::Empty } else { Emptiness::Busy { by } }
}

/// Says whose job it is, where a job that names the node has, or may still have, a process on it.
fn holds(job: &Job) -> Option<String> {
    let says = |what: &str| Some(format!("job {} of {} ({what})", job.id, job.user));
    match &job.state {
        JobState::Finished | JobState::Pending => None,
        JobState::Configuring => says("configuring"),
        JobState::Running => match job.end_by {
            Some(end) => says(&format!("running, ends by {end}")),
            None => says("running, without a time limit"),
        },
        JobState::Suspended => says("suspended: it can resume on a drained node"),
        JobState::Completing => says("completing"),
        JobState::Other(word) => says(word),
    }
}

/// Jobs that were seen on the node and may have processes there yet, though they do not name it any more.
pub fn shrunk_off<'a>(
    seen: &'a Result<SeenNode<'_>, String>,
    name: &'a SlurmNodeName,
    jobs_seen: &'a JobsSeen,
) -> impl Iterator<Item = String> + 'a {
    let jobs = seen.as_ref().ok().map(|seen| &seen.slurm.jobs);
    jobs_seen.iter().filter_map(move |(id, run)| is_shrunk_off(jobs?.get(id)?, *run, name))
}

/// A job that does not name the node any more: the same run was shrunk off it, and its process may live there yet. A
/// later run of a requeued job is another matter.
fn is_shrunk_off(job: &Job, run: Option<Timestamp>, name: &SlurmNodeName) -> Option<String> {
    if job.nodes.contains(name) || run != job.start {
        return None;
    }
    match &job.state {
        JobState::Finished | JobState::Pending => None,
        JobState::Configuring
        | JobState::Running
        | JobState::Suspended
        | JobState::Completing
        | JobState::Other(_) => {
            Some(format!("job {} of {} (was seen here and is unfinished)", job.id, job.user))
        }
    }
}

/// Foreign reservations of the node that are in force at an instant, or begin before the node is due back.
pub fn foreign_reservations<'a>(
    index: &'a Index<'_>,
    name: &SlurmNodeName,
    due_back: Option<Timestamp>,
    at: Timestamp,
) -> impl Iterator<Item = String> + 'a {
    index.reservations_on(name).iter().filter_map(move |r| foreign_reservation(r, due_back, at))
}

fn foreign_reservation(
    reservation: &Reservation,
    due_back: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let ours = reservation_handover(&reservation.name).is_some();
    let in_the_way = now < reservation.end
        && (reservation.is_active(now) || due_back.is_none_or(|due_back| reservation.start < due_back));
    (in_the_way && !ours).then(|| format!("reservation {} from {}", reservation.name, reservation.start))
}

/// Jobs that are on the node in this look, for the handover to remember.
pub fn jobs_on(index: &Index<'_>, name: &SlurmNodeName) -> JobsSeen {
    index
        .jobs_on(name)
        .iter()
        .filter(|job| job.state != JobState::Pending && job.state != JobState::Finished)
        .map(|job| (job.id, job.start))
        .collect()
}

#[cfg(test)]
mod tests;
