//! Windows and blackouts as people enter them, and the checks that turn them into something that can be evaluated.
//! It decides what is a valid window; it does not know files, other windows or the present time.

use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};

use super::cron::{self, Cron};
use super::rule::{Interval, Rule, Starts};
use super::zone::Zone;
use crate::ids::{PoolName, Ticket, WindowName};

/// Longest wall-clock length of a window or blackout, and longest lead and cool-down: 366 days.
pub const DURATION_MAX: SignedDuration = SignedDuration::from_hours(366 * 24);
/// Most nodes a window may ask for.
pub const NODES_MAX: u32 = 65_536;
/// Most `except` dates.
pub const EXCEPT_MAX: usize = 4_096;

/// When something is on, as entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// Starts by an expression; ends at wall-clock start + duration.
    Cron {
        /// Five fields, see [`Cron`].
        cron: String,
        /// Wall-clock length.
        duration: SignedDuration,
    },
    /// One absolute interval in wall-clock time.
    Once {
        /// First moment.
        start: DateTime,
        /// First moment after it.
        end: DateTime,
    },
}

/// How windows of one pool add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// The largest of these windows counts.
    #[default]
    Max,
    /// This window counts on top of all others.
    Add,
}

/// A window as entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpec {
    /// Unique in the calendar.
    pub name: WindowName,
    /// The pool that must have the nodes ready.
    pub pool: PoolName,
    /// How many nodes, 1 to 65,536.
    pub nodes: u32,
    /// When.
    pub when: When,
    /// IANA zone of all dates and wall-clock times here.
    pub zone: String,
    /// How long before the start nodes may be taken (elapsed time).
    pub lead: SignedDuration,
    /// How long after the end nodes stay (elapsed time).
    pub cooldown: SignedDuration,
    /// Who answers for it.
    pub owner: String,
    /// Ticket; a must for one-off windows.
    pub ticket: Option<Ticket>,
    /// Last date on which it opens. What opened then runs to its end.
    pub expires: Option<Date>,
    /// How it adds up with others of its pool.
    pub overlap: Overlap,
    /// Dates on which it does not open.
    pub except: Vec<Date>,
}

/// A freeze period as entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlackoutSpec {
    /// Unique in the calendar.
    pub name: String,
    /// When.
    pub when: When,
    /// IANA zone.
    pub zone: String,
    /// Shown to people whose windows it beats.
    pub reason: String,
}

/// What is wrong with a window or blackout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A name, pool, owner or reason without text.
    #[error("{field} is empty; give it a text")]
    Empty {
        /// Which.
        field: &'static str,
    },
    /// The expression is refused.
    #[error("cron: {0}")]
    Cron(#[from] cron::Error),
    /// Not in the built-in zone data.
    #[error("zone {0:?} is unknown; use an IANA name such as Europe/Berlin")]
    Zone(String),
    /// Zero or negative length.
    #[error("duration {0:#} is not positive; a window must be on for some time")]
    NotPositive(SignedDuration),
    /// End not after start.
    #[error("end {end} is not after start {start}")]
    EndBeforeStart {
        /// As entered.
        start: DateTime,
        /// As entered.
        end: DateTime,
    },
    /// A negative lead or cool-down.
    #[error("{field} {found:#} is negative; use zero or more")]
    Negative {
        /// Which.
        field: &'static str,
        /// As entered.
        found: SignedDuration,
    },
    /// Longer than 366 days.
    #[error("{field} {found:#} is longer than 366 days")]
    TooLong {
        /// Which.
        field: &'static str,
        /// As entered.
        found: SignedDuration,
    },
    /// Zero nodes or too many.
    #[error("nodes is {0}; expected 1 to {NODES_MAX}")]
    Nodes(u32),
    /// A one-off without ticket.
    #[error("a one-off window needs a ticket")]
    NoTicket,
    /// Expires before it ever opens, or a one-off that ends after its expiry.
    #[error("expires {0} is before the window {1}")]
    Expires(Date, &'static str),
    /// More than 4,096 exceptions.
    #[error("except has {0} dates; at most {EXCEPT_MAX}")]
    TooManyExcepts(usize),
}

impl Error {
    /// The key of the file that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Empty { field } | Self::Negative { field, .. } | Self::TooLong { field, .. } => field,
            Self::Cron(_) => "cron",
            Self::Zone(_) => "zone",
            Self::NotPositive(_) => "duration",
            Self::EndBeforeStart { .. } => "end",
            Self::Nodes(_) => "nodes",
            Self::NoTicket => "ticket",
            Self::Expires(..) => "expires",
            Self::TooManyExcepts(_) => "except",
        }
    }
}

/// Where a window stands at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing to do.
    Off,
    /// Nodes may be taken, the window is not on yet.
    Lead,
    /// On: the nodes must be ready.
    On,
    /// Ended; its nodes stay a while.
    CoolDown,
}

/// One time a window is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence<'a> {
    /// Of which window.
    pub window: &'a Window,
    /// From when nodes may be taken.
    pub lead_start: Timestamp,
    /// First instant.
    pub start: Timestamp,
    /// First instant after it.
    pub end: Timestamp,
    /// Until when the nodes stay.
    pub cooldown_end: Timestamp,
}

/// A checked window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    spec: WindowSpec,
    rule: Rule,
}

impl Window {
    /// Checks a window.
    ///
    /// # Errors
    /// Everything that is wrong with it, not only the first thing.
    pub fn new(mut spec: WindowSpec) -> Result<Self, Vec<Error>> {
        let mut errors = Vec::new();
        for (field, text) in
            [("name", spec.name.as_str()), ("pool", spec.pool.as_str()), ("owner", &spec.owner)]
        {
            if text.trim().is_empty() {
                errors.push(Error::Empty { field });
            }
        }
        if !(1..=NODES_MAX).contains(&spec.nodes) {
            errors.push(Error::Nodes(spec.nodes));
        }
        for (field, found) in [("lead", spec.lead), ("cooldown", spec.cooldown)] {
            if found.is_negative() {
                errors.push(Error::Negative { field, found });
            } else if found > DURATION_MAX {
                errors.push(Error::TooLong { field, found });
            }
        }
        if spec.except.len() > EXCEPT_MAX {
            errors.push(Error::TooManyExcepts(spec.except.len()));
        }
        spec.except.sort_unstable();
        spec.except.dedup();
        if let When::Once { start, end } = spec.when {
            if spec.ticket.as_ref().is_none_or(|ticket| ticket.as_str().trim().is_empty()) {
                errors.push(Error::NoTicket);
            }
            if let Some(expires) = spec.expires {
                if expires < start.date() {
                    errors.push(Error::Expires(expires, "starts"));
                } else if expires < end.date() {
                    errors.push(Error::Expires(expires, "ends"));
                }
            }
        }
        let mut rule = rule(&spec.when, &spec.zone, &mut errors);
        if let Some(rule) = &mut rule {
            rule.except.clone_from(&spec.except);
            rule.expires = spec.expires;
        }
        match rule {
            Some(rule) if errors.is_empty() => Ok(Self { spec, rule }),
            Some(_) | None => Err(errors),
        }
    }

    /// As entered; `except` sorted and without doubles.
    pub fn spec(&self) -> &WindowSpec {
        &self.spec
    }

    /// Unique in its calendar.
    pub fn name(&self) -> &WindowName {
        &self.spec.name
    }

    /// The zone.
    pub fn zone(&self) -> &Zone {
        &self.rule.zone
    }

    /// Where it stands at `t`.
    pub fn phase_at(&self, t: Timestamp) -> Phase {
        let last = self.rule.started_by(t);
        if last.is_some_and(|last| last.end > t) {
            return Phase::On;
        }
        let next = self.rule.starting_after(t);
        if next.is_some_and(|next| self.occurrence(next).lead_start <= t) {
            return Phase::Lead;
        }
        if last.is_some_and(|last| self.occurrence(last).cooldown_end > t) {
            return Phase::CoolDown;
        }
        Phase::Off
    }

    /// The occurrence that is on at `t`; of several that overlap, the one that started last.
    pub fn on_at(&self, t: Timestamp) -> Option<Occurrence<'_>> {
        self.rule.started_by(t).filter(|last| last.end > t).map(|interval| self.occurrence(interval))
    }

    /// The occurrence that started last at or before `t`, whether it is on or over.
    pub fn last_started(&self, t: Timestamp) -> Option<Occurrence<'_>> {
        self.rule.started_by(t).map(|interval| self.occurrence(interval))
    }

    /// The first lead start, start, end or cool-down end after `t`: before it, [`Window::phase_at`] does not change.
    pub fn next_change_after(&self, t: Timestamp) -> Option<Timestamp> {
        let lead = later(t, self.spec.lead);
        let cooldown = later(t, -self.spec.cooldown);
        // The first after `t` is also the first after `lead`, unless it lies between them; so with ends.
        let next = self.rule.starting_after(t);
        let next_lead = next.filter(|next| next.start > lead).or_else(|| self.rule.starting_after(lead));
        let cooldown_end = self.rule.ending_after(cooldown);
        let end = cooldown_end.filter(|end| *end > t).or_else(|| self.rule.ending_after(t));
        [
            next_lead.map(|next| self.occurrence(next).lead_start),
            next.map(|next| next.start),
            end,
            cooldown_end.map(|end| later(end, self.spec.cooldown)),
        ]
        .into_iter()
        .flatten()
        .filter(|&change| change > t)
        .min()
    }

    /// Occurrences in order of start, from the one that is on or cools down at `from`. Lazy and possibly endless: take
    /// what you need.
    pub fn occurrences(&self, from: Timestamp) -> impl Iterator<Item = Occurrence<'_>> {
        self.rule.from(later(from, -self.spec.cooldown)).map(|interval| self.occurrence(interval))
    }

    /// Whether it will never be on or cool down after `t`.
    pub fn is_over(&self, t: Timestamp) -> bool {
        self.rule.is_over(later(t, -self.spec.cooldown))
    }

    fn occurrence(&self, Interval { start, end }: Interval) -> Occurrence<'_> {
        Occurrence {
            window: self,
            lead_start: later(start, -self.spec.lead),
            start,
            end,
            cooldown_end: later(end, self.spec.cooldown),
        }
    }
}

/// A checked freeze period: while it is on, nothing is taken; recalls and give-backs go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blackout {
    spec: BlackoutSpec,
    rule: Rule,
}

impl Blackout {
    /// Checks a blackout.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(spec: BlackoutSpec) -> Result<Self, Vec<Error>> {
        let mut errors = Vec::new();
        for (field, text) in [("name", &spec.name), ("reason", &spec.reason)] {
            if text.trim().is_empty() {
                errors.push(Error::Empty { field });
            }
        }
        match rule(&spec.when, &spec.zone, &mut errors) {
            Some(rule) if errors.is_empty() => Ok(Self { spec, rule }),
            Some(_) | None => Err(errors),
        }
    }

    /// As entered.
    pub fn spec(&self) -> &BlackoutSpec {
        &self.spec
    }

    /// Until when it is on, if it is on at `t`.
    pub fn on_at(&self, t: Timestamp) -> Option<Timestamp> {
        self.rule.started_by(t).map(|last| last.end).filter(|&end| end > t)
    }

    /// The next start or end after `t`.
    pub fn next_change_after(&self, t: Timestamp) -> Option<Timestamp> {
        let start = self.rule.starting_after(t).map(|next| next.start);
        [start, self.rule.ending_after(t)].into_iter().flatten().min()
    }

    /// Whether it will never be on after `t`.
    pub fn is_over(&self, t: Timestamp) -> bool {
        self.rule.is_over(t)
    }
}

/// `t` moved by `by`, held inside representable time.
fn later(t: Timestamp, by: SignedDuration) -> Timestamp {
    t.saturating_add(by).unwrap_or(t)
}

fn rule(when: &When, zone: &str, errors: &mut Vec<Error>) -> Option<Rule> {
    let found = Zone::get(zone);
    if found.is_none() {
        errors.push(Error::Zone(zone.to_owned()));
    }
    let (starts, duration) = match when {
        When::Cron { cron, duration } => {
            let cron = Cron::parse(cron).map_err(|error| errors.push(error.into())).ok();
            if !duration.is_positive() {
                errors.push(Error::NotPositive(*duration));
            }
            (cron.map(Starts::Cron), *duration)
        }
        When::Once { start, end } => {
            if end <= start {
                errors.push(Error::EndBeforeStart { start: *start, end: *end });
            }
            (Some(Starts::Once(*start)), end.duration_since(*start))
        }
    };
    if duration > DURATION_MAX {
        errors.push(Error::TooLong { field: "duration", found: duration });
    }
    Some(Rule { starts: starts?, duration, zone: found?, except: Vec::new(), expires: None })
}
