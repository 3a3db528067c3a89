//! The `gpu-bridge` binary: daemon and command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpu_bridge::cli::main()
}
