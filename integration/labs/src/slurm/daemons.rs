//! The daemons of a lab: their names and command lines, per release where these differ.

use super::conf::Ports;
use super::{INSIDE, Options, REST_USER, Release};

/// One process of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Daemon {
    /// The authentication daemon.
    Munged,
    /// The controller.
    Slurmctld,
    /// The node daemon of the node of this name.
    Slurmd(String),
    /// REST over TCP, with JWT.
    Slurmrestd,
    /// REST over a Unix socket, with rest_auth/local.
    SlurmrestdLocal,
}

impl Daemon {
    /// A name for files and messages.
    pub fn name(&self) -> String {
        match self {
            Self::Munged => "munged".to_owned(),
            Self::Slurmctld => "slurmctld".to_owned(),
            Self::Slurmd(node) => format!("slurmd-{node}"),
            Self::Slurmrestd => "slurmrestd".to_owned(),
            Self::SlurmrestdLocal => "slurmrestd-local".to_owned(),
        }
    }

    /// Whether it runs in the outer pid namespace: rest_auth/local rejects a caller whose process it cannot see, and callers
    /// are outside.
    pub(super) fn outside(&self) -> bool {
        match self {
            Self::SlurmrestdLocal => true,
            Self::Munged | Self::Slurmctld | Self::Slurmd(_) | Self::Slurmrestd => false,
        }
    }

    /// The command line inside the lab; every one stays in the foreground.
    pub(super) fn argv(&self, options: &Options, ports: Ports) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Munged => {
                let folder = format!("{INSIDE}/munge");
                let mut argv = words(&["munged", "--foreground", "--force", "--num-threads=2"]);
                argv.extend(
                    [
                        ("key-file", "munge.key"),
                        ("socket", "munge.sock"),
                        ("pid-file", "munged.pid"),
                        ("log-file", "munged.log"),
                        ("seed-file", "munged.seed"),
                    ]
                    .map(|(flag, file)| format!("--{flag}={folder}/{file}")),
                );
                argv
            }
            Self::Slurmctld => words(&["slurmctld", "-D"]),
            Self::Slurmd(node) => words(&["slurmd", "-D", "-N", node]),
            Self::Slurmrestd => {
                let mut argv = as_user(REST_USER);
                argv.extend(words(&["env", "SLURM_JWT=daemon", "slurmrestd", "-v", "-a", "rest_auth/jwt"]));
                argv.extend(plugins(options.release));
                argv.push(format!("127.0.0.1:{}", ports.rest));
                argv
            }
            Self::SlurmrestdLocal => {
                let mut argv = as_user(&options.local_rest_user);
                if options.local_rest_is_privileged() {
                    argv.extend(words(&["env", "SLURMRESTD_SECURITY=disable_user_check"]));
                }
                argv.extend(words(&["slurmrestd", "-v", "-a", "rest_auth/local"]));
                argv.extend(plugins(options.release));
                argv.push(format!("unix:{INSIDE}/{REST_SOCKET}"));
                argv
            }
        }
    }
}

/// Where the local slurmrestd's socket is, from the run folder.
pub(super) const REST_SOCKET: &str = "rest/slurmrestd.sock";

/// The start of a command line that runs the rest as `user`.
pub(super) fn as_user(user: &str) -> Vec<String> {
    vec![
        "setpriv".to_owned(),
        format!("--reuid={user}"),
        format!("--regid={user}"),
        "--clear-groups".to_owned(),
    ]
}

/// Without slurmdbd its REST plugins make slurmrestd up to 25.05 end at once: load those of slurmctld only.
fn plugins(release: Release) -> Vec<String> {
    let only = match release {
        Release::V22_05 => "v0.0.36,v0.0.37,v0.0.38",
        Release::V24_11 => "slurmctld",
        Release::V26_05 => return Vec::new(),
    };
    vec!["-s".to_owned(), only.to_owned()]
}
