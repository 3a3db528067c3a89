//! What a reservation of ours needs, given what stands there: pure. A write is a value with two spellings, slurmrestd's and
//! scontrol's; which of them can say it is told here, which one is used is not.

use std::collections::BTreeSet;

use gpu_bridge_core::facts::slurm::{Reservation, ReservationSpec, RunningJobs};
use gpu_bridge_core::gate::slurm::STUCK_FLAGS;
use gpu_bridge_core::ids::SlurmNodeName;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Step;

/// Slurm sets this itself where nodes are named.
const SPEC_NODES: &str = "SPEC_NODES";
const MAINT: &str = "MAINT";
const IGNORE_JOBS: &str = "IGNORE_JOBS";
/// What our idea of slurmctld's clock may be off, and a question may take.
const MOMENT: SignedDuration = SignedDuration::from_secs(5);

/// What is written of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationWrite<'a> {
    /// Make it.
    Create {
        /// As it should be.
        spec: &'a ReservationSpec,
        /// When it begins.
        start: Start,
    },
    /// Change what stands there.
    Update {
        /// Its name.
        name: &'a str,
        /// What differs.
        changes: Vec<Change<'a>>,
    },
    /// Take it away.
    Delete {
        /// Its name.
        name: &'a str,
    },
}

/// When a reservation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// As soon as slurmctld has it, by its own clock.
    Now,
    /// Then.
    At(Timestamp),
}

/// One difference from the shape that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// Another beginning.
    Start(Start),
    /// Another end.
    End(Timestamp),
    /// Exactly this node.
    Node(&'a SlurmNodeName),
    /// Only root may use it.
    OnlyRoot,
    /// No account may use it.
    NoAccounts,
    /// This flag beside those that stand.
    Set(&'static str),
    /// This flag away.
    Clear(String),
}

impl Start {
    fn of(spec: &ReservationSpec, now: Timestamp) -> Self {
        if spec.start <= now { Self::Now } else { Self::At(spec.start) }
    }

    /// `uts…` is seconds since 1970: free of time zones, accepted by every release.
    fn words(self) -> String {
        match self {
            Self::Now => "now".to_owned(),
            Self::At(at) => uts(at),
        }
    }

    /// slurmrestd reads Slurm's own words for a time in the place of a number (seen with v0.0.43 to v0.0.45).
    fn json(self) -> Value {
        match self {
            Self::Now => json!("now"),
            Self::At(at) => seconds(at),
        }
    }
}

fn uts(at: Timestamp) -> String {
    format!("uts{}", at.as_second())
}

fn seconds(at: Timestamp) -> Value {
    json!({"set": true, "infinite": false, "number": at.as_second()})
}

impl ReservationWrite<'_> {
    /// As scontrol takes it.
    pub fn arguments(&self) -> Vec<String> {
        match self {
            Self::Create { spec, start } => vec![
                "create".into(),
                "reservation".into(),
                format!("ReservationName={}", spec.name),
                format!("Nodes={}", spec.node),
                format!("StartTime={}", start.words()),
                format!("EndTime={}", uts(spec.end)),
                "Users=root".into(),
                format!("Flags={}", flags(spec).join(",")),
            ],
            Self::Update { name, changes } => {
                let words = changes.iter().map(|change| match change {
                    Change::Start(start) => format!("StartTime={}", start.words()),
                    Change::End(end) => format!("EndTime={}", uts(*end)),
                    Change::Node(node) => format!("Nodes={node}"),
                    Change::OnlyRoot => "Users=root".into(),
                    Change::NoAccounts => "Accounts=".into(),
                    Change::Set(flag) => format!("Flags+={flag}"),
                    Change::Clear(flag) => format!("Flags-={flag}"),
                });
                ["update".to_owned(), format!("ReservationName={name}")].into_iter().chain(words).collect()
            }
            Self::Delete { name } => vec!["delete".to_owned(), format!("ReservationName={name}")],
        }
    }

    /// As slurmrestd takes it at `reservation`, where it can be said there. What it can't: that no account may use it (an
    /// empty list is answered with 200 and changes nothing), and most flags away, which have no word there.
    pub(in crate::slurm) fn body(&self) -> Option<String> {
        let mut body = serde_json::Map::new();
        match self {
            Self::Create { spec, start } => {
                body.insert("name".into(), json!(spec.name));
                body.insert("node_list".into(), json!([spec.node.as_str()]));
                body.insert("start_time".into(), start.json());
                body.insert("end_time".into(), seconds(spec.end));
                body.insert("users".into(), json!(["root"]));
                body.insert("flags".into(), json!(flags(spec)));
            }
            Self::Update { name, changes } => {
                body.insert("name".into(), json!(name));
                for change in changes {
                    let (key, value) = match change {
                        Change::Start(start) => ("start_time", start.json()),
                        Change::End(end) => ("end_time", seconds(*end)),
                        Change::Node(node) => ("node_list", json!([node.as_str()])),
                        Change::OnlyRoot => ("users", json!(["root"])),
                        Change::Set(flag) => ("flags", json!([flag])),
                        Change::Clear(flag) if flag == IGNORE_JOBS => ("flags", json!(["NO_IGNORE_JOBS"])),
                        Change::NoAccounts | Change::Clear(_) => return None,
                    };
                    body.insert(key.into(), value);
                }
            }
            Self::Delete { .. } => return None,
        }
        Some(Value::Object(body).to_string())
    }
}

fn flags(spec: &ReservationSpec) -> &'static [&'static str] {
    match spec.jobs {
        RunningJobs::Ignore => &[MAINT, IGNORE_JOBS],
        RunningJobs::None => &[MAINT],
    }
}

/// What brings the reservation to its shape.
pub fn reserve<'a>(
    stands: Option<&Reservation>,
    spec: &'a ReservationSpec,
    now: Timestamp,
) -> Step<ReservationWrite<'a>> {
    let start = Start::of(spec, now);
    let Some(stands) = stands else { return Step::Write(ReservationWrite::Create { spec, start }) };
    let mut changes = Vec::new();
    let begun_by = match start {
        // What begins any moment has begun by the time that Slurm is asked, and then its start can't be changed.
        Start::Now => now.saturating_add(MOMENT).unwrap_or(now),
        Start::At(_) => now,
    };
    if stands.start > begun_by && stands.start.as_second() != spec.start.as_second() {
        changes.push(Change::Start(start));
    }
    if stands.end.as_second() != spec.end.as_second() {
        changes.push(Change::End(spec.end));
    }
    if *stands.nodes != [spec.node.clone()] {
        changes.push(Change::Node(&spec.node));
    }
    if stands.users != BTreeSet::from(["root".to_owned()]) {
        changes.push(Change::OnlyRoot);
    }
    if !stands.accounts.is_empty() {
        changes.push(Change::NoAccounts);
    }
    // scontrol takes one flag at a time, and one kind of change: the next round makes the next one. A flag is taken away in a
    // write of its own, as nothing of a write is done where scontrol does not know the flag.
    if let Some(flag) = flags(spec).iter().find(|flag| !stands.flags.contains(**flag)) {
        changes.push(Change::Set(flag));
    } else if changes.is_empty()
        && let Some(flag) = stands.flags.iter().find(|flag| surplus(flag, spec))
    {
        changes.push(Change::Clear(flag.clone()));
    }
    if changes.is_empty() {
        return Step::Done;
    }
    Step::Write(ReservationWrite::Update { name: &spec.name, changes })
}

fn surplus(flag: &str, spec: &ReservationSpec) -> bool {
    match flag {
        MAINT | SPEC_NODES => false,
        IGNORE_JOBS => spec.jobs == RunningJobs::None,
        // Asking for what Slurm has no word for would only keep the other changes from being made.
        flag => !STUCK_FLAGS.contains(&flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Changed = fn(&mut Reservation);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn spec() -> ReservationSpec {
        ReservationSpec {
            name: "gpu-bridge_h0042".into(),
            node: "gpu2".into(),
            start: at(1_000),
            end: at(2_000),
            jobs: RunningJobs::Ignore,
        }
    }

    fn as_it_should() -> Reservation {
        Reservation {
            name: spec().name,
            nodes: [spec().node].into(),
            users: BTreeSet::from(["root".to_owned()]),
            accounts: BTreeSet::new(),
            flags: [MAINT, IGNORE_JOBS, SPEC_NODES].map(str::to_owned).into(),
            start: at(1_000),
            end: at(2_000),
        }
    }

    fn words(step: Step<ReservationWrite<'_>>) -> String {
        match step {
            Step::Done => "done".to_owned(),
            Step::Write(write) => write.arguments().join(" "),
        }
    }

    #[test]
    fn a_reservation_is_made_with_every_guard() {
        assert_eq!(
            words(reserve(None, &spec(), at(500))),
            "create reservation ReservationName=gpu-bridge_h0042 Nodes=gpu2 StartTime=uts1000 EndTime=uts2000 \
             Users=root Flags=MAINT,IGNORE_JOBS"
        );
        let empty = ReservationSpec { jobs: RunningJobs::None, ..spec() };
        assert_eq!(
            words(reserve(None, &empty, at(1_500))),
            "create reservation ReservationName=gpu-bridge_h0042 Nodes=gpu2 StartTime=now EndTime=uts2000 \
             Users=root Flags=MAINT"
        );
    }

    #[test]
    fn only_what_differs_is_changed() {
        let before = at(500);
        let update = "update ReservationName=gpu-bridge_h0042";
        let table: [(Changed, Timestamp, String); 15] = [
            (|_| (), before, "done".into()),
            (|r| r.end = at(3_000), before, format!("{update} EndTime=uts2000")),
            (|r| r.start = at(900), before, format!("{update} StartTime=uts1000")),
            (|r| r.start = at(900), at(950), "done".into()),
            (|r| r.start = at(1_600), at(1_500), format!("{update} StartTime=now")),
            (|r| r.start = at(1_503), at(1_500), "done".into()),
            (|r| r.nodes = ["gpu1".into(), "gpu2".into()].into(), before, format!("{update} Nodes=gpu2")),
            (
                |r| {
                    r.users.insert("alice".into());
                },
                before,
                format!("{update} Users=root"),
            ),
            (
                |r| {
                    r.accounts.insert("ml".into());
                },
                before,
                format!("{update} Accounts="),
            ),
            (
                |r| {
                    r.flags.remove(IGNORE_JOBS);
                },
                before,
                format!("{update} Flags+=IGNORE_JOBS"),
            ),
            (
                |r| {
                    r.flags.remove(MAINT);
                },
                before,
                format!("{update} Flags+=MAINT"),
            ),
            (
                |r| {
                    r.flags.insert("MAGNETIC".into());
                },
                before,
                format!("{update} Flags-=MAGNETIC"),
            ),
            (
                |r| {
                    r.flags.remove(SPEC_NODES);
                },
                before,
                "done".into(),
            ),
            (|r| r.flags.extend(STUCK_FLAGS.map(str::to_owned)), before, "done".into()),
            (
                |r| {
                    r.flags.insert("TIME_FLOAT".into());
                    r.users.clear();
                },
                before,
                format!("{update} Users=root"),
            ),
        ];
        for (number, (change, now, expected)) in table.into_iter().enumerate() {
            let mut stands = as_it_should();
            change(&mut stands);
            assert_eq!(words(reserve(Some(&stands), &spec(), now)), expected, "row {number}");
        }
        let empty = ReservationSpec { jobs: RunningJobs::None, ..spec() };
        assert_eq!(
            words(reserve(Some(&as_it_should()), &empty, before)),
            format!("{update} Flags-=IGNORE_JOBS")
        );
    }

    #[test]
    fn slurmrestd_is_told_the_same_where_it_has_words_for_it() {
        let (spec, name) = (spec(), "gpu-bridge_h0042");
        let update = |changes| ReservationWrite::Update { name, changes };
        let node = SlurmNodeName::from("gpu2");
        for (write, body) in [
            (
                ReservationWrite::Create { spec: &spec, start: Start::Now },
                Some(
                    r#"{"end_time":{"infinite":false,"number":2000,"set":true},"flags":["MAINT","IGNORE_JOBS"],"name":"gpu-bridge_h0042","node_list":["gpu2"],"start_time":"now","users":["root"]}"#,
                ),
            ),
            (
                update(vec![Change::Start(Start::At(at(1_000))), Change::Node(&node), Change::OnlyRoot]),
                Some(
                    r#"{"name":"gpu-bridge_h0042","node_list":["gpu2"],"start_time":{"infinite":false,"number":1000,"set":true},"users":["root"]}"#,
                ),
            ),
            (
                update(vec![Change::End(at(5)), Change::Clear(IGNORE_JOBS.to_owned())]),
                Some(
                    r#"{"end_time":{"infinite":false,"number":5,"set":true},"flags":["NO_IGNORE_JOBS"],"name":"gpu-bridge_h0042"}"#,
                ),
            ),
            (update(vec![Change::Set(MAINT)]), Some(r#"{"flags":["MAINT"],"name":"gpu-bridge_h0042"}"#)),
            (update(vec![Change::NoAccounts, Change::OnlyRoot]), None),
            (update(vec![Change::Clear("MAGNETIC".to_owned())]), None),
            (ReservationWrite::Delete { name }, None),
        ] {
            assert_eq!(write.body().as_deref(), body, "{write:?}");
        }
    }
}
