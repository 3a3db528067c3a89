//! From a configuration to a running daemon: ports, policies, ledger, engine, socket, and the word to systemd. It puts
//! parts together and decides only what is fatal at a start (a broken ledger, a policy that can't be loaded) and what is
//! not (a domain that is away).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpu_bridge_core::ids::KubeNodeName;
use tokio::sync::oneshot;

use crate::code::report;
use crate::config::{self, Config, PolicyMode, ProposalKind, SlurmEndpoint};
use crate::daemon::clock::{Clock, SystemClock};
use crate::daemon::decider::{Mode, Seat};
use crate::daemon::engine::{Engine, Parts};
use crate::daemon::journal::{self, Journal};
use crate::daemon::{self, Stop};
use crate::kubernetes::{self, GpuResources, client, manifests::ManifestOptions};
use crate::policy::{self, Grants, LoadOptions};
use crate::{api, slurm, store};

/// systemd is told that we live this often; its limit in the unit is longer.
const WATCHDOG_PERIOD: Duration = Duration::from_secs(10);
/// Extended resources that DRA backs by a device class.
const DEVICE_CLASSES: &str = "deviceclass.resource.kubernetes.io/*";
/// A stop waits this long for the effect under way.
const STOP_DEADLINE: Duration = Duration::from_secs(4);

/// Why a daemon could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state folder.
    #[error("state folder {path} cannot be used")]
    StateFolder {
        /// Which.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// Ledger or store.
    #[error("the state in {path} cannot be used")]
    Journal {
        /// Where.
        path: PathBuf,
        /// What happened.
        #[source]
        source: journal::Error,
    },
    /// The Slurm client.
    #[error("the Slurm client cannot be made")]
    Slurm(#[source] slurm::Error),
    /// The Kubernetes client.
    #[error("the Kubernetes client cannot be made")]
    Kubernetes(#[source] kubernetes::Error),
    /// A policy's file.
    #[error("policy {name}: {path} cannot be read")]
    PolicyFile {
        /// Its name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// A policy.
    #[error("policy {name} cannot be loaded")]
    Policy {
        /// Its name.
        name: String,
        /// What happened.
        #[source]
        source: Box<policy::Error>,
    },
    /// The socket.
    #[error(transparent)]
    Socket(#[from] api::Error),
    /// The socket, later.
    #[error("the socket is no longer served")]
    Serving(#[source] std::io::Error),
    /// Signals.
    #[error("signals cannot be caught")]
    Signals(#[source] std::io::Error),
    /// The engine's task.
    #[error("the daemon's main task ended: {why}")]
    Engine {
        /// How.
        why: String,
    },
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it. `None` where its source has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::StateFolder { .. } => Some("GB0701"),
            Self::PolicyFile { .. } => Some("GB0515"),
            Self::Policy { source, .. } => Some(source.code()),
            Self::Socket(error) => Some(error.code()),
            Self::Serving(_) => Some("GB0703"),
            Self::Signals(_) => Some("GB0704"),
            Self::Engine { .. } => Some("GB0705"),
            Self::Journal { .. } | Self::Slurm(_) | Self::Kubernetes(_) => None,
        }
    }

    /// Whether the configuration or a file that it names must be changed: `check` finds it too.
    pub fn is_configuration(&self) -> bool {
        match self {
            // Making a client asks nobody.
            Self::Slurm(_) | Self::Kubernetes(_) | Self::PolicyFile { .. } | Self::Policy { .. } => true,
            Self::StateFolder { .. }
            | Self::Journal { .. }
            | Self::Socket(_)
            | Self::Serving(_)
            | Self::Signals(_)
            | Self::Engine { .. } => false,
        }
    }
}

/// The manifests' options of a configuration.
pub fn manifest_options(config: &Config) -> Result<ManifestOptions, kubernetes::Error> {
    let nodes = config.site.nodes.values().map(|node| node.kubernetes.clone());
    let mut options =
        ManifestOptions::new(nodes.collect::<Vec<KubeNodeName>>(), config.kubernetes.user.clone());
    options.trusted_namespaces = config.kubernetes.trusted_namespaces.iter().cloned().collect();
    // Device classes asked for by resource name count whatever the site's own prefixes are.
    let prefixes = config.kubernetes.gpu_resources.iter().map(|prefix| format!("{prefix}*"));
    options.gpus = GpuResources::new(prefixes.chain([DEVICE_CLASSES.to_owned()]))?;
    Ok(options)
}

/// How a configuration reaches Slurm.
pub fn slurm_options(config: &config::Slurm) -> slurm::Options {
    let (mode, url) = match &config.endpoint {
        SlurmEndpoint::Commands => (slurm::Mode::Cli, String::new()),
        SlurmEndpoint::Http(url) => (slurm::Mode::Rest, url.clone()),
        SlurmEndpoint::Unix(path) => (slurm::Mode::Rest, format!("unix://{}", path.display())),
    };
    slurm::Options {
        mode,
        url,
        user: config.user.clone(),
        token: config.token.clone(),
        api_version: config.api_version.clone(),
        scontrol: config.scontrol.clone(),
        squeue: config.squeue.clone(),
        timeout: config.timeout,
        ..slurm::Options::default()
    }
}

/// The Slurm port of a configuration.
pub fn slurm_port(
    config: &config::Slurm,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn slurm::Slurm>, slurm::Error> {
    Ok(Arc::new(slurm::connect(slurm_options(config))?.on_clock(clock)))
}

/// The Kubernetes port of a configuration.
pub async fn kubernetes_port(config: &Config) -> Result<client::Client, kubernetes::Error> {
    let mut options = client::Options::new(manifest_options(config)?);
    options.kubeconfig = Some(config.kubernetes.kubeconfig.clone());
    options.context.clone_from(&config.kubernetes.context);
    options.deadline = config.kubernetes.timeout;
    options.pool_labels = config.site.pool_label_keys().map(str::to_owned).collect();
    client::Client::connect(options).await
}

/// What a configuration says and only its use shows to be wrong: policies that can't be loaded, names that are none in
/// Kubernetes, a kubeconfig or a REST version that can't be used. All of it; neither scheduler is asked.
pub async fn problems(config: &Config) -> Vec<config::Problem> {
    let value = |place: &config::Place, error: String, expected: &str, advice: &str| {
        let (expected, advice) = (expected.to_owned(), advice.to_owned());
        place.clone().problem(config::Code::Value, error, expected, advice)
    };
    let slurm = slurm::connect(slurm_options(&config.slurm)).err().map(|error| {
        value(&config.slurm.place, report(&error), "what the Slurm client takes", "correct it here")
    });
    let manifests = manifest_options(config).and_then(|options| options.check());
    let kubernetes = match manifests {
        Ok(()) => kubernetes_port(config).await.map(drop),
        Err(error) => Err(error),
    };
    let kubernetes = kubernetes.err().map(|error| {
        let advice = "correct it here, or in the kubeconfig";
        value(&config.kubernetes.place, report(&error), "what Kubernetes takes", advice)
    });
    let on = config.policies.iter().filter(|policy| policy.mode != PolicyMode::Off);
    let policies = on.filter_map(|policy| {
        let error = load(policy, &config.daemon.state_dir).err()?;
        let advice = match crate::code::of(&error) {
            Some(code) => crate::code::ask_for(code),
            None => "correct path or file".to_owned(),
        };
        let (place, expected) = (policy.place.clone(), "a policy that can be loaded".to_owned());
        Some(place.problem(config::Code::Policy, report(&error), expected, advice))
    });
    slurm.into_iter().chain(kubernetes).chain(policies).collect()
}

/// Loads the policies of a configuration that are not off.
pub fn seats(config: &Config) -> Result<Vec<Seat>, Error> {
    config
        .policies
        .iter()
        .filter_map(|policy| {
            let mode = match policy.mode {
                PolicyMode::Active => Mode::Active,
                PolicyMode::Shadow => Mode::Shadow,
                PolicyMode::Off => return None,
            };
            Some(
                load(policy, &config.daemon.state_dir)
                    .map(|loaded| Seat::new(Box::new(loaded), mode, policy.priority)),
            )
        })
        .collect()
}

fn load(policy: &config::Policy, state_dir: &Path) -> Result<policy::Policy, Error> {
    let name = policy.name.to_string();
    let bytes = std::fs::read(&policy.path).map_err(|source| Error::PolicyFile {
        name: name.clone(),
        path: policy.path.clone(),
        source,
    })?;
    let mut options = LoadOptions::new(name.clone());
    options.sha256 = policy.sha256.map(policy::Digest::from);
    options.settings = policy.settings.to_string();
    options.grants = Grants {
        kinds: policy.kinds.as_ref().map(|kinds| kinds.iter().map(|kind| code(*kind)).collect()),
        pools: policy.pools.as_ref().map(|pools| pools.iter().map(ToString::to_string).collect()),
    };
    options.bundles = Some(state_dir.join("policy-failures"));
    policy::Policy::load(&bytes, &options).map_err(|source| Error::Policy { name, source: Box::new(source) })
}

fn code(kind: ProposalKind) -> u32 {
    match kind {
        ProposalKind::WantReady => policy::abi::kind::WANT_READY,
    }
}

/// Opens the state folder and puts the engine together.
pub async fn engine(config: Config) -> Result<Engine<crate::ledger::FileDisk>, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let path = config.daemon.state_dir.clone();
    // First what a configuration can be refused for: then nothing is left behind.
    let parts = Parts {
        seats: seats(&config)?,
        slurm: slurm_port(&config.slurm, Arc::clone(&clock)).map_err(Error::Slurm)?,
        kubernetes: Arc::new(kubernetes_port(&config).await.map_err(Error::Kubernetes)?),
        clock,
        token_alarm_before: jiff::SignedDuration::try_from(config.slurm.token_alarm_before)
            .unwrap_or(jiff::SignedDuration::MAX),
        demand_age: jiff::SignedDuration::try_from(config.slurm.demand_age)
            .unwrap_or(jiff::SignedDuration::MAX),
        tick_period_s: u32::try_from(config.daemon.tick.as_secs().max(1)).unwrap_or(u32::MAX),
        site: config.site,
        calendar: config.calendar,
    };
    std::fs::create_dir_all(&path).map_err(|source| Error::StateFolder { path: path.clone(), source })?;
    let at = |source| Error::Journal { path: path.clone(), source };
    let (journal, opening) = Journal::open(&path, parts.clock.now()).map_err(at)?;
    if let Some(torn) = opening.replay.torn {
        tracing::warn!("{torn}; it was dropped");
    }
    match &opening.rebuilt {
        // The store follows the ledger: what it has more was acknowledged, and acted on.
        Some(reason @ store::Reason::Ahead { .. }) => tracing::error!(
            %reason,
            "lines of the ledger are lost. What they told of is believed by our marks alone; nodes whose marks are newer than \
             the ledger go into quarantine. The store was rebuilt"
        ),
        Some(reason) => tracing::warn!(%reason, "the store was rebuilt from the ledger"),
        None => {}
    }
    Engine::begin(parts, journal).map_err(at)
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), Error> {
    let (socket, period) = (config.daemon.socket.clone(), config.daemon.tick);
    let stop = Stop::new();
    stop_on_signals(stop.clone())?;
    let engine = engine(config).await?;
    let listener = api::bind(&socket).await?;
    let (ready, is_ready) = oneshot::channel();
    let (handle, looping) = daemon::start(engine, period, stop.clone(), ready);
    let looping = tokio::spawn(looping);
    let serving = tokio::spawn(api::serve(listener, handle.clone(), stop.clone()));
    let telling = tokio::spawn(tell_systemd(is_ready, handle));
    tokio::select! {
        ended = looping => {
            let ended = ended.map(drop).map_err(|error| Error::Engine { why: error.to_string() });
            stop.stop();
            // Open connections do not hold up a stop.
            let served = tokio::time::timeout(STOP_DEADLINE, serving).await;
            telling.abort();
            remove_socket(&socket);
            if let Ok(Ok(Err(error))) = served {
                tracing::warn!(%error, "the socket was not served to the end");
            }
            ended
        }
        () = overdue(&stop) => {
            tracing::warn!("an effect is still under way; its intent is in the ledger, and the next start looks again");
            remove_socket(&socket);
            Ok(())
        }
    }
}

async fn overdue(stop: &Stop) {
    stop.stopped().await;
    tokio::time::sleep(STOP_DEADLINE).await;
}

fn remove_socket(socket: &Path) {
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::debug!(%error, "the socket was gone already");
    }
}

fn stop_on_signals(stop: Stop) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.stop();
    });
    Ok(())
}

/// READY after the first tick; then the watchdog, as long as ticks go on.
async fn tell_systemd(is_ready: oneshot::Receiver<()>, mut handle: daemon::Handle) {
    if is_ready.await.is_err() {
        return;
    }
    tracing::info!("ready");
    notify(&[sd_notify::NotifyState::Ready]);
    let mut last = tokio::time::Instant::now();
    while handle.changed().await {
        if last.elapsed() >= WATCHDOG_PERIOD {
            notify(&[sd_notify::NotifyState::Watchdog]);
            last = tokio::time::Instant::now();
        }
    }
}

fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../deploy/gpu-bridge.example.toml");

    const KUBECONFIG: &str = r#"{"apiVersion":"v1","kind":"Config","current-context":"here",
        "contexts":[{"name":"here","context":{"cluster":"c","user":"u"}}],
        "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}"#;

    /// As `field [code] …`.
    async fn found(text: &str) -> Vec<String> {
        let config = config::check_text(Path::new("gpu-bridge.toml"), text, config::Files::Ignored).unwrap();
        let says = |problem: &config::Problem| {
            let line = text.lines().nth(problem.line - 1).unwrap();
            format!("{} {} at {line}: {}", problem.field, problem.code, problem.found)
        };
        problems(&config).await.iter().map(says).collect()
    }

    /// What `check` calls good, `run` must not refuse for what the files say.
    #[tokio::test]
    async fn what_only_use_shows_is_tried_before_the_daemon_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        };
        let (good, bad) = (file("kubeconfig", KUBECONFIG), file("rubbish", "hello: [world"));
        file("good.token", "eyJ.eyJ.sig");
        file("empty.token", "");
        file("line.token", "eyJ.eyJ.sig\n");
        let mut number = 0;
        let mut user = |of: &str| {
            number += 1;
            file(
                &format!("kubeconfig-{number}"),
                &KUBECONFIG.replace(r#""user":{}"#, &format!(r#""user":{{{of}}}"#)),
            )
        };
        let tokens = [
            r#""token":"""#,
            r#""token":"two words""#,
            r#""tokenFile":"empty.token""#,
            r#""tokenFile":"line.token""#,
            r#""tokenFile":"no.token""#,
        ]
        .map(&mut user);
        let sound = [r#""token":"eyJ.eyJ.sig""#, r#""tokenFile":"good.token""#].map(&mut user);
        let text = EXAMPLE
            .replace("/usr/lib/gpu-bridge/policies/prewarm.wasm", &file("prewarm.wasm", "not WebAssembly"))
            .replace("/etc/gpu-bridge/kubeconfig", &good);
        let of_policy = found(&text).await;
        assert!(
            matches!(of_policy.as_slice(), [one] if one.starts_with("policy.prewarm GB0111 at [[policy]]") && one.contains("GB05")),
            "{of_policy:?}"
        );
        let text = text.replacen("mode = \"active\"", "mode = \"off\"", 1);
        assert_eq!(found(&text).await, [""; 0]);
        for sound in &sound {
            assert_eq!(found(&text.replacen(&good, sound, 1)).await, [""; 0]);
        }
        for (from, to, place, says) in [
            (good.as_str(), tokens[0].as_str(), "kubernetes", "its user's token is empty"),
            (good.as_str(), tokens[1].as_str(), "kubernetes", "other characters that no token has"),
            (good.as_str(), tokens[2].as_str(), "kubernetes", "empty.token is empty"),
            (good.as_str(), tokens[3].as_str(), "kubernetes", "line.token ends in white space"),
            (good.as_str(), tokens[4].as_str(), "kubernetes", "no.token cannot be read"),
            (good.as_str(), bad.as_str(), "kubernetes", "rubbish"),
            (good.as_str(), "/nonexistent/kubeconfig", "kubernetes", "/nonexistent/kubeconfig"),
            ("[kubernetes]", "[kubernetes]\ncontext = \"nope\"", "kubernetes", "nope"),
            ("# api_version = \"v0.0.42\"", "api_version = \"v0.0.12\"", "slurm", "v0.0.12"),
        ] {
            assert!(text.contains(from), "{from} is not in the example");
            let problems = found(&text.replacen(from, to, 1)).await;
            let [one] = problems.as_slice() else { panic!("{to}: {problems:?}") };
            assert!(
                one.starts_with(&format!("{place} GB0104 at [{place}]")) && one.contains(says),
                "{to}: {one}"
            );
        }
    }
}
