//! Wall-clock time to instants and back, in an IANA zone whose data is built into the binary. It decides what a
//! wall-clock time means where clocks jump: in a gap, the first valid instant after it; in a fold, the first
//! occurrence. So every wall-clock time is exactly one instant, and the mapping never runs backwards. It does not know
//! cron, windows or the local zone of the machine.

use std::fmt;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

/// An IANA zone.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    tz: TimeZone,
}

impl Zone {
    /// Looks a zone up by its IANA name, such as `Europe/Berlin`. `None` if the built-in data does not have it.
    ///
    /// Only the data built into the binary is asked, so the same calendar means the same on every machine.
    pub fn get(name: &str) -> Option<Self> {
        let tz = TimeZoneDatabase::bundled().get(name).ok()?;
        let name = tz.iana_name()?.to_owned();
        Some(Self { name, tz })
    }

    /// All zones of the built-in data, for "did you mean".
    pub fn names() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.as_str().to_owned()).collect()
    }

    /// The IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a clock on the wall shows at `t`.
    pub fn wall_clock(&self, t: Timestamp) -> DateTime {
        self.tz.to_datetime(t)
    }

    /// The instant of a wall-clock time: in a gap the first instant after it, in a fold the first of the two.
    /// `None` only outside representable time.
    pub fn instant(&self, wall: DateTime) -> Option<Timestamp> {
        let ambiguous = self.tz.to_ambiguous_timestamp(wall);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => ambiguous.compatible().ok(),
            AmbiguousOffset::Gap { .. } => self.last_jump_until(ambiguous.compatible().ok()?),
        }
    }

    /// The latest wall-clock time whose instant is at or before `t`: what the clock shows, except in the second pass
    /// of a fold, where all of the fold lies behind us.
    pub(super) fn latest_wall(&self, t: Timestamp) -> DateTime {
        let wall = self.tz.to_datetime(t);
        match self.tz.to_ambiguous_timestamp(wall).offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Gap { .. } => wall,
            AmbiguousOffset::Fold { before, after } => {
                if self.tz.to_offset(t) != after {
                    return wall;
                }
                self.last_jump_until(t)
                    .and_then(|jump| before.to_datetime(jump).checked_sub(SignedDuration::from_nanos(1)).ok())
                    .unwrap_or(wall)
            }
        }
    }

    /// Whether the offset at `t` is another than it was `duration` before.
    pub(super) fn jumped_within(&self, duration: SignedDuration, t: Timestamp) -> bool {
        let before = t.saturating_sub(duration).unwrap_or(t);
        self.tz.to_offset(before) != self.tz.to_offset(t)
    }

    /// The last change of the offset at or before `t`.
    fn last_jump_until(&self, t: Timestamp) -> Option<Timestamp> {
        let just_after = t.checked_add(SignedDuration::from_nanos(1)).ok()?;
        self.tz.preceding(just_after).map(|change| change.timestamp()).find(|&change| {
            let before = change.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(change);
            self.tz.to_offset(before) != self.tz.to_offset(change)
        })
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
