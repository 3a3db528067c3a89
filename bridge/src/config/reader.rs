//! Walks a TOML document key by key and collects everything that is wrong, each with its place, instead of stopping at
//! the first. Decides what counts as a text, a number, a duration or a path; knows none of the keys.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::duration;
use super::problem::{Code, Place, Problem};

/// Largest file that is read, in bytes.
pub(super) const FILE_MAX: u64 = 4 << 20;
/// Most problems that are collected for a file: enough for people, and a bound for us.
const PROBLEMS_MAX: usize = 500;
/// Longest value that is repeated in a message, in characters.
const SHOWN_MAX: usize = 60;

/// Whether files that the configuration points to must be readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// They must: the daemon's own check.
    MustExist,
    /// They need not: to look at a configuration away from its host.
    Ignored,
}

/// A file under examination.
pub(super) struct Document {
    pub(super) file: PathBuf,
    pub(super) text: String,
    pub(super) files: Files,
    problems: RefCell<Vec<Problem>>,
}

impl Document {
    pub(super) fn new(file: &Path, text: String, files: Files) -> Self {
        Self { file: file.to_owned(), text, files, problems: RefCell::default() }
    }

    /// Reads the file; what prevents that is a problem too.
    pub(super) fn read(file: &Path, files: Files) -> Result<Self, Box<Problem>> {
        let unreadable = |found: String, expected: &str, advice: &str| {
            Box::new(Problem {
                code: Code::Unreadable,
                file: file.to_owned(),
                line: 1,
                column: 1,
                field: String::new(),
                found,
                expected: expected.to_owned(),
                advice: advice.to_owned(),
            })
        };
        let mut bytes = Vec::new();
        File::open(file).and_then(|opened| opened.take(FILE_MAX + 1).read_to_end(&mut bytes)).map_err(
            |error| unreadable(error.to_string(), "a readable file", "check the path and its permissions"),
        )?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(unreadable(
                format!("more than {FILE_MAX} bytes"),
                "a configuration file",
                "check the path",
            ));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(file, text, files)),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes().get(..valid).unwrap_or_default());
                let (line, column) = position(&text, text.len());
                let found = "bytes that are not UTF-8".to_owned();
                Err(Box::new(Problem {
                    line,
                    column,
                    ..*unreadable(found, "UTF-8 text", "save the file as UTF-8")
                }))
            }
        }
    }

    /// Parses as far as possible; syntax errors become problems.
    pub(super) fn parse(&self) -> Spanned<DeTable<'_>> {
        let (table, errors) = DeTable::parse_recoverable(&self.text);
        for error in errors {
            let at = error.span().unwrap_or(0..0);
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            let advice = "correct the syntax".to_owned();
            self.problem(Code::Syntax, &at, String::new(), message, "TOML".to_owned(), advice);
        }
        table
    }

    fn place(&self, at: &Range<usize>, field: String) -> Place {
        let (line, column) = position(&self.text, at.start);
        Place { file: self.file.clone(), line, column, field }
    }

    pub(super) fn problem(
        &self,
        code: Code,
        at: &Range<usize>,
        field: String,
        found: String,
        expected: String,
        advice: String,
    ) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(self.place(at, field).problem(code, found, expected, advice));
        }
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// The problems, in order of place.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }
}

/// Line and column, both from 1, of a byte position; positions past the end are the end.
fn position(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = text.get(..at).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// A table, with the keys that somebody asked for.
pub(super) struct Table<'a> {
    pub(super) document: &'a Document,
    pub(super) path: String,
    at: Range<usize>,
    entries: &'a DeTable<'a>,
    known: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Table<'a> {
    pub(super) fn root(document: &'a Document, table: &'a Spanned<DeTable<'a>>) -> Self {
        Self { document, path: String::new(), at: 0..0, entries: table.get_ref(), known: RefCell::default() }
    }

    /// The value of a key, if it is there.
    pub(super) fn get(&self, key: &'static str) -> Option<Value<'a>> {
        self.known.borrow_mut().insert(key);
        let value = self.entries.get(key)?;
        Some(Value {
            document: self.document,
            path: join(&self.path, key),
            at: value.span(),
            toml: value.get_ref(),
        })
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &'static str, expected: &str) -> Option<Value<'a>> {
        let value = self.get(key);
        if value.is_none() {
            let advice = format!("add {key}");
            self.problem(Code::MissingKey, key, "nothing", expected, &advice);
        }
        value
    }

    /// A table under a key; none if the key is not there.
    pub(super) fn table(&self, key: &'static str) -> Option<Table<'a>> {
        self.get(key)?.table()
    }

    /// The tables of `[[key]]`; each is named by its `name` where it has one.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Table<'a>> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let DeValue::Array(array) = value.toml else {
            value.wrong::<()>(&format!("one or more [[{key}]] tables"), &format!("write [[{key}]]"));
            return Vec::new();
        };
        let named = |index: usize, item: &DeValue<'_>| match item.get("name").map(Spanned::get_ref) {
            Some(DeValue::String(name)) => shown(name),
            Some(_) | None => (index + 1).to_string(),
        };
        let items = array.iter().enumerate().map(|(index, item)| Value {
            document: self.document,
            path: join(key, &named(index, item.get_ref())),
            at: item.span(),
            toml: item.get_ref(),
        });
        items.filter_map(|item| item.table()).collect()
    }

    /// A problem with a key, at its place if it is there, else at the table's.
    pub(super) fn problem(&self, code: Code, key: &str, found: &str, expected: &str, advice: &str) {
        let at = self.entries.get(key).map_or_else(|| self.at.clone(), Spanned::span);
        self.document.problem(
            code,
            &at,
            join(&self.path, key),
            found.to_owned(),
            expected.to_owned(),
            advice.to_owned(),
        );
    }

    /// Where the table is.
    pub(super) fn place(&self) -> Place {
        self.document.place(&self.at, self.path.clone())
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        for key in self.entries.keys().filter(|key| !known.contains(key.get_ref().as_ref())) {
            let name = key.get_ref();
            let advice = closest(name, known.iter().copied())
                .map_or_else(|| "remove it".to_owned(), |close| format!("did you mean {close}?"));
            let list: Vec<&str> = known.iter().copied().collect();
            self.document.problem(
                Code::UnknownKey,
                &key.span(),
                join(&self.path, &shown(name)),
                "an unknown key".to_owned(),
                format!("one of {}", list.join(", ")),
                advice,
            );
        }
    }
}

/// A value and its place.
#[derive(Clone)]
pub(super) struct Value<'a> {
    pub(super) document: &'a Document,
    pub(super) path: String,
    at: Range<usize>,
    pub(super) toml: &'a DeValue<'a>,
}

impl<'a> Value<'a> {
    /// A problem with this value.
    pub(super) fn problem(&self, code: Code, found: &str, expected: &str, advice: &str) {
        let (path, found) = (self.path.clone(), found.to_owned());
        self.document.problem(code, &self.at, path, found, expected.to_owned(), advice.to_owned());
    }

    /// This value is not what it should be. Gives `None`, for the caller to pass on.
    pub(super) fn wrong<T>(&self, expected: &str, advice: &str) -> Option<T> {
        self.problem(Code::Value, &self.shown(), expected, advice);
        None
    }

    /// The value as it appears in messages.
    pub(super) fn shown(&self) -> String {
        match self.toml {
            DeValue::String(text) => format!("{:?}", shown(text)),
            DeValue::Integer(number) => shown(&number.to_string()),
            DeValue::Float(number) => shown(&number.to_string()),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(datetime) => datetime.to_string(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        }
    }

    pub(super) fn table(&self) -> Option<Table<'a>> {
        let DeValue::Table(table) = self.toml else {
            return self.wrong("a table", "write it as [table] or { key = value }");
        };
        let (path, at) = (self.path.clone(), self.at.clone());
        Some(Table { document: self.document, path, at, entries: table, known: RefCell::default() })
    }

    /// A text that is not empty.
    pub(super) fn text(&self) -> Option<&'a str> {
        match self.toml {
            DeValue::String(text) if !text.trim().is_empty() => Some(text),
            DeValue::String(_) => self.wrong("a text that is not empty", "fill it in, or remove the key"),
            DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => self.wrong("a text", "put it in quotes"),
        }
    }

    pub(super) fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let DeValue::Integer(number) = self.toml else {
            return self.wrong(&expected, "write it without quotes");
        };
        match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if range.contains(&number) => Some(number),
            Ok(_) | Err(_) => self.wrong(&expected, "use a number in this range"),
        }
    }

    pub(super) fn count(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        self.integer(range).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.toml.as_bool() {
            Some(flag) => Some(flag),
            None => self.wrong("true or false", "write it without quotes"),
        }
    }

    pub(super) fn list(&self) -> Option<Vec<Value<'a>>> {
        let DeValue::Array(array) = self.toml else {
            return self.wrong("a list", "put it in brackets");
        };
        let items = array.iter().enumerate().map(|(index, item)| Value {
            document: self.document,
            path: format!("{}[{index}]", self.path),
            at: item.span(),
            toml: item.get_ref(),
        });
        Some(items.collect())
    }

    /// A list of texts; the good ones, if some are wrong.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        let texts = self.list()?.into_iter().filter_map(|item| item.text().map(str::to_owned));
        Some(texts.collect())
    }

    /// One of the given words.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        let expected = names.join(" or ");
        let DeValue::String(text) = self.toml else {
            return self.wrong(&expected, "put it in quotes");
        };
        if let Some((_, choice)) = choices.iter().find(|(name, _)| name == text) {
            return Some(*choice);
        }
        let advice = closest(text, choices.iter().map(|(name, _)| *name))
            .map_or_else(|| "use one of these".to_owned(), |close| format!("did you mean {close:?}?"));
        self.wrong(&expected, &advice)
    }

    /// A duration of zero or more.
    pub(super) fn duration(&self) -> Option<SignedDuration> {
        let DeValue::String(text) = self.toml else {
            return self.wrong(duration::EXPECTED, "write number and unit in quotes");
        };
        if text.trim_start().starts_with('-') {
            return self.wrong(duration::EXPECTED, "a duration cannot be negative; remove the minus");
        }
        duration::parse(text).or_else(|| self.wrong(duration::EXPECTED, "use ms, s, m, h, d or w"))
    }

    /// A duration inside bounds.
    pub(super) fn span(&self, bounds: RangeInclusive<Duration>) -> Option<Duration> {
        let found = Duration::try_from(self.duration()?).ok().filter(|found| bounds.contains(found));
        found.or_else(|| {
            let expected = format!("{} to {}", written(*bounds.start()), written(*bounds.end()));
            self.wrong(&expected, "use a duration in this range")
        })
    }

    /// A path; relative ones start at the folder of this file.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let folder = self.document.file.parent().unwrap_or(Path::new(""));
        self.text().map(|text| folder.join(text))
    }

    /// The path of a file that must be readable now.
    pub(super) fn readable(&self) -> Option<PathBuf> {
        let path = self.path()?;
        match self.document.files {
            Files::Ignored => {}
            Files::MustExist => {
                let opened = File::open(&path).and_then(|file| file.metadata());
                let trouble = match opened {
                    Ok(metadata) if metadata.is_file() => return Some(path),
                    Ok(_) => "not a regular file".to_owned(),
                    Err(error) => error.to_string(),
                };
                let advice = "create it, or let the daemon's user read it";
                let found = format!("{} ({trouble})", path.display());
                self.problem(Code::MissingFile, &found, "a readable file", advice);
                return None;
            }
        }
        Some(path)
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Cut to what fits in a message, without control characters.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// The candidate that a slip of the finger could have made of `word`.
pub(super) fn closest<'b>(word: &str, candidates: impl IntoIterator<Item = &'b str>) -> Option<&'b str> {
    if word.len() > SHOWN_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let close = candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &candidate.to_lowercase()), candidate));
    close
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A duration as a person would write it in the file, in the largest unit that it is whole in.
fn written(duration: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let ms = duration.as_millis();
    let unit = UNITS.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    unit.map_or_else(|| "0s".to_owned(), |(unit, name)| format!("{}{name}", ms / unit))
}
