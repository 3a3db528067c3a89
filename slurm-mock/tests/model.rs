//! The model's rules, each as slurm.md of the project states them from real daemons.

#![allow(clippy::unwrap_used, reason = "helpers of tests may")]

use jiff::{SignedDuration, Timestamp};
use slurm_mock::{
    Cluster,
    model::{
        Cause, Error, JobId, JobSpec, JobState, ListChange, NodeAction, NodeName, NodeUpdate,
        ReservationChange, ReservationFlag, ReservationRequest, Start, UNLIMITED,
    },
};

fn s(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_796_000_000 + seconds).unwrap()
}

fn cluster(nodes: u32) -> Cluster {
    Cluster::uniform(nodes, 4, at(0))
}

fn node(name: &str) -> NodeName {
    name.into()
}

fn state(c: &Cluster, name: &str) -> String {
    c.node(&node(name)).unwrap().state().join("+")
}

fn job_state(c: &Cluster, id: JobId) -> String {
    c.job(id).map_or("gone".to_owned(), |j| j.state_words(c.now()).join("+"))
}

fn update(c: &mut Cluster, name: &str, action: NodeAction, reason: &str, by: &str) -> Result<(), Error> {
    let reason = (!reason.is_empty()).then(|| reason.to_owned());
    c.update_node(&node(name), &NodeUpdate { action: Some(action), reason }, by)
}

fn drain(c: &mut Cluster, name: &str) {
    update(c, name, NodeAction::Drain, "ours", "root").unwrap();
}

/// A job on one whole node whose limit is what it needs.
fn whole(run_s: i64) -> JobSpec {
    JobSpec::new("alice", 1, 4, s(run_s)).limit(s(run_s + 1))
}

fn request(
    start: Option<Timestamp>,
    minutes: i64,
    nodes: &[&str],
    flags: &[ReservationFlag],
) -> ReservationRequest {
    ReservationRequest {
        name: Some("r1".to_owned()),
        start,
        duration: SignedDuration::from_mins(minutes),
        nodes: nodes.iter().map(|&n| n.into()).collect(),
        users: vec!["root".to_owned()],
        flags: flags.to_vec(),
    }
}

const MAINT: &[ReservationFlag] = &[ReservationFlag::Maint, ReservationFlag::IgnoreJobs];

fn living(c: &Cluster, name: &str) -> usize {
    c.truth().processes_on(&node(name), c.now()).count()
}

#[test]
fn a_job_runs_completes_and_is_forgotten() {
    let mut c = cluster(1);
    let id = c.submit(whole(100)).unwrap();
    for (t, job, shown, processes) in [
        (0, "RUNNING", "MIXED", 1),
        (99, "RUNNING", "MIXED", 1),
        (100, "COMPLETED+COMPLETING", "IDLE+COMPLETING", 0),
        (101, "COMPLETED", "IDLE", 0),
        (400, "gone", "IDLE", 0),
    ] {
        c.advance_to(at(t));
        assert_eq!(job_state(&c, id), job, "at {t}");
        assert_eq!(state(&c, "gpu1"), shown, "at {t}");
        assert_eq!(living(&c, "gpu1"), processes, "at {t}");
    }
    assert_eq!(c.truth().endings()[0].cause, Cause::Finished);
    assert_eq!(c.truth().kills().count(), 0);
}

#[test]
fn one_big_step_equals_many_small_ones() {
    let run = |step: i64| {
        let mut c = cluster(2);
        for i in 0..12 {
            c.submit(
                JobSpec::new("bob", 1 + u32::from(i % 3 == 0), 2, s(30 + 7 * i64::from(i))).limit(s(200)),
            )
            .unwrap();
        }
        for t in (0..=600).step_by(usize::try_from(step).unwrap()) {
            c.advance_to(at(t));
        }
        (c.truth().processes().to_vec(), c.truth().endings().to_vec())
    };
    assert_eq!(run(1), run(600));
}

#[test]
fn the_limit_cuts_a_job_off_and_its_processes_linger() {
    let mut c = cluster(1);
    let id = c.submit(JobSpec::new("alice", 1, 1, s(1000)).limit(s(60))).unwrap();
    c.advance_to(at(60));
    assert_eq!(job_state(&c, id), "TIMEOUT+COMPLETING");
    assert_eq!(living(&c, "gpu1"), 1);
    c.advance_to(at(61));
    assert_eq!((job_state(&c, id).as_str(), living(&c, "gpu1")), ("TIMEOUT", 0));
}

#[test]
fn configuring_comes_before_processes() {
    let mut c = cluster(1);
    c.config_mut().configuring = s(5);
    let id = c.submit(whole(10)).unwrap();
    assert_eq!((job_state(&c, id).as_str(), living(&c, "gpu1")), ("RUNNING+CONFIGURING", 0));
    drain(&mut c, "gpu1");
    c.advance_to(at(5));
    assert_eq!((job_state(&c, id).as_str(), living(&c, "gpu1")), ("RUNNING", 1));
    c.config_mut().kill_wait = s(0);
    c.advance_to(at(11));
    assert_eq!(c.job(id).unwrap().state, JobState::Timeout);
}

#[test]
fn drain_lets_the_job_go_on_and_starts_nothing() {
    let mut c = cluster(2);
    let running = c.submit(whole(100).on(&["gpu1"])).unwrap();
    drain(&mut c, "gpu1");
    assert_eq!(state(&c, "gpu1"), "MIXED+DRAIN");
    let pinned = c.submit(whole(10).on(&["gpu1"])).unwrap();
    let elsewhere = c.submit(whole(10)).unwrap();
    assert_eq!(job_state(&c, elsewhere), "RUNNING");
    assert_eq!(c.job(pinned).unwrap().reason.description(), "ReqNodeNotAvail, UnavailableNodes:gpu1");
    c.advance_to(at(100));
    assert_eq!(job_state(&c, running), "COMPLETED+COMPLETING");
    assert_eq!(state(&c, "gpu1"), "IDLE+DRAIN+COMPLETING");
    c.advance_to(at(101));
    assert_eq!(state(&c, "gpu1"), "IDLE+DRAIN");
    update(&mut c, "gpu1", NodeAction::Resume, "", "root").unwrap();
    assert_eq!(state(&c, "gpu1"), "IDLE+NOT_RESPONDING");
    assert_eq!(job_state(&c, pinned), "PENDING");
    c.advance_to(at(103));
    assert_eq!(job_state(&c, pinned), "RUNNING");
}

#[test]
fn the_last_drain_owns_the_reason() {
    let mut c = cluster(1);
    drain(&mut c, "gpu1");
    c.advance_to(at(10));
    update(&mut c, "gpu1", NodeAction::Drain, "theirs", "slurm").unwrap();
    let reason = c.node(&node("gpu1")).unwrap().reason.unwrap();
    assert_eq!((reason.text.as_str(), reason.user.as_str(), reason.changed_at), ("theirs", "slurm", at(10)));
    update(&mut c, "gpu1", NodeAction::Undrain, "", "root").unwrap();
    assert_eq!(c.node(&node("gpu1")).unwrap().reason, None);
    assert_eq!(state(&c, "gpu1"), "IDLE+NOT_RESPONDING");
    c.advance_to(at(12));
    assert_eq!(state(&c, "gpu1"), "IDLE");
}

#[test]
fn without_slurmdbd_the_reason_outlives_its_drain() {
    for action in [NodeAction::Undrain, NodeAction::Resume] {
        let mut c = cluster(1);
        c.config_mut().reason_survives_resume = true;
        drain(&mut c, "gpu1");
        update(&mut c, "gpu1", action, "", "root").unwrap();
        assert_eq!(state(&c, "gpu1"), "IDLE+NOT_RESPONDING");
        assert_eq!(c.node(&node("gpu1")).unwrap().reason.unwrap().text, "ours");
    }
}

#[test]
fn node_updates() {
    use NodeAction::{Down, Drain, Idle, Resume, Undrain};
    for (steps, shown) in [
        (vec![(Resume, Err(Error::InvalidNodeState))], "IDLE"),
        (vec![(Undrain, Ok(()))], "IDLE"),
        (vec![(Down, Ok(())), (Drain, Ok(()))], "DOWN+DRAIN"),
        (vec![(Drain, Ok(())), (Undrain, Ok(()))], "IDLE+NOT_RESPONDING"),
        (vec![(Down, Ok(())), (Drain, Ok(())), (Undrain, Ok(()))], "DOWN"),
        (vec![(Down, Ok(())), (Resume, Ok(()))], "IDLE+NOT_RESPONDING"),
        (vec![(Down, Ok(())), (Drain, Ok(())), (Idle, Ok(()))], "IDLE+NOT_RESPONDING"),
        (vec![(NodeAction::Fail, Ok(()))], "IDLE+FAIL"),
    ] {
        let mut c = cluster(1);
        for (action, outcome) in &steps {
            assert_eq!(update(&mut c, "gpu1", *action, "x", "root"), *outcome, "{steps:?}");
        }
        assert_eq!(state(&c, "gpu1"), shown, "{steps:?}");
    }
    let mut c = cluster(1);
    assert_eq!(update(&mut c, "gpu1", Drain, "x", "alice"), Err(Error::InvalidUser));
    assert_eq!(update(&mut c, "gpu9", Drain, "x", "root"), Err(Error::InvalidNodeName));
}

#[test]
fn down_kills_at_once_and_names_who_did_it() {
    for (requeue, shown) in [(true, "PENDING+COMPLETING"), (false, "NODE_FAIL+COMPLETING")] {
        let mut c = cluster(1);
        let id = c.submit(JobSpec { requeue, ..whole(100) }).unwrap();
        update(&mut c, "gpu1", NodeAction::Down, "x", "slurm").unwrap();
        assert_eq!(job_state(&c, id), shown);
        let kill = c.truth().kills().next().unwrap();
        assert_eq!(kill.cause, Cause::NodeSetDownBy(node("gpu1"), "slurm".to_owned()));
        assert_eq!(kill.requeued, requeue);
    }
}

#[test]
fn a_suspended_job_resumes_on_a_drained_node() {
    let mut c = cluster(1);
    let id = c.submit(whole(100)).unwrap();
    c.advance_to(at(40));
    c.suspend(id, "root").unwrap();
    let view = c.node(&node("gpu1")).unwrap();
    assert_eq!((view.alloc_cpus, view.gpus_used.len()), (0, 4));
    drain(&mut c, "gpu1");
    assert_eq!(state(&c, "gpu1"), "MIXED+DRAIN");
    c.advance_to(at(500));
    c.resume_job(id, "root").unwrap();
    assert_eq!((job_state(&c, id).as_str(), state(&c, "gpu1").as_str()), ("RUNNING", "MIXED+DRAIN"));
    c.advance_to(at(559));
    assert_eq!(job_state(&c, id), "RUNNING");
    c.advance_to(at(560));
    assert_eq!(job_state(&c, id), "COMPLETED+COMPLETING");
    assert_eq!(c.suspend(id, "alice"), Err(Error::AccessDenied));
}

#[test]
fn backfill_never_delays_the_first_in_line() {
    let mut c = cluster(2);
    c.submit(whole(100).on(&["gpu1"])).unwrap();
    let big = c.submit(JobSpec::new("alice", 2, 4, s(50)).limit(s(60))).unwrap();
    let long = c.submit(whole(200)).unwrap();
    let short = c.submit(whole(50)).unwrap();
    assert_eq!(state(&c, "gpu2"), "MIXED+PLANNED");
    for (id, shown, reason) in
        [(big, "PENDING", "Resources"), (long, "PENDING", "Priority"), (short, "RUNNING", "None")]
    {
        assert_eq!((job_state(&c, id).as_str(), c.job(id).unwrap().reason.code()), (shown, reason));
    }
    c.advance_to(at(101));
    assert_eq!(job_state(&c, big), "RUNNING");
}

#[test]
fn a_higher_priority_goes_first() {
    let mut c = cluster(1);
    c.submit(whole(10)).unwrap();
    let low = c.submit(whole(10)).unwrap();
    let high = c.submit(JobSpec { priority: 2000, ..whole(10) }).unwrap();
    c.advance_to(at(11));
    assert_eq!((job_state(&c, high).as_str(), job_state(&c, low).as_str()), ("RUNNING", "PENDING"));
}

#[test]
fn what_can_never_run_is_refused() {
    for (spec, error) in [
        (JobSpec::new("alice", 1, 5, s(1)), Error::ConfigUnavailable),
        (JobSpec::new("alice", 3, 1, s(1)), Error::ConfigUnavailable),
        (whole(1).on(&["gpu9"]), Error::InvalidNodeName),
        (JobSpec { partition: Some("x".to_owned()), ..whole(1) }, Error::InvalidPartition),
        (JobSpec { reservation: Some("x".to_owned()), ..whole(1) }, Error::ReservationInvalid),
    ] {
        assert_eq!(cluster(2).submit(spec), Err(error));
    }
    let mut c = cluster(1);
    let id = c.submit(whole(1).limit(s(8 * 86_400))).unwrap();
    assert_eq!(c.job(id).unwrap().reason.code(), "PartitionTimeLimit");
}

#[test]
fn a_future_reservation_stops_only_what_would_overrun() {
    let mut c = cluster(1);
    c.create_reservation(request(Some(at(75)), 10, &["gpu1"], MAINT), "root").unwrap();
    let long = c.submit(whole(600).on(&["gpu1"])).unwrap();
    let short = c.submit(whole(59).on(&["gpu1"])).unwrap();
    assert_eq!(job_state(&c, short), "RUNNING");
    assert_eq!(c.job(long).unwrap().reason.description(), "ReqNodeNotAvail, May be reserved for other job");
    c.advance_to(at(75 + 600));
    assert_eq!(job_state(&c, long), "RUNNING");
}

#[test]
fn running_jobs_go_on_in_a_reservation_and_flags_come_late() {
    let mut c = cluster(1);
    let id = c.submit(whole(100)).unwrap();
    assert_eq!(
        c.create_reservation(request(Some(at(50)), 10, &["gpu1"], &[ReservationFlag::Maint]), "root"),
        Err(Error::NodesBusy)
    );
    c.create_reservation(request(Some(at(50)), 10, &["gpu1"], MAINT), "root").unwrap();
    for (t, shown, reservation) in [
        (49, "MIXED", None),
        (51, "MIXED", None),
        (52, "MIXED+RESERVED+MAINTENANCE", Some("r1")),
        (102, "IDLE+RESERVED+MAINTENANCE", Some("r1")),
        (651, "IDLE+RESERVED+MAINTENANCE", Some("r1")),
        (652, "IDLE", None),
    ] {
        c.advance_to(at(t));
        assert_eq!(state(&c, "gpu1"), shown, "at {t}");
        assert_eq!(c.node(&node("gpu1")).unwrap().reservation.as_deref(), reservation, "at {t}");
    }
    let ending = &c.truth().endings()[0];
    assert_eq!((ending.job, ending.at, &ending.cause), (id, at(100), &Cause::Finished));
}

#[test]
fn who_may_run_in_a_reservation() {
    for (user, asks, users, flags, starts) in [
        ("alice", None, "root", MAINT, false),
        ("root", None, "root", MAINT, false),
        ("root", Some("r1"), "slurm", MAINT, true),
        ("alice", Some("r1"), "alice", MAINT, true),
        ("alice", None, "alice", &[ReservationFlag::Magnetic], true),
        ("alice", None, "root", &[ReservationFlag::Magnetic], false),
    ] {
        let mut c = cluster(1);
        let wanted =
            ReservationRequest { users: vec![users.to_owned()], ..request(None, 10, &["gpu1"], flags) };
        c.create_reservation(wanted, "root").unwrap();
        let spec = JobSpec { user: user.to_owned(), reservation: asks.map(str::to_owned), ..whole(10) };
        let id = c.submit(spec).unwrap();
        assert_eq!(c.job(id).unwrap().state == JobState::Running, starts, "{user} {asks:?} {users}");
    }
}

#[test]
fn creation_is_refused() {
    let past = Some(at(-601));
    for (wanted, error) in [
        (request(past, 10, &["gpu1"], MAINT), Error::InvalidTime),
        (request(None, 10, &["gpu9"], MAINT), Error::InvalidNodeName),
        (
            ReservationRequest { users: vec![], ..request(None, 10, &["gpu1"], MAINT) },
            Error::ReservationEmpty,
        ),
        (
            ReservationRequest { name: Some("old".into()), ..request(None, 10, &["gpu2"], MAINT) },
            Error::ReservationNameTaken,
        ),
        (request(None, 10, &["gpu1", "gpu2"], &[]), Error::ReservationOverlap),
    ] {
        let mut c = cluster(2);
        let old = ReservationRequest { name: Some("old".to_owned()), ..request(None, 10, &["gpu1"], &[]) };
        c.create_reservation(old, "root").unwrap();
        assert_eq!(c.create_reservation(wanted, "root"), Err(error));
    }
    let mut c = cluster(1);
    assert_eq!(c.create_reservation(request(None, 1, &["gpu1"], MAINT), "alice"), Err(Error::InvalidUser));
    c.config_mut().operators.insert("olga".to_owned());
    assert_eq!(c.create_reservation(request(None, 1, &["gpu1"], MAINT), "olga"), Ok("r1".to_owned()));
    assert_eq!(update(&mut c, "gpu1", NodeAction::Drain, "x", "olga"), Err(Error::InvalidUser));
}

#[test]
fn an_active_reservation_changes_its_end_not_its_start() {
    let mut c = cluster(2);
    c.create_reservation(request(None, 10, &["gpu1"], MAINT), "root").unwrap();
    c.advance_to(at(10));
    let start = ReservationChange { start: Some(at(20)), ..Default::default() };
    assert_eq!(c.update_reservation("r1", &start, "root"), Err(Error::ReservationStarted));
    let change = ReservationChange {
        duration: Some(UNLIMITED),
        nodes: Some(ListChange::Add(vec![node("gpu2")])),
        flags: Some(ListChange::Remove(vec![ReservationFlag::IgnoreJobs])),
        ..Default::default()
    };
    c.update_reservation("r1", &change, "root").unwrap();
    let r = c.reservation("r1").unwrap();
    assert_eq!(r.end.duration_since(r.start), s(365 * 86_400));
    assert_eq!(r.nodes.len(), 2);
    assert!(!r.flags.contains(&ReservationFlag::IgnoreJobs));
}

#[test]
fn ignore_jobs_cannot_be_dropped_over_a_running_job() {
    let mut c = cluster(1);
    c.submit(whole(100)).unwrap();
    c.create_reservation(request(None, 10, &["gpu1"], MAINT), "root").unwrap();
    let flags = Some(ListChange::Remove(vec![ReservationFlag::IgnoreJobs]));
    let drop = ReservationChange { flags, ..Default::default() };
    assert_eq!(c.update_reservation("r1", &drop, "root"), Err(Error::NodesBusy));
    c.advance_to(at(100));
    assert_eq!(c.update_reservation("r1", &drop, "root"), Ok(()));
}

#[test]
fn deletion_waits_for_jobs_and_ended_ones_keep_their_name() {
    let mut c = cluster(1);
    c.create_reservation(request(None, 1, &["gpu1"], MAINT), "root").unwrap();
    let id = c.submit(JobSpec { user: "root".into(), reservation: Some("r1".into()), ..whole(30) }).unwrap();
    assert_eq!(c.delete_reservation("r1", "root"), Err(Error::ReservationBusy));
    c.cancel(id, "root").unwrap();
    c.advance_to(at(62));
    assert!(!c.reservation("r1").unwrap().is_active(c.now()));
    let again = request(None, 1, &["gpu1"], MAINT);
    assert_eq!(c.create_reservation(again.clone(), "root"), Err(Error::ReservationNameTaken));
    c.advance_to(at(65));
    assert_eq!(c.create_reservation(again, "root"), Ok("r1".to_owned()));
    assert_eq!(c.delete_reservation("r1", "root"), Ok(()));
    assert_eq!(c.delete_reservation("r1", "root"), Err(Error::ReservationInvalid));
}

#[test]
fn a_dead_slurmd_leaves_its_processes_behind() {
    let mut c = cluster(2);
    let id = c.submit(whole(10_000).on(&["gpu1"])).unwrap();
    c.kill_slurmd(&node("gpu1")).unwrap();
    for (t, shown, job) in [
        (9, "MIXED", "RUNNING"),
        (10, "MIXED+NOT_RESPONDING", "RUNNING"),
        (40, "DOWN+COMPLETING+NOT_RESPONDING", "PENDING+COMPLETING"),
        (41, "DOWN+NOT_RESPONDING", "PENDING"),
    ] {
        c.advance_to(at(t));
        assert_eq!(state(&c, "gpu1"), shown, "at {t}");
        assert_eq!(job_state(&c, id), job, "at {t}");
        assert_eq!(living(&c, "gpu1"), 1, "at {t}");
    }
    update(&mut c, "gpu1", NodeAction::Resume, "", "root").unwrap();
    drain(&mut c, "gpu1");
    assert_eq!((state(&c, "gpu1").as_str(), living(&c, "gpu1")), ("IDLE+DRAIN+NOT_RESPONDING", 1));
    c.start_slurmd(&node("gpu1")).unwrap();
    c.advance_to(at(50));
    assert_eq!((state(&c, "gpu1").as_str(), living(&c, "gpu1")), ("IDLE+DRAIN", 0));
    assert_eq!(c.truth().kills().next().unwrap().cause, Cause::NodeDied(node("gpu1")));
}

#[test]
fn a_node_that_died_comes_back_unless_drained_meanwhile() {
    for (drained, shown) in [(false, "IDLE"), (true, "DOWN+DRAIN")] {
        let mut c = cluster(1);
        c.power_off(&node("gpu1")).unwrap();
        c.advance_to(at(40));
        assert_eq!(state(&c, "gpu1"), "DOWN+NOT_RESPONDING");
        if drained {
            drain(&mut c, "gpu1");
        }
        c.start_slurmd(&node("gpu1")).unwrap();
        c.advance_to(at(42));
        assert_eq!(state(&c, "gpu1"), shown);
    }
}

#[test]
fn shrinking_off_a_hung_node_hides_a_living_process() {
    let mut c = cluster(2);
    let id = c.submit(JobSpec::new("alice", 2, 4, s(1000)).limit(s(2000))).unwrap();
    c.kill_slurmd(&node("gpu2")).unwrap();
    drain(&mut c, "gpu2");
    c.shrink_job(id, &node("gpu2"), "alice").unwrap();
    assert_eq!((state(&c, "gpu2").as_str(), living(&c, "gpu2")), ("IDLE+DRAIN", 1));
}

#[test]
fn a_stopped_controller_notices_later() {
    let mut c = cluster(1);
    let id = c.submit(whole(10)).unwrap();
    c.stop_controller();
    c.advance_to(at(20));
    assert_eq!((job_state(&c, id).as_str(), living(&c, "gpu1")), ("RUNNING", 0));
    assert_eq!(c.submit(whole(1)), Err(Error::ControllerDown));
    c.start_controller(Start::Clean);
    assert_eq!(job_state(&c, id), "COMPLETED+COMPLETING");
    assert_eq!(c.truth().processes()[0].ended_at, Some(at(10)));
}

#[test]
fn what_a_restart_keeps() {
    for (start, shown, jobs, kills) in [
        (Start::Clean, "MIXED+DRAIN", 1, 0),
        (Start::AfterKill, "UNKNOWN+DRAIN", 1, 0),
        (Start::Cold, "UNKNOWN", 0, 1),
    ] {
        let mut c = cluster(1);
        c.submit(whole(1000)).unwrap();
        c.create_reservation(request(None, 10, &["gpu1"], MAINT), "root").unwrap();
        drain(&mut c, "gpu1");
        c.stop_controller();
        c.start_controller(start);
        assert_eq!(state(&c, "gpu1"), shown, "{start:?}");
        assert_eq!(c.jobs().count(), jobs, "{start:?}");
        assert_eq!(c.truth().kills().count(), kills, "{start:?}");
        assert!(c.reservation("r1").is_some(), "{start:?}");
        c.advance_to(at(2));
        assert_eq!(living(&c, "gpu1"), jobs, "{start:?}");
    }
}

#[test]
fn an_older_state_forgets_drains_and_reuses_numbers() {
    let mut c = cluster(2);
    let kept = c.submit(whole(1000).on(&["gpu1"])).unwrap();
    let saved = c.save();
    let lost = c.submit(whole(1000).on(&["gpu2"])).unwrap();
    drain(&mut c, "gpu1");
    c.advance_to(at(10));
    c.restore(&saved);
    c.advance_to(at(13));
    assert_eq!((state(&c, "gpu1").as_str(), job_state(&c, kept).as_str()), ("MIXED", "RUNNING"));
    assert_eq!((living(&c, "gpu1"), living(&c, "gpu2")), (1, 0));
    let kills: Vec<_> = c.truth().kills().map(|k| (k.job, k.cause.clone())).collect();
    assert_eq!(kills, [(lost, Cause::ControllerForgot)]);
    assert_eq!(c.submit(whole(1)).unwrap(), lost);
}

#[test]
fn a_requeued_job_waits_two_minutes() {
    let mut c = cluster(1);
    let id = c.submit(whole(1000)).unwrap();
    c.advance_to(at(10));
    assert_eq!(c.requeue(id, "bob"), Err(Error::AccessDenied));
    c.requeue(id, "root").unwrap();
    assert_eq!(job_state(&c, id), "PENDING+COMPLETING");
    for (t, shown) in [(11, "PENDING"), (129, "PENDING"), (130, "RUNNING")] {
        c.advance_to(at(t));
        assert_eq!(job_state(&c, id), shown, "at {t}");
    }
    assert_eq!(c.job(id).unwrap().restarts, 1);
    assert_eq!(c.truth().kills().next().unwrap().cause, Cause::RequeuedBy("root".to_owned()));
}
