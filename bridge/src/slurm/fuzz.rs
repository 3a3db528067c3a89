//! Fuzz targets for what Slurm writes: answers, GRES texts, host lists, task lists, what scontrol and squeue show. `cargo test`
//! tries each with some thousand random inputs; `cargo bolero test slurm::fuzz::NAME` goes on for as long as one likes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpu_bridge_core::facts::slurm::{JobState, Node};
use gpu_bridge_core::hostlist::LENGTH_MAX;
use gpu_bridge_core::ids::{JobId, SlurmNodeName};
use gpu_bridge_core::mark::DrainReason;

use super::answer::Asked;
use super::captures::{answers, read};
use super::decode::{Kind, decode};
use super::rights::Config;
use super::version::Version;
use super::{gres, hostlist, shape, tasks};

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
            change(&mut body, changes);
            let decoded = decode("x", version.name, *kind, &body);
            if decoded.is_ok() { &good } else { &bad }.fetch_add(1, Ordering::Relaxed);
        },
    );
    let (good, bad) = (good.into_inner(), bad.into_inner());
    assert!(good > TRIES / 100 && bad > TRIES / 100, "a one-sided trial: {good} read, {bad} refused");
}

fn change(body: &mut Vec<u8>, changes: &[Change]) {
    for (at, byte, between) in changes {
        let at = *at as usize % body.len();
        let byte = SIGNS.get(usize::from(*byte)).copied().unwrap_or(*byte);
        body.splice(at..at + usize::from(!between), [byte]);
    }
}

const ASKED: Asked<'static> = Asked::new("text", "me");
/// In the saved texts of squeue.
const NONCE: &str = "|nonce|";

/// Reads what this command shows; `false` where it is refused.
fn shown(what: &str, text: &str) -> bool {
    match what {
        "nodes" => shape::shown_nodes::<Node>(&ASKED, text).is_ok_and(|all| all.values().all(Result::is_ok)),
        "reservations" => shape::shown_reservations(&ASKED, text).is_ok(),
        "partitions" => shape::shown_partitions(&ASKED, text).is_ok(),
        _ => shape::shown_jobs(&ASKED, text, NONCE).is_ok(),
    }
}

/// Texts of scontrol and squeue of real releases with a few changes each, and any text. Whatever comes in is read or refused.
#[test]
fn commands_output() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/slurm/fixtures/cli");
    for what in ["nodes", "reservations", "partitions", "jobs"] {
        let text = |release: &str| read(&fixtures.join(release).join(format!("{what}.txt"))).into_bytes();
        let files = ["22.05", "24.11", "26.05"].map(text);
        let (good, bad) = (AtomicUsize::new(0), AtomicUsize::new(0));
        bolero::check!().with_iterations(TRIES / 10).with_type::<(u8, [Change; 2])>().for_each(
            |(file, changes)| {
                let mut body = files[usize::from(*file) % files.len()].clone();
                // One node's comment makes it unreadable as it stands.
                if what == "nodes" {
                    body = String::from_utf8_lossy(&body).replace("only Reason=x [root@5]", "x").into_bytes();
                }
                change(&mut body, changes);
                let read = shown(what, &String::from_utf8_lossy(&body));
                if read { &good } else { &bad }.fetch_add(1, Ordering::Relaxed);
            },
        );
        let (good, bad) = (good.into_inner(), bad.into_inner());
        assert!(good > TRIES / 1000 && bad > TRIES / 1000, "{what}: {good} read, {bad} refused");
        bolero::check!().with_iterations(TRIES / 10).with_type::<String>().for_each(|text| {
            shown(what, text);
        });
    }
}

/// What forged words are made of.
const FORGED: [&str; 24] = [
    " State=IDLE",
    " Gres=gpu:a100:4",
    " GresUsed=gpu:a100:0(IDX:N/A)",
    " Reason=gpu-bridge:h0042 e7 x [root@7]",
    " Comment=",
    " Extra=",
    " ReservationName=",
    " [root@7]",
    " [",
    "@7]",
    "        ",
    "\n",
    "\r\n",
    "NodeName=gpu2 State=IDLE Gres=gpu:4 GresUsed=gpu:0",
    "|",
    "8|COMPLETED|bob|main|1|gpu1||1:00|1|2|3|1|8|N/A|N/A|N/A|1||None",
    "JOBID|",
    "gres/gpu:1",
    ",",
    "(",
    "=",
    " ",
    "é",
    "x",
];

fn forged(words: &[u8]) -> String {
    words.iter().map(|word| FORGED[usize::from(*word) % FORGED.len()]).collect()
}

/// A user's words in what a job asks for make no job, and take none away.
#[test]
fn forged_texts_of_jobs() {
    let line = |id: u32, texts: [&str; 4]| {
        let checked = format!("{id}|RUNNING|alice|main|1|gpu1||1:00|1|2|62|1|{id}|N/A|N/A|N/A|1|cpu=1");
        format!("{checked}|{}{NONCE}\n", texts.join(NONCE))
    };
    let plain = ["None", "N/A", "N/A", "N/A"];
    bolero::check!().with_iterations(TRIES / 4).with_type::<(u8, Vec<u8>)>().for_each(|(place, words)| {
        let text = forged(words);
        let mut texts = plain;
        texts[usize::from(*place) % 4] = &text;
        let heading = shape::squeue_heading(NONCE);
        let jobs = format!("{heading}{}{}{}", line(6, plain), line(7, texts), line(8, plain));
        let jobs = shape::shown_jobs(&ASKED, &jobs, NONCE).unwrap();
        assert_eq!(jobs.keys().collect::<Vec<_>>(), [&JobId(6), &JobId(7), &JobId(8)], "{text:?}");
        for job in jobs.values().map(|record| &record.job) {
            assert!(job.state == JobState::Running && job.nodes.contains(&"gpu1".into()), "{text:?}");
        }
    });
}

/// An admin's words in a reason or comment do not change what is read of the node before them, and no drain of others becomes
/// ours.
#[test]
fn forged_texts_of_nodes() {
    const HEAD: &str = "Arch=x Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) State=MIXED+DRAIN Partitions=main";
    let (read_whole, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    bolero::check!().with_iterations(TRIES / 4).with_type::<(bool, Vec<u8>)>().for_each(|(reason, words)| {
        let text = forged(words);
        let tail = if *reason {
            format!("bad disk {text} [root@9]")
        } else {
            format!("bad disk [root@9] Comment={text}")
        };
        let shown = format!("NodeName=gpu1 {HEAD} Reason={tail}\n");
        let nodes: Result<BTreeMap<SlurmNodeName, Result<Node, String>>, _> =
            shape::shown_nodes(&ASKED, &shown);
        let Some(Ok(node)) = nodes.ok().and_then(|mut nodes| nodes.remove(&SlurmNodeName::from("gpu1")))
        else {
            refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        read_whole.fetch_add(1, Ordering::Relaxed);
        assert_eq!((node.gpus, node.gpus_used, node.flags.len()), (4, Some(1), 1), "{shown:?}");
        let stands = node.reason.map(|reason| reason.text).unwrap_or_default();
        assert!(stands.starts_with("bad disk") && DrainReason::parse(&stands).is_none(), "{shown:?}");
    });
    assert!(read_whole.into_inner() > 100 && refused.into_inner() > 100, "a one-sided trial");
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
