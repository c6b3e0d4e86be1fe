//! Parses the answers of token endpoints leniently, because providers differ in where they put the parts of an answer
//! and in how they report errors.

use chrono::{DateTime, TimeDelta, Utc};
use http::StatusCode;
use serde_json::{Map, Value};

use super::FlowError;
use syncline_providers::{Provider, TokenResponsePaths};
use syncline_types::json;
use syncline_types::secret::{Mask, Secret};

const MAX_SHOWN: usize = 300;
/// A larger number counts milliseconds since 1970, not seconds.
const MILLISECONDS_FROM: i64 = 100_000_000_000;

/// A token with the other parts of the answer.
#[derive(Debug, Clone)]
pub struct TokenResponse {
    pub access_token: Secret<String>,
    pub refresh_token: Option<Secret<String>>,
    pub expires_at: Option<DateTime<Utc>>,
    /// The whole response as JSON text.
    pub raw: Secret<String>,
}

impl TokenResponse {
    /// Parses an answer's body. An answer that reports an error is an error, whatever its status. `sent` masks secrets
    /// of the request that the provider may repeat.
    pub fn read(
        provider: &Provider,
        status: StatusCode,
        body: &[u8],
        sent: &Mask,
        now: DateTime<Utc>,
    ) -> Result<Self, FlowError> {
        let default = TokenResponsePaths::default();
        let paths = provider.token_response.as_ref().unwrap_or(&default);
        Self::read_at(paths, provider.token_lifetime, status, body, sent, now)
    }

    /// Parses an answer whose parts are at these paths. The token's lifetime is `lifetime_seconds` if the answer
    /// contains none.
    pub fn read_at(
        paths: &TokenResponsePaths,
        lifetime_seconds: Option<u32>,
        status: StatusCode,
        body: &[u8],
        sent: &Mask,
        now: DateTime<Utc>,
    ) -> Result<Self, FlowError> {
        let parsed = parse(body).ok_or_else(|| unexpected_answer(status, body))?;
        let find = |path: &Option<String>, default_path: &str| {
            find(&parsed, path.as_deref().unwrap_or(default_path)).filter(|value| !value.is_null())
        };
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let access_token = find(&paths.access_token, "access_token").and_then(text);
        let Some(access_token) = access_token.filter(|_| status.is_success()) else {
            return Err(provider_error(status, &parsed, sent));
        };
        let expires_in = find(&paths.expires_in, "expires_in").and_then(number);
        let expires_at = find(&paths.expires_at, "expires_at").and_then(date);
        let lifetime = expires_in.or(lifetime_seconds.map(i64::from)).filter(|seconds| *seconds > 0);
        let from_lifetime = || {
            let seconds = TimeDelta::try_seconds(lifetime?)?;
            now.checked_add_signed(seconds)
        };
        Ok(Self {
            access_token: Secret::new(access_token),
            refresh_token: find(&paths.refresh_token, "refresh_token").and_then(text).map(Secret::new),
            expires_at: expires_at.or_else(from_lifetime),
            raw: Secret::new(parsed.to_string()),
        })
    }
}

/// Returns the value at a dotted path.
pub fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    })
}

/// Parses JSON, or the form encoding that some providers still use.
pub(super) fn parse(body: &[u8]) -> Option<Value> {
    if let Ok(value @ Value::Object(_)) = json::parse_bytes(body) {
        return Some(value);
    }
    let text = std::str::from_utf8(body).ok()?.trim();
    let is_form = text.contains('=') && !text.contains(['<', '{', ' ', '\n']);
    let members: Map<String, Value> = url::form_urlencoded::parse(text.as_bytes())
        .map(|(name, value)| (name.into_owned(), Value::String(value.into_owned())))
        .collect();
    is_form.then_some(Value::Object(members))
}

/// Returns the error for an answer that reports one. `sent` masks secrets of the request that the provider may repeat.
pub(super) fn provider_error(status: StatusCode, body: &Value, sent: &Mask) -> FlowError {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return FlowError::Unavailable { status };
    }
    let member = |names: &[&str]| {
        names.iter().find_map(|name| match find(body, name)? {
            Value::String(text) => Some(shorten(&sent.text(text))),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        })
    };
    let code = member(&["error", "error.code", "error.type", "code", "errorCode"]);
    let description = member(&["error_description", "error.message", "message", "errorMessage", "detail"]);
    match (code, description) {
        (None, None) if status.is_success() => {
            FlowError::NotUnderstood { status, what: "JSON without a token".to_owned() }
        }
        (code, description) => FlowError::Refused {
            code: code.unwrap_or_else(|| status.as_u16().to_string()),
            description: description.unwrap_or_default(),
        },
    }
}

/// Returns the error for an answer that could not be parsed. It names only the kind of the body, because the body
/// itself may repeat secrets.
pub(super) fn unexpected_answer(status: StatusCode, body: &[u8]) -> FlowError {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return FlowError::Unavailable { status };
    }
    let start = String::from_utf8_lossy(&body[..body.len().min(200)]).trim_start().to_lowercase();
    let what = match start.as_str() {
        "" => "an empty body",
        html if html.starts_with("<!doctype html") || html.starts_with("<html") => "an HTML page",
        xml if xml.starts_with('<') => "XML",
        _ => "text that is not JSON",
    };
    FlowError::NotUnderstood { status, what: what.to_owned() }
}

/// Some providers put whole pages into their descriptions.
fn shorten(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect();
    if plain.len() < text.len() { format!("{plain}…") } else { plain }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn date(value: &Value) -> Option<DateTime<Utc>> {
    if let Some(number) = number(value) {
        return if number >= MILLISECONDS_FROM {
            DateTime::from_timestamp_millis(number)
        } else {
            DateTime::from_timestamp(number, 0)
        };
    }
    let text = value.as_str()?;
    DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_rfc2822(text))
        .map(|date| date.to_utc())
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn provider(extra: &str) -> Provider {
        toml::from_str(&format!(
            r#"
            name = "acme"
            display_name = "Acme"
            auth_mode = "OAUTH2"
            docs = "https://acme.example"
            {extra}
            [source]
            address = "https://acme.example"
            checked_at = "2026-11-21"
            "#
        ))
        .unwrap()
    }

    fn read(extra: &str, status: u16, body: &str) -> Result<TokenResponse, FlowError> {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let (status, sent) =
            (StatusCode::from_u16(status).unwrap(), Mask::of(["planted-secret-of-a-request"]));
        TokenResponse::read(&provider(extra), status, body.as_bytes(), &sent, now)
    }

    fn at(text: &str) -> Option<DateTime<Utc>> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_response_is_parsed_at_the_configured_paths() {
        let default_path =
            read("", 200, r#"{"access_token":"a","refresh_token":"r","expires_in":"60"}"#).unwrap();
        assert_eq!(default_path.access_token.expose(), "a");
        assert_eq!(default_path.refresh_token.as_ref().map(|token| token.expose().as_str()), Some("r"));
        assert_eq!(default_path.expires_at, at("2026-01-01T00:01:00Z"));

        let paths = r#"token_response = { access_token = "user.0.token", expires_at = "until" }"#;
        let odd = read(paths, 201, r#"{"user":[{"token":"b"}],"until":1767225700000}"#).unwrap();
        assert_eq!((odd.access_token.expose().as_str(), odd.expires_at), ("b", at("2026-01-01T00:01:40Z")));

        let form = read("token_lifetime = 30", 200, "access_token=c&scope=x%20y").unwrap();
        assert_eq!(form.access_token.expose(), "c");
        assert_eq!(form.expires_at, at("2026-01-01T00:00:30Z"));
        assert_eq!(form.raw.expose(), &json!({ "access_token": "c", "scope": "x y" }).to_string());
    }

    #[test]
    fn an_error_contains_the_providers_code_and_description() {
        let error_of = |status, body: &str| read("", status, body).unwrap_err();
        let plain = error_of(400, r#"{"error":"invalid_grant","error_description":"revoked"}"#);
        assert_eq!(plain.to_string(), "the provider rejected the request: invalid_grant (revoked)");
        assert!(!plain.is_temporary());
        // Some providers report errors with a successful status.
        assert_eq!(
            error_of(200, r#"{"ok":false,"error":"bad_code"}"#),
            FlowError::Refused { code: "bad_code".to_owned(), description: String::new() }
        );
        assert_eq!(
            error_of(200, "<!DOCTYPE html><p>secret").to_string(),
            "the provider answered 200 OK with an HTML page instead of a token"
        );
        assert!(error_of(503, "<html>").is_temporary());
        assert!(error_of(429, "{}").is_temporary());
        // A token in an error answer is ignored.
        assert!(
            matches!(error_of(401, r#"{"access_token":"a"}"#), FlowError::Refused { code, .. } if code == "401")
        );
    }

    #[test]
    fn an_error_masks_the_secrets_of_the_request() {
        let long = format!("{}planted-secret-of-a-request", "x".repeat(MAX_SHOWN - 5));
        for (description, masked) in [
            ("no planted-secret-of-a-request here", "no *** here".to_owned()),
            (long.as_str(), format!("{}***", "x".repeat(MAX_SHOWN - 5))),
        ] {
            let body = json!({ "error": "planted-secret-of-a-request", "error_description": description });
            let error = read("", 400, &body.to_string()).unwrap_err();
            assert_eq!(error, FlowError::Refused { code: "***".to_owned(), description: masked });
        }
    }

    proptest! {
        #[test]
        fn no_answer_causes_a_panic(status in 200u16..600, body in ".{0,200}") {
            let _outcome = read("", status, &body);
        }

        #[test]
        fn no_number_causes_a_panic(seconds in any::<i64>()) {
            let _outcome = read("", 200, &json!({ "access_token": "a", "expires_in": seconds, "expires_at": seconds }).to_string());
        }
    }
}
