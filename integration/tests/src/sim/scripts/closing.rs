//! Closing goes on where writes fail: no node keeps another one open, and no side the other.

use super::*;

fn unwritable(run: &Run, domain: Domain, node: &str) {
    run.world.lock().unwritable.insert((domain, node.to_owned()));
}

/// Both gates of two nodes are broken open, and the first one can't be closed: the second one is, in the same tick.
#[tokio::test]
async fn a_node_that_cannot_be_closed_keeps_no_other_one_open() {
    for (owner, other) in [(Domain::Slurm, Domain::Kubernetes), (Domain::Kubernetes, Domain::Slurm)] {
        let mut run = adopted(owner).await;
        if owner == Domain::Kubernetes {
            // What is closed by an adoption alone is drained, too.
            assert!(run.world.lock().sides()["gpu4"].0.is_whole());
        }
        unwritable(&run, other, "gpu1");
        for node in ["gpu1", "gpu4"] {
            let mut world = run.world.lock();
            match other {
                Domain::Slurm => world.break_slurm(node),
                Domain::Kubernetes => world.break_kubernetes(node),
            }
        }
        tick(&mut run).await;
        let sides = run.world.lock().sides();
        match other {
            Domain::Slurm => {
                assert!(sides["gpu1"].0.drain.is_none(), "it can't be: {:?}", sides["gpu1"]);
                assert!(sides["gpu4"].0.drained_by_us(), "{:?}", sides["gpu4"]);
            }
            Domain::Kubernetes => {
                assert!(!sides["gpu1"].1.listed, "it can't be: {:?}", sides["gpu1"]);
                assert!(sides["gpu4"].1.listed && sides["gpu4"].1.draining, "{:?}", sides["gpu4"]);
            }
        }
    }
}

/// Both gates of a node are open, and its Kubernetes side refuses to be closed: Slurm is closed in the same tick.
#[tokio::test]
async fn a_side_that_cannot_be_closed_keeps_the_other_one_not_open() {
    let mut run = adopted(Domain::Kubernetes).await;
    unwritable(&run, Domain::Kubernetes, "gpu4");
    run.world.lock().break_slurm("gpu4");
    tick(&mut run).await;
    assert!(record(&run, "gpu4").quarantine.is_some(), "both were open");
    let (slurm, kube) = run.world.lock().sides()["gpu4"].clone();
    assert!(!kube.listed, "{kube:?}");
    assert!(slurm.drained_by_us(), "{slurm:?}");
}

/// Writes that open fail again and again, and are tried ever more seldom; what closes is not put off by that.
#[tokio::test]
async fn an_opening_that_fails_puts_no_closing_off() {
    let mut run = adopted(Domain::Slurm).await;
    start_move(&mut run, "gpu4", Domain::Kubernetes).await;
    until(&mut run, |book| state_of(book, "gpu4") == Some(State::SlurmEmpty)).await;
    unwritable(&run, Domain::Kubernetes, "gpu4");
    let tried = |run: &Run| {
        let opens = |event: &Event| match event {
            Event::Intent { action, .. } => action.opens() == Some(Domain::Kubernetes),
            _ => false,
        };
        events(run).iter().filter(|event| opens(event)).count()
    };
    let before = tried(&run);
    for _ in 0..40 {
        tick(&mut run).await;
    }
    assert_eq!(state_of(&run.world.lock().mirror.book, "gpu4"), Some(State::Releasing));
    let count = tried(&run) - before;
    assert!((3..=6).contains(&count), "after 2, 4, 8, 16 and 32 s: {count}");
    while tried(&run) - before == count {
        tick(&mut run).await;
    }
    // Right after a try that failed both gates are broken open.
    {
        let mut world = run.world.lock();
        world.unwritable.clear();
        world.break_slurm("gpu4");
        world.break_kubernetes("gpu4");
    }
    tick(&mut run).await;
    let (slurm, kube) = run.world.lock().sides()["gpu4"].clone();
    assert!(slurm.drained_by_us() && kube.listed && kube.draining, "{slurm:?} {kube:?}");
}
