//! Release: taking our management away. Decides which writes leave a node plain or as it was found, in an order that
//! never takes our closing marks off before a plain one stands in their place.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Action, ReleaseMode};
use crate::facts::kubernetes::{self, Effect, Taint};
use crate::facts::slurm;
use crate::gate::{kubernetes::SeenNode, slurm::Drain};
use crate::mark::{self, LABEL_OWNER, TAINT_DRAINING, TAINT_RELEASED, TAINT_SLURM};
use crate::model::Domain;
use crate::view::View;
use crate::want::{self, WantedMarks};

/// Reason of the plain drain that a released node of Kubernetes' keeps.
pub const PLAIN_REASON: &str = "runs Kubernetes (released by its GPU manager)";

/// The writes that are missing, in order; nothing where the release is done.
pub fn actions(view: &View<'_>, owner: Domain, mode: ReleaseMode) -> Vec<Action> {
    let slurm = slurm_actions(view, owner, mode).into_iter().map(Action::Slurm);
    let kubernetes = kubernetes_actions(view, owner, mode).into_iter().map(Action::Kubernetes);
    slurm.chain(kubernetes).collect()
}

/// Were both sides looked at, and does neither bear a mark of ours?
pub fn is_done(view: &View<'_>, owner: Domain, mode: ReleaseMode) -> bool {
    view.in_slurm.is_ok() && view.in_kubernetes.is_ok() && actions(view, owner, mode).is_empty()
}

fn slurm_actions(view: &View<'_>, owner: Domain, mode: ReleaseMode) -> Vec<slurm::Action> {
    let Ok(seen) = &view.in_slurm else { return Vec::new() };
    let mut actions = Vec::new();
    let name = view.node.slurm.clone();
    let plain = match mode {
        ReleaseMode::AsFound => view.record.found.as_ref().and_then(|found| found.slurm_drain.clone()),
        ReleaseMode::Plain => match owner {
            Domain::Kubernetes => Some(PLAIN_REASON.to_owned()),
            Domain::Slurm => None,
        },
    };
    match (seen.our_reason(), plain) {
        (Some(ours), Some(reason)) => {
            actions.push(slurm::Action::Drain { node: name.clone(), reason, over: Some(ours) });
        }
        (Some(ours), None) => actions.push(slurm::Action::Undrain { node: name.clone(), reason: ours }),
        // Somebody took ours away: without another one the last guard would go with our reservation.
        (None, Some(reason)) if owner == Domain::Kubernetes && seen.drain == Drain::None => {
            actions.push(slurm::Action::Drain { node: name.clone(), reason, over: None });
        }
        (None, Some(_) | None) => {}
    }
    let reservations = view.index.reservations_on(&name).iter();
    let ours = reservations.filter(|r| mark::reservation_handover(&r.name).is_some());
    actions.extend(ours.map(|r| slurm::Action::Unreserve { name: r.name.clone() }));
    actions
}

fn kubernetes_actions(view: &View<'_>, owner: Domain, mode: ReleaseMode) -> Vec<kubernetes::Action> {
    let Ok(SeenNode { node, standing, .. }) = &view.in_kubernetes else { return Vec::new() };
    let name = &view.node.kubernetes;
    let marks = match mode {
        ReleaseMode::AsFound => want::found_marks(view),
        ReleaseMode::Plain => plain_marks(owner),
    };
    let keep_listed =
        mode == ReleaseMode::AsFound && view.record.found.as_ref().is_some_and(|found| found.listed);
    // What was found closed by its entry alone has to have it again before our marks go.
    if keep_listed && !standing.listed {
        return vec![kubernetes::Action::CloseGate { node: name.clone() }];
    }
    let mut actions = Vec::from_iter(marks.missing_on(node, name));
    if standing.listed && !keep_listed {
        actions.push(kubernetes::Action::OpenGate { node: name.clone() });
    }
    actions
}

fn plain_marks(owner: Domain) -> WantedMarks<'static> {
    let mut taint_keys = BTreeSet::from([TAINT_DRAINING, TAINT_SLURM]);
    let taints = match owner {
        Domain::Slurm => {
            taint_keys.insert(TAINT_RELEASED);
            let key = TAINT_RELEASED.to_owned();
            vec![Cow::Owned(Taint { key, value: String::new(), effect: Effect::NoSchedule })]
        }
        Domain::Kubernetes => Vec::new(),
    };
    WantedMarks { taints, taint_keys, labels: BTreeMap::from([(LABEL_OWNER, None)]), annotation: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Found;
    use crate::fixtures::*;

    /// A node of Slurm's, found closed to Kubernetes by its entry on the list alone, and taken off it by somebody: our
    /// taints went, and both gates were open.
    #[test]
    fn a_release_as_found_puts_the_node_back_on_the_list_before_our_marks_go() {
        let mut case = Case::of_slurm();
        case.record.found = Some(Found { listed: true, ..found(None) });
        case.kubernetes().gate.get_or_insert_default().closed.clear();
        case.judge(|view| {
            let actions = kubernetes_actions(view, Domain::Slurm, ReleaseMode::AsFound);
            assert!(matches!(&actions[..], [kubernetes::Action::CloseGate { .. }]), "{actions:?}");
            assert!(!is_done(view, Domain::Slurm, ReleaseMode::AsFound));
        });
    }

    /// Somebody undrained a node of Kubernetes' by hand, and it was released in that tick: our reservation, the last guard
    /// of the Slurm gate, went and no other drain stood in place of ours.
    #[test]
    fn a_release_drains_a_node_of_kubernetes_whose_drain_is_gone() {
        for (mode, wanted) in [(ReleaseMode::Plain, PLAIN_REASON), (ReleaseMode::AsFound, "bad fan")] {
            let mut case = Case::of_kubernetes();
            case.record.found = Some(found(Some("bad fan")));
            case.slurm_node().flags.clear();
            case.slurm_node().reason = None;
            case.judge(|view| {
                let actions = slurm_actions(view, Domain::Kubernetes, mode);
                let [slurm::Action::Drain { reason, over: None, .. }, slurm::Action::Unreserve { .. }] =
                    &actions[..]
                else {
                    panic!("{actions:?}")
                };
                assert_eq!(reason, wanted);
                assert!(!is_done(view, Domain::Kubernetes, mode));
            });
        }
    }
}
