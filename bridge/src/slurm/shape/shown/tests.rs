//! What scontrol and squeue of three releases showed, held against what slurmrestd answered at the same moment; and words of
//! users and admins that are to pass for fields.

use std::path::{Path, PathBuf};

use gpu_bridge_core::facts::slurm::{Job, JobState, Node, NodeFlag};

use super::*;
use crate::slurm::version::Version;

const ASKED: Asked<'static> = Asked::new("text", "me");
const NONCE: &str = "|nonce|";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each release's texts, and the REST version whose answers stand beside them.
fn releases() -> [(PathBuf, Version); 3] {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/slurm/fixtures/cli");
    [("22.05", "v0.0.38"), ("24.11", "v0.0.42"), ("26.05", "v0.0.45")]
        .map(|(release, version)| (fixtures.join(release), Version::named(version).unwrap()))
}

type Nodes = BTreeMap<SlurmNodeName, Result<Node, String>>;

fn nodes(text: &str) -> Result<Nodes, Error> {
    shown_nodes(&ASKED, text)
}

fn jobs(text: &str) -> Result<BTreeMap<JobId, JobRecord>, Error> {
    shown_jobs(&ASKED, text, NONCE)
}

/// Behind a heading.
fn listed(lines: &str) -> Result<BTreeMap<JobId, JobRecord>, Error> {
    jobs(&format!("{}{lines}", squeue_heading(NONCE)))
}

/// Without what only one mouth tells: which of an array's tasks squeue joins, and Slurm's own sentence on a held job.
fn comparable(record: &JobRecord) -> (Job, Option<job::Het>) {
    let mut job = record.job.clone();
    job.pending_reason =
        job.pending_reason.filter(|reason| !reason.contains(' ') && !reason.starts_with("JobHeld"));
    (job, record.het)
}

#[test]
fn both_mouths_give_the_same_facts() {
    for (folder, version) in releases() {
        let text = |what: &str| read(&folder.join(format!("{what}.txt")));
        let answer = |what: &str| read(&folder.join(format!("{}/{what}.json", version.name)));
        let family = version.family;

        let mut found: Nodes = nodes(&text("nodes")).unwrap();
        let mut expected: Nodes = node::nodes(family, &ASKED, answer("nodes").as_bytes()).unwrap();
        // Its comment was "only Reason=x [root@5]": where the reason before it ends, nobody can tell.
        let gpu3 = SlurmNodeName::from("gpu3");
        assert!(found.remove(&gpu3).unwrap().unwrap_err().contains("more than one user and time"));
        assert!(expected.remove(&gpu3).unwrap().is_ok());
        assert_eq!(found, expected, "{}", folder.display());
        assert!(found.len() == 3 && found.values().all(Result::is_ok));

        let found = shown_reservations(&ASKED, &text("reservations")).unwrap();
        assert_eq!(found, rest::reservations(&ASKED, answer("reservations").as_bytes()).unwrap());
        assert_eq!(found.len(), 2);

        let found = shown_partitions(&ASKED, &text("partitions")).unwrap();
        assert_eq!(found, rest::partitions(family, &ASKED, answer("partitions").as_bytes()).unwrap());
        assert_eq!(found.len(), 3);

        let found = jobs(&text("jobs")).unwrap();
        let expected = job::jobs(family, &ASKED, answer("jobs").as_bytes()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (id, record) in &found {
            assert_eq!(comparable(record), comparable(&expected[id]), "{}", folder.display());
        }
        assert!(found.len() >= 13, "{}", found.len());
    }
}

#[test]
fn the_counter_and_the_release_are_read() {
    for ((folder, _), release) in releases().into_iter().zip(["22.05.8", "24.11.5", "26.05.5"]) {
        let config = read(&folder.join("config.txt"));
        assert_eq!(crate::slurm::rights::Config::read(&config).release.as_deref(), Some(release));
        assert!(crate::slurm::rights::Config::read(&config).next_job_id.is_some_and(|id| id.0 > 12));
    }
}

/// Whether a text is read that was cut here: at the end of a line alone.
fn whole_lines(whole: &str, at: usize) -> bool {
    whole[..at].ends_with('\n')
}

/// What is read of each beginning of the text, with its length; `None` is refused.
fn cuts<'a, T>(
    whole: &'a str,
    read: impl Fn(&str) -> Result<T, Error> + 'a,
) -> impl Iterator<Item = (usize, Option<T>)> + 'a {
    let ends = (0..whole.len()).filter(|at| whole.is_char_boundary(*at));
    ends.map(move |at| (at, read(&whole[..at]).ok()))
}

#[test]
fn a_text_that_was_cut_makes_no_other_fact() {
    for (folder, _) in releases() {
        let text = |what: &str| read(&folder.join(format!("{what}.txt")));

        let whole = text("nodes");
        let truth = nodes(&whole).unwrap();
        for (at, found) in cuts(&whole, nodes) {
            assert_eq!(found.is_some(), whole_lines(&whole, at), "nodes cut at {at}");
            assert!(found.iter().flatten().all(|(name, node)| truth.get(name) == Some(node)), "cut at {at}");
        }
        let whole = text("reservations");
        let truth = shown_reservations(&ASKED, &whole).unwrap();
        for (at, found) in cuts(&whole, |text| shown_reservations(&ASKED, text)) {
            assert_eq!(found.is_some(), whole_lines(&whole, at), "reservations cut at {at}");
            assert!(
                found.iter().flatten().all(|(name, found)| truth.get(name) == Some(found)),
                "cut at {at}"
            );
        }
        let whole = text("partitions");
        let truth = shown_partitions(&ASKED, &whole).unwrap();
        for (at, found) in cuts(&whole, |text| shown_partitions(&ASKED, text)) {
            assert_eq!(found.is_some(), whole_lines(&whole, at), "partitions cut at {at}");
            assert!(
                found.iter().flatten().all(|(name, found)| truth.get(name) == Some(found)),
                "cut at {at}"
            );
        }
        let whole = text("jobs");
        let truth = jobs(&whole).unwrap();
        for (at, found) in cuts(&whole, jobs) {
            // A line end may stand in a user's words too.
            let whole_jobs = whole[..at].ends_with(&format!("{NONCE}\n"));
            assert_eq!(found.is_some(), whole_jobs, "jobs cut at {at}");
            assert!(found.iter().flatten().all(|(id, found)| truth.get(id) == Some(found)), "cut at {at}");
        }
    }
}

const HEAD: &str = "NodeName=gpu1 Arch=x86_64 Gres=gpu:a100:4 GresUsed=gpu:a100:0(IDX:N/A) OS=Linux State=IDLE+DRAIN \
                    ThreadsPerCore=1 Partitions=main,debug  AllocTRES= CurrentWatts=0 AveWatts=0";

/// The reason of the one node, with user and time; `Err` where the node cannot be read.
fn reason(tail: &str) -> Result<Option<(String, String, i64)>, String> {
    let mut nodes = nodes(&format!("{HEAD}{tail}\n")).unwrap();
    let node = nodes.remove(&SlurmNodeName::from("gpu1")).unwrap()?;
    assert_eq!(node.flags.iter().collect::<Vec<_>>(), [&NodeFlag::Drain]);
    assert_eq!(node.partitions.iter().collect::<Vec<_>>(), ["debug", "main"]);
    let at = |reason: &gpu_bridge_core::facts::slurm::Reason| reason.at.map_or(0, jiff::Timestamp::as_second);
    Ok(node.reason.map(|reason| (reason.text.clone(), reason.user.clone(), at(&reason))))
}

#[test]
fn a_reason_is_read_whole_or_not_at_all() {
    let ours = "gpu-bridge:h0042 e7 why";
    let said = |text: &str, user: &str, at| Ok(Some((text.to_owned(), user.to_owned(), at)));
    for (tail, expected) in [
        ("", Ok(None)),
        (&format!(" Reason={ours} [root@1796051439]"), said(ours, "root", 1_796_051_439)),
        (" Reason=x [slurm@dom@5]", said("x", "slurm@dom", 5)),
        (
            " Reason=multi  State=DOWN [x@5] [root@7]        line two",
            said("multi  State=DOWN [x@5]\nline two", "root", 7),
        ),
        (" Reason=x [root@7] Comment=a Reason=y [z] Extra=q", said("x", "root", 7)),
        (" Reason=x [root@7]        two Comment=a", said("x\ntwo", "root", 7)),
        (" Comment=only Reason=x [root@5]", Ok(None)),
        (" ReservationName=now State=DOWN", Ok(None)),
        (" Reason=of slurm.conf", said("of slurm.conf", "", 0)),
    ] {
        assert_eq!(reason(tail), expected, "{tail:?}");
    }
    for unreadable in [
        // More than one thing that looks like the end.
        " Reason=x [root@7] Comment=y [root@8]",
        " Reason=gpu-bridge:h0042 e7 x [root@7] Comment=z [root@8] Comment=w",
        " Reason=of slurm.conf Comment=x",
        // Times that SLURM_TIME_FORMAT did not reach.
        " Reason=x [root@2026-11-30T15:10:58]",
    ] {
        assert!(reason(unreadable).is_err(), "{unreadable:?}");
    }
    // An MCS label that passes for our drain, and for a comment that hides a person's.
    let label = |words: &str| format!("{} MCS_label=x{words}", HEAD.split(" Partitions=").next().unwrap());
    for words in [" Reason=gpu-bridge:h0042 e7 why [root@7]", " Reason=gpu-bridge:h0042 e7 why", " Comment=x"]
    {
        for rest in [" Partitions=main", " CfgTRES=cpu=1", " Partitions=main CfgTRES=cpu=1"] {
            for person in ["", " Reason=bad disk [admin@9]"] {
                let text = format!("{}{rest}{person}\n", label(words));
                let node = nodes(&text).unwrap().remove(&SlurmNodeName::from("gpu1")).unwrap();
                assert!(node.is_err(), "{text}: {node:?}");
            }
        }
    }
    let error = reason(" Reason=x [root@2026-11-30T15:10:58]").unwrap_err();
    assert!(error.contains("SLURM_TIME_FORMAT"), "{error}");
}

#[test]
fn words_of_others_make_no_node() {
    let real = format!("{HEAD} Reason=x [root@7]");
    let gpu1 = SlurmNodeName::from("gpu1");
    // A comment with a line end in it: two records of one node, in whichever order.
    let forged = "NodeName=gpu0 State=IDLE Gres=gpu:4 Comment=new\nNodeName=gpu1 State=IDLE Gres=gpu:4";
    for text in [format!("{real}\n{forged}\n"), format!("{forged}\n{real}\n")] {
        let nodes = nodes(&text).unwrap();
        assert!(nodes[&gpu1].is_err(), "{nodes:?}");
        assert!(nodes[&SlurmNodeName::from("gpu0")].is_ok());
    }
    // A line that is no record stands behind a comment, or nothing is read.
    assert_eq!(nodes(&format!("{real} Comment=a\nb\n")).unwrap().len(), 1);
    for text in
        ["", "\n", "slurm_load_node error\n", HEAD, &format!("{HEAD}\nodd\n"), &format!("odd\n{HEAD}\n")]
    {
        assert!(nodes(text).is_err(), "{text:?}");
    }
    assert_eq!(nodes("No nodes in the system\n").unwrap().len(), 0);
    // Twice in the fields, or missing.
    for (from, to) in [
        ("OS=Linux", "OS=Linux State=IDLE"),
        (" State=IDLE+DRAIN", ""),
        (" Gres=gpu:a100:4", ""),
        ("IDLE+DRAIN", ""),
    ] {
        assert!(nodes(&(HEAD.replace(from, to) + "\n")).unwrap()[&gpu1].is_err(), "{from:?} -> {to:?}");
    }
    // What is in use and not told is in use.
    let quiet = nodes(&(HEAD.replace(" GresUsed=gpu:a100:0(IDX:N/A)", "") + "\n")).unwrap();
    assert_eq!(quiet[&gpu1].as_ref().unwrap().gpus_used, None);
}

/// A job's line, with these of the users' texts.
fn job_line(state: &str, texts: [&str; 4]) -> String {
    let checked =
        format!("7|{state}|alice|main|2|gpu[1-2]||1-02:00:00|100|200|93800|1|7|N/A|N/A|N/A|2|cpu=2");
    format!("{checked}|{}{NONCE}\n", texts.join(NONCE))
}

#[test]
fn words_of_users_make_no_job() {
    for gres in [
        "gres/gpu:1",
        "gres/gpu:1|x",
        "gres/gpu:1\nx",
        "x\n8|COMPLETED|bob|main|1|gpu1||1:00|1|2|3|1|8|N/A|N/A|N/A|1||None\n",
        "JobState=COMPLETED NodeList=(null)",
        "|||||||||||||||||||||||||",
        "\n\n7|COMPLETED|\n",
        "|",
    ] {
        for texts in [["None", gres, "N/A", "N/A"], ["None", "N/A", gres, "N/A"], [gres, "N/A", "N/A", gres]]
        {
            let before = job_line("RUNNING", ["None", "N/A", "N/A", "N/A"]).replace("7|", "6|");
            let after = before.replace("6|", "8|");
            let found = listed(&format!("{before}{}{after}", job_line("RUNNING", texts))).unwrap();
            assert_eq!(found.keys().collect::<Vec<_>>(), [&JobId(6), &JobId(7), &JobId(8)], "{texts:?}");
            for JobRecord { job, .. } in found.values() {
                assert_eq!(
                    (&job.state, job.nodes.len(), job.user.as_str()),
                    (&JobState::Running, 2, "alice")
                );
            }
        }
    }
}

/// Should somebody read the word off the command line in time: neither another's job vanishes nor its nodes.
#[test]
fn whoever_knows_the_word_makes_the_look_fail_and_no_job_vanish() {
    let victim = job_line("RUNNING", ["None", "N/A", "N/A", "N/A"]);
    let (n, record) = (NONCE, "8|COMPLETED|bob|main|1|gpu9||1:00|1|2|3|1|8|N/A|N/A|N/A|1||None");
    let again = victim.trim_end().replace("gpu[1-2]", "gpu[8-9]");
    // Every shift of the texts against the lines, and a whole line of the victim's own with other nodes.
    let mut forged: Vec<String> =
        (0..12).map(|texts| format!("x{}", format!("{n}x").repeat(texts))).collect();
    forged.extend((0..8).map(|texts| format!("x{n}x{n}x{n}\n{record}{}", format!("{n}x").repeat(texts))));
    forged.extend(["|nonce".to_owned(), "nonce|".to_owned(), format!("x{n}x{n}x{n}\n{again}\n8|")]);
    forged.push(format!("x{n}x{n}x{n}\n{again}\n{record}{n}x"));
    for text in &forged {
        for place in 0..4 {
            let mut texts = ["None", "N/A", "N/A", "N/A"];
            texts[place] = text;
            let attacker = job_line("PENDING", texts).replacen("7|", "6|", 1);
            for lines in [format!("{attacker}{victim}"), format!("{victim}{attacker}")] {
                let Ok(found) = listed(&lines) else { continue };
                let seen = &found[&JobId(7)].job;
                assert_eq!((&seen.state, seen.nodes.len()), (&JobState::Running, 2), "{lines:?}");
                assert!(seen.nodes.contains(&"gpu1".into()), "{lines:?}");
            }
        }
    }
}

#[test]
fn what_is_no_list_of_jobs_is_refused() {
    assert_eq!(listed("").unwrap().len(), 0);
    let whole = job_line("RUNNING", ["None", "N/A", "N/A", "N/A"]);
    let heading = squeue_heading(NONCE);
    for text in [
        String::new(),
        "\n".to_owned(),
        // Without a heading it may be anything that ended well.
        whole.clone(),
        heading.trim_end().to_owned(),
        heading.replace("JOBID", "JOB ID"),
        heading.replacen("STATE|", "", 1),
        heading.to_lowercase(),
        format!("{heading}{heading}"),
        format!("{whole}{heading}"),
    ] {
        assert!(jobs(&text).is_err(), "{text:?}");
    }
    for lines in [
        "\n|nonce|".to_owned(),
        "squeue: error".to_owned(),
        "\n".to_owned(),
        format!("\n{whole}"),
        format!("{whole}\n"),
        format!("{whole}{whole}"),
        whole.replace(NONCE, "|other|"),
        whole.replacen(NONCE, "", 1),
        whole.replacen(NONCE, "|nonce||nonce|", 1),
        whole.replace("7|RUN", "x|RUN"),
        whole.replace("|200|", "|2026-11-30T15:10:58|"),
        whole.replace("gpu[1-2]", "gpu[1-"),
        whole.replacen("|alice", "", 1),
        format!("{}x", whole.trim_end()),
        whole.trim_end().to_owned(),
    ] {
        assert!(listed(&lines).is_err(), "{lines:?}");
    }
}

/// One such job would leave all of Slurm Unknown while it runs.
#[test]
fn what_tells_neither_where_a_job_is_nor_since_when_fails_no_look() {
    let line = job_line("RUNNING", ["None", "N/A", "N/A", "N/A"]);
    let read = |line: &str| listed(line).unwrap().remove(&JobId(7)).unwrap().job;
    let whole = read(&line);
    let unlimited = read(&line.replace("1-02:00:00", "UNLIMITED").replace("93800", "NONE"));
    assert_eq!(unlimited, Job { time_limit: None, end_by: None, ..whole.clone() });

    for (from, to, expected) in [
        ("93800", "Never", Job { end_by: None, ..whole.clone() }),
        ("93800", "2026-11-30T15:10:58", Job { end_by: None, ..whole.clone() }),
        ("|100|", "|2026-11-30T15:10:58|", Job { submitted: None, ..whole.clone() }),
        ("1-02:00:00", "Partition_Limit", Job { time_limit: None, end_by: None, ..whole.clone() }),
        ("|main|2|", "|main|two|", Job { node_count: 0, ..whole.clone() }),
        ("|2|cpu", "|many|cpu", whole.clone()),
        ("|1|7|", "|yes|7|", Job { requeue: false, ..whole.clone() }),
        ("|7|N/A|N/A|N/A|", "|7|N/A|odd|odd|", whole.clone()),
    ] {
        let odd = line.replace(from, to);
        assert_ne!(odd, line, "{from}");
        assert_eq!(read(&odd), expected, "{from} -> {to}");
    }
    for (from, to) in [
        ("7|RUN", "seven|RUN"),
        ("gpu[1-2]", "gpu[1-"),
        ("|200|", "|Never|"),
        ("|200|", "|2026-11-30T15:10:58|"),
    ] {
        let odd = line.replace(from, to);
        assert_ne!(odd, line, "{from}");
        assert!(listed(&odd).is_err(), "{from} -> {to}");
    }
}

#[test]
fn forms_of_times_limits_and_counts() {
    for (text, expected) in [
        ("10:00", Sin::Number(10)),
        ("0:30", Sin::Number(1)),
        ("1:00:00", Sin::Number(60)),
        ("1-02:00:00", Sin::Number(1560)),
        ("7-00:00:00", Sin::Number(10_080)),
        ("UNLIMITED", Sin::Infinite),
        ("INVALID", Sin::Unset),
        ("Partition_Limit", Sin::Unset),
        ("1-2-3:00", Sin::Unset),
        ("1:2:3:4", Sin::Unset),
        ("", Sin::Unset),
    ] {
        assert_eq!(minutes(text), expected, "{text:?}");
    }
    for (text, expected) in
        [("2", Some(2)), ("0", Some(0)), ("2K", Some(2048)), ("2M", None), ("", None), ("-1", None)]
    {
        assert_eq!(count(text).ok(), expected.map(Sin::Number), "{text:?}");
    }
}

#[test]
fn a_reservation_s_name_and_comment_are_no_fields() {
    let fields = "StartTime=100 EndTime=200 Duration=00:01:40 Nodes=gpu1 Flags=MAINT,SPEC_NODES Users=root Groups=(null) \
                  Accounts=(null) State=ACTIVE";
    for name in ["a StartTime=5", "gpu-bridge_h0042 Nodes=gpu9", "x Comment=y"] {
        let found =
            shown_reservations(&ASKED, &format!("ReservationName={name} {fields} Comment=a Nodes=gpu8\nb\n"))
                .unwrap();
        let reservation = &found[name];
        assert_eq!(reservation.nodes, gpu_bridge_core::facts::NodeSet::from(["gpu1".into()]));
        assert_eq!((reservation.users.len(), reservation.accounts.len(), reservation.flags.len()), (1, 0, 2));
    }
    assert_eq!(shown_reservations(&ASKED, "No reservations in the system\n").unwrap().len(), 0);
    for odd in [
        format!("ReservationName=a StartTime=1 EndTime=2 {fields}"),
        format!("ReservationName=a {fields}\nReservationName=a {fields}"),
        format!("ReservationName=a {}", fields.replace("Nodes=gpu1", "Nodes=gpu[")),
        format!("ReservationName=a {}", fields.replace("EndTime=200", "EndTime=2026-11-30T20:24:24")),
        "slurm_load_reservations error".to_owned(),
        String::new(),
    ] {
        assert!(shown_reservations(&ASKED, &(odd.clone() + "\n")).is_err(), "{odd:?}");
    }
}
