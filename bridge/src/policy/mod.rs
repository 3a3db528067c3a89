//! Runs capacity policies: WebAssembly that reads a snapshot of the fleet and makes proposals. This module decides whether
//! a file may run, bounds what it uses, and checks that what it answers makes sense. It does not know whether a proposal
//! is wise or affordable (the arbiter does), and it does not build snapshots or carry anything out.
//!
//! A policy that fails makes no proposals; nothing else happens because of it. Every decision runs in a fresh instance, so
//! nothing is left over from the one before, and the same file, settings and snapshot give the same decision everywhere.

use std::path::PathBuf;
use std::sync::Arc;

use wasmtime::component::{Component, ComponentExportIndex};

pub mod abi;
pub mod bundle;

mod check;
mod digest;
mod engine;
mod error;
mod load;
mod quarantine;
mod sandbox;

#[cfg(test)]
mod tests;

pub use abi::{Description, Proposal, SettingsError, Snapshot};
pub use bundle::Bundle;
pub use check::{Grants, Refusal};
pub use digest::{Digest, NotADigest};
pub use error::{Class, Error, Failure};
pub use quarantine::{Health, OutOfService, Outcome};
pub use sandbox::{Limits, LogLine, Usage};

use sandbox::Sandbox;

/// What the configuration says about a policy.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Its name in the configuration, for messages.
    pub name: String,
    /// The sha256 that the file must have. `None` accepts any file: for the author's tools, not for a daemon.
    pub sha256: Option<Digest>,
    /// Its settings, a JSON object.
    pub settings: String,
    /// What it may speak for.
    pub grants: Grants,
    /// What it may use.
    pub limits: Limits,
    /// Folder for failed decisions; `None` keeps none.
    pub bundles: Option<PathBuf>,
}

impl LoadOptions {
    /// No pin, no settings, everything granted, the usual limits, no folder.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sha256: None,
            settings: "{}".to_owned(),
            grants: Grants::default(),
            limits: Limits::default(),
            bundles: None,
        }
    }
}

/// A decision, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// What the policy asks for. Indices are positions in the snapshot it was given.
    pub proposals: Vec<Proposal>,
    /// Further words of the policy.
    pub attrs: abi::Attrs,
    /// What it used, and what it logged.
    pub usage: Usage,
}

/// A policy that was loaded. Cheap to clone; can be used from several threads at once.
#[derive(Clone)]
pub struct Policy(Arc<Loaded>);

struct Loaded {
    options: LoadOptions,
    sandbox: Sandbox,
    decide: ComponentExportIndex,
    digest: Digest,
    abi_version: String,
    description: Description,
}

impl Policy {
    /// Loads a policy from the bytes of its file: checks digest, form, imports and interface, compiles, and lets it check
    /// its settings. Takes tens of milliseconds; the bytes that were checked are the bytes that run.
    pub fn load(bytes: &[u8], options: &LoadOptions) -> Result<Self, Error> {
        let checked = load::check(bytes, options.sha256, &options.limits)?;
        let (sandbox, component) = Sandbox::compile(&checked.component, options.limits)?;
        let export = |function: &str| export(&component, &checked.interface, function);
        let (describe, validate, decide) =
            (export("describe")?, export("validate-settings")?, export("decide")?);
        let description = sandbox.call::<(), Description>(&describe, 0, ()).0?;
        let settings = (options.settings.as_str(),);
        let valid = sandbox.call::<_, Result<(), Vec<SettingsError>>>(&validate, 0, settings).0?;
        valid.map_err(|errors| Error::BadSettings { errors })?;
        sandbox.check_types::<(abi::Call<'_>,), Result<abi::Decision, String>>(&decide)?;
        Ok(Self(Arc::new(Loaded {
            options: options.clone(),
            sandbox,
            decide,
            digest: checked.digest,
            abi_version: checked.version,
            description,
        })))
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.0.options.name
    }

    /// What it is, in its own words.
    pub fn describe(&self) -> &Description {
        &self.0.description
    }

    /// The sha256 of its file.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// The version of gpu-bridge:policy that it was built for.
    pub fn abi_version(&self) -> &str {
        &self.0.abi_version
    }

    /// Decides, on the calling thread: for simulations and tools. Bounded by the limits' deadline.
    pub fn decide(&self, snapshot: &Snapshot) -> Result<Decided, Box<Failure>> {
        let Loaded { options, sandbox, decide, .. } = &*self.0;
        let nodes = snapshot.nodes.len();
        let call = abi::Call::new(&options.settings, snapshot);
        let (answer, usage) = sandbox.call::<_, Result<abi::Decision, String>>(decide, nodes, (call,));
        let decided = answer.and_then(|answer| {
            let abi::Decision { proposals, attrs } = answer.map_err(|message| Error::GuestError {
                message: sandbox::one_line(&message, options.limits.log_line_bytes),
            })?;
            check::proposals(&proposals, snapshot, &options.grants)?;
            Ok((proposals, attrs))
        });
        match decided {
            Ok((proposals, attrs)) => Ok(Decided { proposals, attrs, usage }),
            Err(error) => Err(Box::new(self.failure(error, usage, Some(snapshot)))),
        }
    }

    /// Decides on a worker thread, never on one that drives tasks: for the daemon.
    pub async fn decide_on_worker(&self, snapshot: Arc<Snapshot>) -> Result<Decided, Box<Failure>> {
        let policy = self.clone();
        let work = tokio::task::spawn_blocking(move || policy.decide(&snapshot));
        work.await.unwrap_or_else(|error| {
            let error = Error::Host { reason: format!("worker thread: {error}") };
            Err(Box::new(self.failure(error, Usage::default(), None)))
        })
    }

    fn failure(&self, error: Error, usage: Usage, snapshot: Option<&Snapshot>) -> Failure {
        let bundle = snapshot.zip(self.0.options.bundles.as_ref()).and_then(|(snapshot, folder)| {
            let bundle = Bundle {
                format: bundle::FORMAT,
                policy: self.name().to_owned(),
                sha256: self.0.digest,
                class: error.class(),
                error: error.to_string(),
                settings: self.0.options.settings.clone(),
                usage: usage.clone(),
                snapshot: snapshot.clone(),
            };
            let saved = bundle.save(folder);
            saved.inspect_err(|e| tracing::warn!(policy = self.name(), folder = %folder.display(), error = %e, "a failed decision could not be saved")).ok()
        });
        Failure { policy: self.name().to_owned(), error, usage, bundle }
    }
}

fn export(component: &Component, interface: &str, function: &str) -> Result<ComponentExportIndex, Error> {
    let interface_index = component.get_export_index(None, interface);
    interface_index
        .and_then(|index| component.get_export_index(Some(&index), function))
        .ok_or_else(|| Error::AbiMismatch { reason: format!("{interface} has no function {function}") })
}
