//! The invocation itself.

pub use crate::bindings::syncline::integration::run::Info;
use crate::host;

/// The run's id, the sync's variant, and which try this is.
pub fn info() -> Info {
    host::run::get()
}

/// Tells how far the run is, for those who watch it; `total` if it is known.
pub fn progress(done: u64, total: Option<u64>) {
    host::run::progress(done, total);
}

/// Whether the run should come to its end. A sync that keeps a checkpoint returns after its next flush and
/// continues in its next run.
pub fn cancelled() -> bool {
    host::run::cancelled()
}

/// The host's clock, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    host::run::now()
}
