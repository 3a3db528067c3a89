//! The codes of errors that people meet: `docs/errors.md` has a heading for each. Every error type gives its own; this
//! module only finds the one of a chain and puts it behind the text. It knows no causes.

use std::error::Error;

use crate::daemon::{command, journal};
use crate::{api, assemble, cli, kubernetes, ledger, policy, slurm, store};

/// The code of a chain: the innermost one, since that is what there is something to be done about.
pub(crate) fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    chain.filter_map(own).last()
}

fn own(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let as_assemble = error.downcast_ref::<assemble::Error>().and_then(assemble::Error::code);
    as_assemble
        .or_else(|| error.downcast_ref().map(journal::Error::code))
        .or_else(|| error.downcast_ref().map(ledger::Error::code))
        .or_else(|| error.downcast_ref().map(store::Error::code))
        .or_else(|| error.downcast_ref().map(slurm::Error::code))
        .or_else(|| error.downcast_ref().map(kubernetes::Error::code))
        .or_else(|| error.downcast_ref().map(policy::Error::code))
        .or_else(|| error.downcast_ref().map(api::Error::code))
        .or_else(|| error.downcast_ref().map(command::Refusal::code))
        .or_else(|| error.downcast_ref().map(cli::client::Error::code))
}

/// An error with its sources and its code, on one line.
pub(crate) fn report(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    match of(error) {
        Some(code) => format!("{text}  [{code}]"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_bridge_core::denied::Denied;
    use gpu_bridge_core::ids::PoolName;

    #[test]
    fn the_innermost_code_is_shown_once() {
        let full = |doing| ledger::Error::Full { doing, source: std::io::Error::other("disk") };
        let journal = assemble::Error::Journal {
            path: "/state".into(),
            source: journal::Error::Ledger(full("writing")),
        };
        let misread =
            slurm::Error::NothingWritten(Box::new(slurm::Error::NoSuchUrl { asked: "GET x".into() }));
        let denied = Denied::UnknownPool { pool: PoolName::new("x") };
        let refused = cli::client::Error::Refused(command::Refusal::Denied { denied });
        let policy = assemble::Error::Policy {
            name: "p".to_owned(),
            source: Box::new(policy::Error::NotWasm { reason: "ELF".to_owned() }),
        };
        let table: [(&(dyn Error + 'static), Option<&str>); 6] = [
            (&journal, Some("GB0203")),
            (&store::Error::Locked(full("locking")), Some("GB0203")),
            (&assemble::Error::Slurm(misread), Some("GB0311")),
            (&refused, Some("GB0615")),
            (&policy, Some("GB0510")),
            (&std::io::Error::other("no code"), None),
        ];
        for (error, code) in table {
            assert_eq!(of(error), code, "{error}");
            let shown = report(error).matches("[GB").count();
            assert_eq!(shown, usize::from(code.is_some()), "{}", report(error));
        }
    }
}
