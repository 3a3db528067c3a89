//! The nodes that Slurm names in a host list (`gpu[1-4,7],login`), or that it says are none. Decides nothing; a list that
//! cannot be read in full is an error, never a shorter set.

use gpu_bridge_core::facts::NodeSet;
use gpu_bridge_core::hostlist;
use gpu_bridge_core::ids::SlurmNodeName;

/// Most of a list that an error repeats, in characters.
const SHOWN: usize = 200;

/// Why a list could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host list {list:?} {why}")]
pub(super) struct Error {
    /// The list, as found.
    pub(super) list: String,
    /// What is wrong with it.
    pub(super) why: hostlist::Error,
}

/// Every name the list stands for. Empty, `(null)` and `None` stand for none.
pub(super) fn expand(list: &str) -> Result<NodeSet, Error> {
    if matches!(list, "" | "(null)" | "None") {
        return Ok(NodeSet::default());
    }
    match hostlist::expand(list) {
        Ok(names) => Ok(names.into_iter().map(SlurmNodeName::new).collect()),
        Err(why) => Err(Error { list: list.chars().take(SHOWN).collect(), why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_to_exactly_their_names() {
        for (list, names) in [
            ("", vec![]),
            ("(null)", vec![]),
            ("gpu1", vec!["gpu1"]),
            ("gpu[1-2]", vec!["gpu1", "gpu2"]),
            ("gpu[3-4,7],login", vec!["gpu3", "gpu4", "gpu7", "login"]),
            ("n[008-011]", vec!["n008", "n009", "n010", "n011"]),
            ("r[1-2]n[1,3]-ib", vec!["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
            ("a-b", vec!["a-b"]),
        ] {
            let expected: NodeSet = names.into_iter().map(SlurmNodeName::from).collect();
            assert_eq!(expand(list), Ok(expected), "{list:?}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_in_full_is_an_error() {
        for list in [
            ",",
            "gpu1,",
            "gpu[",
            "gpu]1",
            "gpu[1-2",
            "gpu[[1]]",
            "gpu[a-b]",
            "gpu[]",
            "gpu[2-1]",
            "gpu[1-]",
            "gpu[1-999999999]",
            "gpu[0-999]x[0-999]",
            "gpu[99999999999999999999999]",
        ] {
            assert!(expand(list).is_err(), "{list:?}");
        }
    }
}
