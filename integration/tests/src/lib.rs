//! End-to-end tests, the demo and the simulator.
