//! The resources of slurmrestd and the texts of Slurm's commands, as far as we read them, and their translation into facts. What is missing or odd never
//! becomes a fact: a node whose state and flags cannot be read is none, but is named with the cause; a job or a reservation
//! whose nodes cannot be read spoils the whole look, because it could be on any node.

mod job;
mod node;
mod rest;
mod shown;

pub(crate) use self::job::JobRecord;
pub(super) use self::job::{JobMark, job, job_marks, jobs};
pub(crate) use self::node::NodeRecord;
pub(super) use self::node::nodes;
pub(crate) use self::rest::Ping;
pub(super) use self::rest::{partitions, pings, reservations};
#[cfg(test)]
pub(super) use self::shown::squeue_heading;
pub(super) use self::shown::{shown_jobs, shown_nodes, shown_partitions, shown_reservations, squeue_format};

use super::answer::Asked;
use super::error::Error;
use super::hostlist;

/// The nodes of a job, a reservation or a partition.
fn hosts(asked: &Asked<'_>, list: &str, of: &str) -> Result<gpu_bridge_core::facts::NodeSet, Error> {
    hostlist::expand(list).map_err(|error| asked.unreadable(error.to_string(), format!("the nodes of {of}")))
}

#[cfg(test)]
pub(super) use self::job::job_state;

#[cfg(test)]
mod tests;
