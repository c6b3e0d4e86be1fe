//! The binary `syncline`: the host and its tools.

use std::process::ExitCode;

fn main() -> ExitCode {
    syncline::cli::main()
}
