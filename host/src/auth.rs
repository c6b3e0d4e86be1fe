//! Who may do what: environments, their secret keys with scopes, and the credentials of connections.

mod api_keys;
mod authenticator;
mod credentials;
mod environments;
pub mod flows;
mod scopes;

pub use api_keys::{ApiKey, InvalidSecretKey};
pub use authenticator::{AuthError, Authenticator, Client};
pub use credentials::{
    ClientCredentialsToken, ClientOverride, CredentialsError, ExchangedToken, InstallationToken, OAuth2Token,
    StoredCredentials,
};
pub use environments::{DEFAULT_ENVIRONMENT, Environment, EnvironmentError, Environments};
pub use scopes::{Scope, ScopePreset, Scopes};
