//! What can go wrong with a policy, as classes that are the same in messages, metrics and bundles. What to do about it
//! (no proposals, quarantine) is not decided here.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::abi::SettingsError;
use super::check::Refusal;
use super::digest::Digest;
use super::sandbox::Usage;

/// The classes, for metrics and bundles. The first nine can happen in any decision, the others only at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The policy itself answered with an error.
    GuestError,
    /// The policy panicked or trapped.
    Panic,
    /// It used up its fuel: the deterministic verdict on a loop.
    OutOfFuel,
    /// It ran past the wall-clock deadline: the backstop.
    Deadline,
    /// It wanted more memory than its limit.
    MemoryDenied,
    /// It answered more than its limit.
    OutputTooBig,
    /// A proposal makes no sense, or is not granted.
    InvalidProposal,
    /// Its types or its version are not those of this daemon.
    AbiMismatch,
    /// It does not accept the settings of the configuration.
    BadSettings,
    /// The file is not a WebAssembly module or component.
    NotWasm,
    /// It wants something from the host that no policy gets.
    RefusedImport,
    /// The file is not the one that the configuration pins.
    DigestMismatch,
    /// The file is larger than allowed.
    TooBig,
    /// The sandbox itself could not be set up. Not the policy's fault.
    Host,
}

impl Class {
    /// The class as in metrics and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GuestError => "guest-error",
            Self::Panic => "panic",
            Self::OutOfFuel => "out-of-fuel",
            Self::Deadline => "deadline",
            Self::MemoryDenied => "memory-denied",
            Self::OutputTooBig => "output-too-big",
            Self::InvalidProposal => "invalid-proposal",
            Self::AbiMismatch => "abi-mismatch",
            Self::BadSettings => "bad-settings",
            Self::NotWasm => "not-wasm",
            Self::RefusedImport => "refused-import",
            Self::DigestMismatch => "digest-mismatch",
            Self::TooBig => "too-big",
            Self::Host => "host",
        }
    }

    /// Its code; `docs/errors.md` says what to do about it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::GuestError => "GB0501",
            Self::Panic => "GB0502",
            Self::OutOfFuel => "GB0503",
            Self::Deadline => "GB0504",
            Self::MemoryDenied => "GB0505",
            Self::OutputTooBig => "GB0506",
            Self::InvalidProposal => "GB0507",
            Self::AbiMismatch => "GB0508",
            Self::BadSettings => "GB0509",
            Self::NotWasm => "GB0510",
            Self::RefusedImport => "GB0511",
            Self::DigestMismatch => "GB0512",
            Self::TooBig => "GB0513",
            Self::Host => "GB0514",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a policy could not be loaded or made no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// See [`Class::GuestError`].
    #[error("the policy answered: {message}")]
    GuestError {
        /// Its words, cut to the length of a log line.
        message: String,
    },
    /// See [`Class::Panic`].
    #[error("the policy panicked: {message}{}", listed(frames))]
    Panic {
        /// The policy's last words with file and line, or the trap when it had none.
        message: String,
        /// The policy's own stack frames, innermost first.
        frames: Vec<String>,
    },
    /// See [`Class::OutOfFuel`].
    #[error(
        "the policy used up its fuel of {fuel} instructions; does it loop, or compare every node with every other?"
    )]
    OutOfFuel {
        /// The limit, about one per WebAssembly instruction.
        fuel: u64,
    },
    /// See [`Class::Deadline`].
    #[error(
        "the policy was stopped after {milliseconds} ms; either it is slow, or this machine is overloaded"
    )]
    Deadline {
        /// The limit.
        milliseconds: u128,
    },
    /// See [`Class::MemoryDenied`].
    #[error("the policy wanted {wanted} bytes of memory, more than the {limit} it may have")]
    MemoryDenied {
        /// What it asked for, in all.
        wanted: usize,
        /// What it may have.
        limit: usize,
    },
    /// See [`Class::OutputTooBig`].
    #[error("the policy answered too much: {what}")]
    OutputTooBig {
        /// What there was too much of, and how much is allowed.
        what: String,
    },
    /// See [`Class::InvalidProposal`].
    #[error("proposal {position} makes no sense: {refusal}")]
    InvalidProposal {
        /// Its position in the decision.
        position: usize,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// See [`Class::AbiMismatch`].
    #[error("{reason}")]
    AbiMismatch {
        /// What does not fit.
        reason: String,
    },
    /// See [`Class::BadSettings`].
    #[error("the policy does not accept its settings:{}", settings_lines(errors))]
    BadSettings {
        /// Everything that is wrong.
        errors: Vec<SettingsError>,
    },
    /// See [`Class::NotWasm`].
    #[error(
        "found {found}, expected a WebAssembly module or component; build it with \
         `cargo build --release --target wasm32-unknown-unknown`"
    )]
    NotWasm {
        /// What the file is instead.
        found: String,
    },
    /// See [`Class::RefusedImport`].
    #[error(
        "the policy imports {name}; a policy may import nothing but `log` of gpu-bridge:policy (no WASI: build it for \
         wasm32-unknown-unknown)"
    )]
    RefusedImport {
        /// What it wants.
        name: String,
    },
    /// See [`Class::DigestMismatch`].
    #[error("the file's sha256 is {found}, but the configuration pins {pinned}")]
    DigestMismatch {
        /// Of the configuration.
        pinned: Digest,
        /// Of the file.
        found: Digest,
    },
    /// See [`Class::TooBig`].
    #[error("the file has {bytes} bytes, more than the {limit} allowed")]
    TooBig {
        /// Size of the file.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// See [`Class::Host`].
    #[error("the policy sandbox failed: {reason}")]
    Host {
        /// What failed.
        reason: String,
    },
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        self.class().code()
    }

    /// The class of this error.
    pub const fn class(&self) -> Class {
        match self {
            Self::GuestError { .. } => Class::GuestError,
            Self::Panic { .. } => Class::Panic,
            Self::OutOfFuel { .. } => Class::OutOfFuel,
            Self::Deadline { .. } => Class::Deadline,
            Self::MemoryDenied { .. } => Class::MemoryDenied,
            Self::OutputTooBig { .. } => Class::OutputTooBig,
            Self::InvalidProposal { .. } => Class::InvalidProposal,
            Self::AbiMismatch { .. } => Class::AbiMismatch,
            Self::BadSettings { .. } => Class::BadSettings,
            Self::NotWasm { .. } => Class::NotWasm,
            Self::RefusedImport { .. } => Class::RefusedImport,
            Self::DigestMismatch { .. } => Class::DigestMismatch,
            Self::TooBig { .. } => Class::TooBig,
            Self::Host { .. } => Class::Host,
        }
    }
}

/// One line each, below the message.
fn listed(frames: &[String]) -> String {
    frames.iter().flat_map(|frame| ["\n  in ", frame]).collect()
}

fn settings_lines(errors: &[SettingsError]) -> String {
    let line = |error: &SettingsError| match error.field.as_str() {
        "" => format!("\n  {}", error.message),
        field => format!("\n  {field}: {}", error.message),
    };
    errors.iter().map(line).collect::<Vec<_>>().concat()
}

/// A decision that failed, with all that an operator or the policy's author needs. There are no proposals.
#[derive(Debug, Clone, thiserror::Error)]
#[error("policy {policy}: {} [{}]: {error}{}", .error.class(), .error.code(), after(usage, bundle.as_ref()))]
pub struct Failure {
    /// The policy's name in the configuration.
    pub policy: String,
    /// What went wrong.
    #[source]
    pub error: Error,
    /// What the call used, and the lines that the policy logged before.
    pub usage: Usage,
    /// Where snapshot and settings were saved, for [`Bundle::read`](super::Bundle::read); `None` when no folder is
    /// configured or saving failed (which is logged).
    pub bundle: Option<PathBuf>,
}

impl Failure {
    /// The class of the error.
    pub const fn class(&self) -> Class {
        self.error.class()
    }
}

fn after(usage: &Usage, bundle: Option<&PathBuf>) -> String {
    let Usage { fuel_used, fuel_limit, memory_bytes, memory_limit, log, log_dropped: _ } = usage;
    let used = format!(
        "\n  used {fuel_used} of {fuel_limit} fuel, {memory_bytes} of {memory_limit} bytes of memory"
    );
    let last = log.len().saturating_sub(5);
    let lines = log.iter().skip(last).map(|line| format!("\n  log: {}", line.message));
    let saved = bundle.map(|bundle| format!("\n  saved as {}", bundle.display()));
    std::iter::once(used).chain(lines).chain(saved).collect::<Vec<_>>().concat()
}
