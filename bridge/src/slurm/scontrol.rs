//! Runs scontrol, for what no REST version writes or shows. Decides nothing; arguments are a list and never pass a shell.
//! What it did is never read from its output: that is read back over REST.

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
        let output = command::run(&self.argv, arguments, self.deadline).await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
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

        let nowhere = Scontrol::new(vec!["/nowhere/scontrol".into()], Duration::from_secs(5));
        let error = nowhere.run(&[]).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone);
    }
}
