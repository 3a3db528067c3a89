//! Why a look or a write did not come off, and whether a write can have taken effect all the same.

use std::time::Duration;

use super::scontrol;
use crate::certainty::Certainty;

/// Why a look or a write did not come off. `asked` is the request, such as `GET /slurm/v0.0.42/nodes/`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time, or none that can be believed: a write may or may not have taken effect.
    #[error("slurm did not answer: {why}")]
    Unanswered {
        /// What happened.
        why: String,
    },
    /// The options make no sense.
    #[error("the slurm options cannot be used: {0}")]
    Options(String),
    /// File, command or key gives no token.
    #[error("{from}: {why}; `scontrol token username=USER lifespan=SECONDS` makes a token")]
    Token {
        /// Which file or command.
        from: String,
        /// What is wrong with it.
        why: String,
    },
    /// slurmrestd could not be connected to.
    #[error("{asked}: cannot connect to slurmrestd at {at} ({why}); is it running, and is this its address?")]
    Unreachable {
        /// The request.
        asked: String,
        /// Address or socket.
        at: String,
        /// What the system said.
        why: String,
    },
    /// The answer is larger than the configured limit.
    #[error(
        "{asked}: the answer is larger than {limit} bytes; raise max_response_bytes if the cluster is that large"
    )]
    TooLarge {
        /// The request.
        asked: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The answer is not what slurmrestd writes: HTML of a proxy, JSON cut off.
    #[error("{asked}: HTTP {status}, expected JSON of slurmrestd, found {found}; is a proxy in between?")]
    NotJson {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// The start of the body, and the parser's word on it.
        found: String,
    },
    /// A part of the answer is missing or has an unknown form.
    #[error("{asked}: found {found}, expected {expected}")]
    Unreadable {
        /// The request.
        asked: String,
        /// What was found.
        found: String,
        /// What should have been there.
        expected: String,
    },
    /// The token was not accepted: expired, of another cluster, or for another user.
    #[error(
        "{asked}: HTTP {status}, slurm does not accept the token ({said}); it may have expired: renew it"
    )]
    Credentials {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's words.
        said: String,
    },
    /// The user may not do this.
    #[error(
        "{asked}: slurm refuses this to user {user} ({said}); it needs SlurmUser, root or AdminLevel=Administrator"
    )]
    Forbidden {
        /// The request.
        asked: String,
        /// The user whose token it is.
        user: String,
        /// Slurm's words.
        said: String,
    },
    /// slurmrestd runs, but cannot reach slurmctld.
    #[error("{asked}: HTTP {status}, slurmrestd cannot reach slurmctld ({said}); see `scontrol ping`")]
    ControllerAway {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's words.
        said: String,
    },
    /// The token was not accepted, or slurmctld cannot be reached: 22.05 answers both with the same words.
    #[error(
        "{asked}: HTTP {status}, slurm does not accept the token or slurmrestd cannot reach slurmctld, which this \
         release does not tell apart ({said}); see `scontrol ping`, then renew the token"
    )]
    TokenOrController {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's words.
        said: String,
    },
    /// slurmrestd runs, but cannot reach slurmdbd.
    #[error("{asked}: HTTP {status}, slurmrestd cannot reach slurmdbd ({said}); see `sacctmgr ping`")]
    DatabaseAway {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's words.
        said: String,
    },
    /// The token was not accepted, or slurmdbd cannot be reached: 23.02 and 23.11 answer both with the same words.
    #[error(
        "{asked}: HTTP {status}, slurm does not accept the token or slurmrestd cannot reach slurmdbd, which this \
         release does not tell apart ({said}); renew the token, then see `sacctmgr ping`"
    )]
    TokenOrDatabase {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's words.
        said: String,
    },
    /// Slurm knows no such job, node or reservation.
    #[error("{asked}: HTTP {status}, slurm does not know it ({said})")]
    NotFound {
        /// The request.
        asked: String,
        /// HTTP status; 200 too can mean this.
        status: u16,
        /// Slurm's error number; 0 where it gave none.
        number: i64,
        /// Slurm's words.
        said: String,
    },
    /// Jobs or other reservations are in the way.
    #[error("{asked}: HTTP {status}, slurm error {number}, something is in the way: {said}")]
    Busy {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's error number.
        number: i64,
        /// Slurm's words.
        said: String,
    },
    /// Slurm does not accept the request as it is; a part of it may have been carried out.
    #[error("{asked}: HTTP {status}, slurm error {number}, it does not accept the request: {said}")]
    Invalid {
        /// The request.
        asked: String,
        /// HTTP status.
        status: u16,
        /// Slurm's error number; 0 where it gave none.
        number: i64,
        /// Slurm's words.
        said: String,
    },
    /// slurmrestd does not know the URL, or the method at it.
    #[error("{asked}: slurmrestd does not serve this URL; was it upgraded, or started with other plugins?")]
    NoSuchUrl {
        /// The request.
        asked: String,
    },
    /// slurmrestd serves no API version that we know.
    #[error("slurmrestd at {at} serves none of {known}; `slurmrestd -d list` tells what it serves")]
    NoVersion {
        /// Address or socket.
        at: String,
        /// The versions that were asked for.
        known: String,
    },
    /// Any other error that Slurm answered with.
    #[error("{asked}: HTTP {status}, slurm error {number}: {said}")]
    Refused {
        /// The request.
        asked: String,
        /// HTTP status; 200 too can carry an error.
        status: u16,
        /// Slurm's error number; 0 where it gave none.
        number: i64,
        /// Slurm's words.
        said: String,
    },
    /// A command did not do what was asked.
    #[error(transparent)]
    Scontrol(#[from] scontrol::Error),
    /// Slurm hides from our user what has to be seen, or nobody can tell that it does not: a node would look emptier than it is.
    #[error("{what}, so that no node can be seen to be empty: {why}")]
    Hidden {
        /// What is hidden, or may be.
        what: String,
        /// What helps, or why nobody can tell.
        why: String,
    },
    /// Our user lacks the level that its writes need.
    #[error("user {user} has AdminLevel={level} in slurm, and what it writes needs {needed}: {fix}")]
    Rights {
        /// Whom we ask as.
        user: String,
        /// What it has.
        level: &'static str,
        /// What it needs.
        needed: &'static str,
        /// What helps.
        fix: String,
    },
    /// Slurm does not list the node.
    #[error("slurm does not list node {node}; was it removed from slurm.conf?")]
    UnknownNode {
        /// Its name.
        node: String,
    },
    /// A name that would mean something else in a request.
    #[error("{name:?} cannot be used as {what}")]
    BadName {
        /// The name.
        name: String,
        /// What it was to be.
        what: &'static str,
    },
    /// The node is drained by someone else, or for another reason: not ours to touch.
    #[error("node {node} is drained by {user} with reason {reason:?}, which is not ours to change")]
    ForeignDrain {
        /// The node.
        node: String,
        /// The reason that stands there.
        reason: String,
        /// Who set it.
        user: String,
    },
    /// Only reservations of ours are ever written.
    #[error("reservation {name:?} is not one of gpu-bridge: it is left alone")]
    ForeignReservation {
        /// Its name.
        name: String,
    },
    /// The write was answered, but the next look does not show it.
    #[error("{action}: slurm took it, but shows {found} instead of {expected}")]
    NotSeen {
        /// The write.
        action: String,
        /// What the look shows.
        found: String,
        /// What it should show.
        expected: String,
    },
    /// The write could not begin.
    #[error("nothing was written: {0}")]
    NothingWritten(Box<Error>),
    /// The write was sent, and could not be read back.
    #[error("written, but not read back: {0}")]
    NotReadBack(Box<Error>),
    /// It did not come to an end in time.
    #[error("{what}: not done within {} s", after.as_secs())]
    Deadline {
        /// What.
        what: String,
        /// The deadline.
        after: Duration,
    },
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unanswered { .. } => "GB0301",
            Self::Options(_) => "GB0302",
            Self::Token { .. } => "GB0303",
            Self::Unreachable { .. } => "GB0304",
            Self::TooLarge { .. } => "GB0305",
            Self::NotJson { .. } => "GB0306",
            Self::Unreadable { .. } => "GB0307",
            Self::Credentials { .. } => "GB0308",
            Self::Forbidden { .. } => "GB0309",
            Self::ControllerAway { .. } => "GB0310",
            Self::NoSuchUrl { .. } => "GB0311",
            Self::NoVersion { .. } => "GB0312",
            Self::Refused { .. } => "GB0313",
            Self::Scontrol(error) => error.code(),
            Self::UnknownNode { .. } => "GB0317",
            Self::BadName { .. } => "GB0318",
            Self::ForeignDrain { .. } => "GB0319",
            Self::ForeignReservation { .. } => "GB0320",
            Self::NotSeen { .. } => "GB0321",
            Self::Deadline { .. } => "GB0322",
            Self::TokenOrController { .. } => "GB0323",
            Self::DatabaseAway { .. } => "GB0324",
            Self::TokenOrDatabase { .. } => "GB0325",
            Self::NotFound { .. } => "GB0326",
            Self::Busy { .. } => "GB0327",
            Self::Invalid { .. } => "GB0328",
            Self::Hidden { .. } => "GB0329",
            Self::Rights { .. } => "GB0330",
            Self::NothingWritten(error) | Self::NotReadBack(error) => error.code(),
        }
    }

    /// What is known about a write that ended in this error.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Options(_)
            | Self::Token { .. }
            | Self::Unreachable { .. }
            | Self::Credentials { .. }
            | Self::Forbidden { .. }
            | Self::NoSuchUrl { .. }
            | Self::NoVersion { .. }
            // slurmdbd is asked before the request is looked at.
            | Self::TokenOrDatabase { .. }
            | Self::NotFound { .. }
            | Self::Busy { .. }
            | Self::Hidden { .. }
            | Self::Rights { .. }
            | Self::UnknownNode { .. }
            | Self::BadName { .. }
            | Self::ForeignDrain { .. }
            | Self::ForeignReservation { .. }
            | Self::NothingWritten(_) => Certainty::NotDone,
            Self::Scontrol(error) => error.certainty(),
            // HTTP 500 does not mean "not applied", and slurmctld may go away after it took the write.
            Self::Unanswered { .. }
            | Self::TooLarge { .. }
            | Self::NotJson { .. }
            | Self::Unreadable { .. }
            | Self::ControllerAway { .. }
            | Self::TokenOrController { .. }
            | Self::DatabaseAway { .. }
            | Self::Invalid { .. }
            | Self::Refused { .. }
            | Self::NotSeen { .. }
            | Self::NotReadBack(_)
            | Self::Deadline { .. } => Certainty::MayBeDone,
        }
    }
}
