//! Walking a ledger from its first line, one bounded line at a time.
//!
//! Decides whether each line is the right successor of the one before it, and whether what stands at the end is a
//! torn write (dropped: it was never acknowledged) or damage (refused). Knows nothing of writing.
//!
//! Torn is only what a write that was cut off can leave: a last line without a newline. A last line with one was whole once,
//! and perhaps acknowledged: where it can't be read, or fails its sum, it was altered after it was written: damage.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{ReadAt, ReadOnly};
use super::error::{Broken, Error};
use super::line::{FORMAT, Frame, Header, LineHash, MAX_LINE_BYTES, Seq};

const BUFFER_BYTES: usize = 256 << 10;

/// One event of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<E> {
    /// Its line.
    pub seq: Seq,
    /// When it was written, by the daemon's clock.
    pub at: Timestamp,
    /// What happened.
    pub event: E,
    /// The line's hash, which the next line names.
    pub hash: LineHash,
}

/// Bytes at the end that are no line: a write that was cut off before it was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Torn {
    /// Line that it would have been.
    pub line: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Torn { line, offset, bytes } = self;
        write!(
            f,
            "the last write was cut off: {bytes} bytes at line {line} (byte {offset}) are no whole line"
        )
    }
}

/// A line that was found to be the right one.
#[derive(Debug)]
pub(crate) struct Link<'a> {
    pub(crate) seq: Seq,
    pub(crate) at: &'a str,
    pub(crate) event: &'a [u8],
    pub(crate) hash: LineHash,
    pub(crate) offset: u64,
}

/// Reads lines and checks that each follows the one before it.
#[derive(Debug)]
pub(crate) struct Walk<R> {
    input: BufReader<Cursor<R>>,
    line: Vec<u8>,
    /// Where the next line begins: everything before it is sound.
    pub(crate) offset: u64,
    /// Last sound line; 0 before the first.
    pub(crate) seq: Seq,
    /// Its hash.
    pub(crate) hash: LineHash,
    /// Where it begins.
    pub(crate) last_offset: u64,
    /// What stands behind it, once the end was reached.
    pub(crate) torn: Option<Torn>,
}

impl<R: ReadAt> Walk<R> {
    pub(crate) fn new(disk: R) -> Self {
        Walk {
            input: BufReader::with_capacity(BUFFER_BYTES, Cursor { disk, at: 0 }),
            line: Vec::new(),
            offset: 0,
            seq: Seq(0),
            hash: LineHash::NONE,
            last_offset: 0,
            torn: None,
        }
    }

    /// The next sound line; `None` at the end. After an error or the end, call it no more.
    pub(crate) fn next(&mut self) -> Result<Option<Link<'_>>, Error> {
        let reading = |e| Error::io("reading", e);
        self.line.clear();
        let limit = MAX_LINE_BYTES as u64;
        let read = self.input.by_ref().take(limit).read_until(b'\n', &mut self.line).map_err(reading)?;
        if read == 0 {
            return Ok(None);
        }
        let seq = self.seq.next();
        let offset = self.offset;
        let broken =
            |found: String, expected: String| Error::Broken(Broken { line: seq.0, offset, found, expected });
        let whole = self.line.strip_suffix(b"\n");
        let Some(frame) = whole.and_then(Frame::split) else {
            let at_end = self.input.fill_buf().map_err(reading)?.is_empty();
            if at_end && whole.is_none() {
                self.torn = Some(Torn { line: seq.0, offset, bytes: read as u64 });
                return Ok(None);
            }
            let found = match whole {
                Some(line) => excerpt(line),
                None => format!("more than {limit} bytes without a newline"),
            };
            return Err(broken(found, "a ledger line".to_owned()));
        };
        let hash = frame.hash().map_err(|bad| {
            broken(
                format!("a line altered after it was written (sum {})", bad.found),
                format!("sum {}", bad.expected),
            )
        })?;
        if frame.seq != seq {
            return Err(broken(format!("seq {}", frame.seq), format!("seq {seq}")));
        }
        if !frame.follows(self.hash) {
            return Err(broken(
                format!("a line that follows {}", frame.prev()),
                format!("one that follows {}", self.hash),
            ));
        }
        if seq == Seq(1) {
            let header: Header = serde_json::from_slice(frame.event)
                .map_err(|e| broken(excerpt(frame.event), format!("the header of a ledger ({e})")))?;
            if header.gpu_bridge_ledger != FORMAT {
                return Err(Error::Format { found: header.gpu_bridge_ledger, known: FORMAT });
            }
        }
        self.seq = seq;
        self.hash = hash;
        self.last_offset = offset;
        self.offset += read as u64;
        Ok(Some(Link { seq, at: frame.at, event: frame.event, hash, offset }))
    }

    /// The next event; the header is passed over.
    pub(crate) fn next_entry<E: DeserializeOwned>(&mut self) -> Result<Option<Entry<E>>, Error> {
        if self.seq == Seq(0) && self.next()?.is_none() {
            return Ok(None);
        }
        let Some(Link { seq, at, event, hash, offset }) = self.next()? else { return Ok(None) };
        let at = at.parse().map_err(|_| {
            let (found, expected) = (excerpt(at.as_bytes()), "an RFC 3339 time".to_owned());
            Error::Broken(Broken { line: seq.0, offset, found, expected })
        })?;
        let event = serde_json::from_slice(event).map_err(|source| Error::Event { seq, offset, source })?;
        Ok(Some(Entry { seq, at, event, hash }))
    }
}

/// Reads the events of a ledger file one by one, beside a daemon that may be writing it.
#[derive(Debug)]
pub struct Entries<E> {
    walk: Walk<ReadOnly>,
    done: bool,
    event: PhantomData<fn() -> E>,
}

impl<E: DeserializeOwned> Entries<E> {
    /// Opens the file. The chain is checked on the way; the first error ends the iteration.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Entries { walk: Walk::new(ReadOnly::open(path)?), done: false, event: PhantomData })
    }

    /// What stood behind the last whole line, once the iteration ended.
    pub fn torn(&self) -> Option<Torn> {
        self.walk.torn
    }
}

impl<E: DeserializeOwned> Iterator for Entries<E> {
    type Item = Result<Entry<E>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.walk.next_entry().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

#[derive(Debug)]
struct Cursor<R> {
    disk: R,
    at: u64,
}

impl<R: ReadAt> Read for Cursor<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.disk.read_at(self.at, buf)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The beginning of some bytes, fit for a message.
fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 80;
    let dots = if bytes.len() > SHOWN { "…" } else { "" };
    format!("`{}{dots}`", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}
