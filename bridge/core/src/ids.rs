//! Names and numbers that identify things, each a type of its own so that a Slurm node name cannot be passed where a
//! Kubernetes one is meant. Decides only how they are written and read; knows nothing of what they stand for.

use std::fmt;
use std::str::FromStr;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        /// Held in place where it is short: a tick compares names by the hundred thousand.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(CompactString);

        impl $type {
            /// Takes the name as it is written by its owner.
            pub fn new(name: impl Into<CompactString>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $type {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }
    };
}

name! {
    /// A GPU host as the site's inventory names it.
    NodeName
}
name! {
    /// A node as Slurm names it (`NodeName=` in slurm.conf).
    SlurmNodeName
}
name! {
    /// A node as Kubernetes names it (`metadata.name` of the Node).
    KubeNodeName
}
name! {
    /// A named capacity inside one domain: a Slurm partition or a Kubernetes node pool.
    PoolName
}
name! {
    /// A calendar window's name.
    WindowName
}
name! {
    /// A policy's name in the configuration.
    PolicyName
}
name! {
    /// A change ticket at the site, such as `CHG-1187`.
    Ticket
}

/// A Slurm job's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl<'de> Deserialize<'de> for JobId {
    /// Reads a number, and a number as text: the key of a JSON object is text, and stays it inside a tagged enum.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl serde::de::Visitor<'_> for Number {
            type Value = JobId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job id")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<JobId, E> {
                u32::try_from(number).map(JobId).map_err(E::custom)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<JobId, E> {
                text.parse().map(JobId).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// A handover's number, written `h0042`. Never reused, also not after a lost ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandoverId(pub u64);

impl HandoverId {
    /// The one after this. The last one has none: it stays, and is refused as used.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for HandoverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("h{:04}", self.0))
    }
}

/// A text that should have been an id, but is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {found:?}, expected {expected}")]
pub struct BadId {
    /// What was read.
    pub found: String,
    /// The form it should have had.
    pub expected: &'static str,
}

impl FromStr for HandoverId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { found: text.to_owned(), expected: "a handover id such as h0042" };
        let digits = text.strip_prefix('h').ok_or_else(bad)?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        digits.parse().map(Self).map_err(|_| bad())
    }
}

/// Counts leaderships: every mark carries the epoch in which it was written, so that a stale leader's write is
/// recognised. Written `e7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("e{}", self.0))
    }
}

impl FromStr for Epoch {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { found: text.to_owned(), expected: "an epoch such as e7" };
        let digits = text.strip_prefix('e').ok_or_else(bad)?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        digits.parse().map(Self).map_err(|_| bad())
    }
}

macro_rules! serde_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
serde_as_text!(HandoverId);
serde_as_text!(Epoch);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_what_they_write() {
        for n in [0, 42, 9999, 10_000, u64::MAX] {
            assert_eq!(HandoverId(n).to_string().parse(), Ok(HandoverId(n)));
            assert_eq!(Epoch(n).to_string().parse(), Ok(Epoch(n)));
        }
        for bad in ["", "h", "42", "h-1", "h+1", "hx", "h99999999999999999999", "e"] {
            assert!(bad.parse::<HandoverId>().is_err(), "{bad:?}");
            assert!(bad.parse::<Epoch>().is_err(), "{bad:?}");
        }
    }
}
