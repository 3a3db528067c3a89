//! The look right before an opening: what it alone shows keeps the gate closed, and so does one that can't be believed.

use std::collections::BTreeSet;

use gpu_bridge::daemon::clock::Clock as _;
use gpu_bridge_core::gate::{Emptiness, Gate};
use kube_mock::Id;
use serde_json::json;
use slurm_mock::model::{JobId, JobState};

use super::*;
use crate::sim::people::SPACE;
use crate::sim::world::{Look, World};

const NODE: &str = "gpu4";

/// The next tick opens the node's gate of `to`.
async fn about_to_open(to: Domain) -> Run {
    let mut run = adopted(to.other()).await;
    start_move(&mut run, NODE, to).await;
    until(&mut run, |book| opens_next(book, NODE)).await;
    run
}

fn opens_next(book: &Book, node: &str) -> bool {
    book.handover_of(&NodeName::new(node)).is_some_and(|handover| {
        let once_seen_empty = handover.state == State::KubernetesEmpty && handover.looks.count == 1;
        handover.state == State::SlurmEmpty || once_seen_empty
    })
}

/// After the next look of its kind.
fn then(run: &Run, look: Look, happens: impl FnOnce(&mut World) + Send + 'static) {
    run.world.lock().after_looks.push_back((look, Box::new(happens)));
}

/// After the next look of its kind, others do something.
fn then_others(run: &Run, look: Look, happens: impl FnOnce(&mut World) + Send + 'static) {
    then(run, look, |world| world.change(Who::Others, happens));
}

/// The tick's own look: nothing happens after it.
fn let_pass(run: &Run, look: Look) {
    then(run, look, |_| {});
}

/// The looks that an opening of `to`'s gate goes by.
fn look_at_other(to: Domain) -> Look {
    match to {
        Domain::Slurm => Look::Kubernetes,
        Domain::Kubernetes => Look::Slurm,
    }
}

fn is_open(run: &Run, node: &str, domain: Domain) -> bool {
    let (slurm, kube) = run.world.lock().sides()[node].clone();
    match domain {
        Domain::Slurm => slurm.is_open(),
        Domain::Kubernetes => kube.is_open(),
    }
}

/// What openings were denied for.
fn denials(run: &Run) -> Vec<Denied> {
    let denied = |event: Event| {
        let Event::Outcome { outcome: Outcome::Denied { denied }, .. } = event else { return None };
        Some(denied)
    };
    events(run).into_iter().filter_map(denied).collect()
}

/// One tick, which is to open `to`'s gate, and does not: gives what it said.
async fn denied_in_one_tick(run: &mut Run, to: Domain) -> Denied {
    let permitted = |run: &Run| state_of(&run.world.lock().mirror.book, NODE);
    assert!(!is_open(run, NODE, to));
    tick(run).await;
    assert!(
        matches!(permitted(run), Some(State::Releasing | State::Returning)),
        "by its first look it may open"
    );
    assert!(!is_open(run, NODE, to));
    assert!(run.world.lock().after_looks.is_empty(), "it looked once more");
    let [denied] = &denials(run)[..] else { panic!("{:?}", denials(run)) };
    denied.clone()
}

/// Once nothing is in the way any more the gate opens.
async fn opens_after_all(run: &mut Run, to: Domain) {
    until(run, |book| book.record(&NodeName::new(NODE)).owner() == Some(to)).await;
    assert!(is_open(run, NODE, to));
}

/// Others break the closed side open and work begins there, between the tick's look and the write that opens the other gate.
#[tokio::test]
async fn a_gate_that_was_broken_open_since_the_look_keeps_the_other_one_closed() {
    let mut run = about_to_open(Domain::Kubernetes).await;
    then(&run, Look::Slurm, |world| {
        world.change(Who::Others, |world| {
            break_slurm(world, NODE);
            let spec = JobSpec::new("alice", 4, GPUS, SignedDuration::from_secs(60));
            world.slurm.submit(spec.limit(SignedDuration::from_mins(5))).unwrap();
        });
        world.pass(5);
    });
    let denied = denied_in_one_tick(&mut run, Domain::Kubernetes).await;
    assert!(matches!(denied, Denied::NotClosed { domain: Domain::Slurm, .. }), "{denied:?}");
    assert!(run.world.lock().slurm.jobs().any(|job| job.allocation.contains_key(&NODE.into())), "work began");
    opens_after_all(&mut run, Domain::Kubernetes).await;
}

fn break_slurm(world: &mut World, node: &str) {
    let id = world.mirror.book.record(&NodeName::new(node)).handover.unwrap();
    world.slurm.delete_reservation(&reservation_name(id), ADMIN).unwrap();
    update(world, node, NodeAction::Undrain, None);
}

fn update(world: &mut World, node: &str, action: NodeAction, reason: Option<String>) {
    let update = NodeUpdate { action: Some(action), reason };
    world.slurm.update_node(&node.into(), &update, ADMIN).unwrap();
}

/// The gate is as closed as before: only the job tells.
#[tokio::test]
async fn a_job_that_only_the_second_look_shows_keeps_the_gate_closed() {
    let mut run = about_to_open(Domain::Kubernetes).await;
    let job = std::sync::Arc::new(std::sync::Mutex::new(None::<JobId>));
    let begun = std::sync::Arc::clone(&job);
    then_others(&run, Look::Slurm, move |world| {
        let ours = world.sides()[NODE].0.drain.clone();
        let id = world.mirror.book.record(&NodeName::new(NODE)).handover.unwrap();
        update(world, NODE, NodeAction::Undrain, None);
        // Our reservation is root's.
        let spec = JobSpec {
            reservation: Some(reservation_name(id)),
            ..JobSpec::new("root", 1, GPUS, SignedDuration::from_secs(60))
        };
        let job = world.slurm.submit(spec.limit(SignedDuration::from_mins(5)).on(&[NODE])).unwrap();
        world.pass(5);
        assert_eq!(world.slurm.job(job).unwrap().state, JobState::Running);
        update(world, NODE, NodeAction::Drain, ours);
        *begun.lock().unwrap() = Some(job);
    });
    let denied = denied_in_one_tick(&mut run, Domain::Kubernetes).await;
    let job = job.lock().unwrap().unwrap();
    let Denied::NotEmpty { domain: Domain::Slurm, emptiness: Emptiness::Busy { by } } = &denied else {
        panic!("{denied:?}")
    };
    assert!(by[0].starts_with(&format!("job {job} of root")), "{by:?}");
    opens_after_all(&mut run, Domain::Kubernetes).await;
}

/// As a pod that the scheduler had decided before the closing: it is bound past our list and taints.
#[tokio::test]
async fn a_gpu_pod_that_only_the_second_look_shows_keeps_the_gate_closed() {
    let mut run = about_to_open(Domain::Slurm).await;
    let pod = Id::pod(SPACE, "late");
    let late = pod.clone();
    then_others(&run, Look::Node, move |world| {
        let gpus = json!({"nvidia.com/gpu": GPUS.to_string()});
        let container = json!({"name": "main", "resources": {"requests": gpus, "limits": gpus}});
        let object = json!({
            "metadata": {},
            "spec": {"nodeName": NODE, "containers": [container], "tolerations": [{"operator": "Exists"}]},
            "status": {"phase": "Pending"},
        });
        assert!(world.kube.create(&late, object).is_some());
    });
    let denied = denied_in_one_tick(&mut run, Domain::Slurm).await;
    let Denied::NotEmpty { domain: Domain::Kubernetes, emptiness: Emptiness::Busy { by } } = &denied else {
        panic!("{denied:?}")
    };
    assert!(by[0].contains("default/late"), "{by:?}");
    let path = format!("/api/v1/namespaces/{SPACE}/pods/late");
    run.world.lock().change(Who::Others, |world| {
        let delete = kube_mock::Request { method: "DELETE".into(), path, ..kube_mock::Request::default() };
        world.kube.request(&delete);
    });
    opens_after_all(&mut run, Domain::Slurm).await;
    assert_eq!(run.world.lock().kube.get(&pod), None);
}

/// The backup holds the same marks and no work: by all but its counter the gate may open.
#[tokio::test]
async fn a_backup_of_slurm_restored_since_the_look_keeps_the_gate_closed() {
    let mut run = about_to_open(Domain::Kubernetes).await;
    let backup = run.world.lock().slurm.save();
    submit(&run, 10);
    then_others(&run, Look::Slurm, move |world| world.slurm.restore(&backup));
    let denied = denied_in_one_tick(&mut run, Domain::Kubernetes).await;
    assert!(matches!(denied, Denied::Backwards { domain: Domain::Slurm, .. }), "{denied:?}");
    assert_eq!(backwards(&run), [], "noticing it is the next look's");
    opens_after_all(&mut run, Domain::Kubernetes).await;
    assert_eq!(backwards(&run), [Domain::Slurm]);
}

#[tokio::test]
async fn a_backup_of_kubernetes_restored_since_the_look_keeps_the_gate_closed() {
    let mut run = about_to_open(Domain::Slurm).await;
    let backup = run.world.lock().kube.clone();
    run.world.lock().change(Who::Others, |world| {
        world
            .kube
            .edit(&Id::node("gpu1"), |node| node["metadata"]["labels"]["example.com/rack"] = json!("r2"));
    });
    then_others(&run, Look::Kubernetes, move |world| world.kube = backup);
    let denied = denied_in_one_tick(&mut run, Domain::Slurm).await;
    assert!(matches!(denied, Denied::Backwards { domain: Domain::Kubernetes, .. }), "{denied:?}");
    opens_after_all(&mut run, Domain::Slurm).await;
    assert_eq!(backwards(&run), [Domain::Kubernetes]);
}

#[tokio::test]
async fn a_second_look_that_takes_too_long_opens_nothing() {
    for to in [Domain::Kubernetes, Domain::Slurm] {
        let mut run = about_to_open(to).await;
        let_pass(&run, look_at_other(to));
        then(&run, look_at_other(to), |world| world.pass(11));
        let denied = denied_in_one_tick(&mut run, to).await;
        let Denied::LookTooOld { at, judged_at, .. } = denied else { panic!("{denied:?}") };
        assert_eq!(at.duration_until(judged_at), SignedDuration::from_secs(11));
        opens_after_all(&mut run, to).await;
    }
}

/// A scheduler that went away is not a slow one: the reason tells its words.
#[tokio::test]
async fn a_second_look_without_an_answer_opens_nothing() {
    let last_looks = [
        (Domain::Kubernetes, Look::Slurm, "Slurm is away"),
        (Domain::Slurm, Look::Node, "connection refused"),
    ];
    for (to, last_look, words) in last_looks {
        let mut run = about_to_open(to).await;
        then(&run, last_look, move |world| {
            let away = match to {
                Domain::Slurm => &mut world.kube_away_until,
                Domain::Kubernetes => &mut world.slurm_away_until,
            };
            *away = world.clock.now() + SignedDuration::from_secs(1);
        });
        let denied = denied_in_one_tick(&mut run, to).await;
        let Denied::NotClosed { domain, gate: Gate::Unknown { why } } = &denied else { panic!("{denied:?}") };
        assert_eq!(*domain, to.other());
        assert!(why.contains(words), "{why}");
        opens_after_all(&mut run, to).await;
    }
}

#[tokio::test]
async fn a_tick_that_looked_for_too_long_opens_nothing_and_looks_no_second_time() {
    for to in [Domain::Kubernetes, Domain::Slurm] {
        let mut run = about_to_open(to).await;
        then(&run, look_at_other(to), |world| world.pass(11));
        then(&run, look_at_other(to), |_| {});
        let before = events(&run).len();
        tick(&mut run).await;
        let opens = |event: &Event| matches!(event, Event::Intent { action, .. } if action.opens().is_some());
        assert_eq!(events(&run)[before..].iter().find(|event| opens(event)), None);
        assert_eq!(run.world.lock().after_looks.len(), 1, "no second look");
        assert!(!is_open(&run, NODE, to));
        opens_after_all(&mut run, to).await;
    }
}

/// One look more is for all openings of a tick, as long as it is fresh.
#[tokio::test]
async fn a_second_look_serves_other_openings_for_a_second_and_no_longer() {
    for (seconds, looks_again) in [(1, false), (2, true)] {
        let mut run = adopted(Domain::Slurm).await;
        for node in ["gpu3", NODE] {
            start_move(&mut run, node, Domain::Kubernetes).await;
        }
        until(&mut run, |book| ["gpu3", NODE].iter().all(|node| opens_next(book, node))).await;
        let_pass(&run, Look::Slurm);
        then(&run, Look::Slurm, move |world| {
            if looks_again {
                world.change(Who::Others, |world| break_slurm(world, NODE));
            }
            world.pass(seconds);
        });
        let_pass(&run, Look::Slurm);
        tick(&mut run).await;
        let opened: BTreeSet<&str> =
            ["gpu3", NODE].into_iter().filter(|node| is_open(&run, node, Domain::Kubernetes)).collect();
        if looks_again {
            assert_eq!(opened, BTreeSet::from(["gpu3"]));
            assert!(matches!(denials(&run)[..], [Denied::NotClosed { domain: Domain::Slurm, .. }]));
        } else {
            assert_eq!(opened, BTreeSet::from(["gpu3", NODE]));
        }
        assert_eq!(run.world.lock().after_looks.is_empty(), looks_again);
        run.world.lock().after_looks.clear();
        opens_after_all(&mut run, Domain::Kubernetes).await;
    }
}
