//! Carries out what people ask for, by the rules: nothing here writes to a scheduler; it begins handovers, rolls them
//! back, starts releases, and the next ticks do the rest.

use std::collections::BTreeSet;

use gpu_bridge_core::adoption::{self, Adoption};
use gpu_bridge_core::book::Management;
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::{Event, Found, ReleaseMode};
use gpu_bridge_core::facts::Seen;
use gpu_bridge_core::facts::kubernetes::Taint;
use gpu_bridge_core::facts::slurm::Index;
use gpu_bridge_core::gate;
use gpu_bridge_core::handover;
use gpu_bridge_core::ids::{HandoverId, NodeName, Ticket};
use gpu_bridge_core::mark::{TAINT_DRAINING, TAINT_RELEASED, TAINT_SLURM};
use gpu_bridge_core::model::{Domain, Node};
use gpu_bridge_core::planner;

use super::command::{Adopting, Command, Go, Refusal, Releasing, Reply};
use super::engine::Engine;
use crate::code::report;
use crate::ledger::Disk;

/// Ledger lines that `explain` shows.
const LINES_SHOWN: usize = 200;

impl<D: Disk> Engine<D> {
    /// Answers one request of `user`.
    pub async fn request(&mut self, user: &str, command: Command) -> Result<Reply, Refusal> {
        match command {
            Command::Move { node, to, reason, ticket } => {
                let answer = self.request_move(user, &node, to, &reason, ticket);
                self.told(user, Some(node), || format!("move it to {to} ({reason})"), answer)
            }
            Command::Cancel { handover, reason } => {
                let node = self.journal.book().handovers.get(&handover).map(|handover| handover.node.clone());
                let answer = self.request_cancel(user, handover, &reason);
                self.told(user, node, || format!("cancel {handover} ({reason})"), answer)
            }
            Command::Adopt { nodes, owner, go } => self.request_adoption(user, &nodes, owner, go).await,
            Command::Release { nodes, mode, go } => self.request_release(user, &nodes, mode, go).await,
            Command::Explain { node } => {
                self.node(&node)?;
                let lines = self.journal.lines(&node, LINES_SHOWN);
                let lines = lines.map_err(|error| Refusal::Away { why: report(&error) })?;
                Ok(Reply::Explained { lines })
            }
        }
    }

    /// The answer, after a denial was written to the ledger.
    fn told<T>(
        &mut self,
        user: &str,
        node: Option<NodeName>,
        asked: impl FnOnce() -> String,
        answer: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if let Err(Refusal::Denied { denied }) = &answer {
            self.record_refusal(user, node, asked(), denied.to_string());
        }
        answer
    }

    fn record_refusal(&mut self, user: &str, node: Option<NodeName>, asked: String, why: String) {
        // Where the ledger can't be written the person is told all the same, and the log has why.
        self.record(&Event::Refused { user: user.to_owned(), node, asked, why });
    }

    fn request_move(
        &mut self,
        user: &str,
        node: &NodeName,
        to: Domain,
        reason: &str,
        ticket: Option<Ticket>,
    ) -> Result<Reply, Refusal> {
        if reason.trim().is_empty() || reason.chars().any(char::is_control) {
            let found = format!("reason {reason:?}");
            return Err(Refusal::Invalid {
                found,
                expected: "one line that says why, for the ledger".into(),
            });
        }
        self.must_have_imported()?;
        let index = Index::new(&self.facts.slurm);
        let planned = planner::requested(self.planning(&index), node, to, reason, user, ticket);
        let planned = planned.map_err(|denied| Refusal::Denied { denied })?;
        let id = self.journal.book().next_handover();
        self.begin_handover(planned.handover(id, self.epoch, self.parts.clock.now()))
    }

    /// Before that nobody knows which marks are newer than the ledger: an id in them would be given out again.
    fn must_have_imported(&self) -> Result<(), Refusal> {
        if self.import_pending {
            let unseen = |domain, unknown: Option<&str>| {
                unknown.map(|why| {
                    format!(
                        "{domain} was not seen since the start, so marks of ours there are not known: {why}"
                    )
                })
            };
            let facts = &self.facts;
            let why: Vec<String> = [
                unseen(Domain::Slurm, facts.slurm.unknown_why()),
                unseen(Domain::Kubernetes, facts.kubernetes.unknown_why()),
            ]
            .into_iter()
            .flatten()
            .collect();
            let why =
                if why.is_empty() { "the next tick reads the marks".to_owned() } else { why.join("; ") };
            return Err(Refusal::Away { why });
        }
        Ok(())
    }

    fn begin_handover(&mut self, handover: handover::Handover) -> Result<Reply, Refusal> {
        let id = handover.id;
        self.must_record(&Event::Planned(Box::new(handover)))?;
        Ok(Reply::Planned { handover: id })
    }

    fn request_cancel(&mut self, user: &str, id: HandoverId, reason: &str) -> Result<Reply, Refusal> {
        let Some(handover) = self.journal.book().handovers.get(&id) else {
            let expected = "a handover that `gpu-bridge status` lists".to_owned();
            return Err(Refusal::Invalid { found: format!("handover {id}"), expected });
        };
        if self.journal.book().record(&handover.node).adopted_from_quarantine {
            let denied = Denied::Quarantined {
                node: handover.node.clone(),
                why: "its adoption ends a quarantine and can only go on; `adopt` with another --owner begins it anew"
                    .to_owned(),
            };
            return Err(Refusal::Denied { denied });
        }
        let event = handover::Event::RollBack { why: format!("cancelled by {user}: {reason}") };
        if let Err(denied) = handover.next(self.parts.clock.now(), &event) {
            return Err(Refusal::Denied { denied });
        }
        self.must_record(&Event::Handover { id, event })?;
        Ok(Reply::Cancelling { handover: id })
    }

    async fn request_adoption(
        &mut self,
        user: &str,
        nodes: &[NodeName],
        owner: Option<Domain>,
        go: Go,
    ) -> Result<Reply, Refusal> {
        self.must_have_imported()?;
        // What is found is put back one day, and work decides who owns: the last tick's look may be seconds old.
        self.look().await;
        let mut answers = Vec::new();
        for name in nodes.iter().collect::<BTreeSet<_>>() {
            let node = self.node(name)?.clone();
            let look = self.look_at(&node).await;
            let proposed =
                adoption::propose(&self.parts.site, self.journal.book(), &node, owner, &self.facts, &look);
            let handover = match (&proposed, go) {
                (Ok(adoption), Go::Yes) => Some(self.begin_adoption(user, adoption)?),
                (Err(denied), Go::Yes) => {
                    self.record_refusal(user, Some(name.clone()), "adopt it".into(), denied.to_string());
                    None
                }
                (Ok(_) | Err(_), Go::Plan) => None,
            };
            answers.push(Adopting { node: name.clone(), adoption: proposed, handover });
        }
        Ok(Reply::Adopting { nodes: answers })
    }

    fn begin_adoption(&mut self, user: &str, adoption: &Adoption) -> Result<HandoverId, Refusal> {
        let node = &adoption.node;
        if adoption.ends_quarantine {
            self.must_record(&Event::QuarantineEnded { node: node.clone() })?;
        }
        let begun = self.plan_adoption(user, adoption);
        if begun.is_err() && adoption.ends_quarantine {
            let why = "its adoption could not be recorded";
            if let Err(error) = self.journal.quarantine(self.parts.clock.now(), node, why) {
                tracing::error!(%error, %node, "it could not be put back in quarantine");
            }
            // By the ledger it is unmanaged, so its guards would not be put back: its marks make it ours again, as after a start.
            self.unread.insert(node.clone());
            self.import_pending = true;
        }
        begun
    }

    fn plan_adoption(&mut self, user: &str, adoption: &Adoption) -> Result<HandoverId, Refusal> {
        self.must_record(&Event::Found { node: adoption.node.clone(), found: adoption.found.clone() })?;
        let id = self.journal.book().next_handover();
        let handover = adoption.handover(id, self.epoch, user, self.parts.clock.now());
        self.must_record(&Event::Planned(Box::new(handover)))?;
        Ok(id)
    }

    async fn request_release(
        &mut self,
        user: &str,
        nodes: &[NodeName],
        mode: ReleaseMode,
        go: Go,
    ) -> Result<Reply, Refusal> {
        self.must_have_imported()?;
        let names: BTreeSet<NodeName> = if nodes.is_empty() {
            let book = self.journal.book();
            book.nodes
                .iter()
                .filter(|(_, record)| record.owner().is_some())
                .map(|(name, _)| name.clone())
                .collect()
        } else {
            nodes.iter().cloned().collect()
        };
        // As at adoption: what may be opened on both sides is judged by a look of now.
        self.look().await;
        let mut answers = Vec::new();
        for name in names {
            let node = match self.node(&name) {
                Ok(node) => node.clone(),
                // Of all that the book holds, those that can be released are.
                Err(refusal) if nodes.is_empty() => {
                    answers.push(Releasing { node: name, leaves: Err(refusal), open_on_both: false });
                    continue;
                }
                Err(refusal) => return Err(refusal),
            };
            let started = Event::ReleaseStarted { node: name.clone(), mode, user: user.to_owned() };
            let leaves = self.may_release(&node, mode, &started).await;
            match (&leaves, go) {
                (Ok(_), Go::Yes) => self.must_record(&started)?,
                (Err(why), Go::Yes) => {
                    self.record_refusal(user, Some(name.clone()), "release it".into(), why.to_string());
                }
                (Ok(_) | Err(_), Go::Plan) => {}
            }
            let open_on_both = mode == ReleaseMode::AsFound && self.was_open_on_both(&name);
            answers.push(Releasing { node: name, leaves, open_on_both });
        }
        Ok(Reply::Releasing { nodes: answers })
    }

    fn was_open_on_both(&self, name: &NodeName) -> bool {
        let record = self.journal.book().record(name);
        // What closed Kubernetes when it was found comes back on a node of Slurm's only.
        let closes = |found: &Found| match record.owner() {
            Some(Domain::Kubernetes) => found.taints.iter().any(|taint| taint.key == TAINT_RELEASED),
            // Its pools' own taints close nothing.
            Some(Domain::Slurm) | None => {
                let closing = |taint: &Taint| {
                    [TAINT_SLURM, TAINT_DRAINING, TAINT_RELEASED].contains(&taint.key.as_str())
                };
                found.listed || found.taints.iter().any(closing)
            }
        };
        record.found.as_ref().is_none_or(|found| found.slurm_drain.is_none() && !closes(found))
    }

    /// What a release would leave, or why it can't be.
    async fn may_release(&self, node: &Node, mode: ReleaseMode, started: &Event) -> Result<String, Refusal> {
        let record = self.journal.book().record(&node.name);
        let no = |denied| Err(Refusal::Denied { denied });
        let name = || node.name.clone();
        let owner = match (record.management, record.handover) {
            (Management::Managed { owner } | Management::Releasing { owner, .. }, None) => owner,
            (_, Some(handover)) => return no(Denied::InHandover { node: name(), handover }),
            (Management::Unmanaged | Management::Adopting, None) => {
                return no(Denied::Unmanaged { node: name() });
            }
        };
        if let Some(why) = record.quarantine {
            let why = format!("{why}; a release would open it unseen: adopt it first");
            return no(Denied::Quarantined { node: name(), why });
        }
        if let Err(error) = self.journal.book().accepts(self.parts.clock.now(), started) {
            let (found, expected) =
                (error.to_string(), "a release that fits what the ledger says".to_owned());
            return Err(Refusal::Invalid { found, expected });
        }
        match mode {
            ReleaseMode::Plain => {
                Ok(format!("{owner} stays open, {} stays closed by plain means", owner.other()))
            }
            ReleaseMode::AsFound => {
                // Opening both sides is only harmless where at most one of them has work.
                let jobs = gate::slurm::jobs_on(&Index::new(&self.facts.slurm), &node.slurm);
                let slurm = gate::slurm::find(&self.facts.slurm, &node.slurm);
                let look = self.look_at(node).await;
                let unseen = adoption::unseen(slurm.as_ref().err().map(String::as_str), look.unknown_why());
                let holders = match (unseen, &look) {
                    (Some(why), _) => return no(Denied::NotFit { why }),
                    (None, Seen::At { value, .. }) => &value.holders,
                    (None, Seen::Unknown { why }) => return no(Denied::NotFit { why: why.clone() }),
                };
                if holders.is_empty() || jobs.is_empty() {
                    return Ok("exactly as it was found".to_owned());
                }
                let jobs = jobs.keys().map(|id| format!("job {id}"));
                let work = jobs.chain(holders.iter().map(gate::kubernetes::describe)).collect::<Vec<_>>();
                no(Denied::WorkOnBothSides { node: name(), work: work.join("; ") })
            }
        }
    }

    fn node(&self, name: &NodeName) -> Result<&Node, Refusal> {
        self.parts
            .site
            .nodes
            .get(name)
            .ok_or_else(|| Refusal::Denied { denied: Denied::UnknownNode { node: name.clone() } })
    }

    fn must_record(&mut self, event: &Event) -> Result<(), Refusal> {
        let recorded = self.journal.record(self.parts.clock.now(), event);
        recorded.map(drop).map_err(|error| Refusal::Ledger { why: report(&error) })
    }
}
