//! **The safety rule.** At most one of a node's two gates is ever open, and a gate opens only after the other side was
//! seen closed *and empty*. Unknown never counts as closed or empty.
//!
//! [`permit`] is the only maker of a [`Permit`]. No action that opens a gate is made unless it said yes in the same tick:
//! that is not in the types, but in [`crate::want`], which alone makes such actions, and names the exceptions.
//! [`violation`] looks for what the rule forbids, whoever did it. It reads a look by the same code ([`crate::gate`]): what
//! is read wrongly there, both read wrongly.

use jiff::SignedDuration;

use crate::backwards::looked_at;
use crate::book::{Book, Management, Record};
use crate::denied::Denied;
use crate::facts::kubernetes::{Effect, GuardState, Ready};
use crate::facts::slurm::{BaseState, NodeFlag};
use crate::gate::{self, Emptiness, Gate};
use crate::handover::{Evidence, Handover, LOOKS_NEEDED, NodeWord, Purpose};
use crate::ids::NodeName;
use crate::mark::{TAINT_DRAINING, TAINT_SLURM};
use crate::model::{Domain, NodeWordRule, Site};
use crate::view::View;

/// How long after an API server's outage its clients may go on without a watch: client-go tries again every 30 s, doubled
/// by jitter (`tools/cache/reflector.go`, v0.36). Meanwhile a kubelet refuses, and the taint eviction controller deletes,
/// pods that were bound after our NoExecute went: both still see it.
const WATCHES_BACK_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// That one gate of one node may be opened, in this tick, and why. Only [`permit`] makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    evidence: Evidence,
}

impl Permit {
    /// What was seen.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }
}

/// May the `opening` gate of this node open? Every condition is judged by this tick's look.
pub fn permit(view: &View<'_>, opening: Domain) -> Result<Permit, Denied> {
    if let Some(why) = &view.record.quarantine {
        return Err(Denied::Quarantined { node: view.node.name.clone(), why: why.clone() });
    }
    let other = opening.other();
    let gate = match view.gate(other) {
        gate @ Gate::Closed => gate.clone(),
        gate @ (Gate::Open | Gate::Weakened { .. } | Gate::Unknown { .. }) => {
            return Err(Denied::NotClosed { domain: other, gate: gate.clone() });
        }
    };
    guards_stand(view)?;
    time_goes_on(view, other)?;
    let emptiness = view.emptiness(other);
    match emptiness {
        Emptiness::Empty => {}
        Emptiness::Busy { .. } | Emptiness::Unknown { .. } => {
            return Err(Denied::NotEmpty { domain: other, emptiness });
        }
    }
    if other == Domain::Slurm {
        sealed(view)?;
    }
    match view.handover {
        Some(handover) => enough_looks(handover, other)?,
        // Outside a handover only the owner's gate may open again (its Node was re-created, a stray mark of ours …).
        None if view.record.owner() == Some(opening) => {}
        None => {
            return Err(Denied::NotClosed {
                domain: other,
                gate: Gate::Unknown { why: "no handover".into() },
            });
        }
    }
    let node_word = node_word(view)?;
    Ok(Permit { evidence: Evidence { domain: other, gate, emptiness, node_word } })
}

fn enough_looks(handover: &Handover, other: Domain) -> Result<(), Denied> {
    if handover.leaving() != other || handover.looks.count < LOOKS_NEEDED {
        return Err(Denied::TooFewLooks { have: handover.looks.count, need: LOOKS_NEEDED });
    }
    Ok(())
}

/// A scheduler that was started from a backup is not believed by a look from before that was noticed.
fn time_goes_on(view: &View<'_>, other: Domain) -> Result<(), Denied> {
    match view.backwards.noticed(other) {
        Some(noticed) if !view.backwards.allows(other, looked_at(view.facts, other)) => {
            Err(Denied::Backwards { domain: other, noticed })
        }
        Some(_) | None => Ok(()),
    }
}

/// Policies and bindings are never re-created by us: while one is missing or altered, no gate opens.
fn guards_stand(view: &View<'_>) -> Result<(), Denied> {
    let Some(kubernetes) = view.facts.kubernetes.value() else {
        return Err(Denied::Frozen { why: "the admission policies could not be looked at".to_owned() });
    };
    match guard_flaws(&kubernetes.guards).first() {
        None => Ok(()),
        Some(why) => Err(Denied::Frozen { why: why.clone() }),
    }
}

/// Every admission policy that does not stand, in words.
pub fn guard_flaws(guards: &crate::facts::kubernetes::Guards) -> Vec<String> {
    let named = [
        ("bindings", &guards.bindings),
        ("pods", &guards.pods),
        ("marks", &guards.marks),
        ("gate", &guards.gate),
    ];
    named
        .into_iter()
        .filter_map(|(name, state)| match state {
            GuardState::Standing => None,
            GuardState::Missing => {
                Some(format!("admission policy gpu-bridge-{name} or its binding is missing"))
            }
            GuardState::Altered { what } => {
                Some(format!("admission policy gpu-bridge-{name} was altered: {what}"))
            }
        })
        .collect()
}

/// Before Kubernetes opens, our reservation must be without IGNORE_JOBS and far from its end.
pub fn sealed(view: &View<'_>) -> Result<(), Denied> {
    let not = |why: String| Err(Denied::NotSealed { why });
    if view.facts.slurm.value().is_none() {
        return not("Slurm could not be looked at".to_owned());
    }
    let Some(reservation) =
        gate::slurm::our_reservation(view.index, &view.node.slurm, view.record.slurm_closed_by)
    else {
        return not("it is gone".to_owned());
    };
    if reservation.flags.contains("IGNORE_JOBS") {
        return not("it still has IGNORE_JOBS".to_owned());
    }
    let left = view.slurm_now.duration_until(reservation.end);
    if left < crate::want::SEAL_MARGIN {
        return not(format!("it ends already at {}", reservation.end));
    }
    Ok(())
}

/// The node's own word, by the rule of the pool that it enters or leaves.
pub fn node_word(view: &View<'_>) -> Result<NodeWord, Denied> {
    let pool = match view.handover {
        Some(handover) => view.site.pools.get(&handover.pool),
        None => view.pool(),
    };
    match pool.map(|pool| &pool.node_word) {
        Some(NodeWordRule::AbsentAllowed { .. }) => Ok(NodeWord::AbsentAllowed),
        Some(NodeWordRule::Required) => {
            Err(Denied::NodeWord { why: "required, but the node was not asked".into() })
        }
        None => Err(Denied::NodeWord { why: "the node's pool is not in the configuration".into() }),
    }
}

/// Is the Node fit to be delivered to Kubernetes? A Ready Node with 0 GPUs is not capacity.
pub fn fit_for_kubernetes(view: &View<'_>) -> Result<(), Denied> {
    let not = |why: String| Err(Denied::NotFit { why });
    if let Some(missed) = view.facts.kubernetes_missed {
        let since = missed.duration_until(view.now);
        // Negative: the clock was set back since. This is about comfort, so nothing waits for hours because of it.
        if !since.is_negative() && since < WATCHES_BACK_AFTER {
            return not(format!(
                "the API server did not answer {} s ago: for a minute its kubelets and controllers may still go by the \
                 taints from before, and would turn new pods away",
                since.as_secs()
            ));
        }
    }
    let node = match &view.in_kubernetes {
        Ok(seen) => seen.node,
        Err(why) => return not(why.clone()),
    };
    if node.ready != Ready::True {
        return not("the Node is not Ready".to_owned());
    }
    if node.allocatable_gpus != view.node.gpus {
        return not(format!("{} of {} GPUs are allocatable", node.allocatable_gpus, view.node.gpus));
    }
    // Others' NoExecute taints (not-ready, unreachable …) say that the Node is not usable.
    let foreign = node.taints.iter().find(|taint| {
        taint.effect == Effect::NoExecute && taint.key != TAINT_SLURM && taint.key != TAINT_DRAINING
    });
    match foreign {
        Some(taint) => not(format!("it has the taint {}:NoExecute", taint.key)),
        None => Ok(()),
    }
}

/// Is the node delivered to Slurm? A person's own drain is respected: then it is theirs to open.
pub fn delivered_to_slurm(view: &View<'_>) -> Result<(), Denied> {
    let not = |why: String| Err(Denied::NotFit { why });
    let gate::slurm::SeenNode { node, drain, .. } = match &view.in_slurm {
        Ok(seen) => seen,
        Err(why) => return not(why.clone()),
    };
    match drain {
        gate::slurm::Drain::Theirs { .. } => return Ok(()),
        gate::slurm::Drain::Ours(_) | gate::slurm::Drain::None => {}
    }
    match &node.state {
        BaseState::Idle | BaseState::Mixed | BaseState::Allocated => {}
        BaseState::Down | BaseState::Future | BaseState::Error | BaseState::Unknown | BaseState::Other(_) => {
            return not(format!("its state is {}", node.state.word()));
        }
    }
    let unusable = node.flags.iter().find(|flag| match flag {
        NodeFlag::NotResponding | NodeFlag::Fail | NodeFlag::InvalidReg | NodeFlag::Reboot => true,
        // Power saving switches off what is idle, and on again for a job.
        NodeFlag::Power
        | NodeFlag::Drain
        | NodeFlag::Completing
        | NodeFlag::Planned
        | NodeFlag::Reserved
        | NodeFlag::Maintenance
        | NodeFlag::Cloud
        | NodeFlag::DynamicNorm
        | NodeFlag::Other(_) => false,
    });
    if let Some(flag) = unusable {
        return not(format!("Slurm shows it with {}", flag.word()));
    }
    if node.gpus < view.node.gpus {
        return not(format!("Slurm counts {} of {} GPUs", node.gpus, view.node.gpus));
    }
    Ok(())
}

/// The rule again, over what is observed now: both gates of a managed node open, or a job of Slurm's on a node that is
/// Kubernetes', however its own gate reads: the job began while the Slurm gate was broken open, seen or unseen.
pub fn violation(view: &View<'_>) -> Option<String> {
    if view.record.owner().is_none() || releasing(view) || adopting(view) {
        return None;
    }
    // From Returning on Slurm may start jobs: its gate was permitted to open.
    let returning = view.handover.is_some_and(|handover| handover.state.is_opening());
    if view.record.owner() == Some(Domain::Kubernetes) && !returning {
        if let Some((job, _)) = gate::slurm::jobs_on(view.index, &view.node.slurm).first_key_value() {
            return Some(format!("the node is Kubernetes', and Slurm has job {job} on it"));
        }
        let noted = &view.record.jobs_seen;
        if let Some(job) = gate::slurm::shrunk_off(&view.in_slurm, &view.node.slurm, noted).next() {
            return Some(format!("the node is Kubernetes', and {job}"));
        }
    }
    // Whoever drained it: a drained node starts nothing, so a person's DRAIN in place of ours is no open gate.
    let drained = view.in_slurm.as_ref().is_ok_and(|seen| seen.drain != gate::slurm::Drain::None);
    (view.slurm == Gate::Open && !drained && view.kubernetes == Gate::Open).then(|| {
        "both gates were seen open: the Slurm and the Kubernetes scheduler may start work on it".to_owned()
    })
}

fn releasing(view: &View<'_>) -> bool {
    matches!(view.record.management, Management::Releasing { .. })
}

fn adopting(view: &View<'_>) -> bool {
    view.handover.is_some_and(|h| h.purpose == Purpose::Adoption)
}

/// Conditions of one node that a person should know of, as (key, text).
pub fn alarms(view: &View<'_>) -> Vec<(String, String)> {
    let mut alarms = Vec::new();
    let node = &view.node.name;
    if let Some(why) = &view.record.quarantine {
        alarms.push((
            format!("quarantine/{node}"),
            format!(
                "node {node} is in quarantine: {why}. Look at it, then `gpu-bridge adopt {node} --owner …`"
            ),
        ));
    }
    if let Some((handover, since)) = view.handover.and_then(|h| Some((h.id, h.late_since?))) {
        let text = format!(
            "node {node}: handover {handover} is late since {since} and waits on, as its pool says. `gpu-bridge explain \
             node {node}` shows for whom; `gpu-bridge cancel {handover}` ends it"
        );
        alarms.push((format!("late/{node}"), text));
    }
    if view.record.management != Management::Unmanaged {
        let sides = [
            (Domain::Slurm, view.facts.slurm.value().is_some(), view.in_slurm.as_ref().err()),
            (Domain::Kubernetes, view.facts.kubernetes.value().is_some(), view.in_kubernetes.as_ref().err()),
        ];
        // Of a scheduler that is away the whole site is told.
        for (domain, answered, why) in sides {
            if let Some(why) = why.filter(|_| answered) {
                let text = format!("node {node}: its {domain} side is not watched, and nothing opens: {why}");
                alarms.push((format!("unknown/{node}/{domain}"), text));
            }
        }
    }
    for domain in [Domain::Slurm, Domain::Kubernetes] {
        let should_stand = view.record.owner().is_some_and(|owner| match view.handover {
            Some(handover) if handover.state.is_opening() => handover.leaving() == domain,
            Some(_) | None => owner != domain,
        });
        if !should_stand || releasing(view) {
            continue;
        }
        match view.gate(domain) {
            Gate::Closed | Gate::Unknown { .. } => {}
            gate @ (Gate::Open | Gate::Weakened { .. }) => {
                let text = format!("node {node}: the {domain} gate should be closed and is {gate}");
                alarms.push((format!("gate/{node}/{domain}"), text));
            }
        }
    }
    alarms
}

/// An alarm for each node that is ours by the book and left the configuration, as (key, node, text): nobody looks at it,
/// puts its guards back, or renews its reservation.
pub fn strangers(site: &Site, book: &Book) -> Vec<(String, NodeName, String)> {
    let ours = |record: &Record| record.management != Management::Unmanaged;
    let gone = book.nodes.iter().filter(|(name, record)| ours(record) && !site.nodes.contains_key(*name));
    gone.map(|(node, _)| {
        let text = format!(
            "node {node} is managed and no longer in the configuration: its gates are not watched. Put it back, then \
             `gpu-bridge release {node}` before it goes"
        );
        (format!("inventory/{node}"), node.clone(), text)
    })
    .collect()
}

#[cfg(test)]
mod tests;
