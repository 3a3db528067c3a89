//! Windows and blackouts over time. It decides what is on at an instant, how many nodes each pool must have ready then,
//! and when that may change next. Everything is a pure function of the calendar and the instant: nothing is replayed
//! after downtime, and nothing here knows the present time, files, nodes or policies.
//!
//! Blackouts beat windows by forbidding to *take* nodes ([`Calendar::blackout_at`], asked by the arbiter); they do not
//! lower what a window that is already on needs, or else a freeze would take nodes away from a running spike.

pub mod cron;
mod rule;
mod window;
mod zone;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, btree_map};

use jiff::Timestamp;

use crate::ids::{PoolName, WindowName};

pub use window::{
    Blackout, BlackoutSpec, DURATION_MAX, EXCEPT_MAX, Error, NODES_MAX, Occurrence, Overlap, Phase, When,
    Window, WindowSpec,
};
pub use zone::Zone;

/// All windows and blackouts of a site, each with a unique name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calendar {
    windows: BTreeMap<WindowName, Window>,
    blackouts: BTreeMap<String, Blackout>,
}

/// A window or blackout whose name is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name:?} exists twice; names must be unique")]
pub struct DuplicateName {
    /// `window` or `blackout`.
    pub kind: &'static str,
    /// The name.
    pub name: String,
}

/// Occurrences of all windows in order of start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<'a> {
    /// In order of start, then of window name.
    pub occurrences: Vec<Occurrence<'a>>,
    /// There were more than the limit.
    pub truncated: bool,
}

impl Calendar {
    /// An empty calendar.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a window.
    ///
    /// # Errors
    /// If its name is taken by another window.
    pub fn add_window(&mut self, window: Window) -> Result<(), DuplicateName> {
        match self.windows.entry(window.name().clone()) {
            btree_map::Entry::Occupied(entry) => {
                Err(DuplicateName { kind: "window", name: entry.key().to_string() })
            }
            btree_map::Entry::Vacant(entry) => {
                entry.insert(window);
                Ok(())
            }
        }
    }

    /// Adds a blackout.
    ///
    /// # Errors
    /// If its name is taken by another blackout.
    pub fn add_blackout(&mut self, blackout: Blackout) -> Result<(), DuplicateName> {
        match self.blackouts.entry(blackout.spec().name.clone()) {
            btree_map::Entry::Occupied(entry) => {
                Err(DuplicateName { kind: "blackout", name: entry.key().clone() })
            }
            btree_map::Entry::Vacant(entry) => {
                entry.insert(blackout);
                Ok(())
            }
        }
    }

    /// All windows by name.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.values()
    }

    /// All blackouts by name.
    pub fn blackouts(&self) -> impl Iterator<Item = &Blackout> {
        self.blackouts.values()
    }

    /// The occurrences that are on at `t`, one a window.
    pub fn on_at(&self, t: Timestamp) -> impl Iterator<Item = Occurrence<'_>> {
        self.windows().filter_map(move |window| window.on_at(t))
    }

    /// The blackout that is on at `t` and, of several, ends last.
    pub fn blackout_at(&self, t: Timestamp) -> Option<&Blackout> {
        self.blackouts()
            .filter_map(|blackout| Some((blackout.on_at(t)?, blackout)))
            .max_by_key(|(end, _)| *end)
            .map(|(_, blackout)| blackout)
    }

    /// The first instant after `t` at which anything may change: a lead start, start, end or cool-down end of a window,
    /// a start or end of a blackout. `None`: never again.
    pub fn next_change_after(&self, t: Timestamp) -> Option<Timestamp> {
        let windows = self.windows().filter_map(|window| window.next_change_after(t));
        let blackouts = self.blackouts().filter_map(|blackout| blackout.next_change_after(t));
        windows.chain(blackouts).min()
    }

    /// How many nodes `pool` must have ready at `t`: windows that are on. The sum of the `add` windows plus the maximum
    /// of the others.
    pub fn demand(&self, pool: &PoolName, t: Timestamp) -> u32 {
        self.nodes_in(pool, t, |phase| match phase {
            Phase::On => true,
            Phase::Off | Phase::Lead | Phase::CoolDown => false,
        })
    }

    /// How many nodes `pool` may hold at `t` for its windows: like [`Calendar::demand`], with leads and cool-downs.
    pub fn target(&self, pool: &PoolName, t: Timestamp) -> u32 {
        self.nodes_in(pool, t, |phase| match phase {
            Phase::Lead | Phase::On | Phase::CoolDown => true,
            Phase::Off => false,
        })
    }

    /// Occurrences of which any part, lead and cool-down included, lies between `from` and `to`; at most `limit`.
    pub fn occurrences_between(&self, from: Timestamp, to: Timestamp, limit: usize) -> Listing<'_> {
        let mut streams: Vec<_> = self.windows().map(|window| window.occurrences(from).peekable()).collect();
        let mut heads: BinaryHeap<Reverse<(Timestamp, usize)>> = BinaryHeap::new();
        for (index, stream) in streams.iter_mut().enumerate() {
            heads.extend(stream.peek().map(|next| Reverse((next.start, index))));
        }
        let mut occurrences = Vec::new();
        while let Some(Reverse((_, index))) = heads.pop() {
            let Some(stream) = streams.get_mut(index) else { continue };
            let Some(occurrence) = stream.next() else { continue };
            // Leads differ, so a later start of another window may still reach in: only this window is done.
            if occurrence.lead_start >= to {
                continue;
            }
            if occurrences.len() == limit {
                return Listing { occurrences, truncated: true };
            }
            occurrences.push(occurrence);
            heads.extend(stream.peek().map(|next| Reverse((next.start, index))));
        }
        Listing { occurrences, truncated: false }
    }

    /// Windows that will never be on again after `t`: worth telling their owners.
    pub fn over_at(&self, t: Timestamp) -> impl Iterator<Item = &Window> {
        self.windows().filter(move |window| window.is_over(t))
    }

    fn nodes_in(&self, pool: &PoolName, t: Timestamp, counts: impl Fn(Phase) -> bool) -> u32 {
        let mut sum = 0_u32;
        let mut max = 0;
        for window in self.windows().filter(|window| &window.spec().pool == pool) {
            if counts(window.phase_at(t)) {
                match window.spec().overlap {
                    Overlap::Add => sum = sum.saturating_add(window.spec().nodes),
                    Overlap::Max => max = window.spec().nodes.max(max),
                }
            }
        }
        sum.saturating_add(max)
    }
}
