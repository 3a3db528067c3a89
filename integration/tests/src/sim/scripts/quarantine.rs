//! Quarantine: it ends by an adoption and by nothing else, whatever the disk takes and whenever the daemon dies.

use std::collections::BTreeSet;

use kube_mock::Id;
use serde_json::json;

use super::*;
use crate::sim::world::{KubeSide, SlurmSide};

const NODE: &str = "gpu4";

/// Both gates of a node of Slurm's are broken open.
async fn quarantined(node: &'static str) -> Run {
    let mut run = adopted(Domain::Slurm).await;
    run.world.lock().break_kubernetes(node);
    until(&mut run, |book| book.record(&NodeName::new(node)).quarantine.is_some()).await;
    run
}

/// It can't roll back (what was found is in doubt), and could only wait for a job that nobody ends.
#[tokio::test]
async fn an_adoption_out_of_quarantine_begins_anew_with_another_owner() {
    let mut run = quarantined("gpu4").await;
    let wrong = adopts(&mut run, "gpu4", Domain::Kubernetes).await.unwrap();
    for _ in 0..3 {
        tick(&mut run).await;
    }
    let again = adopts(&mut run, "gpu4", Domain::Kubernetes).await;
    assert!(matches!(again, Err(Denied::InHandover { handover, .. }) if handover == wrong), "{again:?}");
    let right = adopts(&mut run, "gpu4", Domain::Slurm).await.unwrap();
    assert!(right > wrong);
    until(&mut run, |book| book.record(&NodeName::new("gpu4")).owner() == Some(Domain::Slurm)).await;
    let book = run.world.lock().mirror.book.clone();
    assert_eq!(book.handovers[&wrong].state, State::RolledBack);
    // Nothing of the wrong one is left behind.
    until_rest(&mut run).await;
}

/// The disk is full when both gates are seen open: the node is closed and in quarantine, and the ledger tells it later.
#[tokio::test]
async fn a_quarantine_decided_while_the_disk_is_full_holds() {
    let mut run = adopted(Domain::Slurm).await;
    {
        let mut world = run.world.lock();
        world.disk_bad_until = Some(world.now() + SignedDuration::from_hours(1));
        world.disk.full_at(Some(world.disk.bytes().len()));
        world.break_kubernetes("gpu4");
    }
    for _ in 0..3 {
        tick(&mut run).await;
    }
    let in_memory =
        |run: &Run| run.engine.as_ref().unwrap().journal().book().record(&NodeName::new("gpu4")).quarantine;
    assert!(in_memory(&run).is_some());
    assert_eq!(record(&run, "gpu4").quarantine, None, "not on the disk");
    let (_, kube) = run.world.lock().sides()["gpu4"].clone();
    assert!(kube.listed && kube.draining, "{kube:?}");
    run.world.lock().mend_disk();
    tick(&mut run).await;
    assert_eq!(record(&run, "gpu4").quarantine, in_memory(&run));
    assert!(in_memory(&run).is_some());
}

fn sides(run: &Run) -> (SlurmSide, KubeSide) {
    run.world.lock().sides()[NODE].clone()
}

/// The disk takes so many bytes more.
fn fill_disk(run: &Run, room: usize) {
    let mut world = run.world.lock();
    world.disk_bad_until = Some(world.now() + SignedDuration::from_hours(1));
    world.disk.full_at(Some(world.disk.bytes().len() + room));
}

/// `kill -9`: what stands in memory only is gone.
fn kill(run: &mut Run) {
    drop(run.engine.take());
}

/// A person takes our taints off the Node.
fn take_taints(run: &Run) {
    run.world.lock().change(Who::Others, |world| {
        world.kube.edit(&Id::node(NODE), |node| node["spec"]["taints"] = json!([]));
    });
}

/// How far the ledger tells of an adoption out of quarantine.
fn told(run: &Run, since: usize) -> Vec<&'static str> {
    let name = |event: &Event| match event {
        Event::QuarantineEnded { .. } => Some("ended"),
        Event::Found { .. } => Some("found"),
        Event::Planned(_) => Some("planned"),
        _ => None,
    };
    events(run)[since..].iter().filter_map(name).collect()
}

/// In quarantine, by the ledger, with nothing opened and no pod killed.
fn assert_held(run: &Run, what: &str) {
    let (slurm, kube) = sides(run);
    assert!(kube.listed && kube.draining && !kube.sealed, "{what}: {slurm:?} {kube:?}");
    assert!(record(run, NODE).quarantine.is_some(), "{what}");
}

/// The disk is full after each number of bytes: before, between and after the lines that begin the adoption.
#[tokio::test]
async fn an_adoption_that_cannot_be_recorded_leaves_the_quarantine() {
    for daemon_dies in [false, true] {
        let mut seen = BTreeSet::new();
        for room in (0..=1_600).step_by(100) {
            let mut run = quarantined(NODE).await;
            let before = events(&run).len();
            fill_disk(&run, room);
            let asked = ask(&mut run, adopt(NODE, Domain::Slurm)).await;
            seen.insert(told(&run, before));
            let what = format!("{room} bytes, {:?}, daemon dies: {daemon_dies}", told(&run, before));
            if asked.is_ok() {
                continue;
            }
            if daemon_dies {
                kill(&mut run);
            }
            for _ in 0..3 {
                tick(&mut run).await;
            }
            run.world.lock().mend_disk();
            run.world.lock().pass(60);
            for _ in 0..3 {
                tick(&mut run).await;
            }
            assert_held(&run, &what);
            take_taints(&run);
            for _ in 0..3 {
                tick(&mut run).await;
            }
            assert_held(&run, &what);
            adopts(&mut run, NODE, Domain::Slurm).await.unwrap();
            until_rest(&mut run).await;
        }
        let all: [&[&str]; 4] = [&[], &["ended"], &["ended", "found"], &["ended", "found", "planned"]];
        assert!(all.iter().all(|told| seen.contains(*told)), "{seen:?}");
    }
}

/// The machine dies at each operation on the disk while the adoption is begun.
#[tokio::test]
async fn a_death_while_an_adoption_begins_leaves_the_quarantine_or_the_adoption() {
    let mut seen = BTreeSet::new();
    for operation in 0..8 {
        let mut run = quarantined(NODE).await;
        let before = events(&run).len();
        {
            let world = run.world.lock();
            world.disk.crash_at(world.disk.operations() + operation, 0);
        }
        let asked = ask(&mut run, adopt(NODE, Domain::Slurm)).await;
        if asked.is_ok() {
            break;
        }
        tick(&mut run).await;
        assert!(run.engine.is_none());
        run.world.lock().pass(300);
        run.tick().await;
        let told = told(&run, before);
        let record = record(&run, NODE);
        assert!(record.quarantine.is_some() || record.handover.is_some(), "{told:?}: {record:?}");
        if record.handover.is_none() {
            assert_held(&run, &format!("{told:?}"));
            adopts(&mut run, NODE, Domain::Slurm).await.unwrap();
        }
        seen.insert(told);
        until_rest(&mut run).await;
    }
    let all: [&[&str]; 3] = [&[], &["ended"], &["ended", "found"]];
    assert!(all.iter().all(|told| seen.contains(*told)), "{seen:?}");
}

/// Others take all our marks off the side that does not own the node.
fn break_closed_side(run: &Run, owner: Domain) {
    let mut world = run.world.lock();
    match owner {
        Domain::Slurm => world.break_kubernetes(NODE),
        Domain::Kubernetes => world.break_slurm(NODE),
    }
}

/// Both gates are seen open while the disk takes nothing, and the daemon is killed before it is mended: no line ever told
/// of the quarantine. Its marks do.
#[tokio::test]
async fn a_quarantine_that_was_never_written_is_read_off_the_marks() {
    for owner in [Domain::Slurm, Domain::Kubernetes] {
        let mut run = adopted(owner).await;
        fill_disk(&run, 0);
        break_closed_side(&run, owner);
        for _ in 0..3 {
            tick(&mut run).await;
        }
        assert_eq!(record(&run, NODE).quarantine, None, "not on the disk");
        let closed = sides(&run);
        assert!(closed.1.listed && closed.1.draining && !closed.1.sealed, "{closed:?}");
        kill(&mut run);
        // On a full disk it does not start.
        for _ in 0..3 {
            run.world.lock().pass(60);
            tick(&mut run).await;
        }
        assert!(run.engine.is_none());
        assert_eq!(sides(&run), closed);
        run.world.lock().mend_disk();
        run.world.lock().pass(60);
        for _ in 0..10 {
            tick(&mut run).await;
            assert_held(&run, &format!("{owner}'s"));
        }
        assert_eq!(sides(&run), closed);
        adopts(&mut run, NODE, owner).await.unwrap();
        until_rest(&mut run).await;
    }
}

/// The ledger knows how that quarantine ended: a start in the middle of the adoption does not go by its marks.
#[tokio::test]
async fn a_quarantine_that_an_adoption_ends_is_not_read_off_the_marks() {
    for owner in [Domain::Slurm, Domain::Kubernetes] {
        let mut run = quarantined(NODE).await;
        let adoption = adopts(&mut run, NODE, owner).await.unwrap();
        for _ in 0..TICKS {
            if record(&run, NODE).handover != Some(adoption) {
                break;
            }
            kill(&mut run);
            tick(&mut run).await;
            tick(&mut run).await;
            assert_eq!(record(&run, NODE).quarantine, None);
        }
        kill(&mut run);
        until_rest(&mut run).await;
        assert_eq!(record(&run, NODE).owner(), Some(owner));
    }
}

/// The ledger is restored from when the node was being released. Since then it was adopted anew, and given to Kubernetes.
#[tokio::test]
async fn a_release_that_only_an_older_ledger_knows_of_does_not_open_the_node() {
    let of = |owner| {
        move |book: &Book| {
            let record = book.record(&NodeName::new(NODE));
            record.owner() == Some(owner) && record.handover.is_none()
        }
    };
    let mut run = adopted(Domain::Slurm).await;
    let mode = gpu_bridge_core::event::ReleaseMode::Plain;
    let nodes = vec![NodeName::new(NODE)];
    ask(&mut run, Command::Release { nodes, mode, go: Go::Yes }).await.unwrap();
    let old = run.world.lock().disk.bytes();
    until(&mut run, |book| book.record(&NodeName::new(NODE)).owner().is_none()).await;
    adopts(&mut run, NODE, Domain::Slurm).await.unwrap();
    until(&mut run, of(Domain::Slurm)).await;
    start_move(&mut run, NODE, Domain::Kubernetes).await;
    until(&mut run, of(Domain::Kubernetes)).await;
    run.engine.take().unwrap().stop().unwrap();
    run.world.lock().disk = gpu_bridge::ledger::SimDisk::holding(&old);
    for _ in 0..10 {
        tick(&mut run).await;
        let (slurm, kube) = sides(&run);
        assert!(slurm.is_whole(), "{slurm:?} {kube:?}");
    }
    assert!(record(&run, NODE).quarantine.is_some());
    adopts(&mut run, NODE, Domain::Kubernetes).await.unwrap();
    until(&mut run, of(Domain::Kubernetes)).await;
}

/// An older ledger, and both schedulers away at the start: the adoption's own look would be the first to see marks whose
/// ids the ledger does not know, and one of those would be given out again.
#[tokio::test]
async fn nothing_is_adopted_or_released_before_marks_were_read() {
    let mut run = quiet().await;
    let old = run.world.lock().disk.bytes();
    adopts(&mut run, NODE, Domain::Slurm).await.unwrap();
    until(&mut run, |book| book.record(&NodeName::new(NODE)).owner() == Some(Domain::Slurm)).await;
    let used = run.world.lock().mirror.book.highest_handover;
    run.engine.take().unwrap().stop().unwrap();
    {
        let mut world = run.world.lock();
        world.disk = gpu_bridge::ledger::SimDisk::holding(&old);
        let until = world.now() + SignedDuration::from_secs(30);
        (world.slurm_away_until, world.kube_away_until) = (until, until);
    }
    tick(&mut run).await;
    run.world.lock().pass(60);
    let mode = gpu_bridge_core::event::ReleaseMode::Plain;
    for go in [Go::Plan, Go::Yes] {
        let nodes = vec![NodeName::new("gpu1")];
        let adopts = Command::Adopt { nodes: nodes.clone(), owner: None, go };
        let releases = Command::Release { nodes, mode, go };
        for command in [adopts, releases] {
            let asked = ask(&mut run, command).await;
            assert!(matches!(asked, Err(Refusal::Away { .. })), "{asked:?}");
        }
    }
    tick(&mut run).await;
    let next = adopts(&mut run, "gpu1", Domain::Slurm).await.unwrap();
    assert!(Some(next) > used, "{next} after {used:?}");
}
