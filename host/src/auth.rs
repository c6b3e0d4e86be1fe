//! Who may do what: secret keys of environments, and the scopes that they carry.

mod api_keys;
mod authenticator;
mod scopes;

pub use api_keys::{ApiKey, InvalidSecretKey};
pub use authenticator::{AuthError, Authenticator, Client};
pub use scopes::{Scope, ScopePreset, Scopes};
