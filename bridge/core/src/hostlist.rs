//! Slurm's host lists, `gpu[1-3,07-10]-ib0,login1`, in both directions. It decides which names a list stands for and
//! how names are written shortest; it does not know which of them exist. Work is bounded: a list names at most 65,536
//! hosts, and nothing is built before that was counted.

use std::collections::{BTreeMap, BTreeSet};

/// Most names one list may stand for.
pub const NAMES_MAX: usize = 65_536;
/// Longest list accepted, in bytes.
pub const LENGTH_MAX: usize = 1 << 20;
/// Most digits of a number in brackets.
const DIGITS_MAX: usize = 18;
/// Most numbers of a name that are tried for brackets.
const NUMBERS_MAX: usize = 4;

/// Why a host list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No name between two commas, or an empty list.
    #[error("has an empty name at byte {at}")]
    EmptyName {
        /// Where.
        at: usize,
    },
    /// `[` without `]` or the other way round, or one inside another.
    #[error("has unbalanced brackets at byte {at}")]
    Brackets {
        /// Where.
        at: usize,
    },
    /// Something in brackets that is not a number or a range.
    #[error("{found:?} in brackets is not a number or a range such as 1-4")]
    Range {
        /// What was found.
        found: String,
    },
    /// A range that runs backwards.
    #[error("range {found:?} runs backwards")]
    Backwards {
        /// What was found.
        found: String,
    },
    /// A character no host name has.
    #[error("has {found:?} at byte {at}, which no host name has")]
    Character {
        /// What was found.
        found: char,
        /// Where.
        at: usize,
    },
    /// More than 65,536 names.
    #[error("stands for more than {NAMES_MAX} names")]
    TooMany,
    /// Longer than a mebibyte.
    #[error("is {0} bytes long; at most {LENGTH_MAX} are accepted")]
    TooLong(usize),
}

/// A run of numbers, with as many digits as the first was written with.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

/// A piece of a name: text as it stands, or numbers from brackets.
enum Piece<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// The names a list stands for, in its order, doubles kept. An empty text is an empty list.
///
/// # Errors
/// [`Error`], for anything that Slurm would not read either, and for lists beyond the bounds.
pub fn expand(list: &str) -> Result<Vec<String>, Error> {
    if list.len() > LENGTH_MAX {
        return Err(Error::TooLong(list.len()));
    }
    let mut names = Vec::new();
    if list.is_empty() {
        return Ok(names);
    }
    for (at, part) in split(list)? {
        if part.is_empty() {
            return Err(Error::EmptyName { at });
        }
        let pieces = pieces(part, at)?;
        let count = pieces.iter().try_fold(1_u64, |count, piece| match piece {
            Piece::Text(_) => Some(count),
            Piece::Numbers(ranges) => {
                let numbers = ranges.iter().try_fold(0_u64, |sum, range| {
                    sum.checked_add((range.last - range.first).checked_add(1)?)
                })?;
                count.checked_mul(numbers)
            }
        });
        let room = NAMES_MAX - names.len();
        if count.and_then(|count| usize::try_from(count).ok()).is_none_or(|count| count > room) {
            return Err(Error::TooMany);
        }
        let mut prefixes = vec![String::new()];
        for piece in &pieces {
            prefixes = match piece {
                Piece::Text(text) => prefixes.into_iter().map(|prefix| prefix + text).collect(),
                Piece::Numbers(ranges) => {
                    let numbers = || ranges.iter().flat_map(|r| (r.first..=r.last).map(|n| (n, r.width)));
                    prefixes
                        .iter()
                        .flat_map(|prefix| numbers().map(move |(n, width)| format!("{prefix}{n:0width$}")))
                        .collect()
                }
            };
        }
        names.append(&mut prefixes);
    }
    Ok(names)
}

/// A short way to write `names`: doubles left out, numbers in order, one bracket in a name. Names share a bracket in the
/// last number in which they differ from others, `gpu[1-3,07-10]-ib0`. [`expand`] gives the same set back.
pub fn collapse<I, S>(names: I) -> String
where
    I: IntoIterator<Item = S>,
    S: AsRef<str>,
{
    let mut rest: BTreeSet<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    let mut parts = BTreeSet::new();
    // Brackets in the last number first; names that share none there are tried in the number before it.
    for nth_from_end in 0..NUMBERS_MAX {
        let mut groups = Groups::new();
        for name in &rest {
            if let Some((prefix, digits, suffix)) = split_number(name, nth_from_end) {
                let around = (prefix.to_owned(), suffix.to_owned());
                groups.entry(around).or_default().insert(digits.to_owned());
            }
        }
        for ((prefix, suffix), digits) in groups.into_iter().filter(|(_, digits)| digits.len() > 1) {
            for number in &digits {
                rest.remove(&format!("{prefix}{number}{suffix}"));
            }
            parts.insert(format!("{prefix}[{}]{suffix}", brackets(&digits)));
        }
    }
    parts.extend(rest);
    parts.into_iter().collect::<Vec<_>>().join(",")
}

/// Text before and after a number → the digits that occur there.
type Groups = BTreeMap<(String, String), BTreeSet<String>>;

/// The n-th last number of a name, and what stands around it. `None` if there is none, or if it is too long for us.
fn split_number(name: &str, nth_from_end: usize) -> Option<(&str, &str, &str)> {
    let mut end = name.len();
    for nth in 0..=nth_from_end {
        end = name.get(..end)?.rfind(|c: char| c.is_ascii_digit())? + 1;
        let length = name.get(..end)?.bytes().rev().take_while(u8::is_ascii_digit).count();
        let start = end - length;
        if nth == nth_from_end {
            let usable = length <= DIGITS_MAX;
            return usable.then_some((name.get(..start)?, name.get(start..end)?, name.get(end..)?));
        }
        end = start;
    }
    None
}

/// What stands between the brackets: `1-3,07-10`. A run keeps one width, or no leading zeros at all.
fn brackets(digits: &BTreeSet<String>) -> String {
    let mut numbers: Vec<(u64, &str)> =
        digits.iter().filter_map(|digits| Some((digits.parse().ok()?, digits.as_str()))).collect();
    numbers.sort_unstable_by_key(|(number, digits)| (*number, digits.len()));
    let mut runs: Vec<Vec<(u64, &str)>> = Vec::new();
    for (number, digits) in numbers {
        let padded = |digits: &str| digits.len() > 1 && digits.starts_with('0');
        let joins = |run: &&mut Vec<(u64, &str)>| {
            let (Some((_, first)), Some((last, _))) = (run.first(), run.last()) else { return false };
            // A run is written with its first number's width: `expand` pads what is shorter.
            last.checked_add(1) == Some(number)
                && (digits.len() == first.len() || (digits.len() > first.len() && !padded(digits)))
        };
        match runs.iter_mut().rev().take(DIGITS_MAX).find(joins) {
            Some(run) => run.push((number, digits)),
            None => runs.push(vec![(number, digits)]),
        }
    }
    let written = runs.iter().filter_map(|run| {
        let ((_, first), (_, last)) = (run.first()?, run.last()?);
        Some(if run.len() == 1 { (*first).to_owned() } else { format!("{first}-{last}") })
    });
    written.collect::<Vec<_>>().join(",")
}

/// Splits at commas outside brackets; gives each part's byte position.
fn split(list: &str) -> Result<Vec<(usize, &str)>, Error> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut inside = false;
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(Error::Brackets { at }),
            ',' if !inside => {
                parts.push((start, list.get(start..at).unwrap_or_default()));
                start = at + 1;
            }
            ',' => {}
            c if c.is_ascii_alphanumeric() || "-_.".contains(c) => {}
            found => return Err(Error::Character { found, at }),
        }
    }
    if inside {
        return Err(Error::Brackets { at: list.len() });
    }
    parts.push((start, list.get(start..).unwrap_or_default()));
    Ok(parts)
}

fn pieces(part: &str, at: usize) -> Result<Vec<Piece<'_>>, Error> {
    let mut pieces = Vec::new();
    let mut rest = part;
    while let Some((text, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').ok_or(Error::Brackets { at })?;
        pieces.push(Piece::Text(text));
        pieces.push(Piece::Numbers(inside.split(',').map(range).collect::<Result<_, _>>()?));
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

fn range(text: &str) -> Result<Range, Error> {
    let wrong = || Error::Range { found: text.to_owned() };
    let number = |digits: &str| {
        let usable = (1..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| usable).ok_or_else(wrong)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = Range { first: number(first)?, last: number(last)?, width: first.len() };
    if range.first > range.last {
        return Err(Error::Backwards { found: text.to_owned() });
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expands() {
        let cases = [
            ("", ""),
            ("gpu1", "gpu1"),
            ("gpu[1-3]", "gpu1 gpu2 gpu3"),
            ("gpu[1-3,07-10]-ib0", "gpu1-ib0 gpu2-ib0 gpu3-ib0 gpu07-ib0 gpu08-ib0 gpu09-ib0 gpu10-ib0"),
            ("gpu[9-11],login", "gpu9 gpu10 gpu11 login"),
            ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
            ("[1-2].example.org", "1.example.org 2.example.org"),
            ("gpu[2,2]", "gpu2 gpu2"),
            ("gpu[098-101]", "gpu098 gpu099 gpu100 gpu101"),
        ];
        for (list, names) in cases {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn collapses() {
        let cases = [
            ("gpu3 gpu1 gpu2 gpu2", "gpu[1-3]"),
            ("gpu1", "gpu1"),
            ("gpu09 gpu10 gpu11", "gpu[09-11]"),
            ("gpu9 gpu10 gpu11", "gpu[9-11]"),
            ("gpu1 gpu01", "gpu[1,01]"),
            ("gpu1-ib0 gpu2-ib0 gpu3-ib0 gpu07-ib0 gpu08-ib0 gpu09-ib0 gpu10-ib0", "gpu[1-3,07-10]-ib0"),
            ("login gpu2 gpu10", "gpu[2,10],login"),
            ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
        ];
        for (names, list) in cases {
            assert_eq!(collapse(names.split(' ')), list, "{names}");
        }
        assert_eq!(collapse(std::iter::empty::<&str>()), "");
    }

    #[test]
    fn refuses() {
        let cases = [
            ("a,,b", Error::EmptyName { at: 2 }),
            ("a,", Error::EmptyName { at: 2 }),
            ("gpu[1-3", Error::Brackets { at: 7 }),
            ("gpu1-3]", Error::Brackets { at: 6 }),
            ("gpu[1[2]]", Error::Brackets { at: 5 }),
            ("gpu[]", Error::Range { found: String::new() }),
            ("gpu[a-b]", Error::Range { found: "a-b".to_owned() }),
            ("gpu[1-2-3]", Error::Range { found: "1-2-3".to_owned() }),
            ("gpu[3-1]", Error::Backwards { found: "3-1".to_owned() }),
            ("gpu 1", Error::Character { found: ' ', at: 3 }),
            ("gpué", Error::Character { found: 'é', at: 3 }),
            ("gpu[1-65537]", Error::TooMany),
            ("gpu[1-65536],x", Error::TooMany),
            ("a[0-999999999999999999]b[0-999999999999999999]c[0-99]", Error::TooMany),
            ("gpu[1-1000000000000000000]", Error::Range { found: "1-1000000000000000000".to_owned() }),
        ];
        for (list, error) in cases {
            assert_eq!(expand(list), Err(error), "{list}");
        }
        assert_eq!(expand("gpu[1-65536]").unwrap().len(), NAMES_MAX);
        assert_eq!(expand(&"a".repeat(LENGTH_MAX + 1)), Err(Error::TooLong(LENGTH_MAX + 1)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn there_and_back(names in prop::collection::btree_set("[a-c]{0,2}[0-9]{1,3}(-ib[01])?|[a-c]{1,2}", 0..40)) {
            let back: BTreeSet<String> = expand(&collapse(&names)).unwrap().into_iter().collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn never_panics(text in "[a-b0-9,\\[\\]-]{0,24}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(names.len() <= NAMES_MAX);
            }
        }
    }
}
