//! The same answers cut, and with each field spoiled or taken away: an error or a careful fact, never an invented one.

use std::path::PathBuf;

use gpu_bridge_core::facts::slurm::{BaseState, JobState};
use serde_json::{Value, json};

use super::super::decode::{Decoded, Kind, NodeSaid, decode};
use super::super::error::Error;
use super::super::shape::NodeRecord;
use super::super::version::Version;
use super::super::{gres, hostlist, tasks};
use super::{answers, name, read};

/// An answer of each kind and version with the first element only, for spoiling: file, version, kind, body.
fn small() -> impl Iterator<Item = (PathBuf, Version, Kind, Value)> {
    const NAMES: [(&str, &str); 5] = [
        ("nodes.json", "nodes"),
        ("job-array.json", "jobs"),
        ("reservations.json", "reservations"),
        ("partitions.json", "partitions"),
        ("ping.json", "pings"),
    ];
    answers().into_iter().filter_map(|(file, version, kind)| {
        let (_, list) = NAMES.iter().find(|(known, _)| *known == name(&file))?;
        let mut body: Value = serde_json::from_str(&read(&file)).unwrap();
        body[list].as_array_mut().unwrap().truncate(1);
        Some((file, version, kind, body))
    })
}

#[test]
fn an_answer_that_was_cut_is_an_error_at_every_byte() {
    for (file, version, kind, body) in small() {
        let body = body.to_string();
        let whole = body.len();
        // Every byte near its ends, every 7th in between: each kind of token is cut everywhere.
        for at in (0..whole).filter(|at| *at < 400 || *at + 400 > whole || at % 7 == 0) {
            let read = decode("x", version.name, kind, &body.as_bytes()[..at]);
            let named = matches!(read, Err(Error::NotJson { .. } | Error::Unreadable { .. }));
            assert!(named, "{} cut at {at}: {read:?}", file.display());
        }
    }
}

/// Every place in a JSON value: the keys and indices that lead there.
fn places(value: &Value, here: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            places(value, &format!("{here}/{}", key.replace('~', "~0").replace('/', "~1")), all);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| places(value, &format!("{here}/{at}"), all));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    all.push(here.to_owned());
}

/// Nothing in `found` that is better than what `truth` has: a fact is the same, or one that makes us careful.
fn invented(truth: &Decoded, found: &Decoded, spoiled: &str) -> Option<String> {
    let field = spoiled.rsplit('/').next().unwrap_or_default();
    match (truth, found) {
        (Decoded::Nodes(truth), Decoded::Nodes(found)) => found.iter().find_map(|(name, node)| {
            // One that cannot be read is no fact. A name that was replaced is another node's.
            let NodeSaid::Read(NodeRecord { node, .. }) = node else { return None };
            let truth = truth.get(name).or_else(|| (field == "name").then(|| truth.values().next())?)?;
            let NodeSaid::Read(NodeRecord { node: truth, .. }) = truth else { panic!("{truth:?}") };
            let other = matches!(&node.state, BaseState::Other(_));
            let fine = field == "name"
                || ((node.state == truth.state || other)
                    && node.flags.is_superset(&truth.flags)
                    && (node.gpus == truth.gpus || field == "gres")
                    && (node.gpus_used == truth.gpus_used || node.gpus_used.is_none())
                    && (node.reason == truth.reason || field.starts_with("reason"))
                    && (node.partitions == truth.partitions || spoiled.contains("/partitions")));
            (!fine).then(|| format!("{name}: {node:?} for {truth:?}"))
        }),
        (Decoded::Jobs(truth), Decoded::Jobs(found)) => found.iter().find_map(|(id, record)| {
            let (job, truth) = (&record.job, &truth.get(id)?.job);
            let fine = (job.state == truth.state || matches!(job.state, JobState::Other(_)))
                && (job.nodes == truth.nodes || field == "nodes")
                && (job.end_by == truth.end_by || job.end_by.is_none())
                && (job.time_limit == truth.time_limit
                    || job.time_limit.is_none()
                    || spoiled.contains("time_limit"))
                && (job.requeue == truth.requeue || !job.requeue);
            (!fine).then(|| format!("{job:?} for {truth:?}"))
        }),
        (Decoded::Reservations(truth), Decoded::Reservations(found)) => {
            found.iter().find_map(|(name, found)| {
                let truth = truth.get(name)?;
                let fine = (found.nodes == truth.nodes || field == "node_list")
                    && (found.users == truth.users || field == "users")
                    && (found.flags == truth.flags || spoiled.contains("/flags"))
                    && (found.start == truth.start || spoiled.contains("start_time"))
                    && (found.end == truth.end || spoiled.contains("end_time"));
                (!fine).then(|| format!("{found:?} for {truth:?}"))
            })
        }
        (Decoded::Partitions(truth), Decoded::Partitions(found)) => found.iter().find_map(|(name, found)| {
            let truth = truth.get(name)?;
            let fine = (found.nodes == truth.nodes || spoiled.contains("/nodes"))
                && (found.max_time == truth.max_time
                    || spoiled.contains("max_time_limit")
                    || spoiled.contains("/maximums"))
                && (found.up == truth.up || !found.up);
            (!fine).then(|| format!("{found:?} for {truth:?}"))
        }),
        (Decoded::Pings(truth), Decoded::Pings(found)) => found
            .iter()
            .zip(truth)
            .any(|(found, truth)| found.responding && !truth.responding)
            .then(|| format!("{found:?} for {truth:?}")),
        (_, found) => Some(format!("{found:?} is of another kind")),
    }
}

#[test]
fn a_spoiled_field_never_makes_a_fact() {
    let mut read = 0;
    for (file, version, kind, whole) in small() {
        let truth = decode("x", version.name, kind, whole.to_string().as_bytes()).unwrap();
        let mut all = Vec::new();
        places(&whole, "", &mut all);
        for place in all.iter().filter(|place| !place.starts_with("/meta/")) {
            for (with, text) in [
                (json!(null), None),
                (json!("spoiled"), None),
                (json!(7), None),
                (json!(-7), None),
                (json!(u64::MAX - 9), None),
                (json!(0.5e300), None),
                (json!("HUGE"), Some("1e999")),
                (json!("HUGE"), Some("99999999999999999999999999999999999999")),
                (json!([]), None),
                (json!({}), None),
                (json!(true), None),
            ] {
                let mut spoiled = whole.clone();
                *spoiled.pointer_mut(place).unwrap() = with.clone();
                let mut body = spoiled.to_string();
                if let Some(text) = text {
                    body = body.replacen("\"HUGE\"", text, 1);
                }
                // The decoder's own errors are as good as a careful fact.
                let Ok(found) = decode("x", version.name, kind, body.as_bytes()) else { continue };
                read += 1;
                let invented = invented(&truth, &found, place);
                assert!(invented.is_none(), "{}: {place} = {with}: {invented:?}", file.display());
            }
        }
    }
    assert!(read > 10_000, "{read}");
}

#[test]
fn a_field_that_is_missing_never_makes_a_fact() {
    for (file, version, kind, whole) in small() {
        let truth = decode("x", version.name, kind, whole.to_string().as_bytes()).unwrap();
        let mut all = Vec::new();
        places(&whole, "", &mut all);
        for place in all.iter().filter(|place| !place.is_empty() && !place.starts_with("/meta/")) {
            let (parent, key) = place.rsplit_once('/').unwrap();
            let mut spoiled = whole.clone();
            match spoiled.pointer_mut(parent).unwrap() {
                Value::Object(fields) => drop(fields.remove(&key.replace("~1", "/").replace("~0", "~"))),
                // A shorter list of words is another state, not a spoiled one.
                Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                    continue;
                }
            }
            let Ok(found) = decode("x", version.name, kind, spoiled.to_string().as_bytes()) else { continue };
            let invented = invented(&truth, &found, place);
            assert!(invented.is_none(), "{}: without {place}: {invented:?}", file.display());
        }
    }
}

/// Words, numbers and brackets as they come: no text makes the readers of texts panic, whatever it is.
#[test]
fn texts_of_all_kinds_are_survived() {
    let bits = [
        "gpu",
        ":",
        "a100",
        "(",
        ")",
        "[",
        "]",
        "-",
        ",",
        "0",
        "18446744073709551616",
        "IDX",
        "S",
        "/",
        "%",
        "é",
        "\u{0}",
        "+",
    ];
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            // xorshift: the same texts in every run.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            text.push_str(bits[usize::try_from(seed % bits.len() as u64).unwrap()]);
        }
        let _ =
            (gres::gpus(&text), gres::gpus_used(Some(&text), 4), gres::tres_gpus(&text), gres::list(&text));
        let _ = (hostlist::expand(&text).is_ok(), tasks::count(&text));
    }
}
