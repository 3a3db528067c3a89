//! Durations as people write them: `90s`, `30m`, `1h30m`, `2d`. A day is 24 hours. Negative ones are refused here, so
//! that nobody downstream meets one.

use jiff::SignedDuration;

/// What a duration looks like, for messages.
pub(super) const EXPECTED: &str = "a duration such as \"90s\", \"30m\", \"1h30m\" or \"2d\"";

/// Reads a duration. `None` if it is not one; negative ones are not.
pub(super) fn parse(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim();
    let mut total = SignedDuration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "ms" => SignedDuration::from_millis(1),
            "s" => SignedDuration::from_secs(1),
            "m" | "min" => SignedDuration::from_mins(1),
            "h" => SignedDuration::from_hours(1),
            "d" => SignedDuration::from_hours(24),
            "w" => SignedDuration::from_hours(7 * 24),
            _ => return None,
        };
        total = total.checked_add(unit.checked_mul(number.parse().ok()?)?)?;
        rest = after.trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            ("90s", Some(90)),
            ("30m", Some(1_800)),
            ("1h30m", Some(5_400)),
            ("1h 30m", Some(5_400)),
            ("2d", Some(172_800)),
            ("1w", Some(604_800)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("-5m", None),
            ("1.5h", None),
            ("h", None),
            ("5 m", None),
            ("5M", None),
            ("5y", None),
            ("99999999999999999999s", None),
            ("9223372036854775807w", None),
            ("5mé", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse(text), seconds.map(SignedDuration::from_secs), "{text:?}");
        }
        assert_eq!(parse("200ms"), Some(SignedDuration::from_millis(200)));
    }
}
