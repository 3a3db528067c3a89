//! Moving a store that cannot be used out of the way.
//!
//! Decides its new name and how many of them are kept. Knows nothing of why.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{Error, FOLDER_NAME};
use crate::ledger::{at_path, sync_dir};

/// Old stores that are kept; the oldest go first.
pub const KEPT_ASIDE: usize = 3;

/// Renames `folder` to `store.old-<now>` next to it, and removes the oldest such where there are too many.
pub(super) fn move_aside(dir: &Path, folder: &Path, now: Timestamp) -> Result<PathBuf, Error> {
    let moving = |error| Error::Folder { doing: "moving the old one aside", source: at_path(folder, &error) };
    let stem = format!("{FOLDER_NAME}.old-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let mut to = dir.join(&stem);
    let mut again = 2;
    while to.symlink_metadata().is_ok() {
        to = dir.join(format!("{stem}-{again}"));
        again += 1;
    }
    std::fs::rename(folder, &to).map_err(moving)?;
    if let Err(error) = sync_dir(dir) {
        tracing::warn!(%error, "moving the old store aside may be undone by a power cut");
    }
    // The old ones only cost space; failing to remove them stops nothing.
    if let Err(error) = remove_oldest(dir) {
        tracing::warn!(%error, "old stores could not be removed");
    }
    Ok(to)
}

fn remove_oldest(dir: &Path) -> io::Result<()> {
    let prefix = format!("{FOLDER_NAME}.old-");
    let mut old: Vec<PathBuf> = dir
        .read_dir()?
        .filter_map(Result::ok)
        .filter(|file| file.file_name().to_string_lossy().starts_with(&prefix))
        .map(|file| file.path())
        .collect();
    // The names sort by time.
    old.sort();
    let surplus = old.len().saturating_sub(KEPT_ASIDE);
    for path in &old[..surplus] {
        if path.symlink_metadata()?.is_dir() {
            std::fs::remove_dir_all(path)?;
        } else {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}
