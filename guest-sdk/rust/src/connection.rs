//! The end user's account for which the function runs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, host};

/// Which connection it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    /// The id by which the client's backend knows the connection.
    pub connection_id: String,
    /// The integration's unique key.
    pub integration: String,
    /// The provider's slug, such as `stripe-api-key`.
    pub provider: String,
    /// The environment's name, such as `dev`.
    pub environment: String,
    /// What was asked when connecting, such as a subdomain.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// The tags that the client's backend gave it.
    pub tags: BTreeMap<String, String>,
}

/// The connection of this run.
pub fn info() -> Result<Info> {
    let info = host::connection::get();
    Ok(Info {
        connection_id: info.connection_id,
        integration: info.integration,
        provider: info.provider,
        environment: info.environment,
        config: serde_json::from_str(&info.config)?,
        tags: serde_json::from_str(&info.tags)?,
    })
}

/// The JSON object that the client's backend and functions share. Give a `T` with `#[serde(default)]`: the
/// object is empty until someone fills it.
pub fn metadata<T: DeserializeOwned>() -> Result<T> {
    serde_json::from_str(&host::connection::metadata()).map_err(|error| {
        Error::new(
            "invalid-metadata",
            format!("the connection's metadata is not what the function takes: {error}"),
        )
    })
}

/// Replaces the metadata.
pub fn set_metadata(metadata: &impl Serialize) -> Result {
    host::connection::set_metadata(&serde_json::to_string(metadata)?).map_err(Error::from_failure)
}

/// Replaces the given top-level keys of the metadata and keeps the others.
pub fn update_metadata(changes: &impl Serialize) -> Result {
    host::connection::update_metadata(&serde_json::to_string(changes)?).map_err(Error::from_failure)
}

/// The live credentials, refreshed if they were about to expire. Fails with `not-allowed` unless
/// `syncline.toml` grants them to this function with `credentials = true`; requests need no grant. Fails with
/// `credentials-unavailable` where they cannot be refreshed.
pub fn credentials<T: DeserializeOwned>() -> Result<T> {
    let credentials = host::connection::credentials().map_err(Error::from_failure)?;
    // The error's text could quote a secret, so it is not passed on.
    serde_json::from_str(&credentials).map_err(|_| {
        Error::new("credentials-unavailable", "the credentials are not of the shape that the function takes")
    })
}
