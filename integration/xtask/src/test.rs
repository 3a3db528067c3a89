//! `cargo xtask test`: the sections, in order. A section that fails stops no other. What this machine can't run is in the
//! table as skipped, with the reason.

use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use gpu_bridge_labs::{Error, wasm};

use crate::lab::Scheduler;
use crate::program::{Cargo, Tally, workspace};
use crate::report::{Line, Outcome, Report};

/// A part of the test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    Format,
    Lint,
    Docs,
    Policies,
    PrepareSlurm,
    PrepareKubernetes,
    Unit,
    SlurmLab,
    KubernetesLab,
    Real,
    Sim,
    Demo,
}

const SECTIONS: [Section; 12] = [
    Section::Format,
    Section::Lint,
    Section::Docs,
    Section::Policies,
    Section::PrepareSlurm,
    Section::PrepareKubernetes,
    Section::Unit,
    Section::SlurmLab,
    Section::KubernetesLab,
    Section::Real,
    Section::Sim,
    Section::Demo,
];

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Lint => "clippy",
            Self::Docs => "docs",
            Self::Policies => "policies to wasm",
            Self::PrepareSlurm => "prepare Slurm",
            Self::PrepareKubernetes => "prepare Kubernetes",
            Self::Unit => "unit tests",
            Self::SlurmLab => "Slurm lab",
            Self::KubernetesLab => "Kubernetes lab",
            Self::Real => "real Slurm x Kubernetes",
            Self::Sim => "simulation",
            Self::Demo => "demo",
        }
    }

    /// The labs that it needs.
    fn needs(self) -> &'static [Scheduler] {
        match self {
            Self::PrepareSlurm | Self::SlurmLab => &[Scheduler::Slurm],
            Self::PrepareKubernetes | Self::KubernetesLab => &[Scheduler::Kubernetes],
            Self::Real => &Scheduler::ALL,
            Self::Format | Self::Lint | Self::Docs | Self::Policies | Self::Unit | Self::Sim | Self::Demo => {
                &[]
            }
        }
    }

    async fn run(self, heavy: bool) -> anyhow::Result<Outcome> {
        for scheduler in self.needs() {
            if let Some(reason) = scheduler.unsupported().await {
                return Ok(Outcome::Skipped(reason));
            }
        }
        let one_by_one = ["--package", INTEGRATION, "--test", "*", "--", "--test-threads=1"];
        let ignored: &[&str] = if heavy { &["--include-ignored"] } else { &[] };
        let runs = match self {
            Self::Format => vec![Cargo::new(&["fmt", "--all", "--check"])],
            Self::Lint => {
                vec![Cargo::new(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])]
            }
            Self::Docs => {
                vec![Cargo::new(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")]
            }
            Self::Policies => return Ok(prepared(wasm::build_policies(&workspace()).await.map(drop))),
            Self::PrepareSlurm => return Ok(prepared(Scheduler::Slurm.prepare().await)),
            Self::PrepareKubernetes => return Ok(prepared(Scheduler::Kubernetes.prepare().await)),
            // What needs labs has sections of its own: the labs' tests have `test = false`, so that only naming them runs them.
            Self::Unit => {
                let mut workspace =
                    tests(&["--workspace", "--exclude", INTEGRATION, "--tests", "--"], ignored);
                if heavy {
                    let seed = SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
                    workspace =
                        workspace.env("PROPTEST_RNG_SEED", seed.to_string()).env("PROPTEST_CASES", "5000");
                }
                let integration = tests(&["--package", INTEGRATION, "--lib", "--bins", "--"], ignored);
                vec![workspace, integration, tests(&["--workspace", "--doc"], &[])]
            }
            Self::SlurmLab => vec![lab_tests("slurm", ignored)],
            Self::KubernetesLab => vec![lab_tests("kubernetes", ignored)],
            // The tests run the binary as its users do, with a way to die after any ledger line.
            Self::Real => vec![
                Cargo::new(&["build", "--package", "gpu-bridge", "--features", "failpoints"]),
                // The Slurm port has one lab per release, all at the same time: they mostly wait.
                tests(
                    &[
                        &["--package", INTEGRATION, "--test", "slurm_port", "--test", "slurm_mouths"][..],
                        &["--", "--test-threads=3"],
                    ]
                    .concat(),
                    ignored,
                )
                .env("GPU_BRIDGE_LABS", "1"),
                tests(&[&one_by_one[..], &["--skip", "on_slurm_"]].concat(), ignored)
                    .env("GPU_BRIDGE_LABS", "1"),
            ],
            Self::Sim => vec![Cargo::bin("sim", &["--seeds", if heavy { "0..5000" } else { "0..200" }])],
            Self::Demo => vec![Cargo::bin("demo", &[])],
        };
        let mut tally = Tally::default();
        let mut ok = true;
        for cargo in runs {
            let run = cargo.run()?;
            tally.add(run.tally);
            ok &= run.ok;
        }
        Ok(if ok { Outcome::Passed(tally) } else { Outcome::Failed(tally) })
    }
}

const INTEGRATION: &str = "gpu-bridge-integration";

fn tests(which: &[&str], ignored: &[&str]) -> Cargo {
    Cargo::new(&[&["test", "--no-fail-fast"], which, ignored].concat())
}

fn lab_tests(test: &str, ignored: &[&str]) -> Cargo {
    tests(&["--package", "gpu-bridge-labs", "--test", test, "--"], ignored).env("GPU_BRIDGE_LABS", "1")
}

fn prepared(done: gpu_bridge_labs::Result<()>) -> Outcome {
    match done {
        Ok(()) => Outcome::Passed(Tally::default()),
        Err(Error::Unsupported(reason)) => Outcome::Skipped(reason),
        Err(error) => {
            eprintln!("{error}");
            Outcome::Failed(Tally::default())
        }
    }
}

pub(crate) async fn run(heavy: bool, only: &[Section]) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    for section in SECTIONS.into_iter().filter(|section| only.is_empty() || only.contains(section)) {
        println!("\n=== {} ===", section.name());
        let start = Instant::now();
        let outcome = section.run(heavy).await?;
        if let Outcome::Skipped(reason) = &outcome {
            println!("skipped: {reason}");
        }
        report.push(Line { section: section.name(), outcome, took: start.elapsed() });
    }
    println!("{}", report.text());
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
