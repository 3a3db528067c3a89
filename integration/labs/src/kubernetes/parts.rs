//! The parts of a lab: their names and command lines.

use std::path::{Path, PathBuf};

use super::{Node, Options};

/// One process of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    Controllers,
    /// kube-scheduler.
    Scheduler,
    /// The kubelet of the node of this name.
    Kubelet(String),
}

impl Part {
    /// A name for files and messages.
    pub fn name(&self) -> String {
        match self {
            Self::Etcd => "etcd".to_owned(),
            Self::ApiServer => "apiserver".to_owned(),
            Self::Controllers => "controllers".to_owned(),
            Self::Scheduler => "scheduler".to_owned(),
            Self::Kubelet(node) => format!("kubelet-{node}"),
        }
    }
}

/// Where a lab's files and ports are.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) run: PathBuf,
    pub(super) first_port: u16,
}

/// Kubelets' ports start here, from the lab's first port.
pub(super) const FIRST_NODE_PORT: u16 = 10;

impl Layout {
    fn port(&self, index: u16) -> u16 {
        self.first_port + index
    }

    pub(super) fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port(0))
    }

    fn etcd(&self) -> String {
        format!("http://127.0.0.1:{}", self.port(1))
    }

    pub(super) fn keys(&self) -> PathBuf {
        self.run.join("keys")
    }

    pub(super) fn tokens(&self) -> PathBuf {
        self.run.join("tokens.csv")
    }

    /// The kubeconfig of a user or a part.
    pub(super) fn kubeconfig(&self, name: &str) -> PathBuf {
        self.run.join(format!("kubeconfig-{name}"))
    }

    fn key(&self, name: &str) -> String {
        show(&self.keys().join(name))
    }

    /// Arguments of the binary for etcd. A power failure of the machine is nothing that a lab must survive.
    pub(super) fn etcd_argv(&self) -> Vec<String> {
        let peer = format!("http://127.0.0.1:{}", self.port(2));
        flags(
            "etcd",
            &[
                ("data-dir", &show(&self.run.join("etcd"))),
                ("listen-client-urls", &self.etcd()),
                ("advertise-client-urls", &self.etcd()),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &format!("default={peer}")),
                ("unsafe-no-fsync", "true"),
                ("log-level", "warn"),
            ],
        )
    }

    pub(super) fn apiserver_argv(&self, options: &Options) -> Vec<String> {
        let mut argv = flags(
            "kube-apiserver",
            &[
                ("etcd-servers", &self.etcd()),
                ("bind-address", "127.0.0.1"),
                ("advertise-address", "127.0.0.1"),
                ("secure-port", &self.port(0).to_string()),
                ("tls-cert-file", &self.key("apiserver.crt")),
                ("tls-private-key-file", &self.key("apiserver.key")),
                ("client-ca-file", &self.key("ca.crt")),
                ("token-auth-file", &show(&self.tokens())),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
                ("service-account-issuer", "https://lab"),
                ("service-account-key-file", &self.key("sa.key")),
                ("service-account-signing-key-file", &self.key("sa.key")),
                ("service-cluster-ip-range", "10.96.0.0/16"),
                // There is no address but the loopback one, which no endpoint may have.
                ("endpoint-reconciler-type", "none"),
            ],
        );
        argv.extend(options.apiserver.iter().cloned());
        argv
    }

    pub(super) fn controllers_argv(&self, options: &Options) -> Vec<String> {
        let mut argv = flags(
            "kube-controller-manager",
            &[
                ("kubeconfig", &show(&self.kubeconfig(CONTROLLERS))),
                ("service-account-private-key-file", &self.key("sa.key")),
                ("root-ca-file", &self.key("ca.crt")),
                ("use-service-account-credentials", "true"),
                ("leader-elect", "false"),
                ("bind-address", "127.0.0.1"),
                ("secure-port", &self.port(3).to_string()),
                ("cert-dir", &show(&self.run.join("controllers"))),
            ],
        );
        argv.extend(options.controllers.iter().cloned());
        argv
    }

    pub(super) fn scheduler_argv(&self) -> Vec<String> {
        flags(
            "kube-scheduler",
            &[
                ("kubeconfig", &show(&self.kubeconfig(SCHEDULER))),
                ("leader-elect", "false"),
                ("bind-address", "127.0.0.1"),
                ("secure-port", &self.port(4).to_string()),
                ("cert-dir", &show(&self.run.join("scheduler"))),
            ],
        )
    }

    /// `index` counts the nodes of the lab from 0.
    pub(super) fn kubelet_argv(&self, node: &Node, index: u16) -> Vec<String> {
        let mut argv = flags(
            "hollow-node",
            &[
                ("morph", "kubelet"),
                ("name", &node.name),
                ("kubeconfig", &show(&self.kubeconfig(&Part::Kubelet(node.name.clone()).name()))),
                ("cert-dir", &show(&self.run.join(format!("node-{}", node.name)))),
                ("kubelet-port", &self.port(FIRST_NODE_PORT + index).to_string()),
                ("kubelet-read-only-port", "0"),
                ("use-host-image-service", "false"),
                ("extended-resources", &format!("nvidia.com/gpu={}", node.gpus)),
            ],
        );
        argv.extend(node.register_taint.iter().map(|taint| format!("--register-with-taints={taint}")));
        argv.extend(node.flags.iter().cloned());
        argv
    }
}

/// Names of the parts' own credentials.
pub(super) const CONTROLLERS: &str = "controllers";
pub(super) const SCHEDULER: &str = "scheduler";

pub(super) fn show(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn flags(part: &str, flags: &[(&str, &str)]) -> Vec<String> {
    std::iter::once(part.to_owned())
        .chain(flags.iter().map(|(name, value)| format!("--{name}={value}")))
        .collect()
}
