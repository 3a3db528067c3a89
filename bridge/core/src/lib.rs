//! The rules of gpu-bridge: model, gates, handover, arbiter, planner, calendar.
//!
//! **Invariant of this crate:** no I/O, no clock, no async, no randomness. Time and ids come in as arguments, so the
//! whole of it runs the same in the daemon, in tests and in the simulator.

pub mod calendar;
pub mod facts;
pub mod hostlist;
pub mod ids;
pub mod mark;
