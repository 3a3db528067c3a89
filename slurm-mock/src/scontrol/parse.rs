//! How scontrol's words are read: assignments, times, durations.

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

use crate::model::UNLIMITED;

/// `=`, `+=` or `-=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Set,
    Add,
    Remove,
}

/// `key=value`, the key in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) key: String,
    pub(super) op: Op,
    pub(super) value: String,
}

pub(super) fn assignment(word: &str) -> Result<Assignment, String> {
    let (key, value) =
        word.split_once('=').ok_or_else(|| format!("scontrol: error: Unknown parameter {word}"))?;
    let (key, op) = if let Some(key) = key.strip_suffix('+') {
        (key, Op::Add)
    } else if let Some(key) = key.strip_suffix('-') {
        (key, Op::Remove)
    } else {
        (key, Op::Set)
    };
    Ok(Assignment { key: key.to_ascii_lowercase(), op, value: value.to_owned() })
}

/// `now`, `now+60`, `now+5minutes`, `uts1796000000`, `2026-11-30T03:19[:41]` (UTC).
pub(super) fn time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let bad = || format!("Invalid time specification (pos=0): {text}");
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("now") {
        if rest.is_empty() {
            return Ok(now);
        }
        let amount = rest.strip_prefix('+').ok_or_else(bad)?;
        let digits = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit_s = match &amount[digits.len()..] {
            "" | "s" | "second" | "seconds" => 1,
            "m" | "minute" | "minutes" => 60,
            "h" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            _ => return Err(bad()),
        };
        let seconds = digits.parse::<i64>().ok().and_then(|n| n.checked_mul(unit_s)).ok_or_else(bad)?;
        return now.checked_add(SignedDuration::from_secs(seconds)).map_err(|_| bad());
    }
    if let Some(epoch) = lower.strip_prefix("uts") {
        let seconds = epoch.parse().map_err(|_| bad())?;
        return Timestamp::from_second(seconds).map_err(|_| bad());
    }
    let civil: DateTime = text.parse().map_err(|_| bad())?;
    TimeZone::UTC.to_timestamp(civil).map_err(|_| bad())
}

/// Minutes, `min:sec`, `h:min:sec`, `d-h[:min[:sec]]`, UNLIMITED.
pub(super) fn duration(text: &str) -> Result<SignedDuration, String> {
    let bad = || format!("scontrol: error: Invalid duration {text}.");
    if matches!(text.to_ascii_uppercase().as_str(), "UNLIMITED" | "INFINITE") {
        return Ok(UNLIMITED);
    }
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days), rest),
        None => (None, text),
    };
    let numbers: Option<Vec<i64>> =
        rest.split(':').map(|n| n.parse::<i64>().ok().filter(|n| (0..100_000_000).contains(n))).collect();
    let numbers = numbers.ok_or_else(bad)?;
    let seconds = match (days, numbers.as_slice()) {
        (None, [m]) => m * 60,
        (None, [m, s]) => m * 60 + s,
        (Some(_), [h]) => h * 3600,
        (Some(_), [h, m]) => h * 3600 + m * 60,
        (None | Some(_), [h, m, s]) => h * 3600 + m * 60 + s,
        _ => return Err(bad()),
    };
    let days = days.map_or(Some(0), |d| d.parse::<i64>().ok().filter(|d| (0..100_000).contains(d)));
    Ok(SignedDuration::from_secs(days.ok_or_else(bad)? * 86_400 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let now = Timestamp::from_second(1_796_000_000).unwrap();
        for (text, second) in [
            ("now", Some(1_796_000_000)),
            ("now+60", Some(1_796_000_060)),
            ("now+5minutes", Some(1_796_000_300)),
            ("uts1796000001", Some(1_796_000_001)),
            ("2026-11-30T03:19:41", Some(1_796_008_781)),
            ("2026-11-30T03:19", Some(1_796_008_740)),
            ("now-5", None),
            ("now+5fortnights", None),
            ("soon", None),
        ] {
            assert_eq!(time(text, now).ok().map(Timestamp::as_second), second, "{text}");
        }
    }

    #[test]
    fn durations_are_read() {
        for (text, seconds) in [
            ("90", Some(5400)),
            ("1:30", Some(90)),
            ("01:00:00", Some(3600)),
            ("1-0", Some(86_400)),
            ("2-01:30:15", Some(2 * 86_400 + 5415)),
            ("unlimited", Some(365 * 86_400)),
            ("x", None),
            ("", None),
        ] {
            let read = duration(text).ok();
            assert_eq!(read.map(|d| d.as_secs()), seconds, "{text}");
        }
    }
}
