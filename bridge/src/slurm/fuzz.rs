//! Fuzz targets for what Slurm writes: answers, GRES texts, host lists, task lists, `scontrol show config`. `cargo test`
//! tries each with some thousand random inputs; `cargo bolero test slurm::fuzz::NAME` goes on for as long as one likes.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpu_bridge_core::hostlist::LENGTH_MAX;

use super::captures::{answers, read};
use super::decode::{Kind, decode};
use super::rights::Config;
use super::version::Version;
use super::{gres, hostlist, tasks};

const TRIES: usize = 20_000;
/// What answers are made of: most changes are one of these, so that they often stay readable.
const SIGNS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\"\\{}[]:,.-+_ 0123456789abcdefghijklmnopqrstuvwxyz01234567890123456789";

/// One change to an answer: where, what, and whether it is put in between or in place.
type Change = (u32, u8, bool);

/// Answers of real releases with a few changes each. Whatever comes in is read or refused.
#[test]
fn answer() {
    let files: Vec<(Vec<u8>, Version, Kind)> = answers()
        .into_iter()
        .map(|(file, version, kind)| (read(&file).into_bytes(), version, kind))
        .filter(|(body, _, _)| body.len() < 60_000)
        .collect();
    assert!(files.len() > 50, "{} answers", files.len());
    let (good, bad) = (AtomicUsize::new(0), AtomicUsize::new(0));
    bolero::check!().with_iterations(TRIES / 10).with_type::<(u16, [Change; 2])>().for_each(
        |(file, changes)| {
            let (body, version, kind) = &files[usize::from(*file) % files.len()];
            let mut body = body.clone();
            for (at, byte, between) in changes {
                let at = *at as usize % body.len();
                let byte = SIGNS.get(usize::from(*byte)).copied().unwrap_or(*byte);
                body.splice(at..at + usize::from(!between), [byte]);
            }
            let decoded = decode("x", version.name, *kind, &body);
            if decoded.is_ok() { &good } else { &bad }.fetch_add(1, Ordering::Relaxed);
        },
    );
    let (good, bad) = (good.into_inner(), bad.into_inner());
    assert!(good > TRIES / 100 && bad > TRIES / 100, "a one-sided trial: {good} read, {bad} refused");
}

/// The words that GRES texts are made of, in any order, and then any text.
#[test]
fn gres_text() {
    const WORDS: [&str; 20] = [
        "gpu",
        ":",
        ",",
        "a100",
        "4",
        "0",
        "(S:0-1)",
        "(IDX:0-3)",
        "(IDX:N/A)",
        "shard",
        "mps",
        "(null)",
        "(",
        ")",
        "1g.5gb",
        "=",
        "/",
        "license",
        "4294967295",
        "-",
    ];
    bolero::check!().with_iterations(TRIES).with_type::<Vec<u8>>().for_each(|words| {
        let text: String = words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
        try_gres(&text);
    });
    bolero::check!().with_iterations(TRIES).with_type::<String>().for_each(|text| try_gres(text));
}

fn try_gres(text: &str) {
    let count = gres::gpus(text);
    let used = gres::gpus_used(Some(text), 8);
    // Another resource beside it changes nothing.
    if !text.is_empty() && count.is_some() {
        assert_eq!(gres::gpus(&format!("{text},tmpdisk:7")), count, "{text:?}");
        assert_eq!(gres::gpus(&format!("tmpdisk:7,{text}")), count, "{text:?}");
    }
    // A further use is never less; what is too much to count counts as unreadable.
    let more = gres::gpus_used(Some(&format!("{text},gpu:l4:3")), 8);
    assert!(used.is_none_or(|used| more.is_none_or(|more| more >= used)), "{text:?}");
}

/// What a list stands for is named again one by one; nothing in it is left over from the list's own signs.
#[test]
fn host_list() {
    const WORDS: [&str; 14] =
        ["gpu", "n", "[", "]", ",", "-", "1", "09", "10", "11", "[1-3]", "[07-10,12]", "-ib0", "(null)"];
    bolero::check!().with_iterations(TRIES).with_type::<Vec<u8>>().for_each(|words| {
        let list: String = words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
        try_host_list(&list);
    });
    bolero::check!().with_iterations(TRIES).with_type::<String>().for_each(|list| try_host_list(list));
}

fn try_host_list(list: &str) {
    let Ok(names) = hostlist::expand(list) else { return };
    let mut again = Vec::new();
    for name in &names {
        assert!(!name.as_str().is_empty() && !name.as_str().contains(['[', ']', ',']), "{list:?}: {name}");
        again.push(name.as_str());
    }
    let again = again.join(",");
    if again.len() <= LENGTH_MAX {
        assert!(hostlist::expand(&again).as_ref() == Ok(&names), "{list:?}");
    }
}

#[test]
fn task_list() {
    const WORDS: [&str; 11] = ["1", "7", "100", "-", ",", ":", "%", "[", "]", "...", "4294967295"];
    bolero::check!().with_iterations(TRIES).with_type::<Vec<u8>>().for_each(|words| {
        let text: String = words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
        let count = tasks::count(&text);
        assert_ne!(count, Some(0), "{text:?}");
        assert!(count.is_none() || !text.contains("..."), "a list that was cut was counted: {text:?}");
    });
}

#[test]
fn scontrol_config() {
    bolero::check!().with_iterations(TRIES).with_type::<(Vec<u8>, u32, Vec<u8>)>().for_each(
        |(before, id, after)| {
            let around = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(['\n', '\r'], " ");
            let config = format!("{}\nNEXT_JOB_ID             = {id}\n{}", around(before), around(after));
            assert_eq!(Config::read(&config).next_job_id.map(|id| id.0), Some(*id), "{config:?}");
            Config::read(&String::from_utf8_lossy(before));
        },
    );
}
