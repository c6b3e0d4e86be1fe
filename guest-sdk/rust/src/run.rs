//! The current run.

pub use crate::bindings::syncline::integration::run::Info;
use crate::host;

/// The run's id, the sync's variant, and the number of the attempt.
pub fn info() -> Info {
    host::run::get()
}

/// Returns true if the host deletes the records that this run does not save, so that the function must fetch
/// everything. This is the case for syncs with `track_deletes`; with `full_every`, only for some of their runs. A full
/// run starts without a checkpoint.
pub fn is_full() -> bool {
    host::run::is_full()
}

/// Reports how much of the work is done. Set `total` if it is known.
pub fn progress(done: u64, total: Option<u64>) {
    host::run::progress(done, total);
}

/// Returns true if the run should stop. A sync with a checkpoint returns after its next flush, and the next run
/// resumes there.
pub fn cancelled() -> bool {
    host::run::cancelled()
}

/// Returns the time of the host's clock, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    host::run::now()
}
