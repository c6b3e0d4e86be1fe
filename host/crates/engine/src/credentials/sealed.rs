//! Decrypts the credentials of connections and apps.

use syncline_auth::{AppCredentials, AppCredentialsError, CredentialsError, Environment, StoredCredentials};
use syncline_crypto::{AssociatedData, CryptoError};
use syncline_store::connections::Connection;
use syncline_store::integrations::Integration;

#[derive(Debug, thiserror::Error)]
pub enum OpenCredentialsError {
    #[error("the connection's credentials cannot be decrypted")]
    Sealed(#[from] CryptoError),
    #[error("the connection's credentials cannot be parsed")]
    Unreadable(#[from] CredentialsError),
}

/// Decrypts the credentials of an integration's app, if it has any.
pub fn open_app_credentials(
    environment: &Environment,
    integration: &Integration,
) -> Result<Option<AppCredentials>, AppCredentialsError> {
    let sealed = integration.sealed_credentials.as_deref();
    sealed.map(|sealed| AppCredentials::open(&environment.data_key, integration.id, sealed)).transpose()
}

pub fn open_credentials(
    environment: &Environment,
    connection: &Connection,
) -> Result<StoredCredentials, OpenCredentialsError> {
    let opened = environment
        .data_key
        .open(associated_data(&connection.id.to_string()), &connection.sealed_credentials)?;
    Ok(StoredCredentials::from_bytes(&opened)?)
}

pub(crate) fn associated_data(id: &str) -> AssociatedData<'_> {
    AssociatedData { column: "connections.sealed_credentials", row: id }
}
