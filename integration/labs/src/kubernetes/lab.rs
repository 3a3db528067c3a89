//! One running control plane with its nodes. Every part is a child process of ours, in a process group of its own, that ends
//! by itself when its standard input closes, so when its owner ends in whatever way.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node as KubeNode, ServiceAccount};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::Signal;

use super::parts::{CONTROLLERS, FIRST_NODE_PORT, Layout, Part, SCHEDULER, show};
use super::{ADMIN, Node, Options, User, VERSION, binary};
use crate::command::{self, log_tail};
use crate::error::{Error, Result, at};
use crate::run::{BLOCK, Folder, Kind, Life, Process};
use crate::{random, wait_until};

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOOK_LIMIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Started {
    argv: Vec<String>,
    /// `None` once it was stopped. Holds the pipe that keeps the process alive.
    child: Option<(Child, Process)>,
}

/// A running Kubernetes. Dropping it takes it down, unless it is [`Life::Detached`].
#[derive(Debug)]
pub struct Lab {
    options: Options,
    binary: PathBuf,
    layout: Layout,
    tokens: BTreeMap<String, String>,
    nodes: Mutex<Vec<String>>,
    parts: Mutex<BTreeMap<Part, Started>>,
    folder: Mutex<Folder>,
}

impl Lab {
    /// Starts a lab and waits until its nodes are Ready and pods can be made: seconds, and about 5 minutes more where the
    /// binary has to be built.
    pub async fn up(options: Options) -> Result<Self> {
        if options.nodes.len() > usize::from(BLOCK - FIRST_NODE_PORT) {
            return Err(Error::Unknown(format!("a lab has {} nodes at most", BLOCK - FIRST_NODE_PORT)));
        }
        let binary = binary::prepare().await?;
        let folder = Folder::take(Kind::Kubernetes, options.life).await?;
        let layout = Layout { run: folder.path().to_owned(), first_port: folder.port(0)? };
        let tokens = write_tokens(&layout, &options.users)?;
        issue(&binary, &layout, &own_users(&options.nodes)).await?;
        for (user, token) in &tokens {
            write_kubeconfig(&layout, user, &serde_json::json!({ "token": token }))?;
        }
        for name in [CONTROLLERS, SCHEDULER] {
            write_certificate_kubeconfig(&layout, name)?;
        }
        let mut lab = Self {
            options,
            binary,
            layout,
            tokens,
            nodes: Mutex::new(Vec::new()),
            parts: Mutex::new(BTreeMap::new()),
            folder: Mutex::new(folder),
        };
        if let Err(error) = lab.start_all().await {
            lab.take_down();
            return Err(error);
        }
        Ok(lab)
    }

    async fn start_all(&self) -> Result<()> {
        self.launch(&Part::Etcd, self.layout.etcd_argv())?;
        self.launch(&Part::ApiServer, self.layout.apiserver_argv(&self.options))?;
        self.api_ready().await?;
        self.launch(&Part::Controllers, self.layout.controllers_argv(&self.options))?;
        self.launch(&Part::Scheduler, self.layout.scheduler_argv())?;
        for node in &self.options.nodes {
            self.launch_kubelet(node)?;
        }
        for node in &self.options.nodes {
            self.node_ready(&node.name).await?;
        }
        // Pods are refused until it exists.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        wait_until("the default service account", START_LIMIT, async || {
            look(accounts.get("default")).await.map(drop)
        })
        .await?;
        let usage = self.usage();
        self.folder().update(|record| record.usage = usage)
    }

    /// A kubeconfig of the user that may do anything.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig(ADMIN)
    }

    /// A kubeconfig of one of the lab's users.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        self.token(user).map(|_| self.layout.kubeconfig(user))
    }

    /// The bearer token of one of the lab's users.
    pub fn token(&self, user: &str) -> Result<&str> {
        let token = self.tokens.get(user).map(String::as_str);
        token.ok_or_else(|| Error::Unknown(format!("the lab has no user {user}")))
    }

    /// The API server's URL.
    pub fn server(&self) -> String {
        self.layout.server()
    }

    /// The certificate authority of the API server's certificate (PEM).
    pub fn authority(&self) -> PathBuf {
        self.layout.keys().join("ca.crt")
    }

    /// A client of the user that may do anything, without retries of its own. Use it in the runtime that it was made in.
    pub async fn client(&self) -> Result<Client> {
        client(&self.kubeconfig()).await
    }

    /// A client of one of the lab's users, without retries of its own.
    pub async fn client_of(&self, user: &str) -> Result<Client> {
        client(&self.kubeconfig_of(user)?).await
    }

    /// The folder that its parts write to; a part's log is `NAME.log`.
    pub fn path(&self) -> &Path {
        &self.layout.run
    }

    /// Starts one more node and waits until it is Ready.
    pub async fn add_node(&self, node: &Node) -> Result<()> {
        issue(&self.binary, &self.layout, &own_users(std::slice::from_ref(node))).await?;
        self.launch_kubelet(node)?;
        self.node_ready(&node.name).await
    }

    /// Starts the kubelet of a node anew with other flags (other GPUs, another taint to register with); waits for nothing.
    /// A Node that was deleted is registered again only by this.
    pub async fn restart_node(&self, node: &Node) -> Result<()> {
        let part = Part::Kubelet(node.name.clone());
        if self.alive(&part) {
            self.stop(&part).await?;
        }
        self.launch_kubelet(node)
    }

    /// Waits until a Node is there and Ready.
    pub async fn node_ready(&self, name: &str) -> Result<()> {
        self.node_reaches(name, "Ready", |node| ready(node) == Some("True")).await
    }

    /// Waits until a Node is as `wanted` says.
    pub async fn node_reaches(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&KubeNode) -> bool,
    ) -> Result<()> {
        let nodes: Api<KubeNode> = Api::all(self.client().await?);
        wait_until(&format!("node {name} {what}"), START_LIMIT, async || {
            let node = look(nodes.get(name)).await?;
            if wanted(&node) {
                return Ok(());
            }
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).map_or(0, Vec::len);
            Err(format!("Ready is {}, {taints} taints", ready(&node).unwrap_or("missing")))
        })
        .await
    }

    /// Kills a part at once (SIGKILL), as a machine that loses power.
    pub async fn stop(&self, part: &Part) -> Result<()> {
        let (mut child, process) = self
            .parts()
            .get_mut(part)
            .and_then(|started| started.child.take())
            .ok_or_else(|| Error::Unknown(format!("{} does not run", part.name())))?;
        process.signal(Signal::KILL)?;
        wait_until(&format!("the end of {}", part.name()), STOP_LIMIT, async || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        self.record(part, None)
    }

    /// Starts a stopped part as it was started before. For the API server, waits until it is ready.
    pub async fn start(&self, part: &Part) -> Result<()> {
        let argv = self.parts().get(part).map(|started| started.argv.clone());
        let argv = argv.ok_or_else(|| Error::Unknown(format!("the lab never had {}", part.name())))?;
        self.launch(part, argv)?;
        if *part == Part::ApiServer { self.api_ready().await } else { Ok(()) }
    }

    /// Freezes a part (SIGSTOP).
    pub fn pause(&self, part: &Part) -> Result<()> {
        self.process(part)?.signal(Signal::STOP)
    }

    /// Lets a paused part run on (SIGCONT).
    pub fn resume(&self, part: &Part) -> Result<()> {
        self.process(part)?.signal(Signal::CONT)
    }

    /// Whether a part's process runs (also while paused).
    pub fn alive(&self, part: &Part) -> bool {
        self.process(part).is_ok_and(|process| process.alive())
    }

    fn process(&self, part: &Part) -> Result<Process> {
        let parts = self.parts();
        let running = parts.get(part).and_then(|started| started.child.as_ref());
        running
            .map(|(_, process)| *process)
            .ok_or_else(|| Error::Unknown(format!("{} does not run", part.name())))
    }

    async fn api_ready(&self) -> Result<()> {
        let client = self.client().await?;
        wait_until("the API server to be ready", START_LIMIT, async || {
            if !self.alive(&Part::ApiServer) {
                return Ok(Err(self.ended(&Part::ApiServer)));
            }
            if !self.alive(&Part::Etcd) {
                return Ok(Err(self.ended(&Part::Etcd)));
            }
            let request =
                http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
            look(client.request_text(request)).await.map(|_| Ok(()))
        })
        .await?
    }

    fn ended(&self, part: &Part) -> Error {
        Error::Failed { command: part.name(), status: "ended".to_owned(), output: log_tail(&self.log(part)) }
    }

    fn log(&self, part: &Part) -> PathBuf {
        self.layout.run.join(format!("{}.log", part.name()))
    }

    fn launch_kubelet(&self, node: &Node) -> Result<()> {
        let part = Part::Kubelet(node.name.clone());
        let credentials = part.name();
        write_certificate_kubeconfig(&self.layout, &credentials)?;
        // A node keeps its port.
        let index = {
            let mut names = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let known = names.iter().position(|name| *name == node.name);
            let index = known.unwrap_or_else(|| {
                names.push(node.name.clone());
                names.len() - 1
            });
            u16::try_from(index).unwrap_or(BLOCK)
        };
        if index >= BLOCK - FIRST_NODE_PORT {
            return Err(Error::Unknown("the lab has no port left for a node".to_owned()));
        }
        self.launch(&part, self.layout.kubelet_argv(node, index))
    }

    /// Starts one process, and remembers how.
    fn launch(&self, part: &Part, argv: Vec<String>) -> Result<()> {
        let mut parts = self.parts();
        if parts.get(part).and_then(|started| started.child.as_ref()).is_some_and(|(_, found)| found.alive())
        {
            return Err(Error::Unknown(format!("{} runs already", part.name())));
        }
        let log = self.log(part);
        let out = std::fs::File::options().create(true).append(true).open(&log).map_err(at(&log))?;
        let err = out.try_clone().map_err(at(&log))?;
        let mut command = Command::new(&self.binary);
        command.args(&argv).current_dir(&self.layout.run).process_group(0).stdout(out).stderr(err);
        match self.options.life {
            Life::Owned => command.stdin(Stdio::piped()).env("GPU_BRIDGE_LAB_TETHER", "1"),
            Life::Detached => command.stdin(Stdio::null()).env_remove("GPU_BRIDGE_LAB_TETHER"),
        };
        let program = part.name();
        let child = command.spawn().map_err(|source| Error::Spawn { program: program.clone(), source })?;
        let process = i32::try_from(child.id()).ok().and_then(Process::find);
        let process = process.ok_or_else(|| self.ended(part))?;
        parts.insert(part.clone(), Started { argv, child: Some((child, process)) });
        drop(parts);
        self.record(part, Some(process))
    }

    fn record(&self, part: &Part, process: Option<Process>) -> Result<()> {
        let name = part.name();
        self.folder().update(|record| {
            match process {
                Some(process) => record.processes.insert(name, process),
                None => record.processes.remove(&name),
            };
        })
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<Part, Started>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self) -> MutexGuard<'_, Folder> {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_down(&mut self) {
        let parts = std::mem::take(&mut *self.parts());
        let mut children: Vec<_> = parts.into_values().filter_map(|started| started.child).collect();
        // A failure here leaves nothing worse than what the next lab's start clears away.
        for (_, process) in &children {
            let _ = process.signal(Signal::KILL);
        }
        for (child, _) in &mut children {
            let _ = child.wait();
        }
    }

    fn usage(&self) -> Vec<String> {
        let nodes: Vec<&str> = self.options.nodes.iter().map(|node| node.name.as_str()).collect();
        let mut lines = vec![
            format!("Kubernetes {VERSION}, nodes {}", nodes.join(",")),
            format!("export KUBECONFIG={}", self.kubeconfig().display()),
            format!("logs: {}/*.log", self.path().display()),
        ];
        for user in &self.options.users {
            lines.push(format!(
                "as {}: KUBECONFIG={}",
                user.name,
                self.layout.kubeconfig(&user.name).display()
            ));
        }
        lines
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.options.life == Life::Owned {
            self.take_down();
        }
    }
}

/// The credentials of parts and kubelets: file, user name, group.
fn own_users(nodes: &[Node]) -> Vec<String> {
    let fixed = [
        format!("{CONTROLLERS}=system:kube-controller-manager="),
        format!("{SCHEDULER}=system:kube-scheduler="),
    ];
    let kubelets = nodes.iter().map(|node| {
        let file = Part::Kubelet(node.name.clone()).name();
        format!("{file}=system:node:{}=system:nodes", node.name)
    });
    fixed.into_iter().chain(kubelets).collect()
}

/// Makes the authority, where there is none, and certificates under it.
async fn issue(binary: &Path, layout: &Layout, users: &[String]) -> Result<()> {
    let keys = layout.keys();
    crate::cache::make(&keys)?;
    let mut argv = vec![show(binary), "keys".to_owned(), show(&keys)];
    argv.extend(users.iter().cloned());
    command::output(&argv, START_LIMIT).await?.ok().map(drop)
}

/// Writes the API server's token file: `admin` and the lab's users, each with a token of its own.
fn write_tokens(layout: &Layout, users: &[User]) -> Result<BTreeMap<String, String>> {
    let admin = User { name: ADMIN.to_owned(), groups: vec!["system:masters".to_owned()] };
    let mut tokens = BTreeMap::new();
    let mut text = String::new();
    for user in std::iter::once(&admin).chain(users) {
        let token = random::token()?;
        let _ = writeln!(text, "{token},{0},{0},\"{1}\"", user.name, user.groups.join(","));
        tokens.insert(user.name.clone(), token);
    }
    let path = layout.tokens();
    std::fs::write(&path, text).map_err(at(&path))?;
    Ok(tokens)
}

fn write_certificate_kubeconfig(layout: &Layout, name: &str) -> Result<()> {
    let keys = layout.keys();
    let user = serde_json::json!({
        "client-certificate": keys.join(format!("{name}.crt")),
        "client-key": keys.join(format!("{name}.key")),
    });
    write_kubeconfig(layout, name, &user)
}

/// A kubeconfig is YAML, and so JSON.
fn write_kubeconfig(layout: &Layout, name: &str, user: &serde_json::Value) -> Result<()> {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "lab", "cluster": {
            "server": layout.server(),
            "certificate-authority": layout.keys().join("ca.crt"),
        } }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": name } }],
        "current-context": "lab",
    });
    let path = layout.kubeconfig(name);
    std::fs::write(&path, format!("{config:#}\n")).map_err(at(&path))
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let wrong = |error: &dyn std::fmt::Display| Error::Unknown(format!("{}: {error}", kubeconfig.display()));
    let config = Kubeconfig::read_from(kubeconfig).map_err(|error| wrong(&error))?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .map_err(|error| wrong(&error))?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// One look at the API, with a deadline, as [`wait_until`] wants it.
async fn look<T>(call: impl Future<Output = kube::Result<T>>) -> std::result::Result<T, String> {
    match tokio::time::timeout(LOOK_LIMIT, call).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

fn ready(node: &KubeNode) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str())
}
