//! The rules of gpu-bridge: model, handover, arbiter, planner, calendar (pure: no I/O, clock, async or randomness).
