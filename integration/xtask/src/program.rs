//! Running cargo: what it prints goes through at once, and the results of tests are counted on the way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;

/// Tests, as counted by their runners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn read(line: &str) -> Option<Self> {
        let counts = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
        let mut tally = Self::default();
        for part in counts.split("; ") {
            let mut words = part.split(' ');
            let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse() else { continue };
            match word {
                "passed" => tally.passed = number,
                "failed" => tally.failed = number,
                "ignored" => tally.skipped = number,
                _ => {}
            }
        }
        Some(tally)
    }
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ok: bool,
    pub(crate) tally: Tally,
}

impl Run {
    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

const OURS: [&str; 7] = [
    "CARGO",
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_PRIMARY_PACKAGE",
    "OUT_DIR",
];

/// A cargo command line.
#[derive(Debug)]
pub(crate) struct Cargo {
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Cargo {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self { args: args.iter().map(|arg| (*arg).to_owned()).collect(), env: Vec::new() }
    }

    /// One of the integration package's programs.
    pub(crate) fn bin(name: &str, args: &[&str]) -> Self {
        let run = ["run", "--quiet", "--package", "gpu-bridge-integration", "--bin", name, "--"];
        Self::new(&[&run, args].concat())
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs it to its end, without a standard input.
    pub(crate) fn run(&self) -> anyhow::Result<Run> {
        let mut words: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}='{value}'")).collect();
        words.push("cargo".to_owned());
        words.extend_from_slice(&self.args);
        eprintln!("$ {}", words.join(" "));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        // What `cargo run` told us about ourselves must not reach another cargo: build scripts look at it, and would run again.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || OURS.contains(&name.as_ref()) {
                command.env_remove(name.as_ref());
            }
        }
        let mut child = command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(workspace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cargo")?;
        let mut tally = Tally::default();
        let mut out = std::io::stdout().lock();
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout);
            let mut line = Vec::new();
            // By bytes: what a test prints need not be UTF-8.
            while lines.read_until(b'\n', &mut line).context("output of cargo")? > 0 {
                out.write_all(&line)?;
                out.flush()?;
                if let Some(found) = Tally::read(&String::from_utf8_lossy(&line)) {
                    tally.add(found);
                }
                line.clear();
            }
        }
        let ok = child.wait().context("cargo")?.success();
        Ok(Run { ok, tally })
    }
}

/// The workspace that this program was built from.
pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_tests_are_read() {
        let failed = "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.94s\n";
        assert_eq!(Tally::read(failed), Some(Tally { passed: 2, failed: 1, skipped: 3 }));
        let good =
            "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s";
        assert_eq!(Tally::read(good), Some(Tally { passed: 7, failed: 0, skipped: 0 }));
        assert_eq!(Tally::read("running 7 tests"), None);
    }

    #[test]
    fn the_workspace_is_found() {
        assert!(workspace().join("bridge/core/Cargo.toml").is_file());
    }
}
