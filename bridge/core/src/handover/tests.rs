//! Every event in every state, both ways.

use super::*;
use crate::fixtures::{CURRENT, at, handover};
use crate::gate::kubernetes::pods_seen::{End, PodSeen};
use crate::ids::JobId;

const STATES: [State; 13] = [
    State::Planned,
    State::Reserved,
    State::Draining,
    State::SlurmEmpty,
    State::Canary,
    State::Releasing,
    State::Closing,
    State::Evicting,
    State::KubernetesEmpty,
    State::Returning,
    State::Open,
    State::RollingBack,
    State::RolledBack,
];

fn evidence(domain: Domain) -> Evidence {
    Evidence { domain, gate: Gate::Closed, emptiness: Emptiness::Empty, node_word: NodeWord::Clear }
}

fn pod_seen() -> PodSeen {
    PodSeen { pod: "apps/a".into(), grace_s: 30, end: End::Runs }
}

fn events() -> Vec<Event> {
    vec![
        Event::Reserved,
        Event::DrainStarted,
        Event::JobsSeen { jobs: [(JobId(7), Some(at(1)))].into() },
        Event::PodsSeen { pods: [("u".to_owned(), pod_seen())].into() },
        Event::EmptyLook { at: at(10) },
        Event::BusyLook { at: at(10), holders: Holders::Seen { lease: Some(at(9)) } },
        Event::Sealed,
        Event::Permitted(evidence(Domain::Slurm)),
        Event::Permitted(evidence(Domain::Kubernetes)),
        Event::Opened,
        Event::ClosingStarted,
        Event::Closed { uid: "u".into() },
        Event::HoldersGone { at: at(10), lease: at(9) },
        Event::NodeReplaced { uid: "v".into() },
        Event::Extended { deadline: at(900) },
        Event::RollBack { why: "w".into() },
    ]
}

/// The state that follows, from a handover with two empty looks; `None` where the event is illegal.
fn expected(state: State, to: Domain, event: &Event) -> Option<State> {
    use State::*;
    let over = [Open, RolledBack].contains(&state);
    let stays = Some(state);
    match event {
        Event::Reserved => (state == Planned && to == Domain::Kubernetes).then_some(Reserved),
        Event::ClosingStarted => (state == Planned && to == Domain::Slurm).then_some(Closing),
        Event::DrainStarted => (state == Reserved).then_some(Draining),
        Event::JobsSeen { .. } | Event::PodsSeen { .. } | Event::Extended { .. } => stays.filter(|_| !over),
        Event::EmptyLook { .. } => match state {
            Draining => Some(SlurmEmpty),
            KubernetesEmpty | Releasing | Returning | RollingBack => stays,
            _ => None,
        },
        Event::BusyLook { .. } => match state {
            Draining | RollingBack | Evicting | Closing | Releasing | Returning => stays,
            SlurmEmpty | Canary => Some(Draining),
            KubernetesEmpty => Some(Evicting),
            _ => None,
        },
        Event::Sealed => (state == SlurmEmpty).then_some(Canary),
        Event::Permitted(evidence) => match state {
            Canary if evidence.domain == to.other() => Some(Releasing),
            KubernetesEmpty if evidence.domain == to.other() => Some(Returning),
            _ => None,
        },
        Event::Opened => match state {
            Releasing | Returning => Some(Open),
            RollingBack => Some(RolledBack),
            _ => None,
        },
        Event::Closed { .. } => (state == Closing).then_some(Evicting),
        Event::HoldersGone { .. } => (state == Evicting).then_some(KubernetesEmpty),
        Event::NodeReplaced { .. } => {
            [Closing, Evicting, KubernetesEmpty].contains(&state).then_some(Closing)
        }
        Event::RollBack { .. } => {
            let no_return = over || [Releasing, Returning, RollingBack].contains(&state);
            (!no_return).then_some(RollingBack)
        }
    }
}

#[test]
fn every_event_in_every_state() {
    let mut legal = 0;
    for to in [Domain::Slurm, Domain::Kubernetes] {
        for state in STATES {
            for event in events() {
                let mut before = handover(CURRENT, 1, to, state);
                before.looks = Looks { count: 2, last: Some(at(9)) };
                let after = before.next(at(20), &event);
                match (after, expected(state, to, &event)) {
                    (Ok(after), Some(expected)) => {
                        legal += 1;
                        assert_eq!(after.state, expected, "{state:?} to {to}, {event:?}");
                        let since = if state == expected && !matches!(event, Event::NodeReplaced { .. }) {
                            at(0)
                        } else {
                            at(20)
                        };
                        assert_eq!(after.since, since, "{state:?} to {to}, {event:?}");
                    }
                    (Err(Denied::IllegalEvent { .. }), None) => {}
                    // Evidence about the side that is to open is refused before the state is asked.
                    (Err(Denied::NotClosed { .. }), None) => assert!(matches!(event, Event::Permitted(_))),
                    (after, expected) => {
                        panic!("{state:?} to {to}, {event:?}: {after:?}, expected {expected:?}")
                    }
                }
            }
        }
    }
    assert!(legal > 60, "{legal}");
}

#[test]
fn looks_count_only_in_a_row_and_only_if_newer() {
    let empty = |minute| Event::EmptyLook { at: at(minute) };
    let busy = |minute| Event::BusyLook { at: at(minute), holders: Holders::NotSeen };
    for (state, to) in [
        (State::Draining, Domain::Kubernetes),
        (State::KubernetesEmpty, Domain::Slurm),
        (State::RollingBack, Domain::Kubernetes),
    ] {
        let one = handover(CURRENT, 1, to, state).next(at(20), &empty(10)).unwrap();
        assert_eq!(one.looks.count, 1);
        for minute in [9, 10] {
            let stale = one.next(at(20), &empty(minute));
            assert_eq!(stale, Err(Denied::StaleLook { at: at(minute), last: at(10) }), "{state:?}");
        }
        assert_eq!(one.next(at(20), &empty(11)).unwrap().looks.count, 2, "{state:?}");
        let interrupted = one.next(at(20), &busy(12)).unwrap();
        assert_eq!(interrupted.looks.count, 0, "{state:?}");
    }
}

#[test]
fn a_look_older_than_a_busy_one_proves_nothing() {
    let draining = handover(CURRENT, 1, Domain::Kubernetes, State::Draining);
    let busy = draining.next(at(20), &Event::BusyLook { at: at(12), holders: Holders::NotSeen }).unwrap();
    for minute in [11, 12] {
        let stale = busy.next(at(20), &Event::EmptyLook { at: at(minute) });
        assert_eq!(stale, Err(Denied::StaleLook { at: at(minute), last: at(12) }));
    }
    assert!(busy.next(at(20), &Event::EmptyLook { at: at(13) }).is_ok());
}

#[test]
fn the_look_that_showed_holders_gone_is_not_one_of_the_two_after_it() {
    let evicting = handover(CURRENT, 1, Domain::Slurm, State::Evicting);
    let gone = evicting.next(at(20), &Event::HoldersGone { at: at(12), lease: at(11) }).unwrap();
    assert_eq!((gone.looks.count, gone.lease_at_last_holder), (0, Some(at(11))));
    assert!(gone.next(at(20), &Event::EmptyLook { at: at(12) }).is_err());
    assert!(gone.next(at(20), &Event::EmptyLook { at: at(13) }).is_ok());
}

#[test]
fn no_gate_opens_without_evidence() {
    for (state, to) in [(State::Canary, Domain::Kubernetes), (State::KubernetesEmpty, Domain::Slurm)] {
        let good = evidence(to.other());
        let weakened = Gate::Weakened { missing: vec!["x".into()] };
        let busy = Emptiness::Busy { by: vec!["x".into()] };
        let unknown = Emptiness::Unknown { why: "x".into() };
        let domain = to.other();
        let not_closed = |gate: Gate| {
            (Evidence { gate: gate.clone(), ..good.clone() }, 2, Denied::NotClosed { domain, gate })
        };
        let not_empty = |emptiness: Emptiness| {
            (
                Evidence { emptiness: emptiness.clone(), ..good.clone() },
                2,
                Denied::NotEmpty { domain, emptiness },
            )
        };
        let rows = [
            not_closed(Gate::Open),
            not_closed(weakened),
            not_closed(Gate::Unknown { why: "x".into() }),
            not_empty(busy),
            not_empty(unknown),
            (evidence(to), 2, Denied::NotClosed { domain, gate: Gate::Closed }),
            (good.clone(), 1, Denied::TooFewLooks { have: 1, need: 2 }),
            (good.clone(), 0, Denied::TooFewLooks { have: 0, need: 2 }),
        ];
        for (evidence, count, denied) in rows {
            let mut before = handover(CURRENT, 1, to, state);
            before.looks = Looks { count, last: Some(at(9)) };
            assert_eq!(before.next(at(20), &Event::Permitted(evidence)), Err(denied));
        }
        let mut before = handover(CURRENT, 1, to, state);
        before.looks = Looks { count: 2, last: Some(at(9)) };
        assert!(before.next(at(20), &Event::Permitted(good)).is_ok());
    }
}
