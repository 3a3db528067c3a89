//! The ledger: an append-only file of JSON lines, one event each, every line naming the hash of the one before it.
//!
//! Decides when an event counts as recorded (after `fdatasync`, never before), what of a damaged file may be used (a
//! cut-off last line is dropped, anything else is refused) and in which order lines that had to wait are written.
//! It does not know what the events mean: it is generic over them, and recovery replays them into whoever does.
//!
//! ```text
//! {"seq":1,"at":"2026-11-30T18:00:00Z","event":{"gpu_bridge_ledger":1},"prev":"0000…","sum":"1f0e…"}
//! {"seq":2,"at":"…","event":{…},"prev":"<sha256 of line 1>","sum":"…"}
//! ```
//!
//! `seq` is the number of the line in the file. See `line` for the frame, `read` for what is torn and what is broken.

mod admin;
mod disk;
mod error;
mod line;
mod read;
mod sim;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use admin::{CutPlan, CutReport, Report, cut, plan_cut, verify};
pub use disk::{Disk, FILE_NAME, FileDisk, path_in};
pub use error::{Broken, Error};
pub use line::{FORMAT, LineHash, MAX_LINE_BYTES, Seq};
pub use read::{Entries, Entry, Torn};
pub use sim::{Keep, SimDisk};

pub(crate) use disk::{Lock, at as at_path, sync_dir};

use read::Walk;

/// Lines that may wait for the disk.
pub const MAX_WAITING_LINES: usize = 10_000;
/// Bytes of events that may wait for the disk.
pub const MAX_WAITING_BYTES: usize = 16 << 20;
/// Room for a line's frame when the event alone is known.
const FRAME_BYTES: usize = 256;

/// The ledger, open for writing. Calls block on the disk.
#[derive(Debug)]
pub struct Ledger<E, D = FileDisk> {
    disk: D,
    last: Seq,
    hash: LineHash,
    /// Where the last line begins, in bytes.
    last_offset: u64,
    /// Bytes of acknowledged lines.
    len: u64,
    tail: Tail,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Reused for every write.
    buffer: Vec<u8>,
    /// Reused for every event.
    scratch: Vec<u8>,
    failpoint: failpoint::AbortAfter,
    event: PhantomData<fn(&E)>,
}

/// What stands behind the last acknowledged line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// Nothing.
    Clean,
    /// Perhaps part of a line that was not acknowledged; to be dropped before the next write.
    Ragged,
    /// A sync failed: the page cache may show what the disk does not have.
    Unknown,
}

/// Where the ledger ends once a write is committed.
#[derive(Clone, Copy)]
struct End {
    last: Seq,
    hash: LineHash,
    last_offset: u64,
}

#[derive(Debug)]
struct Waiting {
    at: Timestamp,
    event: Vec<u8>,
}

/// What opening a ledger found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Whether there was none before, so that only its header was written.
    pub origin: Origin,
    /// Number of the last line.
    pub last: Seq,
    /// Its hash.
    pub hash: LineHash,
    /// A cut-off write that was dropped: worth a warning, nothing acknowledged is lost.
    pub torn: Option<Torn>,
}

/// Whether a ledger was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was not: this one begins now.
    Fresh,
    /// It was, and it was replayed.
    Found,
}

/// What became of a line that may wait.
#[derive(Debug)]
pub enum Recorded {
    /// It is on the disk.
    Durable(Seq),
    /// It waits in memory, and is lost if the process ends before the disk can be written again.
    Waiting {
        /// Lines that wait now, this one included.
        lines: usize,
        /// Why.
        because: Error,
    },
}

impl<E: Serialize + DeserializeOwned> Ledger<E> {
    /// Opens or creates the ledger in the state folder `dir`, checks its chain and gives every event to `each`.
    ///
    /// A new ledger's header is dated `at`. Fails with [`Error::Locked`] while another process has the folder, with
    /// [`Error::Broken`] where the chain does not hold, with [`Error::Event`] and [`Error::Format`] for a file of
    /// another version; the file is then as it was.
    pub fn open(dir: &Path, at: Timestamp, each: impl FnMut(Entry<E>)) -> Result<(Self, Replay), Error> {
        Self::open_on(FileDisk::open(dir)?, at, each)
    }
}

impl<E: Serialize + DeserializeOwned, D: Disk> Ledger<E, D> {
    /// [`Ledger::open`] on any disk.
    pub fn open_on(disk: D, at: Timestamp, mut each: impl FnMut(Entry<E>)) -> Result<(Self, Replay), Error> {
        let mut walk = Walk::new(&disk);
        while let Some(entry) = walk.next_entry()? {
            each(entry);
        }
        let (last, hash, last_offset, len, torn) =
            (walk.seq, walk.hash, walk.last_offset, walk.offset, walk.torn);
        let mut ledger = Ledger {
            disk,
            last,
            hash,
            last_offset,
            len,
            tail: if torn.is_some() { Tail::Ragged } else { Tail::Clean },
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            buffer: Vec::new(),
            scratch: Vec::new(),
            failpoint: failpoint::AbortAfter::from_env(),
            event: PhantomData,
        };
        ledger.drop_tail()?;
        let origin = if last == Seq(0) { Origin::Fresh } else { Origin::Found };
        if origin == Origin::Fresh {
            let header =
                serde_json::to_vec(&line::Header { gpu_bridge_ledger: FORMAT }).map_err(Error::Serialize)?;
            ledger.write([(at, header.as_slice())])?;
        } else {
            // A predecessor that died between write and sync left lines that we have now read and will build on.
            ledger.disk.sync().map_err(|e| Error::io("syncing", e))?;
        }
        let replay = Replay { origin, last: ledger.last, hash: ledger.hash, torn };
        Ok((ledger, replay))
    }

    /// Records an event: it is on the disk when this returns its line number.
    ///
    /// After an error it is not recorded, and nothing of it will be seen by a later reader, except that after a failed
    /// sync ([`Error::Poisoned`] from then on, until [`Ledger::recover`]) and a crash it may have reached the disk.
    pub fn append(&mut self, at: Timestamp, event: &E) -> Result<Seq, Error> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let written = serde_json::to_writer(&mut scratch, event)
            .map_err(Error::Serialize)
            .and_then(|()| self.write([(at, scratch.as_slice())]));
        self.scratch = scratch;
        written
    }

    /// Records several events in one write and one sync: all or none, and gives the number of the last line.
    ///
    /// (A crash in the middle may leave a first part of them; none of them was acknowledged then.)
    pub fn append_batch<'a>(
        &mut self,
        at: Timestamp,
        events: impl IntoIterator<Item = &'a E>,
    ) -> Result<Seq, Error>
    where
        E: 'a,
    {
        let texts: Vec<Vec<u8>> =
            events.into_iter().map(serde_json::to_vec).collect::<Result<_, _>>().map_err(Error::Serialize)?;
        self.write(texts.iter().map(|text| (at, text.as_slice())))
    }

    /// Records an event if the disk can be written, else keeps it, in order, until it can.
    ///
    /// Only for closing a gate, which must go on when nothing can be recorded. What waits is written before the next
    /// line, whoever writes it. Fails with [`Error::Backlog`] when no more may wait: the event is then forgotten.
    pub fn append_best_effort(&mut self, at: Timestamp, event: &E) -> Result<Recorded, Error> {
        let event = serde_json::to_vec(event).map_err(Error::Serialize)?;
        let bytes = event.len() + FRAME_BYTES;
        if bytes > MAX_LINE_BYTES {
            // It would stop everything behind it for ever.
            return Err(Error::TooLong { bytes, limit: MAX_LINE_BYTES });
        }
        if self.waiting.len() >= MAX_WAITING_LINES || self.waiting_bytes + event.len() > MAX_WAITING_BYTES {
            return Err(Error::Backlog { limit: self.waiting.len() });
        }
        self.waiting_bytes += event.len();
        self.waiting.push_back(Waiting { at, event });
        Ok(match self.flush() {
            Ok(seq) => Recorded::Durable(seq),
            Err(because) => Recorded::Waiting { lines: self.waiting.len(), because },
        })
    }

    /// Writes the lines that wait, if any, and gives the number of the last line.
    pub fn flush(&mut self) -> Result<Seq, Error> {
        if self.waiting.is_empty() { Ok(self.last) } else { self.write([]) }
    }

    /// Makes a ledger whose sync failed writable again: drops what was not acknowledged, and reads back the last
    /// acknowledged line. Lines that wait stay waiting.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.disk.truncate(self.len).map_err(|e| Error::io("dropping what was not acknowledged", e))?;
        self.disk.sync().map_err(|e| Error::io("syncing", e))?;
        let mut line = vec![0; usize::try_from(self.len - self.last_offset).unwrap_or(MAX_LINE_BYTES)];
        let mut read = 0;
        while read < line.len() {
            let more = self.disk.read_at(self.last_offset + read as u64, &mut line[read..]);
            match more.map_err(|e| Error::io("reading back", e))? {
                0 => break,
                n => read += n,
            }
        }
        let found = line[..read].strip_suffix(b"\n").and_then(line::Frame::split).map(|frame| frame.hash());
        if !matches!(found, Some(Ok(hash)) if hash == self.hash) {
            return Err(Error::Broken(Broken {
                line: self.last.0,
                offset: self.last_offset,
                found: "another last line than was acknowledged".to_owned(),
                expected: format!("the line with hash {}", self.hash),
            }));
        }
        self.tail = Tail::Clean;
        Ok(())
    }

    /// Number and hash of the last acknowledged line.
    pub fn last(&self) -> (Seq, LineHash) {
        (self.last, self.hash)
    }

    /// How many lines wait for the disk.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a sync failed and [`Ledger::recover`] is due.
    pub fn is_poisoned(&self) -> bool {
        self.tail == Tail::Unknown
    }

    /// Writes what waits and then `events`, as one unit.
    fn write<'a>(&mut self, events: impl IntoIterator<Item = (Timestamp, &'a [u8])>) -> Result<Seq, Error> {
        self.drop_tail()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let written = self.compose(&mut buffer, events).and_then(|end| self.commit(&buffer, end));
        self.buffer = buffer;
        written
    }

    /// Frames the lines into `buffer`, and gives where the ledger ends with them.
    fn compose<'a>(
        &self,
        buffer: &mut Vec<u8>,
        events: impl IntoIterator<Item = (Timestamp, &'a [u8])>,
    ) -> Result<End, Error> {
        let mut end = End { last: self.last, hash: self.hash, last_offset: self.last_offset };
        let mut frame = |at: Timestamp, event: &[u8]| {
            let last_offset = self.len + buffer.len() as u64;
            let last = end.last.next();
            end = End { last, hash: line::write(buffer, last, at, event, end.hash)?, last_offset };
            Ok(())
        };
        self.waiting.iter().try_for_each(|line| frame(line.at, &line.event))?;
        events.into_iter().try_for_each(|(at, event)| frame(at, event))?;
        Ok(end)
    }

    /// Brings framed lines to the disk; only after that they count.
    fn commit(&mut self, lines: &[u8], end: End) -> Result<Seq, Error> {
        if lines.is_empty() {
            return Ok(self.last);
        }
        if let Err(error) = self.disk.append(lines) {
            self.tail = Tail::Ragged;
            // If this fails too, the next write tries again before it writes.
            if self.disk.truncate(self.len).is_ok() {
                self.tail = Tail::Clean;
            }
            return Err(Error::io("writing", error));
        }
        if let Err(error) = self.disk.sync() {
            self.tail = Tail::Unknown;
            // Best effort, so that nobody who reads the file meanwhile takes these lines for recorded.
            if let Err(error) = self.disk.truncate(self.len) {
                tracing::warn!(%error, "ledger: lines whose sync failed could not be dropped yet");
            }
            return Err(Error::io("syncing", error));
        }
        let first = self.last.next();
        (self.last, self.hash, self.last_offset) = (end.last, end.hash, end.last_offset);
        self.len += lines.len() as u64;
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.failpoint.hit(first, self.last);
        Ok(self.last)
    }

    fn drop_tail(&mut self) -> Result<(), Error> {
        match self.tail {
            Tail::Clean => Ok(()),
            Tail::Ragged => {
                self.disk.truncate(self.len).map_err(|e| Error::io("dropping a cut-off line", e))?;
                self.tail = Tail::Clean;
                Ok(())
            }
            Tail::Unknown => Err(Error::Poisoned),
        }
    }
}

/// For crash tests: with the feature `failpoints` and `GPU_BRIDGE_ABORT_AFTER_SEQ=N` the process aborts as soon as
/// line N is durable, before anyone learns of it. Without the feature it is nothing.
mod failpoint {
    use super::Seq;

    #[derive(Debug)]
    pub(super) struct AbortAfter {
        #[cfg(feature = "failpoints")]
        seq: Option<Seq>,
    }

    #[cfg(feature = "failpoints")]
    impl AbortAfter {
        pub(super) fn from_env() -> Self {
            let seq = std::env::var("GPU_BRIDGE_ABORT_AFTER_SEQ").ok().and_then(|n| n.parse().ok()).map(Seq);
            AbortAfter { seq }
        }

        pub(super) fn hit(&self, first: Seq, last: Seq) {
            if self.seq.is_some_and(|seq| first <= seq && seq <= last) {
                std::process::abort();
            }
        }
    }

    #[cfg(not(feature = "failpoints"))]
    impl AbortAfter {
        pub(super) fn from_env() -> Self {
            AbortAfter {}
        }

        #[allow(clippy::unused_self, reason = "the other build of it uses it")]
        pub(super) fn hit(&self, _first: Seq, _last: Seq) {}
    }
}
