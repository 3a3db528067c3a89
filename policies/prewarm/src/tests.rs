//! Times in the tables are minutes after an arbitrary instant; "now" is given per case.

use gpu_bridge_policy_sdk::{Node, Pool, Window, direction, domain, overlap, state};

use super::*;

const T0: i64 = 1_790_000_000;

fn at(minute: i64) -> i64 {
    T0 + 60 * minute
}

/// A window as the calendar would show it at `now`, from its occurrences.
struct W {
    pool: u32,
    nodes: u32,
    overlap: u8,
    lead: u32,
    cool_down: u32,
    /// Ordered.
    occurrences: &'static [(i64, i64)],
}

const PLAIN: W = W { pool: 0, nodes: 3, overlap: overlap::MAX, lead: 30, cool_down: 45, occurrences: &[] };

fn window(name: String, now: i64, of: &W) -> Window {
    let present = of.occurrences.iter().rev().find(|(start, _)| *start <= now);
    let next = of.occurrences.iter().find(|(start, _)| *start > now);
    Window {
        name,
        pool: of.pool,
        nodes: of.nodes,
        overlap: of.overlap,
        on: present.is_some_and(|(_, end)| now < *end),
        start: present.map(|(start, _)| at(*start)),
        end: present.map(|(_, end)| at(*end)),
        next_start: next.map(|(start, _)| at(*start)),
        next_end: next.map(|(_, end)| at(*end)),
        lead: of.lead * 60,
        cool_down: of.cool_down * 60,
        attrs: vec![],
    }
}

fn snapshot(now: i64, nodes: u32, windows: &[W]) -> Snapshot {
    let node = |index: u32| Node {
        name: format!("gpu{index}"),
        pool: None,
        home: None,
        owner: domain::SLURM,
        gpu_model: "h100".to_owned(),
        gpus: 8,
        block: String::new(),
        state: state::FREE,
        handover: direction::NONE,
        busy_until: None,
        attrs: vec![],
    };
    let pool = |name: &str| Pool {
        name: name.to_owned(),
        domain: domain::KUBERNETES,
        floor: 0,
        ceiling: None,
        ready: 0,
        arriving: 0,
        leaving: 0,
        home_nodes: 0,
        attrs: vec![],
    };
    Snapshot {
        settings: "{}".to_owned(),
        now: at(now),
        tick_period: 10,
        nodes: (0..nodes).map(node).collect(),
        pools: vec![pool("gpu-burst"), pool("gpu-inference")],
        queues: vec![],
        windows: windows.iter().zip(0..).map(|(of, i): (_, u32)| window(format!("w{i}"), now, of)).collect(),
        blackouts: vec![],
        loans: vec![],
        attrs: vec![],
    }
}

/// (pool, count, from, until) in minutes.
fn decide(now: i64, merge_gap: u32, windows: &[W]) -> Vec<(u32, u32, i64, i64)> {
    let settings = Settings { merge_gap_seconds: merge_gap * 60, priority: 100 };
    let decision = Prewarm::decide(&settings, &snapshot(now, 10, windows)).unwrap();
    let minutes = |instant: i64| (instant - T0) / 60;
    decision.proposals.iter().map(|p| (p.pool, p.count, minutes(p.from), minutes(p.until))).collect()
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn windows_become_wanted_nodes() {
    type Case = (&'static str, i64, u32, &'static [W], &'static [(u32, u32, i64, i64)]);
    let cases: &[Case] = &[
        ("no windows", 0, 30, &[], &[]),
        ("far ahead", 0, 30, &[W { occurrences: &[(600, 960)], ..PLAIN }], &[(0, 3, 570, 1005)]),
        ("on now", 700, 30, &[W { occurrences: &[(600, 960)], ..PLAIN }], &[(0, 3, 570, 1005)]),
        ("cooling down", 1004, 30, &[W { occurrences: &[(600, 960)], ..PLAIN }], &[(0, 3, 570, 1005)]),
        ("cooled down", 1005, 30, &[W { occurrences: &[(600, 960)], ..PLAIN }], &[]),
        (
            "on now and again tomorrow",
            700,
            30,
            &[W { occurrences: &[(600, 960), (2040, 2400)], ..PLAIN }],
            &[(0, 3, 570, 1005), (0, 3, 2010, 2445)],
        ),
        (
            "two spikes 20 minutes apart, seen from the first",
            610,
            30,
            &[W { lead: 0, cool_down: 0, occurrences: &[(600, 620), (640, 660)], ..PLAIN }],
            &[(0, 3, 600, 660)],
        ),
        (
            "two spikes 20 minutes apart, seen from between",
            630,
            30,
            &[W { lead: 0, cool_down: 0, occurrences: &[(600, 620), (640, 660)], ..PLAIN }],
            &[(0, 3, 600, 660)],
        ),
        (
            "two spikes 20 minutes apart, round trip shorter",
            630,
            20,
            &[W { lead: 0, cool_down: 0, occurrences: &[(600, 620), (640, 660)], ..PLAIN }],
            &[(0, 3, 640, 660)],
        ),
        (
            "two windows 20 minutes apart: only what the second needs stays",
            610,
            30,
            &[
                W { lead: 0, cool_down: 0, occurrences: &[(600, 620)], nodes: 5, ..PLAIN },
                W { lead: 0, cool_down: 0, occurrences: &[(640, 660)], nodes: 2, ..PLAIN },
            ],
            &[(0, 5, 600, 620), (0, 2, 620, 660)],
        ),
        (
            "lead and cool-down meet",
            0,
            0,
            &[W { occurrences: &[(600, 660)], ..PLAIN }, W { occurrences: &[(720, 780)], ..PLAIN }],
            &[(0, 3, 570, 825)],
        ),
        (
            "overlap: the largest counts",
            0,
            0,
            &[
                W { occurrences: &[(600, 900)], nodes: 2, ..PLAIN },
                W { occurrences: &[(700, 800)], nodes: 5, ..PLAIN },
            ],
            &[(0, 2, 570, 670), (0, 5, 670, 845), (0, 2, 845, 945)],
        ),
        (
            "overlap: added",
            0,
            0,
            &[
                W { occurrences: &[(600, 900)], nodes: 2, ..PLAIN },
                W { occurrences: &[(700, 800)], nodes: 5, overlap: overlap::ADD, ..PLAIN },
            ],
            &[(0, 2, 570, 670), (0, 7, 670, 845), (0, 2, 845, 945)],
        ),
        (
            "added windows one after the other are not a sum: cooling nodes serve the next",
            0,
            0,
            &[
                W { occurrences: &[(600, 700)], overlap: overlap::ADD, ..PLAIN },
                W { occurrences: &[(700, 800)], overlap: overlap::ADD, ..PLAIN },
            ],
            &[(0, 3, 570, 845)],
        ),
        (
            "each rise by its own lead",
            0,
            0,
            &[
                W { occurrences: &[(600, 900)], nodes: 2, lead: 120, cool_down: 0, ..PLAIN },
                W { occurrences: &[(700, 900)], nodes: 4, lead: 10, cool_down: 0, ..PLAIN },
            ],
            &[(0, 2, 480, 690), (0, 4, 690, 900)],
        ),
        (
            "pools do not mix",
            0,
            600,
            &[W { occurrences: &[(600, 660)], ..PLAIN }, W { occurrences: &[(660, 720)], pool: 1, ..PLAIN }],
            &[(0, 3, 570, 705), (1, 3, 630, 765)],
        ),
        (
            "more than exist",
            0,
            0,
            &[W { occurrences: &[(600, 660)], nodes: 11, ..PLAIN }],
            &[(0, 10, 570, 705)],
        ),
        ("nothing wanted", 0, 0, &[W { occurrences: &[(600, 660)], nodes: 0, ..PLAIN }], &[]),
        ("end before start", 0, 0, &[W { occurrences: &[(660, 600)], ..PLAIN }], &[]),
        ("a pool that is not there", 0, 0, &[W { occurrences: &[(600, 660)], pool: 7, ..PLAIN }], &[]),
    ];
    for (name, now, merge_gap, windows, expected) in cases {
        assert_eq!(decide(*now, *merge_gap, windows), *expected, "{name}");
    }
}

/// Walks through the evening minute by minute, from the first start (before it only the first spike is known): the nodes
/// are asked for without a gap, until the cool-down of the second.
#[test]
fn between_two_spikes_the_target_never_falls() {
    let windows = [W { occurrences: &[(600, 620), (640, 660)], cool_down: 5, lead: 10, ..PLAIN }];
    for now in 600..665 {
        let proposals = decide(now, 30, &windows);
        let [(0, 3, from, 665)] = proposals.as_slice() else { panic!("at minute {now}: {proposals:?}") };
        assert!(*from <= now, "at minute {now}: {proposals:?}");
    }
    assert_eq!(decide(665, 30, &windows), []);
}

#[test]
fn no_more_proposals_than_nodes_and_the_soonest_first() {
    let windows: Vec<W> =
        (0..1000).map(|_| W { occurrences: &[(600, 660), (6000, 6060)], ..PLAIN }).collect();
    let snapshot = snapshot(0, 1, &windows);
    let settings = Prewarm::validate_settings("{}").unwrap();
    let decision = Prewarm::decide(&settings, &snapshot).unwrap();
    let [only] = decision.proposals.as_slice() else { panic!("{:?}", decision.proposals) };
    assert_eq!((only.count, only.from, only.until), (1, at(570), at(705)));
    assert!(only.reason.starts_with("window w0, w1, ") && only.reason.ends_with(" more"), "{}", only.reason);
    assert!(only.reason.len() <= REASON_BYTES);
}

#[test]
fn settings_errors_name_the_field() {
    let good = Prewarm::validate_settings(r#"{"merge_gap_seconds": 0}"#).unwrap();
    assert_eq!(good, Settings { merge_gap_seconds: 0, priority: 100 });
    let bad = Prewarm::validate_settings(r#"{"merge_gap_seconds": -5, "priority": "high", "lead": 1}"#)
        .unwrap_err();
    let fields: Vec<&str> = bad.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["merge_gap_seconds", "priority", "lead"]);
}
