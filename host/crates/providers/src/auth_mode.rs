//! The ways in which end users authenticate to a provider.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::template::Variable;

/// The kinds of authentication, by the names in the API. The kind decides which credentials a connection has and
/// which flow obtains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AuthMode {
    #[serde(rename = "OAUTH1")]
    OAuth1,
    #[serde(rename = "OAUTH2")]
    OAuth2,
    /// OAuth 2 with the client credentials grant.
    #[serde(rename = "OAUTH2_CC")]
    OAuth2ClientCredentials,
    #[serde(rename = "BASIC")]
    Basic,
    #[serde(rename = "API_KEY")]
    ApiKey,
    /// An app's installation together with a user's consent.
    #[serde(rename = "CUSTOM")]
    Custom,
    /// An app's installation, authenticated with a signed token.
    #[serde(rename = "APP")]
    App,
    #[serde(rename = "NONE")]
    None,
    /// Token-based authentication with OAuth 1 signatures.
    #[serde(rename = "TBA")]
    TokenBased,
    #[serde(rename = "JWT")]
    Jwt,
    #[serde(rename = "BILL")]
    Bill,
    /// Credentials that are exchanged for a token.
    #[serde(rename = "TWO_STEP")]
    TwoStep,
    #[serde(rename = "SIGNATURE")]
    Signature,
    #[serde(rename = "MCP_OAUTH2")]
    McpOAuth2,
    #[serde(rename = "MCP_OAUTH2_GENERIC")]
    McpOAuth2Generic,
    #[serde(rename = "INSTALL_PLUGIN")]
    InstallPlugin,
    #[serde(rename = "AWS_SIGV4")]
    AwsSigV4,
}

impl AuthMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OAuth1 => "OAUTH1",
            Self::OAuth2 => "OAUTH2",
            Self::OAuth2ClientCredentials => "OAUTH2_CC",
            Self::Basic => "BASIC",
            Self::ApiKey => "API_KEY",
            Self::Custom => "CUSTOM",
            Self::App => "APP",
            Self::None => "NONE",
            Self::TokenBased => "TBA",
            Self::Jwt => "JWT",
            Self::Bill => "BILL",
            Self::TwoStep => "TWO_STEP",
            Self::Signature => "SIGNATURE",
            Self::McpOAuth2 => "MCP_OAUTH2",
            Self::McpOAuth2Generic => "MCP_OAUTH2_GENERIC",
            Self::InstallPlugin => "INSTALL_PLUGIN",
            Self::AwsSigV4 => "AWS_SIGV4",
        }
    }

    /// Whether credentials of this kind have a value for a template variable.
    pub(super) fn provides(self, variable: &Variable) -> bool {
        match variable {
            Variable::ConnectionConfig(_) => true,
            Variable::ApiKey => self == Self::ApiKey,
            Variable::Username | Variable::Password => matches!(self, Self::Basic | Self::InstallPlugin),
            Variable::Credential(_) => {
                matches!(self, Self::Jwt | Self::TwoStep | Self::Bill | Self::Signature | Self::AwsSigV4)
            }
            Variable::ClientId => matches!(
                self,
                Self::OAuth2 | Self::OAuth2ClientCredentials | Self::OAuth1 | Self::TokenBased | Self::Custom
            ),
            // Available only in the requests that fetch a token.
            Variable::ClientSecret | Variable::RefreshToken | Variable::Jwt => false,
            Variable::AccessToken => !matches!(
                self,
                Self::ApiKey
                    | Self::Basic
                    | Self::InstallPlugin
                    | Self::None
                    | Self::OAuth1
                    | Self::TokenBased
                    | Self::AwsSigV4
            ),
        }
    }

    /// Whether the flow redirects the end user to the provider's authorization page.
    pub(super) fn has_authorization_url(self) -> bool {
        matches!(self, Self::OAuth1 | Self::OAuth2 | Self::Custom | Self::App | Self::McpOAuth2)
    }

    /// Whether a token is fetched from a URL in the catalogue.
    pub(super) fn has_token_url(self) -> bool {
        self.has_authorization_url()
            || matches!(
                self,
                Self::OAuth2ClientCredentials | Self::Jwt | Self::Bill | Self::TwoStep | Self::Signature
            )
    }
}

impl fmt::Display for AuthMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_same_in_json_and_in_text() {
        let names = [
            "OAUTH1",
            "OAUTH2",
            "OAUTH2_CC",
            "BASIC",
            "API_KEY",
            "CUSTOM",
            "APP",
            "NONE",
            "TBA",
            "JWT",
            "BILL",
            "TWO_STEP",
            "SIGNATURE",
            "MCP_OAUTH2",
            "MCP_OAUTH2_GENERIC",
            "INSTALL_PLUGIN",
            "AWS_SIGV4",
        ];
        for name in names {
            let mode: AuthMode = serde_json::from_value(name.into()).unwrap();
            assert_eq!(mode.to_string(), name);
            assert_eq!(serde_json::to_value(mode).unwrap(), name);
        }
    }
}
