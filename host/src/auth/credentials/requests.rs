//! What the gate puts into requests, out of what is stored.

use std::collections::BTreeMap;

use super::{ClientOverride, StoredCredentials};
use crate::egress::{Credentials, OAuth1Keys};

impl StoredCredentials {
    /// What the gate puts into requests.
    pub fn for_requests(&self) -> Credentials {
        match self {
            Self::ApiKey { api_key } => Credentials::ApiKey { api_key: api_key.clone() },
            Self::Basic { username, password } => {
                Credentials::Basic { username: username.clone(), password: password.clone() }
            }
            Self::OAuth2(token) => {
                let own = token.config_override.as_ref().and_then(|own| own.client_id.clone());
                Credentials::OAuth2 { access_token: token.access_token.clone(), client_id: own }
            }
            Self::ClientCredentials(token) => Credentials::Token {
                token: token.token.clone(),
                fields: BTreeMap::from([("client_id".to_owned(), token.client_id.as_str().into())]),
            },
            Self::App(token) | Self::Custom { app: token, .. } => match &token.access_token {
                Some(token) => Credentials::OAuth2 { access_token: token.clone(), client_id: None },
                None => Credentials::None,
            },
            Self::TokenBased { token_id, token_secret, config_override } => match config_override {
                Some(ClientOverride { client_id: Some(key), client_secret: Some(secret) }) => {
                    Credentials::OAuth1(OAuth1Keys {
                        consumer_key: key.clone(),
                        consumer_secret: secret.clone(),
                        token: token_id.clone(),
                        token_secret: token_secret.clone(),
                    })
                }
                _ => Credentials::None,
            },
            Self::Jwt(token) | Self::TwoStep(token) | Self::Bill(token) => match &token.token {
                Some(made) => Credentials::Token { token: made.clone(), fields: token.fields.clone() },
                None => Credentials::None,
            },
            Self::Signature(token) => match (token.fields.get("username"), token.fields.get("password")) {
                (Some(username), Some(password)) => {
                    Credentials::UsernameToken { username: username.clone(), password: password.clone() }
                }
                _ => Credentials::None,
            },
            Self::None | Self::OAuth1 { .. } => Credentials::None,
        }
    }
}
