//! Counts GPUs in Slurm's GRES and TRES texts. Other resources (shards, MPS) are passed over; a text whose GPU part
//! cannot be read is `None`, which callers take for "in use".

use super::hostlist::split_outside;

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

/// GPUs in use, from a node's `gres_used` such as `gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)`, on a node with `configured`
/// GPUs. `None` where it cannot be read, or says nothing of GPUs on a node that has some.
pub(super) fn gpus_used(text: Option<&str>, configured: u32) -> Option<u32> {
    match text.map_or(Said::Nothing, |text| said(text, None)) {
        Said::Count(used) => Some(used),
        Said::Nothing => (configured == 0).then_some(0),
        Said::Unreadable => None,
    }
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
    let text = text.replace("(null)", "");
    if matches!(text.as_str(), "" | "N/A") {
        return Said::Nothing;
    }
    let Some(parts) = split_outside(&text, '(', ')') else { return Said::Unreadable };
    let mut said = Said::Nothing;
    for part in parts {
        let part = part.strip_prefix("gres/").or_else(|| part.strip_prefix("gres:")).unwrap_or(part);
        let mut words = part.split('(').next().unwrap_or(part).split(':');
        if words.next() != Some("gpu") {
            continue;
        }
        let count = match words.next_back() {
            Some(last) if last.is_empty() || last.starts_with(|c: char| c.is_ascii_digit()) => {
                last.parse().ok()
            }
            Some(_) | None => implied,
        };
        let before = match said {
            Said::Count(before) => before,
            Said::Nothing | Said::Unreadable => 0,
        };
        match count.and_then(|count: u32| before.checked_add(count)) {
            Some(sum) => said = Said::Count(sum),
            None => return Said::Unreadable,
        }
    }
    said
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
            ("gpu:a100:4(S:0-1", None),
            ("gpu:a100:4k", None),
            ("gpu:a100:", None),
            ("gpu:99999999999", None),
        ] {
            assert_eq!(gpus(text), count, "{text:?}");
        }
    }

    #[test]
    fn use_that_cannot_be_read_is_not_zero() {
        for (text, configured, used) in [
            (Some("gpu:a100:0(IDX:N/A)"), 4, Some(0)),
            (Some("gpu:a100:2(IDX:0-1)"), 4, Some(2)),
            (Some("gpu:h100:1(IDX:0),gpu:l4:0(IDX:N/A)"), 4, Some(1)),
            (Some("gpu:a100:3"), 4, Some(3)),
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
