//! Write capacity policies for gpu-bridge: a trait, a macro, and the types of the ABI.
//!
//! A policy is a pure function of a [`Snapshot`]: it has no clock, no randomness, no files and no network, so the same
//! snapshot gives the same decision on every machine, live and in back-tests. It is ordinary Rust that is tested with
//! `cargo test`, without WebAssembly; [`export_policy!`] adds the glue when it is built for `wasm32-unknown-unknown`.
//! `docs/policies.md` leads from an empty crate to a policy that the daemon runs.
//!
//! ```
//! use gpu_bridge_policy_sdk::{self as sdk, Decision, Description, Policy, SettingsError, Snapshot};
//!
//! /// Wants one node ready in every Kubernetes pool, always.
//! struct OneEach;
//!
//! impl Policy for OneEach {
//!     type Settings = ();
//!
//!     fn describe() -> Description {
//!         Description {
//!             name: "one-each".to_owned(),
//!             version: "1".to_owned(),
//!             summary: "Wants one node ready in every Kubernetes pool".to_owned(),
//!             kinds: vec![sdk::kind::WANT_READY],
//!             settings_schema: r#"{"type":"object","additionalProperties":false}"#.to_owned(),
//!             attrs: vec![],
//!         }
//!     }
//!
//!     fn validate_settings(settings: &str) -> Result<(), Vec<SettingsError>> {
//!         sdk::Fields::parse(settings)?.finish(())
//!     }
//!
//!     fn decide((): &(), snapshot: &Snapshot) -> Result<Decision, String> {
//!         // A want is known by its beginning: one that moves with `now` would be another one in each decision.
//!         let until = snapshot.now + 60 + 10 * i64::from(snapshot.tick_period);
//!         let proposals = sdk::pools(snapshot)
//!             .filter(|(_, pool)| pool.domain == sdk::domain::KUBERNETES)
//!             .map(|(pool, _)| sdk::want_ready(pool, 1, 0..until, "one each"))
//!             .collect();
//!         Ok(Decision { proposals, attrs: vec![] })
//!     }
//! }
//!
//! sdk::export_policy!(OneEach);
//! ```

// The generated glue names this crate by its own name, so that it also compiles where a policy uses it.
extern crate self as gpu_bridge_policy_sdk;

#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod entry;
pub mod log;

mod code;
mod demand;
mod fleet;
mod settings;

pub use bindings::exports::gpu_bridge::policy::decider::{
    Attrs, Blackout, Decision, Description, Loan, Node, Pool, Proposal, Queue, SettingsError, Snapshot,
    Window,
};
pub use code::{direction, domain, kind, overlap, state};
pub use demand::{Span, bridge_gaps, demand_at, wanted, windows_due, windows_for, windows_within};
pub use fleet::{free_nodes, gang_that_fits, pools, want_ready};
pub use settings::Fields;
#[doc(hidden)]
pub use wit_bindgen::rt as bindings_rt;

/// A capacity policy. There is no `self`: a policy keeps nothing from one decision to the next.
pub trait Policy {
    /// The settings, parsed.
    type Settings;

    /// Says what this policy is: name, version, the kinds of proposals it makes, the schema of its settings.
    fn describe() -> Description;

    /// Parses and checks the settings (a JSON object); reports everything that is wrong at once, each with its field.
    /// See [`Fields`].
    fn validate_settings(settings: &str) -> Result<Self::Settings, Vec<SettingsError>>;

    /// Decides. An error is one line for the operator and means "no proposals".
    fn decide(settings: &Self::Settings, snapshot: &Snapshot) -> Result<Decision, String>;
}

/// Exports a [`Policy`] from a WebAssembly module. Once per crate, whose crate type must contain `cdylib`. In native
/// builds it only checks that the type is a policy.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty) => {
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() -> $crate::Description = <$policy as $crate::Policy>::describe;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Guest;
            impl $crate::bindings::exports::gpu_bridge::policy::decider::Guest for Guest {
                fn describe() -> $crate::Description {
                    $crate::entry::describe::<$policy>()
                }
                fn validate_settings(
                    settings: ::std::string::String,
                ) -> ::std::result::Result<(), ::std::vec::Vec<$crate::SettingsError>> {
                    $crate::entry::validate_settings::<$policy>(&settings)
                }
                fn decide(
                    snapshot: $crate::Snapshot,
                ) -> ::std::result::Result<$crate::Decision, ::std::string::String> {
                    $crate::entry::decide::<$policy>(&snapshot)
                }
            }
    $crate::bindings::export_decider!(Guest with_types_in $crate::bindings);
        };
    };
}
