//! Tests of the egress gateway against servers on the loopback interface.
#![expect(clippy::unwrap_used, reason = "a panic names the line where the test failed")]

mod addresses;
mod answers;
mod redirects;
mod retries;
mod secrets;
mod signatures;
mod stage;
