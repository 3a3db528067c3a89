//! Slurm's way to write many node names in one word: `gpu[1-3,7],login`.

use std::collections::BTreeMap;

use crate::model::NodeName;

/// More names than this in one list is an error, not a wish.
const MAX_NAMES: usize = 100_000;

/// Reads a host list. `None` if brackets don't match, a range is none, or it names more than 100,000 nodes.
pub fn expand(text: &str) -> Option<Vec<NodeName>> {
    let mut names = Vec::new();
    for part in split_outside_brackets(text)? {
        match part.split_once('[') {
            None => names.push(NodeName::from(part)),
            Some((prefix, rest)) => {
                let (ranges, suffix) = rest.split_once(']')?;
                for range in ranges.split(',') {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let (from, to) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
                    if from > to || to - from >= MAX_NAMES.saturating_sub(names.len()) {
                        return None;
                    }
                    let width = first.len();
                    names.extend((from..=to).map(|n| format!("{prefix}{n:0width$}{suffix}").into()));
                }
            }
        }
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    Some(names)
}

/// Writes names as a host list. Runs of numbers with the same prefix and width become ranges.
pub fn compress<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> String {
    let mut plain = Vec::new();
    let mut groups: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
    for name in names {
        let text = name.as_str();
        let digits = text.len() - text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = text.split_at(text.len() - digits);
        match number.parse() {
            Ok(value) => {
                let width = if number.starts_with('0') { digits } else { 0 };
                groups.entry((prefix, width)).or_default().push(value);
            }
            Err(_) => plain.push(text.to_owned()),
        }
    }
    let mut parts = Vec::new();
    for ((prefix, width), mut numbers) in groups {
        numbers.sort_unstable();
        numbers.dedup();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                Some(_) | None => runs.push((number, number)),
            }
        }
        let show = |&(a, b): &(u64, u64)| {
            if a == b { format!("{a:0width$}") } else { format!("{a:0width$}-{b:0width$}") }
        };
        let shown: Vec<String> = runs.iter().map(show).collect();
        match runs.as_slice() {
            [(a, b)] if a == b => parts.push(format!("{prefix}{}", shown.concat())),
            _ => parts.push(format!("{prefix}[{}]", shown.join(","))),
        }
    }
    parts.extend(plain);
    parts.join(",")
}

fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (position, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (depth == 0 && parts.iter().all(|p| !p.is_empty())).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        for (text, names) in [
            ("gpu1", Some("gpu1")),
            ("gpu[1-3,7],login", Some("gpu1 gpu2 gpu3 gpu7 login")),
            ("n[08-10]", Some("n08 n09 n10")),
            ("gpu1,gpu2", Some("gpu1 gpu2")),
            ("", None),
            ("gpu[1-", None),
            ("gpu[3-1]", None),
            ("gpu]1[", None),
            ("gpu[0-4000000000]", None),
        ] {
            let expanded = expand(text).map(|l| l.iter().map(NodeName::as_str).collect::<Vec<_>>().join(" "));
            assert_eq!(expanded.as_deref(), names, "{text}");
        }
    }

    #[test]
    fn lists_are_written() {
        for (names, text) in [
            (vec!["gpu1"], "gpu1"),
            (vec!["gpu3", "gpu1", "gpu2", "gpu7"], "gpu[1-3,7]"),
            (vec!["n08", "n09", "n10"], "n[08-09],n10"),
            (vec!["login", "gpu1"], "gpu1,login"),
        ] {
            let names: Vec<NodeName> = names.into_iter().map(NodeName::from).collect();
            let mut shown: Vec<String> = compress(&names).split(',').map(str::to_owned).collect();
            let mut wanted: Vec<String> = text.split(',').map(str::to_owned).collect();
            shown.sort();
            wanted.sort();
            assert_eq!(shown, wanted);
        }
    }
}
