//! Stories told by hand in the simulator's world, without dice: what luck rarely throws, step by step.

use gpu_bridge::daemon::command::{Command, Go, Refusal, Reply};
use gpu_bridge_core::book::{Book, Record};
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::{Event, Outcome};
use gpu_bridge_core::handover::State;
use gpu_bridge_core::ids::{HandoverId, NodeName};
use gpu_bridge_core::mark::reservation_name;
use gpu_bridge_core::model::Domain;
use jiff::SignedDuration;
use slurm_mock::model::{JobSpec, NodeAction, NodeUpdate};

use super::people::ADMIN;
use super::run::{GPUS, Run};
use super::world::Who;

mod away;
mod closing;
mod quarantine;
mod second_look;

/// Ticks that anything here takes at most.
const TICKS: u32 = 150;

/// A world in which nothing happens that the script does not say.
async fn quiet() -> Run {
    let mut run = Run::new(1).unwrap();
    run.silence();
    run.tick().await;
    run
}

async fn adopted(owner: Domain) -> Run {
    let mut run = quiet().await;
    let nodes = run.names();
    let asked = ask(&mut run, Command::Adopt { nodes, owner: Some(owner), go: Go::Yes }).await;
    assert!(asked.is_ok(), "{asked:?}");
    until(&mut run, |book| all_owned(book, owner)).await;
    run
}

fn all_owned(book: &Book, owner: Domain) -> bool {
    book.nodes.len() == 4 && book.nodes.values().all(|record| record.owner() == Some(owner))
}

async fn ask(run: &mut Run, command: Command) -> Result<Reply, Refusal> {
    run.engine.as_mut().unwrap().request("rita", command).await
}

async fn tick(run: &mut Run) {
    run.world.lock().pass(1);
    run.tick().await;
    assert_eq!(run.world.lock().failure, None);
}

/// Ticks until the book, as its ledger tells it to others, is so.
async fn until(run: &mut Run, is: impl Fn(&Book) -> bool) {
    for _ in 0..TICKS {
        if is(&run.world.lock().mirror.book) {
            return;
        }
        tick(run).await;
    }
    let story = run.world.lock().story.join("\n");
    panic!("not within {TICKS} ticks:\n{story}");
}

fn record(run: &Run, node: &str) -> Record {
    run.world.lock().mirror.book.record(&NodeName::new(node))
}

fn state_of(book: &Book, node: &str) -> Option<State> {
    book.handover_of(&NodeName::new(node)).map(|handover| handover.state)
}

async fn start_move(run: &mut Run, node: &str, to: Domain) -> HandoverId {
    let command = Command::Move { node: NodeName::new(node), to, reason: "script".to_owned(), ticket: None };
    match ask(run, command).await {
        Ok(Reply::Planned { handover }) => handover,
        other => panic!("{other:?}"),
    }
}

/// The ledger's events, oldest first.
fn events(run: &Run) -> Vec<Event> {
    let text = String::from_utf8(run.world.lock().disk.bytes()).unwrap();
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].take();
    text.lines().skip(1).map(|line| serde_json::from_value(event(line)).unwrap()).collect()
}

fn backwards(run: &Run) -> Vec<Domain> {
    let ran =
        |event: Event| if let Event::TimeRanBackwards { domain, .. } = event { Some(domain) } else { None };
    events(run).into_iter().filter_map(ran).collect()
}

fn submit(run: &Run, seconds: i64) {
    run.world.lock().change(Who::Others, |world| {
        let spec = JobSpec::new("alice", 1, 1, SignedDuration::from_secs(seconds));
        world.slurm.submit(spec.limit(SignedDuration::from_mins(60))).unwrap();
    });
}

fn adopt(node: &str, owner: Domain) -> Command {
    Command::Adopt { nodes: vec![NodeName::new(node)], owner: Some(owner), go: Go::Yes }
}

async fn adopts(run: &mut Run, node: &str, owner: Domain) -> Result<HandoverId, Denied> {
    match ask(run, adopt(node, owner)).await {
        Ok(Reply::Adopting { nodes }) => {
            let [one] = &nodes[..] else { panic!("{nodes:?}") };
            one.adoption.clone().map(|_| one.handover.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_restored_backup_of_slurm_is_noticed_once_and_nothing_opens_on_the_look_that_showed_it() {
    let mut run = adopted(Domain::Slurm).await;
    let backup = run.world.lock().slurm.save();
    submit(&run, 10);
    start_move(&mut run, "gpu4", Domain::Kubernetes).await;
    until(&mut run, |book| state_of(book, "gpu4") == Some(State::SlurmEmpty)).await;
    assert_eq!(backwards(&run), []);
    run.world.lock().change(Who::Others, |world| world.slurm.restore(&backup));
    tick(&mut run).await;
    assert_eq!(backwards(&run), [Domain::Slurm]);
    assert!(run.world.lock().mirror.book.alarms.contains_key("backwards/slurm"));
    assert_ne!(record(&run, "gpu4").owner(), Some(Domain::Kubernetes));
    until(&mut run, |book| book.record(&NodeName::new("gpu4")).owner() == Some(Domain::Kubernetes)).await;
    assert_eq!(backwards(&run), [Domain::Slurm], "once");
}

/// The daemon did not run while the backup was put in place, and knows of the counter by its ledger only.
#[tokio::test]
async fn a_backup_restored_while_the_daemon_was_away_is_noticed() {
    let mut run = adopted(Domain::Slurm).await;
    let backup = run.world.lock().slurm.save();
    submit(&run, 10);
    tick(&mut run).await;
    run.engine.take().unwrap().stop().unwrap();
    run.world.lock().change(Who::Others, |world| world.slurm.restore(&backup));
    tick(&mut run).await;
    assert_eq!(backwards(&run), [Domain::Slurm]);
}

#[tokio::test]
async fn a_restored_backup_of_kubernetes_is_noticed() {
    let mut run = adopted(Domain::Slurm).await;
    let backup = run.world.lock().kube.clone();
    start_move(&mut run, "gpu4", Domain::Kubernetes).await;
    until(&mut run, |book| book.record(&NodeName::new("gpu4")).owner() == Some(Domain::Kubernetes)).await;
    tick(&mut run).await;
    run.world.lock().change(Who::Others, |world| world.kube = backup);
    tick(&mut run).await;
    assert_eq!(backwards(&run), [Domain::Kubernetes]);
}

/// Ticks until nothing is amiss in the world.
async fn until_rest(run: &mut Run) {
    let mut unrest = Vec::new();
    for _ in 0..TICKS {
        tick(run).await;
        unrest = super::check::unrest(&run.world.lock(), &run.engine.as_ref().unwrap().published());
        if unrest.is_empty() {
            return;
        }
    }
    panic!("{unrest:?}");
}

fn slurm_update(run: &Run, node: &str, action: NodeAction, reason: Option<&str>) {
    run.world.lock().change(Who::Others, |world| {
        let update = NodeUpdate { action: Some(action), reason: reason.map(str::to_owned) };
        world.slurm.update_node(&node.into(), &update, ADMIN).unwrap();
    });
}

fn drain_of(run: &Run, node: &str) -> Option<String> {
    run.world.lock().sides()[node].0.drain.clone()
}

/// A drain that was found at adoption is theirs: what its people took away does not come back by us.
#[tokio::test]
async fn a_drain_that_its_people_lifted_before_the_first_move_does_not_come_back() {
    let mut run = quiet().await;
    slurm_update(&run, "gpu4", NodeAction::Drain, Some("bad fan"));
    tick(&mut run).await;
    for node in run.names() {
        adopts(&mut run, node.as_str(), Domain::Slurm).await.unwrap();
    }
    until(&mut run, |book| all_owned(book, Domain::Slurm)).await;
    slurm_update(&run, "gpu4", NodeAction::Undrain, None);
    tick(&mut run).await;
    for to in [Domain::Kubernetes, Domain::Slurm] {
        start_move(&mut run, "gpu4", to).await;
        until(&mut run, |book| {
            let record = book.record(&NodeName::new("gpu4"));
            record.owner() == Some(to) && record.handover.is_none()
        })
        .await;
    }
    assert_eq!(drain_of(&run, "gpu4"), None);
}

/// A death at every single operation on the disk while the missing Gate is made: before and after the intent, before and
/// after the write, before and after the outcome.
#[tokio::test]
async fn a_death_at_any_point_of_making_the_gate_anew_leaves_a_whole_gate() {
    let mut without_gate = 0;
    let mut with_gate = 0;
    for operation in 0..8 {
        let mut run = adopted(Domain::Slurm).await;
        {
            let mut world = run.world.lock();
            world.delete_gate();
            let at = world.disk.operations() + operation;
            world.disk.crash_at(at, 0);
        }
        tick(&mut run).await;
        if run.engine.is_some() {
            assert!(operation > 3, "it did not die at operation {operation}");
            continue;
        }
        let there = run.world.lock().has_gate();
        (with_gate, without_gate) = (with_gate + u32::from(there), without_gate + u32::from(!there));
        run.world.lock().pass(300);
        until_rest(&mut run).await;
        let world = run.world.lock();
        assert!(world.sides().values().all(|(_, kube)| kube.listed), "{:?}", world.sides());
    }
    assert!(with_gate > 0 && without_gate > 0, "{with_gate} with it, {without_gate} without");
}
