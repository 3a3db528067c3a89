//! The nodes that a job or a reservation names. Most name one: it is held in place, so that a tick which walks through a
//! hundred thousand jobs does not follow a pointer for each. It knows nothing of what the nodes are named for.

use std::ops::Deref;
use std::slice;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::SlurmNodeName;

/// Names of nodes: each once, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<SlurmNodeName>", into = "Vec<SlurmNodeName>")]
pub struct NodeSet(SmallVec<[SlurmNodeName; 1]>);

impl NodeSet {
    /// Is the node among them?
    pub fn contains(&self, node: &SlurmNodeName) -> bool {
        self.0.binary_search(node).is_ok()
    }
}

impl Deref for NodeSet {
    type Target = [SlurmNodeName];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromIterator<SlurmNodeName> for NodeSet {
    fn from_iter<I: IntoIterator<Item = SlurmNodeName>>(names: I) -> Self {
        let mut names: SmallVec<_> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        Self(names)
    }
}

impl<const N: usize> From<[SlurmNodeName; N]> for NodeSet {
    fn from(names: [SlurmNodeName; N]) -> Self {
        names.into_iter().collect()
    }
}

impl From<Vec<SlurmNodeName>> for NodeSet {
    fn from(names: Vec<SlurmNodeName>) -> Self {
        names.into_iter().collect()
    }
}

impl From<NodeSet> for Vec<SlurmNodeName> {
    fn from(NodeSet(names): NodeSet) -> Self {
        names.into_vec()
    }
}

impl<'a> IntoIterator for &'a NodeSet {
    type Item = &'a SlurmNodeName;
    type IntoIter = slice::Iter<'a, SlurmNodeName>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> NodeSet {
        names.iter().map(|name| SlurmNodeName::from(*name)).collect()
    }

    #[test]
    fn each_name_is_held_once_and_in_order() {
        let two = set(&["gpu2", "gpu1", "gpu2"]);
        assert_eq!(two.iter().map(SlurmNodeName::as_str).collect::<Vec<_>>(), ["gpu1", "gpu2"]);
        assert_eq!((two.len(), two.is_empty(), two.first()), (2, false, Some(&"gpu1".into())));
        assert!(two.contains(&"gpu2".into()) && !two.contains(&"gpu3".into()));
        assert_eq!(two, set(&["gpu1", "gpu2"]));
    }

    /// Facts are kept for the simulator's replay and shown by `slurm facts`: a list as any other.
    #[test]
    fn it_is_written_and_read_as_a_list() {
        let text = serde_json::to_string(&set(&["gpu2", "gpu1"])).unwrap();
        assert_eq!(text, r#"["gpu1","gpu2"]"#);
        assert_eq!(
            serde_json::from_str::<NodeSet>(r#"["gpu2","gpu1","gpu1"]"#).unwrap(),
            set(&["gpu1", "gpu2"])
        );
    }
}
