//! What an operator does to a ledger: check it, and cut off a damaged end.
//!
//! Decides nothing by itself: `cut` needs to be told where, keeps everything that it takes off, and refuses while a
//! daemon runs. Knows nothing of what the events mean.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::IgnoredAny;

use super::disk::{self, Lock, ReadOnly, must_be_free, path_in, sync_dir};
use super::error::{Broken, Error};
use super::line::{LineHash, Seq};
use super::read::{Torn, Walk};

/// What `verify` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Last line up to which the chain holds; 0 for none.
    pub last: Seq,
    /// Its hash: whoever keeps it elsewhere can prove later that nothing before was changed.
    pub hash: LineHash,
    /// Bytes of sound lines.
    pub bytes: u64,
    /// A cut-off write behind them; harmless.
    pub torn: Option<Torn>,
    /// Where the chain breaks, if it does.
    pub broken: Option<Broken>,
    /// The error's code, where the chain breaks or there is none.
    pub code: Option<&'static str>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines, {} bytes, hash {}", self.last, self.bytes, self.hash)?;
        if let Some(torn) = &self.torn {
            write!(f, "; {torn}")?;
        }
        match &self.broken {
            None if self.last == Seq(0) => write!(
                f,
                ": EMPTY, there is no chain. A daemon that starts on it begins a new one, and knows of no node that is ours  [{}]",
                Broken::CODE
            ),
            None => f.write_str(": the chain holds"),

            Some(broken) => write!(f, ": BROKEN, {broken}  [{}]", Broken::CODE),
        }
    }
}

/// Checks a ledger file from its first line, beside a daemon that may be writing it. Damage is part of the report; an
/// error means that the file could not be read, or is of another format.
pub fn verify(path: &Path) -> Result<Report, Error> {
    let mut walk = Walk::new(ReadOnly::open(path)?);
    let mut report =
        Report { last: walk.seq, hash: walk.hash, bytes: 0, torn: None, broken: None, code: None };
    loop {
        match walk.next() {
            Ok(None) => break,
            Ok(Some(link)) => {
                if let Err(error) = serde_json::from_slice::<IgnoredAny>(link.event) {
                    // Its sum holds, so it was written like this: a defect, not damage, and as unusable.
                    let (found, expected) =
                        (format!("an event that is no JSON ({error})"), "JSON".to_owned());
                    report.broken = Some(Broken { line: link.seq.0, offset: link.offset, found, expected });
                    break;
                }
            }
            Err(Error::Broken(broken)) => {
                report.broken = Some(broken);
                break;
            }
            Err(other) => return Err(other),
        }
        (report.last, report.hash, report.bytes) = (walk.seq, walk.hash, walk.offset);
    }
    report.torn = walk.torn;
    report.code = (report.broken.is_some() || report.last == Seq(0)).then_some(Broken::CODE);
    Ok(report)
}

/// What `cut` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutReport {
    /// Lines that stay.
    pub kept: u64,
    /// Bytes that were moved aside.
    pub moved_bytes: u64,
    /// Where they are now.
    pub moved_to: PathBuf,
}

impl fmt::Display for CutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, moved_bytes, moved_to } = self;
        write!(f, "{kept} lines stay; {moved_bytes} bytes were moved to {}", moved_to.display())
    }
}

/// What `cut` would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutPlan {
    /// The ledger file.
    pub ledger: PathBuf,
    /// Lines that would stay.
    pub keeps: u64,
    /// Lines that would be moved aside, whole or not, sound or not.
    pub moves_lines: u64,
    /// Their bytes.
    pub moves_bytes: u64,
}

impl fmt::Display for CutPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ledger, keeps, moves_lines, moves_bytes } = self;
        write!(
            f,
            "would move {moves_lines} lines ({moves_bytes} bytes) out of {}, from line {} on; {keeps} lines would stay",
            ledger.display(),
            keeps + 1
        )
    }
}

/// Whether [`cut`] would be possible, and what would go: the same checks, and nothing is written.
///
/// # Errors
/// As [`cut`].
pub fn plan_cut(dir: &Path, at: u64) -> Result<CutPlan, Error> {
    must_be_free(dir)?;
    let ledger = path_in(dir);
    let start = offset_of(&ledger, at)?;
    let unreadable = |source| Error::Unreadable { path: ledger.clone(), source };
    let mut file = File::open(&ledger).map_err(unreadable)?;
    file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    let (mut moves_lines, mut moves_bytes, mut whole) = (0, 0, true);
    let mut input = io::BufReader::new(file);
    loop {
        let bytes = input.fill_buf().map_err(unreadable)?;
        let Some(last) = bytes.last() else { break };
        whole = *last == b'\n';
        let (length, ends) = (bytes.len(), bytes.split(|byte| *byte == b'\n').count() - 1);
        moves_lines += ends as u64;
        moves_bytes += length as u64;
        input.consume(length);
    }
    Ok(CutPlan { keeps: at - 1, moves_lines: moves_lines + u64::from(!whole), moves_bytes, ledger })
}

/// Moves line `at` and everything behind it out of the ledger in `dir` into a file next to it.
///
/// The lines before must be sound ([`Error::Broken`] otherwise, with the line to cut at). Fails with
/// [`Error::Locked`] while a daemon runs. A crash on the way loses nothing: at worst the moved part is there twice.
pub fn cut(dir: &Path, at: u64) -> Result<CutReport, Error> {
    let _lock = Lock::take(dir)?;
    let path = path_in(dir);
    let start = offset_of(&path, at)?;
    let mut ledger = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|e| Error::io("opening the file", disk::at(&path, &e)))?;
    let (mut aside, moved_to) = create_aside(dir, at)
        .map_err(|e| Error::io("creating the file for the cut part", disk::at(dir, &e)))?;
    let copying = |e| Error::io("copying the cut part", disk::at(&moved_to, &e));
    ledger.seek(SeekFrom::Start(start)).map_err(copying)?;
    let moved_bytes = io::copy(&mut ledger, &mut aside).map_err(copying)?;
    aside.sync_all().map_err(copying)?;
    sync_dir(dir)?;
    ledger
        .set_len(start)
        .and_then(|()| ledger.sync_all())
        .map_err(|e| Error::io("shortening the ledger", disk::at(&path, &e)))?;
    sync_dir(dir)?;
    Ok(CutReport { kept: at - 1, moved_bytes, moved_to })
}

/// Where line `at` begins; all lines before it are sound.
fn offset_of(path: &Path, at: u64) -> Result<u64, Error> {
    let mut walk = Walk::new(ReadOnly::open(path)?);
    while walk.seq.next() < Seq(at) {
        if walk.next()?.is_none() {
            break;
        }
    }
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let len = std::fs::metadata(path).map_err(unreadable)?.len();
    if at == 0 || walk.seq.next() != Seq(at) || len == walk.offset {
        return Err(Error::NoSuchLine { at, lines: walk.seq.0 });
    }
    Ok(walk.offset)
}

/// A new file `ledger.jsonl.cut-N`, or with a further number where that one exists.
fn create_aside(dir: &Path, at: u64) -> io::Result<(File, PathBuf)> {
    let mut path = path_in(dir).with_extension(format!("jsonl.cut-{at}"));
    for again in 2..1000 {
        match OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                path = path_in(dir).with_extension(format!("jsonl.cut-{at}-{again}"));
            }
            other => return other.map(|file| (file, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
