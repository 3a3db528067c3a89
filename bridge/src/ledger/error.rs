//! What can go wrong with the ledger, in words an operator can act on.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::line::Seq;

/// Errors of the ledger. Each says what failed; those that a person must mend also say how.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The chain does not hold: an altered, missing or foreign line.
    #[error("{0}")]
    Broken(Broken),
    /// Another live process holds the ledger.
    #[error("{} is in use by {}; only one gpu-bridge may run on a state folder", path.display(), Holder(*pid))]
    Locked {
        /// The ledger file.
        path: PathBuf,
        /// The other process, where it could be read.
        pid: Option<u32>,
    },
    /// No space, quota or file size left. Nothing was acknowledged, what was half written was or will be taken back.
    #[error("no space left for the ledger ({doing}); free some space, the daemon goes on by itself")]
    Full {
        /// The operation that failed.
        doing: &'static str,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// The file system or the file is read-only for us.
    #[error("the ledger cannot be written ({doing}): read-only file system or missing permission")]
    ReadOnly {
        /// The operation that failed.
        doing: &'static str,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// Any other I/O error.
    #[error("ledger: {doing} failed")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// The file can't be read, by whoever only wants to look at it.
    #[error("the ledger {} cannot be read", path.display())]
    Unreadable {
        /// The ledger file.
        path: PathBuf,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// A sync failed earlier, so what is on the disk is not known. Nothing is written until [`recover`] succeeds.
    ///
    /// [`recover`]: super::Ledger::recover
    #[error(
        "the ledger is closed to writing: an earlier sync to disk failed, and its tail was not verified again since"
    )]
    Poisoned,
    /// The event makes a line longer than the limit.
    #[error("event of {bytes} bytes does not fit into a ledger line (at most {limit})")]
    TooLong {
        /// Length that the line would have, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Too many closing actions wait for the disk. The event was not recorded.
    #[error("{limit} ledger lines already wait for the disk; this one is not recorded")]
    Backlog {
        /// The bound that was reached, in lines.
        limit: usize,
    },
    /// The event could not be turned into JSON.
    #[error("event cannot be written as JSON")]
    Serialize(#[source] serde_json::Error),
    /// The line is whole and its place in the chain is right, but this program does not know its event.
    #[error(
        "ledger line {seq} (byte {offset}) holds an event that this version cannot read; \
         was the state folder written by a newer gpu-bridge?"
    )]
    Event {
        /// The line.
        seq: Seq,
        /// Where the line begins, in bytes.
        offset: u64,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// The file was written in another format.
    #[error(
        "ledger format {found} is not known here (this version writes {known}); use the gpu-bridge that wrote it"
    )]
    Format {
        /// Version found in the first line.
        found: u32,
        /// Version this program writes.
        known: u32,
    },
    /// `cut` was asked for a line that is not there.
    #[error("cannot cut at line {at}: the ledger has {lines} whole lines, and nothing else at that place")]
    NoSuchLine {
        /// The line asked for.
        at: u64,
        /// Whole lines in the file.
        lines: u64,
    },
}

struct Holder(Option<u32>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Where and how the chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Broken {
    /// Line in the file, from 1.
    pub line: u64,
    /// Where that line begins, in bytes.
    pub offset: u64,
    /// What was found there.
    pub found: String,
    /// What should have been there.
    pub expected: String,
}

impl Broken {
    /// The code of a broken chain, whether it is an error or a finding.
    pub const CODE: &'static str = "GB0201";
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { line, offset, found, expected } = self;
        write!(
            f,
            "ledger is broken at line {line} (byte {offset}): found {found}, expected {expected}. Stop the \
             daemon, keep a copy of the file, and read `gpu-bridge explain error {}` before you cut: what happened \
             after line {line} would be forgotten",
            Self::CODE
        )
    }
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Broken(_) => Broken::CODE,
            Self::Locked { .. } => "GB0202",
            Self::Full { .. } => "GB0203",
            Self::ReadOnly { .. } => "GB0204",
            Self::Io { .. } => "GB0205",
            Self::Poisoned => "GB0206",
            Self::TooLong { .. } => "GB0207",
            Self::Backlog { .. } => "GB0208",
            Self::Serialize(_) => "GB0209",
            Self::Event { .. } => "GB0210",
            Self::Format { .. } => "GB0211",
            Self::NoSuchLine { .. } => "GB0212",
            Self::Unreadable { .. } => "GB0213",
        }
    }

    /// Sorts an I/O error into full, read-only and other.
    pub(crate) fn io(doing: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::Full { doing, source }
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Error::ReadOnly { doing, source }
            }
            _ => Error::Io { doing, source },
        }
    }
}
