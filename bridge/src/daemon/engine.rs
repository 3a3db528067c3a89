//! One tick of the daemon: look, check the rule, move handovers on, plan, write. It holds no rule of its own: what a look
//! means, what may happen and what is written are `gpu-bridge-core`'s; here they are fed. How a write is carried out is
//! not known here: that is `effects`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use gpu_bridge_core::backwards::{self, Counters};
use gpu_bridge_core::book::Record;
use gpu_bridge_core::calendar::Calendar;
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::{Action, Event};
use gpu_bridge_core::facts::kubernetes::{BindingProbe, NodeLook};
use gpu_bridge_core::facts::slurm::Index;
use gpu_bridge_core::facts::{Facts, Seen};
use gpu_bridge_core::handover::{self, Requester};
use gpu_bridge_core::ids::{Epoch, JobId, KubeNodeName, NodeName, PolicyName, PoolName};
use gpu_bridge_core::model::{Domain, Node, Site};
use gpu_bridge_core::planner::{self, Heard, Plan, Want};
use gpu_bridge_core::view::{self, Inputs, View};
use gpu_bridge_core::{adoption, import, release, safety, step, want};
use jiff::Timestamp;

use super::clock::Clock;
use super::decider::{self, Mode, Seat};
use super::effects::{self, Failed, Pass, Round};
use super::journal::{self, Journal};
use crate::code::report;
use crate::kubernetes::Kubernetes;
use crate::ledger::Disk;
use crate::slurm::{self, Slurm};

/// Looks at single nodes under way at once.
const LOOKS_AT_ONCE: usize = 8;
/// Events that one look may give one handover.
const EVENTS_AT_ONCE: usize = 4;

/// What the engine works with.
pub struct Parts {
    /// The site.
    pub site: Site,
    /// The calendar.
    pub calendar: Calendar,
    /// The policies.
    pub seats: Vec<Seat>,
    /// The Slurm port.
    pub slurm: Arc<dyn Slurm>,
    /// The Kubernetes port.
    pub kubernetes: Arc<dyn Kubernetes>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// A token for slurmrestd that only a person can renew is an alarm when it has less than this left.
    pub token_alarm_before: jiff::SignedDuration,
    /// Slurm jobs that wait for less are no demand.
    pub demand_age: jiff::SignedDuration,
    /// Seconds between two ticks, for policies.
    pub tick_period_s: u32,
}

/// The daemon without its shell.
pub struct Engine<D: Disk> {
    pub(super) parts: Parts,
    pub(super) journal: Journal<D>,
    pub(super) epoch: Epoch,
    /// The last look.
    pub(super) facts: Arc<Facts>,
    pub(super) looks: BTreeMap<NodeName, Seen<NodeLook>>,
    pub(super) probes: BTreeMap<NodeName, Seen<BindingProbe>>,
    pub(super) plan: Plan,
    /// Marks that the ledger does not explain are yet to be looked for.
    pub(super) import_pending: bool,
    /// Nodes whose marks were not read yet, as no look showed them on both sides.
    pub(super) unread: BTreeSet<NodeName>,
    /// When evictions on a node may be asked for again.
    pub(super) evict_again: BTreeMap<NodeName, Timestamp>,
    /// Where the last write did not come off.
    pub(super) failed: BTreeMap<effects::Place, Failed>,
    /// Why the ledger can't be written, while it can't: an alarm that it cannot hold itself.
    pub(super) ledger_fault: Option<String>,
    /// How far the schedulers' own counters had come at the last look, or by the ledger.
    pub(super) counters: Counters,
    /// Schedulers that the last look did not see, each with the first look that did not.
    pub(super) unseen: BTreeMap<Domain, Timestamp>,
    /// What Slurm hides from us, while it does: then nothing it shows is believed.
    pub(super) hidden: Option<String>,
    /// The last decision recorded for each want, so that only changes are.
    decisions: BTreeMap<Place, String>,
}

/// A want's place: the how manieth of a policy for a pool.
type Place = ((PolicyName, PoolName), usize);

/// What a tick did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticked {
    /// Something was written or went on: the next tick need not wait.
    pub progress: bool,
}

impl<D: Disk> Engine<D> {
    /// Begins a leadership: its epoch is above all that the ledger knows, and stands in the ledger before anything is done.
    pub fn begin(parts: Parts, mut journal: Journal<D>) -> Result<Self, journal::Error> {
        let epoch = journal.book().epoch.map_or(Epoch(1), Epoch::next);
        let counters = journal.book().backwards.counters;
        let unread = parts.site.nodes.keys().cloned().collect();
        let now = parts.clock.now();
        journal.record(now, &Event::Started { epoch, version: env!("CARGO_PKG_VERSION").to_owned() })?;
        Ok(Self {
            parts,
            journal,
            epoch,
            facts: Arc::new(Facts {
                slurm: Seen::unknown("not looked at yet"),
                kubernetes: Seen::unknown("not looked at yet"),
                kubernetes_missed: None,
            }),
            looks: BTreeMap::new(),
            probes: BTreeMap::new(),
            plan: Plan::default(),
            unseen: BTreeMap::new(),
            import_pending: true,
            unread,
            evict_again: BTreeMap::new(),
            failed: BTreeMap::new(),
            ledger_fault: None,
            counters,
            hidden: None,
            decisions: BTreeMap::new(),
        })
    }

    /// The ledger, the book and the store.
    pub fn journal(&self) -> &Journal<D> {
        &self.journal
    }

    /// Takes the engine apart, for the simulator's crashes.
    pub fn into_parts(self) -> (Parts, Journal<D>) {
        (self.parts, self.journal)
    }

    /// Ends in order.
    pub fn stop(&mut self) -> Result<(), journal::Error> {
        let now = self.parts.clock.now();
        if self.counters != self.journal.book().backwards.counters {
            self.journal.record(now, &Event::Counted { counters: self.counters })?;
        }
        self.journal.record(now, &Event::Stopped).map(drop)
    }

    /// One tick.
    pub async fn tick(&mut self) -> Ticked {
        self.look().await;
        let before = self.journal.last().0;
        self.ledger_fault = self.journal.check(self.parts.clock.now()).err().map(|error| report(&error));
        if let Some(why) = &self.ledger_fault {
            tracing::error!(%why, "the ledger cannot be written: nothing new is begun, closing goes on");
        }
        self.notice_time();
        // A ledger that knows of no node is new, or began while a scheduler was away: only marks tell what is ours.
        if self.import_pending && !self.import() && self.journal.book().nodes.is_empty() {
            tracing::debug!(
                "the ledger knows of no node: nothing is done until both schedulers were seen once"
            );
            let facts = Arc::clone(&self.facts);
            self.alarms(&Index::new(&facts.slurm));
            return Ticked { progress: self.journal.last().0 != before };
        }
        if !self.import_pending && import::shows_any(&self.parts.site, &self.facts, &self.unread) {
            self.import();
        }
        let mut round = Round::default();
        let names: Vec<NodeName> = self.parts.site.nodes.keys().cloned().collect();
        let facts = Arc::clone(&self.facts);
        let index = Index::new(&facts.slurm);
        self.look_again(&index).await;
        for name in &names {
            self.step(name, &index);
        }
        // Before marks of ours were read, nobody knows whom a Gate without a list would open.
        if !self.import_pending
            && let Some(action) = want::gate(&self.parts.site, self.journal.book(), &facts.kubernetes)
        {
            self.carry_out(&Action::Kubernetes(action)).await;
        }
        for pass in [Pass::Close, Pass::Rest] {
            for name in &names {
                self.write(name, &index, pass, &mut round).await;
            }
        }
        self.decide(&index).await;
        self.alarms(&index);
        Ticked { progress: self.journal.last().0 != before }
    }

    /// Notices a scheduler whose time ran backwards.
    fn notice_time(&mut self) {
        let notices =
            backwards::notices(self.journal.book(), self.counters, &self.facts, self.parts.clock.now());
        for notice in notices {
            if let Event::TimeRanBackwards { domain, was, is } = &notice {
                tracing::error!(%domain, was, is, "its counter went down: was it started from a backup?");
            }
            if !self.record(&notice) {
                // Noticed again by the next tick. Meanwhile nothing may follow from what this look showed.
                let why = "time ran backwards, and the ledger could not be told";
                let facts = Arc::make_mut(&mut self.facts);
                facts.slurm = Seen::unknown(why);
                facts.kubernetes = Seen::unknown(why);
                return;
            }
        }
        self.counters = Counters::of(&self.facts).or(self.counters);
    }

    /// Looks at both schedulers, and at the nodes whose handovers need it. What does not answer is Unknown.
    pub(super) async fn look(&mut self) {
        let watched = self.watched();
        let clock = &self.parts.clock;
        let at = clock.now();
        let (slurm, kubernetes) =
            futures::join!(self.parts.slurm.look(&watched), self.parts.kubernetes.look());
        self.hidden = match &slurm {
            Err(error @ slurm::Error::Hidden { .. }) => Some(format!("{} {error}", error.code())),
            Ok(_) | Err(_) => None,
        };
        let kubernetes_missed = if kubernetes.is_err() { Some(at) } else { self.facts.kubernetes_missed };
        let facts = Facts { slurm: seen(at, slurm), kubernetes: seen(at, kubernetes), kubernetes_missed };
        let before = std::mem::replace(&mut self.facts, Arc::new(facts));
        tell(Domain::Slurm, before.slurm.unknown_why(), self.facts.slurm.unknown_why());
        tell(Domain::Kubernetes, before.kubernetes.unknown_why(), self.facts.kubernetes.unknown_why());
        let answered = [
            (Domain::Slurm, self.facts.slurm.value().is_some()),
            (Domain::Kubernetes, self.facts.kubernetes.value().is_some()),
        ];
        for (domain, answered) in answered {
            if answered {
                self.unseen.remove(&domain);
            } else {
                self.unseen.entry(domain).or_insert(at);
            }
        }
        self.looks.clear();
        self.probes.clear();
        if self.facts.kubernetes.value().is_none() {
            return;
        }
        let book = self.journal.book();
        let wanted: Vec<(NodeName, KubeNodeName, bool, bool)> = self
            .parts
            .site
            .nodes
            .values()
            .filter_map(|node| {
                let record = book.nodes.get(&node.name)?;
                let handover = book.handover_of(&node.name);
                let (look, probe) = (view::needs_look(record, handover), view::needs_probe(handover));
                (look || probe).then(|| (node.name.clone(), node.kubernetes.clone(), look, probe))
            })
            .collect();
        let looks = futures::stream::iter(wanted).map(|(name, node, look, probe)| {
            let (kubernetes, clock) = (Arc::clone(&self.parts.kubernetes), Arc::clone(&self.parts.clock));
            async move {
                let at = clock.now();
                let looked = if look { Some(seen(at, kubernetes.look_at(&node).await)) } else { None };
                let probed = if probe { Some(seen(at, kubernetes.probe_binding(&node).await)) } else { None };
                (name, looked, probed)
            }
        });
        let done: Vec<_> = looks.buffer_unordered(LOOKS_AT_ONCE).collect().await;
        for (name, looked, probed) in done {
            self.looks.extend(looked.map(|look| (name.clone(), look)));
            self.probes.extend(probed.map(|probe| (name, probe)));
        }
    }

    /// Jobs that are to be asked for by their ids.
    pub(super) fn watched(&self) -> Vec<JobId> {
        self.journal.book().under_way().flat_map(|handover| handover.jobs_seen.keys().copied()).collect()
    }

    /// Looks at nodes whose marks turn out to need it: strays of ours on a side that should bear none.
    async fn look_again(&mut self, index: &Index<'_>) {
        let names: Vec<NodeName> = self.journal.book().nodes.keys().cloned().collect();
        for name in names {
            let lacks = |view: &View<'_>| view.lacks_look();
            if self.with_view(&name, index, lacks) == Some(true)
                && let Some(node) = self.parts.site.nodes.get(&name).cloned()
            {
                let look = self.look_at(&node).await;
                self.looks.insert(name, look);
            }
        }
    }

    /// Looks at one node for a command that needs it.
    pub(super) async fn look_at(&self, node: &Node) -> Seen<NodeLook> {
        let at = self.parts.clock.now();
        seen(at, self.parts.kubernetes.look_at(&node.kubernetes).await)
    }

    /// Adopts marks of ours that the ledger does not explain. False until both sides were seen.
    fn import(&mut self) -> bool {
        let Some(import) = import::import(&self.parts.site, self.journal.book(), &self.facts, &self.unread)
        else {
            for doubt in import::doubts(&self.parts.site, self.journal.book(), &self.facts) {
                self.record(&doubt);
            }
            return false;
        };
        let now = self.parts.clock.now();
        for event in &import.events {
            if let Err(error) = self.journal.record(now, event) {
                tracing::error!(%error, "marks of ours could not be imported");
                return false;
            }
        }
        if let Some(highest) = import.highest_epoch
            && highest >= self.epoch
        {
            let epoch = highest.next();
            let started = Event::Started { epoch, version: env!("CARGO_PKG_VERSION").to_owned() };
            if let Err(error) = self.journal.record(now, &started) {
                tracing::error!(%error, "a new epoch could not be recorded");
                return false;
            }
            self.epoch = epoch;
        }
        self.import_pending = false;
        self.unread = import::unread(&self.parts.site, self.journal.book(), &self.facts, &self.unread);
        true
    }

    /// Calls `f` with the node's view, where the node has a record.
    pub(super) fn with_view<R>(
        &self,
        name: &NodeName,
        index: &Index<'_>,
        f: impl FnOnce(&View<'_>) -> R,
    ) -> Option<R> {
        self.with_view_of(name, &self.facts, index, self.looks.get(name), f)
    }

    /// Calls `f` with the node's view by these facts and this look.
    pub(super) fn with_view_of<R>(
        &self,
        name: &NodeName,
        facts: &Facts,
        index: &Index<'_>,
        look: Option<&Seen<NodeLook>>,
        f: impl FnOnce(&View<'_>) -> R,
    ) -> Option<R> {
        let node = self.parts.site.nodes.get(name)?;
        let book = self.journal.book();
        let unlooked = Seen::unknown("not looked at in this tick");
        let unasked = Seen::unknown("not asked in this tick");
        let blank = Record::default();
        let record = book.nodes.get(name).unwrap_or(&blank);
        let view = View::new(Inputs {
            now: self.parts.clock.now(),
            epoch: self.epoch,
            site: &self.parts.site,
            node,
            record,
            handover: record.handover.and_then(|id| book.handovers.get(&id)),
            backwards: &book.backwards,
            facts,
            index,
            look: look.unwrap_or(&unlooked),
            probe: self.probes.get(name).unwrap_or(&unasked),
        });
        Some(f(&view))
    }

    /// Checks the rule, and takes the node's handover as far as this look shows.
    fn step(&mut self, name: &NodeName, index: &Index<'_>) {
        if !self.journal.book().nodes.contains_key(name) {
            return;
        }
        let violation = self.with_view(name, index, |view| {
            if view.record.quarantine.is_some() { None } else { safety::violation(view) }
        });
        if let Some(Some(why)) = violation {
            tracing::error!(node = %name, %why, "SAFETY: the node is closed and quarantined");
            if let Err(error) = self.journal.quarantine(self.parts.clock.now(), name, &why) {
                tracing::error!(node = %name, error = %report(&error), "the quarantine does not fit the ledger");
            }
        }
        for _ in 0..EVENTS_AT_ONCE {
            let next = self.with_view(name, index, |view| Some((view.handover?.id, step::next_event(view)?)));
            let Some(Some((id, event))) = next else { break };
            tracing::info!(node = %name, handover = %id, event = event.name(), "handover");
            if !self.record(&Event::Handover { id, event }) {
                break;
            }
        }
        if let Some(Some(seen)) = self.with_view(name, index, step::seen_in_quarantine) {
            self.record(&seen);
        }
        if self.with_view(name, index, adoption::drain_was_lifted) == Some(true) {
            self.record(&Event::DrainLifted { node: name.clone() });
        }
        self.finish_release(name, index);
    }

    fn finish_release(&mut self, name: &NodeName, index: &Index<'_>) {
        let done = self.with_view(name, index, |view| {
            view.record.release().is_some_and(|(owner, mode)| release::is_done(view, owner, mode))
        });
        if done == Some(true) {
            self.record(&Event::Released { node: name.clone() });
        }
    }

    /// Records an event at the present instant; false where it could not be.
    pub(super) fn record(&mut self, event: &Event) -> bool {
        match self.journal.record(self.parts.clock.now(), event) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(error = %report(&error), "an event could not be recorded, so it did not happen");
                false
            }
        }
    }

    /// Asks the policies, plans, and begins or cancels handovers.
    async fn decide(&mut self, index: &Index<'_>) {
        let now = self.parts.clock.now();
        let situation = decider::Situation {
            now,
            tick_period_s: self.parts.tick_period_s,
            site: &self.parts.site,
            book: self.journal.book(),
            facts: &self.facts,
            index,
            calendar: &self.parts.calendar,
            demand_age: self.parts.demand_age,
        };
        // Policies judge by facts: while a domain is away nothing new is decided; what was decided goes on.
        if self.facts.slurm.value().is_none() || self.facts.kubernetes.value().is_none() {
            return;
        }
        let snapshot = Arc::new(decider::snapshot(situation));
        for seat in &mut self.parts.seats {
            seat.ask(&self.parts.site, &snapshot).await;
        }
        let active = || self.parts.seats.iter().filter(|seat| seat.mode == Mode::Active);
        let wants: Vec<Want> = active().filter_map(|seat| seat.wants.as_deref()).flatten().cloned().collect();
        let heard = if active().all(|seat| seat.wants.is_some()) { Heard::All } else { Heard::Some };
        let plan = planner::plan(self.planning(index), &wants, &self.freeze(), heard);
        for cancel in &plan.cancels {
            let event = handover::Event::RollBack { why: cancel.why.clone() };
            self.record(&Event::Handover { id: cancel.handover, event });
        }
        for one in &plan.moves {
            let id = self.journal.book().next_handover();
            let planned = one.clone().handover(id, self.epoch, now);
            tracing::info!(node = %planned.node, handover = %id, to = %planned.to, why = %planned.why, "planned");
            self.record(&Event::Planned(Box::new(planned)));
        }
        self.record_decisions(&plan, &wants);
        self.plan = plan;
    }

    pub(super) fn planning<'a>(&'a self, index: &'a Index<'a>) -> planner::Situation<'a> {
        planner::Situation {
            now: self.parts.clock.now(),
            site: &self.parts.site,
            book: self.journal.book(),
            facts: &self.facts,
            index,
        }
    }

    /// A blackout that is on.
    fn freeze(&self) -> planner::Freeze {
        let now = self.parts.clock.now();
        let blackout = self.parts.calendar.blackout_at(now)?;
        let spec = blackout.spec();
        Some(Denied::Blackout {
            name: spec.name.clone(),
            until: blackout.on_at(now)?,
            why: spec.reason.clone(),
        })
    }

    /// What was granted or denied to policies goes to the ledger when it changes. A want is known by its place among those
    /// of its policy and pool: a policy may ask anew each time, from the present instant on.
    fn record_decisions(&mut self, plan: &Plan, wants: &[Want]) {
        let mut places: BTreeMap<(PolicyName, PoolName), usize> = BTreeMap::new();
        for want in wants {
            let of_pool = (want.policy.clone(), want.pool.clone());
            let place = places.entry(of_pool.clone()).and_modify(|place| *place += 1).or_default();
            let place = (of_pool, *place);
            let Some(decided) = decided(plan, want) else { continue };
            if self.decisions.get(&place) == Some(&decided) {
                continue;
            }
            let asked = format!(
                "{} nodes of {} from {} until {} ({})",
                want.count, want.pool, want.from, want.until, want.why
            );
            let event = Event::Decision { policy: want.policy.clone(), asked, decided: decided.clone() };
            if self.record(&event) {
                self.decisions.insert(place, decided);
            }
        }
        self.decisions.retain(|(of_pool, place), _| places.get(of_pool).is_some_and(|last| place <= last));
    }
}

/// Logs that a scheduler went silent, and why, and that it is seen again. While it is silent its words differ from look to
/// look (which of several requests failed first): only another kind of error is told again.
fn tell(domain: Domain, before: Option<&str>, now: Option<&str>) {
    match (before, now) {
        (_, Some(why)) if before.and_then(code_in) != code_in(why) || before.is_none() => {
            tracing::warn!(%domain, %why, "not seen: nothing opens until it is");
        }
        (None | Some(_), Some(why)) => tracing::debug!(%domain, %why, "still not seen"),
        (Some(_), None) => tracing::info!(%domain, "seen"),
        (None, None) => {}
    }
}

/// The code at a report's end.
fn code_in(report: &str) -> Option<&str> {
    report.rsplit_once("  [").map(|(_, code)| code)
}

/// What was decided on a want, where it was one that a person should read of.
fn decided(plan: &Plan, want: &Want) -> Option<String> {
    let nodes: Vec<&str> = plan
        .moves
        .iter()
        .filter(|m| by(&m.requester, want) && m.start_at == want.from.max(m.start_at) && m.pool == want.pool)
        .map(|m| m.node.as_str())
        .collect();
    let denial = plan.denials.iter().find(|denial| denial.want == *want);
    Some(match (nodes.is_empty(), denial) {
        (true, None) => return None,
        (false, None) => format!("granted: {}", nodes.join(", ")),
        (true, Some(denial)) => format!("denied: {}", denial.reason),
        (false, Some(denial)) => format!("granted: {}; denied: {}", nodes.join(", "), denial.reason),
    })
}

fn by(requester: &Requester, want: &Want) -> bool {
    match requester {
        Requester::Policy { policy } => policy == want.policy.as_str(),
        Requester::Person { .. } => false,
    }
}

pub(super) fn seen<T, E: std::error::Error + 'static>(at: Timestamp, answer: Result<T, E>) -> Seen<T> {
    match answer {
        Ok(value) => Seen::At { at, value },
        Err(error) => Seen::unknown(report(&error)),
    }
}
