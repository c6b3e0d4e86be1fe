//! Authentication and credentials: environments, their secret keys with scopes, and the credentials of integrations'
//! apps and of connections.

mod accounts;
mod api_keys;
mod app_credentials;
mod authenticator;
mod cache;
mod credentials;
mod environments;
pub mod flows;
mod integration_settings;
mod jwt;
mod key_rotation;
mod record_keys;
mod scopes;
mod session_tokens;
mod signing_keys;
mod webhook_signatures;

pub use accounts::passwords::{Password, WeakPassword};
pub use accounts::sign_in::SignInError;
pub use accounts::{
    Account, AccountError, AccountLink, AccountSession, Accounts, Email, InvalidEmail, LinkPurpose,
    NewSession, SignedIn,
};
pub use api_keys::{
    ApiKey, ApiKeyError, ApiKeys, CreatedApiKey, InvalidSecretKey, KeyListing, check_key_name,
};
pub use app_credentials::{AppCredentials, AppCredentialsError, InstallableApp, OAuthApp};
pub use authenticator::{AuthError, Authenticator, Client};
pub use cache::Cache;
pub use credentials::{
    ClientCredentialsToken, ClientOverride, CredentialsError, ExchangedToken, InstallationToken, OAuth2Token,
    StoredCredentials, remove_refresh_tokens,
};
pub use environments::{DEFAULT_ENVIRONMENT, Environment, EnvironmentError, Environments};
pub use integration_settings::{IntegrationSettings, SettingsError, Texts};
pub use jwt::{JwtError, sign as sign_jwt};
pub use key_rotation::{Resealed, RotationError};
pub use scopes::{Right, Scope, ScopePreset, Scopes, rights};
pub use session_tokens::{InvalidSessionToken, SessionToken};
pub use signing_keys::{FormerKeys, SIGNING_KEY_OVERLAP, SigningKey};
pub use webhook_signatures::{
    Answered, IncomingWebhook, Refusal, Verified, WebhookSecrets, answer_handshake, verify_webhook,
};

pub use syncline_types::accounts::Role;
pub use syncline_types::environment_settings::{EnvironmentSettings, SettingsChange};
