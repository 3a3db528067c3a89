//! Runs scontrol, for what no REST version writes or shows. Decides nothing; arguments are a list and never pass a shell.
//! What it did is never read from its output: that is read back over REST.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::certainty::Certainty;

/// The most that is read of each of its two outputs, in bytes.
const OUTPUT_MAX: u64 = 64 * 1024;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("cannot run {command}: {source}; see `scontrol` in the configuration")]
    Start {
        /// The command line.
        command: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It ran too long and was killed, or its output broke off.
    #[error("{command}: {why}")]
    Broken {
        /// The command line.
        command: String,
        /// What happened.
        why: String,
    },
    /// It failed.
    #[error("{command}: {}", said_or_status(said, *status))]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status; `None` where a signal ended it.
        status: Option<i32>,
        /// What kind of failure, by its own words.
        kind: Failure,
        /// What it wrote to standard error.
        said: String,
    },
}

/// What scontrol's words mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// slurmctld could not be reached.
    ControllerAway,
    /// The user may not do this.
    Forbidden,
    /// There is no such reservation.
    NoReservation,
    /// The reservation's name is taken.
    Exists,
    /// Jobs or other reservations are in the way.
    Busy,
    /// There is no such node.
    NoNode,
    /// The time is not accepted (in the past).
    BadTime,
    /// Anything else.
    Other,
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Start { .. } => "GB0314",
            Self::Broken { .. } => "GB0315",
            Self::Failed { .. } => "GB0316",
        }
    }

    /// What is known about a write that ended in this error.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Start { .. } => Certainty::NotDone,
            Self::Broken { .. } => Certainty::MayBeDone,
            Self::Failed { kind, .. } => match kind {
                Failure::Forbidden
                | Failure::NoReservation
                | Failure::Exists
                | Failure::Busy
                | Failure::NoNode
                | Failure::BadTime => Certainty::NotDone,
                Failure::ControllerAway | Failure::Other => Certainty::MayBeDone,
            },
        }
    }

    /// The kind of failure, where the command ran and said so.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Self::Failed { kind, .. } => Some(*kind),
            Self::Start { .. } | Self::Broken { .. } => None,
        }
    }
}

fn said_or_status(said: &str, status: Option<i32>) -> String {
    match (said, status) {
        ("", Some(status)) => format!("exit status {status}, without a word"),
        ("", None) => "ended by a signal".to_owned(),
        (said, _) => said.to_owned(),
    }
}

/// Reads what scontrol wrote to standard error. The texts are `slurm_strerror`'s, the same since 22.05.
pub fn classify(stderr: &str) -> Failure {
    const WORDS: [(&str, Failure); 11] = [
        ("Unable to contact slurm controller", Failure::ControllerAway),
        ("Connection refused", Failure::ControllerAway),
        ("Invalid user id", Failure::Forbidden),
        ("Access/permission denied", Failure::Forbidden),
        ("Requested reservation is invalid", Failure::NoReservation),
        ("Reservation name is duplicate", Failure::Exists),
        ("Duplicate reservation name", Failure::Exists),
        ("Requested nodes are busy", Failure::Busy),
        ("Requested reservation is in use", Failure::Busy),
        ("Invalid node name specified", Failure::NoNode),
        ("Invalid time specified", Failure::BadTime),
    ];
    WORDS.iter().find(|(words, _)| stderr.contains(words)).map_or(Failure::Other, |(_, kind)| *kind)
}

/// How to run scontrol on this site.
#[derive(Debug, Clone)]
pub struct Scontrol {
    argv: Vec<String>,
    deadline: Duration,
}

impl Scontrol {
    /// `argv` is the command line that arguments are appended to; `deadline` holds for each run.
    pub fn new(argv: Vec<String>, deadline: Duration) -> Self {
        Self { argv, deadline }
    }

    /// Runs it once; `Ok` means exit status 0, and is what it wrote to standard output.
    pub async fn run(&self, arguments: &[String]) -> Result<String, Error> {
        let words: Vec<&str> = self.argv.iter().chain(arguments).map(String::as_str).collect();
        let command = words.join(" ");
        let start = |source| Error::Start { command: command.clone(), source };
        let [program, rest @ ..] = words.as_slice() else {
            return Err(start(std::io::Error::other("the command line is empty")));
        };
        let mut child = Command::new(program)
            .args(rest)
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("SLURM_TIME_FORMAT", "standard")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(start)?;
        // A prefix such as nsenter or sudo has children of its own: the whole group goes when this does.
        let group = Group(child.id());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = tokio::time::timeout(self.deadline, async {
            tokio::try_join!(bounded(stdout), bounded(stderr), async { child.wait().await })
        })
        .await;
        let broken = |why: String| Error::Broken { command: command.clone(), why };
        let (stdout, stderr, status) = match ended {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => return Err(broken(error.to_string())),
            Err(_) => {
                return Err(broken(format!("killed, it did not end within {} s", self.deadline.as_secs())));
            }
        };
        group.disarm();
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
        Err(Error::Failed { kind: classify(&said), command, status: status.code(), said })
    }
}

/// Reads at most [`OUTPUT_MAX`]; more is an error, so that nothing waits for us to read on.
async fn bounded(output: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        output.take(OUTPUT_MAX + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > OUTPUT_MAX {
        return Err(std::io::Error::other(format!("it wrote more than {OUTPUT_MAX} bytes")));
    }
    Ok(bytes)
}

/// A process group of ours that is killed when this is dropped before [`Group::disarm`].
struct Group(Option<u32>);

impl Group {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) else { return };
        let Some(group) = rustix::process::Pid::from_raw(id) else { return };
        if let Err(error) = rustix::process::kill_process_group(group, rustix::process::Signal::KILL) {
            tracing::debug!(%error, "the process group of scontrol is gone already");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_words_are_understood() {
        for (said, kind) in [
            ("Error creating the reservation: Invalid user id", Failure::Forbidden),
            ("slurm_update error: Requested nodes are busy", Failure::Busy),
            ("slurm_update error: Requested reservation is invalid", Failure::NoReservation),
            ("Error creating the reservation: Invalid node name specified", Failure::NoNode),
            ("Error creating the reservation: Invalid time specified", Failure::BadTime),
            (
                "slurm_update error: Unable to contact slurm controller (connect failure)",
                Failure::ControllerAway,
            ),
            ("scontrol: error: Error parsing flags -OVERLAP.  No reservation update.", Failure::Other),
            ("", Failure::Other),
        ] {
            assert_eq!(classify(said), kind, "{said:?}");
        }
    }

    fn sh(script: &str, deadline_ms: u64) -> Scontrol {
        Scontrol::new(
            vec!["sh".into(), "-c".into(), script.into(), "scontrol".into()],
            Duration::from_millis(deadline_ms),
        )
    }

    #[tokio::test]
    async fn arguments_stay_whole_and_errors_are_typed() {
        let ok = sh(r#"test "$1" = "a b;\$(c)" && test "$TZ" = UTC"#, 5000);
        assert!(ok.run(&["a b;$(c)".to_owned()]).await.is_ok());

        let failed = sh("echo 'slurm_update error: Requested nodes are busy' >&2; exit 1", 5000);
        let error = failed.run(&[]).await.unwrap_err();
        assert_eq!(error.failure(), Some(Failure::Busy));
        assert_eq!(error.certainty(), Certainty::NotDone);

        let error = sh("yes", 5000).run(&[]).await.unwrap_err();
        assert!(error.to_string().contains("more than 65536 bytes"), "{error}");

        let nowhere = Scontrol::new(vec!["/nowhere/scontrol".into()], Duration::from_secs(5));
        let error = nowhere.run(&[]).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone);
    }

    #[tokio::test]
    async fn what_runs_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        let error = sh(&script, 500).run(&[]).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::MayBeDone);
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let gone = async {
            // Killed children of a killed parent stay as zombies until the reaper takes them.
            while rustix::process::test_kill_process(pid).is_ok()
                && !std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                    .unwrap_or_default()
                    .contains(") Z ")
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), gone).await.unwrap();
    }
}
