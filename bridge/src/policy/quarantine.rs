//! Decides whether a policy that keeps failing may run. Three failures in a row take it out of service for a while; each
//! further failure, at the one try after that while, doubles it. Knows neither the policy nor the clock: time is an argument.

use serde::{Deserialize, Serialize};

/// Failures in a row that are tolerated, less one.
const FAILURES: u32 = 3;
/// The first quarantine, in seconds.
const FIRST_S: i64 = 60;
/// The longest quarantine, in seconds.
const LONGEST_S: i64 = 6 * 3600;

/// How a policy is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "health", rename_all = "kebab-case")]
pub enum Health {
    /// Its last decision was good, or it is new.
    #[default]
    Good,
    /// It failed, but not often enough to be taken out.
    Failing {
        /// Failures in a row.
        failures: u32,
    },
    /// It is out of service.
    Quarantined {
        /// Quarantines in a row, this one included.
        times: u32,
        /// When it gets another try, in seconds since 1970.
        until: i64,
    },
}

/// How a decision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It made a decision, perhaps an empty one.
    Decided,
    /// It failed in any way.
    Failed,
}

/// The policy is out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("in quarantine for its failures until {until} (seconds since 1970)  [{}]", OutOfService::CODE)]
pub struct OutOfService {
    /// When it gets another try.
    pub until: i64,
}

impl OutOfService {
    /// Its code; `docs/errors.md` says what to do about it.
    pub const CODE: &str = "GB0516";
}

impl Health {
    /// Whether it may run at `now`.
    pub const fn may_run(self, now: i64) -> Result<(), OutOfService> {
        match self {
            Self::Good | Self::Failing { .. } => Ok(()),
            Self::Quarantined { until, .. } if now >= until => Ok(()),
            Self::Quarantined { until, .. } => Err(OutOfService { until }),
        }
    }

    /// How it is doing after a decision that ended at `now`.
    #[must_use]
    pub const fn after(self, outcome: Outcome, now: i64) -> Self {
        match (self, outcome) {
            (Self::Good | Self::Failing { .. } | Self::Quarantined { .. }, Outcome::Decided) => Self::Good,
            (Self::Good, Outcome::Failed) => Self::Failing { failures: 1 },
            (Self::Failing { failures }, Outcome::Failed) if failures + 1 < FAILURES => {
                Self::Failing { failures: failures + 1 }
            }
            (Self::Failing { .. }, Outcome::Failed) => quarantined(1, now),
            (Self::Quarantined { times, .. }, Outcome::Failed) => quarantined(times.saturating_add(1), now),
        }
    }
}

const fn quarantined(times: u32, now: i64) -> Health {
    let mut seconds = FIRST_S;
    let mut doubled = 1;
    while doubled < times && seconds < LONGEST_S {
        seconds *= 2;
        doubled += 1;
    }
    let seconds = if seconds < LONGEST_S { seconds } else { LONGEST_S };
    Health::Quarantined { times, until: now.saturating_add(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_and_then_twice_as_long_each_time() {
        let fail = |health: Health, now| health.after(Outcome::Failed, now);
        let mut health = Health::default();
        health = fail(fail(health, 0), 10);
        assert_eq!(health, Health::Failing { failures: 2 });
        assert_eq!(health.may_run(20), Ok(()));
        health = fail(health, 20);
        assert_eq!(health, Health::Quarantined { times: 1, until: 80 });
        assert_eq!(health.may_run(79), Err(OutOfService { until: 80 }));
        assert_eq!(health.may_run(80), Ok(()));
        let mut lengths = vec![];
        let mut now = 80;
        for _ in 0..12 {
            health = fail(health, now);
            let Health::Quarantined { until, .. } = health else { panic!("{health:?}") };
            lengths.push(until - now);
            now = until;
        }
        assert_eq!(lengths, [120, 240, 480, 960, 1920, 3840, 7680, 15360, 21600, 21600, 21600, 21600]);
        assert_eq!(health.after(Outcome::Decided, now), Health::Good);
    }

    #[test]
    fn a_good_decision_forgives() {
        let mut health = Health::default();
        for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Decided, Outcome::Failed, Outcome::Failed]
        {
            health = health.after(outcome, 0);
        }
        assert_eq!(health, Health::Failing { failures: 2 });
    }

    #[test]
    fn far_out_times_do_not_overflow() {
        let health =
            Health::Quarantined { times: u32::MAX, until: i64::MAX }.after(Outcome::Failed, i64::MAX);
        assert_eq!(health, Health::Quarantined { times: u32::MAX, until: i64::MAX });
    }
}
