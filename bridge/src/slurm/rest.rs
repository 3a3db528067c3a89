//! Slurm through slurmrestd: which version it speaks, what it shows, and node writes where its version can. What no version
//! does, and what the older ones do too dearly, goes through the commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Job, JobState, Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::Timestamp;
use tokio::sync::{Mutex, RwLock};

use super::answer::{Asked, judge};
use super::commands::Commands;
use super::error::Error;
use super::http::Http;
use super::jobs::Details;
use super::plan::{NodeWrite, ReservationWrite};
use super::rights::User;
use super::shape::{self, JobMark};
use super::source::{Listed, Source};
use super::version::{Family, Jobs, Mouth, VERSIONS, Version, known, through};
use crate::daemon::clock::Clock;

/// The largest answer for one pending job, in bytes: the head of an array brings all its tasks along.
const PENDING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// ESLURM_INVALID_JOB_ID, in every release.
const INVALID_JOB_ID: i64 = 2017;

/// A slurmrestd.
pub(super) struct Rest {
    http: Http,
    commands: Arc<Commands>,
    pinned: Option<Version>,
    version: RwLock<Option<Version>>,
    details: Mutex<Details>,
}

impl Rest {
    /// Speaks `pinned`, or else the newest version that both sides know.
    pub(super) fn new(http: Http, commands: Arc<Commands>, pinned: Option<Version>) -> Self {
        let (version, details) = (RwLock::new(pinned), Mutex::new(Details::default()));
        Self { http, commands, pinned, version, details }
    }

    async fn spoken(&self) -> Result<Version, Error> {
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
                    let through =
                        through(Some(version)).map(|(what, mouth)| format!("{what}: {}", mouth.name()));
                    let (at, through) = (self.http.address(), through.join(", "));
                    tracing::info!(version = version.name, of = version.served_by, %at, through, "slurmrestd answers");
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
        let version = self.spoken().await?;
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
}

#[async_trait]
impl Source for Rest {
    fn on_clock(self: Box<Self>, clock: Arc<dyn Clock>) -> Box<dyn Source> {
        let Self { http, commands, pinned, version, details } = *self;
        Box::new(Self { http: http.on_clock(clock), commands, pinned, version, details })
    }

    async fn version(&self) -> Result<Option<Version>, Error> {
        self.spoken().await.map(Some)
    }

    async fn acts_as(&self) -> Result<User, Error> {
        self.http.acts_as().await
    }

    async fn token_ends(&self) -> Option<Timestamp> {
        self.http.token_ends().await
    }

    /// Never `GET node/X`: that is stale in every release.
    async fn nodes(&self) -> Result<BTreeMap<SlurmNodeName, Result<Node, String>>, Error> {
        self.get("nodes/", None, shape::nodes).await
    }

    async fn reservations(&self) -> Result<BTreeMap<String, Reservation>, Error> {
        self.get("reservations/", None, |_, asked, body| shape::reservations(asked, body)).await
    }

    async fn partitions(&self) -> Result<BTreeMap<String, Partition>, Error> {
        self.get("partitions/", None, shape::partitions).await
    }

    async fn jobs(&self, watched: &[JobId]) -> Result<Listed, Error> {
        match self.spoken().await?.jobs {
            Jobs::States => self.jobs_by_state(watched).await,
            Jobs::Squeue => self.commands.jobs(watched).await,
        }
    }

    /// By the mouth that can.
    async fn write_node(&self, name: &str, write: &NodeWrite<'_>) -> Result<(), Error> {
        let version = self.spoken().await?;
        match version.node {
            Mouth::Scontrol | Mouth::Squeue => self.commands.write(&write.arguments(name)).await,
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

    /// By the mouth that can: this version's, or scontrol where slurmrestd has no words for it.
    async fn write_reservation(&self, write: &ReservationWrite<'_>) -> Result<(), Error> {
        let version = self.spoken().await?;
        let sent = match (version.reservation, write, write.body()) {
            (Mouth::Rest, ReservationWrite::Delete { name }, _) => {
                self.http.delete(&format!("/slurm/{}/reservation/{name}", version.name)).await
            }
            (Mouth::Rest, _, Some(body)) => {
                self.http.post(&format!("/slurm/{}/reservation", version.name), body).await
            }
            (Mouth::Scontrol | Mouth::Squeue, ..) | (Mouth::Rest, _, None) => {
                self.commands.write(&write.arguments()).await
            }
        };
        if let Err(error) = &sent {
            self.forget_version(error).await;
        }
        sent
    }
}

fn unfinished(mark: &JobMark) -> bool {
    mark.state != JobState::Finished
}
