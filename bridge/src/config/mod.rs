//! The daemon's configuration. It decides whether a file says everything that is needed and nothing that contradicts
//! itself, and reports all problems at once, each with file, line, column and what to do. It asks neither scheduler,
//! and changes nothing.
//!
//! Every key is described where it is read: [`Daemon`], [`Slurm`], [`Kubernetes`], [`Policy`], the core's
//! [`Node`](gpu_bridge_core::model::Node), [`Pool`](gpu_bridge_core::model::Pool) and
//! [`WindowSpec`](gpu_bridge_core::calendar::WindowSpec). `bridge/deploy/gpu-bridge.example.toml` shows them all.

mod calendar;
mod daemon;
mod duration;
mod policies;
mod problem;
mod reader;
mod site;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gpu_bridge_core::calendar::Calendar;
use gpu_bridge_core::ids::{PoolName, WindowName};
use gpu_bridge_core::model::Site;
use jiff::Timestamp;

pub use daemon::{Daemon, Kubernetes, Slurm, SlurmEndpoint};
pub use policies::{Policy, PolicyMode, ProposalKind};
pub use problem::{Code, Place, Problem};
pub use reader::Files;

use crate::slurm;
use calendar::{Entries, Known};
use reader::{Document, Table, Value};

/// A configuration without problems.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// How the daemon runs.
    pub daemon: Daemon,
    /// How Slurm is reached.
    pub slurm: Slurm,
    /// How Kubernetes is reached.
    pub kubernetes: Kubernetes,
    /// Nodes and pools.
    pub site: Site,
    /// Policies, in the order of the file.
    pub policies: Vec<Policy>,
    /// Windows and blackouts, of the configuration and of the calendar file.
    pub calendar: Calendar,
    /// `calendar.file`. Its windows and blackouts are in `calendar` already; the daemon reads it at its start only.
    pub calendar_file: Option<PathBuf>,
    /// Where each window is.
    pub window_places: BTreeMap<WindowName, Place>,
}

impl Config {
    /// What is no problem, and what a person should look at all the same, as things stand at `now`: a token that Slurm will
    /// hardly take, commands that are not here, windows that are over.
    pub fn warnings(&self, now: Timestamp) -> Vec<Problem> {
        let doubt = self.slurm.token.as_ref().and_then(|source| slurm::doubt_token(source, now));
        let token = doubt.map(|found| {
            let advice = "`scontrol token username=USER lifespan=SECONDS` prints one; see GB0303".to_owned();
            let expected = "a token that Slurm takes".to_owned();
            let place = Place { field: "slurm.token_file".to_owned(), ..self.slurm.place.clone() };
            place.problem(Code::MissingFile, found, expected, advice)
        });
        let commands = self.slurm.command_doubts();
        token
            .into_iter()
            .chain(commands)
            .chain(calendar::over((&self.calendar, &self.window_places), now))
            .collect()
    }
}

/// Reads a configuration file and everything it points to.
///
/// # Errors
/// All problems, in order of place; never an empty list.
pub fn check(file: &Path) -> Result<Config, Vec<Problem>> {
    check_with(file, Files::MustExist)
}

/// Like [`check`], away from the daemon's host too.
///
/// # Errors
/// All problems, in order of place; never an empty list.
pub fn check_with(file: &Path, files: Files) -> Result<Config, Vec<Problem>> {
    examine(Document::read(file, files).map_err(|problem| vec![*problem])?)
}

/// The same for text in memory; `file` is its name in messages and where relative paths start.
///
/// # Errors
/// All problems, in order of place; never an empty list.
pub fn check_text(file: &Path, text: &str, files: Files) -> Result<Config, Vec<Problem>> {
    examine(Document::new(file, text.to_owned(), files))
}

/// Reads a calendar file alone, for a site that is known. The configuration's own windows are not in it.
///
/// # Errors
/// All problems, in order of place; never an empty list. Keep the last good calendar then.
pub fn check_calendar(file: &Path, site: &Site) -> Result<Calendar, Vec<Problem>> {
    let pool_names: BTreeSet<PoolName> = site.pools.keys().cloned().collect();
    let mut entries = Entries::default();
    let problems = calendar_file(file, &Known { pool_names: &pool_names, site }, &mut entries);
    if problems.is_empty() { Ok(entries.calendar) } else { Err(problems) }
}

fn examine(document: Document) -> Result<Config, Vec<Problem>> {
    let mut elsewhere = Vec::new();
    let config = {
        let parsed = document.parse();
        let root = Table::root(&document, &parsed);
        // What a broken line hides would only look missing.
        if document.has_problems() { None } else { sections(root, &mut elsewhere) }
    };
    let mut problems = document.into_problems();
    problems.append(&mut elsewhere);
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        Some(_) | None => Err(problems),
    }
}

fn sections(root: Table<'_>, elsewhere: &mut Vec<Problem>) -> Option<Config> {
    let daemon = daemon::daemon(&root);
    let slurm = daemon::slurm(&root);
    let kubernetes = daemon::kubernetes(&root);
    let site::Read { site, pool_names } = site::site(&root);
    let policies = policies::policies(&root, &pool_names, &site);
    let known = Known { pool_names: &pool_names, site: &site };
    let mut entries = Entries::default();
    calendar::read(&root, &known, &mut entries);
    let calendar_path = root.table("calendar").and_then(|table| {
        let path = table.need("file", "the path of a calendar file").and_then(|value| calendar_path(&value));
        table.finish();
        path
    });
    if let Some(path) = &calendar_path {
        match root.document.files {
            Files::MustExist => elsewhere.extend(calendar_file(path, &known, &mut entries)),
            // Away from the host it is examined if it is there.
            Files::Ignored if path.is_file() => {
                elsewhere.extend(calendar_file(path, &known, &mut entries));
            }
            Files::Ignored => {}
        }
    }
    root.finish();
    Some(Config {
        daemon: daemon?,
        slurm: slurm?,
        kubernetes: kubernetes?,
        site,
        policies,
        calendar: entries.calendar,
        calendar_file: calendar_path,
        window_places: entries.places,
    })
}

fn calendar_path(value: &Value<'_>) -> Option<PathBuf> {
    value.readable()
}

/// Reads a calendar file into `entries`; gives its problems.
fn calendar_file(file: &Path, known: &Known<'_>, entries: &mut Entries) -> Vec<Problem> {
    let document = match Document::read(file, Files::MustExist) {
        Ok(document) => document,
        Err(problem) => return vec![*problem],
    };
    {
        let parsed = document.parse();
        if !document.has_problems() {
            let root = Table::root(&document, &parsed);
            calendar::read(&root, known, entries);
            root.finish();
        }
    }
    document.into_problems()
}
