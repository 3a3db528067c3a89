//! The user's cache folder, where what is slow to make is kept, and the file locks under which it is made. Nothing here is
//! ever the only copy of something: the whole folder may be deleted while no lab runs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::error::{Error, Result, at};
use crate::wait_until;

/// How long somebody else may build what we need.
const LOCK_LIMIT: Duration = Duration::from_mins(30);

/// `$XDG_CACHE_HOME/gpu-bridge`, or `~/.cache/gpu-bridge`; made if missing.
pub fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .ok_or_else(|| Error::Unsupported("neither XDG_CACHE_HOME nor HOME is set".to_owned()))?;
    make(&base.join("gpu-bridge"))
}

/// A folder that exists after this.
pub(crate) fn make(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).map_err(at(path))?;
    Ok(path.to_owned())
}

/// Says on stderr what takes long.
pub fn say(line: &str) {
    eprintln!("labs: {line}");
}

/// An exclusive lock on a file, given back when dropped or when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock if nobody has it.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = File::options().create(true).append(true).open(path).map_err(at(path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(at(path)(errno.into())),
        }
    }

    /// Takes the lock, waiting for its holder (half an hour at most) and saying so.
    pub async fn take(path: &Path, why: &str) -> Result<Self> {
        let mut said = false;
        let taken = wait_until(why, LOCK_LIMIT, async || match Self::try_take(path) {
            Ok(Some(lock)) => Ok(Ok(lock)),
            Ok(None) => {
                if !said {
                    said = true;
                    say(&format!("waiting for another process: {why}"));
                }
                Err("another process has the lock".to_owned())
            }
            Err(error) => Ok(Err(error)),
        });
        taken.await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_is_exclusive_until_dropped() {
        let path = std::env::temp_dir().join(format!("gpu-bridge-lock-test-{}", std::process::id()));
        let first = Lock::try_take(&path).unwrap();
        assert!(first.is_some());
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(first);
        // A process that another test begins just now may still hold a copy of the file, between its fork and its exec.
        let free = wait_until("the lock", Duration::from_secs(10), async || {
            Lock::try_take(&path).unwrap().map(drop).ok_or_else(|| "held".to_owned())
        });
        free.await.unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
