//! The real binary and bad input: configurations, state folders, tokens, servers that answer nonsense. Needs no labs.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpu_bridge::slurm::Mode;
use gpu_bridge_core::model::Domain::{self, Kubernetes, Slurm};
use gpu_bridge_integration::daemon::{Daemon, binary, ledger};
use gpu_bridge_integration::site::{NODES, Site};
use jiff::Timestamp;
use slurm_mock::rest::faults::{Action, Fault};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_mins(1);
/// The exit status of a configuration with problems.
const BAD_CONFIGURATION: i32 = 78;

/// Two stand-ins in real time, and a folder with a site on them.
struct World {
    slurm: slurm_mock::server::Handle,
    kubernetes: kube_mock::server::Handle,
    folder: tempfile::TempDir,
    site: Site,
}

impl World {
    async fn up() -> anyhow::Result<Self> {
        let cluster = slurm_mock::Cluster::uniform(4, 4, Timestamp::now());
        let slurm = slurm_mock::server::Options::new(cluster, Arc::new(Timestamp::now));
        let slurm = slurm_mock::server::serve(slurm).await?;
        let mut cluster = kube_mock::Cluster::new(Timestamp::now());
        for name in NODES {
            let node = kube_mock::NodeSpec { name: name.to_owned(), gpus: 4, ..Default::default() };
            cluster.add_node(&node);
        }
        let kubernetes = kube_mock::server::serve(cluster, Arc::new(Timestamp::now)).await?;
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("slurm.jwt"), "mock-token")?;
        kubernetes.kubeconfig_file(&at("kubeconfig"))?;
        let site = Site {
            state_dir: at("state"),
            socket: at("socket"),
            mode: Mode::Rest,
            slurm_url: slurm.url(),
            token_file: at("slurm.jwt"),
            // Nothing here writes to Slurm.
            scontrol: vec!["false".to_owned()],
            kubeconfig: at("kubeconfig"),
            kubernetes_user: "gpu-bridge".to_owned(),
            prewarm: None,
            calendar: String::new(),
            deadline: "10m".to_owned(),
            escalation: "wait".to_owned(),
            floor: 0,
        };
        Ok(Self { slurm, kubernetes, folder, site })
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("gpu-bridge.toml")
    }

    async fn daemon(&self) -> anyhow::Result<Daemon> {
        std::fs::write(self.config(), self.site.toml())?;
        Daemon::start(&self.config(), &self.site.socket).await
    }

    /// `gpu-bridge check` on a text.
    async fn check(&self, toml: &str) -> anyhow::Result<(Option<i32>, String)> {
        std::fs::write(self.config(), toml)?;
        let output = run(&["check", &self.config().to_string_lossy()]).await?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    }
}

async fn run(args: &[&str]) -> anyhow::Result<Output> {
    let output = Command::new(binary()?).args(args).kill_on_drop(true).output();
    Ok(tokio::time::timeout(LIMIT, output).await.context("gpu-bridge hangs")??)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Why a domain is Unknown, once it is.
async fn unknown(daemon: &Daemon, domain: Domain) -> anyhow::Result<String> {
    let published = daemon
        .until(&format!("{domain} to be unknown"), LIMIT, |published| {
            published.domains.iter().any(|d| d.domain == domain && d.unknown.is_some())
        })
        .await?;
    let why = published.domains.into_iter().find(|d| d.domain == domain).and_then(|d| d.unknown);
    why.context("no reason")
}

async fn all_seen(daemon: &Daemon) -> anyhow::Result<()> {
    let seen = |published: &gpu_bridge::daemon::published::Published| {
        published.domains.iter().all(|d| d.unknown.is_none())
    };
    daemon.until("both to be seen", LIMIT, seen).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_every_problem_at_once() -> anyhow::Result<()> {
    let mut world = World::up().await?;
    let good = world.site.toml();
    let (code, said) = world.check(&good).await?;
    ensure!(code == Some(0), "{said}");

    // (what is put in place of what, what must be said)
    let broken = [
        ("tick = \"500ms\"", "tik = \"500ms\"", "tik"),
        ("gpus = 4", "gpus = \"four\"", "gpus"),
        ("max_handovers = 4\ndrain", "max_handovers = -1\ndrain", "max_handovers"),
        ("nodes = \"gpu[1-4]\"", "nodes = \"\"", "pool.main.nodes"),
        ("drain_deadline = \"10m\"", "drain_deadline = \"-10m\"", "drain_deadline"),
        ("escalation = \"wait\"\nprotected", "escalation = \"kill\"\nprotected", "escalation"),
    ];
    let mut all = good.clone();
    for (from, to, says) in broken {
        ensure!(good.contains(from), "{from} is not in the configuration");
        let (code, said) = world.check(&good.replacen(from, to, 1)).await?;
        ensure!(code == Some(BAD_CONFIGURATION), "{to}: {code:?} {said}");
        ensure!(said.contains(says) && said.contains("gpu-bridge.toml:"), "{to}: {said}");
        all = all.replacen(from, to, 1);
    }
    let (code, said) = world.check(&all).await?;
    ensure!(code == Some(BAD_CONFIGURATION));
    for (_, _, says) in broken {
        ensure!(said.contains(says), "{says} is missing in {said}");
    }

    let (code, said) = world.check("this is not TOML").await?;
    ensure!(code == Some(BAD_CONFIGURATION) && said.contains("GB0101"), "{said}");
    let output = run(&["check", "/nonexistent/gpu-bridge.toml"]).await?;
    ensure!(output.status.code() == Some(BAD_CONFIGURATION) && stderr(&output).contains("GB0100"));
    for (calendar, says) in [
        (window("gpu-bursts", "Asia/Shanghai"), "gpu-bursts"),
        (window("gpu-burst", "Asia/Shangai"), "Asia/Shangai"),
    ] {
        world.site.calendar = calendar;
        let (code, said) = world.check(&world.site.toml()).await?;
        ensure!(code == Some(BAD_CONFIGURATION) && said.contains(says), "{says}: {said}");
    }
    world.site.calendar = String::new();
    let twice = format!("{good}\n[[node]]\nname = \"gpu2\"\ngpu_model = \"a100\"\ngpus = 4\n");
    let (code, said) = world.check(&twice).await?;
    ensure!(code == Some(BAD_CONFIGURATION) && said.contains("gpu2") && said.contains("GB0105"), "{said}");
    // Not only `check` refuses: `run` does, and leaves nothing behind.
    let output = run(&["run", "--config", &world.config().to_string_lossy()]).await?;
    ensure!(output.status.code() == Some(BAD_CONFIGURATION) && stderr(&output).contains("GB0105"));
    ensure!(!world.site.state_dir.exists());
    Ok(())
}

fn window(pool: &str, zone: &str) -> String {
    format!(
        "[[window]]\nname = \"w\"\npool = \"{pool}\"\nnodes = 1\ncron = \"0 18 * * FRI\"\nzone = \"{zone}\"\nduration = \"2h\"\nowner = \"o\"\nexpires = \"2030-01-01\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_read_are_named() -> anyhow::Result<()> {
    let world = World::up().await?;
    for (file, key) in [("kubeconfig", "kubernetes.kubeconfig"), ("slurm.jwt", "slurm.token_file")] {
        let path = world.folder.path().join(file);
        let content = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        let (code, said) = world.check(&world.site.toml()).await?;
        ensure!(code == Some(BAD_CONFIGURATION), "{said}");
        ensure!(said.contains(key) && said.contains("GB0107"), "{said}");
        std::fs::write(&path, content)?;
    }
    // Not a policy.
    let mut site = world.site.clone();
    site.prewarm = Some(world.config());
    std::fs::write(world.config(), site.toml())?;
    let output = run(&["run", "--config", &world.config().to_string_lossy()]).await?;
    let said = stderr(&output);
    ensure!(!output.status.success() && said.contains("policy prewarm"), "{said}");
    // Not a kubeconfig.
    std::fs::write(&world.site.kubeconfig, "neither YAML: nor: a kubeconfig")?;
    std::fs::write(world.config(), world.site.toml())?;
    let output = run(&["run", "--config", &world.config().to_string_lossy()]).await?;
    let said = stderr(&output);
    ensure!(!output.status.success() && said.contains("kubeconfig"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_it_says_so() -> anyhow::Result<()> {
    let world = World::up().await?;
    let socket = world.site.socket.to_string_lossy().into_owned();
    for command in [
        &["status"][..],
        &["nodes"],
        &["plan"],
        &["windows"],
        &["explain", "node", "gpu1"],
        &["move", "gpu1", "--to", "slurm", "--reason", "x"],
    ] {
        let output = run(&[command, &["--socket", &socket]].concat()).await?;
        let said = stderr(&output);
        ensure!(output.status.code() == Some(1), "{command:?}: {said}");
        ensure!(said.contains("no daemon answers on") && said.contains(&socket), "{command:?}: {said}");
        ensure!(output.stdout.is_empty(), "standard output is data");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_starts_stops_and_shares_its_folder_with_nobody() -> anyhow::Result<()> {
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    let published = daemon.published().await?;
    ensure!(published.nodes.len() == 4 && published.nodes.iter().all(|n| n.management == "unmanaged"));
    // Requests that make no sense are refused by name.
    for (args, says) in [
        (&["move", "gpu9", "--to", "slurm", "--reason", "x"][..], "gpu9"),
        (&["move", "gpu1", "--to", "slurm", "--reason", " "], "reason"),
        (&["move", "gpu1", "--to", "kubernetes", "--reason", "x"], "gpu1"),
        (&["cancel", "h0007"], "h0007"),
        (&["adopt", "gpu[1-"], "gpu[1-"),
    ] {
        let output = daemon.cli_raw(args).await?;
        let said = stderr(&output);
        ensure!(!output.status.success() && said.contains(says), "{args:?}: {said}");
    }
    // A second one on the same folder, with a socket of its own and without.
    let mut other = world.site.clone();
    other.socket = world.folder.path().join("other");
    let path = world.folder.path().join("other.toml");
    std::fs::write(&path, other.toml())?;
    for config in [path, world.config()] {
        let output = run(&["run", "--config", &config.to_string_lossy()]).await?;
        let said = stderr(&output);
        ensure!(!output.status.success(), "a second daemon runs on {}", config.display());
        ensure!(said.contains(&world.site.state_dir.display().to_string()), "{said}");
    }
    daemon.published().await?;
    let begun = Instant::now();
    daemon.stop().await?;
    eprintln!("stopped within {} ms", begun.elapsed().as_millis());
    ensure!(!world.site.socket.exists(), "the socket is left behind");
    let last = ledger(&world.site.state_dir)?.pop().context("an empty ledger")?;
    ensure!(last.1 == gpu_bridge_core::event::Event::Stopped, "{last:?}");
    // And it starts again, also over the socket of one that was killed.
    world.daemon().await?.kill9().await?;
    ensure!(world.site.socket.exists());
    world.daemon().await?.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_ledger_is_refused_by_its_line() -> anyhow::Result<()> {
    let world = World::up().await?;
    world.daemon().await?.stop().await?;
    world.daemon().await?.stop().await?;
    let path = gpu_bridge::ledger::path_in(&world.site.state_dir);
    let text = std::fs::read_to_string(&path)?;
    let (good, lines): (String, Vec<&str>) = (text.clone(), text.lines().collect());
    // A changed word in the line of the first stop.
    let stop = lines.iter().position(|line| line.contains("\"stopped\"")).with_context(|| good.clone())?;
    let at = (stop + 1).to_string();
    std::fs::write(&path, good.replacen(lines[stop], &lines[stop].replacen("stopped", "Stopped", 1), 1))?;
    let output = run(&["run", "--config", &world.config().to_string_lossy()]).await?;
    let said = stderr(&output);
    ensure!(!output.status.success() && said.contains(&format!("line {at}")), "{said}");
    ensure!(said.contains("read GB0201 of docs/errors.md"), "it says what to do: {said}");
    let state_dir = world.site.state_dir.to_string_lossy().into_owned();
    let output = run(&["ledger", "verify", "--state-dir", &state_dir]).await?;
    ensure!(output.status.code() == Some(1));
    let output = run(&["ledger", "cut", "--state-dir", &state_dir, "--at", &at]).await?;
    ensure!(!output.status.success(), "nothing is cut without --yes");
    let output = run(&["ledger", "cut", "--state-dir", &state_dir, "--at", &at, "--yes"]).await?;
    ensure!(output.status.success(), "{}", stderr(&output));
    world.daemon().await?.stop().await?;
    // A torn last line is no reason to refuse.
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, &text[..text.len() - 20])?;
    world.daemon().await?.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_taken_makes_slurm_unknown() -> anyhow::Result<()> {
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    let file = world.site.token_file.clone();
    std::fs::write(&file, "expired-token")?;
    let why = unknown(&daemon, Slurm).await?;
    ensure!(why.to_lowercase().contains("token"), "{why}");
    ensure!(!why.contains("expired-token"), "a secret is shown: {why}");
    std::fs::remove_file(&file)?;
    let why = daemon
        .until("the missing file to be named", LIMIT, |published| {
            let unknown = published.domains[0].unknown.as_deref().unwrap_or_default();
            unknown.contains("slurm.jwt") && unknown.contains("No such file")
        })
        .await;
    why?;
    std::fs::write(&file, "mock-token")?;
    all_seen(&daemon).await?;
    ensure!(!daemon.log_tail().contains("mock-token") && !daemon.log_tail().contains("expired-token"));
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_from_slurm_is_survived() -> anyhow::Result<()> {
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    for action in [
        Action::Html,
        Action::CutBody(100),
        Action::Status(500),
        Action::Status(401),
        Action::Reset,
        Action::HugeBody(80 << 20),
    ] {
        world.slurm.inject(Fault::once("/nodes", action.clone()).times(1000));
        let why = unknown(&daemon, Slurm).await?;
        eprintln!("{action:?}: {why}");
        ensure!(why.len() < 600, "{action:?} is told at length: {why}");
        let other = daemon.published().await?.domains;
        ensure!(other.iter().any(|d| d.domain == Kubernetes && d.unknown.is_none()), "{other:?}");
        world.slurm.clear_faults();
        all_seen(&daemon).await?;
    }
    // Large is not wrong: ten thousand nodes are 26 MB.
    world.slurm.inject(Fault::once("/nodes", Action::HugeBody(40 << 20)).times(2));
    let before = daemon.published().await?.at;
    let later = daemon
        .until("a look at 40 MB", LIMIT, |published| {
            published.at > before + jiff::SignedDuration::from_secs(3)
        })
        .await?;
    ensure!(later.domains.iter().all(|d| d.unknown.is_none()), "{:?}", later.domains);
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_from_kubernetes_is_survived() -> anyhow::Result<()> {
    use kube_mock::server::{Fault, Injection};
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    for fault in [Fault::Html, Fault::CutBody(100), Fault::Refuse(500), Fault::Refuse(403), Fault::Reset] {
        world.kubernetes.inject(Injection::new("/nodes", 1000, fault.clone()));
        let why = unknown(&daemon, Kubernetes).await?;
        eprintln!("{fault:?}: {why}");
        ensure!(why.len() < 600, "{fault:?} is told at length: {why}");
        world.kubernetes.heal();
        all_seen(&daemon).await?;
    }
    daemon.stop().await
}
