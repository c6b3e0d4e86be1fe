//! Takes over credentials that a client has already, in the fields that each auth mode asks for.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::{ClientCredentialsToken, ClientOverride, InstallationToken, OAuth2Token, StoredCredentials};
use crate::providers::AuthMode;
use crate::secret::Secret;

const MAX_KEY: usize = 1024;
const MAX_SECRET: usize = 2048;
const MAX_TOKEN: usize = 16_384;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the provider's auth mode is {expected}, so `type` must be `{expected}`")]
    OtherMode { expected: AuthMode },
    #[error("connections of auth mode {0} cannot be imported; their end users connect")]
    UnsupportedMode(AuthMode),
    #[error("must be text of 1 to {most} bytes")]
    Field { name: &'static str, most: usize },
    #[error("must be a date, such as 2026-01-31T12:00:00Z")]
    Date { name: &'static str },
    #[error("`{name}` is not a credential of auth mode {mode}")]
    UnknownField { name: String, mode: AuthMode },
    #[error("stored credentials are not of a form that this version knows")]
    Unreadable,
}

impl CredentialsError {
    /// The field that is to blame.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::OtherMode { .. } | Self::UnsupportedMode(_) => Some("type"),
            Self::Field { name, .. } | Self::Date { name } => Some(name),
            Self::UnknownField { name, .. } => Some(name),
            Self::Unreadable => None,
        }
    }
}

impl StoredCredentials {
    /// Takes what a client sent for a provider of this mode.
    pub fn import(mode: AuthMode, fields: Map<String, Value>) -> Result<Self, CredentialsError> {
        let raw = Secret::new(Value::Object(fields.clone()).to_string());
        let mut fields = Fields(fields);
        match fields.0.remove("type") {
            Some(Value::String(given)) if given == mode.as_str() => {}
            _ => return Err(CredentialsError::OtherMode { expected: mode }),
        }
        let imported = match mode {
            AuthMode::ApiKey => Self::ApiKey { api_key: fields.required("apiKey", MAX_KEY)? },
            AuthMode::Basic | AuthMode::InstallPlugin => Self::Basic {
                username: fields.maybe_empty("username", MAX_KEY)?,
                password: fields.maybe_empty("password", MAX_KEY)?,
            },
            AuthMode::None => Self::None,
            AuthMode::OAuth2 | AuthMode::McpOAuth2 | AuthMode::McpOAuth2Generic => {
                Self::OAuth2(OAuth2Token {
                    access_token: fields.required("access_token", MAX_TOKEN)?,
                    refresh_token: fields.optional("refresh_token", MAX_TOKEN)?,
                    expires_at: fields.date("expires_at")?,
                    config_override: fields.client_override()?,
                    raw,
                })
            }
            AuthMode::OAuth2ClientCredentials => Self::ClientCredentials(ClientCredentialsToken {
                token: fields.required("token", 4096)?,
                expires_at: fields.date("expires_at")?,
                client_id: fields.required("client_id", 255)?.expose().clone(),
                client_secret: Some(fields.required("client_secret", MAX_SECRET)?),
                client_certificate: fields.optional("client_certificate", 10_000)?,
                client_private_key: fields.optional("client_private_key", 10_000)?,
                raw,
            }),
            AuthMode::OAuth1 => Self::OAuth1 {
                oauth_token: fields.required("oauth_token", MAX_SECRET)?,
                oauth_token_secret: fields.required("oauth_token_secret", MAX_SECRET)?,
                raw,
            },
            AuthMode::TokenBased => Self::TokenBased {
                token_id: fields.required("token_id", MAX_SECRET)?,
                token_secret: fields.required("token_secret", MAX_SECRET)?,
                config_override: fields.client_override()?,
            },
            AuthMode::App => Self::App(fields.installation(raw)?),
            AuthMode::Custom => Self::Custom { app: fields.installation(raw)?, user: None },
            AuthMode::Jwt | AuthMode::Bill | AuthMode::TwoStep | AuthMode::Signature | AuthMode::AwsSigV4 => {
                return Err(CredentialsError::UnsupportedMode(mode));
            }
        };
        match fields.0.into_iter().next() {
            Some((name, _)) => Err(CredentialsError::UnknownField { name, mode }),
            None => Ok(imported),
        }
    }
}

/// The members that are still to be taken.
struct Fields(Map<String, Value>);

impl Fields {
    fn required(&mut self, name: &'static str, most: usize) -> Result<Secret<String>, CredentialsError> {
        self.optional(name, most)?.ok_or(CredentialsError::Field { name, most })
    }

    fn optional(
        &mut self,
        name: &'static str,
        most: usize,
    ) -> Result<Option<Secret<String>>, CredentialsError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && text.len() <= most => {
                Ok(Some(Secret::new(text)))
            }
            Some(_) => Err(CredentialsError::Field { name, most }),
        }
    }

    fn maybe_empty(&mut self, name: &'static str, most: usize) -> Result<Secret<String>, CredentialsError> {
        match self.0.remove(name) {
            Some(Value::String(text)) if text.len() <= most => Ok(Secret::new(text)),
            _ => Err(CredentialsError::Field { name, most }),
        }
    }

    fn date(&mut self, name: &'static str) -> Result<Option<DateTime<Utc>>, CredentialsError> {
        let invalid = || CredentialsError::Date { name };
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => {
                let date =
                    DateTime::parse_from_rfc3339(&text).or_else(|_| DateTime::parse_from_rfc2822(&text));
                date.map(|date| Some(date.to_utc())).map_err(|_| invalid())
            }
            Some(Value::Number(number)) => {
                number.as_i64().and_then(DateTime::from_timestamp_millis).map(Some).ok_or_else(invalid)
            }
            Some(_) => Err(invalid()),
        }
    }

    fn client_override(&mut self) -> Result<Option<ClientOverride>, CredentialsError> {
        const NAME: &str = "config_override";
        match self.0.remove(NAME) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(members)) => {
                let mut members = Self(members);
                let client_id = members.optional("client_id", 255)?.map(|id| id.expose().clone());
                let client_secret = members.optional("client_secret", MAX_SECRET)?;
                Ok(Some(ClientOverride { client_id, client_secret }))
            }
            Some(_) => Err(CredentialsError::Field { name: NAME, most: MAX_SECRET }),
        }
    }

    /// The token itself is fetched when it is first needed.
    fn installation(&mut self, raw: Secret<String>) -> Result<InstallationToken, CredentialsError> {
        Ok(InstallationToken {
            app_id: Some(self.required("app_id", 255)?.expose().clone()),
            installation_id: self.required("installation_id", 255)?.expose().clone(),
            access_token: None,
            expires_at: None,
            jwt_token: None,
            raw,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn import(mode: AuthMode, value: Value) -> Result<StoredCredentials, CredentialsError> {
        let Value::Object(fields) = value else { panic!("not an object") };
        StoredCredentials::import(mode, fields)
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |mode, value| import(mode, value).unwrap_err().field().map(str::to_owned);
        for (mode, value, blamed) in [
            (AuthMode::ApiKey, json!({ "type": "BASIC" }), "type"),
            (AuthMode::ApiKey, json!({ "type": "API_KEY" }), "apiKey"),
            (AuthMode::ApiKey, json!({ "type": "API_KEY", "apiKey": "" }), "apiKey"),
            (AuthMode::ApiKey, json!({ "type": "API_KEY", "apiKey": "k", "x": 1 }), "x"),
            (AuthMode::OAuth2, json!({ "type": "OAUTH2" }), "access_token"),
            (
                AuthMode::OAuth2,
                json!({ "type": "OAUTH2", "access_token": "a", "expires_at": "soon" }),
                "expires_at",
            ),
            (AuthMode::App, json!({ "type": "APP", "app_id": "1" }), "installation_id"),
            (AuthMode::TwoStep, json!({ "type": "TWO_STEP" }), "type"),
        ] {
            assert_eq!(field(mode, value.clone()).as_deref(), Some(blamed), "{value}");
        }
    }

    #[test]
    fn what_was_sent_is_kept_as_the_raw_response() {
        let sent =
            json!({ "type": "OAUTH2", "access_token": "a", "expires_at": "2026-01-31T12:00:00+01:00" });
        let imported = import(AuthMode::OAuth2, sent.clone()).unwrap();
        assert_eq!(imported.to_wire(false)["raw"], sent);
        assert_eq!(imported.to_wire(false)["expires_at"], "2026-01-31T11:00:00Z");
    }
}
