//! The Kubernetes half of design's table of closed and empty, one deviation a row.

use super::*;
use crate::facts::kubernetes::{Eviction, GateObject};
use crate::fixtures::*;
use crate::handover::State;
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
fn closed_is_the_gate_list_with_its_policy_and_both_taints() {
    let rows: &[Row<Is>] = &[
        ("as it should be", |_| {}, Is::Closed),
        ("not Ready as well", |c| c.kube_node().ready = Ready::False, Is::Closed),
        ("could not look", |c| c.facts.kubernetes = Seen::unknown("timeout"), Is::Unknown),
        ("Node missing", |c| _ = c.kubernetes().nodes.swap_remove(&k(1)), Is::Unknown),
        (
            "not on the list",
            |c| _ = c.kubernetes().gate.as_mut().unwrap().closed.swap_remove(&k(1)),
            Is::Weakened,
        ),
        ("no Gate", |c| c.kubernetes().gate = None, Is::Weakened),
        ("without NoSchedule", |c| c.untaint(TAINT_DRAINING), Is::Weakened),
        ("without NoExecute", |c| c.untaint(TAINT_SLURM), Is::Weakened),
        (
            "our key with a weaker effect",
            |c| {
                c.untaint(TAINT_SLURM);
                c.kube_node().taints.push(taint(TAINT_SLURM, Effect::PreferNoSchedule));
            },
            Is::Weakened,
        ),
        ("bindings policy missing", |c| c.kubernetes().guards.bindings = GuardState::Missing, Is::Weakened),
        (
            "bindings policy altered",
            |c| {
                c.kubernetes().guards.bindings = GuardState::Altered { what: "failurePolicy".into() };
            },
            Is::Weakened,
        ),
        ("another policy missing", |c| c.kubernetes().guards.pods = GuardState::Missing, Is::Closed),
        (
            "none",
            |c| {
                c.kubernetes().gate = Some(GateObject::default());
                c.kube_node().taints.clear();
            },
            Is::Open,
        ),
        (
            "only others' taints",
            |c| {
                c.kubernetes().gate = None;
                c.kube_node().taints = vec![pool_taint()];
            },
            Is::Open,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::of_slurm();
        alter(&mut case);
        case.judge(|view| assert_eq!(kind(&view.kubernetes), *expected, "{row}: {}", view.kubernetes));
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Has {
    Nothing,
    Work,
    Unknown,
}

#[test]
fn empty_is_no_holder_no_surprise_and_a_living_kubelet() {
    let rows: &[Row<Has>] = &[
        ("as it should be", |_| {}, Has::Nothing),
        ("could not look at Nodes", |c| c.facts.kubernetes = Seen::unknown("timeout"), Has::Unknown),
        ("could not LIST", |c| c.look = Seen::unknown("timeout"), Has::Unknown),
        ("Node missing", |c| _ = c.kubernetes().nodes.swap_remove(&k(1)), Has::Unknown),
        ("Ready=False", |c| c.kube_node().ready = Ready::False, Has::Unknown),
        ("Ready=Unknown", |c| c.kube_node().ready = Ready::Unknown, Has::Unknown),
        ("a running pod", |c| c.node_look().holders.push(holder(pod("a", Eviction::Allowed))), Has::Work),
        (
            "a protected pod",
            |c| {
                c.node_look().holders.push(holder(pod("a", Eviction::Protected { by: "annotation".into() })));
            },
            Has::Work,
        ),
        (
            "a terminating pod",
            |c| c.node_look().holders.push(holder(pod("a", Eviction::Terminating))),
            Has::Work,
        ),
        ("a nominated pod", |c| c.node_look().holders.push(holder(pod("a", Eviction::Nominated))), Has::Work),
        (
            "a GPU DaemonSet's pod",
            |c| c.node_look().holders.push(holder(pod("a", Eviction::Pinned))),
            Has::Work,
        ),
        (
            "an unused claim",
            |c| {
                c.node_look()
                    .holders
                    .push(Holder::Claim { claim: "apps/c".into(), why: "allocated here".into() });
            },
            Has::Work,
        ),
        (
            "a CPU pod that NoExecute would evict",
            |c| c.node_look().others.push(pod("a", Eviction::Allowed)),
            Has::Work,
        ),
        ("NoExecute not on", |c| c.untaint(TAINT_SLURM), Has::Work),
        ("NoSchedule not on", |c| c.untaint(TAINT_DRAINING), Has::Nothing),
        ("no Lease", |c| c.kube_node().lease_renewed_at = None, Has::Unknown),
        ("Lease as old as the last holder", |c| c.kube_node().lease_renewed_at = Some(at(8)), Has::Unknown),
        ("Lease older than the last holder", |c| c.kube_node().lease_renewed_at = Some(at(7)), Has::Unknown),
        (
            "no holder ever seen",
            |c| {
                c.current().lease_at_last_holder = None;
                c.kube_node().lease_renewed_at = Some(at(7));
            },
            Has::Nothing,
        ),
    ];
    for (row, alter, expected) in rows {
        let mut case = Case::to_slurm(State::KubernetesEmpty);
        alter(&mut case);
        case.judge(|view| {
            let has = match &view.emptiness(Domain::Kubernetes) {
                Emptiness::Empty => Has::Nothing,
                Emptiness::Busy { .. } => Has::Work,
                Emptiness::Unknown { .. } => Has::Unknown,
            };
            assert_eq!(has, *expected, "{row}: {}", view.emptiness(Domain::Kubernetes));
        });
    }
}
