//! The gate as a whole, against servers on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a test that unwraps says best where it failed")]

mod addresses;
mod answers;
mod redirects;
mod retries;
mod secrets;
mod signatures;
mod stage;
