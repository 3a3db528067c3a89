//! What is written in each state, and that nothing is written when all stands.

use super::*;
use crate::facts::Seen;
use crate::facts::kubernetes::Pod;
use crate::facts::slurm::{NodeFlag, Reservation};
use crate::fixtures::taint;
use crate::fixtures::*;

/// Short names of the writes, in order.
fn writes(case: &Case) -> Vec<&'static str> {
    case.judge(actions).iter().map(name).collect()
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::Slurm(slurm::Action::Drain { .. }) => "drain",
        Action::Slurm(slurm::Action::Undrain { .. }) => "undrain",
        Action::Slurm(slurm::Action::Reserve(spec)) => match spec.jobs {
            RunningJobs::Ignore => "reserve, ignoring jobs",
            RunningJobs::None => "reserve",
        },
        Action::Slurm(slurm::Action::Unreserve { .. }) => "unreserve",
        Action::Kubernetes(kubernetes::Action::CreateGate { .. }) => "create the gate",
        Action::Kubernetes(kubernetes::Action::CloseGate { .. }) => "close",
        Action::Kubernetes(kubernetes::Action::OpenGate { .. }) => "open",
        Action::Kubernetes(kubernetes::Action::Mark(_)) => "mark",
        Action::Kubernetes(kubernetes::Action::Evict { .. }) => "evict",
    }
}

/// A node of Slurm's on which a handover to Kubernetes has written nothing yet.
fn fresh_to_kubernetes(state: State) -> Case {
    let mut case = Case::of_slurm();
    // The annotation names the handover under way.
    close_kubernetes(case.kubernetes(), 1, CURRENT);
    case.record.handover = Some(CURRENT);
    case.record.slurm_closed_by = (state != State::Planned).then_some(CURRENT);
    case.handover = Some(handover(CURRENT, 1, Domain::Kubernetes, state));
    case
}

/// A node of Kubernetes' on which a handover to Slurm has written nothing yet, with one pod.
fn fresh_to_slurm(state: State) -> Case {
    let mut case = Case::of_kubernetes();
    open_kubernetes(case.kubernetes(), 1, CURRENT);
    case.record.handover = Some(CURRENT);
    case.record.kubernetes_closed_by = (state != State::Planned).then_some(CURRENT);
    case.handover = Some(handover(CURRENT, 1, Domain::Slurm, state));
    case.node_look().holders.push(holder(pod("a", Eviction::Allowed)));
    case
}

#[test]
fn each_state_writes_its_own_from_a_fresh_node() {
    let to_kubernetes: [(State, &[&str]); 5] = [
        (State::Planned, &["reserve, ignoring jobs"]),
        (State::Reserved, &["reserve, ignoring jobs"]),
        (State::Draining, &["drain", "reserve, ignoring jobs"]),
        (State::SlurmEmpty, &["drain", "reserve"]),
        // Not closed: no word of opening.
        (State::Releasing, &["drain", "reserve"]),
    ];
    for (state, expected) in to_kubernetes {
        assert_eq!(writes(&fresh_to_kubernetes(state)), expected, "{state:?}");
    }
    let to_slurm: [(State, &[&str]); 5] = [
        (State::Planned, &[]),
        (State::Closing, &["close", "mark"]),
        (State::Evicting, &["close", "mark", "evict"]),
        // Whom NoExecute would end past their budgets is asked to go first.
        (State::KubernetesEmpty, &["close", "mark", "evict"]),
        (State::Returning, &["close", "mark", "evict"]),
    ];
    for (state, expected) in to_slurm {
        assert_eq!(writes(&fresh_to_slurm(state)), expected, "{state:?}");
    }
}

/// All our marks were taken off while the Slurm gate was closed too, so that nothing was violated; a pod without GPUs came
/// in, and NoExecute was put back over it.
#[test]
fn no_execute_is_put_back_only_over_an_empty_node() {
    let no_execute = |case: &Case| {
        case.judge(actions).iter().any(|action| match action {
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                marks.taints.iter().any(|taint| taint.effect == Effect::NoExecute)
            }
            _ => false,
        })
    };
    let lacks_look = |case: &Case| case.judge(|view| view.handover.is_none() && view.lacks_look());
    let mut case = Case::of_slurm();
    assert!(!lacks_look(&case), "it stands");
    case.untaint(TAINT_SLURM);
    case.look = Seen::unknown("not looked at");
    assert!(lacks_look(&case) && !no_execute(&case));
    case.look = Seen::At { at: case.now, value: NodeLook::default() };
    assert!(!lacks_look(&case) && no_execute(&case));
    case.node_look().others.push(pod("cpu", Eviction::Allowed));
    assert!(!no_execute(&case));
    assert!(writes(&case).contains(&"evict"), "{:?}", writes(&case));
}

#[test]
fn openings_are_written_with_a_permit_and_only_then() {
    let releasing = Case::to_kubernetes(State::Releasing);
    assert_eq!(writes(&releasing), ["open", "mark"]);
    let returning = Case::to_slurm(State::Returning);
    assert_eq!(writes(&returning), ["unreserve", "undrain"]);
    for mut case in [releasing, returning] {
        case.kubernetes().guards.pods = kubernetes::GuardState::Missing;
        assert_eq!(writes(&case), [""; 0]);
        case.record.quarantine = Some("both open".into());
        assert!(!writes(&case).iter().any(|write| ["open", "undrain", "unreserve"].contains(write)));
    }
}

/// A node that was released to Slurm bears a plain taint alone: it is no guard of ours, and taking it off opens all the same.
#[test]
fn the_taint_of_a_plain_release_goes_by_a_permit() {
    let mut case = Case::to_kubernetes(State::Releasing);
    case.kubernetes().gate.get_or_insert_default().closed.clear();
    case.kube_node().taints = vec![taint(TAINT_RELEASED, Effect::NoSchedule)];
    assert_eq!(writes(&case), ["mark"]);
    let permit =
        |view: &View<'_>| actions(view).iter().filter_map(|action| needs_permit(view, action)).collect();
    assert_eq!(case.judge::<Vec<_>>(permit), [Domain::Kubernetes]);
    case.kubernetes().guards.pods = kubernetes::GuardState::Missing;
    assert_eq!(writes(&case), [""; 0]);
}

#[test]
fn nothing_is_written_where_all_stands() {
    let rows = [
        ("of Slurm", Case::of_slurm()),
        ("of Kubernetes", Case::of_kubernetes()),
        ("sealed", Case::to_kubernetes(State::SlurmEmpty)),
        ("canary", Case::to_kubernetes(State::Canary)),
        ("seen empty", Case::to_slurm(State::KubernetesEmpty)),
    ];
    for (row, case) in rows {
        assert_eq!(writes(&case), [""; 0], "{row}");
    }
    let mut unmanaged = Case::of_slurm();
    unmanaged.record = Record::default();
    unmanaged.kubernetes().gate = None;
    unmanaged.record.quarantine = Some("odd".into());
    assert_eq!(writes(&unmanaged), [""; 0], "unmanaged");
}

#[test]
fn each_guard_that_goes_missing_is_put_back() {
    type Row = (&'static str, fn() -> Case, fn(&mut Case), &'static [&'static str]);
    let rows: &[Row] = &[
        (
            "drain",
            Case::of_kubernetes,
            |c| {
                _ = c.slurm_node().flags.remove(&NodeFlag::Drain);
            },
            &["drain"],
        ),
        ("reservation", Case::of_kubernetes, |c| c.slurm().reservations.clear(), &["reserve"]),
        ("reservation's users", Case::of_kubernetes, |c| c.reservation(EARLIER).users.clear(), &["reserve"]),
        (
            "reservation near its half",
            Case::of_kubernetes,
            |c| {
                let now = c.now;
                c.reservation(EARLIER).end = now + SEAL_LENGTH / 2 - minutes(1);
            },
            &["reserve"],
        ),
        ("Gate list", Case::of_slurm, |c| c.kubernetes().gate = None, &["close"]),
        ("NoSchedule", Case::of_slurm, |c| c.untaint(TAINT_DRAINING), &["mark"]),
        ("NoExecute", Case::of_slurm, |c| c.untaint(TAINT_SLURM), &["mark"]),
        ("owner label", Case::of_slurm, |c| c.kube_node().labels.clear(), &["mark"]),
        ("pool label of the owner's", Case::of_kubernetes, |c| c.kube_node().labels.clear(), &["mark"]),
        (
            "a person's drain is left alone",
            Case::of_kubernetes,
            |c| {
                c.slurm_node().reason = reason("bad fan");
            },
            &[],
        ),
        (
            "next month's reservation",
            Case::of_kubernetes,
            |c| {
                c.add_reservation(their_reservation("maintenance", 1, at(50_000), at(60_000)));
            },
            &[],
        ),
        ("Slurm unseen", Case::of_kubernetes, |c| c.facts.slurm = Seen::unknown("timeout"), &[]),
    ];
    for (row, base, alter, expected) in rows {
        let mut case = base();
        alter(&mut case);
        assert_eq!(writes(&case), *expected, "{row}");
    }
}

#[test]
fn a_drain_that_was_found_is_taken_over_and_given_back() {
    let mut case = fresh_to_kubernetes(State::Draining);
    case.slurm_node().flags.insert(NodeFlag::Drain);
    case.slurm_node().reason = reason("bad fan");
    assert_eq!(writes(&case), ["reserve, ignoring jobs"], "not recorded: theirs");
    case.record.found = Some(found(Some("bad fan")));
    assert_eq!(writes(&case), ["drain", "reserve, ignoring jobs"]);
    case.record.found = Some(found(Some("another")));
    assert_eq!(writes(&case), ["reserve, ignoring jobs"], "another than recorded: theirs");
    let mut back = Case::to_slurm(State::Returning);
    back.record.found = Some(found(Some("bad fan")));
    let given_back = back.judge(actions);
    assert!(given_back.iter().any(|action| {
        matches!(action, Action::Slurm(slurm::Action::Drain { reason, over: Some(_), .. }) if reason == "bad fan")
    }), "{given_back:?}");
}

#[test]
fn others_taints_and_labels_are_never_in_the_marks() {
    for mut case in [
        Case::to_kubernetes(State::Releasing),
        fresh_to_slurm(State::Closing),
        fresh_to_slurm(State::KubernetesEmpty),
    ] {
        case.kube_node().taints.push(taint("theirs", Effect::NoSchedule));
        case.kube_node().labels.insert("theirs".into(), "yes".into());
        let mut marked = 0;
        for action in case.judge(actions) {
            if let Action::Kubernetes(kubernetes::Action::Mark(marks)) = action {
                marked += 1;
                assert!(!marks.taint_keys.contains("theirs") && !marks.labels.contains_key("theirs"));
                assert!(marks.taints.iter().all(|taint| marks.taint_keys.contains(&taint.key)));
                assert_eq!(marks.uid, "uid-1");
            }
        }
        assert_eq!(marked, 1);
    }
}

#[test]
fn evictions_spare_whom_they_must() {
    let mut case = fresh_to_slurm(State::Evicting);
    let with = |name, priority, eviction| Pod { priority, ..pod(name, eviction) };
    case.node_look().holders = vec![
        holder(with("important", 1000, Eviction::Allowed)),
        holder(with("late", 10, Eviction::Allowed)),
        holder(with("kept", 0, Eviction::Protected { by: "annotation".into() })),
        holder(with("going", 0, Eviction::Terminating)),
        holder(with("coming", 0, Eviction::Nominated)),
        holder(with("daemon", 0, Eviction::Pinned)),
    ];
    case.node_look().others = vec![with("cpu", 1, Eviction::Allowed)];
    let evicted: Vec<String> = case
        .judge(actions)
        .into_iter()
        .filter_map(|action| match action {
            Action::Kubernetes(kubernetes::Action::Evict { pod }) => Some(pod.name),
            _ => None,
        })
        .collect();
    assert_eq!(evicted, ["cpu", "late"]);
}

#[test]
fn a_missing_gate_is_created_with_every_managed_node() {
    let mut case = Case::of_slurm();
    let of = |record: Record| {
        let mut book = Book::default();
        book.nodes.insert("n1".into(), record);
        book
    };
    let owned = of(case.record.clone());
    assert_eq!(super::gate(&case.site, &owned, &case.facts.kubernetes), None, "it is there");
    case.kubernetes().gate = None;
    let created = |book: &Book, case: &Case| super::gate(&case.site, book, &case.facts.kubernetes);
    let list = |names: &[&str]| {
        let closed = names.iter().map(|name| (*name).into()).collect();
        Some(kubernetes::Action::CreateGate { closed })
    };
    let node = case.site.nodes[&"n1".into()].kubernetes.clone();
    assert_eq!(created(&owned, &case), list(&[node.as_str()]));
    let borrowed = of(Case::of_kubernetes().record);
    assert_eq!(created(&borrowed, &case), list(&[node.as_str()]), "open, but only a permit takes it off");
    let unmanaged = of(Record::default());
    assert_eq!(created(&unmanaged, &case), list(&[]), "not ours");
    assert_eq!(
        created(&Book::default(), &case),
        list(&[]),
        "nothing is managed, but the policy refuses without it"
    );
    case.kubernetes().guards.bindings = GuardState::Missing;
    assert_eq!(created(&Book::default(), &case), None, "nothing is ours, and nothing needs it");
    case.facts.kubernetes = Seen::unknown("away");
    assert_eq!(created(&owned, &case), None);
}

/// The pool was taken out of the configuration, and with it the priority above which nobody is evicted.
#[test]
fn nobody_is_evicted_from_a_pool_that_left_the_configuration() {
    let mut case = fresh_to_slurm(State::Evicting);
    let important = Pod { priority: 1000, ..pod("important", Eviction::Allowed) };
    case.node_look().holders = vec![holder(important)];
    let pool = case.record.placement.clone().unwrap().pool;
    case.site.pools.remove(&pool);
    assert!(!writes(&case).contains(&"evict"), "{:?}", writes(&case));
}

/// Both sides could be opened as found, without a look, when an adoption out of quarantine rolled back.
#[test]
fn an_adoption_out_of_quarantine_puts_nothing_back_without_a_permit() {
    let mut case = Case::of_kubernetes();
    let now = case.now;
    close_slurm(case.slurm(), 1, CURRENT, now);
    case.record = Record {
        management: Management::Adopting,
        slurm_closed_by: Some(CURRENT),
        handover: Some(CURRENT),
        ..Record::default()
    };
    let rolling_back = handover(CURRENT, 1, Domain::Kubernetes, State::RollingBack);
    case.handover = Some(Handover { purpose: Purpose::Adoption, ..rolling_back });
    assert!(writes(&case).contains(&"undrain"), "{:?}", writes(&case));
    case.record.adopted_from_quarantine = true;
    assert!(!writes(&case).contains(&"undrain"), "{:?}", writes(&case));
}

/// A drain of ours that another hand (an older version, an editor) had written otherwise than we write it was never taken
/// off: the undrain named the text that we would have written.
#[test]
fn an_undrain_names_the_reason_that_stands_to_the_letter() {
    for text in ["gpu-bridge:h2 e1 test", "gpu-bridge:h0002 e1"] {
        let mut case = Case::to_slurm(State::Returning);
        case.slurm_node().reason = reason(text);
        let actions = case.judge(actions);
        let undrains =
            |a: &Action| matches!(a, Action::Slurm(slurm::Action::Undrain { reason, .. }) if reason == text);
        assert!(actions.iter().any(undrains), "{text}: {actions:?}");
    }
}

/// What was found closing a side of a node that nobody managed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FoundClosed {
    /// The kubelet registers with it.
    NoExecute,
    NoSchedule,
    Listed,
    /// By a handover that no ledger knows.
    Drained,
    Reserved,
}

const OLD: HandoverId = HandoverId(77);

impl FoundClosed {
    const ALL: [Self; 5] = [Self::NoExecute, Self::NoSchedule, Self::Listed, Self::Drained, Self::Reserved];

    /// The side that it closes.
    fn domain(self) -> Domain {
        match self {
            Self::NoExecute | Self::NoSchedule | Self::Listed => Domain::Kubernetes,
            Self::Drained | Self::Reserved => Domain::Slurm,
        }
    }

    fn set(self, case: &mut Case) {
        let now = case.now;
        match self {
            Self::NoExecute => case.kube_node().taints.push(taint(TAINT_SLURM, Effect::NoExecute)),
            Self::NoSchedule => case.kube_node().taints.push(taint(TAINT_DRAINING, Effect::NoSchedule)),
            Self::Listed => _ = case.kubernetes().gate.get_or_insert_default().closed.insert(k(1)),
            Self::Drained => {
                case.slurm_node().flags.insert(NodeFlag::Drain);
                case.slurm_node().reason = reason("gpu-bridge:h0077 e1 old");
            }
            Self::Reserved => case.add_reservation(reservation_of_ours(OLD, 1, now)),
        }
    }

    fn stands(self, case: &mut Case) -> bool {
        match self {
            Self::NoExecute => case.kube_node().taints.iter().any(|taint| taint.key == TAINT_SLURM),
            Self::NoSchedule => case.kube_node().taints.iter().any(|taint| taint.key == TAINT_DRAINING),
            Self::Listed => case.kubernetes().gate.as_ref().is_some_and(|gate| gate.closed.contains(&k(1))),
            Self::Drained => {
                let node = case.slurm_node();
                node.flags.contains(&NodeFlag::Drain)
                    && node.reason.as_ref().is_some_and(|reason| reason.text == "gpu-bridge:h0077 e1 old")
            }
            Self::Reserved => case.slurm().reservations.contains_key(&mark::reservation_name(OLD)),
        }
    }
}

/// Writes the case's missing marks into it, as the schedulers would.
fn carry_out(case: &mut Case) {
    for action in case.judge(actions) {
        match action {
            Action::Kubernetes(kubernetes::Action::CloseGate { node }) => {
                case.kubernetes().gate.get_or_insert_default().closed.insert(node);
            }
            Action::Kubernetes(kubernetes::Action::OpenGate { node }) => {
                case.kubernetes().gate.get_or_insert_default().closed.swap_remove(&node);
            }
            Action::Kubernetes(kubernetes::Action::Mark(marks)) => {
                let node = case.kube_node();
                node.taints.retain(|taint| !marks.taint_keys.contains(&taint.key));
                node.taints.extend(marks.taints);
                node.handover_annotation = marks.annotation;
                for (key, value) in marks.labels {
                    match value {
                        Some(value) => _ = node.labels.insert(key, value),
                        None => _ = node.labels.remove(&key),
                    }
                }
            }
            Action::Slurm(slurm::Action::Drain { reason: text, .. }) => {
                case.slurm_node().flags.insert(NodeFlag::Drain);
                case.slurm_node().reason = reason(text);
            }
            Action::Slurm(slurm::Action::Undrain { .. }) => {
                case.slurm_node().flags.remove(&NodeFlag::Drain);
            }
            Action::Slurm(slurm::Action::Reserve(spec)) => {
                let now = case.now;
                case.add_reservation(Reservation {
                    end: spec.end,
                    ..reservation_of_ours(mark::reservation_handover(&spec.name).unwrap(), 1, now)
                });
            }
            Action::Slurm(slurm::Action::Unreserve { name }) => _ = case.slurm().reservations.remove(&name),
            Action::Kubernetes(kubernetes::Action::CreateGate { .. } | kubernetes::Action::Evict { .. }) => {
                panic!("{action:?}")
            }
        }
    }
}

/// A node of which `closed` was found, in the `state` of its adoption for `owner`.
fn adopting(closed: FoundClosed, owner: Domain, state: State) -> Case {
    let mut case = Case::of_slurm();
    case.record = Record::default();
    case.kubernetes().gate.get_or_insert_default().closed.clear();
    *case.kube_node() = kube_node(1);
    closed.set(&mut case);
    let node = case.site.nodes[&n(1)].clone();
    let book = Book::default();
    let adoption =
        crate::adoption::propose(&case.site, &book, &node, Some(owner), &case.facts, &case.look).unwrap();
    let mut handover = adoption.handover(CURRENT, crate::ids::Epoch(1), "eve", case.now);
    handover.state = state;
    case.record = Record {
        management: Management::Adopting,
        handover: Some(CURRENT),
        found: Some(adoption.found),
        slurm_closed_by: (owner == Domain::Kubernetes && state != State::Planned).then_some(CURRENT),
        kubernetes_closed_by: (owner == Domain::Slurm && state != State::Planned).then_some(CURRENT),
        ..Record::default()
    };
    case.handover = Some(handover);
    case
}

/// A new Node, registered with our taint, was adopted for Slurm; cancelled, the adoption took the taint off as its own and
/// opened Kubernetes beside Slurm's jobs.
#[test]
fn an_adoption_that_rolls_back_leaves_no_side_more_open_than_it_was_found() {
    let ways = [
        (Domain::Slurm, [State::Planned, State::Closing, State::Evicting, State::KubernetesEmpty]),
        (Domain::Kubernetes, [State::Planned, State::Draining, State::SlurmEmpty, State::Canary]),
    ];
    for ((owner, states), closed) in ways.iter().flat_map(|way| FoundClosed::ALL.map(|closed| (way, closed)))
    {
        for state in states {
            let row = format!("{closed:?}, for {owner}, {state:?}");
            let mut case = adopting(closed, *owner, *state);
            carry_out(&mut case);
            case.current().state = State::RollingBack;
            assert!(
                closed.domain() == *owner || closed.stands(&mut case) || state != &State::Planned,
                "{row}"
            );
            for _ in 0..3 {
                carry_out(&mut case);
            }
            assert!(closed.stands(&mut case), "{row}: {:?}", case.facts);
            assert_eq!(writes(&case), [""; 0], "{row}: it rests");
            let ended = case.judge(crate::step::next_event);
            assert_eq!(ended, Some(crate::handover::Event::Opened), "{row}: it ends");
        }
    }
}
