//! Which marks a node should bear, and the writes that bring it there.
//!
//! [`wants`] follows from the book alone; [`actions`] compares it with the look and gives what is missing, in order. It is
//! the same for a handover's step and for putting back a guard that somebody removed, so a restart at any point goes on
//! by looking. What opens a gate is made only where [`safety::permit`] says yes in this very tick. Exceptions: what an
//! adoption that rolls back puts back, and a missing Gate ([`gate()`]), which ends the refusal of bindings to every node that is
//! not on its list. ([`crate::release`] makes its own writes.)

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::book::{Book, Management, Record};
use crate::event::Action;
use crate::facts::Seen;
use crate::facts::kubernetes::{
    self, Effect, Eviction, GuardState, Marks, Node as KubeNode, NodeLook, Taint,
};
use crate::facts::slurm::{self, ReservationSpec, RunningJobs};
use crate::gate::{self, Gate, kubernetes::SeenNode, slurm::Drain};
use crate::handover::{Handover, Purpose, State};
use crate::ids::{HandoverId, KubeNodeName};
use crate::mark::{self, DrainReason, HandoverAnnotation, TAINT_DRAINING, TAINT_RELEASED, TAINT_SLURM};
use crate::model::{Domain, PoolKind, Site};
use crate::safety;
use crate::view::View;

/// How long a sealed reservation lasts; renewed at half.
pub const SEAL_LENGTH: SignedDuration = SignedDuration::from_hours(365 * 24);
/// What a sealed reservation must have left for its gate to count as sealed.
pub const SEAL_MARGIN: SignedDuration = SignedDuration::from_hours(24 * 24);
/// Evictions asked for in one tick on one node.
pub const EVICTIONS_AT_ONCE: usize = 32;

/// The Slurm side's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlurmWant {
    /// Not ours to write on.
    Untouched,
    /// None of our marks.
    Open,
    /// A reservation that starts when the node is needed.
    Reserved,
    /// Reservation with IGNORE_JOBS, and DRAIN.
    Draining,
    /// Reservation without it and with its long end, and DRAIN.
    Sealed,
}

/// The Kubernetes side's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubernetesWant {
    /// Not ours to write on.
    Untouched,
    /// The pool's labels and taints, none of our closing marks.
    Open,
    /// On the Gate's list, NoSchedule; NoExecute as it is.
    Closing,
    /// As Closing, and evictions.
    Evicting,
    /// On the list, both taints, none of a pool's labels.
    Sealed,
}

/// What a node's sides should bear, by the book.
pub fn wants(record: &Record, handover: Option<&Handover>) -> (SlurmWant, KubernetesWant) {
    let steady = match record.management {
        Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => {
            (SlurmWant::Untouched, KubernetesWant::Untouched)
        }
        Management::Managed { owner: Domain::Slurm } => (SlurmWant::Open, KubernetesWant::Sealed),
        Management::Managed { owner: Domain::Kubernetes } => (SlurmWant::Sealed, KubernetesWant::Open),
    };
    if record.quarantine.is_some() && record.management != Management::Unmanaged {
        // Close what can be closed without harm: Slurm keeps its marks or gets them, and no pod is evicted.
        let slurm = match record.slurm_closed_by {
            Some(_) => SlurmWant::Draining,
            None => SlurmWant::Untouched,
        };
        return (slurm, KubernetesWant::Closing);
    }
    let Some(handover) = handover else { return steady };
    match handover.state {
        State::Planned => match handover.to {
            Domain::Kubernetes => (SlurmWant::Reserved, steady.1),
            Domain::Slurm => steady,
        },
        State::Reserved => (SlurmWant::Reserved, steady.1),
        State::Draining => (SlurmWant::Draining, steady.1),
        State::SlurmEmpty | State::Canary => (SlurmWant::Sealed, steady.1),
        State::Releasing => (SlurmWant::Sealed, KubernetesWant::Open),
        State::Closing => (steady.0, KubernetesWant::Closing),
        State::Evicting => match handover.purpose {
            Purpose::Move => (steady.0, KubernetesWant::Evicting),
            Purpose::Adoption => (steady.0, KubernetesWant::Closing),
        },
        State::KubernetesEmpty => (steady.0, KubernetesWant::Sealed),
        State::Returning => (SlurmWant::Open, KubernetesWant::Sealed),
        State::RollingBack => match handover.to {
            Domain::Kubernetes => (SlurmWant::Open, steady.1),
            Domain::Slurm => (steady.0, KubernetesWant::Open),
        },
        State::Open | State::RolledBack => steady,
    }
}

/// The writes that bring the node to its wants, in order: the caller carries them out one after the other, and leaves
/// the rest of a node for the next tick when one does not come off.
pub fn actions(view: &View<'_>) -> Vec<Action> {
    let (slurm, kubernetes) = wants(view.record, view.handover);
    let mut actions: Vec<Action> = Vec::new();
    // Closing first, whatever else is to be done.
    actions.extend(kubernetes_actions(view, kubernetes).into_iter().map(Action::Kubernetes));
    actions.extend(slurm_actions(view, slurm).into_iter().map(Action::Slurm));
    actions.sort_by_key(|action| !action.is_closing());
    actions
}

/// The Gate object, where it is missing: created whole, with every managed node on its list. Until it exists the bindings
/// policy refuses every binding to every node of the inventory; a node that Kubernetes owns comes off the list as any other
/// gate opens, by permit.
pub fn gate(site: &Site, book: &Book, facts: &Seen<kubernetes::Kubernetes>) -> Option<kubernetes::Action> {
    let seen = facts.value()?;
    let needed = match seen.guards.bindings {
        GuardState::Standing | GuardState::Altered { .. } => true,
        GuardState::Missing => book.nodes.values().any(|record| record.management != Management::Unmanaged),
    };
    if seen.gate.is_some() || !needed {
        return None;
    }
    let closed = site.nodes.values().filter(|node| {
        book.nodes.get(&node.name).is_some_and(|record| match record.management {
            Management::Managed { .. } => true,
            // What is on its way into or out of our hands is closed where its own steps say so.
            Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => {
                match wants(record, book.handover_of(&node.name)).1 {
                    KubernetesWant::Closing | KubernetesWant::Evicting | KubernetesWant::Sealed => true,
                    KubernetesWant::Untouched | KubernetesWant::Open => false,
                }
            }
        })
    });
    Some(kubernetes::Action::CreateGate { closed: closed.map(|node| node.kubernetes.clone()).collect() })
}

/// May `domain` be opened (again) now? An adoption that rolls back restores what it found on a node that is not ours.
fn may_open(view: &View<'_>, domain: Domain) -> bool {
    restores(view) || safety::permit(view, domain).is_ok()
}

/// Is what an adoption closed put back as it was found? Never out of a quarantine: that one was ours, and in doubt.
fn restores(view: &View<'_>) -> bool {
    !view.record.adopted_from_quarantine
        && view.handover.is_some_and(|h| h.purpose == Purpose::Adoption && h.state == State::RollingBack)
}

/// Does the side look again as the adoption that rolls back found it? That need not be open.
pub fn is_restored(view: &View<'_>, domain: Domain) -> bool {
    restores(view)
        && match domain {
            Domain::Slurm => view.in_slurm.is_ok() && slurm_actions(view, SlurmWant::Open).is_empty(),
            Domain::Kubernetes => {
                view.in_kubernetes.is_ok() && kubernetes_actions(view, KubernetesWant::Open).is_empty()
            }
        }
}

/// Was it on the Gate's list when it was found?
fn found_listed(view: &View<'_>) -> bool {
    view.record.found.as_ref().is_some_and(|found| found.listed)
}

/// Does Kubernetes start work on the node as it stands? None of our guards need be there: the taint of a plain release closes
/// it as well.
fn kubernetes_is_open(view: &View<'_>) -> bool {
    let released = view
        .in_kubernetes
        .as_ref()
        .is_ok_and(|seen| seen.node.taints.iter().any(|t| t.key == TAINT_RELEASED));
    view.kubernetes == Gate::Open && !released
}

/// The gate that a write would open, where that takes a permit: a Kubernetes gate that is open already may have its labels
/// set right, and what was found is put back without one.
pub fn needs_permit(view: &View<'_>, action: &Action) -> Option<Domain> {
    let released = view.record.release().is_some();
    action.opens().filter(|domain| {
        let is_open = *domain == Domain::Kubernetes && kubernetes_is_open(view);
        !released && !restores(view) && !is_open
    })
}

fn slurm_actions(view: &View<'_>, want: SlurmWant) -> Vec<slurm::Action> {
    let Ok(seen) = &view.in_slurm else { return Vec::new() };
    match want {
        SlurmWant::Untouched => Vec::new(),
        SlurmWant::Open => {
            // Left-overs that an adoption found are no marks of its own: they stay where it comes to nothing.
            let own = view.handover.filter(|_| restores(view)).map(|handover| handover.id);
            let to_go = |of: HandoverId| own.is_none_or(|own| of == own);
            let mut actions: Vec<_> = view
                .index
                .reservations_on(&view.node.slurm)
                .iter()
                .filter(|r| mark::reservation_handover(&r.name).is_some_and(to_go))
                .map(|r| slurm::Action::Unreserve { name: r.name.clone() })
                .collect();
            let ours = match &seen.drain {
                Drain::Ours(reason) if to_go(reason.handover) => seen.our_reason(),
                Drain::Ours(_) | Drain::Theirs { .. } | Drain::None => None,
            };
            actions.extend(match ours {
                Some(ours) => Some(give_back(view, ours)),
                // Somebody took ours away, and with it the one found below: our reservation is all that closes the gate.
                None if restores(view) && seen.drain == Drain::None && !actions.is_empty() => {
                    drain_as_found(view)
                }
                None => None,
            });
            if !actions.is_empty() && !may_open(view, Domain::Slurm) {
                return Vec::new();
            }
            actions
        }
        SlurmWant::Reserved => {
            let Some(handover) = view.handover else { return Vec::new() };
            if view.now < handover.reserve_at {
                return Vec::new();
            }
            let (start, end) = (handover.start_at, handover.deadline.max(soon(view)));
            reserve(view, handover.id, start, end, RunningJobs::Ignore).into_iter().collect()
        }
        SlurmWant::Draining => {
            let Some(id) = closer(view) else { return Vec::new() };
            let end = view.handover.map_or(far_end(view), |h| h.deadline.max(soon(view)));
            close(view, seen, id, end, RunningJobs::Ignore)
        }
        SlurmWant::Sealed => {
            let Some(id) = closer(view) else { return Vec::new() };
            // Only jobs: other reasons for not being empty (a reservation of next month) need no flag.
            let jobs = if gate::slurm::jobs_on(view.index, &view.node.slurm).is_empty() {
                RunningJobs::None
            } else {
                RunningJobs::Ignore
            };
            close(view, seen, id, far_end(view), jobs)
        }
    }
}

/// The drain that was found, where none stands.
fn drain_as_found(view: &View<'_>) -> Option<slurm::Action> {
    let reason = view.record.found.as_ref()?.slurm_drain.clone()?;
    Some(slurm::Action::Drain { node: view.node.slurm.clone(), reason, over: None })
}

/// Takes our DRAIN away; where the node was found drained by its people, theirs stands again, and is theirs to lift.
fn give_back(view: &View<'_>, ours: String) -> slurm::Action {
    let node = view.node.slurm.clone();
    let found = view.record.found.as_ref().and_then(|found| found.slurm_drain.clone());
    // A left-over of ours comes back only where the adoption that found it comes to nothing.
    match found.filter(|text| restores(view) || DrainReason::parse(text).is_none()) {
        Some(found) => slurm::Action::Drain { node, reason: found, over: Some(ours) },
        None => slurm::Action::Undrain { node, reason: ours },
    }
}

/// The handover whose marks (are to) close the Slurm gate.
fn closer(view: &View<'_>) -> Option<HandoverId> {
    view.record.slurm_closed_by
}

fn soon(view: &View<'_>) -> Timestamp {
    view.slurm_now.saturating_add(SignedDuration::from_mins(10)).unwrap_or(view.slurm_now)
}

fn far_end(view: &View<'_>) -> Timestamp {
    view.slurm_now.saturating_add(SEAL_LENGTH).unwrap_or(view.slurm_now)
}

/// Both guards, from now on. DRAIN first: it can be put back also where Slurm refuses what the reservation would need.
fn close(
    view: &View<'_>,
    seen: &gate::slurm::SeenNode<'_>,
    id: HandoverId,
    end: Timestamp,
    jobs: RunningJobs,
) -> Vec<slurm::Action> {
    drain(view, &seen.drain, id).into_iter().chain(reserve(view, id, view.slurm_now, end, jobs)).collect()
}

/// The reservation write, where what stands differs in a way that matters.
fn reserve(
    view: &View<'_>,
    id: HandoverId,
    start: Timestamp,
    end: Timestamp,
    jobs: RunningJobs,
) -> Option<slurm::Action> {
    let good = view.index.reservation_of(id).is_some_and(|standing| {
        let ignores = standing.flags.contains("IGNORE_JOBS");
        let jobs_good = match jobs {
            RunningJobs::Ignore => ignores,
            RunningJobs::None => !ignores,
        };
        // Renewed at half: a sealed one when less than half of its length is left, another when it would end too soon.
        let wanted = view.slurm_now.duration_until(end);
        let left = view.slurm_now.duration_until(standing.end);
        let start_good = standing.is_active(view.slurm_now) || standing.start == start;
        jobs_good
            && start_good
            && left >= wanted / 2
            && gate::slurm::shape_flaw(standing, &view.node.slurm).is_none()
    });
    let spec = || ReservationSpec {
        name: mark::reservation_name(id),
        node: view.node.slurm.clone(),
        start,
        end,
        jobs,
    };
    (!good).then(|| slurm::Action::Reserve(spec()))
}

/// Our DRAIN, unless a person's stands there: that is never overwritten.
fn drain(view: &View<'_>, standing: &Drain, id: HandoverId) -> Option<slurm::Action> {
    let over = view.record.found.as_ref().and_then(|found| found.slurm_drain.clone());
    match standing {
        Drain::Ours(reason) if reason.handover == id => return None,
        Drain::Theirs { text, .. } if over.as_deref() != Some(text.as_str()) => return None,
        Drain::Ours(_) | Drain::Theirs { .. } | Drain::None => {}
    }
    let why = view.handover.map_or_else(|| "held for kubernetes".to_owned(), |h| h.why.clone());
    let reason = DrainReason { handover: id, epoch: view.epoch, why }.to_string();
    Some(slurm::Action::Drain { node: view.node.slurm.clone(), reason, over })
}

fn kubernetes_actions(view: &View<'_>, want: KubernetesWant) -> Vec<kubernetes::Action> {
    let Ok(SeenNode { node, standing, .. }) = &view.in_kubernetes else { return Vec::new() };
    let name = &view.node.kubernetes;
    let listed = standing.listed;
    let close = (!listed).then(|| kubernetes::Action::CloseGate { node: name.clone() });
    match want {
        KubernetesWant::Untouched => Vec::new(),
        KubernetesWant::Open => {
            if !kubernetes_is_open(view) && !may_open(view, Domain::Kubernetes) {
                return Vec::new();
            }
            let stays = restores(view) && found_listed(view);
            // What was found closed by its entry alone has to have it again before our marks go.
            if stays && !listed {
                return close.into_iter().collect();
            }
            let open = (listed && !stays).then(|| kubernetes::Action::OpenGate { node: name.clone() });
            open.into_iter().chain(open_marks(view).missing_on(node, name)).collect()
        }
        KubernetesWant::Closing => {
            close.into_iter().chain(closing_marks(view).missing_on(node, name)).collect()
        }
        KubernetesWant::Evicting => close
            .into_iter()
            .chain(closing_marks(view).missing_on(node, name))
            .chain(evictions(view))
            .collect(),
        // Where NoExecute is missing, pods may have come in, and it would end them past their budgets: they are asked first.
        KubernetesWant::Sealed
            if !standing.no_execute && !view.look.value().is_some_and(NodeLook::is_empty) =>
        {
            close
                .into_iter()
                .chain(closing_marks(view).missing_on(node, name))
                .chain(evictions(view))
                .collect()
        }
        KubernetesWant::Sealed => {
            close.into_iter().chain(sealed_marks(view).missing_on(node, name)).collect()
        }
    }
}

/// Pods to evict now: lowest priority first, bounded. Protected ones never; terminating ones are left to end.
fn evictions(view: &View<'_>) -> Vec<kubernetes::Action> {
    let Some(look) = view.look.value() else { return Vec::new() };
    // Without the pool's word on whom it protects, everybody is.
    let Some(pool) = view.pool() else { return Vec::new() };
    let limit = pool.protected_priority;
    let evictable = gate::kubernetes::pods(look).filter(|pod| match pod.eviction {
        Eviction::Allowed => limit.is_none_or(|limit| pod.priority < limit),
        Eviction::Protected { .. } | Eviction::Terminating | Eviction::Nominated | Eviction::Pinned => false,
    });
    let mut first = BTreeSet::new();
    for pod in evictable {
        first.insert((pod.priority, &pod.pod));
        if first.len() > EVICTIONS_AT_ONCE {
            first.pop_last();
        }
    }
    first.into_iter().map(|(_, pod)| kubernetes::Action::Evict { pod: pod.clone() }).collect()
}

/// Our marks on a Node as they should be, and those of its pool. Borrowed: most Nodes bear them already.
pub struct WantedMarks<'a> {
    /// Taints that must be there.
    pub taints: Vec<Cow<'a, Taint>>,
    /// Taint keys of which no other may be there.
    pub taint_keys: BTreeSet<&'a str>,
    /// Labels that must have a value, or must not be there.
    pub labels: BTreeMap<&'a str, Option<&'a str>>,
    /// Our annotation, or that it must not be there.
    pub annotation: Option<String>,
}

impl WantedMarks<'_> {
    /// The patch, where the Node differs from it in a way that matters.
    pub fn missing_on(self, node: &KubeNode, name: &KubeNodeName) -> Option<kubernetes::Action> {
        if self.stand_on(node) {
            return None;
        }
        let text = |text: &str| text.to_owned();
        Some(kubernetes::Action::Mark(Marks {
            node: name.clone(),
            uid: node.uid.clone(),
            taints: self.taints.into_iter().map(Cow::into_owned).collect(),
            taint_keys: self.taint_keys.into_iter().map(text).collect(),
            labels: self.labels.into_iter().map(|(key, value)| (text(key), value.map(text))).collect(),
            annotation: self.annotation,
        }))
    }

    fn stand_on(&self, node: &KubeNode) -> bool {
        let wanted = |taint: &Taint| self.taints.iter().any(|wanted| **wanted == *taint);
        let taints = self.taints.iter().all(|taint| node.taints.contains(taint))
            && node.taints.iter().all(|t| !self.taint_keys.contains(t.key.as_str()) || wanted(t));
        let labels =
            self.labels.iter().all(|(key, value)| node.labels.get(*key).map(String::as_str) == *value);
        let annotation = same_annotation(node.handover_annotation.as_deref(), self.annotation.as_deref());
        taints && labels && annotation
    }
}

fn taint<'a>(key: &str, effect: Effect) -> Cow<'a, Taint> {
    Cow::Owned(Taint { key: key.to_owned(), value: String::new(), effect })
}

/// Taint keys that are ours, or some pool's.
fn taint_keys(site: &Site) -> BTreeSet<&str> {
    [TAINT_DRAINING, TAINT_SLURM, TAINT_RELEASED].into_iter().chain(site.pool_taint_keys()).collect()
}

fn annotation(view: &View<'_>, step: &str) -> Option<String> {
    let handover = view.handover.map(|h| h.id).or(view.record.marked_by())?;
    Some(HandoverAnnotation { handover, epoch: view.epoch, step: step.to_owned() }.to_string())
}

/// All label keys of all pools and our own, to be taken off unless `keep` sets them.
fn labels<'a>(
    site: &'a Site,
    keep: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> BTreeMap<&'a str, Option<&'a str>> {
    let keys = site.pool_label_keys().chain([mark::LABEL_OWNER]).map(|key| (key, None));
    keys.chain(keep.into_iter().map(|(key, value)| (key.as_str(), Some(value.as_str())))).collect()
}

/// As [`labels`], with the one that tells whose the node is.
fn labels_of<'a>(
    owner: Domain,
    site: &'a Site,
    keep: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> BTreeMap<&'a str, Option<&'a str>> {
    let mut labels = labels(site, keep);
    labels.insert(mark::LABEL_OWNER, Some(owner.as_str()));
    labels
}

fn open_marks<'a>(view: &View<'a>) -> WantedMarks<'a> {
    let pool = match view.handover {
        Some(handover) if handover.to == Domain::Kubernetes => view.site.pools.get(&handover.pool),
        Some(_) | None => view.pool(),
    };
    if restores(view) {
        return found_marks(view);
    }
    let (of_pool, taints) = match pool.map(|pool| &pool.kind) {
        Some(PoolKind::NodePool { labels, taints }) => (Some(labels), taints.as_slice()),
        Some(PoolKind::Partition { .. }) | None => (None, [].as_slice()),
    };
    WantedMarks {
        taints: taints.iter().map(Cow::Borrowed).collect(),
        taint_keys: taint_keys(view.site),
        labels: labels_of(Domain::Kubernetes, view.site, of_pool.into_iter().flatten()),
        annotation: annotation(view, "open"),
    }
}

/// Taints, labels and annotation exactly as they were found at adoption. Except for the taints that close: a node that
/// Kubernetes owns gets none of them (its pods would die), and where somebody took NoExecute away meanwhile, NoSchedule
/// stands in for it, which kills nobody.
pub fn found_marks<'a>(view: &View<'a>) -> WantedMarks<'a> {
    let found = view.record.found.as_ref();
    let of_kubernetes = view.record.owner() == Some(Domain::Kubernetes);
    let stands =
        view.in_kubernetes.as_ref().is_ok_and(|seen| seen.node.taints.iter().any(|t| t.key == TAINT_SLURM));
    let mut taints: Vec<Cow<'a, Taint>> = Vec::new();
    for one in found.iter().flat_map(|found| &found.taints) {
        let put_back = match one.key.as_str() {
            TAINT_SLURM | TAINT_DRAINING if of_kubernetes => continue,
            TAINT_SLURM if !stands => taint(TAINT_DRAINING, Effect::NoSchedule),
            _ => Cow::Borrowed(one),
        };
        if !taints.contains(&put_back) {
            taints.push(put_back);
        }
    }
    WantedMarks {
        taints,
        taint_keys: taint_keys(view.site),
        labels: labels(view.site, found.iter().flat_map(|found| &found.labels)),
        annotation: found.and_then(|found| found.annotation.clone()),
    }
}

fn closing_marks<'a>(view: &View<'a>) -> WantedMarks<'a> {
    let step = if view.record.quarantine.is_some() { mark::STEP_QUARANTINE } else { "closing" };
    WantedMarks {
        taints: vec![taint(TAINT_DRAINING, Effect::NoSchedule)],
        taint_keys: BTreeSet::from([TAINT_DRAINING]),
        labels: BTreeMap::new(),
        annotation: annotation(view, step),
    }
}

fn sealed_marks<'a>(view: &View<'a>) -> WantedMarks<'a> {
    WantedMarks {
        taints: vec![taint(TAINT_DRAINING, Effect::NoSchedule), taint(TAINT_SLURM, Effect::NoExecute)],
        taint_keys: taint_keys(view.site),
        labels: labels_of(Domain::Slurm, view.site, []),
        annotation: annotation(view, "closed"),
    }
}

/// The epoch may be an older one: a new leader does not write every Node again.
fn same_annotation(standing: Option<&str>, wanted: Option<&str>) -> bool {
    match (standing, wanted) {
        (None, None) => true,
        (Some(standing), Some(wanted)) => {
            let parse = HandoverAnnotation::parse;
            standing == wanted
                || matches!((parse(standing), parse(wanted)), (Some(a), Some(b)) if a.handover == b.handover && a.step == b.step)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests;
