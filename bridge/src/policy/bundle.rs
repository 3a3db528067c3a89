//! A failed decision as a file: everything needed to make it fail again in the same way, on any machine. Does not know
//! why it failed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::abi::Snapshot;
use super::digest::Digest;
use super::error::Class;
use super::sandbox::Usage;

/// Bundles kept in a folder; the oldest go first.
pub const KEPT: usize = 32;

const PREFIX: &str = "policy-failure-";

/// A failed decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// Version of this format.
    pub format: u32,
    /// The policy's name in the configuration.
    pub policy: String,
    /// The file that ran.
    pub sha256: Digest,
    /// How it failed.
    pub class: Class,
    /// The error in words.
    pub error: String,
    /// The settings, as the policy got them.
    pub settings: String,
    /// What it used and said.
    pub usage: Usage,
    /// What it read.
    pub snapshot: Snapshot,
}

/// The present format.
pub const FORMAT: u32 = 1;

impl Bundle {
    /// Writes it into `folder` (made when missing) and deletes the oldest beyond [`KEPT`].
    pub fn save(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let json = serde_json::to_vec(self)?;
        let digest = Digest::of(&json).to_string();
        // Names sort by time, and the same failure at the same instant is the same file.
        let policy: String =
            self.policy.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(64).collect();
        let now = self.snapshot.now.max(0);
        let name =
            format!("{PREFIX}{now:012}-{policy}-{}-{}.json", self.class, digest.get(..8).unwrap_or(""));
        let path = folder.join(name);
        // Read only when whole: written beside and renamed.
        let partial = path.with_extension("partial");
        fs::write(&partial, json)?;
        fs::rename(&partial, &path)?;
        prune(folder)?;
        Ok(path)
    }

    /// Reads one.
    pub fn read(path: &Path) -> io::Result<Self> {
        let bundle: Self = serde_json::from_slice(&fs::read(path)?)?;
        if bundle.format == FORMAT {
            return Ok(bundle);
        }
        let message = format!("bundle format {}, this version reads {FORMAT}", bundle.format);
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

fn prune(folder: &Path) -> io::Result<()> {
    let mut bundles = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX)) {
            bundles.push(path);
        }
    }
    bundles.sort_unstable();
    let surplus = bundles.len().saturating_sub(KEPT);
    bundles.into_iter().take(surplus).try_for_each(fs::remove_file)
}
