//! The ledger, the book that it adds up to, and the store that keeps a copy of both for queries. An event is checked
//! against the book, made durable, and only then believed; the store follows, and is rebuilt when in doubt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Bound;
use std::path::Path;

use gpu_bridge_core::book::{self, Book, Record};
use gpu_bridge_core::event::{Action, Event};
use gpu_bridge_core::facts::{kubernetes, slurm};
use gpu_bridge_core::handover::Handover;
use gpu_bridge_core::ids::NodeName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ledger::{self, Disk, FileDisk, Ledger, LineHash, Recorded, Replay, Seq};
use crate::store::{self, Batch, Mark, Opened, Reason, Standing, Store, Table};

/// Schema of the tables below; another one has the store rebuilt.
const SCHEMA: u32 = 1;
const NODES: Table<String, Record> = Table::new("nodes");
const HANDOVERS: Table<u64, Handover> = Table::new("handovers");
/// Ledger lines by the node that they concern, as `NODE NUL SEQ`.
const LINES: Table<String, Line> = Table::new("lines");

/// A line of the ledger, as queries show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its number.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// Why an event could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not fit the book: a bug, or a ledger of another history.
    #[error("an event does not fit what the ledger says so far")]
    Misfit(#[from] book::Error),
    /// The ledger could not be written.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The store's folder can't be used.
    #[error("the store cannot be opened")]
    Store(#[from] store::Error),
}

impl Error {
    /// The error's code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Misfit(_) => "GB0230",
            Self::Ledger(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }
}

/// Ledger, book and store.
#[derive(Debug)]
pub struct Journal<D: Disk = FileDisk> {
    ledger: Ledger<Event, D>,
    book: Book,
    store: Option<Store>,
    /// The last write did not come off.
    write_failed: bool,
    /// What went ahead of a ledger that could not be written.
    ahead: Ahead,
}

/// What went ahead of the ledger.
#[derive(Debug, Default)]
struct Ahead {
    /// Closings whose lines wait in the ledger: asked for again in each tick, each waits once.
    waiting: BTreeSet<(Option<NodeName>, Closing)>,
    /// Closings that nobody will read of: no more lines may wait.
    forgotten: u64,
    /// Quarantines that are in force and not yet written; at most one for each node.
    quarantines: BTreeMap<NodeName, (Timestamp, String)>,
}

/// Kinds of writes that close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    Drain,
    Reserve,
    CreateGate,
    CloseGate,
    Mark,
}

/// What a closing line is about; two of one kind for one node say the same.
fn closing(event: &Event) -> Option<(Option<NodeName>, Closing)> {
    let Event::Intent { node, action, .. } = event else { return None };
    let kind = match action {
        Action::Slurm(slurm::Action::Drain { .. }) => Closing::Drain,
        Action::Slurm(slurm::Action::Reserve(_)) => Closing::Reserve,
        Action::Kubernetes(kubernetes::Action::CreateGate { .. }) => Closing::CreateGate,
        Action::Kubernetes(kubernetes::Action::CloseGate { .. }) => Closing::CloseGate,
        Action::Kubernetes(kubernetes::Action::Mark(_)) => Closing::Mark,
        Action::Slurm(slurm::Action::Undrain { .. } | slurm::Action::Unreserve { .. })
        | Action::Kubernetes(kubernetes::Action::OpenGate { .. } | kubernetes::Action::Evict { .. }) => {
            return None;
        }
    };
    Some((node.clone(), kind))
}

/// What opening found.
#[derive(Debug)]
pub struct Opening {
    /// What the ledger held.
    pub replay: Replay,
    /// Why the store was rebuilt, where it was.
    pub rebuilt: Option<Reason>,
}

impl Journal {
    /// Opens the state folder `dir`: replays the ledger into the book, and brings the store up to it.
    pub fn open(dir: &Path, now: Timestamp) -> Result<(Self, Opening), Error> {
        let mut book = Book::default();
        let mut misfit = None;
        let (ledger, replay) = Ledger::open(dir, now, |entry: ledger::Entry<Event>| {
            if misfit.is_none() {
                misfit = book.apply(entry.seq.0, entry.at, &entry.event).err();
            }
        })?;
        if let Some(misfit) = misfit {
            return Err(misfit.into());
        }
        let (mut store, opened) = Store::open(dir, SCHEMA, now)?;
        let mut rebuilt = match opened {
            Opened::Fresh | Opened::AsOf(_) => None,
            Opened::Rebuild { reason, .. } => Some(reason),
        };
        let reason = store.is_ahead_of(replay.last).or(catch_up(&mut store, dir)?);
        if let Some(reason) = reason {
            (store, _) = store.rebuild(reason.clone(), now)?;
            catch_up(&mut store, dir)?;
            rebuilt = Some(reason);
        }
        Ok((
            Self { ledger, book, store: Some(store), write_failed: false, ahead: Ahead::default() },
            Opening { replay, rebuilt },
        ))
    }
}

/// Applies the ledger's lines that the store does not have; gives the reason for a rebuild where it has others.
fn catch_up(store: &mut Store, dir: &Path) -> Result<Option<Reason>, Error> {
    const LINES_AT_ONCE: usize = 1_000;
    let mut book = Book::default();
    let mut batch = Batch::new();
    let mut waiting = 0;
    let mut last = None;
    for entry in ledger::Entries::<Event>::open(&ledger::path_in(dir))? {
        let entry = entry?;
        book.apply(entry.seq.0, entry.at, &entry.event)?;
        let mark = Mark { seq: entry.seq, hash: entry.hash };
        match store.standing(mark) {
            Standing::Differs => return Ok(Some(Reason::OtherLedger { at: entry.seq })),
            Standing::Known => continue,
            Standing::New => {}
        }
        put(&mut batch, &book, entry.seq, entry.at, &entry.event)?;
        last = Some(mark);
        waiting += 1;
        if waiting >= LINES_AT_ONCE {
            store.apply(mark, std::mem::take(&mut batch))?;
            (waiting, last) = (0, None);
        }
    }
    if let Some(mark) = last {
        store.apply(mark, batch)?;
    }
    Ok(None)
}

/// What one event changes in the tables.
fn put(batch: &mut Batch, book: &Book, seq: Seq, at: Timestamp, event: &Event) -> Result<(), store::Error> {
    let about = event.about();
    if let Some(handover) = about.handover.and_then(|id| book.handovers.get(&id)) {
        batch.put(&HANDOVERS, &handover.id.0, handover)?;
    }
    let node = about.node.or_else(|| Some(&book.handovers.get(&about.handover?)?.node));
    if let Some(node) = node {
        let line = Line { seq: seq.0, at, event: event.clone() };
        batch.put(&LINES, &line_key(node, seq.0), &line)?;
        match book.nodes.get(node) {
            Some(record) => batch.put(&NODES, &node.to_string(), record)?,
            None => batch.remove(&NODES, &node.to_string()),
        }
    }
    Ok(())
}

fn line_key(node: &NodeName, seq: u64) -> String {
    format!("{node}\0{seq:020}")
}

impl<D: Disk> Journal<D> {
    /// Opens a ledger on any disk, without a store: for the simulator.
    pub fn open_on(disk: D, now: Timestamp) -> Result<(Self, Replay), Error> {
        let mut book = Book::default();
        let mut misfit = None;
        let (ledger, replay) = Ledger::open_on(disk, now, |entry: ledger::Entry<Event>| {
            if misfit.is_none() {
                misfit = book.apply(entry.seq.0, entry.at, &entry.event).err();
            }
        })?;
        match misfit {
            Some(misfit) => Err(misfit.into()),
            None => {
                Ok((Self { ledger, book, store: None, write_failed: false, ahead: Ahead::default() }, replay))
            }
        }
    }

    /// What the ledger adds up to.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The last line's number and hash.
    pub fn last(&self) -> (Seq, LineHash) {
        self.ledger.last()
    }

    /// Records an event durably. On an error it did not happen.
    pub fn record(&mut self, at: Timestamp, event: &Event) -> Result<Seq, Error> {
        self.book.accepts(at, event)?;
        if self.ledger.is_poisoned() {
            self.ledger.recover()?;
        }
        self.write_quarantines()?;
        let appended = self.ledger.append(at, event);
        self.write_failed = appended.is_err();
        let seq = appended?;
        self.believe(seq, at, event)?;
        Ok(seq)
    }

    /// Records a quarantine. Where the ledger can't be written it is in force all the same, and written as soon as it can,
    /// before anything else is.
    pub fn quarantine(&mut self, at: Timestamp, node: &NodeName, why: &str) -> Result<(), Error> {
        let event = Event::Quarantined { node: node.clone(), why: why.to_owned() };
        match self.record(at, &event) {
            Ok(_) => Ok(()),
            Err(Error::Misfit(misfit)) => Err(Error::Misfit(misfit)),
            Err(error @ (Error::Ledger(_) | Error::Store(_))) => {
                tracing::error!(%error, %node, "the ledger cannot be written; the quarantine holds in memory");
                // The line's number means nothing to this event.
                self.book.apply(self.ledger.last().0.0, at, &event)?;
                self.ahead.quarantines.entry(node.clone()).or_insert((at, why.to_owned()));
                Ok(())
            }
        }
    }

    fn write_quarantines(&mut self) -> Result<(), Error> {
        while let Some((node, (at, why))) = self.ahead.quarantines.first_key_value() {
            let (at, event) = (*at, Event::Quarantined { node: node.clone(), why: why.clone() });
            let appended = self.ledger.append(at, &event);
            self.write_failed |= appended.is_err();
            self.believe(appended?, at, &event)?;
            self.ahead.quarantines.pop_first();
        }
        Ok(())
    }

    /// Records an intent that only closes: where the disk is full its line waits in memory, and `None` comes back. Where no
    /// more lines may wait the closing goes on without one.
    pub fn record_closing(&mut self, at: Timestamp, event: &Event) -> Result<Option<Seq>, Error> {
        match self.record(at, event) {
            Ok(seq) => Ok(Some(seq)),
            Err(Error::Misfit(misfit)) => Err(Error::Misfit(misfit)),
            Err(error @ (Error::Ledger(_) | Error::Store(_))) => {
                tracing::error!(%error, "the ledger cannot be written; closing goes on, openings wait");
                if self.ledger.waiting() == 0 {
                    self.ahead.waiting.clear();
                }
                let about = closing(event);
                if about.as_ref().is_some_and(|about| self.ahead.waiting.contains(about)) {
                    return Ok(None);
                }
                match self.ledger.append_best_effort(at, event) {
                    Ok(Recorded::Durable(seq)) => {
                        self.believe(seq, at, event)?;
                        Ok(Some(seq))
                    }
                    // Not applied to the book: an intent without an outcome changes nothing there.
                    Ok(Recorded::Waiting { .. }) => {
                        self.ahead.waiting.extend(about);
                        Ok(None)
                    }
                    Err(ledger::Error::Backlog { .. }) => {
                        self.ahead.forgotten = self.ahead.forgotten.saturating_add(1);
                        Ok(None)
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Can lines be written? Tries, where some wait or the last write failed.
    pub fn check(&mut self, at: Timestamp) -> Result<(), Error> {
        if self.ledger.is_poisoned() {
            self.ledger.recover()?;
        }
        self.ledger.flush()?;
        self.write_quarantines()?;
        if self.write_failed {
            let forgotten = self.ahead.forgotten;
            let mut text = "the ledger can be written again".to_owned();
            if forgotten > 0 {
                let _ = write!(
                    text,
                    "; {forgotten} closings went unrecorded meanwhile, because too many lines waited"
                );
            }
            self.record(at, &Event::Note { node: None, text })?;
            self.ahead.forgotten = 0;
        }
        Ok(())
    }

    fn believe(&mut self, seq: Seq, at: Timestamp, event: &Event) -> Result<(), Error> {
        self.book.apply(seq.0, at, event)?;
        let Some(store) = &mut self.store else { return Ok(()) };
        let mut batch = Batch::new();
        let (last, hash) = self.ledger.last();
        let kept = put(&mut batch, &self.book, seq, at, event)
            .and_then(|()| store.apply(Mark { seq: last, hash }, batch));
        if let Err(error) = kept {
            // The ledger is the authority: the store is caught up or rebuilt at the next start.
            tracing::error!(%error, "the store cannot be written; queries show less until the next start");
            self.store = None;
        }
        Ok(())
    }

    /// The newest `limit` lines that concern a node, oldest first.
    pub fn lines(&self, node: &NodeName, limit: usize) -> Result<Vec<Line>, store::Error> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let (from, to) = (line_key(node, 0), line_key(node, u64::MAX));
        let rows = store.rows_between(&LINES, Bound::Included(&from), Bound::Included(&to));
        let mut lines =
            rows.rev().take(limit).map(|row| row.map(|(_, line)| line)).collect::<Result<Vec<_>, _>>()?;
        lines.reverse();
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use gpu_bridge_core::ids::{Epoch, KubeNodeName};

    use super::*;
    use crate::ledger::SimDisk;

    #[test]
    fn a_full_disk_is_noticed_until_a_line_can_be_written_again() {
        let disk = SimDisk::new();
        let now = Timestamp::UNIX_EPOCH;
        let (mut journal, _) = Journal::open_on(disk.clone(), now).unwrap();
        journal.check(now).unwrap();
        disk.full_at(Some(0));
        let note = Event::Note { node: None, text: "x".to_owned() };
        assert!(journal.record(now, &note).is_err());
        assert!(journal.check(now).is_err(), "still full");
        disk.full_at(None);
        let before = journal.last().0;
        journal.check(now).unwrap();
        assert_eq!(journal.last().0, before.next(), "the try itself is a line");
        journal.check(now).unwrap();
        assert_eq!(journal.last().0, before.next(), "and no more are written");
    }

    fn close(node: &str, names: usize) -> Event {
        let closed = (0..names).map(|n| KubeNodeName::new(format!("{node}-{n:050}"))).collect();
        let action = match names {
            0 => kubernetes::Action::CloseGate { node: node.into() },
            _ => kubernetes::Action::CreateGate { closed },
        };
        Event::Intent {
            handover: None,
            node: Some(node.into()),
            epoch: Epoch(1),
            action: Action::Kubernetes(action),
        }
    }

    fn full() -> (SimDisk, Journal<SimDisk>) {
        let disk = SimDisk::new();
        let (journal, _) = Journal::open_on(disk.clone(), Timestamp::UNIX_EPOCH).unwrap();
        disk.full_at(Some(0));
        (disk, journal)
    }

    /// Each tick asked for the same closing again, until 10,000 lines waited and closing stopped.
    #[test]
    fn a_closing_that_is_asked_for_again_waits_once() {
        let (disk, mut journal) = full();
        let now = Timestamp::UNIX_EPOCH;
        for node in ["n1", "n2", "n1", "n1", "n2"] {
            assert_eq!(journal.record_closing(now, &close(node, 0)).unwrap(), None);
        }
        assert_eq!(journal.ledger.waiting(), 2);
        disk.full_at(None);
        journal.check(now).unwrap();
        assert_eq!(journal.ledger.waiting(), 0);
        disk.full_at(Some(disk.bytes().len()));
        journal.record_closing(now, &close("n1", 0)).unwrap();
        assert_eq!(journal.ledger.waiting(), 1, "it waits anew once it was written");
    }

    #[test]
    fn closing_goes_on_when_no_more_lines_may_wait() {
        let (disk, mut journal) = full();
        let now = Timestamp::UNIX_EPOCH;
        for n in 0..25 {
            let event = close(&format!("n{n}"), 14_000);
            assert_eq!(journal.record_closing(now, &event).unwrap(), None, "line {n}");
        }
        assert!(journal.ledger.waiting() < 25);
        disk.full_at(None);
        journal.check(now).unwrap();
        let text = String::from_utf8(disk.bytes()).unwrap();
        assert!(text.lines().next_back().unwrap().contains("closings went unrecorded"), "the gap is told");
    }

    #[test]
    fn a_quarantine_holds_in_memory_while_the_disk_is_full_and_is_written_before_anything_else() {
        let (disk, mut journal) = full();
        let now = Timestamp::UNIX_EPOCH;
        let node = NodeName::new("n1");
        journal.quarantine(now, &node, "both open").unwrap();
        assert_eq!(journal.book().record(&node).quarantine.as_deref(), Some("both open"));
        assert!(journal.record(now, &Event::QuarantineEnded { node: node.clone() }).is_err());
        assert!(journal.book().record(&node).quarantine.is_some(), "what can't be recorded does not end it");
        disk.full_at(None);
        journal.record(now, &Event::QuarantineEnded { node: node.clone() }).unwrap();
        let (again, _) = Journal::open_on(SimDisk::holding(&disk.bytes()), now).unwrap();
        assert_eq!(again.book(), journal.book());
        assert_eq!((again.last().0.0, again.book().record(&node).quarantine), (3, None));
    }
}
