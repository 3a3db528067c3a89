//! What a write needs, given what stands there: pure. Decides whether a write is refused, already done, or which request
//! makes it so; knows no HTTP and runs nothing.

mod reservation;

use gpu_bridge_core::facts::slurm::{Node, NodeFlag};
use gpu_bridge_core::ids::SlurmNodeName;
use gpu_bridge_core::mark;

use super::error::Error;

pub use self::reservation::{ReservationWrite, reserve};

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpu_bridge_core::facts::slurm::{BaseState, Reason};

    use super::*;

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
}
