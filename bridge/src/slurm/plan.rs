//! What a write needs, given what stands there: pure. Decides whether a write is refused, already done, or which request
//! makes it so; knows no HTTP and runs nothing.

use std::collections::BTreeSet;

use gpu_bridge_core::facts::slurm::{Node, NodeFlag, Reservation, ReservationSpec, RunningJobs};
use gpu_bridge_core::ids::SlurmNodeName;
use gpu_bridge_core::mark;
use jiff::Timestamp;

use super::error::Error;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    /// It stands as it should.
    Done,
    /// Write this, then look again.
    Write(T),
}

fn foreign(name: &SlurmNodeName, node: &Node) -> Error {
    let (reason, user) = node.reason.clone().map(|reason| (reason.text, reason.user)).unwrap_or_default();
    Error::ForeignDrain { node: name.to_string(), reason, user }
}

/// May the node be drained with `reason`, and is it already?
pub fn drain(name: &SlurmNodeName, node: &Node, reason: &str, over: Option<&str>) -> Result<Step<()>, Error> {
    if !node.flags.contains(&NodeFlag::Drain) {
        return Ok(Step::Write(()));
    }
    let stands = node.reason.as_ref().map_or("", |reason| reason.text.as_str());
    if stands == reason {
        Ok(Step::Done)
    } else if over == Some(stands) || mark::DrainReason::parse(stands).is_some() {
        Ok(Step::Write(()))
    } else {
        Err(foreign(name, node))
    }
}

/// May the node's DRAIN be taken away, and is it gone already?
pub fn undrain(name: &SlurmNodeName, node: &Node, reason: &str) -> Result<Step<()>, Error> {
    if !node.flags.contains(&NodeFlag::Drain) {
        return Ok(Step::Done);
    }
    if node.reason.as_ref().is_some_and(|stands| stands.text == reason) {
        Ok(Step::Write(()))
    } else {
        Err(foreign(name, node))
    }
}

/// What is written of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeWrite<'a> {
    /// DRAIN with this reason.
    Drain {
        /// The reason.
        reason: &'a str,
    },
    /// UNDRAIN.
    Undrain,
}

impl NodeWrite<'_> {
    /// As slurmrestd takes it at `node/NAME`.
    pub(super) fn body(&self) -> String {
        match self {
            Self::Drain { reason } => serde_json::json!({"state": ["DRAIN"], "reason": reason}),
            Self::Undrain => serde_json::json!({"state": ["UNDRAIN"]}),
        }
        .to_string()
    }

    /// As scontrol takes it.
    pub(super) fn arguments(&self, node: &str) -> Vec<String> {
        let mut arguments = vec!["update".to_owned(), format!("NodeName={node}")];
        match self {
            Self::Drain { reason } => {
                arguments.extend(["State=DRAIN".to_owned(), format!("Reason={reason}")]);
            }
            Self::Undrain => arguments.push("State=UNDRAIN".to_owned()),
        }
        arguments
    }
}

/// Slurm sets this itself where nodes are named.
const SPEC_NODES: &str = "SPEC_NODES";
const MAINT: &str = "MAINT";
const IGNORE_JOBS: &str = "IGNORE_JOBS";

/// The arguments of scontrol that bring the reservation to its shape.
pub fn reserve(stands: Option<&Reservation>, spec: &ReservationSpec, now: Timestamp) -> Step<Vec<String>> {
    // `uts…` is seconds since 1970: free of time zones, accepted by every release.
    let time = |at: Timestamp| format!("uts{}", at.as_second());
    let start = if spec.start <= now { "now".to_owned() } else { time(spec.start) };
    let name = format!("ReservationName={}", spec.name);
    let Some(stands) = stands else {
        let flags = match spec.jobs {
            RunningJobs::Ignore => "Flags=MAINT,IGNORE_JOBS",
            RunningJobs::None => "Flags=MAINT",
        };
        return Step::Write(vec![
            "create".into(),
            "reservation".into(),
            name,
            format!("Nodes={}", spec.node),
            format!("StartTime={start}"),
            format!("EndTime={}", time(spec.end)),
            "Users=root".into(),
            flags.into(),
        ]);
    };
    let mut changes = Vec::new();
    if stands.start > now && stands.start.as_second() != spec.start.as_second() {
        changes.push(format!("StartTime={start}"));
    }
    if stands.end.as_second() != spec.end.as_second() {
        changes.push(format!("EndTime={}", time(spec.end)));
    }
    if *stands.nodes != [spec.node.clone()] {
        changes.push(format!("Nodes={}", spec.node));
    }
    if stands.users != BTreeSet::from(["root".to_owned()]) {
        changes.push("Users=root".into());
    }
    if !stands.accounts.is_empty() {
        changes.push("Accounts=".into());
    }
    // scontrol takes one flag at a time, and one kind of change: the next round makes the next one.
    if let Some(flag) = missing_flags(stands, spec).first() {
        changes.push(format!("Flags+={flag}"));
    } else if let Some(flag) = surplus_flags(stands, spec).first() {
        changes.push(format!("Flags-={flag}"));
    }
    if changes.is_empty() {
        return Step::Done;
    }
    Step::Write(["update".to_owned(), name].into_iter().chain(changes).collect())
}

fn missing_flags(stands: &Reservation, spec: &ReservationSpec) -> Vec<&'static str> {
    let wanted: &[&str] = match spec.jobs {
        RunningJobs::Ignore => &[MAINT, IGNORE_JOBS],
        RunningJobs::None => &[MAINT],
    };
    wanted.iter().copied().filter(|flag| !stands.flags.contains(*flag)).collect()
}

fn surplus_flags<'a>(stands: &'a Reservation, spec: &ReservationSpec) -> Vec<&'a str> {
    stands
        .flags
        .iter()
        .map(String::as_str)
        .filter(|flag| match *flag {
            MAINT | SPEC_NODES => false,
            IGNORE_JOBS => spec.jobs == RunningJobs::None,
            _ => true,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use gpu_bridge_core::facts::slurm::{BaseState, Reason};

    use super::*;

    type Change = fn(&mut Reservation);

    const OURS: &str = "gpu-bridge:h0042 e7 window";

    fn node(drained_with: Option<&str>) -> Node {
        Node {
            state: BaseState::Idle,
            flags: drained_with.map(|_| NodeFlag::Drain).into_iter().collect(),
            reason: drained_with.filter(|text| !text.is_empty()).map(|text| Reason {
                text: text.to_owned(),
                user: "root".to_owned(),
                at: None,
            }),
            gpus: 4,
            gpus_used: Some(0),
            partitions: BTreeSet::new(),
        }
    }

    #[derive(Debug, PartialEq)]
    enum Outcome {
        Done,
        Write,
        Refused,
    }
    use Outcome::{Done, Refused, Write};

    fn outcome(result: Result<Step<()>, Error>) -> Outcome {
        match result {
            Ok(Step::Done) => Done,
            Ok(Step::Write(())) => Write,
            Err(Error::ForeignDrain { .. }) => Refused,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_foreign_drain_is_neither_overwritten_nor_taken_away() {
        let name = SlurmNodeName::from("gpu1");
        for (stands, over, drained, undrained) in [
            (None, None, Write, Done),
            (Some(OURS), None, Done, Write),
            (Some("gpu-bridge:h0041 e6 older"), None, Write, Refused),
            (Some("bad disk"), None, Refused, Refused),
            (Some("bad disk"), Some("bad disk"), Write, Refused),
            (Some("bad disk!"), Some("bad disk"), Refused, Refused),
            (Some(""), None, Refused, Refused),
            (Some("Reboot ASAP"), None, Refused, Refused),
        ] {
            let node = node(stands);
            assert_eq!(outcome(drain(&name, &node, OURS, over)), drained, "{stands:?} over {over:?}");
            assert_eq!(outcome(undrain(&name, &node, OURS)), undrained, "{stands:?}");
        }
        // A reason left over without DRAIN is no drain.
        let left = Node { flags: BTreeSet::new(), ..node(Some(OURS)) };
        assert_eq!(outcome(drain(&name, &left, OURS, None)), Write);
    }

    #[test]
    fn a_node_is_written_the_same_through_both_mouths() {
        for (write, body, arguments) in [
            (
                NodeWrite::Drain { reason: OURS },
                r#"{"reason":"gpu-bridge:h0042 e7 window","state":["DRAIN"]}"#,
                &["update", "NodeName=gpu1", "State=DRAIN", "Reason=gpu-bridge:h0042 e7 window"][..],
            ),
            (NodeWrite::Undrain, r#"{"state":["UNDRAIN"]}"#, &["update", "NodeName=gpu1", "State=UNDRAIN"]),
        ] {
            assert_eq!(write.body(), body);
            assert_eq!(write.arguments("gpu1"), arguments);
        }
    }

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

    fn words(step: Step<Vec<String>>) -> String {
        match step {
            Step::Done => "done".to_owned(),
            Step::Write(words) => words.join(" "),
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
        let table: [(Change, Timestamp, String); 12] = [
            (|_| (), before, "done".into()),
            (|r| r.end = at(3_000), before, format!("{update} EndTime=uts2000")),
            (|r| r.start = at(900), before, format!("{update} StartTime=uts1000")),
            (|r| r.start = at(900), at(950), "done".into()),
            (|r| r.start = at(1_600), at(1_500), format!("{update} StartTime=now")),
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
}
