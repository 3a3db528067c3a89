//! `slurm-mock`: a pretend Slurm cluster behind a slurmrestd, for trying things out by hand.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use slurm_mock::{
    Cluster,
    model::JobSpec,
    server::{self, Clock, Options},
};

/// A pretend Slurm cluster behind a slurmrestd (v0.0.41, v0.0.42). Token: mock-token.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Nodes, called gpu1, gpu2, …
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// GPUs on each node.
    #[arg(long, default_value_t = 4)]
    gpus: u32,
    /// Jobs submitted at the start; they take one to ten minutes.
    #[arg(long, default_value_t = 20)]
    jobs: u32,
    /// TCP port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A Unix socket beside it.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// How many model seconds pass in a real one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    speed: i32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let start = Timestamp::now();
    let mut cluster = Cluster::uniform(cli.nodes, cli.gpus, start);
    for number in 0..cli.jobs {
        cluster.submit(job(number, cli.gpus)).context("cannot submit a job")?;
    }
    let speed = cli.speed;
    let clock: Clock = Arc::new(move || {
        let passed = Timestamp::now().duration_since(start).checked_mul(speed);
        passed.and_then(|p| start.checked_add(p).ok()).unwrap_or(start)
    });
    let options = Options {
        tcp: SocketAddr::from(([127, 0, 0, 1], cli.port)),
        socket: cli.socket,
        ..Options::new(cluster, clock)
    };
    let handle = server::serve(options).await?;
    println!("{}", handle.url());
    eprintln!("try: curl -H 'X-SLURM-USER-TOKEN: mock-token' {}/slurm/v0.0.42/nodes", handle.url());
    eprintln!("or:  SLURM_MOCK_URL={} mock-scontrol show node", handle.url());
    tokio::signal::ctrl_c().await.context("cannot wait for ctrl-c")
}

/// The same mixture on every run: users, sizes and lengths go round.
fn job(number: u32, gpus: u32) -> JobSpec {
    let minutes = SignedDuration::from_mins(i64::from(1 + number * 7 % 10));
    let user = ["alice", "bob", "carol"][number as usize % 3];
    let wanted = (1 + number % 4).min(gpus);
    let spec = JobSpec::new(user, 1, wanted, minutes).limit(minutes.saturating_mul(2));
    JobSpec { name: format!("job{number}"), ..spec }
}
