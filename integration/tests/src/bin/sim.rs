//! `cargo xtask sim`: seeds A to B, and some fresh ones.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use clap::Parser;
use gpu_bridge_integration::sim::{self, Counts, Outcome};

/// Lines of a failing seed's story that are shown.
const STORY_LINES: usize = 40;

#[derive(Debug, Parser)]
#[command(about = "The daemon in virtual time against models of both schedulers, under random trouble")]
struct Cli {
    /// First seed, and the one after the last: `A..B`.
    #[arg(long, default_value = "0..200", value_parser = seeds)]
    seeds: Range<u64>,
    /// So many seeds besides, taken from the time and printed; one for ten beside 100 seeds or more where nothing is said.
    #[arg(long)]
    fresh: Option<u64>,
    /// Ticks of trouble in each seed; the calm comes after it.
    #[arg(long, default_value_t = 80)]
    ticks: u32,
    /// No new seed is begun after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Prints what happens, line by line.
    #[arg(long)]
    story: bool,
    /// Seeds at once.
    #[arg(long)]
    threads: Option<usize>,
}

fn seeds(text: &str) -> anyhow::Result<Range<u64>> {
    let (first, end) = text.split_once("..").context("expected A..B")?;
    let (first, end) = (first.parse()?, end.parse()?);
    if first >= end {
        bail!("no seed in {text}");
    }
    Ok(first..end)
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let mut seeds: Vec<u64> = cli.seeds.clone().collect();
    let count = seeds.len() as u64;
    let fresh = cli.fresh.unwrap_or(if count >= 100 { count / 10 } else { 0 });
    if fresh > 0 {
        let base = SystemTime::UNIX_EPOCH.elapsed()?.as_secs() * 1000;
        println!("fresh seeds {base}..{}", base + fresh);
        seeds.extend(base..base + fresh);
    }
    let began = Instant::now();
    let limit = cli.seconds.map(Duration::from_secs);
    let threads = cli.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicU64::new(0);
    let done: Mutex<Vec<(u64, anyhow::Result<Outcome>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while limit.is_none_or(|limit| began.elapsed() < limit) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = usize::try_from(index).ok().and_then(|index| seeds.get(index)) else {
                        break;
                    };
                    let outcome = sim::run(*seed, cli.ticks);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((*seed, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(seed, _)| *seed);
    let mut counts = Counts::default();
    let mut failed = Vec::new();
    let ran = done.len();
    for (seed, outcome) in done {
        let outcome = outcome.with_context(|| format!("seed {seed}"))?;
        counts.add(&outcome.counts);
        let skip = if cli.story { 0 } else { outcome.story.len().saturating_sub(STORY_LINES) };
        if cli.story || outcome.failure.is_some() {
            println!("--- seed {seed} ---");
            outcome.story.iter().skip(skip).for_each(|line| println!("{line}"));
        }
        if let Some(failure) = outcome.failure {
            println!(
                "seed {seed}: {failure}\n  again: cargo xtask sim --seeds {seed}..{} --ticks {} --story",
                seed + 1,
                cli.ticks
            );
            failed.push((seed, failure));
        }
    }
    println!("{ran} seeds, {}", counts.text(began.elapsed()));
    for (seed, failure) in &failed {
        println!("FAILED seed {seed}: {failure}");
    }
    if ran >= 20
        && let Some(idle) = counts.idle(ran as u64)
    {
        println!("FAILED: the seeds exercised too little: {idle}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
