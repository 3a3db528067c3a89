//! One running Slurm: its namespaces, its daemons, and the ways in. The lab's first process holds the mount, pid and host name
//! namespaces; killing it ends everything. It ends by itself when its owner does, as it waits on a pipe from it.

use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::conf::Ports;
use super::daemons::{Daemon, REST_SOCKET, as_user};
use super::namespace::{furnish, namespace, unsupported, ways_in};
use super::{INSIDE, Options, Release, root};
use crate::command::{self, Output, log_tail};
use crate::error::{Error, Result, at};
use crate::run::{Folder, Kind, Life, Process};
use crate::wait_until;

const EXEC_LIMIT: Duration = Duration::from_mins(1);
const START_LIMIT: Duration = Duration::from_mins(1);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const FIRST_NODE_PORT: u16 = 10;
const MOST_NODES: usize = 80;
const MOST_GPUS: u8 = 16;

/// Runs the rest of its arguments in the lab's root but in the outer pid namespace, until the lab's first process ends: `$1` the
/// run folder, `$2` the daemon's name, `$3` that process. nsenter and setpriv become the daemon, so its id is the one written.
const OUTSIDE: &str = r#"
exec 4<"$1/life"
run=$1 name=$2 init=$3
shift 3
nsenter --target "$init" --mount --uts --root --wd -- "$@" 4<&- &
echo $! >"$run/pids/$name.pid"
cat <&4
kill -s KILL $!
"#;

/// A running Slurm. Dropping it takes it down, unless it is [`Life::Detached`].
#[derive(Debug)]
pub struct Lab {
    options: Options,
    ports: Ports,
    folder: Folder,
    inside: Vec<String>,
    init: Process,
    unshare: Child,
}

impl Lab {
    /// Starts a lab and waits until all its nodes are idle and both slurmrestd answer: seconds, and about a minute more where
    /// the release's root filesystem has to be made.
    pub async fn up(options: Options) -> Result<Self> {
        check(&options)?;
        if let Some(reason) = unsupported() {
            return Err(Error::Unsupported(reason));
        }
        let root = root::prepare(options.release).await?;
        let mut folder = Folder::take(Kind::Slurm, options.life).await?;
        let ports = Ports {
            controller: folder.port(0)?,
            rest: folder.port(1)?,
            first_node: folder.port(FIRST_NODE_PORT)?,
        };
        furnish(folder.path(), &root, &options, ports)?;
        let (unshare, init) = namespace(folder.path(), &root, &options).await?;
        let inside = ways_in(init);
        folder.update(|record| {
            record.processes.insert("namespace".to_owned(), init);
        })?;
        let mut lab = Self { options, ports, folder, inside, init, unshare };
        if let Err(error) = lab.start_all().await {
            lab.take_down();
            return Err(error);
        }
        let usage = lab.usage();
        lab.folder.update(|record| record.usage = usage)?;
        Ok(lab)
    }

    async fn start_all(&self) -> Result<()> {
        self.start(&Daemon::Munged).await?;
        self.start(&Daemon::Slurmctld).await?;
        for daemon in self.slurmds() {
            self.launch(&daemon).await?;
        }
        self.start(&Daemon::Slurmrestd).await?;
        self.start(&Daemon::SlurmrestdLocal).await?;
        self.nodes_idle().await
    }

    fn slurmds(&self) -> impl Iterator<Item = Daemon> {
        self.options.nodes.iter().map(|node| Daemon::Slurmd(node.name.clone()))
    }

    async fn nodes_idle(&self) -> Result<()> {
        wait_until("all nodes idle", START_LIMIT, async || {
            let seen = self.run(&["sinfo", "-h", "-N", "-p", "main", "-o", "%N=%T"]).await;
            let seen = seen.map_err(|error| error.to_string())?;
            let idle = seen.lines().filter(|line| line.ends_with("=idle")).count();
            if idle == self.options.nodes.len() { Ok(()) } else { Err(seen.replace('\n', " ")) }
        })
        .await
    }

    /// What it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What the packages say, e.g. `slurm 24.11.5`.
    pub async fn version(&self) -> Result<String> {
        self.run(&["slurmctld", "-V"]).await
    }

    /// Base URL of the slurmrestd that takes JWTs, without a slash at its end.
    pub fn rest_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.rest)
    }

    /// Socket of the slurmrestd with rest_auth/local. Whoever may call it (root) acts in Slurm as
    /// [`Options::local_rest_user`].
    pub fn rest_socket(&self) -> PathBuf {
        self.folder.path().join(REST_SOCKET)
    }

    /// The key that signs JWTs, readable by root.
    pub fn jwt_key(&self) -> PathBuf {
        self.folder.path().join("jwt.key")
    }

    /// The folder that its daemons write to; logs are in `log/`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A JWT for `user` (`slurm` and `root` may do anything).
    pub async fn token(&self, user: &str, lifespan: Duration) -> Result<String> {
        let lifespan = format!("lifespan={}", lifespan.as_secs());
        let printed = self.run(&["scontrol", "token", &format!("username={user}"), &lifespan]).await?;
        printed
            .strip_prefix("SLURM_JWT=")
            .map(str::to_owned)
            .ok_or_else(|| Error::Unknown(format!("scontrol token printed {printed:?}")))
    }

    /// Runs a command inside as root; it may fail.
    pub async fn exec<S: AsRef<str>>(&self, argv: &[S]) -> Result<Output> {
        self.inside(Vec::new(), argv).await
    }

    /// Runs a command inside as `user` (alice, bob, svc, slurm, …); it may fail.
    pub async fn exec_as<S: AsRef<str>>(&self, user: &str, argv: &[S]) -> Result<Output> {
        self.inside(as_user(user), argv).await
    }

    /// Runs a command inside as root that must succeed, and returns what it printed.
    pub async fn run<S: AsRef<str>>(&self, argv: &[S]) -> Result<String> {
        self.exec(argv).await?.ok()
    }

    async fn inside<S: AsRef<str>>(&self, before: Vec<String>, argv: &[S]) -> Result<Output> {
        let argv = argv.iter().map(|word| word.as_ref().to_owned());
        let whole: Vec<String> = self.inside.iter().cloned().chain(before).chain(argv).collect();
        command::output(&whole, EXEC_LIMIT).await
    }

    /// The start of a command line by which a process outside runs a program inside as root: append `squeue` and so on.
    pub fn command_prefix(&self) -> Vec<String> {
        self.inside.clone()
    }

    /// The command line by which a process outside runs scontrol inside as root: append its arguments.
    pub fn scontrol_command(&self) -> Vec<String> {
        self.slurm_command("root", "scontrol")
    }

    /// The command line by which a process outside runs `program` of Slurm inside as `user`, with the environment that
    /// gpu-bridge gives its commands, and that [`Self::command_prefix`] takes away: append its arguments.
    pub fn slurm_command(&self, user: &str, program: &str) -> Vec<String> {
        let mut argv = self.command_prefix();
        argv.extend(["SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=4096"].map(str::to_owned));
        if user != "root" {
            argv.extend(as_user(user));
        }
        argv.push(program.to_owned());
        argv
    }

    /// Submits a batch job of `user` that runs `script` (shell text), with further arguments of sbatch; returns its id.
    pub async fn submit(&self, user: &str, sbatch: &[&str], script: &str) -> Result<u32> {
        // Nothing in a lab's root is writable to users but /tmp.
        let mut argv = vec!["sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null"];
        argv.extend(sbatch);
        let wrap = format!("--wrap={script}");
        argv.push(&wrap);
        let printed = self.exec_as(user, &argv).await?.ok()?;
        printed.parse().map_err(|_| Error::Unknown(format!("sbatch printed {printed:?}")))
    }

    /// A job's state as squeue writes it, e.g. `RUNNING`; `None` when slurmctld knows it no more.
    pub async fn job_state(&self, job: u32) -> Result<Option<String>> {
        let job = job.to_string();
        let output = self.exec(&["squeue", "-h", "-t", "all", "-j", &job, "-o", "%T"]).await?;
        if output.stderr.contains("Invalid job id") {
            return Ok(None);
        }
        Ok(Some(output.ok()?).filter(|state| !state.is_empty()))
    }

    /// Waits until a job is in `state`.
    pub async fn job_reaches(&self, job: u32, state: &str, limit: Duration) -> Result<()> {
        wait_until(&format!("job {job} {state}"), limit, async || match self.job_state(job).await {
            Ok(Some(now)) if now == state => Ok(()),
            Ok(now) => Err(now.unwrap_or_else(|| "no such job".to_owned())),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// A node's state and flags as scontrol writes them, e.g. `IDLE+DRAIN`.
    pub async fn node_state(&self, node: &str) -> Result<String> {
        let shown = self.run(&["scontrol", "-o", "show", "node", node]).await?;
        let state = shown.split_whitespace().find_map(|word| word.strip_prefix("State="));
        state.map(str::to_owned).ok_or_else(|| Error::Unknown(format!("scontrol printed {shown:?}")))
    }

    /// Waits until a node's state satisfies `wanted`.
    pub async fn node_reaches(
        &self,
        node: &str,
        wanted: impl Fn(&str) -> bool,
        limit: Duration,
    ) -> Result<()> {
        wait_until(&format!("node {node}"), limit, async || match self.node_state(node).await {
            Ok(state) if wanted(&state) => Ok(()),
            Ok(state) => Err(state),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Starts a daemon that is stopped, and waits until it answers (of a slurmd, only that it runs).
    pub async fn start(&self, daemon: &Daemon) -> Result<()> {
        self.launch(daemon).await?;
        let name = daemon.name();
        let log = self.folder.path().join(format!("log/{name}.out"));
        wait_until(&name, START_LIMIT, async || {
            if self.answers(daemon).await {
                return Ok(Ok(()));
            }
            match self.alive(daemon).await {
                Ok(true) => Err("it runs, but does not answer".to_owned()),
                // It ended: waiting on is of no use.
                Ok(false) => Ok(Err(Error::Failed {
                    command: name.clone(),
                    status: "ended".to_owned(),
                    output: log_tail(&log),
                })),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?
    }

    async fn answers(&self, daemon: &Daemon) -> bool {
        match daemon {
            Daemon::Munged => UnixStream::connect(self.folder.path().join("munge/munge.sock")).is_ok(),
            Daemon::Slurmctld => {
                self.run(&["scontrol", "ping"]).await.is_ok_and(|text| text.contains("is UP"))
            }
            Daemon::Slurmd(_) => self.alive(daemon).await.unwrap_or(false),
            Daemon::Slurmrestd => TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports.rest)).is_ok(),
            Daemon::SlurmrestdLocal => UnixStream::connect(self.rest_socket()).is_ok(),
        }
    }

    async fn launch(&self, daemon: &Daemon) -> Result<()> {
        if self.alive(daemon).await? {
            return Err(Error::Unknown(format!("{} runs already", daemon.name())));
        }
        if *daemon == Daemon::SlurmrestdLocal {
            // The socket of a killed slurmrestd stands in the way of the next.
            self.run(&["rm", "-f", &format!("{INSIDE}/{REST_SOCKET}")]).await?;
        }
        let name = daemon.name();
        if daemon.outside() {
            return self.launch_outside(daemon).await;
        }
        let script = "name=$1; shift; setsid \"$@\" </dev/null >>/run/lab/log/$name.out 2>&1 & echo $! >/run/lab/pids/$name.pid";
        let mut argv = ["sh", "-c", script, "sh", &name].map(str::to_owned).to_vec();
        argv.extend(daemon.argv(&self.options, self.ports));
        self.run(&argv).await.map(drop)
    }

    async fn launch_outside(&self, daemon: &Daemon) -> Result<()> {
        let name = daemon.name();
        let run = self.folder.path();
        let pid_file = self.pid_file(daemon);
        match std::fs::remove_file(&pid_file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(&pid_file)(error)),
            Ok(()) | Err(_) => {}
        }
        let log = run.join(format!("log/{name}.out"));
        let out = std::fs::File::options().create(true).append(true).open(&log).map_err(at(&log))?;
        let err = out.try_clone().map_err(at(&log))?;
        let environment = self.inside.iter().skip_while(|word| *word != "/usr/bin/env");
        let mut guard = Command::new("sh")
            .args(["-c", OUTSIDE, "sh"])
            .arg(run)
            .args([&name, &self.init.pid.to_string()])
            .args(environment)
            .args(daemon.argv(&self.options, self.ports))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|source| Error::Spawn { program: name.clone(), source })?;
        // It ends when the lab does; somebody has to collect it then.
        std::thread::spawn(move || guard.wait());
        wait_until(&format!("the process id of {name}"), START_LIMIT, async || {
            if self.outer_process(daemon).is_some() { Ok(()) } else { Err("none".to_owned()) }
        })
        .await
    }

    fn pid_file(&self, daemon: &Daemon) -> PathBuf {
        self.folder.path().join(format!("pids/{}.pid", daemon.name()))
    }

    fn outer_process(&self, daemon: &Daemon) -> Option<Process> {
        std::fs::read_to_string(self.pid_file(daemon)).ok()?.trim().parse().ok().and_then(Process::find)
    }

    /// Whether a daemon's process runs (also while paused).
    pub async fn alive(&self, daemon: &Daemon) -> Result<bool> {
        if daemon.outside() {
            return Ok(self.outer_process(daemon).is_some());
        }
        let test =
            format!("p=$(cat {INSIDE}/pids/{}.pid 2>/dev/null) && kill -0 $p 2>/dev/null", daemon.name());
        Ok(self.exec(&["sh", "-c", &test]).await?.status.success())
    }

    /// Ends a daemon with SIGTERM and waits until it is gone.
    pub async fn stop(&self, daemon: &Daemon) -> Result<()> {
        self.signal(daemon, Signal::TERM).await?;
        self.gone(daemon).await
    }

    /// Ends a daemon with SIGKILL and waits until it is gone. A slurmd's jobs run on.
    pub async fn kill9(&self, daemon: &Daemon) -> Result<()> {
        self.signal(daemon, Signal::KILL).await?;
        self.gone(daemon).await
    }

    /// Freezes a daemon (SIGSTOP).
    pub async fn pause(&self, daemon: &Daemon) -> Result<()> {
        self.signal(daemon, Signal::STOP).await
    }

    /// Lets a paused daemon run on (SIGCONT).
    pub async fn resume(&self, daemon: &Daemon) -> Result<()> {
        self.signal(daemon, Signal::CONT).await
    }

    async fn signal(&self, daemon: &Daemon, signal: Signal) -> Result<()> {
        if daemon.outside() {
            let process = self.outer_process(daemon);
            let process = process.ok_or_else(|| Error::Unknown(format!("{} does not run", daemon.name())))?;
            return process.signal(signal);
        }
        let number = signal.as_raw();
        let kill = format!("kill -{number} $(cat {INSIDE}/pids/{}.pid)", daemon.name());
        self.run(&["sh", "-c", &kill]).await.map(drop)
    }

    async fn gone(&self, daemon: &Daemon) -> Result<()> {
        wait_until(&format!("the end of {}", daemon.name()), STOP_LIMIT, async || {
            match self.alive(daemon).await {
                Ok(false) => Ok(()),
                Ok(true) => Err("it runs".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// How a person uses a detached lab.
    fn usage(&self) -> Vec<String> {
        let prefix = self.command_prefix().join(" ");
        vec![
            format!("Slurm {}, nodes {}", self.options.release.name(), self.names()),
            format!("REST (JWT): {}   REST (socket): {}", self.rest_url(), self.rest_socket().display()),
            format!("logs: {}", self.folder.path().join("log").display()),
            format!("run inside: {prefix} sinfo"),
            format!("token: {prefix} scontrol token username=slurm lifespan=86400"),
        ]
    }

    fn names(&self) -> String {
        self.options.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(",")
    }
}

impl Lab {
    fn take_down(&mut self) {
        // A failure here leaves nothing worse than what the next lab's start clears away.
        let _ = self.init.signal(Signal::KILL);
        let _ = self.unshare.wait();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.options.life == Life::Owned {
            self.take_down();
        }
    }
}

fn check(options: &Options) -> Result<()> {
    if options.nodes.is_empty() || options.nodes.len() > MOST_NODES {
        return Err(Error::Unknown(format!("a lab has 1 to {MOST_NODES} nodes")));
    }
    if options.release == Release::V26_05 && options.local_rest_is_privileged() {
        let user = &options.local_rest_user;
        return Err(Error::Unknown(format!("slurmrestd 26.05 does not run as {user}")));
    }
    match options.nodes.iter().find(|node| node.gpus > MOST_GPUS) {
        Some(node) => Err(Error::Unknown(format!("{} has more than {MOST_GPUS} GPUs", node.name))),
        None => Ok(()),
    }
}
