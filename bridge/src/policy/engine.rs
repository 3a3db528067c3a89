//! The one WebAssembly engine of the process and the clock of its deadlines. Knows no policy.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use wasmtime::{Config, Engine, WasmBacktraceDetails};

use super::error::Error;

/// How often deadlines are looked at.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Address space of one linear memory, and so the most that any policy can be given.
pub(super) const MEMORY_RESERVATION: u64 = 64 << 20;

/// The engine and its clock.
pub(super) struct Shared {
    pub(super) engine: Engine,
    running: Mutex<usize>,
    wake: Condvar,
}

/// While one of these lives, the clock ticks.
pub(super) struct Ticking<'a>(&'a Shared);

/// The engine of this process; made, and its clock's thread started, at the first call.
pub(super) fn shared() -> Result<&'static Shared, Error> {
    static SHARED: OnceLock<Result<Shared, String>> = OnceLock::new();
    static CLOCK: OnceLock<Result<(), String>> = OnceLock::new();
    let failed = |reason: &String| Error::Host { reason: reason.clone() };
    let shared = SHARED
        .get_or_init(|| {
            let engine = Engine::new(&config()).map_err(|error| format!("engine: {error:#}"))?;
            Ok(Shared { engine, running: Mutex::new(0), wake: Condvar::new() })
        })
        .as_ref()
        .map_err(failed)?;
    CLOCK
        .get_or_init(|| {
            let clock = std::thread::Builder::new().name("policy-clock".to_owned());
            clock.spawn(|| shared.tick()).map(drop).map_err(|error| format!("clock thread: {error}"))
        })
        .as_ref()
        .map_err(failed)?;
    Ok(shared)
}

fn config() -> Config {
    let mut config = Config::new();
    // The same decision on every machine.
    config.consume_fuel(true).cranelift_nan_canonicalization(true).wasm_relaxed_simd(false);
    // A bound on time, and on address space: head nodes set `ulimit -v`. Threads are compiled out.
    config.epoch_interruption(true);
    config
        .memory_reservation(MEMORY_RESERVATION)
        .memory_reservation_for_growth(0)
        .memory_guard_size(64 << 10);
    // A panic shows the policy's own lines.
    config.wasm_backtrace_details(WasmBacktraceDetails::Enable);
    config
}

impl Shared {
    /// Lets the clock tick until the guard is dropped.
    pub(super) fn ticking(&self) -> Ticking<'_> {
        *self.running() += 1;
        self.wake.notify_one();
        Ticking(self)
    }

    fn running(&self) -> MutexGuard<'_, usize> {
        // A count cannot be left half changed.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock: sleeps without waking up while no policy runs.
    fn tick(&self) {
        loop {
            let idle = self.wake.wait_while(self.running(), |running| *running == 0);
            drop(idle.unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(TICK);
            self.engine.increment_epoch();
        }
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        let mut running = self.0.running();
        *running = running.saturating_sub(1);
    }
}
