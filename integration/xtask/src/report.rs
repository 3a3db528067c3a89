//! What `cargo xtask test` says at its end: a table of sections, and the counts as the very last line.

use std::fmt::Write as _;
use std::time::Duration;

use crate::program::Tally;

/// How a section ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed(Tally),
    Failed(Tally),
    Skipped(String),
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) section: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub(crate) fn ok(&self) -> bool {
        !self.lines.iter().any(|line| matches!(line.outcome, Outcome::Failed(_)))
    }

    /// All tests counted. A section that failed without a failed test counts as one failure, one that was skipped as one
    /// skipped.
    fn total(&self) -> Tally {
        let mut total = Tally::default();
        for line in &self.lines {
            match &line.outcome {
                Outcome::Passed(tally) => total.add(*tally),
                Outcome::Failed(tally) => total.add(Tally { failed: tally.failed.max(1), ..*tally }),
                Outcome::Skipped(_) => total.skipped += 1,
            }
        }
        total
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from("\nsection                     seconds  result\n");
        for line in &self.lines {
            let result = match &line.outcome {
                Outcome::Passed(tally) => format!("ok       {}", counts(*tally)),
                Outcome::Failed(tally) => format!("FAILED   {}", counts(*tally)),
                Outcome::Skipped(reason) => format!("skipped  {reason}"),
            };
            let _ = writeln!(
                text,
                "{:<26} {:>8.1}  {}",
                line.section,
                line.took.as_secs_f32(),
                result.trim_end()
            );
        }
        let total = self.total();
        let _ = write!(text, "\n{} passed, {} failed", total.passed, total.failed);
        if total.skipped > 0 {
            let _ = write!(text, ", {} skipped", total.skipped);
        }
        text
    }
}

fn counts(tally: Tally) -> String {
    if tally == Tally::default() {
        return String::new();
    }
    format!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: Vec<Outcome>) -> Report {
        let lines = outcomes.into_iter().map(|outcome| Line { section: "s", outcome, took: Duration::ZERO });
        Report { lines: lines.collect() }
    }

    #[test]
    fn the_last_line_counts_everything() {
        let some = Tally { passed: 5, failed: 0, skipped: 1 };
        let skipped = Outcome::Skipped("no root".to_owned());
        for (outcomes, ok, last) in [
            (vec![Outcome::Passed(Tally { skipped: 0, ..some })], true, "5 passed, 0 failed"),
            (vec![Outcome::Passed(some), skipped], true, "5 passed, 0 failed, 2 skipped"),
            (
                vec![Outcome::Passed(some), Outcome::Failed(Tally::default())],
                false,
                "5 passed, 1 failed, 1 skipped",
            ),
            (vec![Outcome::Failed(Tally { failed: 2, ..some })], false, "5 passed, 2 failed, 1 skipped"),
        ] {
            let report = report(outcomes);
            assert_eq!(report.ok(), ok);
            assert_eq!(report.text().lines().last(), Some(last));
        }
    }
}
