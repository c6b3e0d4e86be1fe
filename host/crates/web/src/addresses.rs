//! The addresses of this host to register at providers.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use uuid::Uuid;

use syncline_types::ids::IntegrationKey;

/// The path to which providers send users back after they have signed in.
pub const OAUTH_CALLBACK: &str = "/oauth/callback";
/// The path to which providers send users back after they have installed an app.
pub const APP_SETUP: &str = "/app-auth/connect";
/// Characters that are not percent-encoded in a path segment.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The URL to which the provider of an integration sends its webhooks. `public_url` has no trailing slash.
pub fn webhook_url(public_url: &str, environment: Uuid, integration: &IntegrationKey) -> String {
    let key = utf8_percent_encode(integration.as_str(), PLAIN);
    format!("{public_url}/webhook/{environment}/{key}")
}
