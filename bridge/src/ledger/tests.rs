use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::*;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Event {
    Step { handover: String, to: String },
    Note(String),
}

type Sim = Ledger<Event, SimDisk>;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_061_600 + second).unwrap()
}

fn note(text: &str) -> Event {
    Event::Note(text.to_owned())
}

fn step(to: &str) -> Event {
    Event::Step { handover: "h0042".to_owned(), to: to.to_owned() }
}

fn open(disk: &SimDisk) -> Result<(Sim, Replay, Vec<Event>), Error> {
    let mut seen = Vec::new();
    let (ledger, replay) = Ledger::open_on(disk.clone(), at(0), |entry| seen.push(entry.event))?;
    Ok((ledger, replay, seen))
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.split(|b| *b == b'\n').count() - 1
}

fn sample() -> (Vec<u8>, Vec<Event>) {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    let events = vec![step("Planned"), note("quote \" and \\ and ü\n"), step("Reserved"), step("Draining")];
    for (second, event) in events.iter().enumerate() {
        ledger.append(at(i64::try_from(second).unwrap()), event).unwrap();
    }
    (disk.bytes(), events)
}

#[test]
fn what_was_appended_is_replayed_with_numbers_times_and_hashes() {
    let (bytes, events) = sample();
    let mut seen = Vec::new();
    let (ledger, replay) =
        Ledger::<Event, _>::open_on(SimDisk::holding(&bytes), at(9), |entry| seen.push(entry)).unwrap();
    assert_eq!(seen.iter().map(|e| &e.event).collect::<Vec<_>>(), events.iter().collect::<Vec<_>>());
    assert_eq!(seen.iter().map(|e| e.seq.0).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(seen[3].at, at(3));
    assert_eq!((replay.origin, replay.torn), (Origin::Found, None));
    assert_eq!((replay.last, replay.hash), ledger.last());
    assert_eq!(ledger.last(), (Seq(5), seen[3].hash));
}

#[test]
fn a_ledger_cut_at_any_byte_opens_with_the_lines_before_the_cut_and_goes_on() {
    let (bytes, events) = sample();
    for cut in 0..=bytes.len() {
        let disk = SimDisk::holding(&bytes[..cut]);
        let (mut ledger, replay, seen) = open(&disk).unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        let lines = newlines(&bytes[..cut]);
        assert_eq!(seen, events[..lines.saturating_sub(1)], "cut at {cut}");
        let whole = cut == 0 || bytes[cut - 1] == b'\n';
        assert_eq!(replay.torn.is_none(), whole, "cut at {cut}");
        ledger.append(at(9), &note("after")).unwrap();
        let (_, replay, seen) = open(&disk).unwrap();
        assert_eq!((replay.torn, seen.last()), (None, Some(&note("after"))), "cut at {cut}");
    }
}

#[test]
fn any_flipped_bit_is_refused_but_in_the_last_newline() {
    let (bytes, events) = sample();
    let last = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match open(&SimDisk::holding(&flipped)) {
            Err(Error::Broken(broken)) => {
                let line = 1 + newlines(&bytes[..bit / 8]) as u64;
                assert_eq!(broken.line, line, "bit {bit}: {broken}");
            }
            Ok((_, replay, seen)) => {
                assert_eq!(bit / 8, bytes.len() - 1, "bit {bit} went unseen");
                assert_eq!(replay.torn.map(|t| t.offset), Some(last as u64), "bit {bit}");
                assert_eq!(seen, events[..events.len() - 1], "bit {bit}");
            }
            Err(other) => panic!("bit {bit}: {other}"),
        }
    }
}

#[test]
fn lines_taken_out_swapped_or_added_are_refused_with_the_place() {
    let (bytes, _) = sample();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    let cases: [(&str, Vec<&[u8]>, u64, &str); 5] = [
        ("first line gone", lines[1..].to_vec(), 1, "seq 2"),
        ("middle line gone", vec![lines[0], lines[1], lines[3], lines[4]], 3, "seq 4"),
        ("two lines swapped", vec![lines[0], lines[2], lines[1], lines[3]], 2, "seq 3"),
        ("a line twice", vec![lines[0], lines[1], lines[1], lines[2]], 3, "seq 2"),
        ("a blank line", vec![lines[0], b"\n", lines[1]], 2, "``"),
    ];
    for (case, lines, line, found) in cases {
        let offset = lines[..usize::try_from(line).unwrap() - 1].concat().len() as u64;
        match open(&SimDisk::holding(&lines.concat())) {
            Err(Error::Broken(broken)) => {
                assert_eq!(
                    (broken.line, broken.offset, broken.found.as_str()),
                    (line, offset, found),
                    "{case}"
                );
                assert!(broken.to_string().contains(&format!("at line {line} (byte")), "{case}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
}

#[test]
fn a_line_with_a_right_number_from_another_ledger_is_refused() {
    let (bytes, _) = sample();
    let other = SimDisk::new();
    let (mut ledger, _, _) = open(&other).unwrap();
    ledger.append(at(1), &note("elsewhere")).unwrap();
    ledger.append(at(2), &note("elsewhere")).unwrap();
    let ours: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    let other = other.bytes();
    let theirs: Vec<&[u8]> = other.split_inclusive(|b| *b == b'\n').collect();
    let Err(Error::Broken(broken)) = open(&SimDisk::holding(&[ours[0], ours[1], theirs[2]].concat())) else {
        panic!("accepted");
    };
    assert_eq!(broken.line, 3);
    assert!(broken.found.contains("follows"), "{broken}");
}

#[test]
fn a_crash_at_any_operation_loses_only_what_was_not_acknowledged() {
    let events: Vec<Event> = (0..6).map(|n| note(&format!("event {n}"))).collect();
    let run = |disk: &SimDisk| {
        let mut acknowledged = 0;
        let Ok((mut ledger, _, _)) = open(disk) else { return acknowledged };
        for event in &events[..2] {
            acknowledged += usize::from(ledger.append(at(1), event).is_ok());
        }
        if ledger.append_batch(at(2), &events[2..5]).is_ok() {
            acknowledged += 3;
        }
        acknowledged + usize::from(ledger.append(at(3), &events[5]).is_ok())
    };
    let clean = SimDisk::new();
    assert_eq!(run(&clean), events.len());
    for operation in 0..clean.operations() {
        for bytes in [0, 1, 100, 300, 100_000] {
            for keep in [Keep::Synced, Keep::Bytes(1), Keep::Bytes(150), Keep::Bytes(400), Keep::All] {
                let case = format!("operation {operation}, {bytes} bytes through, {keep:?}");
                let disk = SimDisk::new();
                disk.crash_at(operation, bytes);
                let acknowledged = run(&disk);
                assert!(disk.is_crashed(), "{case}");
                disk.restart(keep);
                let (mut ledger, _, seen) = open(&disk).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert!(
                    seen.len() >= acknowledged,
                    "{case}: {acknowledged} acknowledged, {} there",
                    seen.len()
                );
                assert_eq!(seen, events[..seen.len()], "{case}");
                ledger.append(at(9), &note("after")).unwrap();
                disk.restart(Keep::Synced);
                assert_eq!(open(&disk).unwrap().2.len(), seen.len() + 1, "{case}");
            }
        }
    }
}

#[test]
fn a_full_disk_is_told_rolled_back_and_gone_on_from() {
    for room in [0, 1, 50, 150] {
        let disk = SimDisk::new();
        let (mut ledger, _, _) = open(&disk).unwrap();
        ledger.append(at(1), &note("before")).unwrap();
        let before = disk.bytes();
        disk.full_at(Some(before.len() + room));
        assert!(matches!(ledger.append(at(2), &note("lost")), Err(Error::Full { .. })));
        assert_eq!(disk.bytes(), before, "half a line stayed");
        disk.full_at(None);
        assert_eq!(ledger.append(at(3), &note("after")).unwrap(), Seq(3));
        assert_eq!(open(&disk).unwrap().2, [note("before"), note("after")]);
    }
}

#[test]
fn half_a_line_that_could_not_be_taken_back_is_taken_back_before_the_next_one() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    disk.read_only(true);
    assert!(matches!(ledger.append(at(1), &note("lost")), Err(Error::ReadOnly { .. })));
    assert_eq!(ledger.tail, Tail::Ragged);
    disk.read_only(false);
    // As if half of it had got through.
    disk.clone().append(b"{\"seq\":2,\"at").unwrap();
    ledger.append(at(2), &note("after")).unwrap();
    assert_eq!(open(&disk).unwrap().2, [note("after")]);
}

#[test]
fn a_read_only_disk_is_told_and_the_ledger_goes_on_when_it_is_writable_again() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    disk.read_only(true);
    assert!(matches!(ledger.append(at(1), &note("lost")), Err(Error::ReadOnly { .. })));
    assert!(!ledger.is_poisoned());
    disk.read_only(false);
    ledger.append(at(2), &note("after")).unwrap();
    assert_eq!(open(&disk).unwrap().2, [note("after")]);
}

#[test]
fn closing_lines_wait_for_the_disk_in_order_and_go_before_the_next_line() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    disk.full_at(Some(disk.bytes().len() + 30));
    for n in 1..=2_usize {
        let recorded = ledger.append_best_effort(at(1), &note(&format!("close {n}"))).unwrap();
        assert!(matches!(recorded, Recorded::Waiting { lines, because: Error::Full { .. } } if lines == n));
    }
    assert!(ledger.append(at(3), &note("refused")).is_err());
    disk.full_at(None);
    assert_eq!(ledger.append(at(4), &note("open")).unwrap(), Seq(4));
    assert_eq!(ledger.waiting(), 0);
    assert!(matches!(ledger.append_best_effort(at(5), &note("close 3")), Ok(Recorded::Durable(Seq(5)))));
    let expected = [note("close 1"), note("close 2"), note("open"), note("close 3")];
    assert_eq!(open(&disk).unwrap().2, expected);
}

#[test]
fn what_may_wait_is_bounded_and_what_could_never_be_written_may_not_wait() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    disk.read_only(true);
    let endless = note(&"x".repeat(MAX_LINE_BYTES));
    assert!(matches!(ledger.append_best_effort(at(1), &endless), Err(Error::TooLong { .. })));
    let big = note(&"x".repeat(1_000_000));
    let refused = (0..40).find_map(|n| ledger.append_best_effort(at(n), &big).err().map(|e| (n, e)));
    let Some((16, Error::Backlog { limit: 16 })) = refused else { panic!("{refused:?}") };
    disk.read_only(false);
    assert_eq!(ledger.flush().unwrap(), Seq(17));
}

#[test]
fn an_event_longer_than_a_line_is_refused_and_harms_nothing() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    let endless = note(&"x".repeat(MAX_LINE_BYTES));
    assert!(matches!(ledger.append(at(1), &endless), Err(Error::TooLong { .. })));
    assert!(matches!(ledger.append_batch(at(1), [&note("a"), &endless]), Err(Error::TooLong { .. })));
    let longest = note(&"x".repeat(MAX_LINE_BYTES - 300));
    ledger.append(at(1), &longest).unwrap();
    assert_eq!(open(&disk).unwrap().2, [longest]);
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_the_tail_was_verified_again() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    ledger.append(at(1), &note("before")).unwrap();
    disk.fail_syncs(1);
    assert!(matches!(ledger.append(at(2), &note("lost")), Err(Error::Io { doing: "syncing", .. })));
    assert!(ledger.is_poisoned());
    assert!(matches!(ledger.append(at(3), &note("refused")), Err(Error::Poisoned)));
    let waiting = ledger.append_best_effort(at(4), &note("close"));
    assert!(matches!(waiting, Ok(Recorded::Waiting { lines: 1, because: Error::Poisoned })));
    disk.fail_syncs(1);
    assert!(ledger.recover().is_err() && ledger.is_poisoned());
    ledger.recover().unwrap();
    ledger.append(at(5), &note("after")).unwrap();
    disk.restart(Keep::Synced);
    assert_eq!(open(&disk).unwrap().2, [note("before"), note("close"), note("after")]);
}

#[test]
fn recovery_refuses_a_disk_whose_last_acknowledged_line_is_another() {
    let disk = SimDisk::new();
    let (mut ledger, _, _) = open(&disk).unwrap();
    ledger.append(at(1), &note("before")).unwrap();
    disk.fail_syncs(1);
    assert!(ledger.append(at(2), &note("lost")).is_err());
    let (bytes, _) = sample();
    let mut twin = disk.clone();
    twin.truncate(0).unwrap();
    twin.append(&bytes).unwrap();
    assert!(matches!(ledger.recover(), Err(Error::Broken(Broken { line: 2, .. }))));
    assert!(ledger.is_poisoned());
}

#[test]
fn another_format_and_unknown_events_are_told_from_damage() {
    let write = |event: &[u8], lines: u64| {
        let (mut bytes, mut hash) = (Vec::new(), LineHash::NONE);
        for seq in 1..=lines {
            let event = if seq == lines { event } else { br#"{"gpu_bridge_ledger":1}"# };
            hash = line::write(&mut bytes, Seq(seq), at(0), event, hash).unwrap();
        }
        SimDisk::holding(&bytes)
    };
    let newer = open(&write(br#"{"gpu_bridge_ledger":2}"#, 1)).err();
    assert!(matches!(newer, Some(Error::Format { found: 2, known: 1 })));
    assert!(matches!(
        open(&write(br#"{"Note":"no header"}"#, 1)).err(),
        Some(Error::Broken(Broken { line: 1, .. }))
    ));
    assert!(matches!(open(&write(br#"{"Later":1}"#, 2)).err(), Some(Error::Event { seq: Seq(2), .. })));
}

fn in_folder(events: &[Event]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, replay) = Ledger::open(dir.path(), at(0), |_| ()).unwrap();
    assert_eq!(replay.origin, Origin::Fresh);
    ledger.append_batch(at(1), events).unwrap();
    dir
}

#[test]
fn a_file_is_written_read_verified_and_repaired() {
    let (_, events) = sample();
    let dir = in_folder(&events);
    let path = path_in(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"seq\":6,\"at\":\"20");
    std::fs::write(&path, &bytes).unwrap();

    let report = verify(&path).unwrap();
    assert_eq!((report.last, report.broken), (Seq(5), None));
    assert_eq!(report.torn, Some(Torn { line: 6, offset: report.bytes, bytes: 17 }));
    let mut entries = Entries::<Event>::open(&path).unwrap();
    let read: Vec<Event> = entries.by_ref().map(|e| e.unwrap().event).collect();
    assert_eq!((read, entries.torn()), (events.clone(), report.torn));

    let (_ledger, replay) = Ledger::<Event>::open(dir.path(), at(2), |_| ()).unwrap();
    assert_eq!((replay.torn, replay.hash), (report.torn, report.hash));
    assert_eq!(std::fs::read(&path).unwrap().len() as u64, report.bytes);
}

#[test]
fn cut_moves_the_damaged_end_aside_and_the_rest_opens() {
    let (_, events) = sample();
    let dir = in_folder(&events);
    let path = path_in(dir.path());
    let whole = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
    let damaged = whole.replacen("Reserved", "Released", 1);
    std::fs::write(&path, &damaged).unwrap();
    assert_eq!(verify(&path).unwrap().broken.unwrap().line, 4);
    assert!(matches!(Ledger::<Event>::open(dir.path(), at(2), |_| ()), Err(Error::Broken(b)) if b.line == 4));
    assert!(matches!(cut(dir.path(), 5), Err(Error::Broken(b)) if b.line == 4));
    assert!(matches!(cut(dir.path(), 0), Err(Error::NoSuchLine { at: 0, .. })));
    // What would go is told before, by the same checks.
    assert!(matches!(plan_cut(dir.path(), 5), Err(Error::Broken(b)) if b.line == 4));
    for at in [0, 7] {
        let error = plan_cut(dir.path(), at).unwrap_err();
        assert!(matches!(error, Error::NoSuchLine { .. } | Error::Broken(_)), "{error}");
    }
    let plan = plan_cut(dir.path(), 4).unwrap();
    assert_eq!((plan.keeps, plan.moves_lines), (3, 2));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged, "looking changed the file");

    let report = cut(dir.path(), 4).unwrap();
    assert_eq!(report.kept, 3);
    let (kept, moved) =
        (std::fs::read_to_string(&path).unwrap(), std::fs::read_to_string(&report.moved_to).unwrap());
    assert_eq!((kept.clone() + &moved, moved.len() as u64), (damaged, report.moved_bytes));
    assert_eq!(plan.moves_bytes, report.moved_bytes);
    assert!(matches!(cut(dir.path(), 4), Err(Error::NoSuchLine { at: 4, lines: 3 })));
    {
        let (mut ledger, _) = Ledger::open(dir.path(), at(3), |_| ()).unwrap();
        assert_eq!(ledger.append(at(3), &note("after the cut")).unwrap(), Seq(4));
        for refused in [cut(dir.path(), 4).err(), plan_cut(dir.path(), 4).err()] {
            assert!(matches!(refused, Some(Error::Locked { pid: Some(_), .. })), "{refused:?}");
        }
    }
    let again = cut(dir.path(), 4).unwrap();
    assert_ne!(again.moved_to, report.moved_to);
    assert_eq!(std::fs::read_to_string(&report.moved_to).unwrap(), moved, "an older cut was overwritten");
}

#[test]
fn a_ledger_that_is_empty_is_not_called_sound() {
    let dir = tempfile::tempdir().unwrap();
    let path = path_in(dir.path());
    for content in ["", "{\"seq\":1,\"at\":\"20"] {
        std::fs::write(&path, content).unwrap();
        let text = verify(&path).unwrap().to_string();
        assert!(text.contains("EMPTY") && !text.contains("holds") && text.ends_with("[GB0201]"), "{text}");
    }
    // A broken first line is not empty.
    std::fs::write(&path, "nonsense\nnonsense\n").unwrap();
    let report = verify(&path).unwrap();
    let text = report.to_string();
    assert!(text.contains("BROKEN") && text.ends_with("[GB0201]") && !text.contains("EMPTY"), "{text}");
    assert_eq!(report.code, Some("GB0201"));
}

#[test]
fn what_can_t_be_read_or_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = path_in(dir.path());
    std::fs::create_dir(&path).unwrap();
    let told = |error: Error| format!("{error}: {}", std::error::Error::source(&error).unwrap());
    let missing = dir.path().join("nowhere").join("ledger.jsonl");
    for (error, names) in [
        (verify(&path).unwrap_err(), &path),
        (verify(&missing).unwrap_err(), &missing),
        (Entries::<Event>::open(&missing).unwrap_err(), &missing),
        (plan_cut(&dir.path().join("nowhere"), 1).unwrap_err(), &missing),
    ] {
        assert_eq!(error.code(), "GB0213");
        assert!(told(error).contains(&names.display().to_string()), "{}", names.display());
    }
    let lock = dir.path().join("nowhere").join("ledger.lock");
    for (error, names) in [
        (Ledger::<Event>::open(dir.path(), at(0), |_| ()).unwrap_err(), &path),
        (cut(&dir.path().join("nowhere"), 1).unwrap_err(), &lock),
    ] {
        let text = told(error);
        assert!(text.contains(&names.display().to_string()), "{text}");
    }
}

#[test]
fn a_lock_file_without_a_living_holder_is_no_lock() {
    let dir = in_folder(&[note("x")]);
    std::fs::write(dir.path().join("ledger.lock"), "1\n").unwrap();
    Ledger::<Event>::open(dir.path(), at(1), |_| ()).unwrap();
}

/// Not a test by itself: another process for the tests below, which start it with a folder.
#[test]
fn in_another_process() {
    let Some(dir) = std::env::var_os("LEDGER_TEST_FOLDER") else { return };
    let (mut ledger, _) = Ledger::open(Path::new(&dir), at(0), |_| ()).unwrap();
    println!("\nopen");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        ledger.append_batch(at(1), [&note(line.trim()), &note("same batch")]).unwrap();
        line.clear();
    }
}

fn other_process(dir: &Path, abort_after: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ledger::tests::in_another_process", "--nocapture"])
        .env("LEDGER_TEST_FOLDER", dir)
        .env("GPU_BRIDGE_ABORT_AFTER_SEQ", abort_after)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_living_holder_is_named_and_a_killed_one_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = other_process(dir.path(), "");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "open"));
    let refused = Ledger::<Event>::open(dir.path(), at(1), |_| ()).err().unwrap();
    assert!(matches!(refused, Error::Locked { pid, .. } if pid == Some(child.id())), "{refused}");
    assert!(refused.to_string().contains(&child.id().to_string()));
    child.kill().unwrap();
    child.wait().unwrap();
    Ledger::<Event>::open(dir.path(), at(1), |_| ()).unwrap();
}

#[cfg(feature = "failpoints")]
#[test]
fn the_failpoint_aborts_once_the_line_is_durable() {
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    let dir = tempfile::tempdir().unwrap();
    let mut child = other_process(dir.path(), "4");
    // Two lines a batch behind the header: line 4 is the first of the second batch.
    child.stdin.take().unwrap().write_all(b"first\nsecond\nthird\n").unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(6));
    let entries = Entries::<Event>::open(&path_in(dir.path())).unwrap();
    let read: Vec<Event> = entries.map(|e| e.unwrap().event).collect();
    assert_eq!(read, [note("first"), note("same batch"), note("second"), note("same batch")]);
}
