//! When something happens: an expression or one absolute interval, in a zone, with exceptions and an expiry. It
//! decides which intervals exist and finds the ones around an instant by single searches, never by replaying. It does
//! not know pools, nodes, leads or cool-downs.

use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};

use super::cron::Cron;
use super::zone::Zone;

/// The starts of a rule, in wall-clock time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Starts {
    /// Again and again.
    Cron(Cron),
    /// Once.
    Once(DateTime),
}

/// Intervals in wall-clock time of a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) starts: Starts,
    /// Wall-clock length; positive.
    pub(super) duration: SignedDuration,
    pub(super) zone: Zone,
    /// Dates on which nothing starts; sorted.
    pub(super) except: Vec<Date>,
    /// The last date on which something starts.
    pub(super) expires: Option<Date>,
}

/// One interval, `start` included, `end` not. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

impl Rule {
    /// The interval that started last at or before `t`. Since later starts end later, something is on at `t` exactly
    /// if this interval has not ended.
    pub(super) fn started_by(&self, t: Timestamp) -> Option<Interval> {
        self.interval(self.start_until(self.zone.latest_wall(t))?)
    }

    /// The next interval to start after `t`.
    pub(super) fn starting_after(&self, t: Timestamp) -> Option<Interval> {
        let wall = self.start_after(self.zone.latest_wall(t))?;
        let interval = self.interval(wall)?;
        if self.zone.wall_clock(interval.start) == wall {
            return Some(interval);
        }
        // Several starts inside one gap are one instant: the last of them is the one that counts.
        self.started_by(interval.start)
    }

    /// The first end after `t` (of an interval running at `t`, else of the next).
    pub(super) fn ending_after(&self, t: Timestamp) -> Option<Timestamp> {
        let wall = self.zone.latest_wall(t);
        let after = wall.checked_sub(self.duration).unwrap_or(DateTime::MIN);
        let first = self.start_after(after);
        if first.is_none_or(|first| first > wall) && self.zone.jumped_within(self.duration, t) {
            // Only an interval that lay wholly in a gap can still run: it ends later than its wall clock says.
            if let Some(last) = self.started_by(t).filter(|last| last.end > t) {
                return Some(last.end);
            }
        }
        Some(self.interval(first?)?.end)
    }

    /// All intervals, so also one that runs at `from`, in order of start, each instant once.
    pub(super) fn from(&self, from: Timestamp) -> impl Iterator<Item = Interval> {
        let first = self.started_by(from).filter(|running| running.end > from);
        std::iter::successors(first.or_else(|| self.starting_after(from)), |last| {
            self.starting_after(last.start)
        })
    }

    /// Whether nothing starts or runs after `t` any more.
    pub(super) fn is_over(&self, t: Timestamp) -> bool {
        self.ending_after(t).is_none()
    }

    fn interval(&self, start: DateTime) -> Option<Interval> {
        let end = self.zone.instant(start.checked_add(self.duration).ok()?)?;
        let start = self.zone.instant(start)?;
        // Wholly inside a gap: open for its length all the same, right after the gap.
        let end = if end > start { end } else { start.checked_add(self.duration).ok()? };
        Some(Interval { start, end })
    }

    fn start_after(&self, mut after: DateTime) -> Option<DateTime> {
        // Each round but the last skips one excepted date.
        for _ in 0..=self.except.len() {
            let start = match &self.starts {
                Starts::Cron(cron) => cron.next_after(after)?,
                Starts::Once(start) => Some(*start).filter(|start| *start > after)?,
            };
            if self.expires.is_some_and(|expires| start.date() > expires) {
                return None;
            }
            if self.except.binary_search(&start.date()).is_err() {
                return Some(start);
            }
            after = end_of(start.date());
        }
        None
    }

    fn start_until(&self, mut until: DateTime) -> Option<DateTime> {
        if let Some(expires) = self.expires {
            until = until.min(end_of(expires));
        }
        for _ in 0..=self.except.len() {
            let start = match &self.starts {
                Starts::Cron(cron) => cron.latest_until(until)?,
                Starts::Once(start) => Some(*start).filter(|start| *start <= until)?,
            };
            if self.except.binary_search(&start.date()).is_err() {
                return Some(start);
            }
            until = end_of(start.date().yesterday().ok()?);
        }
        None
    }
}

fn end_of(date: Date) -> DateTime {
    date.at(23, 59, 59, 999_999_999)
}
