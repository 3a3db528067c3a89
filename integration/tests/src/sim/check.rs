//! What must hold over many ticks: guards that others took away stand again soon, nothing stays open on both sides, only
//! what was broken open is in quarantine, every handover ends or says whom it waits for, and the ledger tells it all.

use std::collections::BTreeMap;

use gpu_bridge::daemon::engine::Engine;
use gpu_bridge::daemon::journal::Journal;
use gpu_bridge::daemon::published::{Published, UnderWay};
use gpu_bridge::ledger::SimDisk;
use gpu_bridge_core::book::Management;
use gpu_bridge_core::ids::NodeName;
use gpu_bridge_core::model::Domain;

use super::world::{KubeSide, SlurmSide, World};

/// Undisturbed ticks after which a guard must stand again.
const TICKS_TO_CLOSE: u32 = 8;
/// Undisturbed ticks after which nothing may be open on both sides.
const TICKS_TO_PART: u32 = 3;

/// What is counted from tick to tick.
#[derive(Debug, Default)]
pub(super) struct Watch {
    weak: BTreeMap<String, u32>,
    double: BTreeMap<String, u32>,
}

impl Watch {
    /// After a tick.
    pub(super) fn after_tick(&mut self, world: &mut World, published: &Published) {
        world.sync();
        let seen = published.domains.iter().all(|domain| domain.unknown.is_none());
        let undisturbed = seen && world.faults_in_tick == 0 && world.disk_bad_until.is_none();
        for (node, (slurm, kube)) in world.sides() {
            let record = world.mirror.book.record(&NodeName::new(node.as_str()));
            let owner = match record.management {
                Management::Managed { owner } => {
                    world.found_open.remove(&node);
                    owner
                }
                Management::Unmanaged | Management::Adopting | Management::Releasing { .. } => {
                    no_more_open_than_found(world, &node, record.management, (&slurm, &kube));
                    // An adoption out of quarantine that never began goes back into it.
                    if !record.adopted_from_quarantine {
                        world.excused.remove(&node);
                    }
                    self.weak.remove(&node);
                    self.double.remove(&node);
                    continue;
                }
            };
            if let Some(why) = &record.quarantine
                && !world.excused.contains_key(&node)
            {
                world.fail(format!("{node} is in quarantine, and nobody broke it open: {why}"));
            }
            let both_open = slurm.is_open() && kube.is_open();
            if self.count(Which::Double, &node, both_open, undisturbed) > TICKS_TO_PART {
                world.fail(format!("{node} stays open on both sides"));
            }
            if record.handover.is_some() || record.quarantine.is_some() {
                self.weak.remove(&node);
                continue;
            }
            let whole = match owner {
                Domain::Kubernetes => slurm.is_whole() || (slurm.drain.is_some() && !slurm.drained_by_us()),
                Domain::Slurm => kube.is_whole() || !kube.there,
            };
            if self.count(Which::Weak, &node, !whole, undisturbed) > TICKS_TO_CLOSE {
                world.fail(format!(
                    "the closed side of {node} ({owner}'s) is not put back: {slurm:?} {kube:?}"
                ));
            }
            // What began while it was broken open may run on beside the other side's work: not the daemon's doing yet.
            // And a quarantine that the ledger could not be told of yet is one all the same.
            let untold = world.disk_bad_until.is_some() || world.marks_tell_of_quarantine(&node);
            if whole && !both_open && !untold && !world.runs_both(&node) {
                world.excused.remove(&node);
            }
        }
    }

    fn count(&mut self, which: Which, node: &str, bad: bool, undisturbed: bool) -> u32 {
        let counts = match which {
            Which::Weak => &mut self.weak,
            Which::Double => &mut self.double,
        };
        if !bad {
            counts.remove(node);
            return 0;
        }
        let count = counts.entry(node.to_owned()).or_default();
        *count += u32::from(undisturbed);
        *count
    }
}

/// What adopts a node, or came to nothing on it, opens no side beside another that was not found so.
fn no_more_open_than_found(
    world: &mut World,
    node: &str,
    management: Management,
    (slurm, kube): (&SlurmSide, &KubeSide),
) {
    match management {
        Management::Unmanaged | Management::Adopting => {}
        Management::Releasing { .. } | Management::Managed { .. } => {
            world.found_open.remove(node);
        }
    }
    let found_so = world.found_open.get(node).is_none_or(|found| found.both());
    if !found_so && slurm.is_open() && kube.is_open() && !world.excused.contains_key(node) {
        world.fail(format!("{node} is open on both sides, and its adoption did not find it so"));
    }
}

#[derive(Clone, Copy)]
enum Which {
    Weak,
    Double,
}

/// What is not yet at rest; empty once it all is.
pub(super) fn unrest(world: &World, published: &Published) -> Vec<String> {
    let sides = world.sides();
    let mut unrest = Vec::new();
    for status in &published.nodes {
        let node = status.node.as_str();
        let Some((slurm, kube)) = sides.get(node) else { continue };
        if let Some(UnderWay { id, step }) = &status.handover {
            unrest.push(format!("{node}: {id} is {step} and waits for {:?}", status.waits_for));
            continue;
        }
        match world.mirror.book.record(&status.node).management {
            Management::Managed { .. } if status.management == "quarantined" => {
                unrest.push(format!("{node} is in quarantine"));
            }
            Management::Managed { owner: Domain::Slurm } => {
                if !kube.is_whole() || slurm.reserved || slurm.drained_by_us() {
                    unrest.push(format!("{node} is Slurm's: {slurm:?} {kube:?}"));
                }
            }
            Management::Managed { owner: Domain::Kubernetes } => {
                let drained_by_person = slurm.drain.is_some() && !slurm.drained_by_us();
                if !kube.is_open() || !(slurm.is_whole() || drained_by_person) {
                    unrest.push(format!("{node} is Kubernetes': {slurm:?} {kube:?}"));
                }
            }
            Management::Releasing { .. } => unrest.push(format!("{node} is being released")),
            Management::Unmanaged | Management::Adopting => {}
        }
    }
    unrest
}

/// The ledger alone gives the book that the daemon has, and every line of it verifies.
pub(super) fn ledger(world: &mut World, engine: &Engine<SimDisk>) {
    world.sync();
    let now = world.now();
    match Journal::open_on(SimDisk::holding(&world.disk.bytes()), now) {
        Err(error) => world.fail(format!("the ledger does not open again: {error}")),
        Ok((journal, _)) => {
            if journal.book() != engine.journal().book() {
                world.fail("the ledger does not replay to the daemon's book");
            }
            if journal.book() != &world.mirror.book {
                world.fail("the ledger, read by others, is not the daemon's book");
            }
        }
    }
}
