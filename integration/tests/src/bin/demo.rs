//! `cargo xtask demo`: a promotion evening, told as a timeline.

use clap::{Parser, Subcommand};
use gpu_bridge_integration::demo;

#[derive(Debug, Parser)]
#[command(about = "A promotion evening: a calendar window moves nodes from Slurm to Kubernetes and back")]
struct Cli {
    /// On real Slurm and a real Kubernetes control plane instead of the embedded stand-ins.
    #[arg(long)]
    real: bool,
    #[command(subcommand)]
    command: Option<Cmd>,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Pass arguments on to the stand-in's scontrol, as the daemon does with a real one.
    #[command(hide = true)]
    Scontrol {
        /// The stand-in.
        url: String,
        /// scontrol's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        argv: Vec<String>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let Cli { real, command } = Cli::parse();
    if let Some(Cmd::Scontrol { url, argv }) = command {
        return demo::scontrol(&url, argv).await;
    }
    let good = if real { demo::real().await? } else { demo::embedded().await? };
    Ok(if good { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE })
}
