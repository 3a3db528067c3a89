//! The daemon as its users run it: the binary, its configuration file, its command line.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gpu_bridge::daemon::published::{NodeStatus, Published};
use gpu_bridge_core::event::Event;
use gpu_bridge_core::gate::Gate;
use gpu_bridge_core::model::Domain;
use gpu_bridge_labs::wait_until;
use tokio::process::{Child, Command};

use crate::labs::LIMIT;

/// A start looks at both schedulers once, and one that is away takes its time.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// A running daemon. Dropping it kills it.
pub struct Daemon {
    child: Child,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

/// The binary under test, built by `cargo build -p gpu-bridge --features failpoints`.
pub fn binary() -> anyhow::Result<PathBuf> {
    let tests = std::env::current_exe()?;
    // target/debug/deps/NAME or target/debug/NAME
    let folder = tests.ancestors().skip(1).find(|folder| folder.join("gpu-bridge").is_file());
    let folder = folder
        .context("no gpu-bridge beside the tests: `cargo build -p gpu-bridge --features failpoints`")?;
    Ok(folder.join("gpu-bridge"))
}

impl Daemon {
    /// Starts it on a configuration file, and waits until it answers.
    pub async fn start(config: &Path, socket: &Path) -> anyhow::Result<Self> {
        let daemon = Self::spawn(config, socket, &[])?;
        daemon.ready().await?;
        Ok(daemon)
    }

    /// Starts it with further environment, without waiting.
    pub fn spawn(config: &Path, socket: &Path, env: &[(&str, String)]) -> anyhow::Result<Self> {
        let log = config.with_extension("log");
        let open = std::fs::File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(binary()?);
        command
            .args(["run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open)
            .kill_on_drop(true);
        for (name, value) in env {
            command.env(name, value);
        }
        let child = command.spawn().context("gpu-bridge run")?;
        Ok(Self { child, config: config.to_owned(), socket: socket.to_owned(), log })
    }

    /// Waits until it answers.
    pub async fn ready(&self) -> anyhow::Result<()> {
        wait_until("the daemon to answer", READY_LIMIT, async || {
            self.published().await.map(drop).map_err(|e| e.to_string())
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("the daemon's log ends:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    /// `gpu-bridge ARGS --socket … --output json`, as JSON. A refusal is an error.
    pub async fn cli(&self, args: &[&str]) -> anyhow::Result<serde_json::Value> {
        let output = self.cli_raw(args).await?;
        if !output.status.success() {
            bail!(
                "gpu-bridge {}: {}\n{}{}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The same, whatever comes of it.
    pub async fn cli_raw(&self, args: &[&str]) -> anyhow::Result<std::process::Output> {
        let mut command = Command::new(binary()?);
        command.args(args).arg("--socket").arg(&self.socket).args(["--output", "json"]).stdin(Stdio::null());
        Ok(command.output().await?)
    }

    /// What it shows of itself.
    pub async fn published(&self) -> anyhow::Result<Published> {
        Ok(serde_json::from_value(self.cli(&["status"]).await?)?)
    }

    /// One node's line.
    pub async fn node(&self, name: &str) -> anyhow::Result<NodeStatus> {
        let published = self.published().await?;
        let node = published.nodes.into_iter().find(|node| node.node.as_str() == name);
        node.with_context(|| format!("no node {name}"))
    }

    /// Waits until what it shows satisfies `good`; tells what it was at the end where it never does.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        good: impl Fn(&Published) -> bool,
    ) -> anyhow::Result<Published> {
        wait_until(what, limit, async || {
            let published = self.published().await.map_err(|error| error.to_string())?;
            if good(&published) {
                return Ok(published);
            }
            let nodes: Vec<String> = published
                .nodes
                .iter()
                .map(|n| {
                    format!(
                        "{} {} {:?} slurm {} kubernetes {} {:?} waits for {:?}",
                        n.node, n.management, n.owner, n.slurm, n.kubernetes, n.handover, n.waits_for
                    )
                })
                .collect();
            Err(format!("{}\nalarms {:?}", nodes.join("\n"), published.alarms))
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// Adopts nodes, and waits until they are its own.
    pub async fn adopt(&self, nodes: &str, owner: Domain) -> anyhow::Result<()> {
        self.cli(&["adopt", nodes, "--owner", &owner.to_string(), "--yes"]).await?;
        let names = gpu_bridge_core::hostlist::expand(nodes).context("the nodes")?;
        self.until(&format!("{nodes} to be adopted"), LIMIT, |published| {
            let mut ours =
                published.nodes.iter().filter(|n| names.iter().any(|name| n.node.as_str() == name));
            ours.all(|n| is_settled(n, owner))
        })
        .await
        .map(drop)
    }

    /// Asks for a move; gives the handover's id.
    pub async fn start_move(&self, node: &str, to: Domain) -> anyhow::Result<String> {
        let reply = self.cli(&["move", node, "--to", &to.to_string(), "--reason", "a test"]).await?;
        let id = reply["handover"].as_str().with_context(|| format!("no handover in {reply}"))?;
        Ok(id.to_owned())
    }

    /// Waits until a node is at home in a domain, with the gates that belong to that.
    pub async fn arrives(&self, node: &str, owner: Domain) -> anyhow::Result<()> {
        self.until(&format!("{node} to be {owner}'s"), LIMIT, |published| {
            published.nodes.iter().any(|n| n.node.as_str() == node && is_settled(n, owner))
        })
        .await
        .map(drop)
    }

    /// Waits until a node's handover is at a step.
    pub async fn reaches(&self, node: &str, step: &str) -> anyhow::Result<()> {
        self.until(&format!("{node}'s handover to be {step}"), LIMIT, |published| {
            let mut nodes = published.nodes.iter();
            nodes.any(|n| {
                n.node.as_str() == node && n.handover.as_ref().is_some_and(|handover| handover.step == step)
            })
        })
        .await
        .map(drop)
    }

    /// Moves a node and waits until it has arrived.
    pub async fn moves(&self, node: &str, to: Domain) -> anyhow::Result<()> {
        self.start_move(node, to).await?;
        self.arrives(node, to).await
    }

    /// `release --all --as-found --yes`, and waits until nothing is managed.
    pub async fn releases_all_as_found(&self) -> anyhow::Result<()> {
        self.cli(&["release", "--all", "--as-found", "--yes"]).await?;
        let released = |published: &Published| published.nodes.iter().all(|n| n.management == "unmanaged");
        self.until("everything to be released", LIMIT, released).await.map(drop)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let id = self.child.id().context("it has ended already")?;
        let pid = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw).context("no pid")?;
        rustix::process::kill_process(pid, signal).context("the signal")
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
        Ok(tokio::time::timeout(limit, self.child.wait()).await.context("the daemon did not end")??)
    }

    /// Whether the process still runs.
    pub fn runs(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// `kill -9`.
    pub async fn kill9(mut self) -> anyhow::Result<()> {
        self.child.kill().await?;
        Ok(())
    }

    /// SIGTERM; it must end within 5 s, and well.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::TERM)?;
        let status = self.ended(Duration::from_secs(5)).await?;
        if !status.success() {
            bail!("the daemon ended with {status}\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }
}

/// Managed, in no handover, the owner's gate open and the other one closed.
fn is_settled(node: &NodeStatus, owner: Domain) -> bool {
    let (own, other) = match owner {
        Domain::Slurm => (&node.slurm, &node.kubernetes),
        Domain::Kubernetes => (&node.kubernetes, &node.slurm),
    };
    node.management == "managed"
        && node.owner == Some(owner)
        && node.handover.is_none()
        && *own == Gate::Open
        && *other == Gate::Closed
}

/// The events of a state folder's ledger, with their numbers.
pub fn ledger(state_dir: &Path) -> anyhow::Result<Vec<(u64, Event)>> {
    let entries = gpu_bridge::ledger::Entries::<Event>::open(&gpu_bridge::ledger::path_in(state_dir))?;
    entries.map(|entry| entry.map(|entry| (entry.seq.0, entry.event)).map_err(Into::into)).collect()
}
