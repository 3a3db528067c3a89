//! Run folders: one per lab on this machine, with a record of what runs, a block of ports that no other lab has, and a lock
//! that its owner holds. From these alone a later process can tell a lab in use from the leftover of a killed process, and
//! take a lab down that it did not start. It does not know what the processes are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::cache::Lock;
use crate::error::{Error, Result, at};
use crate::wait_until;

/// Ports of one lab.
pub const BLOCK: u16 = 100;
/// Labs use loopback ports from here, below the kernel's ephemeral range …
const FIRST_PORT: u16 = 20_000;
/// … in this many blocks.
const BLOCKS: u16 = 100;

/// A process, told from a later one with the same id by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the outer namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// The running process `pid`; `None` when there is none (a zombie is none).
    pub fn find(pid: i32) -> Option<Self> {
        // proc_pid_stat(5): the name in parentheses may hold anything; state is the first field after it, starttime the 20th.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if matches!(fields.first(), Some(&("Z" | "X"))) {
            return None;
        }
        Some(Self { pid, started: fields.get(19)?.parse().ok()? })
    }

    /// Whether it still runs.
    pub fn alive(&self) -> bool {
        Self::find(self.pid) == Some(*self)
    }

    /// Sends a signal; a process that is gone is fine.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.alive()) else { return Ok(()) };
        match kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(Error::Failed {
                command: format!("kill {}", self.pid),
                status: errno.to_string(),
                output: String::new(),
            }),
        }
    }
}

/// Which lab a run folder belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// [`crate::slurm::Lab`]
    Slurm,
    /// [`crate::kubernetes::Lab`]
    Kubernetes,
}

impl Kind {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// Whether a lab lives as long as its handle or on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// Until the handle is dropped or its process ends.
    #[default]
    Owned,
    /// Until [`down`].
    Detached,
}

/// What stands in a run folder's `lab.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Which lab.
    pub kind: Kind,
    /// Whether it outlives its process.
    pub life: Life,
    /// The first of its [`BLOCK`] ports.
    pub first_port: u16,
    /// What runs; killing these takes the lab down.
    pub processes: BTreeMap<String, Process>,
    /// How a person uses it, a line each.
    pub usage: Vec<String>,
}

/// A lab's run folder. Dropping it gives the lock back, and deletes the folder of an owned lab.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    record: Record,
    _lock: Lock,
}

impl Folder {
    /// Takes a new folder and a block of free ports; clears away what killed processes left.
    pub async fn take(kind: Kind, life: Life) -> Result<Self> {
        let base = base()?;
        let _all = Lock::take(&base.join("lock"), "a free block of ports").await?;
        let mut taken = BTreeSet::new();
        for (path, record) in folders(&base)? {
            if in_use(&path, &record)? {
                taken.insert(record.first_port);
            } else {
                remove(&path, &record).await?;
            }
        }
        // Start at a place of our own, so that users who don't see each other's folders rarely meet.
        let offset = u16::try_from(std::process::id() % u32::from(BLOCKS)).unwrap_or(0);
        let first_port = (0..BLOCKS)
            .map(|block| FIRST_PORT + (block + offset) % BLOCKS * BLOCK)
            .find(|port| !taken.contains(port) && free(*port))
            .ok_or_else(|| Error::Unsupported("no block of free loopback ports".to_owned()))?;
        let path = base.join(format!("{}-{first_port}", kind.name()));
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(at(&path))?;
        }
        std::fs::create_dir(&path).map_err(at(&path))?;
        let lock = Lock::try_take(&path.join("lock"))?
            .ok_or_else(|| Error::Unknown(format!("{} is locked by somebody", path.display())))?;
        let record = Record { kind, life, first_port, processes: BTreeMap::new(), usage: Vec::new() };
        let folder = Self { path, record, _lock: lock };
        folder.save()?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Port number `index` of the lab's block.
    pub fn port(&self, index: u16) -> Result<u16> {
        if index >= BLOCK {
            return Err(Error::Unknown(format!("a lab has {BLOCK} ports")));
        }
        Ok(self.record.first_port + index)
    }

    /// Changes the record, and writes it.
    pub fn update(&mut self, change: impl FnOnce(&mut Record)) -> Result<()> {
        change(&mut self.record);
        self.save()
    }

    fn save(&self) -> Result<()> {
        let path = self.path.join("lab.json");
        let fresh = self.path.join("lab.json.new");
        let text = serde_json::to_vec_pretty(&self.record).map_err(|error| at(&path)(error.into()))?;
        std::fs::write(&fresh, text).map_err(at(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(at(&path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.record.life == Life::Owned && std::env::var_os("GPU_BRIDGE_LABS_KEEP").is_none() {
            // What can't be deleted now is deleted when the next lab starts.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A lab as another process sees it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its run folder.
    pub path: PathBuf,
    /// Its record.
    pub record: Record,
    /// Processes that run no more.
    pub dead: Vec<String>,
}

/// The detached labs of this user, all kinds or one.
pub fn detached(kind: Option<Kind>) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    for (path, record) in folders(&base()?)? {
        if record.life == Life::Detached && kind.is_none_or(|kind| kind == record.kind) {
            let dead = record.processes.iter().filter(|(_, process)| !process.alive());
            let dead = dead.map(|(name, _)| name.clone()).collect();
            seen.push(Seen { path, record, dead });
        }
    }
    Ok(seen)
}

/// Takes detached labs down, and clears away what killed processes left. Returns the folders of the labs that were up.
pub async fn down(kind: Option<Kind>) -> Result<Vec<PathBuf>> {
    let base = base()?;
    let _all = Lock::take(&base.join("lock"), "taking labs down").await?;
    let mut gone = Vec::new();
    for (path, record) in folders(&base)? {
        let wanted = record.life == Life::Detached && kind.is_none_or(|kind| kind == record.kind);
        if wanted || !in_use(&path, &record)? {
            remove(&path, &record).await?;
            if wanted {
                gone.push(path);
            }
        }
    }
    Ok(gone)
}

/// Kills what a record names and waits until it is gone.
pub(crate) async fn kill(record: &Record) -> Result<()> {
    for process in record.processes.values() {
        process.signal(Signal::KILL)?;
    }
    wait_until("the end of a lab's processes", Duration::from_secs(20), async || {
        let left =
            record.processes.iter().filter(|(_, process)| process.alive()).map(|(name, _)| name.as_str());
        let left: Vec<&str> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
    .await
}

async fn remove(path: &Path, record: &Record) -> Result<()> {
    kill(record).await?;
    std::fs::remove_dir_all(path).map_err(at(path))
}

/// A detached lab is in use while any of its processes runs, an owned one while its owner holds the lock.
fn in_use(path: &Path, record: &Record) -> Result<bool> {
    match record.life {
        Life::Detached => Ok(record.processes.values().any(Process::alive) || !lockable(path)?),
        Life::Owned => Ok(!lockable(path)?),
    }
}

fn lockable(path: &Path) -> Result<bool> {
    Ok(Lock::try_take(&path.join("lock"))?.is_some())
}

/// The folder of this user's run folders, readable by nobody else. In the system's folder for temporary files and short, as
/// a Unix socket's path holds 107 bytes.
fn base() -> Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let path = std::env::temp_dir().join(format!("gpu-bridge-labs-{uid}"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(at(&path))?;
    let found = std::fs::symlink_metadata(&path).map_err(at(&path))?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(Error::Unsupported(format!("{} is not a folder of ours alone", path.display())));
    }
    Ok(path)
}

fn folders(base: &Path) -> Result<Vec<(PathBuf, Record)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(base).map_err(at(base))? {
        let path = entry.map_err(at(base))?.path();
        let file = path.join("lab.json");
        match std::fs::read(&file) {
            // Written by another version of this code: a person has to see what runs there, so the error names the file.
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(record) => found.push((path, record)),
                Err(error) => return Err(at(&file)(error.into())),
            },
            Err(error) if path.is_dir() && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) if !path.is_dir() => {}
            Err(error) => return Err(at(&file)(error)),
        }
    }
    Ok(found)
}

fn free(first_port: u16) -> bool {
    (first_port..first_port + BLOCK).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_a_later_one_with_its_id() {
        let me = i32::try_from(std::process::id()).unwrap();
        let us = Process::find(me).unwrap();
        assert!(us.alive());
        assert!(!Process { started: us.started + 1, ..us }.alive());
    }

    #[tokio::test]
    async fn two_folders_share_no_port_and_leftovers_are_cleared() {
        let one = Folder::take(Kind::Slurm, Life::Owned).await.unwrap();
        let two = Folder::take(Kind::Slurm, Life::Owned).await.unwrap();
        assert!(one.port(0).unwrap().abs_diff(two.port(0).unwrap()) >= BLOCK);
        assert!(one.port(BLOCK).is_err());

        // A killed process leaves a folder without a holder of the lock, and processes.
        let left = one.path().with_file_name(format!("slurm-left-{}", std::process::id()));
        std::fs::create_dir(&left).unwrap();
        let mut sleep = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut record = one.record.clone();
        let process = Process::find(i32::try_from(sleep.id()).unwrap()).unwrap();
        record.processes.insert("sleep".to_owned(), process);
        std::fs::write(left.join("lab.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        let three = Folder::take(Kind::Kubernetes, Life::Owned).await.unwrap();
        assert!(!left.exists());
        sleep.wait().unwrap();

        let path = three.path().to_owned();
        drop(three);
        assert!(!path.exists());
    }
}
