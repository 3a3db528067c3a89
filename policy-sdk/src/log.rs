//! Lines for the operator. At most 64 a call and 1024 bytes a line; the host cuts off what is beyond. In native builds
//! they go to stderr, where `cargo test` shows them for failing tests.

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Last words before a trap. The panic hook writes it.
    Panic = 0,
    /// Something is wrong and a person should act.
    Error = 1,
    /// Something is odd.
    Warn = 2,
    /// Something worth knowing.
    Info = 3,
    /// For the policy's author.
    Debug = 4,
}

/// Writes one line.
pub fn log(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::log(level as u8, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Writes one line of [`Level::Error`].
pub fn error(message: &str) {
    log(Level::Error, message);
}

/// Writes one line of [`Level::Warn`].
pub fn warn(message: &str) {
    log(Level::Warn, message);
}

/// Writes one line of [`Level::Info`].
pub fn info(message: &str) {
    log(Level::Info, message);
}

/// Writes one line of [`Level::Debug`].
pub fn debug(message: &str) {
    log(Level::Debug, message);
}
