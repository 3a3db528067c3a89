//! What the end-to-end tests, the demo and the simulator share: a small site with four GPU nodes, the daemon as its users
//! run it, stand-ins in virtual time, and the real two schedulers side by side.

pub mod daemon;
pub mod demo;
pub mod labs;
pub mod policies;
pub mod sim;
pub mod site;
pub mod standins;
pub mod truth;
