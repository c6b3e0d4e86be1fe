//! Who may do what: secret keys of environments with their scopes, and the credentials of connections.

mod api_keys;
mod authenticator;
mod credentials;
mod scopes;

pub use api_keys::{ApiKey, InvalidSecretKey};
pub use authenticator::{AuthError, Authenticator, Client};
pub use credentials::{CredentialsError, StoredCredentials};
pub use scopes::{Scope, ScopePreset, Scopes};
