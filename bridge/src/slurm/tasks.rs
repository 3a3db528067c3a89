//! Counts the tasks of a pending array from Slurm's text for them (`1-100%5`). Decides nothing.

/// How many tasks a text such as `1-3,7,20-40:10%2` stands for; what comes after `%` is only how many may run at once.
/// `None` where there are none, where Slurm cut the list short (`1,3,5...`), or where it cannot be read.
pub(super) fn count(text: &str) -> Option<u32> {
    let text = text.strip_prefix('[').unwrap_or(text);
    let text = text.strip_suffix(']').unwrap_or(text);
    let (list, at_once) = text.split_once('%').unwrap_or((text, "1"));
    number(at_once)?;
    list.split(',').try_fold(0_u32, |sum, range| sum.checked_add(range_count(range)?))
}

fn range_count(range: &str) -> Option<u32> {
    let (range, step) = range.split_once(':').unwrap_or((range, "1"));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last, step) = (number(first)?, number(last)?, number(step)?);
    last.checked_sub(first)?.checked_div(step)?.checked_add(1)
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn tasks_are_counted_and_nothing_is_guessed() {
        for (text, count) in [
            ("5-7%2", Some(3)),
            ("1-100%5", Some(100)),
            ("[1-100%5]", Some(100)),
            ("0", Some(1)),
            ("1,3,10-12", Some(5)),
            ("0-9:4", Some(3)),
            ("", None),
            ("1,3,5...", None),
            ("1,3,...", None),
            ("7-5", None),
            ("1-5:0", None),
            ("0-4294967295", None),
            ("+1", None),
            ("1%...", None),
            ("1,3,...%2", None),
        ] {
            assert_eq!(super::count(text), count, "{text:?}");
        }
    }
}
