//! What happened to a handover, as one tick's view shows it. Turns looks into the events that [`Handover::next`] takes.
//! It decides *whether* something can be said to have happened; never what is done about it ([`crate::want`]).

use jiff::SignedDuration;

use crate::facts::kubernetes::{BindingProbe, GuardState, Ready};
use crate::gate::{
    self, Emptiness, Gate,
    kubernetes::{PodsSeen, SeenNode, pods_seen},
    slurm::JobsSeen,
};
use crate::handover::{Event, Handover, Holders, LOOKS_NEEDED, Purpose, State};
use crate::model::{Domain, Escalation};
use crate::safety;
use crate::view::View;
use crate::want;

/// The next event of the node's handover, where the view shows one. Called again after each until there is none.
pub fn next_event(view: &View<'_>) -> Option<Event> {
    let handover = view.handover?;
    let anew = || forgotten(view, handover).or_else(|| overdue(view, handover));
    jobs_seen(view, handover).or_else(|| pods_seen(view, handover)).or_else(anew).or_else(|| {
        match handover.state {
            State::Planned => planned(view, handover),
            State::Reserved => reserved(view, handover),
            State::Draining => count_looks(view, handover, Domain::Slurm),
            State::SlurmEmpty => slurm_empty(view, handover),
            State::Canary => canary(view, handover),
            State::Releasing => releasing(view, handover),
            State::Closing => closing(view, handover),
            State::Evicting => replaced(view, handover).or_else(|| evicting(view)),
            State::KubernetesEmpty => replaced(view, handover).or_else(|| kubernetes_empty(view, handover)),
            State::Returning => returning(view, handover),
            State::RollingBack => rolling_back(view, handover),
            State::Open | State::RolledBack => None,
        }
    })
}

/// What the handover waits for, in words, for `explain` and alarms.
pub fn waits_for(view: &View<'_>) -> Vec<String> {
    let Some(handover) = view.handover else { return Vec::new() };
    let side = |domain: Domain| {
        let mut waits = Vec::new();
        if *view.gate(domain) != Gate::Closed {
            waits.push(format!("the {domain} gate to be closed (it is {})", view.gate(domain)));
        }
        match view.emptiness(domain) {
            Emptiness::Empty => {}
            Emptiness::Busy { by } => waits.extend(by),
            Emptiness::Unknown { why } => waits.push(format!("a look at {domain}: {why}")),
        }
        waits
    };
    match handover.state {
        State::Planned => match handover.to {
            Domain::Kubernetes if view.now < handover.reserve_at => {
                vec![format!("{}, to reserve the node", handover.reserve_at)]
            }
            Domain::Kubernetes => vec!["our reservation to be in place".to_owned()],
            Domain::Slurm => vec![format!("{}, to close the node", handover.start_at)],
        },
        State::Reserved => vec![format!("{}, to drain the node", handover.start_at)],
        State::Draining => side(Domain::Slurm),
        State::SlurmEmpty => vec!["our reservation to be sealed".to_owned()],
        State::Canary => {
            let fit = safety::fit_for_kubernetes(view).err().map(|denied| denied.to_string());
            let permit = safety::permit(view, Domain::Kubernetes).err().map(|denied| denied.to_string());
            fit.into_iter().chain(permit).collect()
        }
        State::Releasing => vec![format!("the Kubernetes gate to open (it is {})", view.kubernetes)],
        State::Closing => {
            let mut waits = vec![format!("the Kubernetes gate to close (it is {})", view.kubernetes)];
            match view.probe {
                crate::facts::Seen::At { value: BindingProbe::Passed, .. } => waits.push(
                    "a dry-run binding to be refused: it passed, so the bindings policy does not stand"
                        .to_owned(),
                ),
                crate::facts::Seen::At { value: BindingProbe::Refused, .. } => {}
                crate::facts::Seen::Unknown { why } => waits.push(format!("a dry-run binding: {why}")),
            }
            waits
        }
        State::Evicting | State::KubernetesEmpty => side(Domain::Kubernetes),
        State::Returning => {
            let delivered = safety::delivered_to_slurm(view).err().map(|denied| denied.to_string());
            let gate =
                (view.slurm != Gate::Open).then(|| format!("the Slurm gate to open (it is {})", view.slurm));
            delivered.into_iter().chain(gate).collect()
        }
        State::RollingBack => {
            let home = handover.to.other();
            let gate = view.gate(home);
            match handover.purpose {
                Purpose::Move => {
                    let denied = safety::permit(view, home).err().map(|denied| denied.to_string());
                    let open = format!("the {home} gate to open again (it is {gate})");
                    std::iter::once(open).chain(denied).collect()
                }
                Purpose::Adoption => {
                    vec![format!("the {home} gate to be as it was found (it is {gate})")]
                }
            }
        }
        State::Open | State::RolledBack => Vec::new(),
    }
}

/// Jobs and GPU pods on a node in quarantine that nobody has noted yet, and no handover will (one that was caught on its way
/// to Slurm notes no jobs): shrunk off it or force-deleted meanwhile, they may have processes there when an adoption ends the
/// quarantine. Jobs only where Slurm is to be closed: on a node of Slurm's they come and go.
pub fn seen_in_quarantine(view: &View<'_>) -> Option<crate::event::Event> {
    let record = view.record;
    record.quarantine.as_ref()?;
    let noted_by_handover = view.handover.is_some_and(|handover| handover.state.notes_jobs());
    let closed = record.slurm_closed_by.is_some() && !noted_by_handover;
    let jobs = if closed { new_jobs(view, &record.jobs_seen) } else { JobsSeen::new() };
    let pods = match view.handover {
        Some(_) => PodsSeen::new(),
        None => new_pods(view, &record.pods_seen).unwrap_or_default(),
    };
    let node = view.node.name.clone();
    let news = !jobs.is_empty() || !pods.is_empty();
    news.then_some(crate::event::Event::SeenInQuarantine { node, jobs, pods })
}

/// Jobs on the node that the handover has not yet noted: they must be gone by id, not only from the node.
fn jobs_seen(view: &View<'_>, handover: &Handover) -> Option<Event> {
    if !handover.state.notes_jobs() {
        return None;
    }
    let jobs = new_jobs(view, &handover.jobs_seen);
    (!jobs.is_empty()).then_some(Event::JobsSeen { jobs })
}

fn new_jobs(view: &View<'_>, noted: &JobsSeen) -> JobsSeen {
    let mut jobs = gate::slurm::jobs_on(view.index, &view.node.slurm);
    jobs.retain(|id, start| noted.get(id) != Some(start));
    jobs
}

/// GPU pods on the node, and what became of those that the handover has noted: one that is gone may have containers there.
fn pods_seen(view: &View<'_>, handover: &Handover) -> Option<Event> {
    if handover.state.is_over() {
        return None;
    }
    let pods = new_pods(view, &handover.pods_seen)?;
    (!pods.is_empty()).then_some(Event::PodsSeen { pods })
}

fn new_pods(view: &View<'_>, noted: &PodsSeen) -> Option<PodsSeen> {
    // Of the cluster and of the node: a Lease that is older than the last look's tells nothing.
    view.in_kubernetes.as_ref().ok()?;
    Some(pods_seen::news(noted, view.look.value()?, view.leases()))
}

/// Time ran backwards in the scheduler that the node leaves, after looks at it were counted: what they showed may have been
/// forgotten since, so the count begins anew.
fn forgotten(view: &View<'_>, handover: &Handover) -> Option<Event> {
    let domain = handover.leaving();
    let noticed = view.backwards.noticed(domain)?;
    if handover.state.leaves_gate_open() || handover.state.is_over() {
        return None;
    }
    let before = handover.looks.count > 0 && handover.looks.last.is_none_or(|last| last <= noticed);
    let holders = match domain {
        Domain::Slurm => Holders::NotSeen,
        // A pod that was forgotten may still run: only a Lease after this one speaks for the node.
        Domain::Kubernetes => Holders::Seen { lease: view.leases().newest },
    };
    before.then_some(Event::BusyLook { at: noticed, holders })
}

/// The deadline's verdict, by the rule of the pool that the node leaves.
fn overdue(view: &View<'_>, handover: &Handover) -> Option<Event> {
    // Planned and Reserved too: a daemon that was away past the deadline can't reserve for a time that is over.
    if !handover.state.can_roll_back() || view.now < handover.deadline {
        return None;
    }
    let pool = view.pool();
    let escalation = match handover.purpose {
        Purpose::Move => pool.map(|pool| pool.escalation),
        // What leaves a quarantine was in doubt: it is not put back as found, and waits for a person.
        Purpose::Adoption if view.record.adopted_from_quarantine => Some(Escalation::Wait),
        // Nobody waits for it, and it keeps a node closed that was not ours: it goes back as it was found.
        Purpose::Adoption => Some(Escalation::RollBack),
    };
    match escalation {
        Some(Escalation::Wait) => {
            let more = pool.map_or(SignedDuration::from_mins(10), |pool| pool.deadline);
            Some(Event::Extended { deadline: view.now.saturating_add(more).unwrap_or(handover.deadline) })
        }
        Some(Escalation::RollBack) | None => Some(Event::RollBack {
            why: format!("deadline {} passed: {}", handover.deadline, waits_for(view).join("; ")),
        }),
    }
}

fn planned(view: &View<'_>, handover: &Handover) -> Option<Event> {
    match handover.to {
        Domain::Kubernetes => {
            let reservation = gate::slurm::our_reservation(view.index, &view.node.slurm, Some(handover.id))?;
            gate::slurm::shape_flaw(reservation, &view.node.slurm).is_none().then_some(Event::Reserved)
        }
        Domain::Slurm => (view.now >= handover.start_at).then_some(Event::ClosingStarted),
    }
}

/// Not before the reservation's start: short jobs may use the node until then.
fn reserved(view: &View<'_>, handover: &Handover) -> Option<Event> {
    let reservation = gate::slurm::our_reservation(view.index, &view.node.slurm, Some(handover.id))?;
    (view.now >= handover.start_at && reservation.is_active(view.slurm_now)).then_some(Event::DrainStarted)
}

/// Counts looks that show `domain` closed and empty; anything else starts the count again.
fn count_looks(view: &View<'_>, handover: &Handover, domain: Domain) -> Option<Event> {
    let at = view.looked_at(domain);
    let good = *view.gate(domain) == Gate::Closed && view.emptiness(domain) == Emptiness::Empty;
    match (good, at) {
        (true, Some(at)) => {
            let newer = handover.looks.last.is_none_or(|last| at > last);
            (newer && handover.looks.count < LOOKS_NEEDED).then_some(Event::EmptyLook { at })
        }
        (true, None) | (false, _) => (handover.looks.count > 0)
            .then(|| Event::BusyLook { at: at.unwrap_or(view.now), holders: holders(view) }),
    }
}

fn holders(view: &View<'_>) -> Holders {
    match view.look.value() {
        Some(look) if !look.holders.is_empty() => Holders::Seen { lease: view.leases().newest },
        Some(_) | None => Holders::NotSeen,
    }
}

/// Seen busy again (not merely unseen): back to draining.
fn slurm_busy_again(view: &View<'_>) -> Option<Event> {
    match view.emptiness(Domain::Slurm) {
        Emptiness::Busy { .. } => Some(Event::BusyLook {
            at: view.looked_at(Domain::Slurm).unwrap_or(view.now),
            holders: Holders::NotSeen,
        }),
        Emptiness::Empty | Emptiness::Unknown { .. } => None,
    }
}

fn slurm_empty(view: &View<'_>, _handover: &Handover) -> Option<Event> {
    slurm_busy_again(view).or_else(|| {
        (safety::sealed(view).is_ok() && safety::node_word(view).is_ok()).then_some(Event::Sealed)
    })
}

/// The canary conditions, then the permit. The looks that count are those of `Draining`; this look must agree.
fn canary(view: &View<'_>, _handover: &Handover) -> Option<Event> {
    if let Some(event) = slurm_busy_again(view) {
        return Some(event);
    }
    safety::fit_for_kubernetes(view).ok()?;
    let permit = safety::permit(view, Domain::Kubernetes).ok()?;
    Some(Event::Permitted(permit.evidence().clone()))
}

fn closing(view: &View<'_>, _handover: &Handover) -> Option<Event> {
    let SeenNode { node, standing, .. } = view.in_kubernetes.as_ref().ok()?;
    let refused = view.probe.value() == Some(&BindingProbe::Refused);
    (standing.listed && standing.draining && refused).then(|| Event::Closed { uid: node.uid.clone() })
}

fn replaced(view: &View<'_>, handover: &Handover) -> Option<Event> {
    let SeenNode { node, .. } = view.in_kubernetes.as_ref().ok()?;
    let known = handover.node_uid.as_ref()?;
    (node.uid != *known).then(|| Event::NodeReplaced { uid: node.uid.clone() })
}

/// The gate must still stand: NoExecute would kill what was bound past it since, without an eviction.
fn evicting(view: &View<'_>) -> Option<Event> {
    let SeenNode { kubernetes, node, standing } = view.in_kubernetes.as_ref().ok()?;
    let closed = standing.listed && standing.draining && kubernetes.guards.bindings == GuardState::Standing;
    let look = view.look.value()?;
    let at = view.looked_at(Domain::Kubernetes)?;
    // The newest: a renewal from before the pods were listed says nothing of how the last one ended.
    let lease = view.leases().newest?;
    (closed && look.is_empty() && node.ready == Ready::True).then_some(Event::HoldersGone { at, lease })
}

fn kubernetes_empty(view: &View<'_>, handover: &Handover) -> Option<Event> {
    if let Some(look) = view.look.value()
        && !look.is_empty()
    {
        let at = view.looked_at(Domain::Kubernetes).unwrap_or(view.now);
        return Some(Event::BusyLook { at, holders: holders(view) });
    }
    if let Some(event) = count_looks(view, handover, Domain::Kubernetes) {
        return Some(event);
    }
    let permit = safety::permit(view, Domain::Slurm).ok()?;
    Some(Event::Permitted(permit.evidence().clone()))
}

/// Until the gate is open, what was permitted must stay true: one look that says otherwise and two more are needed.
fn releasing(view: &View<'_>, handover: &Handover) -> Option<Event> {
    if view.kubernetes == Gate::Open {
        return Some(Event::Opened);
    }
    count_looks(view, handover, Domain::Slurm)
}

/// As [`releasing`]; an open gate is delivered when Slurm can use the node.
fn returning(view: &View<'_>, handover: &Handover) -> Option<Event> {
    if view.slurm == Gate::Open {
        return safety::delivered_to_slurm(view).is_ok().then_some(Event::Opened);
    }
    count_looks(view, handover, Domain::Kubernetes)
}

fn rolling_back(view: &View<'_>, handover: &Handover) -> Option<Event> {
    let home = handover.to.other();
    let is_back = match handover.purpose {
        Purpose::Adoption if !view.record.adopted_from_quarantine => want::is_restored(view, home),
        Purpose::Move | Purpose::Adoption => *view.gate(home) == Gate::Open,
    };
    if is_back {
        return Some(Event::Opened);
    }
    match handover.purpose {
        Purpose::Move => count_looks(view, handover, handover.to),
        // What an adoption closed was found open on a node that was not ours: it is put back as found.
        Purpose::Adoption => None,
    }
}

#[cfg(test)]
mod tests;
