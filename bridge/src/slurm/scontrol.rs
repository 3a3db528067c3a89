//! Runs scontrol and squeue, for what slurmrestd does not write or show, or where there is none. Decides nothing; arguments
//! are a list and never pass a shell. What a write did is never read from its output: that is looked at.

use std::time::Duration;

use super::command;
use crate::certainty::Certainty;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] command::Error);

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
    /// There is no such job.
    NoJob,
    /// The time is not accepted (in the past).
    BadTime,
    /// Anything else.
    Other,
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match &self.0 {
            command::Error::Start { .. } => "GB0314",
            command::Error::Broken { .. } => "GB0315",
            command::Error::Failed { .. } => "GB0316",
        }
    }

    /// What is known about a write that ended in this error.
    pub fn certainty(&self) -> Certainty {
        match &self.0 {
            command::Error::Start { .. } => Certainty::NotDone,
            command::Error::Broken { .. } => Certainty::MayBeDone,
            command::Error::Failed { said, .. } => match classify(said) {
                Failure::Forbidden
                | Failure::NoReservation
                | Failure::Exists
                | Failure::Busy
                | Failure::NoNode
                | Failure::NoJob
                | Failure::BadTime => Certainty::NotDone,
                Failure::ControllerAway | Failure::Other => Certainty::MayBeDone,
            },
        }
    }

    /// The kind of failure, where the command ran and said so.
    pub fn failure(&self) -> Option<Failure> {
        match &self.0 {
            command::Error::Failed { said, .. } => Some(classify(said)),
            command::Error::Start { .. } | command::Error::Broken { .. } => None,
        }
    }
}

/// Reads what scontrol wrote to standard error. The texts are `slurm_strerror`'s, the same since 22.05.
pub fn classify(stderr: &str) -> Failure {
    const WORDS: [(&str, Failure); 12] = [
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
        ("Invalid job id specified", Failure::NoJob),
        ("Invalid time specified", Failure::BadTime),
    ];
    WORDS.iter().find(|(words, _)| stderr.contains(words)).map_or(Failure::Other, |(_, kind)| *kind)
}

/// How to run one of the commands on this site.
#[derive(Debug, Clone)]
pub struct Command {
    argv: Vec<String>,
    deadline: Duration,
    output_max: usize,
}

impl Command {
    /// `argv` is the command line that arguments are appended to; `deadline` and the largest output, in bytes, hold for each
    /// run.
    pub fn new(argv: Vec<String>, deadline: Duration, output_max: usize) -> Self {
        Self { argv, deadline, output_max }
    }

    /// Runs it once; `Ok` means exit status 0, and is what it wrote to standard output.
    pub async fn run<S: AsRef<str>>(&self, arguments: &[S]) -> Result<String, Error> {
        let arguments: Vec<String> = arguments.iter().map(|word| word.as_ref().to_owned()).collect();
        let output = command::run(&self.argv, &arguments, self.deadline, self.output_max).await?;
        // A text that is not UTF-8 is nobody's mark, and may be looked at all the same.
        Ok(String::from_utf8(output)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
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
            ("slurm_load_jobs error: Invalid job id specified", Failure::NoJob),
            ("", Failure::Other),
        ] {
            assert_eq!(classify(said), kind, "{said:?}");
        }
    }

    fn sh(script: &str, deadline_ms: u64) -> Command {
        Command::new(
            vec!["sh".into(), "-c".into(), script.into(), "scontrol".into()],
            Duration::from_millis(deadline_ms),
            1000,
        )
    }

    #[tokio::test]
    async fn arguments_stay_whole_and_errors_are_typed() {
        let ok = sh(r#"test "$1" = "a b;\$(c)" && test "$TZ" = UTC"#, 5000);
        assert!(ok.run(&["a b;$(c)"]).await.is_ok());

        let failed = sh("echo 'slurm_update error: Requested nodes are busy' >&2; exit 1", 5000);
        let error = failed.run::<&str>(&[]).await.unwrap_err();
        assert_eq!(error.failure(), Some(Failure::Busy));
        assert_eq!(error.certainty(), Certainty::NotDone);

        let nowhere = Command::new(vec!["/nowhere/scontrol".into()], Duration::from_secs(5), 1000);
        let error = nowhere.run::<&str>(&[]).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone);
    }
}
