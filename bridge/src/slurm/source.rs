//! Where looks come from and node writes go: slurmrestd, or Slurm's commands. Both give the same facts of the same cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use gpu_bridge_core::facts::slurm::{Job, Node, Partition, Reservation};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use jiff::Timestamp;

use super::error::Error;
use super::plan::{NodeWrite, ReservationWrite};
use super::rights::User;
use super::version::Version;
use crate::daemon::clock::Clock;

/// The jobs of a look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Listed {
    /// Every job that is not finished, and those watched that still exist.
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Pending ones beyond what is read.
    pub(super) pending_unread: u32,
}

/// One way to look at Slurm, and to write to a node. Each call has a deadline and a bound on what it reads.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// The same on another clock.
    fn on_clock(self: Box<Self>, clock: Arc<dyn Clock>) -> Box<dyn Source>;

    /// The REST version in use; `None` where it is not slurmrestd.
    async fn version(&self) -> Result<Option<Version>, Error>;

    /// Whom Slurm takes us to be.
    async fn acts_as(&self) -> Result<User, Error>;

    /// When the token in use ends, where a person has to replace it.
    async fn token_ends(&self) -> Option<Timestamp>;

    /// Each node, or what was found instead of its state.
    async fn nodes(&self) -> Result<BTreeMap<SlurmNodeName, Result<Node, String>>, Error>;

    /// Every reservation.
    async fn reservations(&self) -> Result<BTreeMap<String, Reservation>, Error>;

    /// Every partition, hidden ones too.
    async fn partitions(&self) -> Result<BTreeMap<String, Partition>, Error>;

    /// Every job that is not finished, and the `watched` ones in whatever state.
    async fn jobs(&self, watched: &[JobId]) -> Result<Listed, Error>;

    /// Writes to a node, once; what became of it is for a look to tell.
    async fn write_node(&self, name: &str, write: &NodeWrite<'_>) -> Result<(), Error>;

    /// Writes a reservation of ours, once; the same holds.
    async fn write_reservation(&self, write: &ReservationWrite<'_>) -> Result<(), Error>;
}
