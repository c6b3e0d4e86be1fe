//! Where a sync resumes. A [`Writer`](crate::Writer) sets the checkpoint together with the records that it belongs
//! to.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, host};

/// Returns the checkpoint that this run last saved, or else the one that it started with. Returns none on the first
/// run and after a reset.
pub fn get<T: DeserializeOwned>() -> Result<Option<T>> {
    let Some(json) = host::checkpoint::get() else { return Ok(None) };
    let checkpoint = serde_json::from_str(&json).map_err(|error| {
        Error::new(
            "invalid-checkpoint",
            format!("could not deserialize the checkpoint: {error}; if its type has changed, reset the sync"),
        )
    })?;
    Ok(Some(checkpoint))
}

/// Returns the text in the checkpoint's field `cursor`, which [`Writer::cursor`](crate::Writer::cursor) sets.
pub fn cursor() -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Place {
        cursor: Option<String>,
    }
    Ok(get::<Place>()?.and_then(|place| place.cursor))
}
