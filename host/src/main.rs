//! The binary `syncline`: the host and its command-line client.

use std::process::ExitCode;

/// A proxied request makes about a hundred small allocations, for which glibc's allocator is slower.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    syncline::cli::main()
}
