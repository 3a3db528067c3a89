//! What the exported functions do before and after a policy's own code: they install the panic hook and parse the
//! settings. Nothing about capacity is decided here.

use std::sync::Once;

use crate::log::{Level, log};
use crate::{Decision, Description, Policy, SettingsError, Snapshot};

/// A panic in WebAssembly is a bare `unreachable` to the host: message and place must be told before.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|info| log(Level::Panic, &last_words(info)))));
}

fn last_words(info: &std::panic::PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("a panic without a message");
    match info.location() {
        Some(place) => format!("{message}, at {}:{}:{}", place.file(), place.line(), place.column()),
        None => message.to_owned(),
    }
}

/// `describe` of the ABI.
pub fn describe<P: Policy>() -> Description {
    install_panic_hook();
    P::describe()
}

/// `validate-settings` of the ABI.
pub fn validate_settings<P: Policy>(settings: &str) -> Result<(), Vec<SettingsError>> {
    install_panic_hook();
    P::validate_settings(settings).map(drop)
}

/// `decide` of the ABI.
pub fn decide<P: Policy>(snapshot: &Snapshot) -> Result<Decision, String> {
    install_panic_hook();
    let settings = P::validate_settings(&snapshot.settings).map_err(|errors| {
        let lines: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        format!("settings: {}", lines.join("; "))
    })?;
    P::decide(&settings, snapshot)
}
