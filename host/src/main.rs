//! The binary `syncline`: the host and its tools.

use std::process::ExitCode;

/// A proxied request makes some hundred small allocations, which glibc's allocator is slower at.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    syncline::cli::main()
}
