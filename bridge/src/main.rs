//! The `gpu-bridge` binary: daemon and command line.
fn main() {}
