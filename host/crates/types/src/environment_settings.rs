//! The settings of an environment: the URLs and kinds of outbound webhooks, the OAuth callback URL, and the look of
//! the Connect UI.
//!
//! The same names are used for the members of `/environment`, the keys of `[environment]` in `syncline.toml` and the
//! arguments of `syncline env set`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;

const MAX_URL_BYTES: usize = 2048;
const MAX_TITLE_CHARS: usize = 100;

/// Why a setting's value is invalid. The message says which values are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must {0}")]
pub struct InvalidSetting(&'static str);

/// An HTTP or HTTPS URL. Its path can contain a secret, so its debug output shows only the origin.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpUrl(String);

/// The title of the Connect UI: 1 to 100 characters on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UiTitle(String);

/// The title of the Connect UI without a configured one. The Connect UI recognizes this text and translates it.
pub const DEFAULT_UI_TITLE: &str = "Connect your account";
/// The colour of the Connect UI without a configured one.
pub const DEFAULT_UI_COLOR: &str = "#2f5bea";

/// A colour, as `#rrggbb`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UiColor(String);

/// All settings of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct EnvironmentSettings {
    /// The URL that receives outbound webhooks.
    #[schema(value_type = Option<String>)]
    pub webhook_url: Option<HttpUrl>,
    /// A second URL that receives the same outbound webhooks.
    #[schema(value_type = Option<String>)]
    pub webhook_url_secondary: Option<HttpUrl>,
    /// The OAuth callback URL to register at providers instead of this host's own. It belongs to the environment's
    /// owner and forwards users to this host.
    #[schema(value_type = Option<String>)]
    pub callback_url: Option<HttpUrl>,
    /// Whether to send a webhook when an end user connects or fails to connect.
    pub on_auth_creation: bool,
    /// Whether to send a webhook when credentials could not be refreshed.
    pub on_auth_refresh_error: bool,
    /// Whether to send a webhook after every successful sync, even if no record changed.
    pub on_sync_completion_always: bool,
    /// Whether to send a webhook when a sync fails.
    pub on_sync_error: bool,
    /// Whether to send a webhook when an asynchronous action finishes.
    pub on_async_action_completion: bool,
    #[schema(value_type = Option<String>)]
    pub connect_ui_title: Option<UiTitle>,
    /// `#rrggbb`.
    #[schema(value_type = Option<String>)]
    pub connect_ui_primary_color: Option<UiColor>,
}

/// A partial update of the settings. An outer `None` leaves a setting unchanged; an inner `None` removes its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsChange {
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub webhook_url: Option<Option<HttpUrl>>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub webhook_url_secondary: Option<Option<HttpUrl>>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub callback_url: Option<Option<HttpUrl>>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_auth_creation: Option<bool>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_auth_refresh_error: Option<bool>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_sync_completion_always: Option<bool>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_sync_error: Option<bool>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_async_action_completion: Option<bool>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub connect_ui_title: Option<Option<UiTitle>>,
    #[serde(deserialize_with = "present_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub connect_ui_primary_color: Option<Option<UiColor>>,
}

impl EnvironmentSettings {
    /// Returns the names of the settings whose value the change would modify.
    pub fn changed_by(&self, change: &SettingsChange) -> Vec<String> {
        let to_json = |value: serde_json::Result<Value>| value.expect("settings can be represented as JSON");
        let (now, then) = (to_json(serde_json::to_value(self)), to_json(serde_json::to_value(change)));
        let then = then.as_object().into_iter().flatten();
        then.filter(|(name, value)| now[&**name] != **value).map(|(name, _)| name.clone()).collect()
    }
}

impl SettingsChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The names of the settings that the change sets or removes.
    pub fn names(&self) -> Vec<String> {
        let change = serde_json::to_value(self).expect("settings can be represented as JSON");
        change.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }
}

/// Wraps every value that is present, including `null`, so that an absent member can be distinguished from `null`.
fn present_value<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl FromStr for HttpUrl {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let malformed = InvalidSetting("be a URL such as https://example.com/hooks, at most 2048 bytes long");
        if text.len() > MAX_URL_BYTES || text.trim() != text {
            return Err(malformed);
        }
        let url = Url::parse(text).map_err(|_| malformed)?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(InvalidSetting("be an `http` or `https` URL, such as https://example.com/hooks"));
        }
        if url.fragment().is_some() {
            return Err(InvalidSetting("not contain a fragment (`#…`), because clients never send it"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for UiTitle {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let fits = !text.trim().is_empty()
            && text.chars().count() <= MAX_TITLE_CHARS
            && !text.chars().any(char::is_control);
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSetting("be 1 to 100 characters on one line"))
        }
    }
}

impl FromStr for UiColor {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        match text.strip_prefix('#') {
            Some(digits) if digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(InvalidSetting("be a colour such as #1a7f37")),
        }
    }
}

macro_rules! checked_text {
    ($($name:ident),+) => {$(
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Wraps text from the database, which was checked before it was stored.
            pub fn from_stored(text: String) -> Self {
                Self(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidSetting;

            fn try_from(text: String) -> Result<Self, InvalidSetting> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }
    )+};
}

checked_text!(HttpUrl, UiTitle, UiColor);

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Url::parse(&self.0).map(|url| url.origin().ascii_serialization());
        write!(f, "{}/…", origin.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error_of<T: FromStr<Err = InvalidSetting>>(text: &str) -> Option<String> {
        text.parse::<T>().err().map(|error| error.to_string())
    }

    #[test]
    fn invalid_values_are_rejected_with_the_rule() {
        for good in ["https://example.com", "http://127.0.0.1:8080/a?b=c", "https://u:p@example.com/x"] {
            assert_eq!(error_of::<HttpUrl>(good), None, "{good}");
        }
        for bad in ["", "example.com", "ftp://example.com", "javascript:alert(1)", "https://", "/hooks"] {
            assert!(error_of::<HttpUrl>(bad).is_some(), "{bad}");
        }
        assert_eq!(
            error_of::<HttpUrl>("https://a.example/#x").as_deref(),
            Some("must not contain a fragment (`#…`), because clients never send it")
        );
        assert!(error_of::<HttpUrl>(&format!("https://a.example/{}", "x".repeat(2048))).is_some());
        assert_eq!(error_of::<UiTitle>("Connect to Acme 🎩"), None);
        for bad in [String::new(), " ".to_owned(), "x".repeat(101), "a\nb".to_owned()] {
            assert_eq!(
                error_of::<UiTitle>(&bad).as_deref(),
                Some("must be 1 to 100 characters on one line"),
                "{bad}"
            );
        }
        assert_eq!(error_of::<UiColor>("#1A7f37"), None);
        for bad in ["1a7f37", "#1a7", "red", "#1a7f3g", "#1a7f37;x"] {
            assert_eq!(
                error_of::<UiColor>(bad).as_deref(),
                Some("must be a colour such as #1a7f37"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_change_distinguishes_absent_members_from_null() {
        let change: SettingsChange =
            serde_json::from_value(json!({ "webhook_url": null, "on_sync_error": false })).unwrap();
        assert_eq!(
            change,
            SettingsChange {
                webhook_url: Some(None),
                on_sync_error: Some(false),
                ..SettingsChange::default()
            }
        );
        assert_eq!(
            serde_json::to_value(&change).unwrap(),
            json!({ "webhook_url": null, "on_sync_error": false })
        );
        for bad in [json!({ "on_sync_error": null }), json!({ "hooks": 1 }), json!({ "callback_url": "x" })] {
            assert!(serde_json::from_value::<SettingsChange>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_debug_output_of_a_url_contains_no_secrets() {
        let url: HttpUrl = "https://user:planted@example.com/planted?planted".parse().unwrap();
        assert_eq!(format!("{url:?}"), "https://example.com/…");
    }
}
