//! The rules of gpu-bridge: model, gates, handover, arbiter, planner, calendar.
//!
//! **Invariant of this crate:** no I/O, no clock, no async, no randomness. Time and ids come in as arguments, so the
//! whole of it runs the same in the daemon, in tests and in the simulator.
//!
//! Where to begin: [`safety`] is the rule, [`handover`] the protocol, [`gate`] what closed and empty mean.

pub mod adoption;
pub mod arbiter;
pub mod backwards;
pub mod book;
pub mod calendar;
pub mod demand;
pub mod denied;
pub mod event;
pub mod facts;
#[cfg(test)]
mod fixtures;
pub mod gate;
pub mod handover;
pub mod hostlist;
pub mod ids;
pub mod import;
pub mod leftover;
pub mod mark;
pub mod model;
pub mod planner;
pub mod release;
#[cfg(test)]
mod rule_tests;
pub mod safety;
#[cfg(test)]
mod state_table;
pub mod step;
pub mod view;
pub mod want;
