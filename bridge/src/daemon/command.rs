//! What people may ask of a running daemon, and what it answers. The shapes are part of the versioned interface.

use gpu_bridge_core::adoption::Adoption;
use gpu_bridge_core::denied::Denied;
use gpu_bridge_core::event::ReleaseMode;
use gpu_bridge_core::ids::{HandoverId, NodeName, Ticket};
use gpu_bridge_core::model::Domain;
use serde::{Deserialize, Serialize};

use super::journal::Line;

/// Whether a command is only looked through, or carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Go {
    /// Show what would happen.
    Plan,
    /// Do it.
    Yes,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Move a node.
    Move {
        /// Which.
        node: NodeName,
        /// Whereto.
        to: Domain,
        /// Why.
        reason: String,
        /// The site's ticket.
        ticket: Option<Ticket>,
    },
    /// Roll a handover back.
    Cancel {
        /// Which.
        handover: HandoverId,
        /// Why.
        reason: String,
    },
    /// Take nodes under management.
    Adopt {
        /// Which.
        nodes: Vec<NodeName>,
        /// Who is to own them; absent: whoever has work on them, else the home pool's domain.
        owner: Option<Domain>,
        /// Plan or carry out.
        go: Go,
    },
    /// Take our management away; no node named means all that are managed.
    Release {
        /// Which.
        nodes: Vec<NodeName>,
        /// What is left behind.
        mode: ReleaseMode,
        /// Plan or carry out.
        go: Go,
    },
    /// Everything about one node.
    Explain {
        /// Which.
        node: NodeName,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The handover that was planned.
    Planned {
        /// Its id.
        handover: HandoverId,
    },
    /// The handover rolls back.
    Cancelling {
        /// Its id.
        handover: HandoverId,
    },
    /// What adopting would do, or begins to do.
    Adopting {
        /// By node.
        nodes: Vec<Adopting>,
    },
    /// What releasing would do, or begins to do.
    Releasing {
        /// By node.
        nodes: Vec<Releasing>,
    },
    /// A node's story.
    Explained {
        /// Its newest ledger lines, oldest first.
        lines: Vec<Line>,
    },
}

/// One node's adoption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopting {
    /// Which.
    pub node: NodeName,
    /// What it does, or why not; in JSON `granted` or `denied`.
    #[serde(flatten, with = "verdict")]
    pub adoption: Result<Adoption, Denied>,
    /// The handover, where it was begun.
    pub handover: Option<HandoverId>,
}

/// One node's release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Releasing {
    /// Which.
    pub node: NodeName,
    /// How it is left, or why not; in JSON `granted` or `denied`.
    #[serde(flatten, with = "verdict")]
    pub leaves: Result<String, Refusal>,
    /// Whether both gates will then be open.
    pub open_on_both: bool,
}

/// A yes or a no, each under its own name: `{"granted": …}`, or `{"denied": {"code": …, "message": …, "rule": …}}`.
mod verdict {
    use std::fmt::Display;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A no that has a code.
    pub(super) trait Coded: Display {
        fn coded(&self) -> &'static str;
    }

    impl Coded for super::Denied {
        fn coded(&self) -> &'static str {
            self.code()
        }
    }

    impl Coded for super::Refusal {
        fn coded(&self) -> &'static str {
            self.code()
        }
    }

    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Shown<'a, Y, N> {
        Granted(&'a Y),
        Denied { code: &'static str, message: String, rule: &'a N },
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Read<Y, N> {
        Granted(Y),
        Denied { rule: N },
    }

    pub(super) fn serialize<Y: Serialize, N: Serialize + Coded, S: Serializer>(
        verdict: &Result<Y, N>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let shown = match verdict {
            Ok(yes) => Shown::Granted(yes),
            Err(no) => Shown::Denied { code: no.coded(), message: no.to_string(), rule: no },
        };
        shown.serialize(serializer)
    }

    pub(super) fn deserialize<'de, Y: Deserialize<'de>, N: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Result<Y, N>, D::Error> {
        Ok(match Read::deserialize(deserializer)? {
            Read::Granted(yes) => Ok(yes),
            Read::Denied { rule } => Err(rule),
        })
    }
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// The rules say no.
    #[error("{denied}")]
    Denied {
        /// Which rule.
        denied: Denied,
    },
    /// The request names something that does not exist, or leaves out something.
    #[error("{found}: expected {expected}")]
    Invalid {
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The ledger can't be written, so nothing new is begun.
    #[error("the ledger cannot be written: {why}. Nothing was begun; free the disk, then ask again")]
    Ledger {
        /// Why.
        why: String,
    },
    /// The daemon is stopping, or too busy to take it.
    #[error("the daemon does not take requests now: {why}")]
    Away {
        /// Why.
        why: String,
    },
}

impl Refusal {
    /// Its code; `docs/errors.md` says what to do about it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Denied { denied } => denied.code(),
            Self::Invalid { .. } => "GB0650",
            Self::Ledger { .. } => "GB0651",
            Self::Away { .. } => "GB0652",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Programs read these names.
    #[test]
    fn each_node_of_an_answer_is_granted_or_denied_by_name() {
        let node = NodeName::new("gpu1");
        let denied = Denied::UnknownNode { node: node.clone() };
        let code = denied.code();
        let table = [
            (
                Reply::Adopting {
                    nodes: vec![Adopting {
                        node: node.clone(),
                        adoption: Err(denied.clone()),
                        handover: None,
                    }],
                },
                json!({"node": "gpu1", "handover": null, "denied": {
                    "code": code, "message": "the inventory has no node gpu1",
                    "rule": {"unknown_node": {"node": "gpu1"}}}}),
            ),
            (
                Reply::Releasing {
                    nodes: vec![Releasing {
                        node: node.clone(),
                        leaves: Err(Refusal::Denied { denied }),
                        open_on_both: false,
                    }],
                },
                json!({"node": "gpu1", "open_on_both": false, "denied": {
                    "code": code, "message": "the inventory has no node gpu1",
                    "rule": {"refusal": "denied", "denied": {"unknown_node": {"node": "gpu1"}}}}}),
            ),
            (
                Reply::Releasing {
                    nodes: vec![Releasing { node, leaves: Ok("as it was".to_owned()), open_on_both: true }],
                },
                json!({"node": "gpu1", "open_on_both": true, "granted": "as it was"}),
            ),
        ];
        for (reply, shown) in table {
            let text = serde_json::to_string(&reply).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["nodes"][0], shown);
            assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply, "{text}");
        }
    }
}
