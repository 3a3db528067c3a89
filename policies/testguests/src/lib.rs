//! Policies that misbehave on demand, for the tests of the sandbox; not shipped. The settings say how:
//! `{"do": ["panic"]}`.
#![allow(clippy::panic, clippy::expect_used, clippy::infinite_loop, reason = "misbehaving is what it is for")]

use std::hint::black_box;

use gpu_bridge_policy_sdk::{self as sdk, Decision, Description, Policy, Proposal, SettingsError, Snapshot};

/// The policy.
pub struct Misbehave;

impl Policy for Misbehave {
    type Settings = Vec<String>;

    fn describe() -> Description {
        Description {
            name: "misbehave".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Does what its settings say".to_owned(),
            kinds: vec![sdk::kind::WANT_READY],
            settings_schema: "{}".to_owned(),
            attrs: vec![],
        }
    }

    fn validate_settings(settings: &str) -> Result<Vec<String>, Vec<SettingsError>> {
        let mut fields = sdk::Fields::parse(settings)?;
        let deeds = fields.strings("do");
        assert!(!deeds.iter().any(|deed| deed == "panic-on-settings"), "settings frighten me");
        fields.finish(deeds)
    }

    fn decide(deeds: &Vec<String>, snapshot: &Snapshot) -> Result<Decision, String> {
        let mut proposals = vec![];
        for deed in deeds {
            proposals.extend(act(deed, snapshot)?);
        }
        Ok(Decision { proposals, attrs: vec![] })
    }
}

fn act(deed: &str, snapshot: &Snapshot) -> Result<Vec<Proposal>, String> {
    let good = sdk::want_ready(0, 1, snapshot.now..snapshot.now + 60, "good");
    let one = |change: &dyn Fn(&mut Proposal)| {
        let mut proposal = good.clone();
        change(&mut proposal);
        Ok(vec![proposal])
    };
    match deed {
        "good" => one(&|_| ()),
        "refuse" => Err("this site has no such pool".to_owned()),
        "refuse-at-length" => Err("x".repeat(2 << 20)),
        "panic" => {
            let missing: Option<u8> = black_box(None);
            missing.expect("no window is named friday");
            Ok(vec![])
        }
        "trap" => trap(),
        "recurse" => Ok(vec![good; recurse(black_box(0))]),
        "loop" => loop {
            black_box(());
        },
        "eat" => {
            let mut hoard: Vec<Vec<u8>> = vec![];
            loop {
                hoard.push(black_box(vec![1; 1 << 20]));
            }
        }
        "eat-a-little" => {
            black_box(vec![1_u8; 8 << 20]);
            Ok(vec![])
        }
        "log" => {
            sdk::log::info("one line");
            Ok(vec![])
        }
        "log-flood" => {
            (0..1000).for_each(|line| sdk::log::warn(&format!("{line} {}", "é".repeat(2000))));
            Ok(vec![good])
        }
        "log-huge" => {
            sdk::log::warn(&"y".repeat(4 << 20));
            Ok(vec![])
        }
        "many-proposals" => Ok(vec![good; snapshot.nodes.len() + 1]),
        "huge-reason" => one(&|p| p.reason = "z".repeat(2 << 20)),
        "long-reason" => one(&|p| p.reason = "z".repeat(257)),
        "no-reason" => one(&|p| p.reason.clear()),
        "two-line-reason" => one(&|p| p.reason.insert(1, '\n')),
        "unknown-kind" => one(&|p| p.kind = 77),
        "unknown-pool" => one(&|p| p.pool = 999),
        "second-pool" => one(&|p| p.pool = 1),
        "too-many-nodes" => one(&|p| p.count = u32::MAX),
        "unknown-node" => one(&|p| p.nodes = vec![u32::MAX]),
        "node-twice" => one(&|p| (p.count, p.nodes) = (2, vec![0, 0])),
        "more-nodes-than-count" => one(&|p| p.nodes = vec![0, 1]),
        "backwards" => one(&|p| p.from = p.until + 1),
        "empty-interval" => one(&|p| p.from = p.until),
        "tell-snapshot" => {
            sdk::log::debug(&format!("{:?} {:?}", snapshot.nodes.first(), snapshot.pools.first()));
            sdk::log::debug(&format!("{:?} {:?}", snapshot.queues, snapshot.windows));
            sdk::log::debug(&format!("{:?} {:?}", snapshot.blackouts, snapshot.loans));
            Ok(vec![])
        }
        other => Err(format!("don't know how to {other}")),
    }
}

/// Never optimised into a loop: the result depends on every frame.
fn recurse(depth: usize) -> usize {
    let below = if black_box(depth) == usize::MAX { 0 } else { recurse(black_box(depth + 1)) };
    black_box(below) ^ depth
}

#[cfg(target_arch = "wasm32")]
fn trap() -> ! {
    core::arch::wasm32::unreachable()
}

#[cfg(not(target_arch = "wasm32"))]
fn trap() -> ! {
    std::process::abort()
}

sdk::export_policy!(Misbehave);
