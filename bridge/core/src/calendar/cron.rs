//! Five-field cron on naive wall-clock time. It decides which wall-clock minutes an expression names, exactly as
//! `man 5 crontab` defines it, plus `L`, `FRI#2` and `FRIL`. It does not know zones, instants or durations: what a
//! named minute means where clocks jump is `zone`'s business.
//!
//! The `cron` crate parses the fields after translation. Its own engine and dialect are not used, because it counts
//! weekdays from 1 = Sunday, takes AND for the two day fields, and fires twice or not at all where clocks jump.

use std::fmt;

use cron::{Schedule, TimeUnitSpec};
use jiff::civil::{Date, DateTime};

/// Months searched before we say that an expression names no further minute: one whole Gregorian cycle (400 years).
const SEARCH_MONTHS: u32 = 400 * 12;
/// Longest expression accepted, in bytes.
const LENGTH_MAX: usize = 256;
const WEEKDAYS_ALL: u8 = 0b111_1111;
const WEEKDAY_NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTH_NAMES: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// Why an expression is refused. Nothing is ever guessed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not five fields.
    #[error(
        "found {found} fields, expected five: minute, hour, day of month, month, day of week{hint}",
        hint = fields_hint(*.found)
    )]
    Fields {
        /// How many fields there were.
        found: usize,
    },
    /// `@daily` and its kin.
    #[error("{found} is not supported; write the five fields out")]
    Nickname {
        /// The nickname.
        found: String,
    },
    /// A field that is not in the dialect.
    #[error("{field}: {found:?} {reason}")]
    Field {
        /// Which field.
        field: Field,
        /// The item of the field's list that is wrong.
        found: String,
        /// What is wrong with it, and what to write instead.
        reason: String,
    },
    /// Well formed, but no date fits: 30 February.
    #[error("never opens: no date has that day of month in that month")]
    Never,
    /// Longer than 256 bytes.
    #[error("is {found} bytes long; at most {LENGTH_MAX} are accepted")]
    TooLong {
        /// Length in bytes.
        found: usize,
    },
}

fn fields_hint(found: usize) -> &'static str {
    if found > 5 { " (seconds and years are not part of this dialect)" } else { "" }
}

/// A field of the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// 0–59.
    Minute,
    /// 0–23.
    Hour,
    /// 1–31 or `L`.
    DayOfMonth,
    /// 1–12 or names.
    Month,
    /// 0–7 or names, `#n`, `L` suffix.
    DayOfWeek,
}

impl Field {
    const fn range(self) -> (u32, u32) {
        match self {
            Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::DayOfMonth => (1, 31),
            Self::Month => (1, 12),
            Self::DayOfWeek => (0, 7),
        }
    }

    const fn names(self) -> (&'static [&'static str], u32) {
        match self {
            Self::Minute | Self::Hour | Self::DayOfMonth => (&[], 0),
            Self::Month => (&MONTH_NAMES, 1),
            Self::DayOfWeek => (&WEEKDAY_NAMES, 0),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
        })
    }
}

/// A parsed expression. Equality is by what it names, not by how it was written.
#[derive(Debug, Clone)]
pub struct Cron {
    source: String,
    /// Bit 0 = minute 0.
    minutes: u64,
    /// Bit 0 = hour 0.
    hours: u32,
    /// Bit 1 = January.
    months: u32,
    /// Bit 1 = the first.
    days: u32,
    last_day: bool,
    /// Bit 0 = Sunday.
    weekdays: u8,
    /// Per n-th (index 0 = first) the weekdays meant by `#n`.
    nth_weekdays: [u8; 5],
    last_weekdays: u8,
    /// Both day fields restricted: a day matches when either does. Otherwise both must (a `*` always does).
    either_day: bool,
}

impl Cron {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`Error`], naming the field and the item, for everything outside the dialect and for expressions that no date
    /// ever matches.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > LENGTH_MAX {
            return Err(Error::TooLong { found: text.len() });
        }
        let parts: Vec<&str> = text.split_ascii_whitespace().collect();
        if let Some(first) = parts.first().filter(|part| part.starts_with('@')) {
            return Err(Error::Nickname { found: (*first).to_owned() });
        }
        let [minute, hour, day, month, weekday] = parts[..] else {
            return Err(Error::Fields { found: parts.len() });
        };
        let minute = plain_list(Field::Minute, minute)?;
        let hour = plain_list(Field::Hour, hour)?;
        let month_text = plain_list(Field::Month, month)?;
        let days = day_list(day)?;
        let weekdays = weekday_list(weekday)?;

        // Seconds 0; weekdays are the crate's 1 = Sunday; a day field that holds only L or # items is parsed as `*`
        // and emptied below.
        let translated = format!(
            "0 {minute} {hour} {} {month_text} {}",
            days.plain.as_deref().unwrap_or("*"),
            weekdays.translated()
        );
        let parsed: Schedule = translated.parse().map_err(|error: cron::error::Error| Error::Field {
            field: Field::Minute,
            found: text.to_owned(),
            reason: format!("is not understood: {error}"),
        })?;
        let mut cron = Self {
            source: parts.join(" "),
            minutes: parsed.minutes().iter().fold(0, |mask, minute| mask | 1 << minute),
            hours: mask(parsed.hours()),
            months: mask(parsed.months()),
            days: if days.plain.is_some() { mask(parsed.days_of_month()) } else { 0 },
            last_day: days.last,
            weekdays: if weekdays.plain == 0 {
                0
            } else {
                u8::try_from(mask(parsed.days_of_week()) >> 1).unwrap_or(WEEKDAYS_ALL)
            },
            nth_weekdays: weekdays.nth,
            last_weekdays: weekdays.last,
            either_day: !day.contains('*') && !weekday.contains('*'),
        };
        cron.source.shrink_to_fit();
        if cron.next_after(Date::constant(2000, 1, 1).to_datetime(jiff::civil::Time::midnight())).is_none() {
            return Err(Error::Never);
        }
        Ok(cron)
    }

    /// The expression as it was written, with single spaces.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The first named minute strictly after `after`. `None` only at the end of representable time.
    pub fn next_after(&self, after: DateTime) -> Option<DateTime> {
        let mut from = (after.date().day(), after.hour(), after.minute());
        let mut first = after.date().first_of_month();
        for _ in 0..=SEARCH_MONTHS {
            let mut days = self.days_in(first) & (u32::MAX << from.0);
            while days != 0 {
                let day = lowest(days.into());
                let (hour, minute) = if day == from.0 { (from.1, from.2) } else { (0, -1) };
                if let Some((hour, minute)) = self.time_after(hour, minute) {
                    return Some(Date::new(first.year(), first.month(), day).ok()?.at(hour, minute, 0, 0));
                }
                days &= days - 1;
            }
            first = first.checked_add(jiff::Span::new().months(1)).ok()?;
            from = (0, 0, -1);
        }
        None
    }

    /// The last named minute at or before `until`. `None` only at the beginning of representable time.
    pub fn latest_until(&self, until: DateTime) -> Option<DateTime> {
        let mut to = (until.date().day(), until.hour(), until.minute());
        let mut first = until.date().first_of_month();
        for _ in 0..=SEARCH_MONTHS {
            let mut days = self.days_in(first) & low_bits(to.0);
            while days != 0 {
                let day = highest(days.into());
                let (hour, minute) = if day == to.0 { (to.1, to.2) } else { (23, 59) };
                if let Some((hour, minute)) = self.time_until(hour, minute) {
                    return Some(Date::new(first.year(), first.month(), day).ok()?.at(hour, minute, 0, 0));
                }
                days &= !(1 << day);
            }
            first = first.checked_sub(jiff::Span::new().months(1)).ok()?;
            to = (31, 23, 59);
        }
        None
    }

    /// The matching days of a month as a mask, bit 1 = the first. `first` is the month's first day.
    fn days_in(&self, first: Date) -> u32 {
        if self.months & (1 << first.month()) == 0 {
            return 0;
        }
        let length = first.days_in_month();
        let all = low_bits(length) & !1;
        let mut by_day = self.days & all;
        if self.last_day {
            by_day |= 1 << length;
        }
        let mut by_weekday = if self.weekdays == WEEKDAYS_ALL { all } else { 0 };
        let first_weekday = first.weekday().to_sunday_zero_offset();
        for weekday in 0..7_i8 {
            // The first, and from it every seventh, such weekday of the month.
            let start = 1 + (weekday - first_weekday).rem_euclid(7);
            if self.weekdays & (1 << weekday) != 0 {
                by_weekday |= (0x1020_4081 << start) & all;
            }
            if self.last_weekdays & (1 << weekday) != 0 {
                by_weekday |= 1 << (length - (length - start) % 7);
            }
            for (start, weekdays) in (start..).step_by(7).zip(self.nth_weekdays) {
                if weekdays & (1 << weekday) != 0 && start <= length {
                    by_weekday |= 1 << start;
                }
            }
        }
        if self.either_day { by_day | by_weekday } else { by_day & by_weekday }
    }

    /// The first matching time of day after `hour:minute` (a minute of -1 stands before the hour).
    fn time_after(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        let later_minutes = u64::MAX.checked_shl(u32::from(minute.unsigned_abs()) + 1).unwrap_or(0);
        let later_minutes = if minute < 0 { u64::MAX } else { later_minutes };
        let minutes = self.minutes & later_minutes;
        if self.hours & (1 << hour) != 0 && minutes != 0 {
            return Some((hour, lowest(minutes)));
        }
        let hours = self.hours & (u32::MAX << (hour + 1));
        (hours != 0).then(|| (lowest(hours.into()), lowest(self.minutes)))
    }

    /// The last matching time of day at or before `hour:minute`.
    fn time_until(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        let minutes = self.minutes & (u64::MAX >> (63 - minute));
        if self.hours & (1 << hour) != 0 && minutes != 0 {
            return Some((hour, highest(minutes)));
        }
        let hours = self.hours & !(u32::MAX << hour);
        (hours != 0).then(|| (highest(hours.into()), highest(self.minutes)))
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        let key = |cron: &Self| {
            (
                (cron.minutes, cron.hours, cron.months, cron.days, cron.last_day),
                (cron.weekdays, cron.nth_weekdays, cron.last_weekdays, cron.either_day),
            )
        };
        key(self) == key(other)
    }
}

impl Eq for Cron {}

fn mask(unit: &impl TimeUnitSpec) -> u32 {
    unit.iter().fold(0, |mask, value| mask | 1 << value)
}

/// Bits 0 to `last`, both included.
fn low_bits(last: i8) -> u32 {
    u32::MAX >> (31 - last)
}

/// Position of the lowest bit of a mask that is not zero.
#[expect(clippy::cast_possible_truncation, reason = "a bit position is below 64")]
fn lowest(mask: u64) -> i8 {
    mask.trailing_zeros() as i8
}

/// Position of the highest bit of a mask that is not zero.
#[expect(clippy::cast_possible_truncation, reason = "a bit position is below 64")]
fn highest(mask: u64) -> i8 {
    63 - mask.leading_zeros() as i8
}

fn refuse(field: Field, found: &str, reason: impl Into<String>) -> Error {
    Error::Field { field, found: found.to_owned(), reason: reason.into() }
}

/// One item of a field's list: first and last value, and the step.
struct Item {
    first: u32,
    last: u32,
    step: u32,
}

/// `*`, `*/n`, `a`, `a-b`, `a-b/n`; names where the field has them.
fn item(field: Field, text: &str) -> Result<Item, Error> {
    let (min, max) = field.range();
    let (base, step) = match text.split_once('/') {
        None => (text, None),
        Some((base, step)) => {
            let step = step
                .parse::<u32>()
                .ok()
                .filter(|step| (1..=max - min + 1).contains(step) && text.bytes().all(|b| b != b'+'))
                .ok_or_else(|| refuse(field, text, format!("needs a step of 1 to {}", max - min + 1)))?;
            (base, Some(step))
        }
    };
    let (first, last) = if base == "*" {
        (min, max)
    } else if let Some((first, last)) = base.split_once('-') {
        (value(field, first, text)?, value(field, last, text)?)
    } else {
        let value = value(field, base, text)?;
        if step.is_some() {
            let advice = format!("has a step on a single value; write {base}-{max}/N");
            return Err(refuse(field, text, advice));
        }
        (value, value)
    };
    if first > last {
        let split = format!("runs backwards; split it in two, as in {first}-{max},{min}-{last}");
        return Err(refuse(field, text, split));
    }
    Ok(Item { first, last, step: step.unwrap_or(1) })
}

fn value(field: Field, text: &str, whole: &str) -> Result<u32, Error> {
    let (min, max) = field.range();
    let (names, offset) = field.names();
    if let Some(index) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(u32::try_from(index).unwrap_or(u32::MAX).saturating_add(offset));
    }
    if !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text
            .parse()
            .ok()
            .filter(|value| (min..=max).contains(value))
            .ok_or_else(|| refuse(field, whole, format!("is outside {min} to {max}")));
    }
    let mut expected = format!("is not understood; expected {min} to {max}");
    if let (Some(first), Some(last)) = (names.first(), names.last()) {
        expected = format!("{expected} or {first} to {last}");
    }
    match field {
        Field::DayOfMonth => expected.push_str(", or L for the last day (W and L-n are not supported)"),
        Field::DayOfWeek => expected.push_str(", FRI#2 for the second Friday, FRIL for the last"),
        Field::Minute | Field::Hour | Field::Month => {}
    }
    Err(refuse(field, whole, expected))
}

/// Splits a list and checks what holds for every field.
fn list(field: Field, text: &str) -> Result<Vec<&str>, Error> {
    let items: Vec<&str> = text.split(',').collect();
    if items.len() > 1 {
        if items.iter().any(|item| item.is_empty()) {
            return Err(refuse(field, text, "has an empty place in its list"));
        }
        if items.contains(&"*") {
            return Err(refuse(field, text, "has * in a list, where the rest means nothing"));
        }
        let is_day = matches!(field, Field::DayOfMonth | Field::DayOfWeek);
        if is_day && text.contains('*') {
            return Err(refuse(field, text, "has */n in a list, where crons disagree; write the days out"));
        }
    }
    Ok(items)
}

/// A field without specials, rewritten in plain numbers for the `cron` crate.
fn plain_list(field: Field, text: &str) -> Result<String, Error> {
    plain_items(field, &list(field, text)?)
}

fn plain_items(field: Field, items: &[&str]) -> Result<String, Error> {
    let items: Vec<String> = items
        .iter()
        .map(|text| item(field, text).map(|item| format!("{}-{}/{}", item.first, item.last, item.step)))
        .collect::<Result<_, _>>()?;
    Ok(items.join(","))
}

struct Days {
    plain: Option<String>,
    last: bool,
}

fn day_list(text: &str) -> Result<Days, Error> {
    let items = list(Field::DayOfMonth, text)?;
    let (last, plain): (Vec<&str>, Vec<&str>) =
        items.into_iter().partition(|item| item.eq_ignore_ascii_case("L"));
    let last = !last.is_empty();
    if plain.is_empty() {
        return Ok(Days { plain: None, last });
    }
    Ok(Days { plain: Some(plain_items(Field::DayOfMonth, &plain)?), last })
}

#[derive(Default)]
struct Weekdays {
    plain: u8,
    nth: [u8; 5],
    last: u8,
}

impl Weekdays {
    fn translated(&self) -> String {
        if self.plain == 0 {
            return "*".to_owned();
        }
        let days: Vec<String> =
            (0..7).filter(|day| self.plain & (1 << day) != 0).map(|day| (day + 1).to_string()).collect();
        days.join(",")
    }
}

fn weekday_list(text: &str) -> Result<Weekdays, Error> {
    let field = Field::DayOfWeek;
    let mut weekdays = Weekdays::default();
    for text in list(field, text)? {
        if let Some((weekday, nth)) = text.split_once('#') {
            let weekday = value(field, weekday, text)? % 7;
            let slot = nth
                .parse::<usize>()
                .ok()
                .filter(|_| nth.len() == 1)
                .and_then(|nth| weekdays.nth.get_mut(nth.checked_sub(1)?))
                .ok_or_else(|| refuse(field, text, "needs a number from 1 to 5 after #"))?;
            *slot |= 1 << weekday;
        } else if let Some(weekday) = text.strip_suffix(['L', 'l']) {
            weekdays.last |= 1 << (value(field, weekday, text)? % 7);
        } else {
            let item = item(field, text)?;
            for day in (item.first..=item.last).step_by(item.step as usize) {
                weekdays.plain |= 1 << (day % 7);
            }
        }
    }
    Ok(weekdays)
}
