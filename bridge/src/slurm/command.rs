//! Runs a command of the site once: arguments as a list that no shell reads, a fixed locale and zone, a deadline, bounded
//! output. It knows nothing of what the output means.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The most that is read of its standard error, and of the output of a command that only does something, in bytes.
pub(super) const WORDS_MAX: usize = 64 * 1024;
/// Fixed in their environment: locale, zone, times as seconds since 1970, and the longest list of array tasks.
const SET: [(&str, &str); 4] =
    [("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("SLURM_TIME_FORMAT", "%s"), ("SLURM_BITSTR_LEN", "4096")];

/// Why a command gave no output.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It could not be started.
    #[error("cannot run {command}: {source}")]
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
        /// What it wrote to standard error.
        said: String,
    },
}

/// What a failed command says of itself.
fn said_or_status(said: &str, status: Option<i32>) -> String {
    match (said, status) {
        ("", Some(status)) => format!("exit status {status}, without a word"),
        ("", None) => "ended by a signal".to_owned(),
        (said, _) => said.to_owned(),
    }
}

/// Would this variable of the environment change what Slurm's commands show? `SQUEUE_ACCOUNT` alone hides the jobs of all other
/// accounts.
fn changes_output(name: &str) -> bool {
    let whole = ["SLURM_CLUSTERS", "SLURM_JSON", "SLURM_YAML"];
    name.starts_with("SQUEUE_") || name.starts_with("SCONTROL_") || whole.contains(&name)
}

/// Runs `argv` with `arguments` appended; gives its standard output where it ends with status 0 within `deadline` and
/// writes no more than `output_max` bytes.
pub(super) async fn run(
    argv: &[String],
    arguments: &[String],
    deadline: Duration,
    output_max: usize,
) -> Result<Vec<u8>, Error> {
    let words: Vec<&str> = argv.iter().chain(arguments).map(String::as_str).collect();
    let command = words.join(" ");
    let start = |source| Error::Start { command: command.clone(), source };
    let [program, rest @ ..] = words.as_slice() else {
        return Err(start(std::io::Error::other("the command line is empty")));
    };
    let mut made = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| changes_output(&name.to_string_lossy())) {
        made.env_remove(name);
    }
    let mut child = made
        .args(rest)
        .envs(SET)
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
    let ended = tokio::time::timeout(deadline, async {
        tokio::try_join!(bounded(stdout, output_max), bounded(stderr, WORDS_MAX), async {
            child.wait().await
        })
    })
    .await;
    let broken = |why: String| Error::Broken { command: command.clone(), why };
    let (stdout, stderr, status) = match ended {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(broken(error.to_string())),
        Err(_) => return Err(broken(format!("killed, it did not end within {} s", deadline.as_secs()))),
    };
    group.disarm();
    if status.success() {
        return Ok(stdout);
    }
    let said = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
    Err(Error::Failed { command, status: status.code(), said })
}

/// Whether there is a program of that name to run, as `run` would look for it.
pub(crate) fn is_there(program: &str) -> bool {
    let runs = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if program.contains('/') {
        return runs(Path::new(program));
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&folders).any(|folder| runs(&folder.join(program)))
}

/// Reads at most `max` bytes; more is an error, so that nothing waits for us to read on.
async fn bounded(output: Option<impl AsyncRead + Unpin>, max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        output.take(max as u64 + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() > max {
        return Err(std::io::Error::other(format!("it wrote more than {max} bytes")));
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
            tracing::debug!(%error, "the process group of a command is gone already");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str, deadline_ms: u64) -> Result<Vec<u8>, Error> {
        let argv = ["sh", "-c", script].map(str::to_owned);
        run(&argv, &[], Duration::from_millis(deadline_ms), WORDS_MAX).await
    }

    #[tokio::test]
    async fn output_is_bounded() {
        assert_eq!(sh("echo yes", 5000).await.unwrap(), b"yes\n");
        let error = sh("yes", 5000).await.unwrap_err();
        assert!(error.to_string().contains("more than 65536 bytes"), "{error}");
    }

    #[test]
    fn a_program_is_there_where_it_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        for (program, there) in [
            ("sh", true),
            ("/bin/sh", true),
            ("no-such-program", false),
            ("/nonexistent/sh", false),
            ("/bin", false),
            (text.to_str().unwrap(), false),
            ("", false),
        ] {
            assert_eq!(is_there(program), there, "{program:?}");
        }
    }

    #[tokio::test]
    async fn locale_zone_and_forms_are_fixed() {
        let shown = sh("echo $LC_ALL $TZ $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN", 5000);
        assert_eq!(shown.await.unwrap(), b"C.UTF-8 UTC %s 4096\n");
        for (name, changes) in [
            ("SQUEUE_FORMAT2", true),
            ("SQUEUE_ACCOUNT", true),
            ("SQUEUE_ONLY_JOB_STATE", true),
            ("SCONTROL_FUTURE", true),
            ("SLURM_CLUSTERS", true),
            ("SLURM_JSON", true),
            // Where Slurm is, and who we are.
            ("SLURM_CONF", false),
            ("SLURM_JWT", false),
            ("PATH", false),
        ] {
            assert_eq!(changes_output(name), changes, "{name}");
        }
    }

    #[tokio::test]
    async fn what_runs_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        let error = sh(&script, 500).await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
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
