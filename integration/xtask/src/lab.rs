//! `cargo xtask lab`: labs that stay up until they are taken down, for people.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use gpu_bridge_labs::run::{self, Kind, Life};
use gpu_bridge_labs::{kubernetes, slurm};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts labs and leaves them running.
    Up {
        #[command(flatten)]
        which: Which,
        /// The Slurm release.
        #[arg(long, value_enum, default_value = "24.11")]
        release: Release,
        /// Nodes in each lab: gpu1, gpu2, …
        #[arg(long, default_value_t = 4)]
        nodes: usize,
    },
    /// Takes them down.
    Down {
        #[command(flatten)]
        which: Which,
    },
    /// Shows what runs and how to use it.
    Status {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// One of the two; both when left out.
    scheduler: Option<Scheduler>,
}

impl Which {
    fn all(&self) -> Vec<Scheduler> {
        self.scheduler.map_or_else(|| Scheduler::ALL.to_vec(), |one| vec![one])
    }

    fn kind(&self) -> Option<Kind> {
        self.scheduler.map(Scheduler::kind)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheduler {
    Slurm,
    Kubernetes,
}

impl Scheduler {
    pub(crate) const ALL: [Self; 2] = [Self::Slurm, Self::Kubernetes];

    fn kind(self) -> Kind {
        match self {
            Self::Slurm => Kind::Slurm,
            Self::Kubernetes => Kind::Kubernetes,
        }
    }

    /// Why this machine can't run it, if it can't.
    pub(crate) async fn unsupported(self) -> Option<String> {
        match self {
            Self::Slurm => slurm::unsupported(),
            Self::Kubernetes => kubernetes::unsupported().await,
        }
    }

    /// Makes what is slow to make, once.
    pub(crate) async fn prepare(self) -> gpu_bridge_labs::Result<()> {
        match self {
            // The default first: what it may have to install on this machine, the others need too.
            Self::Slurm => {
                slurm::prepare(slurm::Release::default()).await?;
                let (v22_05, v26_05) = (slurm::Release::V22_05, slurm::Release::V26_05);
                tokio::try_join!(slurm::prepare(v22_05), slurm::prepare(v26_05)).map(drop)
            }
            Self::Kubernetes => kubernetes::prepare().await.map(drop),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Release {
    #[value(name = "22.05")]
    V22_05,
    #[value(name = "24.11")]
    V24_11,
    #[value(name = "26.05")]
    V26_05,
}

impl From<Release> for slurm::Release {
    fn from(release: Release) -> Self {
        match release {
            Release::V22_05 => Self::V22_05,
            Release::V24_11 => Self::V24_11,
            Release::V26_05 => Self::V26_05,
        }
    }
}

/// Makes what these labs need, so that they start in seconds.
pub(crate) async fn prepare(schedulers: Vec<Scheduler>) -> anyhow::Result<()> {
    for scheduler in schedulers {
        scheduler.prepare().await.with_context(|| format!("{} lab", scheduler.kind().name()))?;
    }
    Ok(())
}

pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up { which, release, nodes } => {
            for scheduler in which.all() {
                up(scheduler, release, nodes)
                    .await
                    .with_context(|| format!("{} lab", scheduler.kind().name()))?;
            }
            print(which.kind())
        }
        Command::Down { which } => {
            for path in run::down(which.kind()).await? {
                println!("{} is down", path.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { which } => print(which.kind()),
    }
}

async fn up(scheduler: Scheduler, release: Release, nodes: usize) -> anyhow::Result<()> {
    if let Some(lab) = run::detached(Some(scheduler.kind()))?.first() {
        eprintln!("{} is up already: {}", scheduler.kind().name(), lab.path.display());
        return Ok(());
    }
    match scheduler {
        Scheduler::Slurm => {
            let options = slurm::Options {
                release: release.into(),
                nodes: slurm::Node::several(nodes),
                life: Life::Detached,
                ..slurm::Options::default()
            };
            slurm::Lab::up(options).await?;
        }
        Scheduler::Kubernetes => {
            let options = kubernetes::Options {
                nodes: kubernetes::Node::several(nodes),
                life: Life::Detached,
                ..kubernetes::Options::default()
            };
            kubernetes::Lab::up(options).await?;
        }
    }
    Ok(())
}

/// Prints the labs; fails when there is none, or one of them has parts that run no more.
fn print(kind: Option<Kind>) -> anyhow::Result<ExitCode> {
    let labs = run::detached(kind)?;
    if labs.is_empty() {
        println!("no lab is up");
        return Ok(ExitCode::FAILURE);
    }
    let mut whole = true;
    for lab in labs {
        for line in &lab.record.usage {
            println!("{line}");
        }
        if !lab.dead.is_empty() {
            whole = false;
            println!("NOT RUNNING: {}", lab.dead.join(", "));
        }
        println!();
    }
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
