//! Carries out what a node lacks: every effect with its intent in the ledger before it and its outcome after it. Which
//! writes those are is `gpu-bridge-core`'s; this decides only when to leave a node or a domain for the next tick.

use gpu_bridge_core::book::Management;
use gpu_bridge_core::event::{Action, Event, Outcome};
use gpu_bridge_core::facts::Seen;
use gpu_bridge_core::facts::kubernetes::Acted;
use gpu_bridge_core::facts::slurm::Index;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::{release, want};
use jiff::{SignedDuration, Timestamp};

use super::engine::Engine;
use crate::certainty::Certainty;
use crate::code::report;
use crate::ledger::Disk;

/// An opening is not begun on a look that is older than this: it waits for the next tick.
const OLDEST_LOOK_TO_OPEN_ON: SignedDuration = SignedDuration::from_secs(10);
/// An eviction that a budget refused is asked for again after this.
const EVICTION_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Whether the rest of a node's writes may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    /// Not on this node: the next look decides.
    LeaveNode,
    /// Not in this domain: it does not answer.
    LeaveDomain,
}

impl<D: Disk> Engine<D> {
    /// Carries out what is missing on a node, in order.
    pub(super) async fn write(&mut self, name: &NodeName, index: &Index<'_>, away: &mut Vec<&'static str>) {
        let actions = self.with_view(name, index, |view| match view.record.management {
            Management::Releasing { owner, mode } => release::actions(view, owner, mode),
            Management::Unmanaged | Management::Adopting | Management::Managed { .. } => want::actions(view),
        });
        let now = self.parts.clock.now();
        let may_evict = self.evict_again.get(name).is_none_or(|again| *again <= now);
        for action in actions.into_iter().flatten() {
            let (domain, evicts) = match &action {
                Action::Slurm(_) => ("slurm", false),
                Action::Kubernetes(action) => ("kubernetes", is_eviction(action)),
            };
            if away.contains(&domain) || (evicts && !may_evict) {
                continue;
            }
            if !action.is_closing() && self.too_old_to_open_on() {
                tracing::warn!(node = %name, "the look is too old to open or evict on; the next tick looks again");
                break;
            }
            match self.carry_out(Some(name), &action).await {
                Next::GoOn => {}
                Next::LeaveNode => break,
                Next::LeaveDomain => away.push(domain),
            }
        }
    }

    fn too_old_to_open_on(&self) -> bool {
        let now = self.parts.clock.now();
        too_old(at(&self.facts.slurm), now) || too_old(at(&self.facts.kubernetes), now)
    }

    /// Intent, effect, outcome.
    pub(super) async fn carry_out(&mut self, name: Option<&NodeName>, action: &Action) -> Next {
        let handover = name.and_then(|name| self.journal.book().nodes.get(name)?.handover);
        let intent =
            Event::Intent { handover, node: name.cloned(), epoch: self.epoch, action: action.clone() };
        let now = self.parts.clock.now();
        let seq = if action.is_closing() {
            self.journal.record_closing(now, &intent)
        } else {
            self.journal.record(now, &intent).map(Some)
        };
        let seq = match seq {
            Ok(seq) => seq,
            Err(error) => {
                tracing::error!(?name, error = %report(&error), "an intent could not be recorded: not done");
                return Next::LeaveNode;
            }
        };
        let (outcome, next) = match action {
            Action::Slurm(action) => match self.parts.slurm.act(action).await {
                Ok(()) => (Outcome::Done, Next::GoOn),
                Err(error) => {
                    let why = report(&error);
                    if error.certainty() == Certainty::NotDone {
                        (Outcome::Refused { why }, Next::LeaveNode)
                    } else {
                        (Outcome::Unknown { why }, Next::LeaveDomain)
                    }
                }
            },
            Action::Kubernetes(action) => match self.parts.kubernetes.act(action).await {
                Ok(Acted::Done) => (Outcome::Done, Next::GoOn),
                Ok(Acted::Budget { why }) => {
                    self.put_off_evictions(name, now);
                    (Outcome::Budget { why }, Next::GoOn)
                }
                Ok(Acted::Refused { why }) => {
                    self.put_off_evictions(name, now);
                    (Outcome::Refused { why }, Next::GoOn)
                }
                Err(error) => {
                    let why = report(&error);
                    if error.certainty() == Certainty::NotDone {
                        (Outcome::Refused { why }, Next::LeaveNode)
                    } else {
                        (Outcome::Unknown { why }, Next::LeaveDomain)
                    }
                }
            },
        };
        match &outcome {
            Outcome::Done | Outcome::Budget { .. } => {}
            Outcome::Refused { why } | Outcome::Unknown { why } => {
                tracing::warn!(?name, ?action, %why, "a write did not come off");
            }
        }
        if let Some(seq) = seq {
            self.record(&Event::Outcome { intent: seq.0, outcome });
        }
        next
    }

    fn put_off_evictions(&mut self, name: Option<&NodeName>, now: Timestamp) {
        if let Some(name) = name {
            self.evict_again.insert(name.clone(), now.saturating_add(EVICTION_RETRY).unwrap_or(now));
        }
    }
}

fn is_eviction(action: &gpu_bridge_core::facts::kubernetes::Action) -> bool {
    use gpu_bridge_core::facts::kubernetes::Action;
    match action {
        Action::Evict { .. } => true,
        Action::CreateGate { .. } | Action::CloseGate { .. } | Action::OpenGate { .. } | Action::Mark(_) => {
            false
        }
    }
}

/// A look that lies ahead is too old as well: the clock was set back since, and nobody knows how long ago that was.
fn too_old(look: Option<Timestamp>, now: Timestamp) -> bool {
    look.is_none_or(|look| {
        let age = look.duration_until(now);
        age.is_negative() || age > OLDEST_LOOK_TO_OPEN_ON
    })
}

fn at<T>(seen: &Seen<T>) -> Option<Timestamp> {
    match seen {
        Seen::At { at, .. } => Some(*at),
        Seen::Unknown { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock was set back between look and write: the look never grew old.
    #[test]
    fn nothing_opens_on_a_look_from_before_the_clock_was_set_back() {
        let now = Timestamp::UNIX_EPOCH;
        for (age, expected) in [(0, false), (10, false), (11, true), (-1, true), (-3_600, true)] {
            let look = now - SignedDuration::from_secs(age);
            assert_eq!(too_old(Some(look), now), expected, "{age} s");
        }
        assert!(too_old(None, now));
    }
}
