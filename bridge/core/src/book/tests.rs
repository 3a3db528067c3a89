//! What the ledger's events add up to, and what the book refuses.

use super::*;
use crate::event::Action;
use crate::facts::slurm::Action as SlurmAction;
use crate::fixtures::{CURRENT, EARLIER, at, found, handover, managed, n, s};
use crate::gate::kubernetes::pods_seen::{End, PodSeen};
use crate::handover::{Event as Step, Evidence, Looks, NodeWord};
use crate::ids::JobId;

/// Adopts `n1` for Slurm, moves it to Kubernetes, begins its release.
fn story() -> Vec<Event> {
    let step = |id, event| Event::Handover { id, event };
    let evidence = |domain| Evidence {
        domain,
        gate: crate::gate::Gate::Closed,
        emptiness: crate::gate::Emptiness::Empty,
        node_word: NodeWord::AbsentAllowed,
    };
    let adoption =
        Handover { purpose: Purpose::Adoption, ..handover(EARLIER, 1, Domain::Slurm, State::Planned) };
    let action = Action::Slurm(SlurmAction::Undrain { node: s(1), reason: "x".into() });
    vec![
        Event::Started { epoch: Epoch(3), version: "1".into() },
        Event::Found { node: n(1), found: found(None) },
        Event::Planned(Box::new(adoption)),
        step(EARLIER, Step::ClosingStarted),
        step(EARLIER, Step::Closed { uid: "uid-1".into() }),
        step(EARLIER, Step::HoldersGone { at: at(1), lease: at(1) }),
        step(EARLIER, Step::EmptyLook { at: at(2) }),
        step(EARLIER, Step::EmptyLook { at: at(3) }),
        step(EARLIER, Step::Permitted(evidence(Domain::Kubernetes))),
        Event::Intent { handover: Some(EARLIER), node: Some(n(1)), epoch: Epoch(3), action },
        Event::Outcome { intent: 9, outcome: crate::event::Outcome::Done },
        step(EARLIER, Step::Opened),
        Event::Planned(Box::new(handover(CURRENT, 1, Domain::Kubernetes, State::Planned))),
        step(CURRENT, Step::Reserved),
        step(CURRENT, Step::DrainStarted),
        step(CURRENT, Step::JobsSeen { jobs: [(JobId(7), Some(at(3)))].into() }),
        step(CURRENT, Step::EmptyLook { at: at(4) }),
        step(CURRENT, Step::EmptyLook { at: at(5) }),
        step(CURRENT, Step::Sealed),
        step(CURRENT, Step::Permitted(evidence(Domain::Slurm))),
        step(CURRENT, Step::Opened),
        Event::AlarmRaised { key: "k".into(), node: Some(n(1)), text: "t".into() },
        Event::ReleaseStarted { node: n(1), mode: ReleaseMode::Plain, user: "eve".into() },
    ]
}

fn played(events: &[Event]) -> Book {
    let mut book = Book::default();
    for (seq, event) in events.iter().enumerate() {
        assert_eq!(book.accepts(at(10), event), Ok(()), "{event:?}");
        book.apply(seq as u64, at(10), event).unwrap();
    }
    book
}

#[test]
fn a_story_adds_up() {
    let book = played(&story());
    let record = book.record(&n(1));
    assert_eq!(
        record.management,
        Management::Releasing { owner: Domain::Kubernetes, mode: ReleaseMode::Plain }
    );
    assert_eq!((record.slurm_closed_by, record.kubernetes_closed_by), (Some(CURRENT), None));
    assert_eq!(record.placement.map(|p| p.pool), Some(PoolName::from("burst")));
    assert_eq!(record.handover, None);
    assert_eq!(book.next_handover(), HandoverId(3));
    assert_eq!(book.epoch, Some(Epoch(3)));
    assert_eq!(book.open_intents, BTreeMap::new());
    assert_eq!(book.under_way().count(), 0);
    let mut released = book;
    released.apply(99, at(11), &Event::Released { node: n(1) }).unwrap();
    assert_eq!(released.record(&n(1)), Record::default());
}

/// Written to the ledger as JSON and read again, every prefix gives the book that was alive then.
#[test]
fn replay_gives_the_live_book() {
    let mut live = Book::default();
    let mut ledger: Vec<String> = Vec::new();
    for (seq, event) in story().iter().enumerate() {
        live.apply(seq as u64, at(10), event).unwrap();
        ledger.push(serde_json::to_string(event).unwrap());
        let events: Vec<Event> = ledger.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(played(&events), live);
    }
}

#[test]
fn what_is_refused_leaves_the_book_as_it_was() {
    let owned = |owner| Book {
        nodes: BTreeMap::from([(n(1), managed(owner, "train"))]),
        handovers: BTreeMap::from([(EARLIER, handover(EARLIER, 1, owner, State::Open))]),
        highest_handover: Some(EARLIER),
        ..Book::default()
    };
    let of_slurm = owned(Domain::Slurm);
    let mut busy = of_slurm.clone();
    let planned = handover(CURRENT, 1, Domain::Kubernetes, State::Planned);
    busy.apply(1, at(1), &Event::Planned(Box::new(planned.clone()))).unwrap();
    let mut releasing = of_slurm.clone();
    releasing
        .apply(
            1,
            at(1),
            &Event::ReleaseStarted { node: n(1), mode: ReleaseMode::AsFound, user: "eve".into() },
        )
        .unwrap();
    let adoption = Handover { purpose: Purpose::Adoption, ..planned.clone() };
    let looked = Looks { count: 2, last: Some(at(0)) };
    let empty = Book::default();
    let rows: Vec<(&str, &Book, Event)> = vec![
        ("unmanaged", &empty, Event::Planned(Box::new(planned.clone()))),
        ("adoption of a managed node", &of_slurm, Event::Planned(Box::new(adoption))),
        ("an id again", &of_slurm, Event::Planned(Box::new(Handover { id: EARLIER, ..planned.clone() }))),
        (
            "a second handover",
            &busy,
            Event::Planned(Box::new(Handover { id: HandoverId(3), ..planned.clone() })),
        ),
        ("while released", &releasing, Event::Planned(Box::new(planned.clone()))),
        (
            "begins in the middle",
            &of_slurm,
            Event::Planned(Box::new(Handover { state: State::Releasing, ..planned.clone() })),
        ),
        ("begins with looks", &of_slurm, Event::Planned(Box::new(Handover { looks: looked, ..planned }))),
        ("never planned", &of_slurm, Event::Handover { id: CURRENT, event: Step::Reserved }),
        ("illegal step", &busy, Event::Handover { id: CURRENT, event: Step::Opened }),
        ("over", &of_slurm, Event::Handover { id: EARLIER, event: Step::RollBack { why: "x".into() } }),
        (
            "release of the unmanaged",
            &of_slurm,
            Event::ReleaseStarted { node: n(2), mode: ReleaseMode::Plain, user: "eve".into() },
        ),
        (
            "release in a handover",
            &busy,
            Event::ReleaseStarted { node: n(1), mode: ReleaseMode::Plain, user: "eve".into() },
        ),
        ("released without a release", &of_slurm, Event::Released { node: n(1) }),
        ("released in a handover", &busy, Event::Released { node: n(1) }),
    ];
    for (row, book, event) in rows {
        let mut after = book.clone();
        assert!(after.accepts(at(2), &event).is_err(), "{row}");
        assert!(after.apply(9, at(2), &event).is_err(), "{row}");
        assert_eq!(after, *book, "{row}");
    }
}

#[test]
fn a_job_seen_in_a_cancelled_handover_still_counts_in_the_next() {
    let mut events = story();
    events.truncate(16);
    let cancel = Event::Handover { id: CURRENT, event: Step::RollBack { why: "cancelled".into() } };
    events.extend([cancel, Event::Handover { id: CURRENT, event: Step::Opened }]);
    events.push(Event::Planned(Box::new(handover(HandoverId(3), 1, Domain::Kubernetes, State::Planned))));
    let book = played(&events);
    assert_eq!(book.handovers[&HandoverId(3)].jobs_seen, [(JobId(7), Some(at(3)))].into());
    // Delivered to Kubernetes, hence seen empty: forgotten.
    assert_eq!(played(&story()).record(&n(1)).jobs_seen, JobsSeen::new());
}

/// What it saw lives by its grace, whatever becomes of the handover.
#[test]
fn a_pod_seen_in_a_handover_that_came_to_nothing_still_counts_in_the_next() {
    let pods: PodsSeen = [(
        "uid-a".to_owned(),
        PodSeen { pod: "apps/a".into(), grace_s: 600, end: End::Told { lease: Some(at(6)) } },
    )]
    .into();
    let step = |event| Event::Handover { id: HandoverId(3), event };
    let again = |id| Event::Planned(Box::new(handover(id, 1, Domain::Slurm, State::Planned)));
    let mut events = story();
    events.pop();
    events.extend([
        again(HandoverId(3)),
        step(Step::ClosingStarted),
        step(Step::PodsSeen { pods: pods.clone() }),
        step(Step::RollBack { why: "cancelled".into() }),
        step(Step::Opened),
        again(HandoverId(4)),
    ]);
    assert_eq!(played(&events).handovers[&HandoverId(4)].pods_seen, pods);

    // Caught in a quarantine.
    events.truncate(events.len() - 3);
    events
        .extend([Event::Quarantined { node: n(1), why: "x".into() }, Event::QuarantineEnded { node: n(1) }]);
    assert_eq!(played(&events).record(&n(1)).pods_seen, pods);
}

/// A ledger from before pods were noted.
#[test]
fn a_handover_without_noted_pods_is_read() {
    let mut text = serde_json::to_value(handover(CURRENT, 1, Domain::Slurm, State::Planned)).unwrap();
    text.as_object_mut().unwrap().remove("pods_seen").unwrap();
    assert_eq!(serde_json::from_value::<Handover>(text).unwrap().pods_seen, PodsSeen::new());
}

#[test]
fn ids_seen_in_marks_are_not_given_out_again() {
    let mut book = Book::default();
    assert_eq!(book.next_handover(), HandoverId(1));
    for (highest, next) in [(41, 42), (7, 42), (u64::MAX, u64::MAX)] {
        book.apply(0, at(0), &Event::IdsSeen { highest: HandoverId(highest) }).unwrap();
        assert_eq!(book.next_handover(), HandoverId(next));
    }
}

/// Simulator, seed 62: it rolled back, was quarantined, and could neither end nor be adopted.
#[test]
fn adoption_out_of_quarantine_ends_the_handover_that_it_caught() {
    let caught = HandoverId(5);
    let mut book = Book::default();
    let mut record = crate::fixtures::managed(Domain::Slurm, "main");
    record.handover = Some(caught);
    record.quarantine = Some("both gates were seen open".to_owned());
    book.nodes.insert(n(1), record);
    book.handovers.insert(caught, handover(caught, 1, Domain::Kubernetes, State::RollingBack));
    let look = crate::facts::Seen::At { at: at(0), value: crate::facts::kubernetes::NodeLook::default() };
    let node = &crate::fixtures::site().nodes[&n(1)];
    let adoption = crate::adoption::propose(
        &crate::fixtures::site(),
        &book,
        node,
        None,
        &crate::fixtures::facts(at(0)),
        &look,
    );
    assert!(adoption.unwrap().ends_quarantine);
    book.apply(9, at(0), &Event::QuarantineEnded { node: n(1) }).unwrap();
    assert_eq!(book.under_way().count(), 0);
    assert_eq!(book.handovers[&caught].state, State::RolledBack);
}

/// The caught handover's jobs were forgotten: one shrunk off the node meanwhile did not count in the adoption.
#[test]
fn a_job_seen_by_a_handover_that_a_quarantine_caught_still_counts() {
    let caught = HandoverId(5);
    let mut book = Book::default();
    let record =
        Record { handover: Some(caught), quarantine: Some("x".into()), ..managed(Domain::Slurm, "train") };
    book.nodes.insert(n(1), record);
    let seen: JobsSeen = [(JobId(7), Some(at(3)))].into();
    let draining = handover(caught, 1, Domain::Kubernetes, State::Draining);
    book.handovers.insert(caught, Handover { jobs_seen: seen.clone(), ..draining });
    book.apply(9, at(4), &Event::QuarantineEnded { node: n(1) }).unwrap();
    assert_eq!(book.record(&n(1)).jobs_seen, seen);
}

/// The drain that was found at adoption came back at every return, long after its people had lifted it.
#[test]
fn a_drain_found_at_adoption_comes_back_at_the_first_return_only() {
    let mut book = Book::default();
    let record = Record {
        handover: Some(CURRENT),
        found: Some(found(Some("bad disk"))),
        ..managed(Domain::Kubernetes, "burst")
    };
    book.nodes.insert(n(1), record);
    book.handovers.insert(CURRENT, handover(CURRENT, 1, Domain::Slurm, State::Returning));
    book.apply(9, at(4), &Event::Handover { id: CURRENT, event: Step::Opened }).unwrap();
    assert_eq!(book.record(&n(1)).found.unwrap().slurm_drain, None);
}

/// The daemon stopped between the quarantine's end and the adoption: the adoption that a person began again could roll
/// back, and opened both sides as found without a look.
#[test]
fn an_adoption_begun_again_still_ends_the_quarantine() {
    let mut book = Book::default();
    let record = Record { quarantine: Some("x".into()), ..managed(Domain::Slurm, "train") };
    book.nodes.insert(n(1), record);
    book.apply(9, at(4), &Event::QuarantineEnded { node: n(1) }).unwrap();
    let case = crate::fixtures::Case::of_slurm();
    let node = &case.site.nodes[&n(1)];
    let adoption = crate::adoption::propose(&case.site, &book, node, None, &case.facts, &case.look);
    assert!(adoption.unwrap().ends_quarantine);
}

/// A plain release undrained a node of which both sides bore our marks, with pods on it; one as found took a node of which
/// nothing had been found for one that was found open on both sides.
#[test]
fn nothing_is_released_out_of_quarantine_nor_as_nobody_found_it() {
    let as_found = ReleaseMode::AsFound;
    let known = Record { found: Some(found(None)), ..managed(Domain::Slurm, "train") };
    let rows = [
        (known.clone(), ReleaseMode::Plain, true),
        (known.clone(), as_found, true),
        (Record { found: None, ..known.clone() }, ReleaseMode::Plain, true),
        (Record { found: None, ..known.clone() }, as_found, false),
        (Record { quarantine: Some("x".into()), ..known.clone() }, ReleaseMode::Plain, false),
        (Record { quarantine: Some("x".into()), ..known }, as_found, false),
    ];
    for (record, mode, expected) in rows {
        let mut book = Book::default();
        book.nodes.insert(n(1), record.clone());
        let event = Event::ReleaseStarted { node: n(1), mode, user: "eve".into() };
        assert_eq!(book.accepts(at(2), &event).is_ok(), expected, "{record:?} {mode:?}");
        assert!(book.apply(9, at(2), &event).is_ok(), "an older ledger may tell of it");
    }
}

/// By a restored ledger the node was being released; since, it had been adopted anew and given to Kubernetes by a handover
/// that the ledger does not know. Its start quarantined it, and the release went on: it undrained it, with pods on it, and
/// then forgot the quarantine.
#[test]
fn a_quarantine_stops_a_release_and_is_not_forgotten_by_it() {
    for mode in [ReleaseMode::Plain, ReleaseMode::AsFound] {
        let mut case = crate::fixtures::Case::of_kubernetes();
        let now = case.now;
        crate::fixtures::close_slurm(case.slurm(), 1, HandoverId(6), now);
        case.record = Record {
            management: Management::Releasing { owner: Domain::Slurm, mode },
            found: Some(found(None)),
            ..managed(Domain::Slurm, "train")
        };
        assert_eq!(case.record.release(), Some((Domain::Slurm, mode)));
        case.record.quarantine = Some("its marks name h0006".into());
        assert_eq!(case.record.release(), None);
        let opens = |action: &Action| action.opens().is_some();
        assert!(!case.judge(crate::want::actions).iter().any(opens), "{mode:?}");
        let mut book = Book::default();
        book.nodes.insert(n(1), case.record.clone());
        assert!(book.accepts(at(2), &Event::Released { node: n(1) }).is_err(), "{mode:?}");
        let node = &case.site.nodes[&n(1)];
        let adoption =
            crate::adoption::propose(&case.site, &book, node, None, &case.facts, &case.look).unwrap();
        assert!(adoption.ends_quarantine);
    }
}

/// It was quarantined before the adoption had done anything, and rolled back.
#[test]
fn an_adoption_that_rolls_back_leaves_the_quarantine() {
    let mut book = Book::default();
    let adoption =
        Handover { purpose: Purpose::Adoption, ..handover(EARLIER, 1, Domain::Slurm, State::Planned) };
    let step = |event| Event::Handover { id: EARLIER, event };
    let events = [
        Event::Planned(Box::new(adoption)),
        Event::Quarantined { node: n(1), why: "odd".into() },
        step(Step::RollBack { why: "cancelled".into() }),
        step(Step::Opened),
    ];
    for event in events {
        book.apply(1, at(1), &event).unwrap();
    }
    let record = book.record(&n(1));
    assert_eq!((record.management, record.quarantine.as_deref()), (Management::Unmanaged, Some("odd")));
}

/// Marks newer than the ledger, while it was being adopted: it could be neither adopted nor released.
#[test]
fn a_node_quarantined_while_it_is_adopted_can_be_adopted_anew() {
    let case = crate::fixtures::Case::of_slurm();
    let mut book = Book::default();
    let adoption =
        Handover { purpose: Purpose::Adoption, ..handover(EARLIER, 1, Domain::Slurm, State::Planned) };
    book.apply(1, at(1), &Event::Planned(Box::new(adoption))).unwrap();
    let node = &case.site.nodes[&n(1)];
    let propose =
        |book: &Book| crate::adoption::propose(&case.site, book, node, None, &case.facts, &case.look);
    assert!(matches!(propose(&book), Err(Denied::InHandover { .. })));
    book.apply(2, at(2), &Event::Quarantined { node: n(1), why: "odd".into() }).unwrap();
    assert!(propose(&book).unwrap().ends_quarantine);
}
