//! A scheduler that stays away: nothing opens meanwhile, and people are told.

use kube_mock::{Id, Request};

use super::*;

/// A tick is this long here.
const TICK_S: i64 = 10;

fn slurm_goes_away(run: &Run) {
    let mut world = run.world.lock();
    world.slurm_away_until = world.now() + SignedDuration::from_mins(20);
}

fn is_told(run: &Run) -> bool {
    run.world.lock().mirror.book.alarms.contains_key("unseen/slurm")
}

async fn ticks(run: &mut Run, seconds: i64) {
    for _ in 0..seconds / TICK_S {
        run.world.lock().pass(TICK_S);
        run.tick().await;
        assert_eq!(run.world.lock().failure, None);
    }
}

/// Four minutes are a restart, ten are an alarm; it ends when Slurm is seen again.
#[tokio::test]
async fn a_scheduler_that_stays_away_is_an_alarm_until_it_is_back() {
    let mut run = adopted(Domain::Slurm).await;
    slurm_goes_away(&run);
    ticks(&mut run, 240).await;
    assert!(!is_told(&run));
    ticks(&mut run, 360).await;
    assert!(is_told(&run));
    ticks(&mut run, 660).await;
    assert!(!is_told(&run), "it is back");
}

/// The ledger began while Slurm was away, and the daemon with it: after a restart it knows of no node still. Nothing is
/// written before both sides were seen, and people are told of what keeps it.
#[tokio::test]
async fn a_ledger_without_nodes_waits_for_both_sides_and_tells_why() {
    let mut run = quiet().await;
    slurm_goes_away(&run);
    for _ in 0..2 {
        ticks(&mut run, 400).await;
        assert!(is_told(&run));
        assert!(run.world.lock().sides().values().all(|(_, kubernetes)| !kubernetes.listed));
        run.engine.take().unwrap().stop().unwrap();
    }
    ticks(&mut run, 660).await;
    assert!(!is_told(&run));
}

/// A node of the inventory that Kubernetes does not have yet: looks go on for its marks, and the ledger tells of nothing. (The
/// marks of its neighbours, which bear the epoch of this very daemon, were taken for another leader's.)
#[tokio::test]
async fn a_node_that_is_never_shown_makes_no_lines() {
    let mut run = quiet().await;
    run.world.lock().change(Who::Others, |world| {
        let path = "/api/v1/nodes/gpu1".to_owned();
        world.kube.request(&Request { method: "DELETE".into(), path, ..Request::default() });
    });
    run.engine.take().unwrap().stop().unwrap();
    tick(&mut run).await;
    assert!(run.world.lock().kube.get(&Id::node("gpu1")).is_none());
    adopts(&mut run, "gpu2", Domain::Slurm).await.unwrap();
    until(&mut run, |book| book.record(&NodeName::new("gpu2")).owner() == Some(Domain::Slurm)).await;
    let before = events(&run).len();
    ticks(&mut run, 600).await;
    let events = events(&run);
    assert_eq!(events.len(), before, "{:?}", events.last());
    let started = events.iter().filter(|event| matches!(event, Event::Started { .. })).count();
    assert_eq!(started, 2, "as often as it was started");
}
