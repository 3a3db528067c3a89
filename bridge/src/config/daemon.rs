//! `[daemon]`, `[slurm]` and `[kubernetes]`: how the daemon itself runs and how it reaches the two schedulers. Decides
//! defaults and bounds; opens no connection.

use std::path::PathBuf;
use std::time::Duration;

use super::problem::{Code, Place, Problem};
use super::reader::{Files, Table, Value, closest};
use crate::slurm::{self, TokenSource};

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// `state_dir`: ledger and store. Default `/var/lib/gpu-bridge`.
    pub state_dir: PathBuf,
    /// `socket`: where the CLI reaches the daemon. Default `/run/gpu-bridge/gpu-bridge.sock`.
    pub socket: PathBuf,
    /// `tick`: time between two looks, 100 ms to 60 s. Default 2 s.
    pub tick: Duration,
    /// `log`: a filter such as `info` or `info,gpu_bridge::slurm=debug`. Default `info`.
    pub log: String,
}

/// How Slurm is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlurmEndpoint {
    /// `mode = "cli"`: through scontrol and squeue, without slurmrestd.
    Commands,
    /// `http://host:port`, with a token.
    Http(String),
    /// `unix:/path`, where slurmrestd takes the daemon's uid for its word.
    Unix(PathBuf),
}

/// `[slurm]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// `mode`, `"rest"` (the default) or `"cli"`; with `"rest"`, `url`.
    pub endpoint: SlurmEndpoint,
    /// `api_version`, such as `v0.0.42`; `None`: ask the server.
    pub api_version: Option<String>,
    /// `user`: whose name requests carry. Default `root`.
    pub user: String,
    /// `token_file`, `token_command` or `jwt_key_file`: who makes the JWT. One is a must with `http://`.
    pub token: Option<TokenSource>,
    /// `token_alarm_before`: a token that ends within this time, and that nobody but a person replaces, is an alarm; 0 s to
    /// 365 d. Default 7 d.
    pub token_alarm_before: Duration,
    /// `demand_age`: Slurm jobs that wait for less may yet start by themselves, and are no demand for nodes; 0 s to 24 h.
    /// Default 30 s, the default `bf_interval` of Slurm's backfill scheduler.
    pub demand_age: Duration,
    /// `scontrol`: the command and its first arguments. Default `["scontrol"]`.
    pub scontrol: Vec<String>,
    /// `squeue`: the same for squeue. Default: scontrol's words, with squeue in place of scontrol.
    pub squeue: Option<Vec<String>>,
    /// `timeout` of one request or command, 100 ms to 5 min. Default 30 s (slurmrestd itself gives up on slurmctld
    /// after 20 s).
    pub timeout: Duration,
    /// Where it is configured.
    pub place: Place,
}

impl Slurm {
    /// With `mode = "cli"`: scontrol or squeue behind sudo and the like that is not here, by its path. A warning, since what it
    /// stands behind may run it elsewhere. Beside slurmrestd: scontrol that is not here at all. A warning, since which REST
    /// version is spoken, and so what it is needed for, is known at the first look.
    pub(super) fn command_doubts(&self) -> Vec<Problem> {
        match self.endpoint {
            SlurmEndpoint::Commands => {}
            SlurmEndpoint::Http(_) | SlurmEndpoint::Unix(_) => {
                return self.scontrol_is_missing().into_iter().collect();
            }
        }
        let squeue = self.squeue.clone().unwrap_or_else(|| slurm::squeue_beside(&self.scontrol));
        let doubt = |(key, argv): (&str, &[String])| {
            let [first, .., last] = argv else { return None };
            if !last.contains('/') || slurm::is_there(last) {
                return None;
            }
            let place = Place { field: format!("slurm.{key}"), ..self.place.clone() };
            let expected = format!("a command that can be run here, unless {first} runs it elsewhere");
            let advice = "install Slurm's commands here, or correct the path".to_owned();
            Some(place.problem(Code::MissingFile, format!("no program {last}"), expected, advice))
        };
        [("scontrol", &*self.scontrol), ("squeue", &*squeue)].into_iter().filter_map(doubt).collect()
    }

    fn scontrol_is_missing(&self) -> Option<Problem> {
        let program = self.scontrol.first().filter(|program| !slurm::is_there(program))?;
        let place = Place { field: "slurm.scontrol".to_owned(), ..self.place.clone() };
        let expected = "a command that can be run: up to REST v0.0.42 it makes all reservations, without which no node goes to \
                        Kubernetes, and in every version it tells of a restored backup";
        let advice = "install Slurm's commands here, or give their path".to_owned();
        Some(place.problem(Code::MissingFile, format!("no program {program}"), expected.to_owned(), advice))
    }
}

/// `[kubernetes]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// `kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `context` of the kubeconfig; `None`: its current one.
    pub context: Option<String>,
    /// `timeout` of one request, 100 ms to 5 min. Default 10 s.
    pub timeout: Duration,
    /// `trusted_namespaces`: whose pods may tolerate our taints (canaries, device plugins). Default
    /// `["kube-system", "gpu-bridge"]`.
    pub trusted_namespaces: Vec<String>,
    /// `gpu_resources`: prefixes of resource names that are GPUs. Default `["nvidia.com/", "amd.com/gpu"]`.
    pub gpu_resources: Vec<String>,
    /// `user`: the daemon's user name as the API server sees it; the guards let only it write our marks. Default
    /// `system:serviceaccount:gpu-bridge:gpu-bridge`.
    pub user: String,
    /// Where it is configured.
    pub place: Place,
}

const REQUEST_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_mins(5);

pub(super) fn daemon(root: &Table<'_>) -> Option<Daemon> {
    let Some(value) = root.get("daemon") else {
        return Some(Daemon {
            state_dir: "/var/lib/gpu-bridge".into(),
            socket: "/run/gpu-bridge/gpu-bridge.sock".into(),
            tick: Duration::from_secs(2),
            log: "info".to_owned(),
        });
    };
    let table = value.table()?;
    let state_dir = or(table.get("state_dir"), Value::path, || "/var/lib/gpu-bridge".into());
    let socket = or(table.get("socket"), socket_path, || "/run/gpu-bridge/gpu-bridge.sock".into());
    let ticks = Duration::from_millis(100)..=Duration::from_mins(1);
    let tick = or(table.get("tick"), |value| value.span(ticks), || Duration::from_secs(2));
    let log = or(table.get("log"), log_filter, || "info".to_owned());
    table.finish();
    Some(Daemon { state_dir: state_dir?, socket: socket?, tick: tick?, log: log? })
}

pub(super) fn slurm(root: &Table<'_>) -> Option<Slurm> {
    let table = root.need("slurm", "a [slurm] table")?.table()?;
    let modes = [("rest", slurm::Mode::Rest), ("cli", slurm::Mode::Cli)];
    let mode = or(table.get("mode"), |value| value.choice(&modes), slurm::Mode::default);
    let endpoint = match mode {
        Some(slurm::Mode::Cli) => commands(&table),
        Some(slurm::Mode::Rest) | None => table
            .need("url", "\"http://HOST:PORT\" or \"unix:/PATH\" of slurmrestd")
            .and_then(|value| endpoint(&value)),
    };
    let api_version = or(table.get("api_version"), |value| api_version(value).map(Some), || None);
    let user = or(table.get("user"), owned, || "root".to_owned());
    let token = token(&table, endpoint.as_ref());
    let ahead = Duration::ZERO..=Duration::from_hours(365 * 24);
    let token_alarm_before =
        or(table.get("token_alarm_before"), |value| value.span(ahead), || Duration::from_hours(7 * 24));
    let ages = Duration::ZERO..=Duration::from_hours(24);
    let demand_age = or(table.get("demand_age"), |value| value.span(ages), || Duration::from_secs(30));
    let scontrol = or(table.get("scontrol"), command, || vec!["scontrol".to_owned()]);
    let squeue = or(table.get("squeue"), |value| command(value).map(Some), || None);
    let timeout = or(table.get("timeout"), |value| value.span(REQUEST_TIMEOUTS), || Duration::from_secs(30));
    if matches!(endpoint, Some(SlurmEndpoint::Commands)) && table.document.files == Files::MustExist {
        must_be_there(&table, "scontrol", scontrol.as_deref());
        // Behind sudo and the like both begin with the same program.
        let beside = scontrol.as_deref().filter(|argv| argv.len() == 1).map(slurm::squeue_beside);
        let squeue = squeue.as_ref().and_then(|given| given.as_ref().or(beside.as_ref()));
        must_be_there(&table, "squeue", squeue.map(Vec::as_slice));
    }
    let place = table.place();
    table.finish();
    Some(Slurm {
        endpoint: endpoint?,
        api_version: api_version?,
        user: user?,
        token: token.ok()?,
        token_alarm_before: token_alarm_before?,
        demand_age: demand_age?,
        scontrol: scontrol?,
        squeue: squeue?,
        timeout: timeout?,
        place,
    })
}

/// `mode = "cli"`: what only slurmrestd needs must not stand there.
fn commands(table: &Table<'_>) -> Option<SlurmEndpoint> {
    const REST_ONLY: [&str; 6] =
        ["url", "api_version", "user", "token_file", "token_command", "jwt_key_file"];
    let given: Vec<&str> = REST_ONLY.into_iter().filter(|key| table.get(key).is_some()).collect();
    let Some(first) = given.first() else { return Some(SlurmEndpoint::Commands) };
    let advice = "remove it, or set mode = \"rest\"";
    table.problem(Code::Contradiction, first, &given.join(", "), "nothing, since mode is \"cli\"", advice);
    None
}

/// A command without which nothing is seen of Slurm. (Beside slurmrestd one that is missing is an alarm.)
fn must_be_there(table: &Table<'_>, key: &str, argv: Option<&[String]>) {
    if let Some(program) = argv.and_then(<[String]>::first)
        && !slurm::is_there(program)
    {
        let found = format!("no program {program}");
        let advice = "install Slurm's commands here, or give the whole path";
        table.problem(Code::MissingFile, key, &found, "a command that can be run", advice);
    }
}

/// At most one of the three that make a token, and one of them where slurmrestd asks for it. An error has told a problem.
fn token(table: &Table<'_>, endpoint: Option<&SlurmEndpoint>) -> Result<Option<TokenSource>, ()> {
    type Read = fn(&Value<'_>) -> Option<TokenSource>;
    let kinds: [(&str, Read); 3] = [
        ("token_file", |value| value.readable().map(TokenSource::File)),
        ("token_command", |value| command(value).map(TokenSource::Command)),
        ("jwt_key_file", |value| value.readable().map(TokenSource::Key)),
    ];
    // All three are looked for before one is chosen: none of them is an unknown key.
    let given = kinds.map(|(key, read)| table.get(key).map(|value| (key, value, read)));
    let mut given = given.into_iter().flatten();
    let Some((first, value, read)) = given.next() else {
        if matches!(endpoint, Some(SlurmEndpoint::Http(_))) {
            let advice = "set token_file to a file that holds a JWT of SlurmUser or an Administrator, or token_command or \
                          jwt_key_file";
            table.problem(Code::MissingKey, "token_file", "nothing", "a path, since url is http://", advice);
            return Err(());
        }
        return Ok(None);
    };
    if let Some((second, _, _)) = given.next() {
        let advice = "keep the one that is to be used";
        let found = format!("{first} and {second}");
        table.problem(Code::Contradiction, second, &found, "one way to a token", advice);
        return Err(());
    }
    let source = read(&value).ok_or(())?;
    match value.document.files {
        Files::Ignored => {}
        Files::MustExist => {
            if let Err(why) = source.check() {
                let found = format!("{source}: {why}");
                let advice =
                    "`scontrol token username=USER lifespan=SECONDS` prints a token; see GB0303 for the rest";
                value.problem(Code::MissingFile, &found, "what a token can be had from", advice);
                return Err(());
            }
        }
    }
    Ok(Some(source))
}

pub(super) fn kubernetes(root: &Table<'_>) -> Option<Kubernetes> {
    let table = root.need("kubernetes", "a [kubernetes] table")?.table()?;
    let kubeconfig = table.need("kubeconfig", "the path of a kubeconfig").and_then(|value| value.readable());
    let context = or(table.get("context"), |value| owned(value).map(Some), || None);
    let timeout = or(table.get("timeout"), |value| value.span(REQUEST_TIMEOUTS), || Duration::from_secs(10));
    let trusted_namespaces = or(table.get("trusted_namespaces"), Value::texts, || {
        vec!["kube-system".to_owned(), "gpu-bridge".to_owned()]
    });
    let gpu_resources = or(table.get("gpu_resources"), resources, || {
        vec!["nvidia.com/".to_owned(), "amd.com/gpu".to_owned()]
    });
    let user = or(table.get("user"), owned, || "system:serviceaccount:gpu-bridge:gpu-bridge".to_owned());
    let place = table.place();
    table.finish();
    Some(Kubernetes {
        kubeconfig: kubeconfig?,
        context: context?,
        timeout: timeout?,
        trusted_namespaces: trusted_namespaces?,
        gpu_resources: gpu_resources?,
        user: user?,
        place,
    })
}

/// The value as read, or the default if the key is not there. `None` if it is there and wrong.
pub(super) fn or<'a, T>(
    value: Option<Value<'a>>,
    read: impl FnOnce(&Value<'a>) -> Option<T>,
    default: impl FnOnce() -> T,
) -> Option<T> {
    match value {
        Some(value) => read(&value),
        None => Some(default()),
    }
}

pub(super) fn owned(value: &Value<'_>) -> Option<String> {
    value.text().map(str::to_owned)
}

/// A Unix socket's path has room for so many bytes.
const SOCKET_PATH_MAX: usize = 107;
const SOCKET_PATH: &str = "a path of at most 107 bytes";

fn socket_path(value: &Value<'_>) -> Option<PathBuf> {
    let path = value.path()?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return value.wrong(SOCKET_PATH, "use a shorter path, such as one in /run");
    }
    Some(path)
}

fn log_filter(value: &Value<'_>) -> Option<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let text = value.text()?;
    // A word alone is read as a module's name: a misspelt level would log nothing at all.
    if !text.contains(['=', ',', ':']) && !LEVELS.contains(&text.to_ascii_lowercase().as_str()) {
        let advice = closest(text, LEVELS).map_or_else(
            || format!("use one of {}", LEVELS.join(", ")),
            |close| format!("did you mean {close:?}?"),
        );
        return value.wrong("a log filter", &advice);
    }
    match text.parse::<tracing_subscriber::EnvFilter>() {
        Ok(_) => Some(text.to_owned()),
        Err(error) => {
            value.wrong("a log filter", &format!("use error, warn, info, debug or trace ({error})"))
        }
    }
}

fn endpoint(value: &Value<'_>) -> Option<SlurmEndpoint> {
    const EXPECTED: &str = "\"http://HOST:PORT\" or \"unix:/PATH\"";
    let text = value.text()?;
    if let Some(path) = text.strip_prefix("unix:") {
        if !path.starts_with('/') {
            return value.wrong(EXPECTED, "use an absolute path after unix:");
        }
        if path.ends_with('/') {
            return value.wrong(EXPECTED, "name the socket itself, not its folder");
        }
        if path.len() > SOCKET_PATH_MAX {
            return value.wrong(SOCKET_PATH, "let slurmrestd listen on a shorter path");
        }
        return Some(SlurmEndpoint::Unix(path.into()));
    }
    if text.starts_with("https://") {
        return value.wrong(EXPECTED, "slurmrestd speaks plain HTTP; let it listen on loopback or a socket");
    }
    let uri = text.parse::<http::Uri>().ok().filter(|uri| {
        uri.scheme_str() == Some("http")
            && uri.path() == "/"
            && uri.query().is_none()
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    });
    let Some(authority) = uri.as_ref().and_then(http::Uri::authority).filter(|at| !at.host().is_empty())
    else {
        return value.wrong(EXPECTED, "give scheme, host and port only");
    };
    // What is written behind the host is a port, or the URL can't be used.
    let port_is_good = match authority.port() {
        Some(port) => port.as_str().parse::<u16>().is_ok_and(|port| port > 0),
        None => authority.as_str() == authority.host(),
    };
    if !port_is_good {
        return value.wrong(EXPECTED, "give a port from 1 to 65535; slurmrestd's usual one is 6820");
    }
    Some(SlurmEndpoint::Http(text.trim_end_matches('/').to_owned()))
}

fn api_version(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let digits = text.strip_prefix("v0.0.").unwrap_or_default();
    if digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.to_owned());
    }
    value.wrong("a version such as \"v0.0.42\"", "remove the key to let the server be asked")
}

fn command(value: &Value<'_>) -> Option<Vec<String>> {
    let words = value.texts()?;
    if words.is_empty() {
        return value.wrong("a command and its arguments", "use [\"scontrol\"]");
    }
    Some(words)
}

fn resources(value: &Value<'_>) -> Option<Vec<String>> {
    let prefixes = value.texts()?;
    if prefixes.is_empty() {
        return value.wrong("at least one prefix", "use [\"nvidia.com/\"]");
    }
    Some(prefixes)
}
