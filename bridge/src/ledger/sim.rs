//! A disk in memory whose every failure is chosen: for tests and for the simulator.
//!
//! Decides what of the bytes survives: what was synced does; of the rest as much as [`SimDisk::restart`] is told to
//! keep. After a failed sync the bytes that it should have written still read back but are not on the platter, and no
//! later sync brings them there, as on Linux. Knows nothing of lines.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::Disk;

/// How much of what was appended and not synced survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Synced,
    /// The first so many bytes behind what was synced.
    Bytes(usize),
    /// Everything.
    All,
}

/// A handle on the disk; clones are handles on the same one, so a test keeps one and the ledger has another.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    platter: Arc<Mutex<Platter>>,
}

#[derive(Debug, Default)]
struct Platter {
    /// What reads back now.
    bytes: Vec<u8>,
    /// How many of them survive.
    synced: usize,
    /// What survives behind `synced` because a truncation was not synced: it comes back.
    resurrected: Vec<u8>,
    /// Bytes that read back but that a failed sync lost.
    holes: Vec<Range<usize>>,
    capacity: Option<usize>,
    read_only: bool,
    /// The next so many syncs fail.
    failing_syncs: usize,
    /// Appends, truncations and syncs so far.
    operations: u64,
    /// The operation at which the machine dies, and how many bytes of it get through if it is an append.
    crash: Option<(u64, usize)>,
    crashed: bool,
}

impl SimDisk {
    /// An empty disk that never fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk that holds `bytes`, all of them synced.
    pub fn holding(bytes: &[u8]) -> Self {
        let disk = Self::default();
        let mut platter = disk.platter();
        platter.bytes = bytes.to_vec();
        platter.synced = bytes.len();
        drop(platter);
        disk
    }

    /// From now on the disk is full at `bytes` in all: an append writes what fits and then fails. `None`: no limit.
    pub fn full_at(&self, bytes: Option<usize>) {
        self.platter().capacity = bytes;
    }

    /// From now on writing fails (or works again).
    pub fn read_only(&self, read_only: bool) {
        self.platter().read_only = read_only;
    }

    /// The next `count` syncs fail and lose what they should have made durable.
    pub fn fail_syncs(&self, count: usize) {
        self.platter().failing_syncs = count;
    }

    /// The machine dies at operation `operation` (appends, truncations and syncs, from 0); an append gets its first
    /// `bytes` bytes through. Everything fails from then on, until [`SimDisk::restart`].
    pub fn crash_at(&self, operation: u64, bytes: usize) {
        self.platter().crash = Some((operation, bytes));
    }

    /// The machine dies now, if it is not dead, and starts again with what survived.
    pub fn restart(&self, keep: Keep) {
        let mut platter = self.platter();
        let unsynced = platter.bytes.len() - platter.synced;
        let kept = match keep {
            Keep::Synced => 0,
            Keep::Bytes(bytes) => bytes.min(unsynced),
            Keep::All => unsynced,
        };
        let end = platter.synced + kept;
        platter.bytes.truncate(end);
        for hole in std::mem::take(&mut platter.holes) {
            let hole = hole.start.min(end)..hole.end.min(end);
            platter.bytes[hole].fill(0);
        }
        // An unsynced truncation comes undone where nothing was written over it.
        let old = std::mem::take(&mut platter.resurrected);
        if let Some(rest) = old.get(kept..) {
            platter.bytes.extend_from_slice(rest);
        }
        platter.synced = platter.bytes.len();
        platter.crash = None;
        platter.crashed = false;
    }

    /// What reads back now.
    pub fn bytes(&self) -> Vec<u8> {
        self.platter().bytes.clone()
    }

    /// Appends, truncations and syncs so far.
    pub fn operations(&self) -> u64 {
        self.platter().operations
    }

    /// Whether the machine is dead.
    pub fn is_crashed(&self) -> bool {
        self.platter().crashed
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        // Every change is complete before anything can panic.
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platter {
    /// Counts an operation; gives how many bytes of an append get through if the machine dies in it.
    fn begin(&mut self) -> io::Result<Option<usize>> {
        if self.crashed {
            return Err(dead());
        }
        let operation = self.operations;
        self.operations += 1;
        match self.crash {
            Some((at, bytes)) if at == operation => {
                self.crashed = true;
                Ok(Some(bytes))
            }
            Some(_) | None if self.read_only => Err(ErrorKind::ReadOnlyFilesystem.into()),
            Some(_) | None => Ok(None),
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the simulated machine is dead")
}

impl Disk for SimDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        if let Some(through) = platter.begin()? {
            platter.bytes.extend_from_slice(&bytes[..through.min(bytes.len())]);
            return Err(dead());
        }
        let room = platter.capacity.map_or(bytes.len(), |all| all.saturating_sub(platter.bytes.len()));
        let fits = room.min(bytes.len());
        platter.bytes.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.begin()?.is_some() {
            return Err(dead());
        }
        if platter.failing_syncs > 0 {
            platter.failing_syncs -= 1;
            let lost = platter.synced..platter.bytes.len();
            platter.holes.push(lost);
            return Err(io::Error::other("the simulated disk lost a write"));
        }
        platter.synced = platter.bytes.len();
        platter.resurrected.clear();
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.begin()?.is_some() {
            return Err(dead());
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len < platter.synced {
            let mut old = platter.bytes[len..platter.synced].to_vec();
            old.append(&mut platter.resurrected);
            platter.resurrected = old;
            platter.synced = len;
        }
        platter.bytes.truncate(len);
        for hole in &mut platter.holes {
            hole.end = hole.end.min(len);
            hole.start = hole.start.min(hole.end);
        }
        platter.holes.retain(|hole| !hole.is_empty());
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.platter().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let platter = self.platter();
        if platter.crashed {
            return Err(dead());
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(platter.bytes.len());
        let read = buf.len().min(platter.bytes.len() - start);
        buf[..read].copy_from_slice(&platter.bytes[start..start + read]);
        Ok(read)
    }
}
