//! Types of names and ids. Text from outside is checked once, when it is parsed into one of these types. A `…Pk` is a
//! row number in Syncline's own database and never leaves the host.
//!
//! The patterns match those of existing clients, so that their names remain valid.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not a valid name. The message contains the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} `{given}` must {rule}")]
pub struct InvalidName {
    kind: &'static str,
    given: String,
    rule: &'static str,
}

/// Longest name that is accepted, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                let accepts: fn(&str) -> bool = $accepts;
                if text.is_empty() || text.len() > MAX_NAME_BYTES || !accepts(text) {
                    let given: String = text.chars().take(60).collect();
                    return Err(InvalidName { kind: $kind, given, rule: $rule });
                }
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

macro_rules! row_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

text_id!(
    /// The name of an environment, such as `dev`.
    EnvironmentName, "environment", "consist of 1 to 255 characters a-z, 0-9, `_` and `-`",
    |text| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
);
text_id!(
    /// The unique key of an integration in its environment; `provider_config_key` on the wire.
    IntegrationKey, "integration key", "consist of 1 to 255 letters, digits, spaces and `~:.@_-`",
    |text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"~:.@ _-".contains(&b))
);
text_id!(
    /// The slug of a provider in the catalogue, such as `stripe-api-key`.
    ProviderSlug, "provider", "consist of 1 to 255 letters, digits, `_` and `-`", is_plain
);
text_id!(
    /// The id that a client's backend uses for a connection.
    ConnectionId, "connection id", "consist of 1 to 255 letters, digits, spaces and `,.;:=+~[]|@${}\"'\\/_-`",
    |text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b",.;:=+~[]|@${}\"'\\/_ -".contains(&b))
);
text_id!(
    /// The name of a sync, an action or another function of an integration.
    FunctionName, "function name", "consist of 1 to 255 letters, digits, `_` and `-`", is_plain
);
text_id!(
    /// The name of a model, such as `Customer`.
    ModelName, "model", "start with A-Z, continue with letters, digits, `_` and `-`, and have 2 to 255 characters",
    |text| text.len() > 1 && text.as_bytes()[0].is_ascii_uppercase() && is_plain(text)
);
text_id!(
    /// The name under which the deployments of one project replace each other.
    BundleName, "bundle name", "consist of 1 to 255 letters, digits, `_` and `-`", is_plain
);
text_id!(
    /// A further instance of a sync for one connection. The default is `base`.
    Variant, "variant", "consist of 1 to 255 letters, digits, `_` and `-`", is_plain
);

text_id!(
    /// The name of an environment variable. Guests see variables in their process environment, so the names follow its
    /// portable rules.
    VariableName, "variable", "consist of 1 to 255 letters, digits and `_`, and not begin with a digit",
    |text| !text.as_bytes()[0].is_ascii_digit() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
);

macro_rules! read_from_database {
    ($($name:ident),+) => {$(
        impl $name {
            /// For text that was checked before it was stored.
            pub fn from_stored(text: String) -> Self {
                Self(text)
            }
        }
    )+};
}

read_from_database!(
    EnvironmentName,
    IntegrationKey,
    ProviderSlug,
    ConnectionId,
    FunctionName,
    ModelName,
    Variant
);

impl Variant {
    /// The reserved name of the default variant.
    pub const BASE: &'static str = "base";

    pub fn is_base(&self) -> bool {
        self.0 == Self::BASE
    }

    pub fn base() -> Self {
        Self(Self::BASE.to_owned())
    }
}

row_number!(AccountPk);
row_number!(EnvironmentPk);
row_number!(KeyPk);
row_number!(IntegrationPk);
row_number!(
    /// Row number of a connection, which clients know by integration key and connection id.
    ConnectionPk
);
row_number!(ConnectSessionPk);
row_number!(AuthorizationPk);
row_number!(DeploymentPk);
row_number!(FunctionPk);
row_number!(SchedulePk);

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_against_their_patterns() {
        assert!("stripe".parse::<IntegrationKey>().is_ok());
        assert!("my shop: eu@1~a.b_c-d".parse::<IntegrationKey>().is_ok());
        assert!("a/b".parse::<IntegrationKey>().is_err());
        assert!("user@example.com/1".parse::<ConnectionId>().is_ok());
        assert!("caf\u{e9}".parse::<ConnectionId>().is_err());
        assert!("Customer".parse::<ModelName>().is_ok());
        assert!("customer".parse::<ModelName>().is_err());
        assert!("".parse::<Variant>().is_err());
        assert!("x".repeat(256).parse::<Variant>().is_err());
    }

    #[test]
    fn an_error_contains_the_rule_for_the_name() {
        let message = "a b".parse::<FunctionName>().unwrap_err().to_string();
        assert_eq!(message, "function name `a b` must consist of 1 to 255 letters, digits, `_` and `-`");
    }
}
