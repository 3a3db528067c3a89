//! Whatever people, jobs and bad luck do to a cluster: no GPU is given twice, nothing starts on a closed
//! node, every run's end is told once, and the size of a step in time makes no difference.

#![allow(clippy::unwrap_used, reason = "helpers of tests may")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use slurm_mock::{
    Cluster,
    model::{
        Error, JobId, JobSpec, NodeAction, NodeFlag, NodeName, NodeUpdate, ReservationFlag,
        ReservationRequest, Start,
    },
};

const NODES: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Wait(u16),
    Submit { nodes: u32, gpus: u32, run_s: u16, limit_s: u16, requeue: bool, pinned: Option<u32> },
    Cancel(u8),
    Requeue(u8),
    Suspend(u8),
    Resume(u8),
    Update(u32, NodeAction),
    Reserve(u32, u16, u16),
    Unreserve(u32),
    KillSlurmd(u32),
    PowerOff(u32),
    StartSlurmd(u32),
    Restart(Start),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1..=NODES;
    prop_oneof![
        6 => (0_u16..300).prop_map(Step::Wait),
        6 => (1..=2_u32, 0..=4_u32, 1_u16..400, 60_u16..400, any::<bool>(), proptest::option::of(node())).prop_map(
            |(nodes, gpus, run_s, limit_s, requeue, pinned)| Step::Submit { nodes, gpus, run_s, limit_s, requeue, pinned }
        ),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => any::<u8>().prop_map(Step::Requeue),
        1 => any::<u8>().prop_map(Step::Suspend),
        2 => any::<u8>().prop_map(Step::Resume),
        3 => (node(), prop_oneof![
            Just(NodeAction::Drain), Just(NodeAction::Undrain), Just(NodeAction::Resume), Just(NodeAction::Down),
        ]).prop_map(|(n, a)| Step::Update(n, a)),
        2 => (node(), 0_u16..300, 1_u16..300).prop_map(|(n, start, length)| Step::Reserve(n, start, length)),
        1 => node().prop_map(Step::Unreserve),
        1 => node().prop_map(Step::KillSlurmd),
        1 => node().prop_map(Step::PowerOff),
        2 => node().prop_map(Step::StartSlurmd),
        1 => prop_oneof![Just(Start::Clean), Just(Start::AfterKill), Just(Start::Cold)].prop_map(Step::Restart),
    ]
}

fn name(node: u32) -> NodeName {
    format!("gpu{node}").into()
}

fn picked(c: &Cluster, seed: u8) -> JobId {
    let count = c.jobs().count().max(1);
    c.jobs().nth(usize::from(seed) % count).map_or(JobId(0), |j| j.id)
}

/// Refusals are fine: people ask for impossible things.
fn refusable<T>(_: &Result<T, Error>) {}

fn take(c: &mut Cluster, step: &Step) {
    let s = |seconds: u16| SignedDuration::from_secs(i64::from(seconds));
    match step.clone() {
        Step::Wait(_) => {}
        Step::Submit { nodes, gpus, run_s, limit_s, requeue, pinned } => {
            let spec = JobSpec::new("alice", nodes, gpus, s(run_s)).limit(s(limit_s));
            let required_nodes = pinned.map(name).into_iter().collect();
            refusable(&c.submit(JobSpec { requeue, required_nodes, ..spec }));
        }
        Step::Cancel(seed) => refusable(&c.cancel(picked(c, seed), "root")),
        Step::Requeue(seed) => refusable(&c.requeue(picked(c, seed), "root")),
        Step::Suspend(seed) => refusable(&c.suspend(picked(c, seed), "root")),
        Step::Resume(seed) => refusable(&c.resume_job(picked(c, seed), "root")),
        Step::Update(node, action) => {
            let update = NodeUpdate { action: Some(action), reason: Some("x".to_owned()) };
            refusable(&c.update_node(&name(node), &update, "root"));
        }
        Step::Reserve(node, start_s, length_s) => {
            let request = ReservationRequest {
                name: Some(format!("r{node}")),
                start: c.now().checked_add(s(start_s)).ok(),
                duration: s(length_s),
                nodes: vec![name(node)],
                users: vec!["root".to_owned()],
                flags: vec![ReservationFlag::Maint, ReservationFlag::IgnoreJobs],
            };
            refusable(&c.create_reservation(request, "root"));
        }
        Step::Unreserve(node) => refusable(&c.delete_reservation(&format!("r{node}"), "root")),
        Step::KillSlurmd(node) => c.kill_slurmd(&name(node)).unwrap(),
        Step::PowerOff(node) => c.power_off(&name(node)).unwrap(),
        Step::StartSlurmd(node) => c.start_slurmd(&name(node)).unwrap(),
        Step::Restart(start) => {
            c.stop_controller();
            c.start_controller(start);
        }
    }
}

/// One moment's rules.
fn check(c: &Cluster) {
    let mut holders: BTreeMap<(NodeName, u32), JobId> = BTreeMap::new();
    for job in c.jobs().filter(|j| j.state.holds_nodes()) {
        assert_eq!(
            job.allocation.len(),
            usize::try_from(job.spec.nodes).unwrap().max(job.spec.required_nodes.len())
        );
        for (node, share) in &job.allocation {
            assert_eq!(u32::try_from(share.gpus.len()).unwrap(), job.spec.gpus_per_node);
            for gpu in &share.gpus {
                assert_eq!(
                    holders.insert((node.clone(), *gpu), job.id),
                    None,
                    "GPU {gpu} of {node} given twice"
                );
            }
        }
    }
    let ended: Vec<_> = c.truth().endings().iter().filter_map(|e| e.run).collect();
    assert_eq!(ended.iter().collect::<BTreeSet<_>>().len(), ended.len(), "a run ended twice");
}

/// Rules for what happened between two moments without anyone's doing.
fn check_starts(before: &Cluster, after: &Cluster) {
    let old = before.truth().processes().len();
    for process in &after.truth().processes()[old..] {
        let was = before.node(&process.node).unwrap();
        assert!(!was.flags.contains(&NodeFlag::Drain), "{process:?} started on a drained node");
        let job = after.job(process.job).or_else(|| before.job(process.job));
        let limit = job.map(|j| j.time_limit);
        for r in before.reservations().filter(|r| r.nodes.contains(&process.node)) {
            let end = limit.and_then(|l| process.started_at.checked_add(l).ok());
            let overruns = end.is_some_and(|end| end > r.start && process.started_at < r.end);
            assert!(!overruns, "{process:?} overruns into {r:?}");
        }
    }
}

fn play(steps: &[Step], small: bool) -> Cluster {
    let mut c = Cluster::uniform(NODES, 4, Timestamp::from_second(1_796_000_000).unwrap());
    for step in steps {
        take(&mut c, step);
        check(&c);
        let wait_s = if let Step::Wait(seconds) = step { i64::from(*seconds) } else { 1 };
        let target = c.now().checked_add(SignedDuration::from_secs(wait_s)).unwrap();
        let before = c.clone();
        if small {
            while c.now() < target {
                let next = c.now().checked_add(SignedDuration::from_secs(1)).unwrap();
                c.advance_to(next.min(target));
                check(&c);
            }
        } else {
            c.advance_to(target);
            check(&c);
        }
        check_starts(&before, &c);
    }
    c
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_hold_and_the_step_makes_no_difference(steps in proptest::collection::vec(step(), 1..40)) {
        let (big, small) = (play(&steps, false), play(&steps, true));
        prop_assert_eq!(big.truth().processes(), small.truth().processes());
        prop_assert_eq!(big.truth().endings(), small.truth().endings());
        prop_assert_eq!(format!("{:?}", big.nodes()), format!("{:?}", small.nodes()));
    }
}
