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

/// What `check` calls good, `run` takes; what it does not, `run` refuses the same way, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn check_and_run_refuse_the_same() -> anyhow::Result<()> {
    let world = World::up().await?;
    let good = world.site.toml();
    let at = |name: &str| world.folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("no.token"), "")?;
    std::fs::write(at("words"), "this is no token")?;
    std::fs::write(at("no.policy"), "this is no policy")?;
    let kubeconfig = std::fs::read_to_string(&world.site.kubeconfig)?;
    let mut value: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap_or_default();
    value["users"][0]["user"] = serde_json::json!({ "tokenFile": at("no.token") });
    std::fs::write(at("no.kubeconfig"), value.to_string())?;
    let policy = format!("\n[[policy]]\nname = \"p\"\npath = {:?}\n", at("no.policy"));
    let slurm_url = &world.site.slurm_url;
    for (from, to, says) in [
        (at("slurm.jwt"), at("no.token"), "it is empty"),
        (at("slurm.jwt"), at("words"), "characters that no JWT has"),
        (
            format!("token_file = {:?}", at("slurm.jwt")),
            "token_command = [\"no-such\"]".into(),
            "folder of PATH",
        ),
        (slurm_url.clone(), "http://127.0.0.1:99999".into(), "from 1 to 65535"),
        (slurm_url.clone(), "unix:/".into(), "the socket itself"),
        (at("kubeconfig"), at("no.kubeconfig"), "no.token is empty"),
        ("\n[[pool]]".into(), format!("{policy}\n[[pool]]"), "text that begins with \"this is no polic\""),
    ] {
        ensure!(good.contains(&from), "{from} is not in the configuration");
        let (code, said) = world.check(&good.replacen(&from, &to, 1)).await?;
        ensure!(code == Some(BAD_CONFIGURATION) && said.contains(says), "{to}: {code:?} {said}");
        ensure!(said.trim().lines().count() == 1, "{to}: {said}");
        let output = run(&["run", "--config", &world.config().to_string_lossy()]).await?;
        let said = stderr(&output);
        ensure!(output.status.code() == Some(BAD_CONFIGURATION) && said.contains(says), "{to}: {said}");
        ensure!(!world.site.state_dir.exists(), "{to}: the state folder was made");
    }
    // A window that is over is no reason to refuse: time goes on while the file stays.
    let over = window("gpu-burst", "UTC").replace("2030-01-01", "2020-01-01");
    let (code, said) = world.check(&format!("{good}\n{over}")).await?;
    ensure!(code == Some(0) && said.lines().all(|line| line.starts_with("warning: ")), "{code:?} {said}");
    ensure!(said.contains("GB0109") && said.contains("no JWT") && !said.contains("mock-token"), "{said}");
    Ok(())
}

/// The one error object on standard error.
fn told(output: &Output) -> anyhow::Result<serde_json::Value> {
    let value: serde_json::Value = serde_json::from_slice(&output.stderr).with_context(|| stderr(output))?;
    ensure!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(value["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_json_where_that_is_asked_for() -> anyhow::Result<()> {
    let world = World::up().await?;
    let nowhere = world.folder.path().join("nowhere").to_string_lossy().into_owned();
    let answer = world.folder.path().join("answer").to_string_lossy().into_owned();
    std::fs::write(&answer, "<html>")?;
    let bad = world.folder.path().join("bad.toml").to_string_lossy().into_owned();
    std::fs::write(&bad, "nonsense")?;
    for (args, status, code) in [
        (&["status", "--socket", &nowhere][..], 1, Some("GB0710")),
        (&["adopt", "gpu[1-"], 1, Some("GB0650")),
        (&["ledger", "verify", "--state-dir", &nowhere], 1, Some("GB0213")),
        (&["ledger", "show", "--state-dir", &nowhere], 1, Some("GB0213")),
        (&["ledger", "cut", "--at", "1", "--state-dir", &nowhere], 1, Some("GB0213")),
        (&["explain", "error", "GB9999"], 1, Some("GB0650")),
        (&["slurm", "decode", "--api", "v0.0.42", "--kind", "nodes", &answer], 1, Some("GB0306")),
        (&["run", "--config", &bad], BAD_CONFIGURATION, Some("GB0101")),
        (&["kubernetes", "manifests", "--config", &bad], BAD_CONFIGURATION, Some("GB0101")),
        (&["no-such-command"], 2, None),
    ] {
        let output = run(&[args, &["--output", "json"]].concat()).await?;
        let error = told(&output).with_context(|| args.join(" "))?;
        ensure!(output.status.code() == Some(status), "{args:?}: {:?} {error}", output.status);
        ensure!(error["code"].as_str() == code, "{args:?}: {error}");
        for member in ["message", "advice"] {
            ensure!(error[member].as_str().is_some_and(|text| !text.is_empty()), "{args:?}: {error}");
        }
        // For people: the same, and how to read on.
        let said = stderr(&run(args).await?);
        ensure!(serde_json::from_str::<serde_json::Value>(&said).is_err(), "{args:?}: {said}");
        if status == 1 {
            ensure!(
                said.contains(&format!("`gpu-bridge explain error {}`", code.unwrap_or_default())),
                "{said}"
            );
        }
    }
    let output = run(&["explain", "error", "gb0201"]).await?;
    let page = String::from_utf8(output.stdout)?;
    ensure!(
        page.starts_with("GB0201") && page.contains("chain is broken") && page.contains("Do: keep a copy"),
        "{page}"
    );
    let output = run(&["explain", "error", "GB0201", "--output", "json"]).await?;
    let page: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(page["code"] == "GB0201" && page["advice"].is_string() && page["means"].is_string(), "{page}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_ledger_is_called_empty() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(gpu_bridge::ledger::path_in(folder.path()), "")?;
    let output = run(&["ledger", "verify", "--state-dir", &folder.path().to_string_lossy()]).await?;
    let told = String::from_utf8(output.stdout)?;
    ensure!(told.contains("EMPTY") && !told.contains("holds") && told.contains("GB0201"), "{told}");
    ensure!(output.status.code() == Some(1), "a nightly check must notice: {}", output.status);
    Ok(())
}

/// Programs rely on the names.
#[tokio::test(flavor = "multi_thread")]
async fn answers_have_named_members() -> anyhow::Result<()> {
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    let has = |value: &serde_json::Value, names: &[&str]| -> anyhow::Result<()> {
        for name in names {
            ensure!(value.get(name).is_some(), "no {name} in {value}");
        }
        Ok(())
    };
    has(&daemon.cli(&["plan"]).await?, &["handovers", "moves", "cancels", "denials"])?;
    has(&daemon.cli(&["explain", "node", "gpu1"]).await?, &["node", "lines"])?;
    let output = daemon.cli_raw(&["adopt", "gpu[1-2]"]).await?;
    let adopting: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = adopting.to_string();
    ensure!(!text.contains("\"Ok\"") && !text.contains("\"Err\""), "{text}");
    for node in adopting["nodes"].as_array().context("no nodes")? {
        has(node, &["node", "handover"])?;
        ensure!(node.get("granted").is_some() != node.get("denied").is_some(), "{node}");
    }
    let output = daemon.cli_raw(&["release", "gpu1"]).await?;
    let releasing: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(releasing["nodes"][0]["denied"]["code"] == "GB0611", "{releasing}");
    ensure!(output.stderr.is_empty(), "{}", stderr(&output));
    // Nothing to release is said, not an empty line.
    let socket = world.site.socket.to_string_lossy().into_owned();
    let output = run(&["release", "--all", "--socket", &socket]).await?;
    let told = String::from_utf8(output.stdout)?;
    ensure!(told.contains("nothing to release"), "{told:?}");
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn where_both_schedulers_are_away_both_are_named_and_each_once() -> anyhow::Result<()> {
    use kube_mock::server::{Fault as KubeFault, Injection};
    let world = World::up().await?;
    let daemon = world.daemon().await?;
    all_seen(&daemon).await?;
    world.slurm.inject(Fault::once("/", Action::Reset).times(10_000));
    world.kubernetes.inject(Injection::new("/", 10_000, KubeFault::Reset));
    unknown(&daemon, Slurm).await?;
    unknown(&daemon, Kubernetes).await?;
    let output = daemon.cli_raw(&["adopt", "gpu1"]).await?;
    let adopting: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let why = adopting["nodes"][0]["denied"]["message"].as_str().unwrap_or_default().to_owned();
    ensure!(why.contains("not in slurm") && why.contains("not in kubernetes"), "{adopting}");
    // Ticks later the log still says each of it once.
    let before = daemon.published().await?.at;
    daemon
        .until("some ticks", LIMIT, |published| published.at > before + jiff::SignedDuration::from_secs(3))
        .await?;
    let log = daemon.log_tail();
    for once in [
        "tells no job id counter",
        "not seen: nothing opens until it is domain=slurm",
        "is domain=kubernetes",
    ] {
        ensure!(log.matches(once).count() == 1, "{once}: {log}");
    }
    daemon.stop().await
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
    ensure!(said.contains("read `gpu-bridge explain error GB0201`"), "it says what to do: {said}");
    let state_dir = world.site.state_dir.to_string_lossy().into_owned();
    let output = run(&["ledger", "verify", "--state-dir", &state_dir]).await?;
    let told = String::from_utf8(output.stdout)?;
    ensure!(output.status.code() == Some(1) && told.contains("[GB0201]"), "{told}");
    let output = run(&["ledger", "show", "--state-dir", &state_dir]).await?;
    ensure!(output.status.code() == Some(1) && stderr(&output).contains(&state_dir), "{}", stderr(&output));
    // Without --yes nothing is cut, and what would go is told.
    let damaged = std::fs::read(&path)?;
    let output = run(&["ledger", "cut", "--state-dir", &state_dir, "--at", &at]).await?;
    let told = String::from_utf8(output.stdout.clone())?;
    let goes = format!("would move {} lines", lines.len() - stop);
    ensure!(output.status.success() && told.contains(&goes) && told.contains(&state_dir), "{told}");
    ensure!(stderr(&output).contains("--yes") && std::fs::read(&path)? == damaged);
    let beyond = (lines.len() + 2).to_string();
    let output = run(&["ledger", "cut", "--state-dir", &state_dir, "--at", &beyond]).await?;
    let said = stderr(&output);
    ensure!(output.status.code() == Some(1) && said.contains("GB0201"), "lines before it are broken: {said}");
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
