//! Where a sync continues. A [`Writer`](crate::Writer) sets it, together with the records it belongs to.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, host};

/// The checkpoint, as this run has last set it or found it; none on a first run and after a reset.
pub fn get<T: DeserializeOwned>() -> Result<Option<T>> {
    let Some(json) = host::checkpoint::get() else { return Ok(None) };
    let checkpoint = serde_json::from_str(&json).map_err(|error| {
        Error::new(
            "invalid-checkpoint",
            format!("the checkpoint is of another shape; reset the sync: {error}"),
        )
    })?;
    Ok(Some(checkpoint))
}

/// The text under the checkpoint's key `cursor`, as [`Writer::cursor`](crate::Writer::cursor) sets it.
pub fn cursor() -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Place {
        cursor: Option<String>,
    }
    Ok(get::<Place>()?.and_then(|place| place.cursor))
}
