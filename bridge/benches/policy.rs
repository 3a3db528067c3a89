//! The shipped policy on a large fleet, a fresh instance each time. Prints figures; the goal for 10,000 nodes is 8 ms.
#![allow(clippy::expect_used, reason = "a bench has nobody to report to")]
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gpu_bridge::policy::abi::{Node, Pool, Queue, Window, domain, state};
use gpu_bridge::policy::{LoadOptions, Policy, Snapshot};

fn snapshot(nodes: u32) -> Snapshot {
    let pool = |i: u32| Pool { name: format!("pool-{i}"), domain: domain::KUBERNETES, ..Pool::default() };
    let node = |i: u32| Node {
        name: format!("gpu-node-{i:05}"),
        pool: Some(i % 8),
        home: Some(i % 8),
        owner: if i.is_multiple_of(3) { domain::KUBERNETES } else { domain::SLURM },
        gpu_model: "h100-sxm".to_owned(),
        gpus: 8,
        block: format!("rack-{:03}", i / 18),
        state: if i.is_multiple_of(4) { state::FREE } else { state::BUSY },
        busy_until: (!i.is_multiple_of(4)).then_some(1_790_000_000 + i64::from(i)),
        ..Node::default()
    };
    let window = |i: u32| Window {
        name: format!("window-{i}"),
        pool: i % 8,
        nodes: 1 + i,
        next_start: Some(1_790_000_000 + 900 * i64::from(i)),
        next_end: Some(1_790_010_000 + 900 * i64::from(i)),
        lead: 1800,
        cool_down: 2700,
        ..Window::default()
    };
    Snapshot {
        now: 1_790_000_000,
        tick_period: 10,
        nodes: (0..nodes).map(node).collect(),
        pools: (0..8).map(pool).collect(),
        queues: (0..200)
            .map(|i| Queue { pool: i % 8, count: 3, gpus: 8, gang: 1, ..Queue::default() })
            .collect(),
        windows: (0..100).map(window).collect(),
        ..Snapshot::default()
    }
}

fn policy(criterion: &mut Criterion) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace");
    let folder = gpu_bridge_labs::wasm::kept_in(&root);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(gpu_bridge_labs::wasm::build_policies(&root)).expect("the policies can be built");
    let bytes = std::fs::read(folder.join("prewarm.wasm")).expect("the policy was built");
    let options = LoadOptions::new("prewarm");
    let policy = Policy::load(&bytes, &options).expect("the policy loads");

    let mut group = criterion.benchmark_group("prewarm");
    group.sample_size(30);
    group.bench_function("load", |b| b.iter(|| Policy::load(black_box(&bytes), &options)));
    for nodes in [4, 1000, 10_000] {
        let snapshot = snapshot(nodes);
        let usage = policy.decide(&snapshot).expect("the policy decides").usage;
        println!(
            "{nodes} nodes: {:.1} % of the fuel, {:.1} % of the memory",
            percent(usage.fuel_used, usage.fuel_limit),
            percent(usage.memory_bytes as u64, usage.memory_limit as u64),
        );
        let id = match nodes {
            10_000 => BenchmarkId::new("decide (goal 8 ms)", nodes),
            _ => BenchmarkId::new("decide", nodes),
        };
        group.bench_with_input(id, &snapshot, |b, snapshot| {
            b.iter(|| policy.decide(black_box(snapshot)));
        });
    }
    group.finish();
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole as f64
}

criterion_group!(benches, policy);
criterion_main!(benches);
