//! The gate as a whole, against servers on the loopback interface.

mod addresses;
mod answers;
mod redirects;
mod retries;
mod secrets;
mod signatures;
pub(crate) mod stage;
