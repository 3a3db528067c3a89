//! The bytes under the ledger: a small trait, and the file behind it.
//!
//! Decides how bytes reach a disk and who may write there. Knows nothing of lines. [`super::sim::SimDisk`] is the
//! other implementation, whose every failure is chosen by a test.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::Error;

/// File name of the ledger in the state folder.
pub const FILE_NAME: &str = "ledger.jsonl";
const LOCK_NAME: &str = "ledger.lock";

/// An append-only run of bytes that can be shortened. Positions are in bytes from the beginning.
pub trait Disk {
    /// Writes after the last byte. After an error any first part of `bytes` may stand there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything appended or truncated so far would survive a power cut.
    fn sync(&mut self) -> io::Result<()>;
    /// Drops everything from byte `len` on.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Bytes that stand there now.
    fn len(&self) -> io::Result<u64>;
    /// Fills the front of `buf` from byte `offset` on; 0 means the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Whether no byte stands there.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The ledger's file, held exclusively.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    path: PathBuf,
    len: u64,
    /// Held for as long as the file is; the kernel lets go of it when the process dies, however it dies.
    _lock: Lock,
}

impl FileDisk {
    /// Opens or creates the ledger file in `dir`, which must exist, and locks it against other processes.
    ///
    /// Fails with [`Error::Locked`] if another live process (or another `FileDisk` of this one) has it.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let lock = Lock::take(dir)?;
        let path = dir.join(FILE_NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&path)
            .map_err(|e| Error::io("opening the file", at(&path, &e)))?;
        // The name must be as durable as what is written under it.
        sync_dir(dir)?;
        let len = file.metadata().map_err(|e| Error::io("reading its length", at(&path, &e)))?.len();
        Ok(FileDisk { file, path, len, _lock: lock })
    }
}

impl Disk for FileDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // After an error `len` stays: what was half written is behind the end until someone truncates.
        self.file.write_all_at(bytes, self.len).map_err(|error| at(&self.path, &error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data().map_err(|error| at(&self.path, &error))
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(|error| at(&self.path, &error))?;
        self.len = len;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(buf, offset).map_err(|error| at(&self.path, &error))
    }
}

/// The right to write in a state folder. A file of its own, so that it stays the same file whatever happens to the
/// ledger's; what counts is the kernel's lock on it, the pid inside is only for the message.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// The right to write the ledger in `dir`.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        Self::take_named(dir, LOCK_NAME, FILE_NAME)
    }

    /// The right to write `guarded` in `dir`, by the lock file `name`.
    pub(crate) fn take_named(dir: &Path, name: &str, guarded: &str) -> Result<Self, Error> {
        let path = dir.join(name);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&path)
            .map_err(|e| Error::io("opening the lock file", at(&path, &e)))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(file, dir.join(guarded))),
            Err(TryLockError::Error(e)) => return Err(Error::io("locking", at(&path, &e))),
        }
        // A pid that cannot be written (full disk) only makes another process's message vaguer.
        if let Err(error) = write_pid(&mut file) {
            tracing::warn!(path = %path.display(), %error, "pid not written to the lock file");
        }
        Ok(Lock { _file: file })
    }
}

/// Fails with [`Error::Locked`] where another process has the ledger in `dir`. Takes no right and writes nothing: it may be
/// taken the moment after.
pub(crate) fn must_be_free(dir: &Path) -> Result<(), Error> {
    let path = dir.join(LOCK_NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        // Nobody ever took it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("opening the lock file", at(&path, &error))),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(held(file, path_in(dir))),
        Err(TryLockError::Error(e)) => Err(Error::io("locking", at(&path, &e))),
    }
}

fn held(lock: File, guarded: PathBuf) -> Error {
    let mut text = String::new();
    // The holder may be about to write its pid; then the message goes without.
    let pid = lock.take(32).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
    Error::Locked { path: guarded, pid }
}

/// The same error with the file that it is about: the operating system does not name it.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("syncing the folder", at(dir, &e)))
}

/// A file opened for reading only, without a lock: for looking at a ledger that a daemon may be writing.
#[derive(Debug)]
pub(crate) struct ReadOnly {
    file: File,
    path: PathBuf,
}

impl ReadOnly {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(unreadable(io::ErrorKind::IsADirectory.into()));
        }
        Ok(ReadOnly { file, path: path.to_owned() })
    }
}

/// Where bytes can be read at a position: all that reading a ledger needs.
pub(crate) trait ReadAt {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for ReadOnly {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        // An interrupted read is told as it is: readers try it again.
        self.file.read_at(buf, offset).map_err(|error| at(&self.path, &error))
    }
}

impl<D: Disk> ReadAt for &D {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Disk::read_at(*self, offset, buf)
    }
}

/// The ledger file of a state folder.
pub fn path_in(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = FileDisk::open(dir.path()).unwrap();
        // As a file that can only be read refuses.
        disk.file = File::open(path_in(dir.path())).unwrap();
        let name = path_in(dir.path()).display().to_string();
        for error in [disk.append(b"x").unwrap_err(), disk.truncate(0).unwrap_err()] {
            assert!(error.to_string().starts_with(&name), "{error}");
        }
        assert!(disk.is_empty().unwrap(), "what was not written does not count");
    }
}
