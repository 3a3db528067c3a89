//! Slurm through `scontrol` and `squeue`, for sites without slurmrestd, and for what slurmrestd does not do or does too
//! dearly. It asks for the forms that are the same in every release, and never for `scontrol show jobs`: there a job's name
//! stands before its state, unescaped.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Job, JobState, Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Options;
use super::answer::Asked;
use super::command::WORDS_MAX;
use super::error::Error;
use super::plan::{NodeWrite, ReservationWrite};
use super::rights::{Level, User};
use super::scontrol::{Command, Failure};
use super::shape;
use super::source::{Listed, Source};
use super::trouble::Trouble;
use super::version::Version;
use crate::daemon::clock::Clock;

/// Pending jobs of which the facts are kept: those that want GPUs first, then the newest.
const PENDING_MAX: usize = 20_000;
/// Jobs that are asked for by id in one run.
const IDS_MAX: usize = 1_000;
/// For how long a proof of the commands' level counts, while nobody's level changes.
const PROVEN_FOR: Duration = Duration::from_mins(10);

/// The commands of Slurm.
#[derive(Debug)]
pub(super) struct Commands {
    /// For writes and the configuration.
    scontrol: Command,
    /// For the lists, which are long.
    shows: Command,
    squeue: Command,
    /// Why squeue may be asked as another user, or of another cluster, than scontrol; `None` where it stands beside it.
    pub(super) apart: Option<String>,
    proven: Mutex<Option<Proven>>,
    pub(super) troubles: Troubles,
}

/// What may be wrong for a while with what only the commands tell.
#[derive(Debug)]
pub(super) struct Troubles {
    pub(super) counter: Trouble,
    pub(super) admin_levels: Trouble,
    pub(super) own_level: Trouble,
}

impl Troubles {
    const fn new() -> Self {
        Self {
            counter: Trouble::new(
                "`scontrol show config` tells no job id counter: a restored backup would go unnoticed",
            ),
            admin_levels: Trouble::new(
                "AdminLevels can't be read: nobody can tell what slurm hides or refuses",
            ),
            own_level: Trouble::new("the level of scontrol's user can't be told"),
        }
    }
}

/// A level that Slurm was seen to grant.
#[derive(Debug)]
struct Proven {
    level: Level,
    /// Who had which level then.
    holders: String,
    at: Instant,
}

impl Commands {
    /// Refuses what would run the two commands as different users.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let Options { scontrol, timeout, max_response_bytes, .. } = options;
        let beside = squeue_beside(scontrol);
        let squeue = options.squeue.clone().unwrap_or_else(|| beside.clone());
        let first = |argv: &'_ [String]| argv.split_last().map(|(_, first)| first.to_vec());
        let (Some(of_scontrol), Some(of_squeue)) = (first(scontrol), first(&squeue)) else {
            return Err(Error::Options(
                "scontrol or squeue is empty; expected [\"scontrol\"], [\"squeue\"]".to_owned(),
            ));
        };
        if of_scontrol != of_squeue {
            return Err(Error::Options(format!(
                "squeue {squeue:?} does not begin as scontrol {scontrol:?} does: they must run as the same user, as what \
                 scontrol's user may see is held to be what squeue's may"
            )));
        }
        let apart = (squeue != beside).then(|| {
            format!(
                "squeue {squeue:?} is not what stands beside scontrol {scontrol:?}, and may run as another user: leave squeue out of \
                 [slurm], so that {beside:?} runs, or write that there"
            )
        });
        Ok(Self {
            apart,
            scontrol: Command::new(scontrol.clone(), *timeout, WORDS_MAX),
            shows: Command::new(scontrol.clone(), *timeout, *max_response_bytes),
            squeue: Command::new(squeue, *timeout, *max_response_bytes),
            proven: Mutex::new(None),
            troubles: Troubles::new(),
        })
    }

    /// Runs scontrol once with these arguments, which write something.
    pub(super) async fn write(&self, arguments: &[String]) -> Result<(), Error> {
        self.scontrol.run(arguments).await.map(drop).map_err(Error::from)
    }

    /// What scontrol shows of slurmctld itself.
    pub(super) async fn ask(&self, arguments: &[&str]) -> Result<String, super::scontrol::Error> {
        self.shows.run(arguments).await
    }

    /// What Slurm lets the user do whom it takes these commands to be from: the daemon's, or one that sudo, a wrapper or a token in
    /// the environment puts in its place. So Slurm itself is asked, by a write to what does not exist: it refuses that for who asks
    /// before it looks for what is meant. Asked again when `holders`, the text of who has which level, is another one.
    /// An error is a text that is the same each time.
    pub(super) async fn level(&self, holders: &str) -> Result<Level, String> {
        let mut proven = self.proven.lock().await;
        if let Some(known) = &*proven
            && known.holders == holders
            && known.at.elapsed() < PROVEN_FOR
        {
            return Ok(known.level);
        }
        *proven = None;
        let nobody = format!("gpu-bridge-nobody-{}", guess_free());
        let level = self.prove(&nobody).await;
        let level = level.map_err(|error| error.to_string().replace(&nobody, "gpu-bridge-nobody"))?;
        *proven = Some(Proven { level, holders: holders.to_owned(), at: Instant::now() });
        Ok(level)
    }

    async fn prove(&self, nobody: &str) -> Result<Level, Error> {
        let node = ["update".to_owned(), format!("NodeName={nobody}"), "Comment=x".to_owned()];
        if self.may(&node, Failure::NoNode).await? {
            return Ok(Level::Administrator);
        }
        let reservation = ["update".to_owned(), format!("ReservationName={nobody}"), "Duration=1".to_owned()];
        let may = self.may(&reservation, Failure::NoReservation).await?;
        Ok(if may { Level::Operator } else { Level::None })
    }

    /// Whether a write to what does not exist is refused because of that (`absent`), or because of who asks.
    async fn may(&self, write: &[String; 3], absent: Failure) -> Result<bool, Error> {
        match self.scontrol.run(write).await {
            Err(error) if error.failure() == Some(absent) => Ok(true),
            Err(error) if error.failure() == Some(Failure::Forbidden) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(said) => {
                Err(Asked::new("scontrol", "")
                    .unreadable(format!("{said:?}"), format!("a refusal of {write:?}")))
            }
        }
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
            listed.append(&mut self.by_number(ids).await?);
        }
        let wanted = |job: &Job| job.state != JobState::Finished || watched.contains(&job.id);
        listed.retain(|_, job| wanted(job));
        Ok(bounded(listed, watched))
    }

    /// All jobs, or those of these numbers; numbers that Slurm does not know any more give none.
    async fn squeue(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, Job>, Error> {
        // What nobody can know who wrote a text before this run.
        let nonce = format!("|{}|", guess_free());
        let mut arguments = ["--local", "--all", "--states=all"].map(str::to_owned).to_vec();
        arguments.push(format!("--Format={}", shape::squeue_format(&nonce)));
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            arguments.push(format!("--jobs={}", ids.join(",")));
        }
        let shown = self.squeue.run(&arguments).await?;
        let records = shape::shown_jobs(&Asked::new("squeue", ""), &shown, &nonce)?;
        Ok(records.into_iter().map(|(id, record)| (id, record.job)).collect())
    }

    /// Those of these jobs that Slurm still knows. It refuses one number that it does not know, and passes over such a one among
    /// several; should a release refuse all of them for one, each is asked for alone.
    async fn by_number(&self, ids: &[JobId]) -> Result<BTreeMap<JobId, Job>, Error> {
        let unknown = |error: &Error| matches!(error, Error::Scontrol(error) if error.failure() == Some(Failure::NoJob));
        match self.squeue(ids).await {
            Err(error) if unknown(&error) => {}
            found => return found,
        }
        let mut found = BTreeMap::new();
        for id in ids.iter().filter(|_| ids.len() > 1) {
            match self.squeue(&[*id]).await {
                Err(error) if unknown(&error) => {}
                one => found.append(&mut one?),
            }
        }
        Ok(found)
    }
}

/// A word that nobody can guess.
fn guess_free() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// scontrol's words with squeue in its place.
pub(crate) fn squeue_beside(scontrol: &[String]) -> Vec<String> {
    let Some((last, first)) = scontrol.split_last() else { return Vec::new() };
    let squeue =
        last.strip_suffix("scontrol").map_or("squeue".to_owned(), |folder| format!("{folder}squeue"));
    first.iter().cloned().chain([squeue]).collect()
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
        Ok(User::OfCommands)
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
