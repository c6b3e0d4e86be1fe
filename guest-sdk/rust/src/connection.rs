//! The connection for which the function runs: one end user's account at the provider.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, host};

/// The identity of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    /// The connection id, under which the backend knows the connection.
    pub connection_id: String,
    /// The integration's unique key.
    pub integration: String,
    /// The provider's name in the catalogue, such as `stripe-api-key`.
    pub provider: String,
    /// The environment's name, such as `dev`.
    pub environment: String,
    /// The connection configuration: values that were collected while connecting, such as a subdomain.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// The tags that the backend has set.
    pub tags: BTreeMap<String, String>,
}

/// Returns the connection of this run.
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

/// Returns the connection's metadata, a JSON object that the backend and functions share. Use a `T` with
/// `#[serde(default)]`, because the object is empty until a value is set.
pub fn metadata<T: DeserializeOwned>() -> Result<T> {
    serde_json::from_str(&host::connection::metadata()).map_err(|error| {
        Error::new("invalid-metadata", format!("could not deserialize the connection's metadata: {error}"))
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

/// Returns the current credentials, which the host refreshes first if they are about to expire. Provider requests
/// do not need this.
///
/// Fails with `not-allowed` unless `syncline.toml` sets `credentials = true` for this function, and with
/// `credentials-unavailable` if the credentials cannot be refreshed.
pub fn credentials<T: DeserializeOwned>() -> Result<T> {
    let credentials = host::connection::credentials().map_err(Error::from_failure)?;
    // The error's own message could quote a secret, so it is not included.
    serde_json::from_str(&credentials).map_err(|_| {
        Error::new("credentials-unavailable", "could not deserialize the credentials into the requested type")
    })
}
