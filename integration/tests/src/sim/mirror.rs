//! The ledger read by somebody else: lines as they reach the disk, replayed into a book of its own. The checker believes
//! this book, never the daemon's.

use gpu_bridge::ledger::{Disk as _, SimDisk};
use gpu_bridge_core::book::Book;
use gpu_bridge_core::event::{Action, Event};
use gpu_bridge_core::handover::State;
use jiff::Timestamp;
use serde::Deserialize;

/// What the ledger on the disk adds up to.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    pub(super) book: Book,
    read: u64,
    /// The newest line.
    last: Option<Event>,
    /// Handovers that ended open, and rolled back.
    pub(super) opened: u64,
    pub(super) rolled_back: u64,
    /// Lines that tell people something, for the story.
    pub(super) news: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    seq: u64,
    at: Timestamp,
    event: serde_json::Value,
}

impl Mirror {
    /// Reads on. An error is a ledger that cannot be what it should.
    pub(super) fn sync(&mut self, disk: &SimDisk) -> Result<(), String> {
        let length = disk.len().map_err(|error| error.to_string())?;
        if length <= self.read || disk.is_crashed() {
            return Ok(());
        }
        let mut bytes = vec![0; usize::try_from(length - self.read).unwrap_or(0)];
        let got = disk.read_at(self.read, &mut bytes).map_err(|error| error.to_string())?;
        bytes.truncate(got);
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let rest = bytes.split_off(end + 1);
            self.line(&bytes)?;
            self.read += bytes.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn line(&mut self, bytes: &[u8]) -> Result<(), String> {
        let line: Line =
            serde_json::from_slice(bytes).map_err(|error| format!("a ledger line is unreadable: {error}"))?;
        if line.seq == 1 {
            return Ok(());
        }
        let event: Event = serde_json::from_value(line.event)
            .map_err(|error| format!("ledger line {} is no event: {error}", line.seq))?;
        self.book
            .apply(line.seq, line.at, &event)
            .map_err(|error| format!("ledger line {} does not fit: {error}", line.seq))?;
        self.tell(&event);
        self.last = Some(event);
        Ok(())
    }

    fn tell(&mut self, event: &Event) {
        let text = match event {
            Event::Handover { id, event } => {
                let Some(handover) = self.book.handovers.get(id) else { return };
                self.opened += u64::from(handover.state == State::Open);
                self.rolled_back += u64::from(handover.state == State::RolledBack);
                format!("{id} {} to {}: {} -> {}", handover.node, handover.to, event.name(), handover.state)
            }
            Event::Planned(h) => {
                format!("{} {} to {} planned: {} ({:?})", h.id, h.node, h.to, h.why, h.purpose)
            }
            Event::Started { epoch, .. } => format!("daemon starts, epoch {epoch}"),
            Event::Stopped => "daemon stops".to_owned(),
            Event::Intent { action, .. } => format!("intent {action:?}"),
            Event::Outcome { outcome, .. } => format!("outcome {outcome:?}"),
            Event::Quarantined { node, why } => format!("quarantine {node}: {why}"),
            Event::QuarantineEnded { node } => format!("quarantine of {node} ends"),
            Event::ReleaseStarted { node, mode, .. } => format!("release of {node} begins ({mode:?})"),
            Event::Released { node } => format!("{node} released"),
            Event::Imported { node, owner, .. } => format!("{node} imported for {owner}"),
            Event::Found { node, found } => format!("{node} found {found:?}"),
            Event::DrainLifted { node } => format!("the drain found on {node} was lifted"),
            Event::SeenInQuarantine { node, .. } => format!("work on {node} is noted in quarantine"),
            Event::AlarmRaised { text, .. } => format!("alarm: {text}"),
            Event::TimeRanBackwards { domain, was, is } => {
                format!("time ran backwards in {domain}: {was}, then {is}")
            }
            Event::IdsSeen { .. }
            | Event::Counted { .. }
            | Event::Decision { .. }
            | Event::Refused { .. }
            | Event::AlarmCleared { .. }
            | Event::Note { .. } => return,
        };
        self.news.push(text);
    }

    /// Whether the newest line announces this effect.
    pub(super) fn announces(&self, action: &Action) -> bool {
        matches!(&self.last, Some(Event::Intent { action: announced, .. }) if announced == action)
    }
}
