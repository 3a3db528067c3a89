//! Counts GPUs in Slurm's GRES and TRES texts. Other resources are passed over, but shares of GPUs (shards, MPS) that are
//! in use keep a GPU in use; a text whose GPU part cannot be read is `None`, which callers take for "in use". For people,
//! every part is read.

use std::collections::BTreeSet;

use serde::Serialize;

/// GPUs in a GRES text such as `gpu:a100:4(S:0-1),shard:a100:16(S:0-1)`, all types together; 0 where none is named.
/// `None` where it cannot be read.
pub(super) fn gpus(text: &str) -> Option<u32> {
    // `gpu` alone and `gpu:a100` mean one.
    match said(text, Some(1)) {
        Said::Count(count) => Some(count),
        Said::Nothing => Some(0),
        Said::Unreadable => None,
    }
}

/// GPUs that a job asks for, by `--gres` and `--gpus…` as each release writes them: `gres:gpu:a100:2`, `gres/gpu:2`,
/// `gres/gpu=2`. `None` where it cannot be read.
pub(super) fn asked_gpus(text: &str) -> Option<u32> {
    if text.contains('=') { tres_gpus(text) } else { gpus(text) }
}

/// The longest name of a GPU type, in bytes.
const TYPE_MAX: usize = 64;

/// The type of GPU that a job asks for by name; `None` where it names none, or several.
pub(super) fn gpu_type(text: &str) -> Option<String> {
    let mut types = parts(text)?.filter(|part| part.kind == "gpu").map(|part| part.model);
    let first = types.next()??;
    let first = first.split('=').next().unwrap_or(first);
    // Users may write anything there, line ends and escapes too, and it is shown to people.
    let usual = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let named = first.len() <= TYPE_MAX && first.bytes().all(usual);
    (named && types.next().is_none()).then(|| first.to_owned())
}

/// GPUs in use, from a node's `gres_used` such as `gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)`, on a node with `configured`
/// GPUs. At least one where shares of them are. `None` where it cannot be read, or says nothing of GPUs on a node that has
/// some.
pub(super) fn gpus_used(text: Option<&str>, configured: u32) -> Option<u32> {
    let text = text.unwrap_or_default();
    let shared = u32::from(shares_used(text)?);
    match said(text, None) {
        Said::Count(used) => Some(used.max(shared)),
        Said::Nothing => (configured == 0).then_some(shared),
        Said::Unreadable => None,
    }
}

/// Is any share of a GPU in use? Slurm counts those apart: the GPU itself then stands there with 0. `None` where it cannot
/// be read.
fn shares_used(text: &str) -> Option<bool> {
    let mut used = false;
    for part in parts(text)?.filter(|part| matches!(part.kind, "shard" | "mps")) {
        match part.count {
            Count::Number(count) => used |= count > 0,
            Count::Implied | Count::Unreadable => return None,
        }
    }
    Some(used)
}

/// What a GRES text says of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// So many.
    Count(u32),
    /// Nothing.
    Nothing,
    /// It cannot be read.
    Unreadable,
}

/// `implied` is the count of a part that gives none.
fn said(text: &str, implied: Option<u32>) -> Said {
    let Some(parts) = parts(text) else { return Said::Unreadable };
    let mut sum = None;
    for part in parts.filter(|part| part.kind == "gpu") {
        let count = match part.count {
            Count::Number(count) => u32::try_from(count).ok(),
            Count::Implied => implied,
            Count::Unreadable => None,
        };
        sum = match count.and_then(|count| sum.unwrap_or(0_u32).checked_add(count)) {
            Some(sum) => Some(sum),
            None => return Said::Unreadable,
        };
    }
    sum.map_or(Said::Nothing, Said::Count)
}

/// One part of a GRES text, such as `gpu:a100:2(IDX:0-1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part<'a> {
    kind: &'a str,
    model: Option<&'a str>,
    count: Count,
    /// What stands in parentheses.
    detail: Option<&'a str>,
}

/// How many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    /// So many.
    Number(u64),
    /// None is given: a request then means one.
    Implied,
    /// It cannot be read.
    Unreadable,
}

/// The parts of a GRES text; `None` where its parentheses do not match.
fn parts(text: &str) -> Option<impl Iterator<Item = Part<'_>>> {
    let text = if matches!(text, "N/A" | "(null)") { "" } else { text };
    Some(split_outside(text, '(', ')')?.into_iter().filter(|part| !part.is_empty()).map(part))
}

fn part(text: &str) -> Part<'_> {
    let text = text.strip_prefix("gres/").or_else(|| text.strip_prefix("gres:")).unwrap_or(text);
    let (kind, rest) = match text.find([':', '(']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let (model, rest) = match rest.strip_prefix(":(null)") {
        Some(rest) => (None, rest),
        None => (Some(rest), rest),
    };
    let (words, detail) = match rest.find('(') {
        Some(at) => (&rest[..at], rest[at..].strip_prefix('(').and_then(|detail| detail.strip_suffix(')'))),
        None => (rest, None),
    };
    // `:a100:4`, `:4`, `:a100`, and `:lustre:no_consume:4` of other kinds: the count, where there is one, stands last.
    let digits = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let named = words.strip_prefix(':').unwrap_or(words);
    let (before, last) = named.rsplit_once(':').unwrap_or(("", named));
    let (count, named) = if words.is_empty() {
        (Count::Implied, "")
    } else if digits(last) {
        (last.parse().map_or(Count::Unreadable, Count::Number), before)
    } else if before.is_empty() && !last.is_empty() {
        // A type alone; those of MIG begin with a digit.
        (Count::Implied, last)
    } else {
        (Count::Unreadable, before)
    };
    Part { kind, model: model.map(|_| named).filter(|named| !named.is_empty()), count, detail }
}

/// A generic resource, whole, for people: what a node has of one kind and type, or what of it is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gres {
    /// `gpu`, `shard`, `mps` …
    pub(crate) kind: String,
    /// The type, such as `a100` or `1g.5gb`.
    pub(crate) model: Option<String>,
    /// How many; `None` where it cannot be read.
    pub(crate) count: Option<u64>,
    /// What else is said of it.
    pub(crate) detail: Detail,
}

/// What stands in parentheses behind a count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Detail {
    /// Nothing.
    None,
    /// The sockets it is on (`S:0-1`).
    Sockets(BTreeSet<u32>),
    /// The devices in use (`IDX:0-1`; `IDX:N/A` is none).
    Index(BTreeSet<u32>),
    /// Shares in use of those of each device (`2/4,0/4,-/4`), `None` for `-`.
    Shares(Vec<(Option<u32>, u32)>),
    /// Anything else, as it stands.
    Other(String),
}

/// Every part of a GRES text, GPUs and others; a text that cannot be split is one part of the kind `unreadable`.
pub(super) fn list(text: &str) -> Vec<Gres> {
    let Some(parts) = parts(text) else {
        let detail = Detail::Other(text.to_owned());
        return vec![Gres { kind: "unreadable".to_owned(), model: None, count: None, detail }];
    };
    let gres = |part: Part<'_>| Gres {
        kind: part.kind.to_owned(),
        model: part.model.map(str::to_owned),
        count: match part.count {
            Count::Number(count) => Some(count),
            Count::Implied => Some(1),
            Count::Unreadable => None,
        },
        detail: part.detail.map_or(Detail::None, detail),
    };
    parts.map(gres).collect()
}

fn detail(text: &str) -> Detail {
    let read = match text.split_once(':') {
        Some(("S", list)) => numbers(list).map(Detail::Sockets),
        Some(("IDX", list)) => numbers(list).map(Detail::Index),
        Some(_) => None,
        None => text.split(',').map(share).collect::<Option<_>>().map(Detail::Shares),
    };
    read.unwrap_or_else(|| Detail::Other(text.to_owned()))
}

/// `2/4`, or `-/4`.
fn share(text: &str) -> Option<(Option<u32>, u32)> {
    let (used, of) = text.split_once('/')?;
    let used = if used == "-" { None } else { Some(used.parse().ok()?) };
    Some((used, of.parse().ok()?))
}

/// `0-1,3`; empty and `N/A` are none.
fn numbers(text: &str) -> Option<BTreeSet<u32>> {
    /// More devices or sockets than any node has.
    const MAX: u32 = 4096;
    let mut numbers = BTreeSet::new();
    if matches!(text, "" | "N/A") {
        return Some(numbers);
    }
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The count of `gres/gpu` in a TRES text such as `cpu=2,mem=4G,gres/gpu=2,gres/gpu:a100=1` (typed counts are part of
/// the untyped one; where only typed ones stand, their sum). 0 where none is named, `None` where it cannot be read.
pub(super) fn tres_gpus(text: &str) -> Option<u32> {
    let mut typed = 0_u32;
    for part in text.split(',').filter(|part| part.starts_with("gres/gpu")) {
        let (name, count) = part.split_once('=')?;
        let count: u32 = count.parse().ok()?;
        if name == "gres/gpu" {
            return Some(count);
        }
        if name.starts_with("gres/gpu:") {
            typed = typed.checked_add(count)?;
        }
    }
    Some(typed)
}

/// Splits at commas that stand outside of `open`…`close`; `None` where these do not match or are nested.
fn split_outside(text: &str, open: char, close: char) -> Option<Vec<&str>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_over_all_types_and_nothing_else_is() {
        for (text, count) in [
            ("", Some(0)),
            ("(null)", Some(0)),
            ("gpu:4", Some(4)),
            ("gpu", Some(1)),
            ("gpu:a100", Some(1)),
            ("gpu:a100:4(S:0-1)", Some(4)),
            ("gpu:a100:4(S:0-1),shard:a100:16(S:0-1)", Some(4)),
            ("gpu:h100:2,gpu:l4:2", Some(4)),
            ("gpu:(null):2(IDX:0-1)", Some(2)),
            ("gres/gpu:a100:2", Some(2)),
            ("gres:gpu:1", Some(1)),
            ("gpu:a100:2(IDX:0,3),shard:a100:2(2/4,0/4,-/4,0/4),shard:0", Some(2)),
            ("gpumem:80", Some(0)),
            ("mps:100", Some(0)),
            ("gpu:1g.5gb:7(S:0)", Some(7)),
            ("gpu:1g.5gb", Some(1)),
            ("gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:3(S:1)", Some(5)),
            ("bandwidth:lustre:no_consume:4G,gpu:h100:8", Some(8)),
            ("N/A", Some(0)),
            ("gpu:a100:4(S:0-1", None),
            ("gpu:a100:4k", None),
            ("gpu:a100:", None),
            ("gpu:99999999999", None),
        ] {
            assert_eq!(gpus(text), count, "{text:?}");
        }
    }

    #[test]
    fn what_a_job_asks_for_is_read_in_every_release_s_form() {
        for (text, count, model) in [
            ("gres:gpu:4", Some(4), None),
            ("gres/gpu:4", Some(4), None),
            ("gres/gpu=1", Some(1), None),
            ("gres/gpu:a100=2", Some(2), Some("a100")),
            ("gres:gpu:a100:2", Some(2), Some("a100")),
            ("gres/gpu:a100", Some(1), Some("a100")),
            ("gres/gpu:a100:1,gres/gpu:h100:1", Some(2), None),
            ("gres/shard:2", Some(0), None),
            ("N/A", Some(0), None),
            // Slurm takes what a user writes there; it can be a type.
            ("gres/gpu:1|x", Some(1), None),
            ("gres/gpu:", None, None),
            ("", Some(0), None),
        ] {
            assert_eq!(asked_gpus(text), count, "{text:?}");
            if count.is_some() {
                assert_eq!(gpu_type(text).as_deref(), model, "{text:?}");
            }
        }
    }

    #[test]
    fn a_type_is_a_name_and_no_other_words_of_a_user() {
        for odd in [
            "gres/gpu:1\nx",
            "gpu:a\u{1b}[31mred:1",
            "gpu:a b:1",
            "gpu:1|x",
            "gpu:é:1",
            &format!("gpu:{}:1", "a".repeat(65)),
        ] {
            assert_eq!(gpu_type(odd), None, "{odd:?}");
        }
        assert_eq!(gpu_type("gres/gpu:1g.5gb:2").as_deref(), Some("1g.5gb"));
    }

    #[test]
    fn use_that_cannot_be_read_is_not_zero() {
        for (text, configured, used) in [
            (Some("gpu:a100:0(IDX:N/A)"), 4, Some(0)),
            (Some("gpu:a100:2(IDX:0-1)"), 4, Some(2)),
            (Some("gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)"), 4, Some(1)),
            (Some("gpu:a100:3"), 4, Some(3)),
            // Shares of a GPU whose own count stays 0.
            (Some("gpu:a100:0(IDX:N/A),shard:a100:2(2/4,0/4,0/4,0/4)"), 4, Some(1)),
            (Some("gpu:a100:0(IDX:N/A),mps:a100:50(50/100,0/100)"), 2, Some(1)),
            (Some("gpu:a100:2(IDX:0-1),shard:a100:2(0/4,0/4,2/4,0/4)"), 4, Some(2)),
            (Some("gpu:a100:0(IDX:N/A),shard:a100:0(0/4,0/4,0/4,0/4),mps:0"), 4, Some(0)),
            (Some("gpu:a100:0(IDX:N/A),shard:a100:x"), 4, None),
            (Some("gpu:a100:0(IDX:N/A),shard"), 4, None),
            (Some("gpu:a100:0(IDX:N/A),craynetwork:x"), 4, Some(0)),
            (Some("shard:2"), 0, Some(1)),
            (Some("gpu:h100:1(IDX:0),gpu:l4:0(IDX:)"), 4, Some(1)),
            (Some("gpu:1g.5gb:2(IDX:0,3),gpu:3g.20gb:1(IDX:7)"), 8, Some(3)),
            (Some("gpu:a100"), 4, None),
            (Some("shard:a100:2(2/4,0/4,0/4,0/4)"), 4, None),
            (Some(""), 4, None),
            (None, 4, None),
            (Some("gpu:a100:x4"), 4, None),
            (Some("gpu:a100:4)"), 4, None),
            (Some(""), 0, Some(0)),
            (None, 0, Some(0)),
        ] {
            assert_eq!(gpus_used(text, configured), used, "{text:?}");
        }
    }

    #[test]
    fn every_part_is_read_for_people() {
        let set = |numbers: &[u32]| numbers.iter().copied().collect::<BTreeSet<_>>();
        let gres = |kind: &str, model: &str, count, detail| Gres {
            kind: kind.to_owned(),
            model: Some(model.to_owned()).filter(|model| !model.is_empty()),
            count,
            detail,
        };
        for (text, expected) in [
            ("", vec![]),
            ("(null)", vec![]),
            ("gpu:a100:4(S:0-1)", vec![gres("gpu", "a100", Some(4), Detail::Sockets(set(&[0, 1])))]),
            (
                "gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A),shard:0",
                vec![
                    gres("gpu", "h100", Some(1), Detail::Index(set(&[0]))),
                    gres("gpu", "l4", Some(0), Detail::Index(set(&[]))),
                    gres("shard", "", Some(0), Detail::None),
                ],
            ),
            ("gpu:1g.5gb:2(IDX:0,3-4)", vec![gres("gpu", "1g.5gb", Some(2), Detail::Index(set(&[0, 3, 4])))]),
            ("gpu:(null):2(IDX:0-1)", vec![gres("gpu", "", Some(2), Detail::Index(set(&[0, 1])))]),
            (
                "shard:a100:2(2/4,0/4,-/4)",
                vec![gres(
                    "shard",
                    "a100",
                    Some(2),
                    Detail::Shares(vec![(Some(2), 4), (Some(0), 4), (None, 4)]),
                )],
            ),
            ("gpu:4(S:9-1)", vec![gres("gpu", "", Some(4), Detail::Other("S:9-1".into()))]),
            ("gpu:a100:4k", vec![gres("gpu", "a100", None, Detail::None)]),
            ("gpu:4(", vec![gres("unreadable", "", None, Detail::Other("gpu:4(".into()))]),
        ] {
            assert_eq!(list(text), expected, "{text:?}");
        }
    }

    #[test]
    fn tres_counts() {
        for (text, count) in [
            ("", Some(0)),
            ("cpu=2,mem=2G,node=2,billing=2,gres/gpu=2,gres/gpu:a100=1", Some(2)),
            ("cpu=1,gres/gpu:a100=1,gres/gpu:h100=2", Some(3)),
            ("cpu=1,mem=1G", Some(0)),
            ("gres/gpumem=5", Some(0)),
            ("gres/gpu", None),
            ("gres/gpu=two", None),
        ] {
            assert_eq!(tres_gpus(text), count, "{text:?}");
        }
    }
}
