//! Texts with variables, such as `Bearer ${apiKey}`, which the egress gateway fills in for a connection.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A parsed template. It keeps its text, which clients see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Literal(String),
    Variable(Variable),
}

/// A variable between `${` and `}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// `connectionConfig.NAME`: an answer of the end user.
    ConnectionConfig(String),
    /// `apiKey`.
    ApiKey,
    /// `accessToken`: the token of OAuth 2, or one that was obtained with other credentials.
    AccessToken,
    /// `username`.
    Username,
    /// `password`.
    Password,
    /// `credentials.NAME`: one of the credentials that the end user entered.
    Credential(String),
    /// `clientId`: of the app, or of the connection itself.
    ClientId,
    /// `clientSecret`: of the app, or of the connection itself.
    ClientSecret,
    /// `refreshToken`: only in requests that renew a token.
    RefreshToken,
    /// `jwt`: the signed token, only in the request that exchanges it.
    Jwt,
}

/// The reason why a text is not a valid template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    #[error("`{text}` has a `${{` without a matching `}}`")]
    Unclosed { text: String },
    #[error(
        "`${{{name}}}` is not a variable; use connectionConfig.NAME, credentials.NAME, apiKey, accessToken, \
         username, password, clientId, clientSecret, refreshToken or jwt"
    )]
    UnknownVariable { name: String },
}

impl Template {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a variable is a credential, so that the result is secret.
    pub fn has_credentials(&self) -> bool {
        self.variables().any(Variable::is_credential)
    }

    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|part| match part {
            Part::Variable(variable) => Some(variable),
            Part::Literal(_) => None,
        })
    }

    /// Fills in the variables. Returns the error of the first variable that has no value.
    pub fn render<'v, E>(
        &self,
        mut value: impl FnMut(&Variable) -> Result<Cow<'v, str>, E>,
    ) -> Result<String, E> {
        let mut rendered = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => rendered.push_str(literal),
                Part::Variable(variable) => rendered.push_str(&value(variable)?),
            }
        }
        Ok(rendered)
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Variable {
    pub fn is_credential(&self) -> bool {
        !matches!(self, Self::ConnectionConfig(_))
    }

    /// Whether the variable proves the sender's identity. An app's id, for example, does not.
    pub(super) fn is_proof(&self) -> bool {
        matches!(self, Self::ApiKey | Self::AccessToken | Self::Username | Self::Password)
    }

    fn parse(name: &str) -> Option<Self> {
        match name {
            "apiKey" => Some(Self::ApiKey),
            "accessToken" => Some(Self::AccessToken),
            "username" => Some(Self::Username),
            "password" => Some(Self::Password),
            "clientId" => Some(Self::ClientId),
            "clientSecret" => Some(Self::ClientSecret),
            "refreshToken" => Some(Self::RefreshToken),
            "jwt" => Some(Self::Jwt),
            _ => {
                let (section, name) = name.split_once('.')?;
                let is_plain =
                    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
                match section {
                    "connectionConfig" if is_plain => Some(Self::ConnectionConfig(name.to_owned())),
                    "credentials" if is_plain => Some(Self::Credential(name.to_owned())),
                    _ => None,
                }
            }
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionConfig(name) => write!(f, "connectionConfig.{name}"),
            Self::ApiKey => f.write_str("apiKey"),
            Self::AccessToken => f.write_str("accessToken"),
            Self::Username => f.write_str("username"),
            Self::Password => f.write_str("password"),
            Self::Credential(name) => write!(f, "credentials.{name}"),
            Self::ClientId => f.write_str("clientId"),
            Self::ClientSecret => f.write_str("clientSecret"),
            Self::RefreshToken => f.write_str("refreshToken"),
            Self::Jwt => f.write_str("jwt"),
        }
    }
}

impl TryFrom<String> for Template {
    type Error = InvalidTemplate;

    fn try_from(text: String) -> Result<Self, InvalidTemplate> {
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        while let Some((literal, after)) = rest.split_once("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err(InvalidTemplate::Unclosed { text });
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            let variable = Variable::parse(name)
                .ok_or_else(|| InvalidTemplate::UnknownVariable { name: name.to_owned() })?;
            parts.push(Part::Variable(variable));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Ok(Self { text, parts })
    }
}

impl From<Template> for String {
    fn from(template: Template) -> String {
        template.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(text: &str) -> Result<Template, InvalidTemplate> {
        text.to_owned().try_into()
    }

    #[test]
    fn variables_are_filled_in() {
        let header = template("Bearer ${apiKey} for ${connectionConfig.shop}!").unwrap();
        let rendered = header.render(|variable| match variable {
            Variable::ApiKey => Ok("k-1".into()),
            Variable::ConnectionConfig(name) if name == "shop" => Ok("acme".into()),
            other => Err(other.to_string()),
        });
        assert_eq!(rendered.as_deref(), Ok("Bearer k-1 for acme!"));
        assert!(header.has_credentials());
    }

    #[test]
    fn an_invalid_template_is_refused() {
        let unclosed = template("Bearer ${apiKey").unwrap_err();
        assert_eq!(unclosed.to_string(), "`Bearer ${apiKey` has a `${` without a matching `}`");
        for text in ["${}", "${apikey}", "${connectionConfig.}", "${connectionConfig.a b}", "${env.HOME}"] {
            assert!(matches!(template(text), Err(InvalidTemplate::UnknownVariable { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_variables_renders_unchanged(text in "[^{]*") {
            let rendered = template(&text).unwrap().render(|variable| Err(variable.to_string()));
            prop_assert_eq!(rendered, Ok(text));
        }

        #[test]
        fn any_text_is_preserved_or_refused(text in ".*") {
            if let Ok(parsed) = template(&text) {
                prop_assert_eq!(String::from(parsed), text);
            }
        }
    }
}
