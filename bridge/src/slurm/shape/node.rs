//! Nodes.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bridge_core::facts::slurm::{BaseState, Node, NodeFlag, Reason};
use gpu_bridge_core::ids::SlurmNodeName;
use serde::{Deserialize, Serialize};

use super::super::answer::Asked;
use super::super::error::Error;
use super::super::gres::{self, Gres};
use super::super::json::{Odd, Sin, Text, Words, each};
use super::super::version::Family;

#[derive(Deserialize)]
pub(super) struct Shape<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    #[serde(borrow)]
    pub(super) state: Words<'a>,
    #[serde(borrow)]
    pub(super) state_flags: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) reason: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) reason_set_by_user: Option<Text<'a>>,
    #[serde(default)]
    pub(super) reason_changed_at: Sin,
    #[serde(borrow)]
    pub(super) gres: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) gres_used: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) partitions: Option<Vec<Text<'a>>>,
}

/// A node, with what its GRES texts say beyond the facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeRecord {
    /// The facts.
    #[serde(flatten)]
    pub(crate) node: Node,
    /// What it has.
    pub(crate) gres: Vec<Gres>,
    /// What of it is in use.
    pub(crate) gres_used: Vec<Gres>,
}

/// What to make of each node.
pub(in crate::slurm) trait FromNode {
    /// From the facts and the two GRES texts.
    fn from_node(node: Node, gres: &str, used: &str) -> Self;
}

impl FromNode for Node {
    fn from_node(node: Node, _: &str, _: &str) -> Self {
        node
    }
}

impl FromNode for NodeRecord {
    fn from_node(node: Node, gres: &str, used: &str) -> Self {
        Self { node, gres: gres::list(gres), gres_used: gres::list(used) }
    }
}

/// The answer of GET nodes: each node, or why its state and flags cannot be read. Such a node is no fact: it would look as
/// if nobody had drained it.
pub(in crate::slurm) fn nodes<T: FromNode>(
    family: Family,
    asked: &Asked<'_>,
    body: &[u8],
) -> Result<BTreeMap<SlurmNodeName, Result<T, String>>, Error> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let mut nodes = BTreeMap::new();
    each(asked, body, "nodes", |element: Result<Shape<'_>, Odd<'_>>| {
        let (name, node) = match element {
            Ok(shape) => (shape.name.to_string(), read(family, &shape)),
            Err(odd) => match odd.read() {
                Some(Named { name }) => (name, Err(odd.why().to_owned())),
                None => return Err(odd.error(asked, "a node with a name")),
            },
        };
        nodes.insert(SlurmNodeName::new(name), node);
        Ok(())
    })?;
    Ok(nodes)
}

/// What the shape of a node says; the error is what of it cannot be read.
pub(super) fn read<T: FromNode>(family: Family, shape: &Shape<'_>) -> Result<T, String> {
    let (mut state, flags) = state(family, shape)?;
    let gres = shape.gres.as_deref().unwrap_or_default();
    let gpus = gres::gpus(gres);
    if gpus.is_none() {
        state = BaseState::Other(format!("unreadable: gres {gres:?}"));
    }
    let gpus = gpus.unwrap_or(0);
    let used = shape.gres_used.as_deref();
    let reason = shape.reason.as_deref().filter(|text| !text.is_empty()).map(|text| Reason {
        text: text.to_owned(),
        user: shape.reason_set_by_user.as_deref().unwrap_or_default().to_owned(),
        at: shape.reason_changed_at.instant(),
    });
    let node = Node {
        state,
        flags,
        reason,
        gpus,
        gpus_used: gres::gpus_used(used, gpus),
        partitions: shape.partitions.iter().flatten().map(|name| name.to_string()).collect(),
    };
    Ok(T::from_node(node, gres, used.unwrap_or_default()))
}

/// Base state and flags, from where the family has them; the error says what stands there instead.
fn state(family: Family, shape: &Shape<'_>) -> Result<(BaseState, BTreeSet<NodeFlag>), String> {
    let odd = || format!("state {:?}, flags {:?}", shape.state, shape.state_flags);
    let mut seen = States::default();
    match (family, &shape.state, &shape.state_flags) {
        (Family::Words, Words::One(word), Some(flags)) => {
            seen.word(&word.to_ascii_uppercase());
            seen.words(flags);
        }
        (Family::Mixed | Family::Lists, Words::Many(words), _) => seen.words(words),
        (Family::Words | Family::Mixed | Family::Lists, Words::One(_) | Words::Many(_), _) => {
            return Err(odd());
        }
    }
    seen.end().ok_or_else(odd)
}

#[derive(Default)]
struct States {
    bases: Vec<BaseState>,
    flags: BTreeSet<NodeFlag>,
}

impl States {
    fn words(&mut self, words: &[Text<'_>]) {
        for word in words {
            self.word(word);
        }
    }

    fn word(&mut self, word: &str) {
        let flag = match word {
            "IDLE" => return self.bases.push(BaseState::Idle),
            "MIXED" => return self.bases.push(BaseState::Mixed),
            "ALLOCATED" => return self.bases.push(BaseState::Allocated),
            "DOWN" => return self.bases.push(BaseState::Down),
            "FUTURE" => return self.bases.push(BaseState::Future),
            "ERROR" => return self.bases.push(BaseState::Error),
            "UNKNOWN" => return self.bases.push(BaseState::Unknown),
            "INVALID" => return self.bases.push(BaseState::Other(word.to_owned())),
            "" => return,
            "DRAIN" => NodeFlag::Drain,
            "COMPLETING" => NodeFlag::Completing,
            "PLANNED" => NodeFlag::Planned,
            "RESERVED" => NodeFlag::Reserved,
            "MAINTENANCE" => NodeFlag::Maintenance,
            "CLOUD" => NodeFlag::Cloud,
            "DYNAMIC_NORM" => NodeFlag::DynamicNorm,
            "NOT_RESPONDING" => NodeFlag::NotResponding,
            "FAIL" => NodeFlag::Fail,
            "INVALID_REG" => NodeFlag::InvalidReg,
            "REBOOT_REQUESTED" | "REBOOT_ISSUED" | "REBOOT_CANCELED" => NodeFlag::Reboot,
            "POWERED_DOWN" | "POWERING_DOWN" | "POWERING_UP" | "POWER_DOWN" | "POWER_UP" | "POWER_DRAIN" => {
                NodeFlag::Power
            }
            _ => NodeFlag::Other(word.to_owned()),
        };
        self.flags.insert(flag);
    }

    /// `None` where there was no word at all.
    fn end(mut self) -> Option<(BaseState, BTreeSet<NodeFlag>)> {
        if self.bases.is_empty() && self.flags.is_empty() {
            return None;
        }
        let base = match (self.bases.pop(), self.bases.is_empty()) {
            (Some(base), true) => base,
            (Some(base), false) => {
                BaseState::Other(format!("unreadable: states {:?} and {base:?} at once", self.bases))
            }
            (None, _) => BaseState::Other("unreadable: no base state".to_owned()),
        };
        Some((base, self.flags))
    }
}
