//! The codes of errors that people meet: `docs/errors.md` has a heading for each. Every error type gives its own; this
//! module finds the one of a chain, puts it behind the text, and has the page of each. It knows no causes.

use std::error::Error;

use serde::Serialize;

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

/// The pages of all codes, in the binary itself: who has only that reads them too.
const PAGES: &str = include_str!("../../docs/errors.md");

/// What the page of a code says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Page {
    /// The code.
    pub(crate) code: String,
    /// What it means and what usually causes it.
    pub(crate) means: String,
    /// What to do; empty where there is nothing to be done.
    pub(crate) advice: String,
}

/// The page of a code; `None` where there is no such code.
pub(crate) fn page(code: &str) -> Option<Page> {
    let code = code.to_ascii_uppercase();
    let mut sections = PAGES.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let (_, section) = sections.find(|(heading, _)| *heading == code)?;
    // Behind the last code of an area the next area begins.
    let section = section.split("\n## ").next().unwrap_or_default();
    let (means, advice) = section.split_once("\nDo: ").unwrap_or((section, ""));
    Some(Page { code, means: means.trim().to_owned(), advice: advice.trim().to_owned() })
}

/// How to come to the page of a code.
pub(crate) fn ask_for(code: &str) -> String {
    format!("`gpu-bridge explain error {code}` says what to do")
}

/// An error as programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    /// Its code, where it has one.
    pub(crate) code: Option<&'static str>,
    /// What happened, on one line, without the code.
    pub(crate) message: String,
    /// What to do, by the page of the code.
    pub(crate) advice: Option<String>,
}

impl Told {
    /// This error with its sources.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let code = of(error);
        let advice = code.and_then(page).map(|page| page.advice);
        Self { code, message: chain(error), advice: advice.filter(|advice| !advice.is_empty()) }
    }
}

/// An error with its sources and its code, on one line.
pub(crate) fn report(error: &(dyn Error + 'static)) -> String {
    let text = chain(error);
    match of(error) {
        Some(code) => format!("{text}  [{code}]"),
        None => text,
    }
}

/// An error with its sources, on one line.
fn chain(error: &(dyn Error + 'static)) -> String {
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_bridge_core::denied::Denied;
    use gpu_bridge_core::ids::PoolName;

    #[test]
    fn each_code_has_a_page_that_can_be_asked_for() {
        let codes: Vec<&str> =
            PAGES.split("\n### ").skip(1).filter_map(|section| section.lines().next()).collect();
        assert!(codes.len() > 90, "{codes:?}");
        for code in codes {
            let page = page(&code.to_lowercase()).unwrap();
            assert!(page.code == code && page.means.starts_with("**") && !page.advice.is_empty(), "{page:?}");
            assert!(!page.means.contains("\n#") && !page.advice.contains("\n#"), "{page:?}");
        }
        let last = page("GB0711").unwrap();
        assert_eq!(last.advice, "`systemctl restart gpu-bridge`.");
        for unknown in ["GB9999", "GB07", "", "GB0711\n"] {
            assert_eq!(page(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn a_program_is_told_the_same() {
        let told = Told::of(&ledger::Error::Locked { path: "/state/ledger.jsonl".into(), pid: Some(7) });
        assert_eq!(told.code, Some("GB0202"));
        assert!(!told.message.contains("[GB"), "{told:?}");
        assert!(told.advice.is_some_and(|advice| advice.contains("systemctl stop gpu-bridge")));
        let plain = Told::of(&std::io::Error::other("no code"));
        assert_eq!((plain.code, plain.message.as_str(), plain.advice), (None, "no code", None));
    }

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
            source: Box::new(policy::Error::NotWasm { found: "ELF".to_owned() }),
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
