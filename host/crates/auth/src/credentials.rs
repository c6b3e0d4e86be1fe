//! The credentials of connections: their stored form, their form for clients, and when they must be renewed.

mod import;
mod requests;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

pub use self::import::CredentialsError;

use syncline_providers::AuthMode;
use syncline_types::json;
use syncline_types::secret::{Secret, serialize_exposed, serialize_exposed_option};

/// The credentials of one connection. The tag is the wire name of the auth mode. The serde form contains all secrets
/// and is stored encrypted. Clients receive the form of [`to_wire`](Self::to_wire).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum StoredCredentials {
    #[serde(rename = "API_KEY")]
    ApiKey {
        #[serde(rename = "apiKey", serialize_with = "serialize_exposed")]
        api_key: Secret<String>,
    },
    #[serde(rename = "BASIC")]
    Basic {
        #[serde(serialize_with = "serialize_exposed")]
        username: Secret<String>,
        #[serde(serialize_with = "serialize_exposed")]
        password: Secret<String>,
    },
    #[serde(rename = "NONE")]
    None,
    #[serde(rename = "OAUTH2")]
    OAuth2(OAuth2Token),
    #[serde(rename = "OAUTH2_CC")]
    ClientCredentials(ClientCredentialsToken),
    #[serde(rename = "OAUTH1")]
    OAuth1 {
        #[serde(serialize_with = "serialize_exposed")]
        oauth_token: Secret<String>,
        #[serde(serialize_with = "serialize_exposed")]
        oauth_token_secret: Secret<String>,
        #[serde(serialize_with = "serialize_exposed")]
        raw: Secret<String>,
    },
    #[serde(rename = "TBA")]
    TokenBased {
        #[serde(serialize_with = "serialize_exposed")]
        token_id: Secret<String>,
        #[serde(serialize_with = "serialize_exposed")]
        token_secret: Secret<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config_override: Option<ClientOverride>,
    },
    #[serde(rename = "APP")]
    App(InstallationToken),
    /// An installation, with the token of the user who consented to it.
    #[serde(rename = "CUSTOM")]
    Custom {
        app: InstallationToken,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<OAuth2Token>,
    },
    #[serde(rename = "JWT")]
    Jwt(ExchangedToken),
    #[serde(rename = "TWO_STEP")]
    TwoStep(ExchangedToken),
    #[serde(rename = "BILL")]
    Bill(ExchangedToken),
    #[serde(rename = "SIGNATURE")]
    Signature(ExchangedToken),
}

/// The result of exchanging an authorization code or a refresh token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OAuth2Token {
    #[serde(serialize_with = "serialize_exposed")]
    pub access_token: Secret<String>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub refresh_token: Option<Secret<String>>,
    pub expires_at: Option<DateTime<Utc>>,
    /// The connection's own app, which replaces the integration's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_override: Option<ClientOverride>,
    /// The token response as JSON text.
    #[serde(serialize_with = "serialize_exposed")]
    pub raw: Secret<String>,
}

/// A token that was issued to an end user's own client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientCredentialsToken {
    #[serde(serialize_with = "serialize_exposed")]
    pub token: Secret<String>,
    pub expires_at: Option<DateTime<Utc>>,
    pub client_id: String,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub client_secret: Option<Secret<String>>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub client_certificate: Option<Secret<String>>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub client_private_key: Option<Secret<String>>,
    #[serde(serialize_with = "serialize_exposed")]
    pub raw: Secret<String>,
}

/// The token of an app installation. It is requested again with the app's private key whenever it expires, so it may
/// be absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InstallationToken {
    pub app_id: Option<String>,
    pub installation_id: String,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub access_token: Option<Secret<String>>,
    pub expires_at: Option<DateTime<Utc>>,
    /// The app's own signed token, if a client requested it.
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub jwt_token: Option<Secret<String>>,
    #[serde(serialize_with = "serialize_exposed")]
    pub raw: Secret<String>,
}

/// The fields that an end user entered, and the token that was obtained or signed with them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExchangedToken {
    /// The fields, by their names in the provider file.
    #[serde(serialize_with = "serialize_fields")]
    pub fields: BTreeMap<String, Secret<String>>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub token: Option<Secret<String>>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pub refresh_token: Option<Secret<String>>,
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "serialize_exposed")]
    pub raw: Secret<String>,
}

/// A connection's own app.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientOverride {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "serialize_exposed_option")]
    pub client_secret: Option<Secret<String>>,
}

impl StoredCredentials {
    pub fn mode(&self) -> AuthMode {
        match self {
            Self::ApiKey { .. } => AuthMode::ApiKey,
            Self::Basic { .. } => AuthMode::Basic,
            Self::None => AuthMode::None,
            Self::OAuth2(_) => AuthMode::OAuth2,
            Self::ClientCredentials(_) => AuthMode::OAuth2ClientCredentials,
            Self::OAuth1 { .. } => AuthMode::OAuth1,
            Self::TokenBased { .. } => AuthMode::TokenBased,
            Self::App(_) => AuthMode::App,
            Self::Custom { .. } => AuthMode::Custom,
            Self::Jwt(_) => AuthMode::Jwt,
            Self::TwoStep(_) => AuthMode::TwoStep,
            Self::Bill(_) => AuthMode::Bill,
            Self::Signature(_) => AuthMode::Signature,
        }
    }

    /// Returns when the credentials expire. `None` if they never do, or if that is unknown.
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::OAuth2(token) => token.expires_at,
            Self::ClientCredentials(token) => token.expires_at,
            Self::App(token) | Self::Custom { app: token, .. } => token.expires_at,
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) | Self::Signature(token) => {
                token.expires_at
            }
            Self::ApiKey { .. }
            | Self::Basic { .. }
            | Self::None
            | Self::OAuth1 { .. }
            | Self::TokenBased { .. } => None,
        }
    }

    /// Whether new credentials can be obtained with these.
    pub fn can_be_renewed(&self) -> bool {
        match self {
            Self::OAuth2(token) => token.refresh_token.is_some(),
            Self::ClientCredentials(_)
            | Self::App(_)
            | Self::Custom { .. }
            | Self::Jwt(_)
            | Self::TwoStep(_)
            | Self::Bill(_) => true,
            Self::ApiKey { .. }
            | Self::Basic { .. }
            | Self::None
            | Self::OAuth1 { .. }
            | Self::TokenBased { .. }
            | Self::Signature(_) => false,
        }
    }

    /// Whether the token that requests need has not been obtained yet.
    pub fn lack_a_token(&self) -> bool {
        match self {
            Self::App(token) | Self::Custom { app: token, .. } => token.access_token.is_none(),
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) => token.token.is_none(),
            _ => false,
        }
    }

    /// Returns the installation's token, for credentials of an app.
    pub fn installation(&self) -> Option<&InstallationToken> {
        match self {
            Self::App(token) | Self::Custom { app: token, .. } => Some(token),
            _ => None,
        }
    }

    /// Adds a token that the app itself has signed, for clients that requested it. It is never stored.
    #[must_use]
    pub fn with_app_token(mut self, signed: Secret<String>) -> Self {
        if let Self::App(token) | Self::Custom { app: token, .. } = &mut self {
            token.jwt_token = Some(signed);
        }
        self
    }

    /// Returns all secret values, except other values that a provider wrote into its token response.
    pub fn secrets(&self) -> Vec<&str> {
        let secrets: Vec<&Secret<String>> = match self {
            Self::ApiKey { api_key } => vec![api_key],
            Self::Basic { username, password } => vec![username, password],
            Self::None => Vec::new(),
            Self::OAuth2(token) => token.secrets().collect(),
            Self::ClientCredentials(token) => {
                let own = [&token.client_secret, &token.client_certificate, &token.client_private_key];
                own.into_iter().flatten().chain([&token.token]).collect()
            }
            Self::OAuth1 { oauth_token, oauth_token_secret, .. } => vec![oauth_token, oauth_token_secret],
            Self::TokenBased { token_id, token_secret, config_override } => {
                let own = config_override.as_ref().and_then(|own| own.client_secret.as_ref());
                own.into_iter().chain([token_id, token_secret]).collect()
            }
            Self::App(token) => token.secrets().collect(),
            Self::Custom { app, user } => {
                app.secrets().chain(user.iter().flat_map(OAuth2Token::secrets)).collect()
            }
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) | Self::Signature(token) => {
                token.fields.values().chain(&token.token).chain(&token.refresh_token).collect()
            }
        };
        secrets.into_iter().map(|secret| secret.expose().as_str()).collect()
    }

    /// Returns the form for clients. It contains refresh tokens only if `with_refresh_token` is true.
    pub fn to_wire(&self, with_refresh_token: bool) -> Value {
        let mut wire = match self {
            Self::ApiKey { .. } | Self::Basic { .. } | Self::None | Self::TokenBased { .. } => {
                self.sealed_json()
            }
            Self::OAuth1 { raw, .. } => with_raw(self.sealed_json(), raw),
            Self::OAuth2(token) => with_raw(self.sealed_json(), &token.raw),
            Self::ClientCredentials(token) => with_raw(self.sealed_json(), &token.raw),
            Self::App(token) => installation_json("APP", token),
            Self::Custom { app, user } => json!({
                "type": "CUSTOM",
                "app": installation_json("APP", app),
                "user": user.as_ref().map(|user| Self::OAuth2(user.clone()).to_wire(with_refresh_token)),
                "raw": parse_raw(&app.raw),
            }),
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) | Self::Signature(token) => {
                exchanged_json(self.mode(), token)
            }
        };
        remove_nulls(&mut wire);
        if !with_refresh_token {
            remove_refresh_tokens(&mut wire);
        }
        wire
    }

    /// Returns the form to encrypt and store.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.sealed_json().to_string().into_bytes())
    }

    /// Parses the result of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CredentialsError> {
        serde_json::from_slice(bytes).map_err(|_| CredentialsError::Unreadable)
    }

    fn sealed_json(&self) -> Value {
        serde_json::to_value(self).expect("credentials can be represented as JSON")
    }
}

impl OAuth2Token {
    fn secrets(&self) -> impl Iterator<Item = &Secret<String>> {
        let own = self.config_override.as_ref().and_then(|own| own.client_secret.as_ref());
        [&self.access_token].into_iter().chain(&self.refresh_token).chain(own)
    }
}

impl InstallationToken {
    fn secrets(&self) -> impl Iterator<Item = &Secret<String>> {
        self.access_token.iter().chain(&self.jwt_token)
    }
}

fn installation_json(kind: &str, token: &InstallationToken) -> Value {
    json!({
        "type": kind,
        "access_token": token.access_token.as_ref().map(Secret::expose),
        "expires_at": token.expires_at,
        "jwtToken": token.jwt_token.as_ref().map(Secret::expose),
        "raw": parse_raw(&token.raw),
    })
}

fn exchanged_json(mode: AuthMode, token: &ExchangedToken) -> Value {
    let mut wire: Map<String, Value> =
        token.fields.iter().map(|(name, value)| (name.clone(), value.expose().as_str().into())).collect();
    wire.insert("type".to_owned(), mode.as_str().into());
    wire.insert("token".to_owned(), json!(token.token.as_ref().map(Secret::expose)));
    wire.insert("refresh_token".to_owned(), json!(token.refresh_token.as_ref().map(Secret::expose)));
    wire.insert("expires_at".to_owned(), json!(token.expires_at));
    let raw = parse_raw(&token.raw);
    if mode == AuthMode::Bill {
        // The names that existing clients read.
        wire.insert("session_id".to_owned(), wire["token"].clone());
        wire.insert("user_id".to_owned(), raw["userId"].clone());
    }
    wire.insert("raw".to_owned(), raw);
    Value::Object(wire)
}

fn with_raw(mut wire: Value, raw: &Secret<String>) -> Value {
    wire["raw"] = parse_raw(raw);
    wire
}

/// Returns the parsed response, or its text if it is not JSON.
fn parse_raw(raw: &Secret<String>) -> Value {
    json::parse(raw.expose()).unwrap_or_else(|_| Value::String(raw.expose().clone()))
}

/// Removes null members, because the wire format omits absent values. The provider's own response in `raw` keeps its
/// nulls.
fn remove_nulls(wire: &mut Value) {
    if let Value::Object(members) = wire {
        members.retain(|_, value| !value.is_null());
    }
}

/// Removes refresh tokens in every spelling and at every depth, because providers repeat them in their responses.
pub fn remove_refresh_tokens(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| {
                let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
                !plain.eq_ignore_ascii_case("refreshtoken")
            });
            members.values_mut().for_each(remove_refresh_tokens);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_refresh_tokens),
        _ => {}
    }
}

fn serialize_fields<S: serde::Serializer>(
    fields: &BTreeMap<String, Secret<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value.expose())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(value: Value) -> StoredCredentials {
        StoredCredentials::from_bytes(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn stored_credentials_are_restored() {
        for value in [
            json!({ "type": "API_KEY", "apiKey": "k" }),
            json!({ "type": "BASIC", "username": "u", "password": "" }),
            json!({ "type": "NONE" }),
            json!({ "type": "OAUTH1", "oauth_token": "t", "oauth_token_secret": "s", "raw": "{}" }),
            json!({ "type": "TBA", "token_id": "t", "token_secret": "s" }),
        ] {
            let bytes = stored(value.clone()).to_bytes();
            assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), value);
        }
    }

    #[test]
    fn refresh_tokens_are_included_only_on_request() {
        let raw = json!({ "access_token": "a", "Refresh-Token": "r", "deep": [{ "refreshToken": "r" }] });
        let credentials = stored(json!({
            "type": "OAUTH2", "access_token": "a", "refresh_token": "r", "expires_at": null,
            "raw": raw.to_string(),
        }));
        assert_eq!(
            credentials.to_wire(false),
            json!({ "type": "OAUTH2", "access_token": "a", "raw": { "access_token": "a", "deep": [{}] } })
        );
        let full = credentials.to_wire(true);
        assert_eq!((&full["refresh_token"], &full["raw"]), (&json!("r"), &raw));
    }

    #[test]
    fn the_fields_of_an_exchanged_token_are_top_level_members() {
        let credentials = stored(json!({
            "type": "TWO_STEP", "fields": { "tenant": "acme" }, "token": "t", "expires_at": null, "raw": "no json",
        }));
        let wire = json!({ "type": "TWO_STEP", "tenant": "acme", "token": "t", "raw": "no json" });
        assert_eq!(credentials.to_wire(false), wire);
    }

    #[test]
    fn the_debug_output_contains_no_secret() {
        let credentials = stored(json!({ "type": "BASIC", "username": "planted", "password": "planted" }));
        assert!(!format!("{credentials:?}").contains("planted"));
    }
}
