//! The one source of time. Everything that needs to know the instant asks a [`Clock`]; tests, the demo and the simulator
//! bring their own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// Tells the instant.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Stands still until it is told to move.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    /// Stands at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(start)))
    }

    /// Moves on.
    pub fn advance(&self, by: SignedDuration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.saturating_add(by).unwrap_or(*now);
    }

    /// Moves to an instant, never back.
    pub fn advance_to(&self, to: Timestamp) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = to.max(*now);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs faster than the machine's: an evening in half a minute.
#[derive(Debug, Clone, Copy)]
pub struct FastClock {
    start: Timestamp,
    began: Instant,
    factor: i32,
}

impl FastClock {
    /// Stands at `start` now, and passes `factor` seconds in each second.
    pub fn new(start: Timestamp, factor: i32) -> Self {
        Self { start, began: Instant::now(), factor }
    }
}

impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.began.elapsed()).unwrap_or(SignedDuration::MAX);
        let virtually = passed.checked_mul(self.factor).unwrap_or(SignedDuration::MAX);
        self.start.saturating_add(virtually).unwrap_or(self.start)
    }
}
