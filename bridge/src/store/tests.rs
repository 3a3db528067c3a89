use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

const NODES: Table<String, String> = Table::new("nodes");
/// Its name begins like another's.
const NODES2: Table<String, String> = Table::new("nodes2");
const DECISIONS: Table<u64, Vec<u32>> = Table::new("decisions");
const SCHEMA_NOW: u32 = 3;

fn now() -> Timestamp {
    "2026-11-30T18:00:00Z".parse().unwrap()
}

fn mark(seq: u64) -> Mark {
    Mark { seq: Seq(seq), hash: LineHash([u8::try_from(seq).unwrap(); 32]) }
}

fn open(dir: &Path) -> (Store, Opened) {
    Store::open(dir, SCHEMA_NOW, now()).unwrap()
}

fn node(name: &str, owner: &str) -> Batch {
    let mut batch = Batch::new();
    batch.put(&NODES, &name.to_owned(), &owner.to_owned()).unwrap();
    batch
}

/// A folder with a store at line 5.
fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, opened) = open(dir.path());
    assert_eq!(opened, Opened::Fresh);
    store.apply(mark(5), node("gpu1", "slurm")).unwrap();
    store.flush().unwrap();
    dir
}

/// Opens a store that must be rebuilt, and checks that it is empty, works, and that the old one is kept.
fn rebuilt(dir: &Path) -> Reason {
    let (mut store, opened) = open(dir);
    let Opened::Rebuild { reason, moved_to } = opened else { panic!("{opened:?}") };
    assert!(moved_to.starts_with(dir) && moved_to.exists());
    assert_eq!((store.applied(), store.rows(&NODES).count()), (None, 0));
    store.apply(mark(2), node("gpu1", "kubernetes")).unwrap();
    drop(store);
    assert_eq!(open(dir).1, Opened::AsOf(mark(2)));
    reason
}

#[test]
fn what_was_applied_is_there_after_reopening_with_its_place() {
    let dir = written();
    let (store, opened) = open(dir.path());
    assert_eq!(opened, Opened::AsOf(mark(5)));
    assert_eq!(store.get(&NODES, &"gpu1".to_owned()).unwrap(), Some("slurm".to_owned()));
    assert_eq!(store.get(&NODES, &"gpu2".to_owned()).unwrap(), None);
}

#[test]
fn tables_do_not_see_each_other_and_rows_come_in_key_order() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    let mut batch = node("b", "slurm");
    batch.put(&NODES, &"a".to_owned(), &"nobody".to_owned()).unwrap();
    batch.put(&NODES2, &"c".to_owned(), &"other".to_owned()).unwrap();
    for n in [256, 3, 70_000, 1] {
        batch.put(&DECISIONS, &n, &vec![1]).unwrap();
    }
    batch.remove(&DECISIONS, &1);
    store.apply(mark(2), batch).unwrap();
    let names = |rows: Vec<Result<(String, String), Error>>| -> Vec<String> {
        rows.into_iter().map(|row| row.unwrap().0).collect()
    };
    assert_eq!(names(store.rows(&NODES).collect()), ["a", "b"]);
    assert_eq!(names(store.rows(&NODES2).collect()), ["c"]);
    let ids = |rows: &mut dyn Iterator<Item = Result<(u64, Vec<u32>), Error>>| -> Vec<u64> {
        rows.map(|row| row.unwrap().0).collect()
    };
    assert_eq!(ids(&mut store.rows(&DECISIONS).rev()), [70_000, 256, 3]);
    let between = |from, to| ids(&mut store.rows_between(&DECISIONS, from, to));
    assert_eq!(between(Bound::Included(&256), Bound::Unbounded), [256, 70_000]);
    assert_eq!(between(Bound::Unbounded, Bound::Excluded(&256)), [3]);
    let nodes = store.rows_between(&NODES, Bound::Excluded(&"a".to_owned()), Bound::Unbounded);
    assert_eq!(names(nodes.collect()), ["b"]);
}

#[test]
fn lines_never_go_backwards_and_a_refused_batch_changes_nothing() {
    let dir = written();
    let (mut store, _) = open(dir.path());
    for seq in [4, 5] {
        let refused = store.apply(mark(seq), node("gpu1", "kubernetes"));
        assert!(matches!(refused, Err(Error::Backwards { applied: Seq(5), .. })));
    }
    assert_eq!(store.get(&NODES, &"gpu1".to_owned()).unwrap(), Some("slurm".to_owned()));
    store.apply(mark(8), node("gpu1", "kubernetes")).unwrap();
    assert_eq!(store.applied(), Some(mark(8)));
}

#[test]
fn it_knows_whether_it_is_behind_ahead_or_from_another_ledger() {
    let dir = written();
    let (store, _) = open(dir.path());
    let other = Mark { seq: Seq(5), hash: LineHash([0xee; 32]) };
    let cases = [
        (mark(4), Standing::Known),
        (mark(5), Standing::Known),
        (mark(6), Standing::New),
        (other, Standing::Differs),
    ];
    for (line, expected) in cases {
        assert_eq!(store.standing(line), expected, "{line:?}");
    }
    assert_eq!(store.is_ahead_of(Seq(5)), None);
    assert_eq!(store.is_ahead_of(Seq(4)), Some(Reason::Ahead { applied: Seq(5), ledger: Seq(4) }));
    let reason = Reason::OtherLedger { at: Seq(5) };
    let (store, opened) = store.rebuild(reason.clone(), now()).unwrap();
    assert!(matches!(opened, Opened::Rebuild { reason: r, moved_to } if r == reason && moved_to.is_dir()));
    assert_eq!((store.standing(mark(2)), store.rows(&NODES).count()), (Standing::New, 0));
}

#[test]
fn another_schema_is_rebuilt() {
    let dir = written();
    drop(Store::open(dir.path(), SCHEMA_NOW + 1, now()).map(|(_, opened)| {
        let reason = Reason::Schema { found: SCHEMA_NOW, wanted: SCHEMA_NOW + 1 };
        assert!(matches!(opened, Opened::Rebuild { reason: r, .. } if r == reason));
    }));
    assert_eq!(rebuilt(dir.path()), Reason::Schema { found: SCHEMA_NOW + 1, wanted: SCHEMA_NOW });
}

#[test]
fn a_half_written_snapshot_is_rebuilt() {
    let dir = written();
    fs::write(dir.path().join("store/snap.0000000000000010.generating"), b"half").unwrap();
    assert_eq!(rebuilt(dir.path()), Reason::HalfWrittenSnapshot);
}

#[test]
fn a_folder_without_a_database_is_rebuilt() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 3] = [
        ("a file in place of the folder", |store| {
            fs::remove_dir_all(store).unwrap();
            fs::write(store, b"").unwrap();
        }),
        ("an empty folder", |store| {
            fs::remove_dir_all(store).unwrap();
            fs::create_dir(store).unwrap();
        }),
        ("a database of nonsense", |store| {
            let len = fs::metadata(store.join("db")).unwrap().len();
            fs::write(store.join("db"), vec![0xa5; usize::try_from(len).unwrap()]).unwrap();
        }),
    ];
    for (case, damage) in cases {
        let dir = written();
        damage(&dir.path().join(FOLDER_NAME));
        let reason = rebuilt(dir.path());
        assert!(matches!(reason, Reason::Unreadable(_)), "{case}: {reason:?}");
    }
}

#[test]
fn damage_anywhere_is_found_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<(u64, Vec<u32>)> = (0..400).map(|n| (n, vec![u32::try_from(n).unwrap(); 20])).collect();
    {
        let (mut store, _) = open(dir.path());
        for (seq, chunk) in (2..).zip(rows.chunks(20)) {
            let mut batch = Batch::new();
            for (key, value) in chunk {
                batch.put(&DECISIONS, key, value).unwrap();
            }
            store.apply(mark(seq), batch).unwrap();
        }
        store.flush().unwrap();
    }
    let store = dir.path().join(FOLDER_NAME);
    let files: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(&store)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    let mut found = 0;
    for (path, bytes) in &files {
        let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        for position in (0..written).step_by((written / 40).max(1)) {
            let case = format!("{} at {position}", path.display());
            let copy = tempfile::tempdir().unwrap();
            fs::create_dir(copy.path().join(FOLDER_NAME)).unwrap();
            for (other, bytes) in &files {
                let mut bytes = bytes.clone();
                if other == path {
                    bytes[position..written.min(position + 16)].iter_mut().for_each(|b| *b ^= 0x5a);
                }
                fs::write(copy.path().join(FOLDER_NAME).join(other.file_name().unwrap()), bytes).unwrap();
            }
            let (store, opened) = open(copy.path());
            match opened {
                Opened::Rebuild { .. } => found += 1,
                // Whatever it says it has, it has. What is behind can be caught up.
                Opened::AsOf(at) => {
                    let count = usize::try_from(at.seq.0 - 1).unwrap() * 20;
                    let there: Vec<_> = store.rows(&DECISIONS).map(|row| row.unwrap()).collect();
                    assert_eq!(there.len(), count, "{case}");
                    assert_eq!(there, rows[..count], "{case}");
                }
                Opened::Fresh => assert_eq!(store.rows(&DECISIONS).count(), 0, "{case}"),
            }
        }
    }
    assert!(found > 0, "no damage was found at all");
}

#[test]
fn a_missing_store_is_fresh() {
    let dir = written();
    fs::remove_dir_all(dir.path().join(FOLDER_NAME)).unwrap();
    assert_eq!(open(dir.path()).1, Opened::Fresh);
}

#[test]
fn only_the_last_three_are_kept_aside() {
    let dir = written();
    let mut moved = Vec::new();
    for minute in [1, 2, 2, 3, 4] {
        let now = now() + jiff::SignedDuration::from_mins(minute);
        fs::write(dir.path().join("store/snap.00.generating"), b"").unwrap();
        let (_, opened) = Store::open(dir.path(), SCHEMA_NOW, now).unwrap();
        let Opened::Rebuild { moved_to, .. } = opened else { panic!("{opened:?}") };
        moved.push(moved_to);
    }
    assert!(moved[0].ends_with("store.old-20261130T180100Z"));
    assert!(moved[2].ends_with("store.old-20261130T180200Z-2"));
    assert_eq!(moved.iter().map(|path| path.exists()).collect::<Vec<_>>(), [false, false, true, true, true]);
}

#[test]
fn a_panic_in_sled_is_an_error() {
    let failed = guard::<()>(|| panic!("inside {}", "sled"));
    assert!(matches!(failed, Err(Error::Panicked(text)) if text == "inside sled"));
}

#[test]
fn a_value_of_another_shape_is_an_error_and_no_panic() {
    let dir = written();
    let (store, _) = open(dir.path());
    let wrong: Table<u64, Vec<u32>> = Table::new("nodes");
    assert!(matches!(store.rows(&wrong).next(), Some(Err(Error::Key { table: "nodes" }))));
    let wrong: Table<String, u32> = Table::new("nodes");
    assert!(matches!(store.get(&wrong, &"gpu1".to_owned()), Err(Error::Value { table: "nodes", .. })));
}

/// Not a test by itself: another process for the test below, which starts it with a folder.
#[test]
fn in_another_process() {
    let Some(dir) = std::env::var_os("STORE_TEST_FOLDER") else { return };
    let (mut store, _) = open(Path::new(&dir));
    store.apply(mark(7), node("gpu1", "kubernetes")).unwrap();
    store.flush().unwrap();
    println!("\nopen");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_living_holder_is_named_and_a_killed_one_holds_nothing() {
    let dir = written();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::in_another_process", "--nocapture"])
        .env("STORE_TEST_FOLDER", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "open"));
    let refused = Store::open(dir.path(), SCHEMA_NOW, now()).err().unwrap();
    assert!(matches!(refused, Error::Locked(_)));
    assert!(refused.to_string().contains(&format!("process {}", child.id())), "{refused}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(open(dir.path()).1, Opened::AsOf(mark(7)));
}
