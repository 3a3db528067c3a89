//! `cargo bench -p gpu-bridge --bench decode`: prints figures, judges nothing.
//!
//! Answers of slurmrestd 24.11 for 10,000 nodes and 10,000 jobs, made of recorded ones, read into facts; beside
//! `serde_json::Value`, and beside Go's `encoding/json` into structs (`decode.go`, where there is `go`), in turns on the same
//! bytes. Goal: five times as fast as Go. `GPU_BRIDGE_BENCH_N` makes it smaller.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_bridge::slurm::decode::{Kind, facts_in};
use serde_json::Value;

const API: &str = "v0.0.42";
const ROUNDS: usize = 5;

fn main() -> anyhow::Result<()> {
    let n = std::env::var("GPU_BRIDGE_BENCH_N").map_or(Ok(10_000), |n| n.parse())?;
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/slurm/fixtures/24.11").join(API);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let go = go(dir.path());
    for (kind, list, file) in
        [(Kind::Nodes, "nodes", "nodes.json"), (Kind::Jobs, "jobs", "job-run_2node.json")]
    {
        let answer = answer(&fixtures.join(file), list, n)?;
        let saved = dir.path().join(list);
        std::fs::write(&saved, &answer)?;
        measure(kind, list, n, answer.as_bytes(), &saved, &go)?;
    }
    Ok(())
}

/// `n` elements, by turns those of the recorded answer under names and numbers of their own.
fn answer(recorded: &Path, list: &str, n: usize) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(recorded).with_context(|| recorded.display().to_string())?;
    let recorded: Value = serde_json::from_str(&text)?;
    let elements = recorded[list].as_array().context("a list")?;
    ensure!(!elements.is_empty(), "the recorded answer is empty");
    let numbered = |i: usize| {
        let mut element = elements[i % elements.len()].clone();
        match list {
            "nodes" => element["name"] = format!("gpu{i:05}").into(),
            _ => element["job_id"] = (i + 1).into(),
        }
        element.to_string()
    };
    let elements: Vec<String> = (0..n).map(numbered).collect();
    Ok(format!("{{\"{list}\":[{}],\"errors\":[],\"warnings\":[]}}", elements.join(",")))
}

fn measure(
    kind: Kind,
    list: &str,
    n: usize,
    answer: &[u8],
    saved: &Path,
    go: &Result<std::path::PathBuf, String>,
) -> anyhow::Result<()> {
    let (mut ours, mut value, mut theirs) = (Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let found = facts_in(API, kind, answer)?;
        ours = ours.min(start.elapsed());
        ensure!(found == n, "{found} of {n} {list} were read");

        let start = Instant::now();
        let read: Value = serde_json::from_slice(answer)?;
        value = value.min(start.elapsed());
        drop(read);

        if let Ok(program) = go {
            let output = Command::new(program).arg(list).arg(saved).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout)?;
            let (count, nanoseconds) = text.trim().split_once(' ').context("what decode.go prints")?;
            ensure!(count.parse::<usize>()? == n, "Go read {count} of {n} {list}");
            theirs = theirs.min(Duration::from_nanos(nanoseconds.parse()?));
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let tenths = answer.len() / 100_000;
    println!("{n} {list}, {}.{} MB, best of {ROUNDS}", tenths / 10, tenths % 10);
    println!("  into facts          {:8.1} ms", ms(ours));
    println!("  serde_json::Value   {:8.1} ms  {:.1} times as long", ms(value), ms(value) / ms(ours));
    match go {
        Ok(_) => println!(
            "  Go's encoding/json  {:8.1} ms  {:.1} times as long",
            ms(theirs),
            ms(theirs) / ms(ours)
        ),
        Err(why) => println!("  Go's encoding/json  skipped: {why}"),
    }
    Ok(())
}

/// The Go program, built; or why there is none.
fn go(dir: &Path) -> Result<std::path::PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/decode/decode.go");
    let program = dir.join("decode-go");
    let built = Command::new("go").arg("build").arg("-o").arg(&program).arg(source).output();
    match built {
        Err(error) => Err(format!("go cannot be run ({error})")),
        Ok(output) if !output.status.success() => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Ok(_) => Ok(program),
    }
}
