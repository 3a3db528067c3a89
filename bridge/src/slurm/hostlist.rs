//! Slurm's host lists (`gpu[1-4,7],login`) as sets of node names. Decides nothing; a list that cannot be read in full is
//! an error, never a shorter set.

use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::ids::SlurmNodeName;

/// The most names one list may stand for. Slurm itself stops at 64k by default.
const NAMES_MAX: usize = 131_072;

/// Why a list could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host list {list:?}: {why}")]
pub(super) struct Error {
    /// The list, as found.
    pub(super) list: String,
    /// What is wrong with it.
    pub(super) why: &'static str,
}

/// Every name the list stands for. Empty, `(null)` and `None` stand for none.
pub(super) fn expand(list: &str) -> Result<NodeSet, Error> {
    let bad = |why| Error { list: list.chars().take(200).collect(), why };
    let mut names = Vec::new();
    if matches!(list, "" | "(null)" | "None") {
        return Ok(NodeSet::default());
    }
    for word in split_outside(list, '[', ']').ok_or_else(|| bad("brackets do not match"))? {
        if word.is_empty() {
            return Err(bad("an empty name"));
        }
        for name in expand_word(word).map_err(bad)? {
            if names.len() >= NAMES_MAX {
                return Err(bad("stands for too many names"));
            }
            names.push(SlurmNodeName::new(name));
        }
    }
    Ok(names.into())
}

/// Splits at commas that stand outside of `open`…`close`; `None` where these do not match or are nested.
pub(super) fn split_outside(text: &str, open: char, close: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in text.char_indices() {
        if c == open || c == close {
            if inside == (c == open) {
                return None;
            }
            inside = c == open;
        } else if c == ',' && !inside {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    (!inside).then_some(parts)
}

/// `cn[01-02]x[1,3]` → the four names.
fn expand_word(word: &str) -> Result<Vec<String>, &'static str> {
    let mut names = vec![String::new()];
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').ok_or("brackets do not match")?;
        let mut numbers = Vec::new();
        for range in inside.split(',') {
            expand_range(range, &mut numbers)?;
        }
        if names.len().saturating_mul(numbers.len()) > NAMES_MAX {
            return Err("stands for too many names");
        }
        names =
            names.iter().flat_map(|name| numbers.iter().map(move |n| format!("{name}{before}{n}"))).collect();
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// `08-11` → `08`, `09`, `10`, `11`.
fn expand_range(range: &str, numbers: &mut Vec<String>) -> Result<(), &'static str> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return Err("a range is not made of numbers");
    }
    let width = first.len();
    let first: usize = first.parse().map_err(|_| "a number is too big")?;
    let last: usize = last.parse().map_err(|_| "a number is too big")?;
    if last < first {
        return Err("a range runs backwards");
    }
    if last - first >= NAMES_MAX || numbers.len() + (last - first) >= NAMES_MAX {
        return Err("stands for too many names");
    }
    numbers.extend((first..=last).map(|n| format!("{n:0width$}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_to_exactly_their_names() {
        for (list, names) in [
            ("", vec![]),
            ("(null)", vec![]),
            ("gpu1", vec!["gpu1"]),
            ("gpu[1-2]", vec!["gpu1", "gpu2"]),
            ("gpu[3-4,7],login", vec!["gpu3", "gpu4", "gpu7", "login"]),
            ("n[008-011]", vec!["n008", "n009", "n010", "n011"]),
            ("r[1-2]n[1,3]-ib", vec!["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
            ("a-b", vec!["a-b"]),
        ] {
            let expected: NodeSet = names.into_iter().map(SlurmNodeName::from).collect();
            assert_eq!(expand(list), Ok(expected), "{list:?}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_in_full_is_an_error() {
        for list in [
            ",",
            "gpu1,",
            "gpu[",
            "gpu]1",
            "gpu[1-2",
            "gpu[[1]]",
            "gpu[a-b]",
            "gpu[]",
            "gpu[2-1]",
            "gpu[1-]",
            "gpu[1-999999999]",
            "gpu[0-999]x[0-999]",
            "gpu[99999999999999999999999]",
        ] {
            assert!(expand(list).is_err(), "{list:?}");
        }
    }
}
