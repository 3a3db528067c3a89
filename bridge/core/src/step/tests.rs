//! A whole handover both ways over hand-made facts, the ways back, and the deadline.

use super::*;
use crate::facts::Seen;
use crate::facts::slurm::JobState;
use crate::fixtures::*;

/// All events that this look gives, in order; the handover goes on with each.
fn events(case: &mut Case) -> Vec<&'static str> {
    let mut names = Vec::new();
    while let Some(event) = case.judge(next_event) {
        assert!(names.len() < 10, "no end: {names:?}");
        names.push(event.name());
        let next = case.handover.as_ref().unwrap().next(case.now, &event).unwrap();
        case.handover = Some(next);
    }
    names
}

#[test]
fn to_kubernetes_from_beginning_to_end() {
    let mut case = Case::of_slurm();
    case.record.handover = Some(CURRENT);
    case.handover = Some(handover(CURRENT, 1, Domain::Kubernetes, State::Planned));
    case.current().start_at = at(12);
    assert_eq!(events(&mut case), [""; 0]);
    let reservation = reservation_of_ours(CURRENT, 1, case.now);
    case.add_reservation(reservation);
    assert_eq!(events(&mut case), ["reserved"]);
    case.record.slurm_closed_by = Some(CURRENT);
    case.add_job(job(7, JobState::Running, &[1], at(3)));
    assert_eq!(events(&mut case), ["jobs seen"]);
    case.later(2);
    assert_eq!(events(&mut case), ["drain started"]);
    let now = case.now;
    close_slurm(case.slurm(), 1, CURRENT, now);
    assert_eq!(events(&mut case), [""; 0], "the job runs");
    // Shrunk off the node: still there.
    case.add_job(job(7, JobState::Running, &[2], at(3)));
    case.later(1);
    assert_eq!(events(&mut case), [""; 0], "the job was shrunk off");
    case.slurm().jobs.clear();
    case.later(1);
    assert_eq!(events(&mut case), ["empty look"]);
    assert_eq!(events(&mut case), [""; 0], "the same look again");
    case.facts.slurm = Seen::unknown("timeout");
    assert_eq!(events(&mut case), ["busy look"], "not in a row");
    case.facts = facts(case.now);
    close_slurm(case.slurm(), 1, CURRENT, now);
    case.later(1);
    assert_eq!(events(&mut case), ["empty look"]);
    case.reservation(CURRENT).flags.insert("IGNORE_JOBS".into());
    case.later(1);
    assert_eq!(events(&mut case), ["empty look"], "not sealed");
    assert_eq!(case.current().state, State::SlurmEmpty);
    case.reservation(CURRENT).flags.remove("IGNORE_JOBS");
    case.kube_node().allocatable_gpus = 0;
    assert_eq!(events(&mut case), ["sealed"], "a Ready node with 0 GPUs is not fit");
    case.kube_node().allocatable_gpus = 8;
    assert_eq!(events(&mut case), ["permitted"]);
    open_kubernetes(case.kubernetes(), 1, CURRENT);
    assert_eq!(events(&mut case), ["opened"]);
    assert_eq!(case.current().state, State::Open);
}

#[test]
fn to_slurm_from_beginning_to_end_with_the_node_replaced_on_the_way() {
    let mut case = Case::of_kubernetes();
    case.record.handover = Some(CURRENT);
    case.handover = Some(handover(CURRENT, 1, Domain::Slurm, State::Planned));
    case.node_look().holders.push(holder(pod("a", crate::facts::kubernetes::Eviction::Allowed)));
    assert_eq!(events(&mut case), ["pods seen", "closing started"]);
    close_kubernetes(case.kubernetes(), 1, CURRENT);
    case.untaint(crate::mark::TAINT_SLURM);
    for probe in [Seen::unknown("timeout"), Seen::At { at: at(10), value: BindingProbe::Passed }] {
        case.probe = probe;
        assert_eq!(events(&mut case), [""; 0]);
    }
    case.probe = Seen::At { at: at(10), value: BindingProbe::Refused };
    assert_eq!(events(&mut case), ["closed"]);
    case.node_look().holders.clear();
    case.later(1);
    assert_eq!(events(&mut case), ["pods seen", "holders gone"]);
    close_kubernetes(case.kubernetes(), 1, CURRENT);
    case.kube_node().uid = "uid-9".into();
    assert_eq!(events(&mut case), ["node replaced", "closed", "holders gone"]);
    assert_eq!(case.current().node_uid.as_deref(), Some("uid-9"));
    // The pod went without being seen to end: its kubelet knows, and then its grace passes.
    case.later(1);
    assert_eq!(events(&mut case), ["pods seen"]);
    case.later(1);
    assert_eq!(events(&mut case), ["empty look"]);
    case.later(1);
    assert_eq!(events(&mut case), ["empty look", "permitted"]);
    case.slurm().reservations.clear();
    *case.slurm_node() = slurm_node();
    case.slurm_node().gpus = 7;
    assert_eq!(events(&mut case), [""; 0], "Slurm lacks a GPU");
    case.slurm_node().gpus = 8;
    assert_eq!(events(&mut case), ["opened"]);
}

#[test]
fn a_deadline_rolls_back_or_waits_in_every_state_before_the_permit() {
    for state in [State::Planned, State::Reserved, State::Draining, State::SlurmEmpty, State::Canary] {
        let mut case = Case::to_kubernetes(state);
        case.kubernetes().guards.pods = crate::facts::kubernetes::GuardState::Missing;
        case.current().deadline = case.now;
        let event = case.judge(next_event);
        assert!(matches!(event, Some(Event::RollBack { .. })), "{state:?}: {event:?}");
        case.pool("train").escalation = Escalation::Wait;
        let deadline = case.now + minutes(60);
        assert_eq!(case.judge(next_event), Some(Event::Extended { deadline }), "{state:?}");
    }
    for state in [State::Releasing, State::RollingBack] {
        let mut case = Case::to_kubernetes(state);
        case.current().deadline = case.now;
        let event = case.judge(next_event);
        assert!(!matches!(event, Some(Event::RollBack { .. } | Event::Extended { .. })), "{state:?}");
    }
}

#[test]
fn an_adoption_goes_back_at_its_deadline_whatever_its_pool_says() {
    let mut case = Case::to_kubernetes(State::Draining);
    case.pool("train").escalation = Escalation::Wait;
    case.current().purpose = Purpose::Adoption;
    case.current().deadline = case.now;
    let event = case.judge(next_event);
    assert!(matches!(event, Some(Event::RollBack { .. })), "{event:?}");
    case.record.adopted_from_quarantine = true;
    let event = case.judge(next_event);
    assert!(matches!(event, Some(Event::Extended { .. })), "out of a quarantine: {event:?}");
}

#[test]
fn back_to_the_old_owner() {
    let mut to_kubernetes = Case::to_kubernetes(State::RollingBack);
    to_kubernetes.current().looks = crate::handover::Looks::default();
    assert_eq!(events(&mut to_kubernetes), ["empty look"]);
    to_kubernetes.later(1);
    assert_eq!(events(&mut to_kubernetes), ["empty look"]);
    to_kubernetes.judge(|view| assert!(safety::permit(view, Domain::Slurm).is_ok()));
    to_kubernetes.slurm().reservations.clear();
    *to_kubernetes.slurm_node() = slurm_node();
    assert_eq!(events(&mut to_kubernetes), ["opened"]);
    assert_eq!(to_kubernetes.current().state, State::RolledBack);

    let mut to_slurm = Case::to_slurm(State::RollingBack);
    to_slurm.judge(|view| assert!(safety::permit(view, Domain::Kubernetes).is_ok()));
    open_kubernetes(to_slurm.kubernetes(), 1, CURRENT);
    assert_eq!(events(&mut to_slurm), ["opened"]);
    assert_eq!(to_slurm.current().state, State::RolledBack);
}

/// A pod came (from a trusted namespace) and went between the permit and the undrain: a single look opened Slurm's gate,
/// and the kubelet need not have lived since.
#[test]
fn a_permit_that_was_interrupted_needs_two_looks_again() {
    let mut case = Case::to_slurm(State::Returning);
    case.judge(|view| assert!(safety::permit(view, Domain::Slurm).is_ok()));
    case.node_look().holders.push(holder(pod("a", crate::facts::kubernetes::Eviction::Terminating)));
    assert_eq!(events(&mut case), ["pods seen", "busy look"]);
    let now = case.now;
    assert_eq!(case.current().lease_at_last_holder, Some(now));
    case.node_look().holders.clear();
    // It is gone: its kubelet must be seen to know, and its grace to pass.
    case.later(1);
    assert_eq!(events(&mut case), ["pods seen"]);
    for _ in 0..2 {
        case.later(1);
        case.judge(|view| assert!(safety::permit(view, Domain::Slurm).is_err()));
        assert_eq!(events(&mut case), ["empty look"]);
    }
    case.judge(|view| assert!(safety::permit(view, Domain::Slurm).is_ok()));

    let mut case = Case::to_kubernetes(State::Releasing);
    case.facts.slurm = Seen::unknown("timeout");
    assert_eq!(events(&mut case), ["busy look"]);
}

/// The Lease was read before the pods: a renewal between the two spoke for a pod that went after it.
#[test]
fn a_renewal_from_before_the_pods_were_listed_proves_nothing() {
    let mut case = Case::to_slurm(State::Evicting);
    let renewed = case.now + minutes(1);
    case.node_look().lease_renewed_at = Some(renewed);
    let event = case.judge(next_event);
    assert!(matches!(event, Some(Event::HoldersGone { lease, .. }) if lease == renewed), "{event:?}");
}

/// Off the list, or with the bindings policy deleted, a pod could be bound after the look, and NoExecute killed it.
#[test]
fn no_execute_waits_for_a_gate_that_stands() {
    let good = Case::to_slurm(State::Evicting);
    assert!(matches!(good.judge(next_event), Some(Event::HoldersGone { .. })));
    let alters: [fn(&mut Case); 3] = [
        |c| c.kubernetes().gate.get_or_insert_default().closed.clear(),
        |c| c.untaint(crate::mark::TAINT_DRAINING),
        |c| c.kubernetes().guards.bindings = GuardState::Missing,
    ];
    for alter in alters {
        let mut case = good.clone();
        alter(&mut case);
        assert_eq!(case.judge(next_event), None);
    }
}

/// Two looks were counted, then the scheduler was started from a backup: a single look was enough again.
#[test]
fn looks_from_before_time_ran_backwards_do_not_count() {
    let cases = [
        (Case::to_kubernetes(State::Canary), Domain::Slurm),
        (Case::to_kubernetes(State::Releasing), Domain::Slurm),
        (Case::to_slurm(State::KubernetesEmpty), Domain::Kubernetes),
        (Case::to_slurm(State::Returning), Domain::Kubernetes),
    ];
    for (good, domain) in cases {
        for (other, expected) in [(domain, 0), (domain.other(), good.handover.as_ref().unwrap().looks.count)]
        {
            let mut case = good.clone();
            let before = good.handover.as_ref().unwrap().looks.last.unwrap();
            case.backwards.went_down(before, other, 1);
            let event = case.judge(|view| forgotten(view, view.handover.unwrap()));
            assert_eq!(event.is_some(), expected == 0, "{domain} {other}");
            let Some(event) = event else { continue };
            let next = case.current().next(good.now, &event).unwrap();
            assert_eq!(next.looks.count, expected);
            case.handover = Some(next);
            assert_eq!(case.judge(|view| forgotten(view, view.handover.unwrap())), None, "once");
            case.judge(|view| assert!(safety::permit(view, domain.other()).is_err()));
        }
    }
}

/// Caught by a quarantine in Returning, a handover notes no jobs: the quarantine does.
#[test]
fn a_quarantine_notes_the_jobs_that_its_handover_does_not() {
    for (state, noted) in [(State::Returning, true), (State::Evicting, false)] {
        let mut case = Case::to_slurm(state);
        case.record.quarantine = Some("both open".into());
        case.add_job(job(7, JobState::Running, &[1], at(3)));
        let seen = case.judge(seen_in_quarantine);
        let jobs = seen.map(|event| match event {
            crate::event::Event::SeenInQuarantine { jobs, .. } => jobs.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(jobs, noted.then_some(1), "{state:?}");
    }
}
