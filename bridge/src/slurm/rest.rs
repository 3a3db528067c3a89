//! The real Slurm port: slurmrestd for looks, and slurmrestd or scontrol for writes, as its version can. It decides nothing
//! beyond whether a single write is ours to make; every write is read back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{
    Action, Job, JobState, Node, NodeFlag, Partition, Reservation, ReservationSpec, Slurm as SlurmFacts,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_core::mark;
use tokio::sync::{Mutex, RwLock};

use super::answer::{Asked, judge};
use super::error::Error;
use super::http::{Address, Http};
use super::jobs::Details;
use super::plan::{self, NodeWrite, ReservationWrite, Step};
use super::rights::{self, Config, Level, User};
use super::scontrol::{Failure, Scontrol};
use super::shape::{self, JobMark};
use super::version::{Family, Jobs, Mouth, VERSIONS, Version, known};
use super::{Options, Slurm};
use crate::daemon::clock::{Clock, SystemClock};

/// The largest answer for one pending job, in bytes: the head of an array brings all its tasks along.
const PENDING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a look or a write may take in all, in single deadlines.
const WHOLE_DEADLINES: u32 = 4;
/// Rounds of look and change until a reservation stands.
const RESERVE_ROUNDS: u32 = 8;
/// ESLURM_INVALID_JOB_ID, in every release.
const INVALID_JOB_ID: i64 = 2017;
/// ESLURM_RESERVATION_INVALID, in every release.
const INVALID_RESERVATION: i64 = 2053;
/// Between rounds that wait for slurmctld.
const ROUND_PAUSE: Duration = Duration::from_millis(500);

/// The jobs of a look.
struct Listed {
    jobs: BTreeMap<JobId, Job>,
    pending_unread: u32,
}

/// How we stand with Slurm.
struct Standing {
    next_job_id: Option<JobId>,
    /// What we may not do.
    rights: Option<String>,
    /// That something may be hidden, where nobody can tell.
    doubt: Option<Error>,
}

/// A real Slurm cluster.
pub struct Client {
    http: Http,
    scontrol: Scontrol,
    deadline: Duration,
    pinned: Option<Version>,
    version: RwLock<Option<Version>>,
    details: Mutex<Details>,
    clock: Arc<dyn Clock>,
}

/// A client for these options. Does not connect: a cluster that is away shows at the first look.
pub fn connect(options: Options) -> Result<Client, Error> {
    let address = Address::parse(&options.url)?;
    if matches!(address, Address::Tcp(_)) && options.token.is_none() {
        return Err(Error::Options(format!("url {} needs a token", options.url)));
    }
    if http::HeaderValue::from_str(&options.user).is_err() || options.user.is_empty() {
        return Err(Error::Options(format!("user {:?} is no user name", options.user)));
    }
    if options.scontrol.is_empty() {
        return Err(Error::Options("scontrol is empty; expected [\"scontrol\"]".to_owned()));
    }
    let pinned = match &options.api_version {
        None => None,
        Some(name) => {
            let unknown = || Error::Options(format!("api_version {name:?} is none of {}", known()));
            Some(Version::named(name).ok_or_else(unknown)?)
        }
    };
    let http = Http::new(address, options.user, options.token, options.timeout, options.max_response_bytes);
    Ok(Client {
        http,
        scontrol: Scontrol::new(options.scontrol, options.timeout),
        deadline: options.timeout * WHOLE_DEADLINES,
        pinned,
        version: RwLock::new(pinned),
        details: Mutex::new(Details::default()),
        clock: Arc::new(SystemClock),
    })
}

#[async_trait]
impl Slurm for Client {
    async fn look(&self, watched: &[JobId]) -> Result<SlurmFacts, Error> {
        let look = async {
            let (look, own) = futures::join!(self.look_at_all(watched), self.own_standing());
            let Standing { next_job_id, rights, doubt } = own?;
            let look = look?;
            if let Some(doubt) = doubt {
                return Err(doubt);
            }
            Ok(SlurmFacts { next_job_id, rights, token_ends: self.http.token_ends().await, ..look })
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
        Self { http: self.http.on_clock(Arc::clone(&clock)), clock, ..self }
    }

    /// The REST version in use, e.g. `v0.0.42`; asks slurmrestd where that is not known yet.
    pub async fn api_version(&self) -> Result<&'static str, Error> {
        self.version().await.map(|version| version.name)
    }

    async fn in_time<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let result = tokio::time::timeout(self.deadline, work).await;
        result.unwrap_or_else(|_| Err(Error::Deadline { what: what.to_owned(), after: self.deadline }))
    }

    async fn version(&self) -> Result<Version, Error> {
        if let Some(version) = *self.version.read().await {
            return Ok(version);
        }
        for version in VERSIONS {
            match self.http.get(&format!("/slurm/{}/ping/", version.name), None, judge).await {
                Err(Error::NoSuchUrl { .. }) => {}
                // It knows the URL; what it says of slurmctld and token shows at the next request.
                Ok(())
                | Err(
                    Error::ControllerAway { .. }
                    | Error::DatabaseAway { .. }
                    | Error::TokenOrController { .. }
                    | Error::TokenOrDatabase { .. }
                    | Error::Refused { .. },
                ) => {
                    let Version { name, served_by, node, reservation, jobs, .. } = version;
                    tracing::info!(version = name, of = served_by, ?node, ?reservation, ?jobs, at = %self.http.address(), "slurmrestd answers");
                    *self.version.write().await = Some(version);
                    return Ok(version);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoVersion { at: self.http.address().to_string(), known: known() })
    }

    /// GETs a path below the version and reads it by `read`.
    async fn get<T>(
        &self,
        path: &str,
        limit: Option<usize>,
        read: impl Fn(Family, &Asked<'_>, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let version = self.version().await?;
        let path = format!("/slurm/{}/{path}", version.name);
        let found = self.http.get(&path, limit, |asked, body| read(version.family, asked, body)).await;
        if let Err(error) = &found {
            self.forget_version(error).await;
        }
        found
    }

    /// slurmrestd was upgraded under us: ask again the next time.
    async fn forget_version(&self, error: &Error) {
        if matches!(error, Error::NoSuchUrl { .. }) {
            *self.version.write().await = self.pinned;
        }
    }

    /// Each node, or what was found instead of its state. Never `GET node/X`: that is stale in every release.
    async fn nodes(&self) -> Result<BTreeMap<SlurmNodeName, Result<Node, String>>, Error> {
        self.get("nodes/", None, shape::nodes).await
    }

    async fn reservations(&self) -> Result<BTreeMap<String, Reservation>, Error> {
        self.get("reservations/", None, |_, asked, body| shape::reservations(asked, body)).await
    }

    async fn partitions(&self) -> Result<BTreeMap<String, Partition>, Error> {
        self.get("partitions/", None, shape::partitions).await
    }

    async fn job_marks(&self) -> Result<BTreeMap<JobId, JobMark>, Error> {
        self.get("jobs/state/", None, |_, asked, body| shape::job_marks(asked, body)).await
    }

    /// `None` where Slurm knows no job of this number any more.
    async fn job(&self, id: JobId, limit: Option<usize>) -> Result<Option<Job>, Error> {
        let read = |family, asked: &Asked<'_>, body: &[u8]| shape::job(family, asked, body, id);
        match self.get(&format!("job/{id}"), limit, read).await {
            Ok(record) => Ok(record.map(|record| record.job)),
            Err(Error::NotFound { number: INVALID_JOB_ID, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Nodes first: a job that starts after they were read is in the list of jobs.
    async fn look_at_all(&self, watched: &[JobId]) -> Result<SlurmFacts, Error> {
        let partitions = self.partitions().await?;
        let reservations = self.reservations().await?;
        let (mut nodes, mut unreadable_nodes) = (BTreeMap::new(), BTreeMap::new());
        for (name, node) in self.nodes().await? {
            match node {
                Ok(node) => drop(nodes.insert(name, node)),
                Err(found) => drop(unreadable_nodes.insert(name, found)),
            }
        }
        let Listed { jobs, pending_unread } = match self.version().await?.jobs {
            Jobs::States => self.jobs_by_state(watched).await?,
            Jobs::Whole => self.jobs_whole(watched).await?,
        };
        Ok(SlurmFacts {
            nodes: nodes.into_iter().collect(),
            unreadable_nodes,
            jobs: jobs.into_iter().collect(),
            reservations,
            partitions,
            next_job_id: None,
            token_ends: None,
            rights: None,
            pending_unread,
        })
    }

    /// Every job's state, and the records of those that matter.
    async fn jobs_by_state(&self, watched: &[JobId]) -> Result<Listed, Error> {
        let marks = self.job_marks().await?;
        let mut details = self.details.lock().await;
        let wanted = details.begin(&marks, watched);
        let mut by_id = BTreeMap::new();
        let mut unknown = Vec::new();
        for id in wanted.must {
            let Some(job) = self.job(id, None).await? else {
                unknown.push(id);
                continue;
            };
            if let Some(mark) = marks.get(&id) {
                details.put(id, mark, Some(job.clone()));
            }
            if watched.contains(&id) {
                by_id.insert(id, job);
            }
        }
        for id in wanted.may {
            let Some(mark) = marks.get(&id) else { continue };
            match self.job(id, Some(PENDING_BYTES_MAX)).await {
                Ok(Some(job)) => details.put(id, mark, Some(job)),
                Ok(None) => {}
                Err(Error::TooLarge { .. }) => {
                    tracing::warn!(job = %id, "the record of this pending array is too large to read");
                    details.put(id, mark, None);
                }
                Err(error) => return Err(error),
            }
        }
        let (mut jobs, pending_unread) = details.end(&marks);
        drop(details);
        if unknown.iter().any(|id| marks.get(id).is_some_and(unfinished)) {
            self.have_ended(&unknown).await?;
        }
        jobs.append(&mut by_id);
        Ok(Listed { jobs, pending_unread })
    }

    /// Jobs that stood in jobs/state and are unknown by their numbers have ended in between; one that stands there still
    /// could be on any node.
    async fn have_ended(&self, unknown: &[JobId]) -> Result<(), Error> {
        let marks = self.job_marks().await?;
        let stands = |id: &JobId| marks.get(id).filter(|mark| unfinished(mark)).map(|mark| (*id, mark));
        match unknown.iter().find_map(stands) {
            None => Ok(()),
            Some((id, mark)) => Err(Error::Unreadable {
                asked: format!("GET job/{id}"),
                found: "no such job".to_owned(),
                expected: format!("the record of job {id}, which is {} by jobs/state", mark.words.join("+")),
            }),
        }
    }

    /// Every job's record. A listing shows jobs in their epilog too, so that nothing is left to ask for by id.
    async fn jobs_whole(&self, watched: &[JobId]) -> Result<Listed, Error> {
        let records = self.get("jobs/", None, shape::jobs).await?;
        let wanted = |job: &Job| job.state != JobState::Finished || watched.contains(&job.id);
        let jobs = records.into_values().map(|record| record.job).filter(wanted);
        Ok(Listed { jobs: jobs.map(|job| (job.id, job)).collect(), pending_unread: 0 })
    }

    /// What no REST version shows: the job id counter, and what Slurm lets us see and do. A look from which something may be
    /// hidden is none; without the counter it is good, only a restored backup then goes unnoticed.
    async fn own_standing(&self) -> Result<Standing, Error> {
        let config = match self.scontrol.run(&["show", "config"].map(str::to_owned)).await {
            Ok(text) => Config::read(&text),
            Err(error) => {
                tracing::warn!(%error, "`scontrol show config` can't be read: a restored backup would go unnoticed");
                Config::default()
            }
        };
        if config.next_job_id.is_none() {
            tracing::warn!("`scontrol show config` has no NEXT_JOB_ID: a restored backup would go unnoticed");
        }
        let next_job_id = config.next_job_id;
        let user = self.http.acts_as().await?;
        if config.is_superuser(&user) {
            return Ok(Standing { next_job_id, rights: None, doubt: None });
        }
        let level = self.level(&config, &user).await;
        let version = self.version().await?;
        let hidden = |what: String| {
            let fix = config.fix(&user, Level::Administrator);
            Error::Hidden { user: user.to_string(), what, fix }
        };
        let doubt = match (config.hides(level), version.jobs) {
            (Ok(what), _) if what.is_empty() => None,
            (Ok(what), _) => return Err(hidden(what.join(" and "))),
            // jobs/state hides nothing, and a job without its record fails the look.
            (Err(_), Jobs::States) => None,
            (Err(why), Jobs::Whole) => Some(hidden(format!("jobs, perhaps ({why}),"))),
        };
        // Up to v0.0.38 this user only reads.
        let lacks = match version.node {
            Mouth::Rest => config.lacks(&user, level, Level::Administrator),
            Mouth::Scontrol => None,
        };
        let rights = lacks.map(|error| format!("{} {error}", error.code()));
        Ok(Standing { next_job_id, rights, doubt })
    }

    /// The user's AdminLevel, as slurmctld has it; none where it can't be asked.
    async fn level(&self, config: &Config, user: &User) -> Level {
        if !config.has_database() {
            return Level::None;
        }
        let asked = ["show", "assoc_mgr", "flags=users"].map(str::to_owned);
        match self.scontrol.run(&asked).await {
            Ok(text) => rights::level(&text, user),
            Err(error) => {
                tracing::warn!(%error, %user, "the AdminLevel can't be read, and counts as none");
                Level::None
            }
        }
    }

    /// The node, as GET nodes shows it. One that cannot be read may be drained by anyone: an error.
    async fn node(&self, name: &SlurmNodeName) -> Result<Node, Error> {
        match self.nodes().await?.remove(name) {
            Some(Ok(node)) => Ok(node),
            Some(Err(found)) => Err(Error::Unreadable {
                asked: "GET nodes/".to_owned(),
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

    /// By the mouth that can.
    async fn write_node(&self, name: &SlurmNodeName, write: &NodeWrite<'_>) -> Result<(), Error> {
        let name = plain(name.as_str(), "a node's name")?;
        let version = self.version().await?;
        match version.node {
            Mouth::Scontrol => self.scontrol.run(&write.arguments(name)).await.map(drop).map_err(Error::from),
            Mouth::Rest => {
                let path = format!("/slurm/{}/node/{name}", version.name);
                let sent = self.http.post(&path, write.body()).await;
                if let Err(error) = &sent {
                    self.forget_version(error).await;
                }
                sent
            }
        }
    }

    async fn reserve(&self, spec: &ReservationSpec) -> Result<(), Error> {
        ours(&spec.name)?;
        plain(spec.node.as_str(), "a node's name")?;
        let mut sent: Result<(), Error> = Ok(());
        for round in 0..RESERVE_ROUNDS {
            let look = self.reservations().await;
            let mut reservations = look.map_err(if round == 0 { nothing_written } else { not_read_back })?;
            let stands = reservations.remove(&spec.name);
            match plan::reserve(stands.as_ref(), spec, self.clock.now()) {
                Step::Done => return Ok(()),
                Step::Write(write) => {
                    // What failed for good fails again: say so instead of trying on.
                    if let Err(error) = sent {
                        return Err(error);
                    }
                    sent = self.write_reservation(&write).await;
                    if sent.as_ref().is_err_and(came_or_went) {
                        // It ended, or someone made it, between look and write.
                        sent = Ok(());
                        tokio::time::sleep(ROUND_PAUSE).await;
                    }
                }
            }
        }
        sent?;
        let found = self.reservations().await.map_err(not_read_back)?.remove(&spec.name);
        Err(Error::NotSeen {
            action: format!("reserve {}", spec.name),
            found: found.map_or("no such reservation".to_owned(), |found| format!("{found:?}")),
            expected: format!("{spec:?}"),
        })
    }

    /// By the mouth that can: this version's, or scontrol where slurmrestd has no words for it.
    async fn write_reservation(&self, write: &ReservationWrite<'_>) -> Result<(), Error> {
        let version = self.version().await?;
        let sent = match (version.reservation, write, write.body()) {
            (Mouth::Rest, ReservationWrite::Delete { name }, _) => {
                let name = plain(name, "a reservation's name")?;
                self.http.delete(&format!("/slurm/{}/reservation/{name}", version.name)).await
            }
            (Mouth::Rest, _, Some(body)) => {
                self.http.post(&format!("/slurm/{}/reservation", version.name), body).await
            }
            (Mouth::Scontrol, ..) | (Mouth::Rest, _, None) => {
                self.scontrol.run(&write.arguments()).await.map(drop).map_err(Error::from)
            }
        };
        if let Err(error) = &sent {
            self.forget_version(error).await;
        }
        sent
    }

    async fn unreserve(&self, name: &str) -> Result<(), Error> {
        ours(name)?;
        if !self.reservations().await.map_err(nothing_written)?.contains_key(name) {
            return Ok(());
        }
        let sent = self.write_reservation(&ReservationWrite::Delete { name }).await;
        match self.reservations().await.map_err(not_read_back)?.get(name) {
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

fn unfinished(mark: &JobMark) -> bool {
    mark.state != JobState::Finished
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
