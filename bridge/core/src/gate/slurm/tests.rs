//! The Slurm half of design's table of closed and empty, one deviation a row.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::*;
use crate::facts::NodeSet;
use crate::facts::slurm::JobState;
use crate::fixtures::*;
use crate::handover::State;
use crate::ids::{Epoch, JobId};
use crate::mark::DrainReason;
use crate::model::Domain;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Is {
    Open,
    Weakened,
    Closed,
    Unknown,
}

fn kind(gate: &Gate) -> Is {
    match gate {
        Gate::Open => Is::Open,
        Gate::Weakened { .. } => Is::Weakened,
        Gate::Closed => Is::Closed,
        Gate::Unknown { .. } => Is::Unknown,
    }
}

type Row<E> = (&'static str, fn(&mut Case), E);

#[test]
fn closed_is_drain_with_our_reason_inside_our_active_reservation() {
    let rows: &[Row<Is>] = &[
        ("as it should be", |_| {}, Is::Closed),
        ("down as well", |c| c.slurm_node().state = BaseState::Down, Is::Closed),
        (
            "IGNORE_JOBS beside it",
            |c| _ = c.reservation(EARLIER).flags.insert("IGNORE_JOBS".into()),
            Is::Closed,
        ),
        ("could not look", |c| c.facts.slurm = Seen::unknown("timeout"), Is::Unknown),
        ("node missing", |c| _ = c.slurm().nodes.swap_remove(&s(1)), Is::Unknown),
        (
            "drain gone, reason left behind",
            |c| _ = c.slurm_node().flags.remove(&NodeFlag::Drain),
            Is::Weakened,
        ),
        ("drain without a reason", |c| c.slurm_node().reason = None, Is::Weakened),
        ("a person's drain over ours", |c| c.slurm_node().reason = reason("bad fan"), Is::Weakened),
        (
            "drain of another handover",
            |c| {
                let other = DrainReason { handover: CURRENT, epoch: Epoch(1), why: "x".into() };
                c.slurm_node().reason = reason(other.to_string());
            },
            Is::Weakened,
        ),
        (
            "drain of an older leader",
            |c| {
                let same = DrainReason { handover: EARLIER, epoch: Epoch(0), why: "x".into() };
                c.slurm_node().reason = reason(same.to_string());
            },
            Is::Closed,
        ),
        ("reservation gone", |c| c.slurm().reservations.clear(), Is::Weakened),
        (
            "only another handover's reservation",
            |c| {
                let now = c.now;
                c.slurm().reservations.clear();
                c.add_reservation(reservation_of_ours(CURRENT, 1, now));
            },
            Is::Weakened,
        ),
        (
            "reservation not begun",
            |c| {
                let now = c.now;
                c.reservation(EARLIER).start = now + minutes(1);
            },
            Is::Weakened,
        ),
        (
            "reservation over",
            |c| {
                let now = c.now;
                c.reservation(EARLIER).end = now;
            },
            Is::Weakened,
        ),
        ("reservation on more nodes", |c| c.reservation(EARLIER).nodes = [s(1), s(2)].into(), Is::Weakened),
        ("reservation on another node", |c| c.reservation(EARLIER).nodes = [s(2)].into(), Is::Weakened),
        ("reservation on no node", |c| c.reservation(EARLIER).nodes = NodeSet::default(), Is::Weakened),
        ("more users", |c| _ = c.reservation(EARLIER).users.insert("bob".into()), Is::Weakened),
        ("another user", |c| c.reservation(EARLIER).users = ["bob".to_owned()].into(), Is::Weakened),
        ("no users", |c| c.reservation(EARLIER).users.clear(), Is::Weakened),
        ("accounts", |c| _ = c.reservation(EARLIER).accounts.insert("ml".into()), Is::Weakened),
        ("without MAINT", |c| _ = c.reservation(EARLIER).flags.remove("MAINT"), Is::Weakened),
        ("with FLEX", |c| _ = c.reservation(EARLIER).flags.insert("FLEX".into()), Is::Weakened),
        (
            "neither",
            |c| {
                c.slurm().reservations.clear();
                *c.slurm_node() = slurm_node();
            },
            Is::Open,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::of_kubernetes();
        alter(&mut case);
        case.judge(|view| assert_eq!(kind(&view.slurm), *expected, "{row}: {}", view.slurm));
    }
}

#[test]
fn without_a_closing_handover_any_mark_of_ours_keeps_the_gate_from_being_open() {
    let rows: &[Row<Is>] = &[
        ("as it should be", |_| {}, Is::Open),
        (
            "a person's drain",
            |c| {
                c.slurm_node().flags.insert(NodeFlag::Drain);
                c.slurm_node().reason = reason("bad fan");
            },
            Is::Open,
        ),
        (
            "our reason without the flag",
            |c| c.slurm_node().reason = reason("gpu-bridge:h0001 e1 old"),
            Is::Open,
        ),
        (
            "a reservation of others",
            |c| {
                let now = c.now;
                c.add_reservation(their_reservation("workshop", 1, now, now + minutes(9)));
            },
            Is::Open,
        ),
        (
            "our drain",
            |c| {
                c.slurm_node().flags.insert(NodeFlag::Drain);
                c.slurm_node().reason = reason("gpu-bridge:h0001 e1 old");
            },
            Is::Weakened,
        ),
        (
            "our reservation",
            |c| {
                let now = c.now;
                c.add_reservation(reservation_of_ours(EARLIER, 1, now));
            },
            Is::Weakened,
        ),
        (
            "our reservation of another node",
            |c| {
                let now = c.now;
                c.add_reservation(reservation_of_ours(EARLIER, 2, now));
            },
            Is::Open,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::of_slurm();
        alter(&mut case);
        case.judge(|view| assert_eq!(kind(&view.slurm), *expected, "{row}: {}", view.slurm));
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Has {
    Nothing,
    Work,
    Unknown,
}

fn has(emptiness: &Emptiness) -> Has {
    match emptiness {
        Emptiness::Empty => Has::Nothing,
        Emptiness::Busy { .. } => Has::Work,
        Emptiness::Unknown { .. } => Has::Unknown,
    }
}

fn flagged(flag: NodeFlag) -> Emptiness {
    let mut case = Case::to_kubernetes(State::Draining);
    case.slurm_node().flags.insert(flag);
    case.judge(|view| view.emptiness(Domain::Slurm))
}

#[test]
fn flags_beside_drain() {
    for flag in
        [NodeFlag::Planned, NodeFlag::Reserved, NodeFlag::Maintenance, NodeFlag::Cloud, NodeFlag::DynamicNorm]
    {
        assert_eq!(has(&flagged(flag.clone())), Has::Nothing, "{flag:?}");
    }
    assert_eq!(has(&flagged(NodeFlag::Completing)), Has::Work);
    for flag in [
        NodeFlag::NotResponding,
        NodeFlag::Fail,
        NodeFlag::InvalidReg,
        NodeFlag::Reboot,
        NodeFlag::Power,
        NodeFlag::Other("BLOCKED".into()),
    ] {
        assert_eq!(has(&flagged(flag.clone())), Has::Unknown, "{flag:?}");
    }
}

#[test]
fn base_states() {
    let rows = [
        (BaseState::Idle, Has::Nothing),
        (BaseState::Mixed, Has::Work),
        (BaseState::Allocated, Has::Work),
        (BaseState::Down, Has::Unknown),
        (BaseState::Future, Has::Unknown),
        (BaseState::Error, Has::Unknown),
        (BaseState::Unknown, Has::Unknown),
        (BaseState::Other("DYING".into()), Has::Unknown),
    ];
    for (state, expected) in rows {
        let mut case = Case::to_kubernetes(State::Draining);
        case.slurm_node().state = state.clone();
        case.judge(|view| assert_eq!(has(&view.emptiness(Domain::Slurm)), expected, "{state:?}"));
    }
}

/// Every job state, for a job that names the node, for one that was seen on it and is now elsewhere in the same run
/// (shrunk off a hung node), and in a later run (requeued).
#[test]
fn job_states() {
    let rows = [
        (JobState::Pending, [Has::Nothing; 3]),
        (JobState::Finished, [Has::Nothing; 3]),
        (JobState::Configuring, [Has::Work, Has::Work, Has::Nothing]),
        (JobState::Running, [Has::Work, Has::Work, Has::Nothing]),
        (JobState::Suspended, [Has::Work, Has::Work, Has::Nothing]),
        (JobState::Completing, [Has::Work, Has::Work, Has::Nothing]),
        (JobState::Other("SPECIAL_EXIT".into()), [Has::Work, Has::Work, Has::Nothing]),
    ];
    for (state, expected) in rows {
        for (i, expected) in expected.into_iter().enumerate() {
            let mut case = Case::to_kubernetes(State::Draining);
            let nodes: &[u32] = if i == 0 { &[1, 2] } else { &[2] };
            case.add_job(job(7, state.clone(), nodes, at(3)));
            let run = if i == 2 { at(1) } else { at(3) };
            case.current().jobs_seen = BTreeMap::from([(JobId(7), Some(run))]);
            case.judge(|view| {
                assert_eq!(
                    has(&view.emptiness(Domain::Slurm)),
                    expected,
                    "{state:?}, row {i}: {}",
                    view.emptiness(Domain::Slurm)
                );
            });
        }
    }
}

#[test]
fn empty_is_idle_and_drained_without_job_gres_or_reservation() {
    let rows: &[Row<Has>] = &[
        ("as it should be", |_| {}, Has::Nothing),
        ("could not look", |c| c.facts.slurm = Seen::unknown("timeout"), Has::Unknown),
        ("node missing", |c| _ = c.slurm().nodes.swap_remove(&s(1)), Has::Unknown),
        ("node unreadable", |c| _ = c.slurm().unreadable_nodes.insert(s(1), "state 7".into()), Has::Unknown),
        ("not drained", |c| _ = c.slurm_node().flags.remove(&NodeFlag::Drain), Has::Work),
        ("GRES unreadable", |c| c.slurm_node().gpus_used = None, Has::Unknown),
        ("GRES in use", |c| c.slurm_node().gpus_used = Some(1), Has::Work),
        ("a job on another node", |c| c.add_job(job(7, JobState::Running, &[2], at(3))), Has::Nothing),
        (
            "a job without a limit",
            |c| {
                c.add_job(Job { end_by: None, ..job(7, JobState::Running, &[1], at(3)) });
            },
            Has::Work,
        ),
        (
            "a seen job that Slurm has forgotten",
            |c| {
                c.current().jobs_seen = BTreeMap::from([(JobId(7), Some(at(3)))]);
            },
            Has::Nothing,
        ),
        (
            "our reservation of another handover",
            |c| {
                let now = c.now;
                c.add_reservation(reservation_of_ours(HandoverId(77), 1, now));
            },
            Has::Nothing,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::to_kubernetes(State::Draining);
        alter(&mut case);
        case.judge(|view| {
            assert_eq!(
                has(&view.emptiness(Domain::Slurm)),
                *expected,
                "{row}: {}",
                view.emptiness(Domain::Slurm)
            );
        });
    }
}

#[test]
fn a_node_that_slurm_lists_but_cannot_be_read_is_told_from_one_that_it_does_not_list() {
    let unreadable_nodes = BTreeMap::from([(s(1), "state 7".to_owned())]);
    let value = Slurm { unreadable_nodes, ..Slurm::default() };
    let facts = Seen::At { at: at(0), value };
    for (node, why) in
        [(1, "node n1 could not be read from Slurm's answer: state 7"), (2, "Slurm does not list node n2")]
    {
        assert_eq!(find(&facts, &s(node)).map(drop), Err(why.to_owned()));
    }
}

#[test]
fn foreign_reservations_by_time() {
    // (start, end, due back, expected), in minutes; now is 10.
    let rows = [
        (5, 20, Some(60), Has::Work),
        (0, 10, Some(60), Has::Nothing),
        (30, 90, Some(60), Has::Work),
        (60, 90, Some(60), Has::Nothing),
        (100, 120, None, Has::Work),
        // In force now, whatever a due time in the past says.
        (8, 20, Some(7), Has::Work),
        (12, 20, Some(7), Has::Nothing),
    ];
    for (start, end, due_back, expected) in rows {
        let mut case = Case::to_kubernetes(State::Draining);
        case.add_reservation(their_reservation("workshop", 1, at(start), at(end)));
        case.add_reservation(their_reservation("elsewhere", 2, at(0), at(1000)));
        case.current().due_back = due_back.map(at);
        case.judge(|view| {
            assert_eq!(has(&view.emptiness(Domain::Slurm)), expected, "{start}–{end}, due {due_back:?}");
        });
    }
}

#[test]
fn jobs_to_remember_are_the_unfinished_ones_that_name_the_node() {
    let mut case = Case::of_slurm();
    for (id, state, nodes) in [
        (1, JobState::Pending, [1]),
        (2, JobState::Running, [1]),
        (3, JobState::Completing, [1]),
        (4, JobState::Finished, [1]),
        (5, JobState::Running, [2]),
    ] {
        case.add_job(job(id, state, &nodes, at(3)));
    }
    let jobs = jobs_on(&Index::new(&case.facts.slurm), &s(1));
    assert_eq!(jobs, BTreeMap::from([(JobId(2), Some(at(3))), (JobId(3), Some(at(3)))]));
    case.facts.slurm = Seen::unknown("timeout");
    assert_eq!(jobs_on(&Index::new(&case.facts.slurm), &s(1)), BTreeMap::new());
}

/// A reservation begins and ends by slurmctld's clock, which need not be ours.
#[test]
fn reservations_are_judged_by_slurmctlds_clock() {
    // (made so many seconds ago by its clock, its clock is so far ahead of ours, closed)
    for (ago, ahead, closed) in
        [(5, 0, true), (5, 600, true), (5, -600, true), (-300, 600, false), (-300, -600, false)]
    {
        let mut case = Case::of_kubernetes();
        let ahead = SignedDuration::from_secs(ahead);
        let its_now = case.now + ahead;
        case.slurm().clock_ahead = ahead;
        let reservation = case.reservation(EARLIER);
        reservation.start = its_now - SignedDuration::from_secs(ago);
        reservation.end = its_now + crate::want::SEAL_LENGTH;
        assert_eq!(case.judge(|view| kind(&view.slurm)) == Is::Closed, closed, "{ago} {ahead}");
    }
}
