//! Imports credentials that a client already has, with the fields of each auth mode.

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use serde_json::{Map, Value};

use super::{
    ClientCredentialsToken, ClientOverride, ExchangedToken, InstallationToken, OAuth2Token, StoredCredentials,
};
use syncline_config::did_you_mean;
use syncline_providers::AuthMode;
use syncline_types::secret::Secret;

const MAX_KEY: usize = 1024;
const MAX_SECRET: usize = 2048;
const MAX_TOKEN: usize = 16_384;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the provider's auth mode is {expected}, so `type` must be `{expected}`")]
    OtherMode { expected: AuthMode },
    #[error("connections of auth mode {0} cannot be imported; let the end users connect their accounts")]
    UnsupportedMode(AuthMode),
    #[error("must be a text of 1 to {max_bytes} bytes")]
    Field { name: &'static str, max_bytes: usize },
    #[error("must be a date such as 2026-01-31T12:00:00Z")]
    Date { name: &'static str },
    #[error(
        "`{name}` is not a credential of auth mode {mode}; {}",
        did_you_mean(name, known_names(*mode).iter().copied())
            .map_or_else(|| format!("use {}", list(known_names(*mode))), |near| format!("did you mean `{near}`?"))
    )]
    UnknownField { name: String, mode: AuthMode },
    #[error("the stored credentials have a format that this version does not know")]
    Unreadable,
}

impl CredentialsError {
    /// Returns the field that is invalid.
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
    /// Parses the credentials that a client sent for a provider of this auth mode.
    pub fn import(mode: AuthMode, fields: Map<String, Value>) -> Result<Self, CredentialsError> {
        let raw = Secret::new(Value::Object(fields.clone()).to_string());
        let mut fields = Fields(fields);
        match fields.0.remove("type") {
            Some(Value::String(given)) if given == mode.as_str() => {}
            _ => return Err(CredentialsError::OtherMode { expected: mode }),
        }
        // First, because a misspelled name would be reported as a missing field.
        let is_importable = mode == AuthMode::None || !known_names(mode).is_empty();
        if let Some(name) =
            fields.0.keys().find(|name| is_importable && !known_names(mode).contains(&name.as_str()))
        {
            return Err(CredentialsError::UnknownField { name: name.clone(), mode });
        }
        let imported = match mode {
            AuthMode::ApiKey => Self::ApiKey { api_key: fields.required("apiKey", MAX_KEY)? },
            AuthMode::Basic | AuthMode::InstallPlugin => Self::Basic {
                username: fields.required_or_empty("username", MAX_KEY)?,
                password: fields.required_or_empty("password", MAX_KEY)?,
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
        Ok(imported)
    }
}

/// The names of the fields of an auth mode, without `type`. Empty if connections of this mode cannot be imported.
fn known_names(mode: AuthMode) -> &'static [&'static str] {
    match mode {
        AuthMode::ApiKey => &["apiKey"],
        AuthMode::Basic | AuthMode::InstallPlugin => &["username", "password"],
        AuthMode::OAuth2 | AuthMode::McpOAuth2 | AuthMode::McpOAuth2Generic => {
            &["access_token", "refresh_token", "expires_at", "config_override"]
        }
        AuthMode::OAuth2ClientCredentials => {
            &["token", "expires_at", "client_id", "client_secret", "client_certificate", "client_private_key"]
        }
        AuthMode::OAuth1 => &["oauth_token", "oauth_token_secret"],
        AuthMode::TokenBased => &["token_id", "token_secret", "config_override"],
        AuthMode::App | AuthMode::Custom => &["app_id", "installation_id"],
        AuthMode::None
        | AuthMode::Jwt
        | AuthMode::Bill
        | AuthMode::TwoStep
        | AuthMode::Signature
        | AuthMode::AwsSigV4 => &[],
    }
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "only `type`".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

impl StoredCredentials {
    /// Parses credentials in the form that clients receive. They can be used for requests, but not renewed.
    pub fn from_wire(mode: AuthMode, mut fields: Map<String, Value>) -> Result<Self, CredentialsError> {
        let raw = || Secret::new("null".to_owned());
        match mode {
            AuthMode::App | AuthMode::Custom => {
                let app = match (mode, fields.remove("app")) {
                    (AuthMode::Custom, Some(Value::Object(app))) => app,
                    _ => fields,
                };
                let mut fields = Fields(app);
                Ok(Self::App(InstallationToken {
                    app_id: None,
                    installation_id: String::new(),
                    access_token: Some(fields.required("access_token", MAX_TOKEN)?),
                    expires_at: fields.date("expires_at")?,
                    jwt_token: None,
                    raw: raw(),
                }))
            }
            AuthMode::Jwt | AuthMode::Bill | AuthMode::TwoStep | AuthMode::Signature => {
                let mut fields = Fields(fields);
                let token = fields.optional("token", MAX_TOKEN)?;
                let expires_at = fields.date("expires_at")?;
                for other in ["type", "raw", "refresh_token"] {
                    fields.0.remove(other);
                }
                let texts = fields.0.into_iter().filter_map(|(name, value)| match value {
                    Value::String(text) => Some((name, Secret::new(text))),
                    _ => None,
                });
                let token = ExchangedToken {
                    fields: texts.collect(),
                    token,
                    refresh_token: None,
                    expires_at,
                    raw: raw(),
                };
                Ok(match mode {
                    AuthMode::Jwt => Self::Jwt(token),
                    AuthMode::Bill => Self::Bill(token),
                    AuthMode::Signature => Self::Signature(token),
                    _ => Self::TwoStep(token),
                })
            }
            _ => {
                fields.remove("raw");
                Self::import(mode, fields)
            }
        }
    }
}

/// The fields that have not been parsed yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn required(&mut self, name: &'static str, max_bytes: usize) -> Result<Secret<String>, CredentialsError> {
        self.optional(name, max_bytes)?.ok_or(CredentialsError::Field { name, max_bytes })
    }

    fn optional(
        &mut self,
        name: &'static str,
        max_bytes: usize,
    ) -> Result<Option<Secret<String>>, CredentialsError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && text.len() <= max_bytes => {
                Ok(Some(Secret::new(text)))
            }
            Some(_) => Err(CredentialsError::Field { name, max_bytes }),
        }
    }

    fn required_or_empty(
        &mut self,
        name: &'static str,
        max_bytes: usize,
    ) -> Result<Secret<String>, CredentialsError> {
        match self.0.remove(name) {
            Some(Value::String(text)) if text.len() <= max_bytes => Ok(Secret::new(text)),
            _ => Err(CredentialsError::Field { name, max_bytes }),
        }
    }

    fn date(&mut self, name: &'static str) -> Result<Option<DateTime<Utc>>, CredentialsError> {
        let invalid = || CredentialsError::Date { name };
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => parse_date(&text).map(Some).ok_or_else(invalid),
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
            Some(_) => Err(CredentialsError::Field { name: NAME, max_bytes: MAX_SECRET }),
        }
    }

    /// The installation's token is requested when it is first needed.
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

/// Parses the formats that JavaScript's `Date` accepts and common libraries write. A date without a time zone is in
/// UTC.
fn parse_date(text: &str) -> Option<DateTime<Utc>> {
    const WITH_ZONE: [&str; 3] =
        ["%Y-%m-%d %H:%M:%S%.f %#z", "%Y-%m-%d %H:%M %#z", "%a %b %d %Y %H:%M:%S GMT%#z"];
    const WITHOUT: [&str; 2] = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"];
    // `Date.toString()` appends the name of the time zone in parentheses.
    let text = text.trim();
    let text = text.split_once(" (").map_or(text, |(date, _zone)| date);
    if let Ok(date) = DateTime::parse_from_rfc3339(text).or_else(|_| DateTime::parse_from_rfc2822(text)) {
        return Some(date.to_utc());
    }
    let spaced = if text.starts_with(|first: char| first.is_ascii_digit()) {
        text.replacen('T', " ", 1)
    } else {
        text.to_owned()
    };
    let mut with_zone = WITH_ZONE
        .iter()
        .filter_map(|form| DateTime::parse_from_str(&spaced, form).ok())
        .map(|date| date.to_utc());
    let without = || WITHOUT.iter().find_map(|form| NaiveDateTime::parse_from_str(&spaced, form).ok());
    let day = || NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?.and_hms_opt(0, 0, 0);
    with_zone.next().or_else(|| Some(without().or_else(day)?.and_utc()))
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
    fn an_error_names_the_invalid_field() {
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
            (AuthMode::ApiKey, json!({ "type": "API_KEY", "api_key": "k" }), "api_key"),
            (AuthMode::None, json!({ "type": "NONE", "x": 1 }), "x"),
            (AuthMode::App, json!({ "type": "APP", "app_id": "1" }), "installation_id"),
            (AuthMode::TwoStep, json!({ "type": "TWO_STEP" }), "type"),
        ] {
            assert_eq!(field(mode, value.clone()).as_deref(), Some(blamed), "{value}");
        }
    }

    #[test]
    fn an_unknown_field_is_reported_with_the_known_ones() {
        let message = |mode, value| import(mode, value).unwrap_err().to_string();
        assert_eq!(
            message(AuthMode::ApiKey, json!({ "type": "API_KEY", "api_key": "k" })),
            "`api_key` is not a credential of auth mode API_KEY; did you mean `apiKey`?"
        );
        assert_eq!(
            message(AuthMode::OAuth1, json!({ "type": "OAUTH1", "x": 1 })),
            "`x` is not a credential of auth mode OAUTH1; use `oauth_token`, `oauth_token_secret`"
        );
        assert_eq!(
            message(AuthMode::None, json!({ "type": "NONE", "x": 1 })),
            "`x` is not a credential of auth mode NONE; use only `type`"
        );
    }

    #[test]
    fn common_date_formats_are_accepted() {
        for date in [
            json!("2030-01-01"),
            json!("2030-01-01T00:00"),
            json!("2030-01-01T00:00:00"),
            json!("2030-01-01 00:00:00"),
            json!("2030-01-01T00:00Z"),
            json!("2030-01-01T00:00:00.000Z"),
            json!("2030-01-01T01:00:00+0100"),
            json!("2030-01-01 01:00:00+01:00"),
            json!("2029-12-31T19:00-05:00"),
            json!("Tue Jan 01 2030 00:00:00 GMT+0000 (Coordinated Universal Time)"),
            json!("Tue, 01 Jan 2030 00:00:00 GMT"),
            json!(1_893_456_000_000_i64),
        ] {
            let sent = json!({ "type": "OAUTH2", "access_token": "a", "expires_at": date });
            let imported = import(AuthMode::OAuth2, sent).map(|imported| imported.expires_at());
            assert_eq!(imported.ok().flatten().map(|at| at.timestamp()), Some(1_893_456_000), "{date}");
        }
        for date in [json!("soon"), json!("2030-13-01"), json!("2030-01-01T25:00"), json!(""), json!(true)] {
            let sent = json!({ "type": "OAUTH2", "access_token": "a", "expires_at": date });
            assert!(import(AuthMode::OAuth2, sent).is_err(), "{date}");
        }
    }

    #[test]
    fn imported_credentials_keep_the_sent_fields_as_the_raw_response() {
        let sent =
            json!({ "type": "OAUTH2", "access_token": "a", "expires_at": "2026-01-31T12:00:00+01:00" });
        let imported = import(AuthMode::OAuth2, sent.clone()).unwrap();
        assert_eq!(imported.to_wire(false)["raw"], sent);
        assert_eq!(imported.to_wire(false)["expires_at"], "2026-01-31T11:00:00Z");
    }
}
