//! Credentials of connections, in the shapes that clients send and read.

use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::egress::Credentials;
use crate::providers::AuthMode;
use crate::secret::Secret;

const MAX_SECRET_BYTES: usize = 1024;

/// What a connection proves itself with, as it is stored.
#[derive(Debug, Clone)]
pub enum StoredCredentials {
    ApiKey { api_key: Secret<String> },
    Basic { username: Secret<String>, password: Secret<String> },
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the provider's auth mode is {expected}, so `type` must be `{expected}`")]
    OtherMode { expected: AuthMode },
    #[error("connections of auth mode {0} cannot be imported here")]
    UnsupportedMode(AuthMode),
    #[error("must be text of at most {MAX_SECRET_BYTES} bytes")]
    Field { name: &'static str },
    #[error("must not be empty")]
    Empty { name: &'static str },
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
            Self::Field { name } | Self::Empty { name } => Some(name),
            Self::UnknownField { name, .. } => Some(name),
            Self::Unreadable => None,
        }
    }
}

impl StoredCredentials {
    /// Takes what a client sent for a provider of this mode.
    pub fn parse(mode: AuthMode, mut fields: Map<String, Value>) -> Result<Self, CredentialsError> {
        match fields.remove("type") {
            Some(Value::String(given)) if given == mode.as_str() => {}
            _ => return Err(CredentialsError::OtherMode { expected: mode }),
        }
        let parsed = match mode {
            AuthMode::ApiKey => Self::ApiKey { api_key: take(&mut fields, "apiKey", false)? },
            AuthMode::Basic => Self::Basic {
                username: take(&mut fields, "username", true)?,
                password: take(&mut fields, "password", true)?,
            },
            AuthMode::None => Self::None,
            other => return Err(CredentialsError::UnsupportedMode(other)),
        };
        match fields.into_iter().next() {
            Some((name, _)) => Err(CredentialsError::UnknownField { name, mode }),
            None => Ok(parsed),
        }
    }

    /// The form that clients read, which is also what is sealed.
    pub fn to_json(&self) -> Value {
        match self {
            Self::ApiKey { api_key } => json!({ "type": "API_KEY", "apiKey": api_key.expose() }),
            Self::Basic { username, password } => {
                json!({ "type": "BASIC", "username": username.expose(), "password": password.expose() })
            }
            Self::None => json!({ "type": "NONE" }),
        }
    }

    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.to_json().to_string().into_bytes())
    }

    /// Reads what [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CredentialsError> {
        let Ok(Value::Object(fields)) = serde_json::from_slice(bytes) else {
            return Err(CredentialsError::Unreadable);
        };
        let mode = match fields.get("type").and_then(Value::as_str) {
            Some("API_KEY") => AuthMode::ApiKey,
            Some("BASIC") => AuthMode::Basic,
            Some("NONE") => AuthMode::None,
            _ => return Err(CredentialsError::Unreadable),
        };
        Self::parse(mode, fields)
    }

    /// What the gate puts into requests.
    pub fn for_requests(&self) -> Credentials {
        match self {
            Self::ApiKey { api_key } => Credentials::ApiKey { api_key: api_key.clone() },
            Self::Basic { username, password } => {
                Credentials::Basic { username: username.clone(), password: password.clone() }
            }
            Self::None => Credentials::None,
        }
    }
}

fn take(
    fields: &mut Map<String, Value>,
    name: &'static str,
    may_be_empty: bool,
) -> Result<Secret<String>, CredentialsError> {
    match fields.remove(name) {
        Some(Value::String(text)) if text.is_empty() && !may_be_empty => {
            Err(CredentialsError::Empty { name })
        }
        Some(Value::String(text)) if text.len() <= MAX_SECRET_BYTES => Ok(Secret::new(text)),
        _ => Err(CredentialsError::Field { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(mode: AuthMode, value: Value) -> Result<StoredCredentials, CredentialsError> {
        let Value::Object(fields) = value else { panic!("not an object") };
        StoredCredentials::parse(mode, fields)
    }

    #[test]
    fn what_is_stored_is_read_back() {
        for (mode, value) in [
            (AuthMode::ApiKey, json!({ "type": "API_KEY", "apiKey": "k" })),
            (AuthMode::Basic, json!({ "type": "BASIC", "username": "u", "password": "" })),
            (AuthMode::None, json!({ "type": "NONE" })),
        ] {
            let stored = parse(mode, value.clone()).unwrap().to_bytes();
            assert_eq!(StoredCredentials::from_bytes(&stored).unwrap().to_json(), value);
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |mode, value| parse(mode, value).unwrap_err().field().map(str::to_owned);
        assert_eq!(field(AuthMode::ApiKey, json!({ "type": "BASIC" })).as_deref(), Some("type"));
        assert_eq!(field(AuthMode::ApiKey, json!({ "type": "API_KEY" })).as_deref(), Some("apiKey"));
        assert_eq!(
            field(AuthMode::ApiKey, json!({ "type": "API_KEY", "apiKey": "" })).as_deref(),
            Some("apiKey")
        );
        let extra = json!({ "type": "API_KEY", "apiKey": "k", "x": 1 });
        assert_eq!(field(AuthMode::ApiKey, extra).as_deref(), Some("x"));
    }
}
