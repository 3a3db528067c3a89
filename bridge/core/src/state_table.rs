//! The table of docs/slurm-node-states.md: what Slurm may show of a node, times whose drain stands on it, and what follows.
//! `UPDATE_EXPECT=1 cargo test -p gpu-bridge-core state_table` writes it anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::event::Action;
use crate::facts::slurm::{self, BaseState, Node, NodeFlag};
use crate::fixtures::*;
use crate::gate::{Emptiness, Gate};
use crate::handover::State;
use crate::ids::{Epoch, HandoverId};
use crate::mark::DrainReason;
use crate::model::Domain;
use crate::safety;
use crate::want::actions;

const HEAD: &str = "\
# What Slurm shows of a node, and what we do

Slurm's words for a node are a base state and flags. Who drained it is told by the DRAIN flag *and* its reason: ours begins with
`gpu-bridge` and names a handover, every other one is theirs, and theirs is never taken away or written over. (What was found at
adoption is: it stands in the ledger, and comes back.) A word that is not in this table is as the last rows.

- **taken:** may a plan choose it, while it is a node of Slurm's?
- **empty:** leaving Slurm, with no job on it and our reservation standing: does it count as empty? Kubernetes opens where it does
  in two looks in a row, and the Slurm gate reads closed besides, which it never does under a drain of theirs.
- **a node of Kubernetes':** what its Slurm gate reads, our reservation standing, and what the next tick writes.
- **coming home:** Kubernetes is closed and empty: what the next tick writes, and whether the handover then ends. No write but UNDRAIN
  is made: RESUME would bring back a node that somebody set DOWN. What they drained is theirs to bring back.

The table is written and held by a test over the rules themselves (`bridge/core/src/state_table.rs`).

| Slurm shows | drain | taken | empty | a node of Kubernetes' | coming home |
|---|---|---|---|---|---|
";

/// Base state and flag, in Slurm's words and in ours.
fn states() -> Vec<(&'static str, BaseState, Option<NodeFlag>)> {
    let flag = |words, flag| (words, BaseState::Idle, Some(flag));
    vec![
        ("IDLE", BaseState::Idle, None),
        ("MIXED", BaseState::Mixed, None),
        ("ALLOCATED", BaseState::Allocated, None),
        ("DOWN", BaseState::Down, None),
        ("ERROR", BaseState::Error, None),
        ("FUTURE", BaseState::Future, None),
        ("UNKNOWN", BaseState::Unknown, None),
        flag("IDLE+COMPLETING", NodeFlag::Completing),
        flag("IDLE+PLANNED", NodeFlag::Planned),
        flag("IDLE+RESERVED", NodeFlag::Reserved),
        flag("IDLE+MAINTENANCE", NodeFlag::Maintenance),
        flag("IDLE+CLOUD", NodeFlag::Cloud),
        flag("IDLE+DYNAMIC_NORM", NodeFlag::DynamicNorm),
        flag("IDLE+NOT_RESPONDING", NodeFlag::NotResponding),
        flag("IDLE+FAIL", NodeFlag::Fail),
        flag("IDLE+INVALID_REG", NodeFlag::InvalidReg),
        flag("IDLE+REBOOT_REQUESTED, REBOOT_ISSUED", NodeFlag::Reboot),
        flag("IDLE+POWERED_DOWN, POWERING_UP, POWERING_DOWN …", NodeFlag::Power),
        flag("IDLE+ another flag", NodeFlag::Other("NEW".into())),
        ("another state", BaseState::Other("NEW".into()), None),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Drained {
    No,
    ByUs,
    ByThem,
}

impl Drained {
    const ALL: [Self; 3] = [Self::No, Self::ByUs, Self::ByThem];

    fn words(self) -> &'static str {
        match self {
            Self::No => "none",
            Self::ByUs => "ours",
            Self::ByThem => "theirs",
        }
    }

    fn stand_on(self, node: &mut Node, handover: HandoverId) {
        let ours = DrainReason { handover, epoch: Epoch(1), why: "test".into() }.to_string();
        (node.reason, _) = match self {
            Self::No => (None, node.flags.remove(&NodeFlag::Drain)),
            Self::ByUs => (reason(ours), node.flags.insert(NodeFlag::Drain)),
            Self::ByThem => (reason("bad fan"), node.flags.insert(NodeFlag::Drain)),
        };
    }
}

fn writes(case: &Case) -> String {
    let word = |action: &Action| match action {
        Action::Slurm(slurm::Action::Drain { .. }) => "drain",
        Action::Slurm(slurm::Action::Undrain { .. }) => "undrain",
        Action::Slurm(slurm::Action::Reserve(_)) => "reserve",
        Action::Slurm(slurm::Action::Unreserve { .. }) => "delete our reservation",
        Action::Kubernetes(_) => "write on the Node",
    };
    let words: Vec<_> = case.judge(actions).iter().map(word).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

fn empty(case: &Case) -> String {
    case.judge(|view| match view.emptiness(Domain::Slurm) {
        Emptiness::Empty => "yes".to_owned(),
        Emptiness::Busy { by } => format!("no: {}", by.join(", ")),
        Emptiness::Unknown { why } => format!("unknown: {why}"),
    })
}

fn held(case: &Case) -> String {
    let reads = case.judge(|view| match &view.slurm {
        Gate::Closed => "closed".to_owned(),
        Gate::Open => "open".to_owned(),
        Gate::Weakened { missing } => format!("weakened: {}", missing.join(", ")),
        Gate::Unknown { why } => format!("unknown: {why}"),
    });
    format!("{reads}; {}", writes(case))
}

fn home(case: &Case) -> String {
    let writes = writes(case);
    let ends = case.judge(|view| match safety::delivered_to_slurm(view) {
        Ok(()) => "ends".to_owned(),
        Err(denied) => format!("waits: {denied}"),
    });
    format!("{writes}; {ends}")
}

#[test]
fn every_state_with_every_drain_has_its_row() {
    let mut page = HEAD.to_owned();
    for (words, state, flag) in states() {
        for drained in Drained::ALL {
            let show = |case: &mut Case, closed_by: HandoverId| {
                let node = case.slurm_node();
                node.state = state.clone();
                let of_reservation =
                    |flag: &NodeFlag| *flag == NodeFlag::Reserved || *flag == NodeFlag::Maintenance;
                node.flags =
                    node.flags.iter().filter(|flag| of_reservation(flag)).cloned().collect::<BTreeSet<_>>();
                node.flags.extend(flag.clone());
                drained.stand_on(node, closed_by);
            };
            let mut slurms = Case::of_slurm();
            show(&mut slurms, EARLIER);
            let taken = if slurms.slurm_node().takes_jobs() { "yes" } else { "no" };
            let mut leaving = Case::to_kubernetes(State::Draining);
            show(&mut leaving, CURRENT);
            let mut kubernetes = Case::of_kubernetes();
            show(&mut kubernetes, EARLIER);
            let mut returning = Case::to_slurm(State::Returning);
            show(&mut returning, EARLIER);
            let (empty, held, home) = (empty(&leaving), held(&kubernetes), home(&returning));
            // What never may be, whatever the table says.
            let of_theirs = matches!(drained, Drained::ByThem);
            assert!(
                !of_theirs || !(held.contains("drain,") || home.contains("undrain")),
                "{words}: {held}, {home}"
            );
            assert!(
                matches!(drained, Drained::No) <= !empty.starts_with("yes"),
                "{words} undrained: {empty}"
            );
            writeln!(page, "| {words} | {} | {taken} | {empty} | {held} | {home} |", drained.words())
                .unwrap();
        }
    }
    expect_test::expect_file!["../../../docs/slurm-node-states.md"].assert_eq(&page);
}
