//! The safety rule against a world that does not help: a node whose two sides are modelled here, with people who take
//! marks away, jobs that are shrunk off it, kubelets that freeze, looks that fail, effects that are lost or come late,
//! and a daemon that crashes. What is asserted is asserted on the world's own truth, not on what was observed.

mod daemon;
mod happenings;
mod run;
mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::event::Event;
use crate::facts::Seen;
use crate::fixtures::n;
use crate::gate::Gate;
use crate::handover::{Event as Step, State};
use crate::ids::HandoverId;
use crate::mark::{TAINT_DRAINING, TAINT_SLURM};
use crate::model::Domain;
use crate::step::next_event;
use happenings::Happening;
use run::{Fate, Op, Run, op};
use world::{GRACE_TICKS, Pod};

proptest! {
    #![proptest_config(Config { cases: 64, max_shrink_iters: 300, failure_persistence: None, ..Config::default() })]

    /// 64 runs of 100 to 300 steps, some 12,000 altogether, from either owner.
    #[test]
    fn the_rule_holds_in_a_hostile_world(
        of_slurm in any::<bool>(),
        registered_with in prop::sample::subsequence(vec![TAINT_SLURM, TAINT_DRAINING], 0..=2),
        ops in prop::collection::vec(op(), 100..300),
    ) {
        let mut run = Run::new(if of_slurm { Domain::Slurm } else { Domain::Kubernetes }, &registered_with);
        for op in &ops {
            run.op(op)?;
        }
        // Left alone, it ends with one owner whose gate is open, and the other's closed.
        run.settle(300)?;
        let record = run.daemon.book.record(&n(1));
        prop_assert_eq!(
            record.handover, None,
            "{:?} in {:?} after {:?}",
            run.daemon.book.handover_of(&n(1)), run.world, run.daemon.last_events()
        );
        if let Some(owner) = record.owner() {
            let facts = run.world.facts();
            let gates = run.daemon.view(
                run.world.now, &facts, &Seen::unknown("not asked"), &Seen::unknown("not asked"),
                |view| (view.gate(owner).clone(), view.gate(owner.other()).clone()),
            );
            prop_assert_eq!(gates, (Gate::Open, Gate::Closed), "owner {}: {:?}", owner, run.world);
        }
    }
}

/// The model is no good if nothing ever gets through in it.
#[test]
fn in_a_kind_world_a_node_goes_both_ways() {
    let mut run = Run::new(Domain::Slurm, &[]);
    run.settle(20).unwrap();
    for _ in 0..3 {
        run.op(&Op::Plan { ticks: 1000 }).unwrap();
        run.settle(30).unwrap();
    }
    assert_eq!(run.opened, BTreeMap::from([(Domain::Slurm, 2), (Domain::Kubernetes, 2)]));
    assert_eq!(run.daemon.book.highest_handover, Some(HandoverId(4)));
}

/// A job that broke in while pods were being evicted was neither told of nor noted: shrunk off the node, it was no reason
/// against opening Kubernetes again when the handover rolled back.
#[test]
fn a_job_that_breaks_in_during_an_eviction_is_noted_and_keeps_kubernetes_closed() {
    let mut run = Run::new(Domain::Kubernetes, &[]);
    run.settle(20).unwrap();
    run.happen(Happening::PodDecided);
    run.happen(Happening::PodBound);
    run.happen(Happening::KubeletFreezes);
    run.op(&Op::Plan { ticks: 1000 }).unwrap();
    run.calm_ticks(4).unwrap();
    let under_way = |run: &Run| run.daemon.book.handover_of(&n(1)).unwrap().clone();
    assert_eq!(under_way(&run).state, State::Evicting);
    run.break_slurm_open();
    run.happen(Happening::JobStarts);
    run.calm_ticks(1).unwrap();
    assert_eq!(under_way(&run).jobs_seen.len(), 1);
    assert!(run.daemon.book.record(&n(1)).quarantine.is_some());
    run.happen(Happening::JobShrunk);
    run.happen(Happening::KubeletThaws);
    run.daemon.log(
        run.world.now,
        Event::Handover { id: under_way(&run).id, event: Step::RollBack { why: "cancelled".into() } },
    );
    run.calm_ticks(30).unwrap();
    assert!(run.world.gpu_work_of_slurm() && !run.world.kubernetes_starts_work(), "{:?}", run.world);
}

/// A live kubelet lets a pod end by its grace after its object is gone. The Slurm gate waits for that, also where the pod is
/// force-deleted while it ends in order.
#[test]
fn a_force_deleted_pod_holds_the_node_for_its_grace() {
    for evicted_before in [false, true] {
        let mut run = Run::new(Domain::Kubernetes, &[]);
        run.settle(20).unwrap();
        run.world.pods.push(Pod::running("a".into()));
        run.op(&Op::Plan { ticks: 1000 }).unwrap();
        while run.noted().pods.is_empty() {
            run.settle(1).unwrap();
        }
        if evicted_before {
            while !run.world.pods[0].terminating {
                run.settle(1).unwrap();
            }
        }
        run.happen(Happening::PodForceDeleted);
        assert!(!run.world.pods[0].listed, "{evicted_before}");
        // Each tick asserts that no gate opens while it lives.
        let mut waited = 0;
        while !run.world.pods.is_empty() {
            run.settle(1).unwrap();
            waited += 1;
        }
        assert!(waited >= GRACE_TICKS, "{waited}");
        run.settle(10).unwrap();
        assert_eq!(run.opened, BTreeMap::from([(Domain::Kubernetes, 1), (Domain::Slurm, 1)]));
    }
}

/// A pod that is force-deleted on a node in quarantine, where no handover has noted it, holds the adoption that ends it.
#[test]
fn a_pod_seen_in_quarantine_holds_the_adoption_that_ends_it() {
    let mut run = Run::new(Domain::Kubernetes, &[]);
    run.settle(20).unwrap();
    run.world.pods.push(Pod::running("a".into()));
    run.daemon.log(run.world.now, Event::Quarantined { node: n(1), why: "odd".into() });
    run.calm_ticks(1).unwrap();
    run.world.pods[0].listed = false;
    run.daemon.log(run.world.now, Event::QuarantineEnded { node: n(1) });
    run.adopt(Domain::Slurm);
    let mut waited = 0;
    while !run.world.pods.is_empty() {
        run.settle(1).unwrap();
        assert!(!run.world.slurm_starts_work(), "its process lives");
        waited += 1;
    }
    assert!(waited >= GRACE_TICKS, "{waited}");
    run.settle(20).unwrap();
    assert!(run.world.slurm_starts_work());
}

/// Kubernetes was opened by a write that came late, after a job had broken in and was shrunk off: the handover ended, its
/// jobs were forgotten as "seen empty", and Kubernetes stayed open beside the process with nobody told.
#[test]
fn a_job_that_is_noted_and_unfinished_is_not_forgotten_when_a_late_write_opens() {
    let mut run = Run::new(Domain::Slurm, &[]);
    run.settle(20).unwrap();
    run.op(&Op::Plan { ticks: 1000 }).unwrap();
    let state = |run: &Run| run.daemon.book.handover_of(&n(1)).map(|handover| handover.state);
    while state(&run) != Some(State::SlurmEmpty) {
        run.calm_ticks(1).unwrap();
    }
    while state(&run) == Some(State::SlurmEmpty) || state(&run) == Some(State::Canary) {
        run.op(&Op::Tick { slurm: true, kubernetes: true, look: true, between: None, fate: Fate::Lost })
            .unwrap();
    }
    assert_eq!(state(&run), Some(State::Releasing));
    // What was written and is not answered yet.
    let opened = run.world.clone();
    run.break_slurm_open();
    run.happen(Happening::JobStarts);
    run.calm_ticks(1).unwrap();
    run.happen(Happening::JobShrunk);
    run.calm_ticks(1).unwrap();
    assert_eq!(state(&run), Some(State::Releasing));
    run.world.listed = false;
    run.world.node.taints.clear();
    run.world.gate_version = opened.gate_version + 5;
    run.world.node_version = opened.node_version + 5;
    for _ in 0..3 {
        let (facts, now) = (run.world.facts(), run.world.now);
        let unasked = Seen::unknown("not asked");
        while let Some(event) =
            run.daemon.view(now, &facts, &unasked, &Seen::unknown("not asked"), next_event)
        {
            let id = run.daemon.book.handover_of(&n(1)).unwrap().id;
            run.daemon.log(now, Event::Handover { id, event });
        }
        run.world.pass_time();
    }
    let record = run.daemon.book.record(&n(1));
    assert_eq!(record.owner(), Some(Domain::Kubernetes), "{:?}", run.daemon.last_events());
    let (facts, now, unasked) = (run.world.facts(), run.world.now, Seen::unknown("not asked"));
    let violation =
        run.daemon.view(now, &facts, &unasked, &Seen::unknown("not asked"), crate::safety::violation);
    assert!(violation.is_some_and(|why| why.contains("was seen here and is unfinished")));
}

/// Found closed by one mark alone, adopted, that mark (or ours over it) taken away by somebody, and rolled back: ours are
/// what keeps it closed, and go only when what was found stands again.
#[test]
fn an_adoption_that_comes_to_nothing_puts_back_what_somebody_took_away() {
    let rolled_back = |run: &mut Run| {
        run.op(&Op::Cancel).unwrap();
        // Each tick asserts the rule.
        for _ in 0..5 {
            let op = Op::Tick { slurm: true, kubernetes: true, look: true, between: None, fate: Fate::Done };
            run.op(&op).unwrap();
        }
    };

    let mut run = Run::unadopted();
    run.world.listed = true;
    run.adopt(Domain::Slurm);
    run.calm_ticks(2).unwrap();
    run.happen(Happening::Unlisted);
    assert!(!run.world.listed && run.world.has_taint(TAINT_SLURM));
    rolled_back(&mut run);
    assert!(run.world.listed && !run.world.has_taint(TAINT_SLURM), "{:?}", run.world);

    let mut run = Run::unadopted();
    run.happen(Happening::DrainedByHand);
    run.adopt(Domain::Kubernetes);
    run.calm_ticks(3).unwrap();
    run.happen(Happening::Undrained);
    assert!(run.world.drain.is_none() && run.world.reserved_for_us());
    rolled_back(&mut run);
    assert!(run.world.is_drained_by_hand() && run.world.reservations.is_empty(), "{:?}", run.world);
}
