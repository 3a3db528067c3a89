//! Chance, from one seed: the same seed gives the same run.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A source of chance.
#[derive(Debug)]
pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A number of the range.
    pub(super) fn within(&mut self, range: Range<i64>) -> i64 {
        self.0.random_range(range)
    }

    /// True so many times in a thousand.
    pub(super) fn permille(&mut self, chance: u32) -> bool {
        self.0.random_range(0..1000) < chance
    }

    /// One of them; `None` where there is none.
    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.0.random_range(0..all.len())) }
    }

    /// One of them, each as likely as its weight.
    pub(super) fn weighed<T: Copy>(&mut self, all: &[(u32, T)]) -> Option<T> {
        let sum: u32 = all.iter().map(|(weight, _)| weight).sum();
        if sum == 0 {
            return None;
        }
        let mut left = self.0.random_range(0..sum);
        for (weight, one) in all {
            if left < *weight {
                return Some(*one);
            }
            left -= weight;
        }
        None
    }
}
