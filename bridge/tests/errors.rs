//! `docs/errors.md` and the code speak of the same error codes: each has one heading, and one place where it is made.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, helpers included")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const AREAS: [&str; 2] = ["src", "core/src"];
/// Documents that name codes.
const MENTIONING: [&str; 8] = [
    "README.md",
    "docs/architecture.md",
    "docs/errors.md",
    "docs/install.md",
    "docs/ledger.md",
    "docs/operations.md",
    "docs/policies.md",
    "docs/slurm-versions.md",
];
/// Tests may name a code again.
const TESTS: [&str; 2] = ["tests.rs", "code.rs"];

/// The codes that stand between these two, with how often.
fn codes<'a>(text: &'a str, before: &str, after: &str) -> impl Iterator<Item = &'a str> {
    text.match_indices(before).filter_map(move |(at, _)| {
        let code = text[at + before.len()..].get(..6)?;
        let is_code = code.starts_with("GB") && code[2..].bytes().all(|byte| byte.is_ascii_digit());
        let ends = text[at + before.len() + 6..].starts_with(after);
        (is_code && ends).then_some(code)
    })
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !TESTS.iter().any(|t| path.ends_with(t))
        {
            found.push(path);
        }
    }
}

fn count<'a>(codes: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    codes.fold(BTreeMap::new(), |mut counts, code| {
        *counts.entry(code.to_owned()).or_default() += 1;
        counts
    })
}

#[test]
fn every_code_has_one_heading_and_one_place_in_the_source() {
    let bridge = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for area in AREAS {
        sources(&bridge.join(area), &mut files);
    }
    let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let made = count(texts.iter().flat_map(|text| codes(text, "\"", "\"")));
    assert!(made.len() > 90, "only {} codes were found in {} files", made.len(), files.len());

    let docs = std::fs::read_to_string(bridge.join("../docs/errors.md")).unwrap();
    let headings = count(codes(&docs, "\n### ", "\n"));
    for (code, times) in made.iter().chain(&headings) {
        assert_eq!(*times, 1, "{code} stands {times} times");
    }
    assert!(made.keys().eq(headings.keys()), "made: {:?}\nexplained: {:?}", made.keys(), headings.keys());
}

#[test]
fn every_code_that_is_mentioned_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_to_string(root.join("docs/errors.md")).unwrap();
    let headings = count(codes(&docs, "\n### ", "\n"));
    for file in MENTIONING {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        for before in [" ", "(", "["] {
            for code in codes(&text, before, "") {
                assert!(headings.contains_key(code), "{file} mentions {code}, which has no heading");
            }
        }
    }
}
