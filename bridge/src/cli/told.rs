//! How the command line tells errors, warnings and hints, all on standard error: a line or two for people, one JSON object for
//! programs. It does not know what they are about.

use std::process::ExitCode;

use serde::Serialize;

use super::{BAD_CONFIGURATION, Output};
use crate::code::{self, Told, report};
use crate::config;

/// Whether arguments that can't be understood ask for JSON.
pub(super) fn wants_json(arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let arguments: Vec<_> = arguments.collect();
    let spaced = arguments.windows(2).any(|pair| matches!(pair, [a, b] if a == "--output" && b == "json"));
    spaced || arguments.iter().any(|argument| argument == "--output=json")
}

/// Tells an error on standard error: a line or two for people, one object for programs.
pub(super) fn fail(output: Output, error: &(dyn std::error::Error + 'static)) {
    match output {
        Output::Json => tell_program(&Told::of(error)),
        Output::Text => {
            eprintln!("gpu-bridge: {}", report(error));
            if let Some(code) = code::of(error) {
                eprintln!("{}", code::ask_for(code));
            }
        }
    }
}

pub(super) fn tell_program(error: &impl Serialize) {
    eprintln!("{}", serde_json::json!({ "error": error }));
}

/// Programs know what they asked for.
pub(super) fn hint(output: Output, yes: bool) {
    if output == Output::Text && !yes {
        eprintln!("nothing was done: --yes carries it out");
    }
}

/// Tells on standard error what is no problem yet.
pub(super) fn warn(output: Output, warnings: &[config::Problem]) {
    match output {
        Output::Text => warnings.iter().for_each(|warning| eprintln!("warning: {warning}")),
        Output::Json if warnings.is_empty() => {}
        Output::Json => eprintln!("{}", serde_json::json!({ "warnings": warnings })),
    }
}

/// Tells problems on standard error.
pub(super) fn complain(output: Output, problems: &[config::Problem]) -> ExitCode {
    match output {
        Output::Text => problems.iter().for_each(|problem| eprintln!("{problem}")),
        Output::Json => {
            let message = format!("the configuration has problems: {}", problems.len());
            let code = problems.first().map(|problem| problem.code);
            tell_program(&serde_json::json!({
                "code": code, "message": message, "advice": "correct what problems names", "problems": problems,
            }));
        }
    }
    ExitCode::from(BAD_CONFIGURATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_wrong_may_ask_for_json_too() {
        let asks = |words: &[&str]| wants_json(words.iter().map(Into::into));
        assert!(asks(&["gpu-bridge", "--output", "json", "nonsense"]));
        assert!(asks(&["gpu-bridge", "nonsense", "--output=json"]));
        assert!(!asks(&["gpu-bridge", "nonsense", "--output", "text"]));
        assert!(!asks(&["gpu-bridge", "json", "--output"]));
    }
}
