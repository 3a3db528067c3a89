//! How long the calendar takes over 1,000 windows in five zones.

#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "not part of the product")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpu_bridge_core::calendar::{Calendar, Overlap, When, Window, WindowSpec};
use jiff::{SignedDuration, Timestamp};

const ZONES: [&str; 5] = ["Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"];

fn thousand() -> Calendar {
    let mut calendar = Calendar::new();
    for n in 0..1000_u32 {
        let window = Window::new(WindowSpec {
            name: format!("w{n:04}").as_str().into(),
            pool: format!("pool{}", n % 4).as_str().into(),
            nodes: 1 + n % 8,
            when: When::Cron {
                cron: format!("{} {} * * {}", n % 60, n % 24, n % 7),
                duration: SignedDuration::from_mins(i64::from(30 + n % 300)),
            },
            zone: ZONES[n as usize % ZONES.len()].to_owned(),
            lead: SignedDuration::from_mins(i64::from(n % 50)),
            cooldown: SignedDuration::from_mins(i64::from(n % 70)),
            owner: "bench".to_owned(),
            ticket: None,
            expires: None,
            overlap: Overlap::Max,
            except: Vec::new(),
        });
        calendar.add_window(window.unwrap()).unwrap();
    }
    calendar
}

fn bench(c: &mut Criterion) {
    let calendar = thousand();
    let mut at: Timestamp = "2026-11-01T00:00:00Z".parse().unwrap();
    c.bench_function("next change over 1,000 windows (goal 1 ms)", |b| {
        b.iter(|| {
            at = calendar.next_change_after(black_box(at)).unwrap();
        });
    });
    c.bench_function("demand of a pool over 1,000 windows", |b| {
        b.iter(|| calendar.demand(black_box(&"pool1".into()), black_box(at)));
    });
    c.bench_function("occurrences of a day over 1,000 windows", |b| {
        b.iter(|| {
            calendar.occurrences_between(at, at + SignedDuration::from_hours(24), 10_000).occurrences.len()
        });
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
