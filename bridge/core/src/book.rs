//! The book: what the ledger's events add up to. Replaying the ledger through [`Book::apply`] gives the state the daemon
//! had; the store only keeps a copy of it. It knows what was decided and done, never what the schedulers show now.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backwards::Backwards;
use crate::denied::Denied;
use crate::event::{Event, Found, ReleaseMode};
use crate::gate::kubernetes::PodsSeen;
use crate::gate::slurm::JobsSeen;
use crate::handover::{self, Handover, LOOKS_NEEDED, Looks, Purpose, Requester, State};
use crate::ids::{Epoch, HandoverId, NodeName, PoolName};
use crate::mark::DrainReason;
use crate::model::Domain;

/// Our relation to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Management {
    /// Not ours: we write nothing on it.
    #[default]
    Unmanaged,
    /// An adoption is under way.
    Adopting,
    /// Ours.
    Managed {
        /// The domain whose gate is (to be) open. In a handover: the one it is leaving.
        owner: Domain,
    },
    /// Our marks are being taken away.
    Releasing {
        /// The owner at the release's start.
        owner: Domain,
        /// What is put in their place.
        mode: ReleaseMode,
    },
}

/// Where a managed node serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The pool.
    pub pool: PoolName,
    /// Who put it there: what a policy placed, policies may take back; what a person placed stays.
    pub by: Requester,
    /// Since when.
    pub since: Timestamp,
}

/// What the book holds on one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Our relation to it.
    pub management: Management,
    /// The handover whose marks close its Slurm gate.
    pub slurm_closed_by: Option<HandoverId>,
    /// The handover whose marks close its Kubernetes gate.
    pub kubernetes_closed_by: Option<HandoverId>,
    /// Its handover, while one is under way.
    pub handover: Option<HandoverId>,
    /// Where it serves.
    pub placement: Option<Placement>,
    /// What was found before we touched it.
    pub found: Option<Found>,
    /// Why it is in quarantine, where it is.
    pub quarantine: Option<String>,
    /// Its adoption under way ends a quarantine: it can't be put back as found, only go on.
    pub adopted_from_quarantine: bool,
    /// Jobs that handovers which came to nothing, or its quarantine, saw on it: shrunk off the node since, they may have processes there yet.
    #[serde(default)]
    pub jobs_seen: JobsSeen,
    /// The same of GPU pods, whose containers may have outlived them.
    #[serde(default)]
    pub pods_seen: PodsSeen,
}

impl Record {
    /// The domain that has, or is losing, the node.
    pub fn owner(&self) -> Option<Domain> {
        match self.management {
            Management::Unmanaged | Management::Adopting => None,
            Management::Managed { owner } | Management::Releasing { owner, .. } => Some(owner),
        }
    }

    /// The release that goes on, with the owner at its start. None in quarantine: its writes open without a look.
    pub fn release(&self) -> Option<(Domain, ReleaseMode)> {
        match self.management {
            Management::Releasing { owner, mode } if self.quarantine.is_none() => Some((owner, mode)),
            Management::Unmanaged
            | Management::Adopting
            | Management::Managed { .. }
            | Management::Releasing { .. } => None,
        }
    }

    /// The handover that our annotation on the Node names.
    pub fn marked_by(&self) -> Option<HandoverId> {
        self.handover.or(self.kubernetes_closed_by).or(self.slurm_closed_by)
    }
}

/// A condition that a person should know of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// What is wrong and what to do.
    pub text: String,
    /// Since when.
    pub since: Timestamp,
}

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Book {
    /// Every node that ever had an event.
    pub nodes: BTreeMap<NodeName, Record>,
    /// Every handover, those that are over too.
    pub handovers: BTreeMap<HandoverId, Handover>,
    /// The current leadership; `None` before the first.
    pub epoch: Option<Epoch>,
    /// The highest handover id ever seen, in the ledger or in marks.
    pub highest_handover: Option<HandoverId>,
    /// Time that ran backwards in a scheduler.
    #[serde(default)]
    pub backwards: Backwards,
    /// Alarms that are on, by key.
    pub alarms: BTreeMap<String, Alarm>,
    /// Intents without an outcome, by the ledger's sequence number: effects that may or may not have happened.
    pub open_intents: BTreeMap<u64, Option<NodeName>>,
}

/// An event that does not fit the book.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The handover says no.
    #[error("handover {id}: {source}")]
    Handover {
        /// Which.
        id: HandoverId,
        /// Why.
        source: Denied,
    },
    /// It names a handover that was never planned.
    #[error("handover {id} was never planned")]
    NoSuchHandover {
        /// Which.
        id: HandoverId,
    },
    /// It plans a second handover for a node, or an id again.
    #[error("handover {id} of node {node} cannot begin: {why}")]
    CannotBegin {
        /// Which.
        id: HandoverId,
        /// The node.
        node: NodeName,
        /// Why.
        why: String,
    },
    /// It does not fit the node's management.
    #[error("node {node}: {why}")]
    Node {
        /// Which.
        node: NodeName,
        /// Why.
        why: String,
    },
}

impl Book {
    /// The record of a node; an empty one for a node without events.
    pub fn record(&self, node: &NodeName) -> Record {
        self.nodes.get(node).cloned().unwrap_or_default()
    }

    /// The handover that a node is in.
    pub fn handover_of(&self, node: &NodeName) -> Option<&Handover> {
        self.handovers.get(&self.nodes.get(node)?.handover?)
    }

    /// The id for the next handover.
    pub fn next_handover(&self) -> HandoverId {
        self.highest_handover.map_or(HandoverId(1), HandoverId::next)
    }

    /// Handovers that are not over.
    pub fn under_way(&self) -> impl Iterator<Item = &Handover> {
        self.nodes.values().filter_map(|record| self.handovers.get(&record.handover?))
    }

    /// Would [`Book::apply`] take the event? Asked before the event goes to the ledger.
    pub fn accepts(&self, at: Timestamp, event: &Event) -> Result<(), Error> {
        match event {
            Event::Planned(handover) => self.may_begin(handover),
            Event::Handover { id, event } => {
                let handover = self.handovers.get(id).ok_or(Error::NoSuchHandover { id: *id })?;
                handover.next(at, event).map(drop).map_err(|source| Error::Handover { id: *id, source })
            }
            Event::ReleaseStarted { node, mode, .. } => self.may_start_release(node, *mode),
            Event::Released { node } => {
                self.may_be_released(node)?;
                self.must_not_be_quarantined(node)
            }
            Event::Started { .. }
            | Event::Stopped
            | Event::IdsSeen { .. }
            | Event::Counted { .. }
            | Event::TimeRanBackwards { .. }
            | Event::Found { .. }
            | Event::DrainLifted { .. }
            | Event::SeenInQuarantine { .. }
            | Event::Intent { .. }
            | Event::Outcome { .. }
            | Event::Decision { .. }
            | Event::Refused { .. }
            | Event::AlarmRaised { .. }
            | Event::AlarmCleared { .. }
            | Event::Quarantined { .. }
            | Event::QuarantineEnded { .. }
            | Event::Imported { .. }
            | Event::Note { .. } => Ok(()),
        }
    }

    /// Adds one event of the ledger. The book is unchanged where it is refused.
    pub fn apply(&mut self, seq: u64, at: Timestamp, event: &Event) -> Result<(), Error> {
        match event {
            Event::Started { epoch, .. } => self.epoch = Some(*epoch),
            Event::Stopped | Event::Decision { .. } | Event::Refused { .. } | Event::Note { .. } => {}
            Event::IdsSeen { highest } => self.highest_handover = self.highest_handover.max(Some(*highest)),
            Event::Counted { counters } => self.backwards.recorded(at, *counters),
            Event::TimeRanBackwards { domain, is, .. } => self.backwards.went_down(at, *domain, *is),
            Event::Found { node, found } => self.entry(node).found = Some(found.clone()),
            Event::DrainLifted { node } => {
                if let Some(found) = &mut self.entry(node).found {
                    found.slurm_drain = None;
                }
            }
            Event::SeenInQuarantine { node, jobs, pods } => {
                let record = self.entry(node);
                record.jobs_seen.extend(jobs);
                record.pods_seen.extend(pods.clone());
            }
            Event::Planned(handover) => self.begin(handover)?,
            Event::Handover { id, event } => self.advance(*id, at, event)?,
            Event::Intent { node, .. } => {
                self.open_intents.insert(seq, node.clone());
            }
            Event::Outcome { intent, .. } => {
                self.open_intents.remove(intent);
            }
            Event::AlarmRaised { key, text, .. } => {
                self.alarms.insert(key.clone(), Alarm { text: text.clone(), since: at });
            }
            Event::AlarmCleared { key } => {
                self.alarms.remove(key);
            }
            Event::Quarantined { node, why } => self.entry(node).quarantine = Some(why.clone()),
            Event::QuarantineEnded { node } => {
                // An adoption follows; what was found before us, and which marks are ours, stays known.
                let record = self.entry(node);
                record.quarantine = None;
                record.management = Management::Unmanaged;
                record.adopted_from_quarantine = true;
                if let Some(caught) = record.handover.take()
                    && let Some(handover) = self.handovers.get_mut(&caught)
                {
                    handover.state = State::RolledBack;
                    handover.since = at;
                    handover.rollback = Some("adopted anew, out of quarantine".to_owned());
                    let (jobs, pods) = (handover.jobs_seen.clone(), handover.pods_seen.clone());
                    let record = self.entry(node);
                    record.jobs_seen.extend(jobs);
                    record.pods_seen.extend(pods);
                }
            }
            Event::Imported { node, owner, slurm_closed_by, kubernetes_closed_by, pool } => {
                let record = self.entry(node);
                record.management = Management::Managed { owner: *owner };
                record.slurm_closed_by = *slurm_closed_by;
                record.kubernetes_closed_by = *kubernetes_closed_by;
                let by = Requester::Person { user: "import of marks".to_owned() };
                record.placement = Some(Placement { pool: pool.clone(), by, since: at });
            }
            Event::ReleaseStarted { node, mode, .. } => self.start_release(node, *mode)?,
            Event::Released { node } => {
                self.may_be_released(node)?;
                self.nodes.remove(node);
            }
        }
        Ok(())
    }

    fn entry(&mut self, node: &NodeName) -> &mut Record {
        self.nodes.entry(node.clone()).or_default()
    }

    fn may_begin(&self, handover: &Handover) -> Result<(), Error> {
        let refuse = |why: &str| {
            Err(Error::CannotBegin { id: handover.id, node: handover.node.clone(), why: why.to_owned() })
        };
        if handover.state != State::Planned || handover.looks != Looks::default() {
            return refuse("it must begin at its beginning");
        }
        if self.handovers.contains_key(&handover.id) {
            return refuse("the id was used before");
        }
        let record = self.record(&handover.node);
        if record.handover.is_some() {
            return refuse("the node is in another handover");
        }
        match (handover.purpose, record.management) {
            (Purpose::Adoption, Management::Unmanaged) | (Purpose::Move, Management::Managed { .. }) => {}
            (
                Purpose::Adoption,
                Management::Adopting | Management::Managed { .. } | Management::Releasing { .. },
            ) => {
                return refuse("the node is not unmanaged");
            }
            (Purpose::Move, Management::Unmanaged | Management::Adopting | Management::Releasing { .. }) => {
                return refuse("the node is not managed");
            }
        }
        Ok(())
    }

    fn begin(&mut self, handover: &Handover) -> Result<(), Error> {
        self.may_begin(handover)?;
        let entry = self.entry(&handover.node);
        entry.handover = Some(handover.id);
        if handover.purpose == Purpose::Adoption {
            entry.management = Management::Adopting;
        }
        let mut handover = handover.clone();
        for (job, run) in &entry.jobs_seen {
            handover.jobs_seen.entry(*job).or_insert(*run);
        }
        for (uid, pod) in &entry.pods_seen {
            handover.pods_seen.entry(uid.clone()).or_insert_with(|| pod.clone());
        }
        self.highest_handover = self.highest_handover.max(Some(handover.id));
        self.handovers.insert(handover.id, handover);
        Ok(())
    }

    fn advance(&mut self, id: HandoverId, at: Timestamp, event: &handover::Event) -> Result<(), Error> {
        let handover = self.handovers.get(&id).ok_or(Error::NoSuchHandover { id })?;
        let next = handover.next(at, event).map_err(|source| Error::Handover { id, source })?;
        let seen_empty = handover.looks.count >= LOOKS_NEEDED;
        let node = next.node.clone();
        let record = self.entry(&node);
        match next.state {
            State::Reserved => record.slurm_closed_by = Some(id),
            State::Closing => record.kubernetes_closed_by = Some(id),
            State::Open => {
                record.management = Management::Managed { owner: next.to };
                record.adopted_from_quarantine = false;
                // A left-over of ours was to stay only if the adoption came to nothing.
                if let Some(found) = &mut record.found {
                    found.slurm_drain.take_if(|reason| DrainReason::parse(reason).is_some());
                }
                match next.to {
                    Domain::Slurm => {
                        record.slurm_closed_by = None;
                        // Shrunk off the node from here on, they still have processes there.
                        record.jobs_seen.extend(&next.jobs_seen);
                        // Seen empty, so all of them have ended.
                        record.pods_seen.clear();
                        // After a move their drain stands again, or they had lifted it: theirs from here on, not to be
                        // put back a second time. An adoption for Slurm has not touched it yet.
                        if next.purpose == Purpose::Move
                            && let Some(found) = &mut record.found
                        {
                            found.slurm_drain = None;
                        }
                    }
                    Domain::Kubernetes => {
                        record.kubernetes_closed_by = None;
                        // Seen empty by the last looks, so all of them are finished. Where the gate was open before, by a write
                        // that came late, they may not be.
                        if seen_empty {
                            record.jobs_seen.clear();
                        } else {
                            record.jobs_seen.clone_from(&next.jobs_seen);
                        }
                    }
                }
                record.placement =
                    Some(Placement { pool: next.pool.clone(), by: next.requester.clone(), since: at });
                record.handover = None;
            }
            State::RolledBack => {
                match next.to.other() {
                    Domain::Slurm => record.slurm_closed_by = None,
                    Domain::Kubernetes => record.kubernetes_closed_by = None,
                }
                record.handover = None;
                if next.purpose == Purpose::Adoption {
                    *record = Record { quarantine: record.quarantine.take(), ..Record::default() };
                }
                record.jobs_seen.clone_from(&next.jobs_seen);
                record.pods_seen.clone_from(&next.pods_seen);
            }
            State::Planned
            | State::Draining
            | State::SlurmEmpty
            | State::Canary
            | State::Releasing
            | State::Evicting
            | State::KubernetesEmpty
            | State::Returning
            | State::RollingBack => {}
        }
        self.handovers.insert(id, next);
        Ok(())
    }

    fn may_release(&self, node: &NodeName) -> Result<Domain, Error> {
        let record = self.record(node);
        match (record.management, record.handover) {
            (Management::Managed { owner } | Management::Releasing { owner, .. }, None) => Ok(owner),
            (Management::Managed { .. } | Management::Releasing { .. }, Some(handover)) => Err(Error::Node {
                node: node.clone(),
                why: format!("it is in handover {handover}; wait for its end or cancel it"),
            }),
            (Management::Unmanaged | Management::Adopting, None | Some(_)) => {
                Err(Error::Node { node: node.clone(), why: "it is not managed".to_owned() })
            }
        }
    }

    /// Stricter than replaying: older ledgers may tell of releases that would not be begun now.
    fn may_start_release(&self, node: &NodeName, mode: ReleaseMode) -> Result<(), Error> {
        self.may_release(node)?;
        let record = self.record(node);
        let refuse = |why: String| Err(Error::Node { node: node.clone(), why });
        self.must_not_be_quarantined(node)?;
        match mode {
            ReleaseMode::AsFound if record.found.is_none() => refuse(
                "what it looked like before is not known (its marks were imported): release it plainly"
                    .into(),
            ),
            ReleaseMode::Plain | ReleaseMode::AsFound => Ok(()),
        }
    }

    fn must_not_be_quarantined(&self, node: &NodeName) -> Result<(), Error> {
        match self.record(node).quarantine {
            None => Ok(()),
            Some(why) => {
                let why =
                    format!("it is in quarantine ({why}); a release would open it unseen: adopt it first");
                Err(Error::Node { node: node.clone(), why })
            }
        }
    }

    fn may_be_released(&self, node: &NodeName) -> Result<(), Error> {
        match self.record(node).management {
            Management::Releasing { .. } => Ok(()),
            Management::Unmanaged | Management::Adopting | Management::Managed { .. } => {
                Err(Error::Node { node: node.clone(), why: "no release of it was begun".to_owned() })
            }
        }
    }

    fn start_release(&mut self, node: &NodeName, mode: ReleaseMode) -> Result<(), Error> {
        let owner = self.may_release(node)?;
        self.entry(node).management = Management::Releasing { owner, mode };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
