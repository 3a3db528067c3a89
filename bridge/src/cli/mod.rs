//! The command line. Standard output is data, standard error is talk; every command that shows something has
//! `--output json`, and errors are JSON then too. Exit status: 0 done, 1 it did not come off or was refused, 2 wrong arguments, 78 a configuration with
//! problems.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use gpu_bridge_core::event::{Event, ReleaseMode};
use gpu_bridge_core::ids::{HandoverId, NodeName, Ticket};
use gpu_bridge_core::model::Domain;
use serde::Serialize;
use tracing_subscriber::EnvFilter;

pub(crate) mod client;
mod show;
mod slurm;
mod told;

use client::Client;
use told::{complain, fail, hint, tell_program, wants_json, warn};

use crate::code::{self, Told};
use crate::daemon::command::{Command, Go, Refusal, Reply};
use crate::daemon::journal::Line;
use crate::daemon::published::NodeStatus;
use crate::{assemble, config, kubernetes, ledger};

/// `EX_CONFIG` of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;
/// As clap's own.
const WRONG_ARGUMENTS: u8 = 2;

/// Moves GPU nodes between Slurm and Kubernetes, safely.
#[derive(Debug, Parser)]
#[command(name = "gpu-bridge", version, about)]
struct Cli {
    /// Where the daemon listens (`daemon.socket`); for commands that ask it.
    #[arg(long, global = true, default_value = "/run/gpu-bridge/gpu-bridge.sock")]
    socket: PathBuf,
    /// How answers are printed.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Run the daemon.
    Run {
        /// The configuration.
        #[arg(long, default_value = "/etc/gpu-bridge/gpu-bridge.toml")]
        config: PathBuf,
    },
    /// Check a configuration: all problems at once. Exits with 78 where there are any.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Domains, pools, nodes, alarms.
    Status,
    /// Every node: owner, pool, gates, handover.
    Nodes,
    /// The calendar's windows.
    Windows,
    /// What is planned and under way, and what was denied.
    Plan,
    /// Why something is as it is.
    #[command(subcommand)]
    Explain(Explain),
    /// Move a node to the other scheduler.
    Move {
        /// Which node.
        node: String,
        /// Whereto.
        #[arg(long, value_enum)]
        to: DomainArg,
        /// Why, in one line for the ledger.
        #[arg(long)]
        reason: String,
        /// The change ticket.
        #[arg(long)]
        ticket: Option<String>,
    },
    /// Roll a handover back.
    Cancel {
        /// Which handover, such as h0042.
        handover: HandoverId,
        /// Why.
        #[arg(long, default_value = "no reason given")]
        reason: String,
    },
    /// Take nodes under management: shows what it would do, and does it with --yes.
    Adopt {
        /// Nodes, or host lists such as gpu[1-4].
        #[arg(required = true)]
        nodes: Vec<String>,
        /// Who is to own them; without it, whoever has work on them, else the home pool's domain.
        #[arg(long, value_enum)]
        owner: Option<DomainArg>,
        /// Carry it out.
        #[arg(long)]
        yes: bool,
    },
    /// Take management away: shows what it would do, and does it with --yes.
    Release {
        /// Nodes, or host lists such as gpu[1-4].
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        nodes: Vec<String>,
        /// All managed nodes.
        #[arg(long)]
        all: bool,
        /// Put back exactly what was found at adoption, instead of leaving the owner open and the other side closed.
        #[arg(long)]
        as_found: bool,
        /// Carry it out.
        #[arg(long)]
        yes: bool,
    },
    /// The ledger file, with or without a daemon.
    #[command(subcommand)]
    Ledger(LedgerCmd),
    /// The Slurm side, with or without a daemon.
    #[command(subcommand)]
    Slurm(slurm::SlurmCmd),
    /// The Kubernetes side.
    #[command(subcommand)]
    Kubernetes(KubernetesCmd),
}

#[derive(Debug, Subcommand)]
enum Explain {
    /// Where a node is and why, what happens next and what it waits for.
    Node {
        /// Which.
        name: String,
    },
    /// What an error code means, and what to do about it.
    Error {
        /// Which, such as GB0201.
        code: String,
    },
}

#[derive(Debug, Args)]
struct StateDir {
    /// The daemon's state folder (`daemon.state_dir`).
    #[arg(long, default_value = "/var/lib/gpu-bridge")]
    state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum LedgerCmd {
    /// Print its lines.
    Show {
        #[command(flatten)]
        at: StateDir,
    },
    /// Check its chain.
    Verify {
        #[command(flatten)]
        at: StateDir,
    },
    /// Cut a broken ledger, with the daemon stopped: the lines from N on are moved aside. Marks of nodes that the lines
    /// before do not know as ours are imported at the next start.
    Cut {
        #[command(flatten)]
        at: StateDir,
        /// The first line to go.
        #[arg(long = "at")]
        line: u64,
        /// Carry it out.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
enum KubernetesCmd {
    /// Print the guards and rights to apply: `gpu-bridge kubernetes manifests | kubectl apply -f -`.
    Manifests {
        /// The configuration.
        #[arg(long, default_value = "/etc/gpu-bridge/gpu-bridge.toml")]
        config: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DomainArg {
    Slurm,
    Kubernetes,
}

impl From<DomainArg> for Domain {
    fn from(arg: DomainArg) -> Self {
        match arg {
            DomainArg::Slurm => Self::Slurm,
            DomainArg::Kubernetes => Self::Kubernetes,
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && wants_json(std::env::args_os()) => {
            let message = error.to_string().trim().to_owned();
            let advice = Some("`gpu-bridge help` lists commands and options".to_owned());
            tell_program(&Told { code: None, message, advice });
            return ExitCode::from(WRONG_ARGUMENTS);
        }
        // Help and version are no errors; clap knows.
        Err(error) => error.exit(),
    };
    let output = cli.output;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(dispatch(cli));
            // A look that hangs must not hold up the exit.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(anyhow::Error::new(error).context("the async runtime cannot be started")),
    };
    done.unwrap_or_else(|error| {
        if is_closed_pipe(error.as_ref()) {
            return ExitCode::SUCCESS;
        }
        fail(output, error.as_ref());
        ExitCode::FAILURE
    })
}

/// Whoever read our output has had enough of it (`| head`).
fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

async fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { socket, output, command } = cli;
    let client = || Client::new(&socket);
    match command {
        Cmd::Run { config } => return run(&config, output).await,
        Cmd::Check { file } => return check(&file, output).await,
        Cmd::Status => {
            let published = client()?.published().await?;
            print(output, &published, show::status)?;
        }
        Cmd::Nodes => {
            let published = client()?.published().await?;
            print(output, &published.nodes, |_| show::nodes(&published))?;
        }
        Cmd::Windows => {
            let published = client()?.published().await?;
            print(output, &published.windows, |_| show::windows(&published))?;
        }
        Cmd::Plan => {
            let published = client()?.published().await?;
            print(output, &show::Planned::of(&published), |_| show::plan(&published))?;
        }
        Cmd::Explain(Explain::Error { code }) => {
            let page = code::page(&code).ok_or_else(|| Refusal::Invalid {
                found: format!("error code {code:?}"),
                expected: "one that a message ends in, such as GB0201".to_owned(),
            })?;
            print(output, &page, |page| format!("{}\n\n{}\n\nDo: {}", page.code, page.means, page.advice))?;
        }
        Cmd::Explain(Explain::Node { name }) => {
            let name = NodeName::new(name);
            let client = client()?;
            let reply = client.request(&Command::Explain { node: name.clone() }).await?;
            let published = client.published().await?;
            let lines: &[Line] = match &reply {
                Reply::Explained { lines } => lines,
                Reply::Planned { .. }
                | Reply::Cancelling { .. }
                | Reply::Adopting { .. }
                | Reply::Releasing { .. } => &[],
            };
            let node = published.nodes.iter().find(|node| node.node == name);
            print(output, &Explained { node, lines }, |_| show::explain(&published, &name, lines))?;
        }
        Cmd::Move { node, to, reason, ticket } => {
            let command = Command::Move {
                node: NodeName::new(node),
                to: to.into(),
                reason,
                ticket: ticket.map(Ticket::new),
            };
            ask(&client()?, output, &command).await?;
        }
        Cmd::Cancel { handover, reason } => {
            ask(&client()?, output, &Command::Cancel { handover, reason }).await?;
        }
        Cmd::Adopt { nodes, owner, yes } => {
            let command =
                Command::Adopt { nodes: expand(&nodes)?, owner: owner.map(Into::into), go: go(yes) };
            let reply = ask(&client()?, output, &command).await?;
            hint(output, yes);
            if refused(&reply) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Cmd::Release { nodes, all: _, as_found, yes } => {
            let mode = if as_found { ReleaseMode::AsFound } else { ReleaseMode::Plain };
            let command = Command::Release { nodes: expand(&nodes)?, mode, go: go(yes) };
            let reply = ask(&client()?, output, &command).await?;
            hint(output, yes);
            if refused(&reply) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Cmd::Ledger(command) => return ledger_command(command, output),
        Cmd::Slurm(command) => return slurm::run(command, output).await,
        Cmd::Kubernetes(KubernetesCmd::Manifests { config }) => {
            let config = match config::check_with(&config, config::Files::Ignored) {
                Ok(config) => config,
                Err(problems) => return Ok(complain(output, &problems)),
            };
            let text = kubernetes::manifests::render(&assemble::manifest_options(&config)?)?;
            writeln!(std::io::stdout(), "{text}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn go(yes: bool) -> Go {
    if yes { Go::Yes } else { Go::Plan }
}

/// What `explain node` shows.
#[derive(Serialize)]
struct Explained<'a> {
    node: Option<&'a NodeStatus>,
    lines: &'a [Line],
}

/// Was any node of the answer refused?
fn refused(reply: &Reply) -> bool {
    match reply {
        Reply::Adopting { nodes } => nodes.iter().any(|one| one.adoption.is_err()),
        Reply::Releasing { nodes } => nodes.iter().any(|one| one.leaves.is_err()),
        Reply::Planned { .. } | Reply::Cancelling { .. } | Reply::Explained { .. } => false,
    }
}

async fn ask(client: &Client, output: Output, command: &Command) -> anyhow::Result<Reply> {
    let reply = client.request(command).await?;
    print(output, &reply, show::reply)?;
    Ok(reply)
}

fn expand(nodes: &[String]) -> anyhow::Result<Vec<NodeName>> {
    let mut names = Vec::new();
    for pattern in nodes {
        let hosts = gpu_bridge_core::hostlist::expand(pattern).map_err(|error| Refusal::Invalid {
            found: format!("{pattern:?}, which {error}"),
            expected: "a node or a host list such as gpu[1-4]".to_owned(),
        })?;
        names.extend(hosts.into_iter().map(NodeName::new));
    }
    Ok(names)
}

fn print<T: Serialize>(output: Output, value: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => text(value),
        Output::Json => serde_json::to_string_pretty(value)?,
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

async fn check(file: &std::path::Path, output: Output) -> anyhow::Result<ExitCode> {
    let checked = match config::check(file) {
        Ok(config) => {
            let problems = assemble::problems(&config).await;
            if problems.is_empty() { Ok(config) } else { Err(problems) }
        }
        Err(problems) => Err(problems),
    };
    match checked {
        Ok(config) => {
            warn(output, &config.warnings(jiff::Timestamp::now()));
            if output == Output::Text {
                println!(
                    "{}: good ({} nodes, {} pools, {} policies, {} windows)",
                    file.display(),
                    config.site.nodes.len(),
                    config.site.pools.len(),
                    config.policies.len(),
                    config.calendar.windows().count()
                );
            } else {
                println!("[]");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => match output {
            Output::Text => Ok(complain(output, &problems)),
            Output::Json => {
                println!("{}", serde_json::to_string_pretty(&problems)?);
                Ok(ExitCode::from(BAD_CONFIGURATION))
            }
        },
    }
}

async fn run(file: &std::path::Path, output: Output) -> anyhow::Result<ExitCode> {
    let config = match config::check(file) {
        Ok(config) => config,
        Err(problems) => return Ok(complain(output, &problems)),
    };
    // What the Kubernetes client logs of failed calls, our own errors say better.
    let filter = EnvFilter::try_new(format!("kube_client=off,{}", config.daemon.log))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        subscriber.init();
    } else {
        // journald keeps the time itself.
        subscriber.without_time().with_ansi(false).init();
    }
    for warning in config.warnings(jiff::Timestamp::now()) {
        tracing::warn!("{warning}");
    }
    match assemble::run(config).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is_configuration() => {
            fail(output, &error);
            Ok(ExitCode::from(BAD_CONFIGURATION))
        }
        Err(error) => Err(error.into()),
    }
}

fn ledger_command(command: LedgerCmd, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        LedgerCmd::Show { at } => {
            let path = ledger::path_in(&at.state_dir);
            for entry in ledger::Entries::<Event>::open(&path)? {
                let entry = entry.with_context(|| path.display().to_string())?;
                let line = Line { seq: entry.seq.0, at: entry.at, event: entry.event };
                match output {
                    Output::Json => writeln!(std::io::stdout(), "{}", serde_json::to_string(&line)?)?,
                    Output::Text => {
                        if let Some(says) = show::says(&line.event) {
                            writeln!(std::io::stdout(), "{:>6}  {}  {says}", line.seq, line.at)?;
                        }
                    }
                }
            }
        }
        LedgerCmd::Verify { at } => {
            let report = ledger::verify(&ledger::path_in(&at.state_dir))?;
            print(output, &report, ToString::to_string)?;
            if report.code.is_some() {
                return Ok(ExitCode::FAILURE);
            }
        }
        LedgerCmd::Cut { at, line, yes: false } => {
            print(output, &ledger::plan_cut(&at.state_dir, line)?, ToString::to_string)?;
            hint(output, false);
        }
        LedgerCmd::Cut { at, line, yes: true } => {
            print(output, &ledger::cut(&at.state_dir, line)?, ToString::to_string)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
