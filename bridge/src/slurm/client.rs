//! The real Slurm port: looks from one source, slurmrestd or Slurm's commands, and writes by the mouth that can. It decides
//! nothing beyond whether a single write is ours to make; every write is read back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::Told;
use gpu_bridge_core::facts::slurm::{
    Action, Job, Node, NodeFlag, Reached, ReservationSpec, Slurm as SlurmFacts,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_core::mark;
use jiff::{SignedDuration, Timestamp};

use super::commands::{Cli, Commands};
use super::error::Error;
use super::http::{Address, Http};
use super::plan::{self, NodeWrite, ReservationWrite, Step};
use super::rest::Rest;
use super::rights::Config;
use super::scontrol::Failure;
use super::source::{Listed, Source};
use super::standing::Standing;
use super::version::{self, Version, known, through};
use super::{Mode, Options, Slurm};
use crate::daemon::clock::{Clock, SystemClock};

/// How long a look or a write may take in all, in single deadlines.
const WHOLE_DEADLINES: u32 = 4;
/// Rounds of look and change until a reservation stands.
const RESERVE_ROUNDS: u32 = 8;
/// ESLURM_RESERVATION_INVALID, in every release.
const INVALID_RESERVATION: i64 = 2053;
/// Between rounds that wait for slurmctld.
const ROUND_PAUSE: Duration = Duration::from_millis(500);

/// A real Slurm cluster.
pub struct Client {
    source: Box<dyn Source>,
    commands: Arc<Commands>,
    deadline: Duration,
    clock: Arc<dyn Clock>,
    /// By the last look, how far slurmctld's clock is ahead of ours.
    clock_ahead_s: AtomicI64,
}

/// A client for these options. Does not connect: a cluster that is away shows at the first look.
pub fn connect(options: Options) -> Result<Client, Error> {
    let deadline = options.timeout * WHOLE_DEADLINES;
    let commands = Arc::new(Commands::new(&options)?);
    let source: Box<dyn Source> = match options.mode {
        Mode::Cli => Box::new(Cli::new(Arc::clone(&commands))),
        Mode::Rest => Box::new(rest(options, Arc::clone(&commands))?),
    };
    let clock = Arc::new(SystemClock);
    Ok(Client { source, commands, deadline, clock, clock_ahead_s: AtomicI64::new(0) })
}

fn rest(options: Options, commands: Arc<Commands>) -> Result<Rest, Error> {
    let address = Address::parse(&options.url)?;
    if matches!(address, Address::Tcp(_)) && options.token.is_none() {
        return Err(Error::Options(format!("url {} needs a token", options.url)));
    }
    if http::HeaderValue::from_str(&options.user).is_err() || options.user.is_empty() {
        return Err(Error::Options(format!("user {:?} is no user name", options.user)));
    }
    let pinned = match &options.api_version {
        None => None,
        Some(name) => {
            let unknown = || Error::Options(format!("api_version {name:?} is none of {}", known()));
            Some(Version::named(name).ok_or_else(unknown)?)
        }
    };
    let http = Http::new(address, options.user, options.token, options.timeout, options.max_response_bytes);
    Ok(Rest::new(http, commands, pinned))
}

#[async_trait]
impl Slurm for Client {
    async fn look(&self, watched: &[JobId]) -> Result<SlurmFacts, Error> {
        let look = async {
            let (look, own) = futures::join!(
                self.look_at_all(watched),
                Standing::of(&*self.source, &self.commands, &*self.clock)
            );
            let Standing { clock_ahead, config, rights, doubt } = own?;
            self.clock_ahead_s.store(clock_ahead.as_secs(), Ordering::Relaxed);
            let look = look?;
            self.is_of_one_cluster(&look.jobs, &config).await?;
            if let Some(doubt) = doubt {
                return Err(doubt);
            }
            let next_job_id = config.next_job_id;
            let reached = self.reached(config.release).await?;
            let token_ends = self.source.token_ends().await;
            Ok(SlurmFacts { clock_ahead, next_job_id, rights, token_ends, reached, ..look })
        };
        self.in_time("looking at slurm", look).await
    }

    async fn act(&self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Drain { node, reason, over } => {
                self.in_time(&format!("draining {node}"), self.drain(node, reason, over.as_deref())).await
            }
            Action::Undrain { node, reason } => {
                self.in_time(&format!("undraining {node}"), self.undrain(node, reason)).await
            }
            Action::Reserve(spec) => {
                self.in_time(&format!("reservation {}", spec.name), self.reserve(spec)).await
            }
            Action::Unreserve { name } => {
                self.in_time(&format!("deleting reservation {name}"), self.unreserve(name)).await
            }
        }
    }
}

impl Client {
    /// The same on another clock: a reservation that is to start now is asked for by that word, or Slurm refuses it.
    #[must_use]
    pub fn on_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { source: self.source.on_clock(Arc::clone(&clock)), clock, ..self }
    }

    /// The REST version in use, e.g. `v0.0.42`; asks slurmrestd where that is not known yet. An error where slurmrestd is not
    /// used.
    pub async fn api_version(&self) -> Result<&'static str, Error> {
        let version = self.source.version().await?;
        version
            .map(|version| version.name)
            .ok_or_else(|| Error::Options("mode is \"cli\": no REST version is spoken".to_owned()))
    }

    /// Through what Slurm of this release is reached.
    async fn reached(&self, release: Option<String>) -> Result<Reached, Error> {
        let version = self.source.version().await?;
        let through = through(version).map(|(what, mouth)| (what.to_owned(), mouth.name().to_owned()));
        let api_version = version.map(|version| version.name.to_owned());
        Ok(Reached { release, api_version, through: through.into() })
    }

    async fn in_time<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let result = tokio::time::timeout(self.deadline, work).await;
        result.unwrap_or_else(|_| Err(Error::Deadline { what: what.to_owned(), after: self.deadline }))
    }

    /// Nodes first: a job that starts after they were read is in the list of jobs.
    async fn look_at_all(&self, watched: &[JobId]) -> Result<SlurmFacts, Error> {
        let partitions = self.source.partitions().await?;
        let reservations = self.source.reservations().await?;
        let (mut nodes, mut unreadable_nodes) = (BTreeMap::new(), BTreeMap::new());
        for (name, node) in self.source.nodes().await? {
            match node {
                Ok(node) => drop(nodes.insert(name, node)),
                Err(found) => drop(unreadable_nodes.insert(name, found)),
            }
        }
        let Listed { jobs, pending_unread } = self.source.jobs(watched).await?;
        Ok(SlurmFacts {
            nodes: nodes.into_iter().collect(),
            unreadable_nodes,
            jobs: jobs.into_iter().collect(),
            reservations,
            partitions,
            pending_unread,
            ..SlurmFacts::default()
        })
    }

    /// Whose rights scontrol tells counts for the lists: they must be of the cluster that it asks. squeue beside it asks no other.
    async fn is_of_one_cluster(&self, jobs: &Told<JobId, Job>, config: &Config) -> Result<(), Error> {
        let by_squeue =
            self.source.version().await?.is_none_or(|version| version.jobs == version::Jobs::Squeue);
        let yet_to_come = |config: &Config| jobs.keys().copied().find(|id| config.is_yet_to_come(*id));
        if (by_squeue && self.commands.apart.is_none()) || yet_to_come(config).is_none() {
            return Ok(());
        }
        // It may have come since the counter was read, which is read again, now after the list.
        let config = Config::read(&self.commands.ask(&["show", "config"]).await?);
        let Some(id) = yet_to_come(&config) else { return Ok(()) };
        let from = if by_squeue { "squeue" } else { "slurmrestd" };
        let next = config.next_job_id.map_or_else(String::new, |next| next.to_string());
        Err(Error::Unreadable {
            asked: format!("jobs from {from}"),
            found: format!("job {id}, while by `scontrol show config` the next job is {next}"),
            expected: "jobs of the cluster that scontrol asks: see SLURM_CONF, url, scontrol and squeue"
                .to_owned(),
        })
    }

    /// The node, as a look shows it. One that cannot be read may be drained by anyone: an error.
    async fn node(&self, name: &SlurmNodeName) -> Result<Node, Error> {
        match self.source.nodes().await?.remove(name) {
            Some(Ok(node)) => Ok(node),
            Some(Err(found)) => Err(Error::Unreadable {
                asked: "looking at the nodes".to_owned(),
                found,
                expected: format!("the state of node {name}"),
            }),
            None => Err(Error::UnknownNode { node: name.to_string() }),
        }
    }

    async fn drain(&self, name: &SlurmNodeName, reason: &str, over: Option<&str>) -> Result<(), Error> {
        let node = self.node(name).await.map_err(nothing_written)?;
        match plan::drain(name, &node, reason, over)? {
            Step::Done => Ok(()),
            Step::Write(()) => {
                let sent = self.write_node(name, &NodeWrite::Drain { reason }).await;
                let node = self.node(name).await.map_err(not_read_back)?;
                match plan::drain(name, &node, reason, None) {
                    Ok(Step::Done) => Ok(()),
                    Ok(Step::Write(())) | Err(_) => Err(not_seen(
                        sent,
                        format!("drain {name}"),
                        &node,
                        format!("DRAIN, reason {reason:?}"),
                    )),
                }
            }
        }
    }

    /// UNDRAIN, not RESUME: a node that is DOWN for another cause stays DOWN.
    async fn undrain(&self, name: &SlurmNodeName, reason: &str) -> Result<(), Error> {
        let node = self.node(name).await.map_err(nothing_written)?;
        match plan::undrain(name, &node, reason)? {
            Step::Done => Ok(()),
            Step::Write(()) => {
                let sent = self.write_node(name, &NodeWrite::Undrain).await;
                let node = self.node(name).await.map_err(not_read_back)?;
                // Someone may have drained it meanwhile: then it is theirs, and said so.
                match plan::undrain(name, &node, reason)? {
                    Step::Done => Ok(()),
                    Step::Write(()) => {
                        Err(not_seen(sent, format!("undrain {name}"), &node, "no DRAIN".to_owned()))
                    }
                }
            }
        }
    }

    async fn write_node(&self, name: &SlurmNodeName, write: &NodeWrite<'_>) -> Result<(), Error> {
        self.source.write_node(plain(name.as_str(), "a node's name")?, write).await
    }

    async fn reserve(&self, spec: &ReservationSpec) -> Result<(), Error> {
        ours(&spec.name)?;
        plain(spec.node.as_str(), "a node's name")?;
        let mut sent: Result<(), Error> = Ok(());
        for round in 0..RESERVE_ROUNDS {
            let look = self.source.reservations().await;
            let mut reservations = look.map_err(if round == 0 { nothing_written } else { not_read_back })?;
            let stands = reservations.remove(&spec.name);
            match plan::reserve(stands.as_ref(), spec, self.its_now()) {
                Step::Done => return Ok(()),
                Step::Write(write) => {
                    // What failed for good fails again: say so instead of trying on.
                    if let Err(error) = sent {
                        return Err(error);
                    }
                    sent = self.source.write_reservation(&write).await;
                    if sent.as_ref().is_err_and(came_or_went) {
                        // It ended, or someone made it, between look and write.
                        sent = Ok(());
                        tokio::time::sleep(ROUND_PAUSE).await;
                    }
                }
            }
        }
        sent?;
        let found = self.source.reservations().await.map_err(not_read_back)?.remove(&spec.name);
        Err(Error::NotSeen {
            action: format!("reserve {}", spec.name),
            found: found.map_or("no such reservation".to_owned(), |found| format!("{found:?}")),
            expected: format!("{spec:?}"),
        })
    }

    /// Now, on slurmctld's clock: a start that it counts as past is refused.
    fn its_now(&self) -> Timestamp {
        let ahead = SignedDuration::from_secs(self.clock_ahead_s.load(Ordering::Relaxed));
        let now = self.clock.now();
        now.saturating_add(ahead).unwrap_or(now)
    }

    async fn unreserve(&self, name: &str) -> Result<(), Error> {
        ours(name)?;
        if !self.source.reservations().await.map_err(nothing_written)?.contains_key(name) {
            return Ok(());
        }
        let name = plain(name, "a reservation's name")?;
        let sent = self.source.write_reservation(&ReservationWrite::Delete { name }).await;
        match self.source.reservations().await.map_err(not_read_back)?.get(name) {
            None => Ok(()),
            Some(found) => {
                sent?;
                Err(Error::NotSeen {
                    action: format!("delete {name}"),
                    found: format!("{found:?}"),
                    expected: "no such reservation".to_owned(),
                })
            }
        }
    }
}

/// Does this error of a write mean that the reservation ended, or was made by someone else, since the look before it?
fn came_or_went(error: &Error) -> bool {
    if let Error::Scontrol(error) = error {
        return matches!(error.failure(), Some(Failure::NoReservation | Failure::Exists));
    }
    matches!(error, Error::NotFound { number: INVALID_RESERVATION, .. })
}

fn nothing_written(error: Error) -> Error {
    Error::NothingWritten(Box::new(error))
}

fn not_read_back(error: Error) -> Error {
    Error::NotReadBack(Box::new(error))
}

/// The write's own error where it had one, else what the look shows.
fn not_seen(sent: Result<(), Error>, action: String, node: &Node, expected: String) -> Error {
    if let Err(error) = sent {
        return error;
    }
    let drained = if node.flags.contains(&NodeFlag::Drain) { "DRAIN" } else { "no DRAIN" };
    let reason = node.reason.as_ref().map_or("", |reason| reason.text.as_str());
    Error::NotSeen { action, found: format!("{drained}, reason {reason:?}"), expected }
}

/// Only reservations whose name is ours are ever written.
fn ours(name: &str) -> Result<(), Error> {
    if mark::reservation_handover(name).is_none() {
        return Err(Error::ForeignReservation { name: name.to_owned() });
    }
    Ok(())
}

/// A name that stands for itself in a URL and in a host list.
fn plain<'a>(name: &'a str, what: &'static str) -> Result<&'a str, Error> {
    let usual = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with('.') || name == "ALL" || !name.bytes().all(usual) {
        return Err(Error::BadName { name: name.to_owned(), what });
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
