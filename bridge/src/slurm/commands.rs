//! Slurm through `scontrol` and `squeue`, for sites without slurmrestd, and for what slurmrestd does not do or does too
//! dearly. It asks for the forms that are the same in every release, and never for `scontrol show jobs`: there a job's name
//! stands before its state, unescaped.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Job, JobState, Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::Timestamp;

use super::Options;
use super::answer::Asked;
use super::command::WORDS_MAX;
use super::error::Error;
use super::plan::{NodeWrite, ReservationWrite};
use super::rights::User;
use super::scontrol::{Command, Failure};
use super::shape;
use super::source::{Listed, Source};
use super::version::Version;
use crate::daemon::clock::Clock;

/// Pending jobs of which the facts are kept: those that want GPUs first, then the newest.
const PENDING_MAX: usize = 20_000;
/// Jobs that are asked for by id in one run.
const IDS_MAX: usize = 1_000;

/// The commands of Slurm.
#[derive(Debug)]
pub(super) struct Commands {
    /// For writes and the configuration.
    scontrol: Command,
    /// For the lists, which are long.
    shows: Command,
    squeue: Command,
}

impl Commands {
    pub(super) fn new(options: &Options) -> Self {
        let Options { scontrol, squeue, timeout, max_response_bytes, .. } = options;
        Self {
            scontrol: Command::new(scontrol.clone(), *timeout, WORDS_MAX),
            shows: Command::new(scontrol.clone(), *timeout, *max_response_bytes),
            squeue: Command::new(squeue.clone(), *timeout, *max_response_bytes),
        }
    }

    /// Runs scontrol once with these arguments, which write something.
    pub(super) async fn write(&self, arguments: &[String]) -> Result<(), Error> {
        self.scontrol.run(arguments).await.map(drop).map_err(Error::from)
    }

    /// What scontrol shows of slurmctld itself.
    pub(super) async fn ask(&self, arguments: &[&str]) -> Result<String, super::scontrol::Error> {
        self.scontrol.run(arguments).await
    }

    async fn show(&self, what: &str) -> Result<String, Error> {
        Ok(self.shows.run(&["--all", "--details", "--oneliner", "show", what]).await?)
    }

    /// Every job that is not finished, and those watched. squeue shows jobs in their epilog too; it makes one line of an
    /// array's waiting tasks, so that one of these has to be asked for by its number.
    pub(super) async fn jobs(&self, watched: &[JobId]) -> Result<Listed, Error> {
        let mut listed = self.squeue(&[]).await?;
        let missing: Vec<JobId> = watched.iter().copied().filter(|id| !listed.contains_key(id)).collect();
        for ids in missing.chunks(IDS_MAX) {
            listed.append(&mut self.squeue(ids).await?);
        }
        let wanted = |job: &Job| job.state != JobState::Finished || watched.contains(&job.id);
        listed.retain(|_, job| wanted(job));
        Ok(bounded(listed, watched))
    }

    /// All jobs, or those of these numbers; numbers that Slurm does not know any more give none.
    async fn squeue(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, Job>, Error> {
        // What nobody can know who wrote a text before this run.
        let nonce = format!("|{:016x}|", RandomState::new().build_hasher().finish());
        let mut arguments = ["--noheader", "--local", "--all", "--states=all"].map(str::to_owned).to_vec();
        arguments.push(format!("--Format={}", shape::squeue_format(&nonce)));
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            arguments.push(format!("--jobs={}", ids.join(",")));
        }
        let shown = match self.squeue.run(&arguments).await {
            Err(error) if error.failure() == Some(Failure::NoJob) => return Ok(BTreeMap::new()),
            shown => shown?,
        };
        let records = shape::shown_jobs(&Asked::new("squeue", ""), &shown, &nonce)?;
        Ok(records.into_iter().map(|(id, record)| (id, record.job)).collect())
    }
}

/// At most [`PENDING_MAX`] pending jobs, watched ones aside; the others are counted.
fn bounded(mut jobs: BTreeMap<JobId, Job>, watched: &[JobId]) -> Listed {
    let waits = |job: &&Job| job.state == JobState::Pending && !watched.contains(&job.id);
    let mut pending: Vec<_> =
        jobs.values().filter(waits).map(|job| (job.gpus_per_node > 0, job.id)).collect();
    let surplus = pending.len().saturating_sub(PENDING_MAX);
    if surplus > 0 {
        pending.sort_unstable();
        for (_, id) in &pending[..surplus] {
            jobs.remove(id);
        }
    }
    Listed { jobs, pending_unread: u32::try_from(surplus).unwrap_or(u32::MAX) }
}

/// Whom Slurm takes the commands to be from. (Through a prefix such as sudo it is another: then the rights of ours are told.)
pub(super) fn runs_as() -> User {
    User::Id(rustix::process::geteuid().as_raw())
}

/// Slurm through its commands alone.
#[derive(Debug)]
pub(super) struct Cli {
    commands: Arc<Commands>,
}

impl Cli {
    pub(super) fn new(commands: Arc<Commands>) -> Self {
        Self { commands }
    }
}

#[async_trait]
impl Source for Cli {
    fn on_clock(self: Box<Self>, _: Arc<dyn Clock>) -> Box<dyn Source> {
        self
    }

    async fn version(&self) -> Result<Option<Version>, Error> {
        Ok(None)
    }

    async fn acts_as(&self) -> Result<User, Error> {
        Ok(runs_as())
    }

    async fn token_ends(&self) -> Option<Timestamp> {
        None
    }

    async fn nodes(&self) -> Result<BTreeMap<SlurmNodeName, Result<Node, String>>, Error> {
        shape::shown_nodes(&Asked::new("scontrol show nodes", ""), &self.commands.show("nodes").await?)
    }

    async fn reservations(&self) -> Result<BTreeMap<String, Reservation>, Error> {
        let shown = self.commands.show("reservations").await?;
        shape::shown_reservations(&Asked::new("scontrol show reservations", ""), &shown)
    }

    async fn partitions(&self) -> Result<BTreeMap<String, Partition>, Error> {
        let shown = self.commands.show("partitions").await?;
        shape::shown_partitions(&Asked::new("scontrol show partitions", ""), &shown)
    }

    async fn jobs(&self, watched: &[JobId]) -> Result<Listed, Error> {
        self.commands.jobs(watched).await
    }

    async fn write_node(&self, name: &str, write: &NodeWrite<'_>) -> Result<(), Error> {
        self.commands.write(&write.arguments(name)).await
    }

    async fn write_reservation(&self, write: &ReservationWrite<'_>) -> Result<(), Error> {
        self.commands.write(&write.arguments()).await
    }
}
