//! Which nodes are taken and given back, when, and why not.

use super::*;
use crate::arbiter;
use crate::book::Management;
use crate::facts::Seen;
use crate::facts::slurm::{JobState, NodeFlag, Slurm};
use crate::fixtures::*;

const NOW: i64 = 10;

/// Four nodes of Slurm's in `train`, seen idle on both sides.
struct Fleet {
    site: Site,
    book: Book,
    facts: Facts,
}

impl Fleet {
    fn new() -> Self {
        let mut book = Book::default();
        for i in 1..=4 {
            book.nodes.insert(n(i), managed(Domain::Slurm, "train"));
        }
        Self { site: site(), book, facts: facts(at(NOW)) }
    }

    /// Puts a node into the pool `burst`, by a policy.
    fn place(&mut self, i: u32) {
        self.book.nodes.insert(n(i), managed(Domain::Kubernetes, "burst"));
    }

    fn begin(&mut self, id: u64, i: u32, to: Domain, state: State, start: i64) {
        let mut one = handover(HandoverId(id), i, to, state);
        one.start_at = at(start);
        self.book.nodes.get_mut(&n(i)).unwrap().handover = Some(one.id);
        self.book.handovers.insert(one.id, one);
    }

    fn pool(&mut self, name: &str) -> &mut Pool {
        self.site.pools.get_mut(&PoolName::from(name)).unwrap()
    }

    fn slurm(&mut self) -> &mut Slurm {
        let Seen::At { value, .. } = &mut self.facts.slurm else { panic!("not seen") };
        value
    }

    fn job_until(&mut self, i: u32, end: Option<i64>) {
        let one = job(i, JobState::Running, &[i], at(0));
        self.slurm().jobs.insert(one.id, crate::facts::slurm::Job { end_by: end.map(at), ..one });
    }

    fn judge<R>(&self, judge: impl FnOnce(Situation<'_>) -> R) -> R {
        let index = &Index::new(&self.facts.slurm);
        judge(Situation { now: at(NOW), site: &self.site, book: &self.book, facts: &self.facts, index })
    }

    fn plan(&self, wants: &[Want]) -> Plan {
        self.judge(|situation| plan(situation, wants, &None, Heard::All))
    }
}

fn want(count: u32, from: i64, until: i64) -> Want {
    Want {
        policy: "prewarm".into(),
        pool: "burst".into(),
        count,
        from: at(from),
        until: at(until),
        priority: Priority { policy: 100, proposal: 1 },
        why: "window".into(),
        ticket: None,
    }
}

fn moved(plan: &Plan) -> Vec<String> {
    plan.moves.iter().map(|one| format!("{} to {}", one.node, one.pool)).collect()
}

#[test]
fn what_is_missing_is_taken_soonest_free_first() {
    let mut fleet = Fleet::new();
    fleet.job_until(1, None);
    fleet.job_until(2, Some(100));
    fleet.job_until(3, Some(50));
    let order = ["n4 to burst", "n3 to burst", "n2 to burst", "n1 to burst"];
    for count in 1..=4 {
        let plan = fleet.plan(&[want(count, 0, 1000)]);
        assert_eq!(moved(&plan), order[..count as usize]);
        assert_eq!(plan.denials, []);
    }
    // By minute 60, n3 is as free as n4.
    assert_eq!(moved(&fleet.plan(&[want(1, 60, 1000)])), ["n3 to burst"]);
    let plan = fleet.plan(&[want(6, 0, 1000)]);
    assert!(matches!(plan.denials[0].reason, Denied::NoNodes { wanted: 6, missing: 2, .. }), "{plan:?}");
    fleet.place(4);
    assert_eq!(moved(&fleet.plan(&[want(2, 0, 1000)])), ["n3 to burst"], "one is there already");
}

#[test]
fn limits_and_freezes_deny() {
    type Row = (&'static str, fn(&mut Fleet), usize);
    let rows: &[Row] = &[
        ("no limit", |_| {}, 3),
        ("floor", |f| f.pool("train").floor = 3, 1),
        ("ceiling", |f| f.pool("burst").ceiling = Some(2), 2),
        ("handovers of the taker", |f| f.pool("burst").max_handovers = 2, 2),
        ("handovers of the giver", |f| f.pool("train").max_handovers = 1, 1),
        ("Slurm unseen", |f| f.facts.slurm = Seen::unknown("timeout"), 0),
        ("Kubernetes unseen", |f| f.facts.kubernetes = Seen::unknown("timeout"), 0),
        (
            "three drained",
            |f| {
                for i in 1..=3 {
                    f.slurm().nodes.get_mut(&s(i)).unwrap().flags.insert(NodeFlag::Drain);
                }
            },
            1,
        ),
        (
            "one to be rebooted, one failing",
            |f| {
                f.slurm().nodes.get_mut(&s(1)).unwrap().flags.insert(NodeFlag::Reboot);
                f.slurm().nodes.get_mut(&s(2)).unwrap().flags.insert(NodeFlag::Fail);
            },
            2,
        ),
        (
            "one in quarantine, one unmanaged",
            |f| {
                f.book.nodes.get_mut(&n(1)).unwrap().quarantine = Some("odd".into());
                f.book.nodes.get_mut(&n(2)).unwrap().management = Management::Unmanaged;
            },
            2,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut fleet = Fleet::new();
        alter(&mut fleet);
        let plan = fleet.plan(&[want(3, 0, 1000)]);
        assert_eq!(plan.moves.len(), *expected, "{row}: {plan:?}");
        assert_eq!(plan.denials.is_empty(), *expected == 3, "{row}: {plan:?}");
    }
    let frozen = Denied::Blackout { name: "freeze".into(), until: at(99), why: "year end".into() };
    let wants = [want(3, 0, 1000)];
    let plan = Fleet::new().judge(|situation| plan(situation, &wants, &Some(frozen.clone()), Heard::All));
    assert_eq!((plan.moves.len(), &plan.denials[0].reason), (0, &frozen));
    let nowhere = Want { pool: "nowhere".into(), ..want(1, 0, 10) };
    assert!(matches!(Fleet::new().plan(&[nowhere]).denials[0].reason, Denied::UnknownPool { .. }));
}

/// A node in others' reservation would never be seen empty: it was taken all the same, and the window waited for it.
#[test]
fn what_others_reserved_is_not_taken_while_they_have_it() {
    // (their reservation, the want, taken)
    let rows = [
        ((0, 100), (50, 90), false),
        ((80, 100), (20, 90), false),
        ((90, 100), (20, 90), true),
        ((0, 50), (50, 90), true),
        ((0, 5), (0, 90), true),
    ];
    for ((start, end), (from, until), taken) in rows {
        let mut fleet = Fleet::new();
        let maintenance = their_reservation("maintenance", 1, at(start), at(end));
        fleet.slurm().reservations.insert("maintenance".into(), maintenance);
        let plan = fleet.plan(&[want(4, from, until)]);
        assert_eq!(plan.moves.len(), if taken { 4 } else { 3 }, "{start}-{end}, {from}-{until}");
        let told = plan
            .denials
            .iter()
            .any(|denial| denial.reason.to_string().contains("n1 is in reservation maintenance"));
        assert_eq!(told, !taken, "{:?}", plan.denials);
    }
}

/// A person's move has no end: any reservation of others that is to come would keep the node from counting as empty.
#[test]
fn a_person_is_told_of_others_reservation_at_once() {
    let mut fleet = Fleet::new();
    let maintenance = their_reservation("maintenance", 1, at(5000), at(6000));
    fleet.slurm().reservations.insert("maintenance".into(), maintenance);
    let asked = |i| {
        fleet
            .judge(|situation| requested(situation, &n(i), Domain::Kubernetes, "why", "eve", None))
            .map(|one| one.node)
    };
    assert!(asked(1).unwrap_err().to_string().contains("reservation maintenance"));
    assert_eq!(asked(2), Ok(n(2)));
}

#[test]
fn a_reservation_is_placed_the_longest_limit_ahead() {
    let mut fleet = Fleet::new();
    // (longest limit in minutes, start, reserved at)
    for (limit, start, reserved) in
        [(Some(240), 1000, 760), (Some(240), 100, NOW), (None, 100_000, 100_000 - 28 * 24 * 60)]
    {
        fleet.slurm().partitions.get_mut("train").unwrap().max_time = limit.map(minutes);
        let plan = fleet.plan(&[want(1, start, start + 60)]);
        let one = &plan.moves[0];
        assert_eq!((one.reserve_at, one.start_at), (at(reserved), at(start)));
        assert_eq!((one.deadline, one.due_back), (at(start + 60), Some(at(start + 60))));
    }
}

#[test]
fn two_windows_of_a_pool_are_not_added_up() {
    let fleet = Fleet::new();
    let overlapping = fleet.plan(&[want(2, 0, 500), want(3, 0, 400)]);
    assert_eq!(overlapping.moves.len(), 3);
    let later = fleet.plan(&[want(1, 0, 500), want(2, 100, 500)]);
    let starts: Vec<Timestamp> = later.moves.iter().map(|one| one.start_at).collect();
    assert_eq!(starts, [at(NOW), at(100)]);
}

#[test]
fn what_nobody_wants_goes_home_and_what_persons_placed_stays() {
    let mut fleet = Fleet::new();
    (1..=3).for_each(|i| fleet.place(i));
    assert_eq!(moved(&fleet.plan(&[want(1, 0, 500)])), ["n3 to train", "n2 to train"]);
    assert_eq!(moved(&fleet.plan(&[want(3, 0, 500)])), [""; 0]);
    let placement = fleet.book.nodes.get_mut(&n(3)).unwrap().placement.as_mut().unwrap();
    placement.by = Requester::Person { user: "eve".into() };
    assert_eq!(moved(&fleet.plan(&[])), ["n2 to train", "n1 to train"]);
    fleet.pool("train").max_handovers = 1;
    let plan = fleet.plan(&[]);
    assert_eq!(moved(&plan), ["n2 to train"]);
    assert_eq!(plan.moves[0].requester, Requester::Policy { policy: "prewarm".into() }, "who placed it");
}

/// After a restart, with a policy that fails from the start on: what it wanted before is not taken away.
#[test]
fn nothing_goes_home_before_every_policy_was_heard() {
    let mut fleet = Fleet::new();
    (1..=2).for_each(|i| fleet.place(i));
    fleet.begin(7, 3, Domain::Kubernetes, State::Draining, 0);
    let plan = |heard, wants: &[Want]| fleet.judge(|situation| plan(situation, wants, &None, heard));
    let all = plan(Heard::All, &[]);
    assert_eq!((all.moves.len(), all.cancels.len()), (2, 1));
    assert_eq!(plan(Heard::Some, &[]), Plan::default());
    assert_eq!(moved(&plan(Heard::Some, &[want(4, 0, 500)])), ["n4 to burst"], "others go on taking");
}

#[test]
fn handovers_that_are_no_longer_wanted_are_cancelled_while_they_can_be() {
    for (state, cancelled) in [
        (State::Planned, true),
        (State::Reserved, true),
        (State::Draining, true),
        (State::Canary, true),
        (State::Releasing, false),
    ] {
        let mut fleet = Fleet::new();
        fleet.begin(7, 1, Domain::Kubernetes, state, 0);
        assert_eq!(fleet.plan(&[want(1, 0, 500)]), Plan::default(), "{state:?}: wanted");
        let plan = fleet.plan(&[]);
        let ids: Vec<HandoverId> = plan.cancels.iter().map(|cancel| cancel.handover).collect();
        assert_eq!(ids == [HandoverId(7)], cancelled, "{state:?}");
        assert_eq!(plan.moves, [], "{state:?}");
        let one = fleet.book.handovers.get_mut(&HandoverId(7)).unwrap();
        one.requester = Requester::Person { user: "eve".into() };
        assert_eq!(fleet.plan(&[]), Plan::default(), "{state:?}: a person's");
    }
}

#[test]
fn what_a_person_asks_for_meets_the_same_limits() {
    let ask =
        |fleet: &Fleet, i, to| fleet.judge(|situation| requested(situation, &n(i), to, "why", "eve", None));
    let mut fleet = Fleet::new();
    let one = ask(&fleet, 1, Domain::Kubernetes).unwrap();
    assert_eq!((one.start_at, one.from_pool), (at(NOW), PoolName::from("train")));
    assert!(matches!(ask(&fleet, 1, Domain::Slurm), Err(Denied::AlreadyThere { .. })));
    assert!(matches!(ask(&fleet, 9, Domain::Slurm), Err(Denied::UnknownNode { .. })));
    fleet.begin(7, 1, Domain::Kubernetes, State::Draining, 0);
    assert!(matches!(ask(&fleet, 1, Domain::Kubernetes), Err(Denied::InHandover { .. })));
    fleet.pool("train").floor = 3;
    assert!(matches!(ask(&fleet, 2, Domain::Kubernetes), Err(Denied::Floor { floor: 3, .. })));
    assert_eq!(arbiter::Census::new(&fleet.site, &fleet.book, at(NOW)).of(&"train".into()).present, 3);
}
