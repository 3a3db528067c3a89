//! The sandbox against real policies: the shipped one, and one that misbehaves on demand. Builds both first.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests; the lints know #[test] only"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpu_bridge::policy::abi::{Node, Pool, Queue, Window, domain, kind, state};
use gpu_bridge::policy::{Bundle, Class, Decided, Failure, Limits, LoadOptions, Policy, Snapshot};

const T0: i64 = 1_790_000_000;

fn policies() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
        let workspace = root.clone();
        // A thread of its own, because one test has a runtime already.
        let build = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(gpu_bridge_labs::wasm::build_policies(&workspace)).map_err(|e| e.to_string())
        });
        build.join().unwrap().expect("the policies can be built");
        gpu_bridge_labs::wasm::kept_in(&root)
    })
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(policies().join(name).with_extension("wasm")).unwrap()
}

fn misbehaving(deeds: &[&str]) -> LoadOptions {
    let mut options = LoadOptions::new("bad");
    options.settings = serde_json::json!({ "do": deeds }).to_string();
    options
}

fn snapshot(nodes: usize) -> Snapshot {
    let pool = |name: &str| Pool { name: name.to_owned(), domain: domain::KUBERNETES, ..Pool::default() };
    let node = |index| Node {
        name: format!("gpu{index}"),
        gpus: 8,
        owner: domain::SLURM,
        state: state::FREE,
        ..Node::default()
    };
    Snapshot {
        now: T0,
        tick_period: 10,
        nodes: (1..=nodes).map(node).collect(),
        pools: vec![pool("gpu-burst"), pool("gpu-batch")],
        ..Snapshot::default()
    }
}

fn run(options: &LoadOptions) -> Result<Decided, Box<Failure>> {
    Policy::load(&file("testguests"), options).unwrap().decide(&snapshot(4))
}

fn fail(deeds: &[&str]) -> Box<Failure> {
    run(&misbehaving(deeds)).expect_err(&format!("{deeds:?}"))
}

#[test]
fn prewarm_turns_a_window_into_a_proposal() {
    let options = LoadOptions::new("prewarm");
    let policy = Policy::load(&file("prewarm"), &options).unwrap();
    assert_eq!(policy.describe().name, "prewarm");
    assert_eq!(policy.describe().kinds, [kind::WANT_READY]);
    assert_eq!(policy.abi_version(), "1.0.0");
    let schema: serde_json::Value = serde_json::from_str(&policy.describe().settings_schema).unwrap();
    assert_eq!(schema["properties"]["merge_gap_seconds"]["default"], 1800);

    let mut snapshot = snapshot(4);
    snapshot.windows.push(Window {
        name: "friday".to_owned(),
        pool: 1,
        nodes: 3,
        next_start: Some(T0 + 7200),
        next_end: Some(T0 + 10_800),
        lead: 1800,
        cool_down: 2700,
        ..Window::default()
    });
    let decided = policy.decide(&snapshot).unwrap();
    let [proposal] = decided.proposals.as_slice() else { panic!("{decided:?}") };
    assert_eq!((proposal.kind, proposal.pool, proposal.count), (kind::WANT_READY, 1, 3));
    assert_eq!((proposal.from, proposal.until), (T0 + 5400, T0 + 13_500));
    assert_eq!(proposal.reason, "window friday");
    assert!(proposal.nodes.is_empty());
    // Not only the same decision: the same number of instructions, in the second instance and the third.
    assert_eq!(policy.decide(&snapshot).unwrap(), decided);
    assert_eq!(policy.clone().decide(&snapshot).unwrap(), decided);
}

#[test]
fn a_thousand_windows_are_within_the_limits() {
    let policy = Policy::load(&file("prewarm"), &LoadOptions::new("prewarm")).unwrap();
    let mut snapshot = snapshot(4);
    snapshot.windows = (0..1000)
        .map(|i| Window {
            name: format!("w{i}"),
            nodes: 1,
            overlap: u8::try_from(i % 2).unwrap(),
            // All overlap, and no two have an edge in common.
            next_start: Some(T0 + i),
            next_end: Some(T0 + 100_000 - i),
            ..Window::default()
        })
        .collect();
    let decided = policy.decide(&snapshot).unwrap();
    println!("1000 windows on 4 nodes: {:?}", decided.usage);
    assert!(!decided.proposals.is_empty());
}

#[test]
fn bad_settings_name_their_fields_at_load() {
    let mut options = LoadOptions::new("prewarm");
    for (settings, parts) in [
        (
            r#"{"merge_gap_seconds": -1, "lead": 5}"#,
            vec!["merge_gap_seconds: must be", "lead: is not a field"],
        ),
        ("[]", vec!["must be a JSON object"]),
        ("", vec!["must be a JSON object"]),
    ] {
        settings.clone_into(&mut options.settings);
        let error = Policy::load(&file("prewarm"), &options).err().unwrap();
        assert_eq!(error.class(), Class::BadSettings, "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    let error = Policy::load(&file("testguests"), &misbehaving(&["panic-on-settings"])).err().unwrap();
    assert_eq!(error.class(), Class::Panic);
    assert!(error.to_string().contains("settings frighten me"), "{error}");
}

#[test]
fn every_misdeed_has_its_class_and_a_message_that_helps() {
    let cases: &[(&[&str], Class, &str)] = &[
        (&["refuse"], Class::GuestError, "this site has no such pool"),
        (&["panic"], Class::Panic, "no window is named friday, at "),
        (&["trap"], Class::Panic, "unreachable"),
        (&["recurse"], Class::Panic, "stack"),
        (&["loop"], Class::OutOfFuel, "100400000"),
        (&["eat"], Class::MemoryDenied, "more than the 67108864 it may have"),
        (&["refuse-at-length"], Class::OutputTooBig, "bytes in one call"),
        (&["huge-reason"], Class::OutputTooBig, "bytes in one call"),
        (&["many-proposals"], Class::OutputTooBig, "5 proposals, and at most one per node (4)"),
        (&["log-huge", "log-huge"], Class::OutputTooBig, "bytes in one call"),
        (&["unknown-kind"], Class::InvalidProposal, "kind 77 is unknown"),
        (&["good", "unknown-pool"], Class::InvalidProposal, "proposal 1 makes no sense: pool 999 of 2"),
        (&["too-many-nodes"], Class::InvalidProposal, "4294967295 nodes are wanted, but there are 4"),
        (&["unknown-node"], Class::InvalidProposal, "node 4294967295 of 4"),
        (&["node-twice"], Class::InvalidProposal, "node 0 is named twice"),
        (&["more-nodes-than-count"], Class::InvalidProposal, "2 nodes are named, but 1 wanted"),
        (&["backwards"], Class::InvalidProposal, "which is never"),
        (&["empty-interval"], Class::InvalidProposal, "which is never"),
        (&["no-reason"], Class::InvalidProposal, "its reason must be one line"),
        (&["long-reason"], Class::InvalidProposal, "its reason must be one line"),
        (&["two-line-reason"], Class::InvalidProposal, "its reason must be one line"),
    ];
    for (deeds, class, part) in cases {
        let failure = fail(deeds);
        assert_eq!(failure.class(), *class, "{deeds:?}: {failure}");
        assert!(failure.to_string().contains(part), "{deeds:?}: {failure}");
        assert!(
            failure.to_string().starts_with(&format!("policy bad: {class} [{}]: ", class.code())),
            "{failure}"
        );
        assert_eq!(failure.to_string().contains("unreachable"), *deeds == ["trap"], "{failure}");
    }
}

#[test]
fn a_panic_shows_its_line_and_the_author_s_frames() {
    let failure = fail(&["log", "panic"]);
    let text = failure.to_string();
    let line = include_str!("../../policies/testguests/src/lib.rs")
        .lines()
        .position(|line| line.contains(r#"expect("no window"#))
        .unwrap()
        + 1;
    assert!(text.contains(&format!("src/lib.rs:{line}")), "{text}");
    assert!(text.contains("\n  in ") && text.contains("log: one line"), "{text}");
    let home = std::env::home_dir().unwrap();
    assert!(!text.contains(home.to_str().unwrap()), "{text}");
}

#[test]
fn built_files_do_not_name_this_machine_s_folders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_str().unwrap().as_bytes();
    for name in ["prewarm", "testguests"] {
        let bytes = file(name);
        let found = bytes.windows(root.len()).position(|part| part == root);
        assert_eq!(found, None, "{name}");
    }
}

#[test]
fn the_deadline_stops_what_fuel_does_not() {
    let mut options = misbehaving(&["loop"]);
    options.limits = Limits { fuel: u64::MAX >> 1, deadline: Duration::from_millis(50), ..Limits::default() };
    let failure = run(&options).unwrap_err();
    assert_eq!(failure.class(), Class::Deadline);
    assert!(failure.to_string().contains("after 50 ms"), "{failure}");
}

#[test]
fn memory_is_measured_and_starts_anew_each_time() {
    let policy = Policy::load(&file("testguests"), &misbehaving(&["eat-a-little"])).unwrap();
    for _ in 0..20 {
        let usage = policy.decide(&snapshot(4)).unwrap().usage;
        assert!((8 << 20..16 << 20).contains(&usage.memory_bytes), "{usage:?}");
    }
    let mut options = misbehaving(&["eat-a-little"]);
    options.limits.memory_bytes = 4 << 20;
    assert_eq!(run(&options).unwrap_err().class(), Class::MemoryDenied);
    // Not even enough to begin with.
    options.limits.memory_bytes = 64 << 10;
    assert_eq!(Policy::load(&file("testguests"), &options).err().unwrap().class(), Class::MemoryDenied);
}

#[test]
fn a_flood_of_log_lines_is_cut_and_counted() {
    let usage = run(&misbehaving(&["log-flood"])).unwrap().usage;
    assert_eq!((usage.log.len(), usage.log_dropped), (64, 936));
    assert!(usage.log.iter().all(|line| (1023..=1024).contains(&line.message.len())));
    let last_words = fail(&["log-flood", "panic"]);
    assert!(last_words.to_string().contains("no window is named friday"), "{last_words}");
}

#[test]
fn grants_are_enforced() {
    let pools = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect::<BTreeSet<_>>());
    let mut options = misbehaving(&["second-pool"]);
    options.grants.pools = pools(&["gpu-batch"]);
    assert_eq!(run(&options).unwrap().proposals.len(), 1);
    options.grants.pools = pools(&["gpu-burst"]);
    let failure = run(&options).unwrap_err();
    assert!(failure.to_string().contains("pool gpu-batch is not granted"), "{failure}");
    options.grants = gpu_bridge::policy::Grants { kinds: Some(BTreeSet::new()), pools: None };
    let failure = run(&options).unwrap_err();
    assert!(failure.to_string().contains("kind 1 is not granted"), "{failure}");
}

#[test]
fn a_failure_is_saved_and_fails_again_in_the_same_way() {
    let folder = tempfile::tempdir().unwrap();
    for deed in ["loop", "panic", "eat", "backwards"] {
        let mut options = misbehaving(&[deed]);
        options.bundles = Some(folder.path().join("deep/er"));
        let failure = run(&options).unwrap_err();
        let bundle = Bundle::read(failure.bundle.as_ref().unwrap()).unwrap();
        assert!(failure.to_string().contains("saved as "), "{failure}");

        let mut again = LoadOptions::new(bundle.policy.clone());
        again.sha256 = Some(bundle.sha256);
        again.settings.clone_from(&bundle.settings);
        let repeated =
            Policy::load(&file("testguests"), &again).unwrap().decide(&bundle.snapshot).unwrap_err();
        assert_eq!((repeated.class(), repeated.error.to_string()), (bundle.class, bundle.error), "{deed}");
        assert_eq!(repeated.usage, bundle.usage, "{deed}");
    }
    // Where nothing can be saved, the failure is still the failure.
    let mut options = misbehaving(&["panic"]);
    options.bundles = Some(PathBuf::from("/dev/null/nowhere"));
    let failure = run(&options).unwrap_err();
    assert_eq!((failure.class(), failure.bundle), (Class::Panic, None));
}

#[test]
fn a_policy_sees_the_snapshot_as_it_is() {
    let mut snapshot = snapshot(1);
    snapshot.nodes[0].busy_until = Some(T0 + 17);
    snapshot.nodes[0].block = "rack-é".to_owned();
    snapshot.queues.push(Queue {
        gang: 5,
        age: u64::MAX,
        attrs: vec![("tier".into(), "gold".into())],
        ..Queue::default()
    });
    let policy = Policy::load(&file("testguests"), &misbehaving(&["tell-snapshot"])).unwrap();
    let log = policy.decide(&snapshot).unwrap().usage.log;
    for (line, parts) in [
        (0, vec!["gpu1", "rack-é", "1790000017", "gpu-burst"]),
        (1, vec!["gang: 5", "18446744073709551615", r#"("tier", "gold")"#]),
    ] {
        assert!(parts.iter().all(|part| log[line].message.contains(part)), "{}", log[line].message);
    }
}

/// A runtime with one thread goes on while a policy runs.
#[tokio::test(flavor = "current_thread")]
async fn a_decision_does_not_hold_up_the_runtime() {
    let mut options = misbehaving(&["loop"]);
    options.limits =
        Limits { fuel: u64::MAX >> 1, deadline: Duration::from_millis(100), ..Limits::default() };
    let policy = Policy::load(&file("testguests"), &options).unwrap();
    let mut decision = std::pin::pin!(policy.decide_on_worker(Arc::new(snapshot(4))));
    let mut meanwhile = 0;
    let ended = loop {
        tokio::select! {
            ended = &mut decision => break ended,
            () = tokio::time::sleep(Duration::from_millis(1)) => meanwhile += 1,
        }
    };
    assert_eq!(ended.unwrap_err().class(), Class::Deadline);
    assert!(meanwhile > 1, "{meanwhile}");
}

#[test]
fn several_threads_use_one_policy() {
    let policy = Policy::load(&file("testguests"), &misbehaving(&["good"])).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let policy = policy.clone();
            std::thread::spawn(move || policy.decide(&snapshot(4)).unwrap())
        })
        .collect();
    let decisions: Vec<Decided> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(decisions.windows(2).all(|pair| pair[0] == pair[1]));
}
