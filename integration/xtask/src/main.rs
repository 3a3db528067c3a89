//! The project's commands: `cargo xtask test|lab|demo|sim`. Each sets up what it needs on a bare machine, and says what it does
//! while that takes long. What a lab or a policy is, is known in `gpu-bridge-labs`, not here.

mod lab;
mod program;
mod report;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "gpu-bridge's own commands", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that has to hold before a change lands.
    Test {
        /// Also the tests that take minutes each.
        #[arg(long)]
        heavy: bool,
        /// Only these sections.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<test::Section>,
    },
    /// Real Slurm and real Kubernetes to try things on.
    #[command(subcommand)]
    Lab(lab::Command),
    /// Shows gpu-bridge at work.
    Demo {
        /// On the real schedulers instead of simulated ones.
        #[arg(long)]
        real: bool,
    },
    /// Simulated clusters under random trouble.
    Sim {
        /// First and last seed, `A..B`.
        #[arg(long, default_value = "0..200")]
        seeds: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test { heavy, only } => test::run(heavy, &only).await,
        Command::Lab(command) => lab::run(command).await,
        Command::Demo { real } => demo(real).await,
        Command::Sim { seeds } => {
            program::Cargo::bin("sim", &["--seeds", &seeds]).run().map(|run| run.exit_code())
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

async fn demo(real: bool) -> anyhow::Result<ExitCode> {
    if real {
        lab::prepare(lab::Scheduler::ALL.to_vec()).await?;
        // There the daemon is a process of its own.
        let built =
            program::Cargo::new(&["build", "--package", "gpu-bridge", "--features", "failpoints"]).run()?;
        if !built.ok {
            return Ok(built.exit_code());
        }
    }
    let args: &[&str] = if real { &["--real"] } else { &[] };
    program::Cargo::bin("demo", args).run().map(|run| run.exit_code())
}
