//! Converts stored credentials to the credentials that the egress gateway adds to requests.

use std::collections::BTreeMap;

use super::{ClientOverride, StoredCredentials};
use crate::OAuthApp;
use syncline_egress::{Credentials, CredentialsUnavailable, OAuth1Keys};
use syncline_types::secret::Secret;

impl StoredCredentials {
    /// Whether requests are signed with the keys of the integration's app as well.
    pub fn are_used_with_app(&self) -> bool {
        matches!(self, Self::OAuth1 { .. } | Self::TokenBased { .. })
    }

    /// Converts the credentials for requests. `app` is the integration's app. Credentials that [are used with
    /// it](Self::are_used_with_app) require it, and so do providers whose file sends the client id.
    pub fn for_requests(&self, app: Option<&OAuthApp>) -> Result<Credentials, CredentialsUnavailable> {
        let credentials = match self {
            Self::None => Credentials::None,
            Self::ApiKey { api_key } => Credentials::ApiKey { api_key: api_key.clone() },
            Self::Basic { username, password } => {
                Credentials::Basic { username: username.clone(), password: password.clone() }
            }
            Self::OAuth2(token) => {
                let own = token.config_override.as_ref().and_then(|own| own.client_id.clone());
                let client_id = own.or_else(|| app.map(|app| app.client_id.clone()));
                Credentials::OAuth2 { access_token: token.access_token.clone(), client_id }
            }
            Self::ClientCredentials(token) => Credentials::Token {
                token: token.token.clone(),
                fields: BTreeMap::from([("client_id".to_owned(), token.client_id.as_str().into())]),
            },
            Self::App(token) | Self::Custom { app: token, .. } => Credentials::OAuth2 {
                access_token: require_token(token.access_token.as_ref())?,
                client_id: app.map(|app| app.client_id.clone()),
            },
            Self::OAuth1 { oauth_token, oauth_token_secret, .. } => {
                Credentials::OAuth1(signing_keys(app, None, oauth_token, oauth_token_secret)?)
            }
            Self::TokenBased { token_id, token_secret, config_override } => {
                Credentials::OAuth1(signing_keys(app, config_override.as_ref(), token_id, token_secret)?)
            }
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) => Credentials::Token {
                token: require_token(token.token.as_ref())?,
                fields: token.fields.clone(),
            },
            Self::Signature(token) => {
                let field = |name: &str| token.fields.get(name).cloned().unwrap_or_else(|| "".into());
                Credentials::UsernameToken { username: field("username"), password: field("password") }
            }
        };
        Ok(credentials)
    }
}

fn require_token(token: Option<&Secret<String>>) -> Result<Secret<String>, CredentialsUnavailable> {
    token
        .cloned()
        .ok_or_else(|| CredentialsUnavailable { reason: "this connection has no token yet".to_owned() })
}

fn signing_keys(
    app: Option<&OAuthApp>,
    own: Option<&ClientOverride>,
    token: &Secret<String>,
    token_secret: &Secret<String>,
) -> Result<OAuth1Keys, CredentialsUnavailable> {
    let consumer_key = own.and_then(|own| own.client_id.clone()).or_else(|| Some(app?.client_id.clone()));
    let consumer_secret =
        own.and_then(|own| own.client_secret.clone()).or_else(|| Some(app?.client_secret.clone()));
    match (consumer_key, consumer_secret) {
        (Some(consumer_key), Some(consumer_secret)) => Ok(OAuth1Keys {
            consumer_key,
            consumer_secret,
            token: token.clone(),
            token_secret: token_secret.clone(),
        }),
        _ => Err(CredentialsUnavailable {
            reason: "the integration has no consumer key and secret; set its `credentials`".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn app() -> OAuthApp {
        serde_json::from_value(json!({ "client_id": "app", "client_secret": "app-secret" })).unwrap()
    }

    fn stored(value: serde_json::Value) -> StoredCredentials {
        StoredCredentials::from_bytes(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_connections_own_app_takes_precedence_over_the_integrations() {
        let keys = |credentials: &StoredCredentials, app: Option<&OAuthApp>| {
            let Credentials::OAuth1(keys) = credentials.for_requests(app)? else { panic!("not signed") };
            Ok((keys.consumer_key.clone(), keys.consumer_secret.expose().clone()))
        };
        let plain = stored(json!({ "type": "TBA", "token_id": "t", "token_secret": "s" }));
        assert_eq!(keys(&plain, Some(&app())), Ok(("app".to_owned(), "app-secret".to_owned())));
        assert!(
            keys(&plain, None)
                .is_err_and(|error: CredentialsUnavailable| error.reason.contains("consumer key"))
        );
        let own = stored(json!({
            "type": "TBA", "token_id": "t", "token_secret": "s",
            "config_override": { "client_id": "own", "client_secret": "own-secret" },
        }));
        assert_eq!(keys(&own, None), Ok(("own".to_owned(), "own-secret".to_owned())));
        assert_eq!(keys(&own, Some(&app())), Ok(("own".to_owned(), "own-secret".to_owned())));
    }

    #[test]
    fn credentials_without_a_token_are_an_error() {
        let credentials =
            stored(json!({ "type": "TWO_STEP", "fields": { "a": "b" }, "expires_at": null, "raw": "{}" }));
        assert!(credentials.for_requests(None).is_err());
    }
}
