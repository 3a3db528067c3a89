//! `cargo bench -p gpu-bridge --bench ledger`: prints figures, judges nothing.
//!
//! Append with fdatasync beside a bare write+fdatasync loop on the same disk, in turns so that both see the same
//! weather (goal: at most 1.3 times); and opening a ledger of 1,000,000 lines (goal: at most 2 s).

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use gpu_bridge::ledger::{Ledger, path_in, verify};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 40;
const APPENDS_A_ROUND: usize = 50;
const LINES: u64 = 1_000_000;

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Event {
    Step { handover: String, epoch: u64, node: String, from: String, to: String, facts: Vec<String> },
}

fn event(n: u64) -> Event {
    Event::Step {
        handover: format!("h{n:04}"),
        epoch: 7,
        node: format!("gpu{:04}", n % 10_000),
        from: "Draining".to_owned(),
        to: "Empty".to_owned(),
        facts: vec!["slurm: IDLE+DRAIN".to_owned(), "gres used: 0".to_owned()],
    }
}

fn main() -> anyhow::Result<()> {
    // On the disk of the build, not in /tmp, which may be memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    append(dir.path())?;
    open(dir.path())
}

fn append(dir: &Path) -> anyhow::Result<()> {
    let state = dir.join("append");
    std::fs::create_dir(&state)?;
    let (mut ledger, _) = Ledger::<Event>::open(&state, Timestamp::UNIX_EPOCH, |_| ())?;
    let line_bytes = {
        let before = std::fs::metadata(path_in(&state))?.len();
        ledger.append(Timestamp::UNIX_EPOCH, &event(0))?;
        usize::try_from(std::fs::metadata(path_in(&state))?.len() - before)?
    };
    let line = vec![b'x'; line_bytes];
    let mut bare_file = OpenOptions::new().append(true).create(true).open(dir.join("bare"))?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for n in 0..APPENDS_A_ROUND {
            let event = event((round * APPENDS_A_ROUND + n) as u64);
            let start = Instant::now();
            ledger.append(Timestamp::UNIX_EPOCH, &event)?;
            ours.push(start.elapsed());
        }
        for _ in 0..APPENDS_A_ROUND {
            let start = Instant::now();
            bare_file.write_all(&line)?;
            bare_file.sync_data()?;
            bare.push(start.elapsed());
        }
    }
    let (ours, bare) = (Spread::of(ours), Spread::of(bare));
    println!("append + fdatasync, {line_bytes} bytes a line, {} times", ROUNDS * APPENDS_A_ROUND);
    println!("  ledger  {ours}");
    println!("  bare    {bare}");
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!(
        "  ratio   p50 {:.2}  mean {:.2}  (goal 1.3)",
        ratio(ours.p50, bare.p50),
        ratio(ours.mean, bare.mean)
    );
    Ok(())
}

fn open(dir: &Path) -> anyhow::Result<()> {
    let state = dir.join("open");
    std::fs::create_dir(&state)?;
    let start = Instant::now();
    {
        let (mut ledger, _) = Ledger::<Event>::open(&state, Timestamp::UNIX_EPOCH, |_| ())?;
        let mut n = 1;
        while n < LINES {
            let events: Vec<Event> = (n..LINES.min(n + 10_000)).map(event).collect();
            n += events.len() as u64;
            ledger.append_batch(Timestamp::UNIX_EPOCH, &events)?;
        }
    }
    let bytes = std::fs::metadata(path_in(&state))?.len();
    println!("a ledger of {LINES} lines, {} MB, written in batches in {:.2?}", bytes >> 20, start.elapsed());
    for attempt in ["first", "second", "third"] {
        let start = Instant::now();
        let mut events = 0_u64;
        let (_, replay) = Ledger::<Event>::open(&state, Timestamp::UNIX_EPOCH, |_| events += 1)?;
        println!(
            "  open, {attempt}: {:.2?} for {events} events to line {}  (goal 2 s)",
            start.elapsed(),
            replay.last
        );
    }
    let start = Instant::now();
    let report = verify(&path_in(&state))?;
    println!("  verify: {:.2?} to line {}", start.elapsed(), report.last);
    // What the same bytes cost to copy, to tell our share from the disk's.
    let start = Instant::now();
    std::io::copy(&mut File::open(path_in(&state))?, &mut BufWriter::new(std::io::sink()))?;
    println!("  reading the bytes alone: {:.2?}", start.elapsed());
    Ok(())
}

struct Spread {
    p50: Duration,
    p99: Duration,
    mean: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
        Spread {
            p50: times[times.len() / 2],
            p99: times[times.len() * 99 / 100],
            mean: times.iter().sum::<Duration>() / count,
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.1?}  p99 {:.1?}  mean {:.1?}", self.p50, self.p99, self.mean)
    }
}
