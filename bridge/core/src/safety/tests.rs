//! Each single deviation denies, with its own reason.

use super::*;
use crate::facts::Seen;
use crate::facts::kubernetes::Eviction;
use crate::fixtures::*;
use crate::handover::State;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Because {
    Quarantined,
    NotClosed,
    Frozen,
    NotEmpty,
    NotSealed,
    TooFewLooks,
    NodeWord,
    Backwards,
}

fn because(denied: &Denied) -> Option<Because> {
    match denied {
        Denied::Quarantined { .. } => Some(Because::Quarantined),
        Denied::NotClosed { .. } => Some(Because::NotClosed),
        Denied::Frozen { .. } => Some(Because::Frozen),
        Denied::NotEmpty { .. } => Some(Because::NotEmpty),
        Denied::NotSealed { .. } => Some(Because::NotSealed),
        Denied::TooFewLooks { .. } => Some(Because::TooFewLooks),
        Denied::Backwards { .. } => Some(Because::Backwards),
        Denied::NodeWord { .. } => Some(Because::NodeWord),
        _ => None,
    }
}

type Row = (&'static str, fn(&mut Case), Because);

fn all_deny(good: &Case, opening: Domain, rows: &[Row]) {
    good.judge(|view| assert!(permit(view, opening).is_ok(), "{:?}", permit(view, opening)));
    for (row, alter, expected) in rows {
        let mut case = good.clone();
        alter(&mut case);
        case.judge(|view| {
            let denied = permit(view, opening).expect_err(row);
            assert_eq!(because(&denied), Some(*expected), "{row}: {denied}");
        });
    }
}

const EITHER_WAY: [Row; 10] = [
    ("quarantine", |c| c.record.quarantine = Some("both open".into()), Because::Quarantined),
    (
        "bindings altered",
        |c| {
            c.kubernetes().guards.bindings = GuardState::Altered { what: "x".into() };
        },
        Because::Frozen,
    ),
    ("pods missing", |c| c.kubernetes().guards.pods = GuardState::Missing, Because::Frozen),
    ("marks missing", |c| c.kubernetes().guards.marks = GuardState::Missing, Because::Frozen),
    ("gate missing", |c| c.kubernetes().guards.gate = GuardState::Missing, Because::Frozen),
    ("one look", |c| c.current().looks.count = 1, Because::TooFewLooks),
    ("no look", |c| c.current().looks.count = 0, Because::TooFewLooks),
    (
        "the other side's time ran backwards",
        |c| {
            let domain = c.current().leaving();
            c.backwards.went_down(c.now, domain, 1);
        },
        Because::Backwards,
    ),
    (
        "the pool is gone",
        |c| {
            let pool = c.current().pool.clone();
            c.site.pools.remove(&pool);
        },
        Because::NodeWord,
    ),
    (
        "the pool wants the node's word",
        |c| {
            let pool = c.current().pool.to_string();
            c.pool(&pool).node_word = NodeWordRule::Required;
        },
        Because::NodeWord,
    ),
];

#[test]
fn kubernetes_opens_only_with_all_of_it() {
    let good = Case::to_kubernetes(State::Canary);
    all_deny(&good, Domain::Kubernetes, &EITHER_WAY);
    all_deny(
        &good,
        Domain::Kubernetes,
        &[
            ("Slurm unseen", |c| c.facts.slurm = Seen::unknown("timeout"), Because::NotClosed),
            ("Kubernetes unseen", |c| c.facts.kubernetes = Seen::unknown("timeout"), Because::Frozen),
            ("undrained", |c| _ = c.slurm_node().flags.remove(&NodeFlag::Drain), Because::NotClosed),
            ("reservation gone", |c| c.slurm().reservations.clear(), Because::NotClosed),
            (
                "not responding",
                |c| _ = c.slurm_node().flags.insert(NodeFlag::NotResponding),
                Because::NotEmpty,
            ),
            ("GRES in use", |c| c.slurm_node().gpus_used = Some(1), Because::NotEmpty),
            (
                "IGNORE_JOBS",
                |c| _ = c.reservation(CURRENT).flags.insert("IGNORE_JOBS".into()),
                Because::NotSealed,
            ),
            (
                "ends soon",
                |c| {
                    let now = c.now;
                    c.reservation(CURRENT).end = now + minutes(60);
                },
                Because::NotSealed,
            ),
            ("the looks were at the other side", |c| c.current().to = Domain::Slurm, Because::TooFewLooks),
        ],
    );
}

#[test]
fn slurm_opens_only_with_all_of_it() {
    let good = Case::to_slurm(State::KubernetesEmpty);
    all_deny(&good, Domain::Slurm, &EITHER_WAY[..1]);
    all_deny(&good, Domain::Slurm, &EITHER_WAY[2..]);
    all_deny(
        &good,
        Domain::Slurm,
        &[
            // A list that nothing enforces closes nothing.
            (
                "bindings altered",
                |c| c.kubernetes().guards.bindings = GuardState::Missing,
                Because::NotClosed,
            ),
            ("Kubernetes unseen", |c| c.facts.kubernetes = Seen::unknown("timeout"), Because::NotClosed),
            ("LIST failed", |c| c.look = Seen::unknown("timeout"), Because::NotEmpty),
            ("taint gone", |c| c.untaint(TAINT_SLURM), Because::NotClosed),
            ("off the list", |c| c.kubernetes().gate = None, Because::NotClosed),
            (
                "a holder",
                |c| c.node_look().holders.push(holder(pod("a", Eviction::Terminating))),
                Because::NotEmpty,
            ),
            ("Lease not renewed", |c| c.kube_node().lease_renewed_at = Some(at(8)), Because::NotEmpty),
            (
                "the looks were at the other side",
                |c| c.current().to = Domain::Kubernetes,
                Because::TooFewLooks,
            ),
        ],
    );
}

#[test]
fn outside_a_handover_only_the_owner_opens_again() {
    let of_kubernetes = Case::of_kubernetes();
    of_kubernetes.judge(|view| assert!(permit(view, Domain::Kubernetes).is_ok()));
    let of_slurm = Case::of_slurm();
    of_slurm.judge(|view| assert!(permit(view, Domain::Slurm).is_ok()));
    // Closed on both sides and empty: still not the other one's.
    let mut both_closed = Case::of_kubernetes();
    close_kubernetes(both_closed.kubernetes(), 1, EARLIER);
    both_closed.judge(|view| {
        assert!(permit(view, Domain::Kubernetes).is_ok());
        assert!(matches!(permit(view, Domain::Slurm), Err(Denied::NotClosed { .. })));
    });
}

#[test]
fn both_open_is_a_violation_and_a_persons_drain_is_no_open_gate() {
    type Deviation = (&'static str, fn(&mut Case), bool);
    let rows: &[Deviation] = &[
        ("as it should be", |_| {}, false),
        ("Slurm weakened", |c| c.slurm().reservations.clear(), false),
        ("Slurm unseen", |c| c.facts.slurm = Seen::unknown("timeout"), false),
        (
            "both open",
            |c| {
                c.slurm().reservations.clear();
                *c.slurm_node() = slurm_node();
            },
            true,
        ),
        (
            "a person's drain for ours, reservation gone",
            |c| {
                c.slurm().reservations.clear();
                c.slurm_node().reason = reason("bad fan");
            },
            false,
        ),
        (
            "both open, unmanaged",
            |c| {
                c.record = crate::book::Record::default();
                c.slurm().reservations.clear();
                *c.slurm_node() = slurm_node();
            },
            false,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::of_kubernetes();
        alter(&mut case);
        case.judge(|view| assert_eq!(violation(view).is_some(), *expected, "{row}"));
    }
}

/// A managed node that was taken out of the configuration was forgotten, and its alarms were cleared.
#[test]
fn a_managed_node_that_left_the_configuration_is_an_alarm() {
    let mut book = Book::default();
    book.nodes.insert(n(1), managed(Domain::Slurm, "train"));
    book.nodes.insert(n(2), Record::default());
    let mut site = site();
    assert_eq!(strangers(&site, &book), []);
    site.nodes.clear();
    let keys: Vec<String> = strangers(&site, &book).into_iter().map(|(key, _, _)| key).collect();
    assert_eq!(keys, ["inventory/n1"]);
}

/// Simulator, seed 84: the Slurm gate was broken open while Kubernetes was away, and put back before both were seen open;
/// the job that had begun ran on beside the pods, and nobody was told.
#[test]
fn a_job_of_slurms_beside_an_open_kubernetes_gate_is_a_violation() {
    use crate::facts::slurm::JobState;
    let mut case = Case::of_kubernetes();
    case.add_job(job(7, JobState::Pending, &[], at(3)));
    case.judge(|view| assert_eq!(violation(view), None));
    case.add_job(job(7, JobState::Running, &[1], at(3)));
    case.judge(|view| assert!(violation(view).is_some()));
    case.facts.kubernetes = Seen::unknown("away");
    case.judge(|view| assert!(violation(view).is_some(), "the job was seen, wherever Kubernetes is"));
    case.facts.slurm = Seen::unknown("away");
    case.judge(|view| assert_eq!(violation(view), None, "unknown quarantines nothing"));
}

/// The Kubernetes gate was closing, or weakened, when a job broke in beside the pods: nobody was told, and nothing noted it.
#[test]
fn a_job_on_a_node_of_kubernetes_is_a_violation_until_slurm_may_open() {
    use crate::facts::slurm::JobState;
    let rows = [
        (State::Planned, true, false),
        (State::Closing, true, true),
        (State::Evicting, true, true),
        (State::KubernetesEmpty, true, true),
        (State::RollingBack, true, true),
        (State::Returning, false, false),
    ];
    for (state, broken, noted) in rows {
        let mut case = Case::to_slurm(state);
        case.judge(|view| assert_eq!(violation(view), None, "{state:?}"));
        let closed = |case: &Case| case.judge(alarms).iter().all(|(key, _)| key != "gate/n1/slurm");
        assert!(closed(&case), "{state:?}");
        case.add_job(job(7, JobState::Running, &[1], at(3)));
        case.judge(|view| assert_eq!(violation(view).is_some(), broken, "{state:?}"));
        let next = case.judge(crate::step::next_event);
        let notes = matches!(next, Some(crate::handover::Event::JobsSeen { .. }));
        assert_eq!(notes, noted, "{state:?}: {next:?}");
        case.slurm().reservations.clear();
        assert_eq!(closed(&case), !broken, "{state:?}: told of the lost guard");
    }
    let mut weakened = Case::of_kubernetes();
    weakened.kube_node().taints.push(taint(TAINT_DRAINING, Effect::NoSchedule));
    weakened.add_job(job(7, JobState::Running, &[1], at(3)));
    weakened.judge(|view| assert!(violation(view).is_some()));
}

/// Real Kubernetes 1.36: pods bound to a node that opened seconds after the API server was back were deleted by the taint
/// eviction controller, or Failed at their kubelet's admission; both still went by the NoExecute from before the outage.
#[test]
fn a_node_is_not_delivered_to_kubernetes_until_its_clients_watch_again() {
    let mut case = Case::to_kubernetes(State::Canary);
    case.judge(|view| assert_eq!(fit_for_kubernetes(view), Ok(())));
    for (ago, fit) in [(0, false), (59, false), (60, true), (3_600, true), (-1, true)] {
        case.facts.kubernetes_missed = Some(case.now - SignedDuration::from_secs(ago));
        case.judge(|view| assert_eq!(fit_for_kubernetes(view).is_ok(), fit, "{ago} s"));
    }
}

/// One look from after the notice is enough; the other domain's time is its own affair.
#[test]
fn a_restored_backup_freezes_openings_until_the_next_look() {
    for (mut case, opening) in [
        (Case::to_kubernetes(State::Canary), Domain::Kubernetes),
        (Case::to_slurm(State::KubernetesEmpty), Domain::Slurm),
    ] {
        case.backwards.went_down(case.now, opening, 1);
        case.judge(|view| assert!(permit(view, opening).is_ok(), "its own side is not what is judged"));
        case.backwards.went_down(case.now, opening.other(), 1);
        case.judge(|view| assert!(matches!(permit(view, opening), Err(Denied::Backwards { .. }))));
        case.later(1);
        case.judge(|view| assert!(permit(view, opening).is_ok(), "{:?}", permit(view, opening)));
    }
}

#[test]
fn a_handover_that_waits_beyond_its_deadline_is_an_alarm() {
    let mut case = Case::to_kubernetes(State::Draining);
    case.pool("train").escalation = crate::model::Escalation::Wait;
    let deadline = case.current().deadline;
    case.now = deadline;
    assert_eq!(case.judge(alarms), [], "not late yet");
    for _ in 0..2 {
        let event = case.judge(crate::step::next_event).expect("it waits on");
        let now = case.now;
        let next = case.current().next(now, &event).expect("it may");
        *case.current() = next;
        let alarms = case.judge(alarms);
        assert!(
            matches!(alarms.as_slice(), [(key, text)] if key == "late/n1"
            && text.contains(&format!("late since {deadline} "))),
            "{alarms:?}"
        );
        case.now = case.current().deadline;
    }
}

/// Of a node that its scheduler does not show nobody sees a guard go: people are told, unless the whole scheduler is away.
#[test]
fn a_node_that_cannot_be_judged_is_an_alarm() {
    type Row = (fn(&mut Case), &'static [&'static str]);
    let rows: [Row; 4] = [
        (|_| {}, &[]),
        (|c| _ = c.slurm().nodes.shift_remove(&s(1)), &["unknown/n1/slurm"]),
        (|c| _ = c.kubernetes().nodes.shift_remove(&k(1)), &["unknown/n1/kubernetes"]),
        (|c| c.facts.slurm = Seen::unknown("timeout"), &[]),
    ];
    for (alter, expected) in rows {
        let mut case = Case::of_kubernetes();
        alter(&mut case);
        let keys: Vec<String> = case.judge(alarms).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, expected);
    }
}
