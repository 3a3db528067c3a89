//! The small site of all end-to-end runs as a configuration file: nodes `gpu1` to `gpu4` with four A100 each, at home in
//! Slurm's partition `main`, and the Kubernetes pool `gpu-burst` that has no nodes of its own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use gpu_bridge::slurm::Mode;

/// What differs from run to run.
#[derive(Debug, Clone)]
pub struct Site {
    /// The daemon's state folder.
    pub state_dir: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// Whether slurmrestd is asked, or the commands alone.
    pub mode: Mode,
    /// slurmrestd.
    pub slurm_url: String,
    /// A file with a token for it.
    pub token_file: PathBuf,
    /// The command line that scontrol's arguments are appended to.
    pub scontrol: Vec<String>,
    /// A kubeconfig.
    pub kubeconfig: PathBuf,
    /// The daemon's user in Kubernetes.
    pub kubernetes_user: String,
    /// The prewarm policy's file; without one nothing moves by itself.
    pub prewarm: Option<PathBuf>,
    /// `[[window]]` and `[[blackout]]` tables, as people write them.
    pub calendar: String,
    /// How long jobs and pods may take to leave.
    pub deadline: String,
    /// What happens then: `wait` or `roll-back`.
    pub escalation: String,
    /// Nodes that Slurm keeps.
    pub floor: u32,
}

/// The pool that borrows nodes.
pub const BURST: &str = "gpu-burst";
/// Its label, as pods select it.
pub const BURST_LABEL: (&str, &str) = ("nodepool", "gpu-burst");
/// Names of the nodes.
pub const NODES: [&str; 4] = ["gpu1", "gpu2", "gpu3", "gpu4"];

impl Site {
    /// The configuration file.
    pub fn toml(&self) -> String {
        let quote = |text: &str| format!("{text:?}");
        let file = |path: &Path| quote(&path.to_string_lossy());
        let scontrol: Vec<String> = self.scontrol.iter().map(|word| quote(word)).collect();
        let mut toml = format!(
            r#"[daemon]
state_dir = {state_dir}
socket = {socket}
tick = "500ms"
log = "info"

[slurm]
{reach}
scontrol = [{scontrol}]
timeout = "30s"

[kubernetes]
kubeconfig = {kubeconfig}
timeout = "10s"
trusted_namespaces = ["kube-system"]
user = {user:?}

[[node]]
name = "gpu[1-4]"
gpu_model = "a100"
gpus = 4

[[pool]]
name = "main"
domain = "slurm"
partition = "main"
nodes = "gpu[1-4]"
floor = {floor}
max_handovers = 4
drain_deadline = {deadline:?}
escalation = {escalation:?}
node_word = "absent-allowed"
node_word_reason = "fake nodes"

[[pool]]
name = "{BURST}"
domain = "kubernetes"
on_loan_only = true
labels = {{ {label} = "{value}" }}
max_handovers = 4
evict_deadline = {deadline:?}
escalation = {escalation:?}
protected_priority = 1000000
node_word = "absent-allowed"
node_word_reason = "fake nodes"
"#,
            state_dir = file(&self.state_dir),
            socket = file(&self.socket),
            reach = match self.mode {
                Mode::Rest => format!(
                    "url = {:?}\nuser = \"slurm\"\ntoken_file = {}",
                    self.slurm_url,
                    file(&self.token_file)
                ),
                Mode::Cli => "mode = \"cli\"".to_owned(),
            },
            scontrol = scontrol.join(", "),
            kubeconfig = file(&self.kubeconfig),
            user = self.kubernetes_user,
            floor = self.floor,
            deadline = self.deadline,
            escalation = self.escalation,
            label = BURST_LABEL.0,
            value = BURST_LABEL.1,
        );
        if let Some(prewarm) = self.prewarm.as_deref().map(file) {
            let _ = write!(
                toml,
                "\n[[policy]]\nname = \"prewarm\"\npath = {prewarm}\n\n[policy.grants]\nkinds = [\"want-ready\"]\npools = [\"{BURST}\"]\n"
            );
        }
        toml.push('\n');
        toml.push_str(&self.calendar);
        toml
    }
}
