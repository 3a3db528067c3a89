//! The materialised state (handovers, loans, decisions, indices) for fast queries, in sled.
//!
//! Decides whether what it has can be used: it remembers up to which ledger line it was brought, and that line's hash.
//! What is missing, unreadable, half written, of another schema, ahead of the ledger or from another one is moved
//! aside and rebuilt from the ledger, which alone is the authority; so nothing here needs to be durable at any moment,
//! and no trouble of sled's may reach the daemon as a panic. Knows nothing of what the tables mean.

mod aside;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ledger::{self, LineHash, Lock, Seq};

pub use aside::KEPT_ASIDE;
pub use table::{Batch, Key, Table};

/// Folder of the store in the state folder.
pub const FOLDER_NAME: &str = "store";
const LOCK_NAME: &str = "store.lock";
const MARK: &[u8] = b"\0applied";
const SCHEMA: &[u8] = b"\0schema";
const CACHE_BYTES: u64 = 64 << 20;
const FLUSH_EVERY_MS: u64 = 500;
/// sled's threads may hold its file a moment longer than its last handle.
const CLOSING: Duration = Duration::from_secs(2);
const CLOSING_STEP: Duration = Duration::from_millis(10);

/// Errors of the store. None of them touches the ledger; after any of them a rebuild is safe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another live process holds the store.
    #[error(transparent)]
    Locked(ledger::Error),
    /// The folder could not be used: full, read-only, no permission.
    #[error("the store cannot be prepared ({doing})")]
    Folder {
        /// The operation that failed.
        doing: &'static str,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// sled reported an error.
    #[error("the store failed")]
    Sled(#[source] sled::Error),
    /// sled panicked.
    #[error("the store failed badly: {0}")]
    Panicked(String),
    /// A value is not of its table's type, or cannot be written as JSON.
    #[error("table {table} of the store holds a value of another shape")]
    Value {
        /// The table.
        table: &'static str,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// A key is not of its table's type.
    #[error("table {table} of the store holds a key of another shape")]
    Key {
        /// The table.
        table: &'static str,
    },
    /// A batch for a line that was applied already.
    #[error("ledger line {seq} was applied to the store already; it is at line {applied}")]
    Backwards {
        /// The line given.
        seq: Seq,
        /// The last line applied.
        applied: Seq,
    },
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Locked(error) => error.code(),
            Self::Folder { .. } => "GB0221",
            Self::Sled(_) => "GB0222",
            Self::Panicked(_) => "GB0223",
            Self::Value { .. } => "GB0224",
            Self::Key { .. } => "GB0225",
            Self::Backwards { .. } => "GB0226",
        }
    }
}

/// A place in a ledger that no other ledger has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The line.
    pub seq: Seq,
    /// Its hash, which stands for everything before it too.
    pub hash: LineHash,
}

/// What opening the store found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// No store was there.
    Fresh,
    /// It holds everything up to this line.
    AsOf(Mark),
    /// What was there is of no use; the store is empty.
    Rebuild {
        /// Why.
        reason: Reason,
        /// Where the old one is now, for whoever wants to look.
        moved_to: PathBuf,
    },
}

/// Why a store must be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// sled could not open or read it.
    Unreadable(String),
    /// sled died while it wrote a snapshot; it would not open.
    HalfWrittenSnapshot,
    /// It was written under another schema.
    Schema {
        /// Its schema.
        found: u32,
        /// Ours.
        wanted: u32,
    },
    /// It holds lines that the ledger does not have.
    Ahead {
        /// Up to where it was brought.
        applied: Seq,
        /// Last line of the ledger.
        ledger: Seq,
    },
    /// It was brought up from another ledger.
    OtherLedger {
        /// The line whose hash is another.
        at: Seq,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unreadable(why) => write!(f, "it cannot be read: {why}"),
            Reason::HalfWrittenSnapshot => f.write_str("a snapshot was left half written"),
            Reason::Schema { found, wanted } => {
                write!(f, "it has schema {found}, this version needs {wanted}")
            }
            Reason::Ahead { applied, ledger } => {
                write!(f, "it is at ledger line {applied}, but the ledger ends at line {ledger}")
            }
            Reason::OtherLedger { at } => {
                write!(f, "ledger line {at} is not the line it was brought up from")
            }
        }
    }
}

/// How a ledger line stands to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It was applied.
    Known,
    /// It was not: apply it.
    New,
    /// Another line with this number was applied: [`Store::rebuild`] with [`Reason::OtherLedger`].
    Differs,
}

/// The store. Calls may block on the disk for a moment.
#[derive(Debug)]
pub struct Store {
    db: sled::Db,
    applied: Option<Mark>,
    schema: u32,
    dir: PathBuf,
    /// After `db`, so that it is let go of last.
    lock: Lock,
}

impl Store {
    /// Opens the store in the state folder `dir`, or begins a new one where what is there cannot be used. What is
    /// moved aside is named after `now`.
    ///
    /// Fails with [`Error::Locked`] while another process has it, with [`Error::Folder`] where nothing can be written.
    pub fn open(dir: &Path, schema: u32, now: Timestamp) -> Result<(Self, Opened), Error> {
        let lock = Lock::take_named(dir, LOCK_NAME, FOLDER_NAME).map_err(|error| match error {
            ledger::Error::Full { source, .. }
            | ledger::Error::ReadOnly { source, .. }
            | ledger::Error::Io { source, .. } => Error::Folder { doing: "locking", source },
            other => Error::Locked(other),
        })?;
        Self::open_locked(dir, schema, now, lock)
    }

    fn open_locked(dir: &Path, schema: u32, now: Timestamp, lock: Lock) -> Result<(Self, Opened), Error> {
        let folder = dir.join(FOLDER_NAME);
        let found = match inspect(&folder, schema)? {
            Found::Nothing => None,
            Found::Usable(db, applied) => {
                let opened = applied.map_or(Opened::Fresh, Opened::AsOf);
                return Ok((Store { db, applied, schema, dir: dir.to_owned(), lock }, opened));
            }
            Found::Useless(reason) => Some(reason),
        };
        Self::begin(dir, schema, now, lock, found)
    }

    /// Begins an empty store; what is there goes aside for `reason`.
    fn begin(
        dir: &Path,
        schema: u32,
        now: Timestamp,
        lock: Lock,
        reason: Option<Reason>,
    ) -> Result<(Self, Opened), Error> {
        let folder = dir.join(FOLDER_NAME);
        let opened = match reason {
            None => Opened::Fresh,
            Some(reason) => Opened::Rebuild { reason, moved_to: aside::move_aside(dir, &folder, now)? },
        };
        let db = open_sled(&folder)?;
        guard(|| {
            db.insert(SCHEMA, &schema.to_be_bytes())?;
            db.flush()
        })?;
        Ok((Store { db, applied: None, schema, dir: dir.to_owned(), lock }, opened))
    }

    /// Moves this store aside and begins an empty one.
    pub fn rebuild(self, reason: Reason, now: Timestamp) -> Result<(Self, Opened), Error> {
        let Store { db, schema, dir, lock, applied: _ } = self;
        // A store that fails may fail at closing too.
        if let Err(error) = guard(move || {
            drop(db);
            Ok(())
        }) {
            tracing::warn!(%error, "the old store did not close cleanly");
        }
        Self::begin(&dir, schema, now, lock, Some(reason))
    }

    /// Up to which ledger line it was brought.
    pub fn applied(&self) -> Option<Mark> {
        self.applied
    }

    /// How a ledger line stands to the store. For the pass over the ledger at a start.
    pub fn standing(&self, line: Mark) -> Standing {
        match self.applied {
            Some(applied) if line.seq == applied.seq && line.hash != applied.hash => Standing::Differs,
            Some(applied) if line.seq <= applied.seq => Standing::Known,
            Some(_) | None => Standing::New,
        }
    }

    /// After that pass: whether the store holds lines that the ledger, which ends at `last`, does not have.
    pub fn is_ahead_of(&self, last: Seq) -> Option<Reason> {
        let applied = self.applied?.seq;
        (applied > last).then_some(Reason::Ahead { applied, ledger: last })
    }

    /// Makes the changes that follow from the ledger's lines up to `line`, all of them or none.
    ///
    /// Lines may be skipped (several in one batch while catching up), but never go backwards.
    pub fn apply(&mut self, line: Mark, mut batch: Batch) -> Result<(), Error> {
        if let Some(applied) = self.applied
            && line.seq <= applied.seq
        {
            return Err(Error::Backwards { seq: line.seq, applied: applied.seq });
        }
        batch.inner.insert(MARK, line.encode());
        guard(|| self.db.apply_batch(batch.inner))?;
        self.applied = Some(line);
        Ok(())
    }

    /// The value of a key.
    pub fn get<K, V>(&self, table: &Table<K, V>, key: &K) -> Result<Option<V>, Error>
    where
        K: Key,
        V: Serialize + DeserializeOwned,
    {
        guard(|| self.db.get(table.key(key)))?.map(|bytes| table.value(&bytes)).transpose()
    }

    /// All rows in the order of their keys; `.rev()` for the other way.
    pub fn rows<'a, K, V>(
        &'a self,
        table: &'a Table<K, V>,
    ) -> impl DoubleEndedIterator<Item = Result<(K, V), Error>> + 'a
    where
        K: Key + 'a,
        V: Serialize + DeserializeOwned + 'a,
    {
        Rows { inner: self.db.scan_prefix(table.prefix()), table }
    }

    /// The rows whose keys lie between two bounds, in the order of their keys.
    pub fn rows_between<'a, K, V>(
        &'a self,
        table: &'a Table<K, V>,
        from: Bound<&K>,
        to: Bound<&K>,
    ) -> impl DoubleEndedIterator<Item = Result<(K, V), Error>> + 'a
    where
        K: Key + 'a,
        V: Serialize + DeserializeOwned + 'a,
    {
        let from = match from {
            Bound::Unbounded => Bound::Included(table.prefix()),
            Bound::Included(key) => Bound::Included(table.key(key)),
            Bound::Excluded(key) => Bound::Excluded(table.key(key)),
        };
        let to = match to {
            Bound::Unbounded => {
                let mut end = table.prefix();
                // The NUL behind the name; nothing of this table sorts behind name 0x01.
                end.pop();
                end.push(1);
                Bound::Excluded(end)
            }
            Bound::Included(key) => Bound::Included(table.key(key)),
            Bound::Excluded(key) => Bound::Excluded(table.key(key)),
        };
        Rows { inner: self.db.range((from, to)), table }
    }

    /// Hands everything to the operating system; for a clean stop. (sled's flush is no full fsync; the ledger is.)
    pub fn flush(&self) -> Result<(), Error> {
        guard(|| self.db.flush()).map(|_bytes| ())
    }
}

type SledRow = sled::Result<(sled::IVec, sled::IVec)>;

struct Rows<'a, K, V> {
    inner: sled::Iter,
    table: &'a Table<K, V>,
}

impl<K: Key, V: Serialize + DeserializeOwned> Rows<'_, K, V> {
    fn step(&mut self, step: fn(&mut sled::Iter) -> Option<SledRow>) -> Option<Result<(K, V), Error>> {
        let row = guard(|| step(&mut self.inner).transpose()).transpose()?;
        Some(row.and_then(|(key, value)| self.table.row(&key, &value)))
    }
}

impl<K: Key, V: Serialize + DeserializeOwned> Iterator for Rows<'_, K, V> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Iterator::next)
    }
}

impl<K: Key, V: Serialize + DeserializeOwned> DoubleEndedIterator for Rows<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(DoubleEndedIterator::next_back)
    }
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        [&self.seq.0.to_be_bytes()[..], &self.hash.0[..]].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (seq, hash) = bytes.split_first_chunk::<8>()?;
        Some(Mark { seq: Seq(u64::from_be_bytes(*seq)), hash: LineHash(hash.try_into().ok()?) })
    }
}

enum Found {
    Nothing,
    Usable(sled::Db, Option<Mark>),
    Useless(Reason),
}

/// Looks at what is in the store's folder, changing nothing that is usable.
fn inspect(folder: &Path, schema: u32) -> Result<Found, Error> {
    match folder.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => {
            return Err(Error::Folder { doing: "looking at it", source: ledger::at_path(folder, &error) });
        }
        Ok(_) => {}
    }
    if has_half_written_snapshot(folder) {
        return Ok(Found::Useless(Reason::HalfWrittenSnapshot));
    }
    let read = open_sled(folder).and_then(|db| {
        let (found, applied) = guard(|| Ok((db.get(SCHEMA)?, db.get(MARK)?)))?;
        Ok((db, found, applied))
    });
    let (db, found, applied) = match read {
        Ok(read) => read,
        Err(locked @ Error::Locked(_)) => return Err(locked),
        Err(Error::Sled(sled::Error::Io(source))) if is_about_the_disk(&source) => {
            return Err(Error::Folder { doing: "opening it", source: ledger::at_path(folder, &source) });
        }
        Err(error) => return Ok(Found::Useless(Reason::Unreadable(with_source(&error)))),
    };
    let found = found.and_then(|bytes| bytes.as_ref().try_into().ok().map(u32::from_be_bytes));
    let Some(found) = found else {
        return Ok(Found::Useless(Reason::Unreadable("its schema is not recorded".to_owned())));
    };
    if found != schema {
        return Ok(Found::Useless(Reason::Schema { found, wanted: schema }));
    }
    match applied.map(|bytes| Mark::decode(&bytes)) {
        None => Ok(Found::Usable(db, None)),
        Some(Some(mark)) => Ok(Found::Usable(db, Some(mark))),
        Some(None) => {
            Ok(Found::Useless(Reason::Unreadable("its place in the ledger is not recorded".to_owned())))
        }
    }
}

fn has_half_written_snapshot(folder: &Path) -> bool {
    let Ok(files) = folder.read_dir() else { return false };
    files.filter_map(Result::ok).any(|file| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        name.starts_with("snap.") && name.ends_with(".generating")
    })
}

fn open_sled(folder: &Path) -> Result<sled::Db, Error> {
    let config = sled::Config::default()
        .path(folder)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(FLUSH_EVERY_MS))
        .mode(sled::Mode::HighThroughput);
    let start = Instant::now();
    loop {
        match guard(|| config.open()) {
            Err(Error::Sled(error)) if is_lock(&error) => {
                // We hold our own lock, so it can only be a store of this process that is still closing, or a
                // program that is not gpu-bridge.
                if start.elapsed() > CLOSING {
                    let path = folder.to_owned();
                    return Err(Error::Locked(ledger::Error::Locked { path, pid: None }));
                }
                std::thread::sleep(CLOSING_STEP);
            }
            other => return other,
        }
    }
}

fn is_lock(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(e) if e.to_string().contains("could not acquire lock"))
}

fn is_about_the_disk(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::StorageFull | Kind::QuotaExceeded | Kind::ReadOnlyFilesystem | Kind::PermissionDenied
    )
}

fn with_source(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Calls into sled, whose panics end here.
fn guard<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, Error> {
    // sled's own state after a panic is of no further use, and is not used: the caller rebuilds.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(Error::Sled),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Panicked(text.unwrap_or_else(|| "no message".to_owned())))
        }
    }
}
