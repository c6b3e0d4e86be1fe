//! The world's imports: the host's own in a guest, and the fake of [`crate::testing`] on all other targets. Only
//! this module distinguishes the two, so functions have the same code in both.

#[cfg(target_family = "wasm")]
pub(crate) use crate::bindings::syncline::integration::{
    checkpoint, connection, environment, log, provider, records, run,
};

#[cfg(not(target_family = "wasm"))]
pub(crate) use crate::testing::imports::{checkpoint, connection, environment, log, provider, records, run};
