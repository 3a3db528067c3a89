//! Why a look or a write did not come off, with what an operator can do about it, and whether a write can have taken
//! effect. Knows HTTP codes only as far as they answer those two questions.

use crate::certainty::Certainty;

/// Why a look or a write did not come off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time, or none that can be believed: a write may or may not have taken effect.
    #[error("kubernetes did not answer: {why}")]
    Unanswered {
        /// What happened.
        why: String,
    },
    /// The server puts us off (429 without a budget behind it). Nothing was done.
    #[error(
        "{call}: the API server is overloaded ({why}); try again later, and see its priority levels if it stays so"
    )]
    Busy {
        /// Method and address.
        call: String,
        /// The server's words.
        why: String,
    },
    /// We may not do that. Nothing was done.
    #[error("{call}: not allowed to {verb} {resource}: {why}; {advice}")]
    Forbidden {
        /// Method and address.
        call: String,
        /// What we wanted to do (`list`).
        verb: &'static str,
        /// With what (`nodes`).
        resource: &'static str,
        /// The server's words.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// The server does not know who we are. Nothing was done.
    #[error(
        "{call}: the API server does not accept our credentials ({why}); renew the token or certificate in the kubeconfig"
    )]
    Unauthorized {
        /// Method and address.
        call: String,
        /// The server's words.
        why: String,
    },
    /// Others wrote the object each time we tried. Nothing was done.
    #[error("{call}: others changed the object meanwhile ({why}); look again and decide again")]
    Conflict {
        /// Method and address.
        call: String,
        /// The server's words.
        why: String,
    },
    /// It is not there. Nothing was done.
    #[error("{call}: there is no {what}; {advice}")]
    NotFound {
        /// Method and address.
        call: String,
        /// What is missing.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// An answer that we can't make sense of, or a request that the server finds wrong. No write took effect.
    #[error(
        "{call}: unexpected answer: {why}; compare the server's version with the supported ones, then report this"
    )]
    Odd {
        /// Method and address.
        call: String,
        /// What is odd.
        why: String,
    },
    /// Our configuration is wrong; nothing was sent.
    #[error("{what}: {why}; correct the configuration")]
    Config {
        /// Which part.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unanswered { .. } => "GB0401",
            Self::Busy { .. } => "GB0402",
            Self::Forbidden { .. } => "GB0403",
            Self::Unauthorized { .. } => "GB0404",
            Self::Conflict { .. } => "GB0405",
            Self::NotFound { .. } => "GB0406",
            Self::Odd { .. } => "GB0407",
            Self::Config { .. } => "GB0408",
        }
    }

    /// Whether the write that ended so can have taken effect.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Unanswered { .. } => Certainty::MayBeDone,
            Self::Busy { .. }
            | Self::Forbidden { .. }
            | Self::Unauthorized { .. }
            | Self::Conflict { .. }
            | Self::NotFound { .. }
            | Self::Odd { .. }
            | Self::Config { .. } => Certainty::NotDone,
        }
    }
}
