//! The imports of the world: the host's own in a guest, the fake of [`crate::testing`] everywhere else. This
//! is the only place that tells the two apart, so that functions are the same code in both.

#[cfg(target_family = "wasm")]
pub(crate) use crate::bindings::syncline::integration::{
    checkpoint, connection, environment, log, provider, records, run,
};

#[cfg(not(target_family = "wasm"))]
pub(crate) use crate::testing::imports::{checkpoint, connection, environment, log, provider, records, run};
