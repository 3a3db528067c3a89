//! Carries out what a node lacks: every effect with its intent in the ledger before it and its outcome after it. Which
//! writes those are is `gpu-bridge-core`'s; this decides only when to leave a node or a domain for the next tick. The first
//! write of a node that opens a gate is judged once more, by a look that is at most [`FRESH`] old.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpu_bridge_core::backwards::{Counters, looked_at};
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::{Action, Event, Outcome};
use gpu_bridge_core::facts::Facts;
use gpu_bridge_core::facts::kubernetes::Acted;
use gpu_bridge_core::facts::slurm::Index;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::Domain;
use gpu_bridge_core::{release, safety, want};
use jiff::{SignedDuration, Timestamp};

use super::engine::{Engine, seen};
use crate::certainty::Certainty;
use crate::code::report;
use crate::ledger::{Disk, Seq};

/// An opening is not begun on a look that is older than this: it waits for the next tick.
const OLDEST_LOOK_TO_OPEN_ON: SignedDuration = SignedDuration::from_secs(10);
/// A look that was taken anew for an opening serves the tick's other openings for so long.
const FRESH: SignedDuration = SignedDuration::from_secs(1);
/// An eviction that a budget refused is asked for again after this.
const EVICTION_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// A write that did not come off is asked for again after 2 s, 4 s and so on, up to this: each try is two ledger lines.
const LONGEST_PAUSE: u32 = 60;
/// The same for one that closes.
const LONGEST_PAUSE_OF_CLOSING: u32 = 10;

/// Where writes fail together: on one side of a node (of all nodes: the Gate object), in one pass. An opening that fails
/// puts no closing off, and one side none of the other's.
pub(super) type Place = (Option<NodeName>, Domain, Pass);

fn place(name: Option<&NodeName>, action: &Action) -> Place {
    let pass = if action.is_closing() { Pass::Close } else { Pass::Rest };
    (name.cloned(), domain_of(action), pass)
}

fn domain_of(action: &Action) -> Domain {
    match action {
        Action::Slurm(_) => Domain::Slurm,
        Action::Kubernetes(_) => Domain::Kubernetes,
    }
}

/// Writes in one place that did not come off, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed {
    times: u32,
    last: Timestamp,
}

impl Failed {
    fn once_more(before: Option<Self>, last: Timestamp) -> Self {
        Self { times: before.map_or(0, |failed| failed.times).saturating_add(1), last }
    }

    /// Whether the next try is due. A clock that was set back since makes it due.
    fn may_retry(self, pass: Pass, now: Timestamp) -> bool {
        let longest = match pass {
            Pass::Close => LONGEST_PAUSE_OF_CLOSING,
            Pass::Rest => LONGEST_PAUSE,
        };
        let pause = 1_u32.checked_shl(self.times).unwrap_or(longest).min(longest);
        let waited = self.last.duration_until(now);
        waited.is_negative() || waited >= SignedDuration::from_secs(pause.into())
    }
}

/// A domain that took so long to fail is not asked anything more in this tick.
const SILENCE: SignedDuration = SignedDuration::from_secs(1);

/// The passes of a tick over all nodes: no node's trouble keeps another one from being closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pass {
    /// What closes. A failure leaves its side of the node: the other side is closed all the same.
    Close,
    /// The rest, on nodes whose closings came off. A failure leaves the node.
    Rest,
}

/// What one tick's writes have in common.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Domains that do not answer.
    away: Vec<Domain>,
    /// Nodes on which a write did not come off, or was not due: left to the next look.
    left: BTreeSet<NodeName>,
    /// Looks that were taken anew for openings, by the side that was looked at.
    anew: BTreeMap<Domain, Arc<Facts>>,
}

/// An intent that was announced: in the ledger, or, of a closing, in memory until the ledger can be written.
#[derive(Debug, Clone, Copy)]
struct Intent {
    seq: Option<Seq>,
}

/// What came of a write, for those that would follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It came off, or others may follow all the same.
    GoOn,
    /// It was certainly not done.
    Refused,
    /// It may or may not have been done: only a look tells.
    Unknown,
}

impl<D: Disk> Engine<D> {
    /// Carries out what is missing on a node, in order.
    pub(super) async fn write(&mut self, name: &NodeName, index: &Index<'_>, pass: Pass, round: &mut Round) {
        if round.left.contains(name) {
            return;
        }
        let actions = self.with_view(name, index, |view| {
            let actions = match view.record.release() {
                Some((owner, mode)) => release::actions(view, owner, mode),
                None => want::actions(view),
            };
            let opens = |action: Action| (want::needs_permit(view, &action), action);
            actions.into_iter().map(opens).collect::<Vec<_>>()
        });
        let may_evict = self.evict_again.get(name).is_none_or(|again| *again <= self.parts.clock.now());
        // One look more is for all of the node's writes: they follow each other at once.
        let mut looked_anew = false;
        // A side of the node on which a write did not come off, or may or may not have been done.
        let mut left = None;
        for (opens, action) in actions.into_iter().flatten() {
            let place = place(Some(name), &action);
            let (_, domain, of_pass) = place;
            if of_pass != pass || left == Some(domain) || (is_eviction(&action) && !may_evict) {
                continue;
            }
            if round.away.contains(&domain) || !self.may_retry(&place) {
                round.left.insert(name.clone());
                match pass {
                    Pass::Close => {
                        left = Some(domain);
                        continue;
                    }
                    Pass::Rest => break,
                }
            }
            if !action.is_closing() && self.too_old_to_open_on() {
                tracing::warn!(node = %name, "the look is too old to open or evict on; the next tick looks again");
                break;
            }
            let Some(intent) = self.intend(Some(name), &action) else { break };
            let begun = self.parts.clock.now();
            let permitted = match opens {
                Some(opening) if !looked_anew => self.look_anew(name, opening, round).await,
                Some(_) | None => Ok(()),
            };
            looked_anew |= opens.is_some();
            let (outcome, next) = match permitted {
                Err(denied) => {
                    tracing::warn!(node = %name, ?action, %denied, "not opened: the look just before it says otherwise");
                    (Outcome::Denied { denied }, Next::Refused)
                }
                Ok(()) => self.act(Some(name), &action).await,
            };
            self.conclude(intent, place, &action, outcome, next);
            match (next, pass) {
                (Next::GoOn, Pass::Close | Pass::Rest) => continue,
                (Next::Refused, Pass::Rest) => break,
                (Next::Refused, Pass::Close) => {}
                (Next::Unknown, Pass::Close | Pass::Rest) => {
                    let waited = begun.duration_until(self.parts.clock.now());
                    if waited.is_negative() || waited >= SILENCE {
                        round.away.push(domain);
                    }
                }
            }
            round.left.insert(name.clone());
            left = Some(domain);
        }
    }

    /// Carries out what concerns all nodes.
    pub(super) async fn carry_out(&mut self, action: &Action) {
        let place = place(None, action);
        if !self.may_retry(&place) {
            return;
        }
        let Some(intent) = self.intend(None, action) else { return };
        let (outcome, next) = self.act(None, action).await;
        self.conclude(intent, place, action, outcome, next);
    }

    fn too_old_to_open_on(&self) -> bool {
        let now = self.parts.clock.now();
        let too_old = |domain| too_old(looked_at(&self.facts, domain), OLDEST_LOOK_TO_OPEN_ON, now);
        too_old(Domain::Slurm) || too_old(Domain::Kubernetes)
    }

    /// Looks at the other side once more, right before a gate opens on its word, and judges by the same rule: a tick that
    /// writes on many nodes is seconds long. An error is why the gate may not open any more.
    async fn look_anew(&mut self, name: &NodeName, opening: Domain, round: &mut Round) -> Result<(), Denied> {
        let unknown = || Denied::UnknownNode { node: name.clone() };
        let node = self.parts.site.nodes.get(name).cloned().ok_or_else(unknown)?;
        let now = self.parts.clock.now();
        let facts = match round.anew.get(&opening.other()) {
            Some(facts) if !too_old(looked_at(facts, opening.other()), FRESH, now) => Arc::clone(facts),
            Some(_) | None => {
                let facts = Arc::new(self.look_at_other(opening).await);
                round.anew.insert(opening.other(), Arc::clone(&facts));
                facts
            }
        };
        let look = match opening {
            Domain::Slurm => Some(self.look_at(&node).await),
            Domain::Kubernetes => None,
        };
        self.believable(&facts)?;
        let index = Index::new(&facts.slurm);
        self.with_view_of(name, &facts, &index, look.as_ref(), |view| safety::permit(view, opening).map(drop))
            .ok_or_else(unknown)?
    }

    /// Nothing opens on a look that took too long, nor on the one that shows time running backwards. One that was not
    /// answered shows an unknown gate: that is the rule's to judge.
    fn believable(&self, facts: &Facts) -> Result<(), Denied> {
        let judged_at = self.parts.clock.now();
        for domain in [Domain::Slurm, Domain::Kubernetes] {
            if let Some(at) = looked_at(facts, domain)
                && too_old(Some(at), OLDEST_LOOK_TO_OPEN_ON, judged_at)
            {
                return Err(Denied::LookTooOld { domain, at, judged_at });
            }
        }
        match Counters::of(facts).below(self.counters) {
            Some(domain) => Err(Denied::Backwards { domain, noticed: judged_at }),
            None => Ok(()),
        }
    }

    /// This tick's facts, with those of the side that must be closed and empty seen anew.
    async fn look_at_other(&self, opening: Domain) -> Facts {
        let at = self.parts.clock.now();
        let mut facts = (*self.facts).clone();
        match opening {
            Domain::Slurm => facts.kubernetes = seen(at, self.parts.kubernetes.look().await),
            Domain::Kubernetes => facts.slurm = seen(at, self.parts.slurm.look(&self.watched()).await),
        }
        facts
    }

    /// Says in the ledger what will be done; `None` where it could not be said, so that it must not be done.
    fn intend(&mut self, name: Option<&NodeName>, action: &Action) -> Option<Intent> {
        let handover = name.and_then(|name| self.journal.book().nodes.get(name)?.handover);
        let intent =
            Event::Intent { handover, node: name.cloned(), epoch: self.epoch, action: action.clone() };
        let now = self.parts.clock.now();
        let seq = if action.is_closing() {
            self.journal.record_closing(now, &intent)
        } else {
            self.journal.record(now, &intent).map(Some)
        };
        match seq {
            Ok(seq) => Some(Intent { seq }),
            Err(error) => {
                tracing::error!(?name, error = %report(&error), "an intent could not be recorded: not done");
                None
            }
        }
    }

    async fn act(&mut self, name: Option<&NodeName>, action: &Action) -> (Outcome, Next) {
        match action {
            Action::Slurm(action) => match self.parts.slurm.act(action).await {
                Ok(()) => (Outcome::Done, Next::GoOn),
                Err(error) => failed(error.certainty(), report(&error)),
            },
            Action::Kubernetes(action) => match self.parts.kubernetes.act(action).await {
                Ok(Acted::Done) => (Outcome::Done, Next::GoOn),
                Ok(Acted::Budget { why }) => {
                    self.put_off_evictions(name);
                    (Outcome::Budget { why }, Next::GoOn)
                }
                Ok(Acted::Refused { why }) => {
                    self.put_off_evictions(name);
                    (Outcome::Refused { why }, Next::GoOn)
                }
                Err(error) => failed(error.certainty(), report(&error)),
            },
        }
    }

    fn may_retry(&self, place: &Place) -> bool {
        let now = self.parts.clock.now();
        self.failed.get(place).is_none_or(|failed| failed.may_retry(place.2, now))
    }

    fn conclude(&mut self, intent: Intent, place: Place, action: &Action, outcome: Outcome, next: Next) {
        let name = place.0.clone();
        match next {
            Next::GoOn => {
                self.failed.remove(&place);
            }
            Next::Refused | Next::Unknown => {
                let failed = Failed::once_more(self.failed.get(&place).copied(), self.parts.clock.now());
                self.failed.insert(place, failed);
            }
        }
        match &outcome {
            // A denial was told where it was made.
            Outcome::Done | Outcome::Budget { .. } | Outcome::Denied { .. } => {}
            Outcome::Refused { why } | Outcome::Unknown { why } => {
                tracing::warn!(?name, ?action, %why, "a write did not come off");
            }
        }
        if let Some(seq) = intent.seq {
            self.record(&Event::Outcome { intent: seq.0, outcome });
        }
    }

    fn put_off_evictions(&mut self, name: Option<&NodeName>) {
        if let Some(name) = name {
            let now = self.parts.clock.now();
            self.evict_again.insert(name.clone(), now.saturating_add(EVICTION_RETRY).unwrap_or(now));
        }
    }
}

fn failed(certainty: Certainty, why: String) -> (Outcome, Next) {
    match certainty {
        Certainty::NotDone => (Outcome::Refused { why }, Next::Refused),
        Certainty::MayBeDone => (Outcome::Unknown { why }, Next::Unknown),
    }
}

fn is_eviction(action: &Action) -> bool {
    use gpu_bridge_core::facts::kubernetes::Action as OnKubernetes;
    match action {
        Action::Kubernetes(OnKubernetes::Evict { .. }) => true,
        Action::Kubernetes(
            OnKubernetes::CreateGate { .. }
            | OnKubernetes::CloseGate { .. }
            | OnKubernetes::OpenGate { .. }
            | OnKubernetes::Mark(_),
        )
        | Action::Slurm(_) => false,
    }
}

/// A look that lies ahead is too old as well: the clock was set back since, and nobody knows how long ago that was.
fn too_old(look: Option<Timestamp>, oldest: SignedDuration, now: Timestamp) -> bool {
    look.is_none_or(|look| {
        let age = look.duration_until(now);
        age.is_negative() || age > oldest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock was set back between look and write: the look never grew old.
    #[test]
    fn what_did_not_come_off_is_tried_ever_more_seldom() {
        let start = Timestamp::UNIX_EPOCH;
        let pauses = |pass: Pass| {
            let mut failed = None;
            let mut pauses = Vec::new();
            for _ in 0..40 {
                let one = Failed::once_more(failed, start);
                let due = |s: &i64| one.may_retry(pass, start + SignedDuration::from_secs(*s));
                let pause = (0..=i64::from(LONGEST_PAUSE)).find(due).unwrap();
                pauses.push(pause);
                failed = Some(one);
            }
            pauses
        };
        assert_eq!(pauses(Pass::Rest)[..7], [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses(Pass::Close)[..5], [2, 4, 8, 10, 10]);
        assert_eq!(pauses(Pass::Rest)[39], 60);
        let failed = Failed { times: 9, last: start };
        assert!(failed.may_retry(Pass::Rest, start - SignedDuration::from_secs(1)), "the clock was set back");
    }

    #[test]
    fn nothing_opens_on_a_look_from_before_the_clock_was_set_back() {
        let now = Timestamp::UNIX_EPOCH;
        for (age, expected) in [(0, false), (10, false), (11, true), (-1, true), (-3_600, true)] {
            let look = now - SignedDuration::from_secs(age);
            assert_eq!(too_old(Some(look), OLDEST_LOOK_TO_OPEN_ON, now), expected, "{age} s");
        }
        assert!(too_old(None, OLDEST_LOOK_TO_OPEN_ON, now));
    }
}
