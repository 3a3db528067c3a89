//! Running a program to its end, with a deadline and no standard input.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::error::{Error, Result, at};

/// What a program printed and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output without surrounding white space, or [`Error::Failed`] when the program failed.
    pub fn ok(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout.trim().to_owned());
        }
        let said = format!("{}{}", self.stdout, self.stderr);
        Err(Error::Failed { command: self.command, status: self.status.to_string(), output: tail(&said) })
    }
}

/// Runs `argv` in the current folder and waits for its end, killing it at the deadline.
pub async fn output<S: AsRef<str>>(argv: &[S], limit: Duration) -> Result<Output> {
    let command = join(argv);
    let mut child = prepare(argv)?;
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = tokio::time::timeout(limit, child.output()).await.map_err(|_| Error::Deadline {
        what: format!("the end of {command}"),
        limit,
        last: "still running".to_owned(),
    })?;
    let done = done.map_err(|source| Error::Spawn { program: command.clone(), source })?;
    Ok(Output {
        command,
        status: done.status,
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}

/// Runs `argv` in `folder` with `env` on top, everything that it prints going to the file `log` (appended). A failure
/// carries the log's end.
pub async fn logged<S: AsRef<str>>(
    argv: &[S],
    folder: &Path,
    env: &[(&str, &str)],
    log: &Path,
    limit: Duration,
) -> Result<()> {
    let command = join(argv);
    let out = std::fs::File::options().create(true).append(true).open(log).map_err(at(log))?;
    let err = out.try_clone().map_err(at(log))?;
    let mut child = prepare(argv)?;
    child.current_dir(folder).envs(env.iter().copied()).stdout(out).stderr(err);
    let status = tokio::time::timeout(limit, child.status()).await.map_err(|_| Error::Deadline {
        what: format!("the end of {command}"),
        limit,
        last: log_tail(log),
    })?;
    let status = status.map_err(|source| Error::Spawn { program: command.clone(), source })?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed { command, status: status.to_string(), output: log_tail(log) })
}

/// Whether a program of this name is on the PATH.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|folder| folder.join(program).is_file()))
}

/// The last lines of a log file, for an error message.
pub(crate) fn log_tail(log: &Path) -> String {
    match std::fs::read(log) {
        Ok(bytes) => format!("{} (whole log: {})", tail(&String::from_utf8_lossy(&bytes)), log.display()),
        Err(error) => format!("{}: {error}", log.display()),
    }
}

fn tail(text: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn join<S: AsRef<str>>(argv: &[S]) -> String {
    argv.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ")
}

fn prepare<S: AsRef<str>>(argv: &[S]) -> Result<tokio::process::Command> {
    let (program, rest) =
        argv.split_first().ok_or_else(|| Error::Unknown("an empty command line".to_owned()))?;
    let mut command = tokio::process::Command::new(program.as_ref());
    command.args(rest.iter().map(AsRef::as_ref)).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keeps_what_was_printed_and_tells_failure() {
        let good = output(&["sh", "-c", "echo out; echo err >&2"], Duration::from_secs(10)).await.unwrap();
        assert_eq!((good.stdout.as_str(), good.stderr.as_str()), ("out\n", "err\n"));
        let bad = output(&["sh", "-c", "echo why >&2; exit 3"], Duration::from_secs(10)).await.unwrap();
        let said = bad.ok().unwrap_err().to_string();
        assert!(said.contains("exit status: 3") && said.contains("why"), "{said}");
    }

    #[tokio::test]
    async fn has_a_deadline() {
        let late = output(&["sleep", "60"], Duration::from_millis(20)).await;
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    }
}
