//! How a provider's webhooks are verified, which connections they concern, and what they report. Pure: works on a
//! complete request.

mod raw_body;

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub use self::raw_body::{RawBody, form_members, is_form, media_type};

use super::key_encoding::KeyEncoding;
use super::question::Pattern;
use super::source::Source;

/// What the catalogue knows about a provider's webhooks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub source: Source,
    pub verification: Verification,
    /// Requests with which the provider checks the URL. The first match is answered.
    #[serde(default, rename = "handshake")]
    pub handshakes: Vec<Handshake>,
    /// Places of the event's type. The first place with a value is used.
    #[serde(default, rename = "type", deserialize_with = "one_or_many")]
    pub event_type: Vec<Locator>,
    /// Places of the delivery's id, which stays the same when the provider repeats a delivery.
    #[serde(default, deserialize_with = "one_or_many")]
    pub id: Vec<Locator>,
    /// Place of the list of events, if a request can contain several. Types and routes are then found in each
    /// event.
    #[serde(default)]
    pub each: Option<Pointer>,
    /// The member of a form that contains the body as JSON.
    #[serde(default)]
    pub form_member: Option<String>,
    /// Which connections an event concerns. The first rule that finds any is used.
    #[serde(default, rename = "route")]
    pub routes: Vec<Route>,
}

/// How a request proves that the provider sent it.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verification {
    /// With a signature over its content.
    Signature(Box<SignatureRecipe>),
    /// With a secret that it contains.
    Token(TokenRecipe),
    /// With basic authentication. The secret is `user:password`.
    Basic(NoOptions),
    /// Not at all, because the provider does not support it.
    None(NoOptions),
}

/// A table without keys.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecipe {
    /// Every value at this place must equal the secret.
    pub token: Locator,
    /// The text before the secret.
    #[serde(default)]
    pub prefix: String,
    #[serde(default)]
    pub secret: SecretSource,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureRecipe {
    pub algorithm: Algorithm,
    /// Places of signatures. One valid signature is sufficient.
    #[serde(deserialize_with = "one_or_many")]
    pub signature: Vec<Locator>,
    /// The separator of the parts of such a place.
    #[serde(default)]
    pub separator: Option<String>,
    /// The prefix of a part that is a signature.
    #[serde(default)]
    pub prefix: String,
    pub encoding: Encoding,
    #[serde(default)]
    pub signed: SignedText,
    /// The time of the signature.
    #[serde(default)]
    pub timestamp: Option<Timestamp>,
    #[serde(default)]
    pub secret: SecretSource,
    /// A prefix of the secret that is not part of the key.
    #[serde(default)]
    pub secret_prefix: String,
    #[serde(default)]
    pub secret_encoding: KeyEncoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    #[serde(rename = "hmac-sha1")]
    HmacSha1,
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
    #[serde(rename = "hmac-sha512")]
    HmacSha512,
    /// The secret is the public key.
    #[serde(rename = "ed25519")]
    Ed25519,
    /// The secret is the public key in X.509 form, and the signature is in DER.
    #[serde(rename = "ecdsa-p256-sha256")]
    EcdsaP256,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    Hex,
    Base64,
}

/// Which secret of the integration is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    #[default]
    WebhookSecret,
    /// The app's client secret. A webhook secret is accepted as well.
    ClientSecret,
    /// The secret of the connection that the URL names, in `webhook_secret` of its metadata, because each webhook
    /// has its own. A webhook secret is accepted as well.
    Connection,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// A separate place of the timestamp. Otherwise it is a part next to the signature.
    #[serde(default)]
    pub at: Option<Locator>,
    /// The prefix of the part that is the timestamp.
    #[serde(default)]
    pub prefix: Option<String>,
    #[serde(default)]
    pub unit: TimeUnit,
    #[serde(default = "default_tolerance")]
    pub tolerance_seconds: u32,
}

fn default_tolerance() -> u32 {
    300
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    #[default]
    Seconds,
    Milliseconds,
    /// A time as text in the form of RFC 3339.
    Rfc3339,
}

/// The signed text, with `{body}`, `{timestamp}`, `{method}`, `{url}`, `{form}` and places such as
/// `{header:webhook-id}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedText(pub Vec<SignedPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedPart {
    Text(String),
    Body,
    Timestamp,
    Method,
    /// The public URL that the provider uses, with its query.
    Url,
    /// The members of the form, each name before its value, sorted by name.
    Form,
    At(Locator),
}

/// A request that is answered at once without being stored.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// The request is a handshake if this place has a value …
    pub when: Locator,
    /// … or if it has this value.
    #[serde(default)]
    pub equals: Option<String>,
    /// The value for the response, if it is not the one at `when`.
    #[serde(default)]
    pub value: Option<Locator>,
    /// The place of the secret, which must be correct, if the provider sends it.
    #[serde(default)]
    pub token: Option<Locator>,
    /// The value of `{hmac}` in the response.
    #[serde(default)]
    pub hmac: Option<HandshakeHmac>,
    pub answer: Answer,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeHmac {
    pub algorithm: Algorithm,
    pub encoding: Encoding,
    #[serde(default)]
    pub secret: SecretSource,
}

/// The response to a handshake. `{value}` and `{hmac}` are replaced.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The body is this text.
    Text(String),
    /// The body is a JSON object with these texts.
    Json(std::collections::BTreeMap<String, String>),
    /// This header contains the value, and the body is empty.
    Header(#[serde(deserialize_with = "header_name")] HeaderName),
    /// The body is empty. The request is stored, so that its content can be looked up.
    Kept(NoOptions),
}

/// How the connections of an event are found.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The place in the event with the value …
    pub value: Locator,
    /// … from which the one group of this expression is extracted …
    #[serde(default)]
    pub extract: Option<Pattern>,
    /// … and which is compared with this property of connections.
    pub connection: Subject,
}

/// A property that identifies connections: `connection_id`, or a member of their configuration, metadata or tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject(String);

impl Subject {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong with a text in a webhook's table, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhook {
    #[error("`{0}` must be a place such as `header:x-event`, `query:token` or `json:/event/id`")]
    Locator(String),
    #[error("`{0}` must be a JSON pointer such as `/event/id`, in which `*` matches every item of a list")]
    Pointer(String),
    #[error("`{0}` must be `connection_id`, `connection_config.NAME`, `metadata.NAME` or `tags.NAME`")]
    Subject(String),
    #[error(
        "`{0}` may contain only {{body}}, {{timestamp}}, {{method}}, {{url}}, {{form}} and places \
         such as {{header:x-id}}"
    )]
    SignedText(String),
}

impl FromStr for Subject {
    type Err = InvalidWebhook;

    fn from_str(text: &str) -> Result<Self, InvalidWebhook> {
        let is_member = |prefix: &str| text.strip_prefix(prefix).is_some_and(|name| !name.is_empty());
        let is_known = text == "connection_id"
            || ["connection_config.", "metadata.", "tags."].into_iter().any(is_member);
        if is_known { Ok(Self(text.to_owned())) } else { Err(InvalidWebhook::Subject(text.to_owned())) }
    }
}

/// A place in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locator {
    Header(HeaderName),
    Query(String),
    Json(Pointer),
}

/// A path into JSON. `*` matches every item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

impl FromStr for Locator {
    type Err = InvalidWebhook;

    fn from_str(text: &str) -> Result<Self, InvalidWebhook> {
        let invalid = || InvalidWebhook::Locator(text.to_owned());
        match text.split_once(':').ok_or_else(invalid)? {
            ("header", name) => name.parse().map(Self::Header).map_err(|_| invalid()),
            ("query", name) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            ("json", pointer) => pointer.parse().map(Self::Json),
            _ => Err(invalid()),
        }
    }
}

impl FromStr for Pointer {
    type Err = InvalidWebhook;

    fn from_str(text: &str) -> Result<Self, InvalidWebhook> {
        match text.strip_prefix('/') {
            Some(path) => {
                let unescape = |part: &str| part.replace("~1", "/").replace("~0", "~");
                Ok(Self(path.split('/').map(unescape).collect()))
            }
            None if text.is_empty() => Ok(Self(Vec::new())),
            None => Err(InvalidWebhook::Pointer(text.to_owned())),
        }
    }
}

impl Pointer {
    /// Returns the steps of the path.
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// Returns the values at the place. There can be several if the path contains `*`.
    pub fn values<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| children(value, step)).collect();
        }
        found
    }
}

fn children<'v>(value: &'v Value, step: &str) -> Vec<&'v Value> {
    match value {
        Value::Array(items) if step == "*" => items.iter().collect(),
        Value::Array(items) => {
            step.parse::<usize>().ok().and_then(|index| items.get(index)).into_iter().collect()
        }
        Value::Object(members) => members.get(step).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// A request, or one event of it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub headers: &'a HeaderMap,
    /// As it was sent, without the question mark.
    pub query: &'a str,
    pub json: &'a Value,
}

impl View<'_> {
    /// Returns the texts and numbers at a place.
    pub fn texts(&self, locator: &Locator) -> Vec<String> {
        match locator {
            Locator::Header(name) => {
                let values = self.headers.get_all(name).iter();
                values.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
            }
            Locator::Query(wanted) => {
                let pairs = url::form_urlencoded::parse(self.query.as_bytes());
                pairs.filter(|(name, _)| name == wanted).map(|(_, value)| value.into_owned()).collect()
            }
            Locator::Json(pointer) => pointer.values(self.json).into_iter().filter_map(plain_text).collect(),
        }
    }

    /// Returns the first text at the first of these places that has one.
    pub fn first(&self, locators: &[Locator]) -> Option<String> {
        locators.iter().find_map(|locator| self.texts(locator).into_iter().find(|text| !text.is_empty()))
    }
}

fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Default for SignedText {
    fn default() -> Self {
        Self(vec![SignedPart::Body])
    }
}

impl FromStr for SignedText {
    type Err = InvalidWebhook;

    fn from_str(text: &str) -> Result<Self, InvalidWebhook> {
        let invalid = || InvalidWebhook::SignedText(text.to_owned());
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(SignedPart::Text(before.to_owned()));
            }
            let (name, after) = after.split_once('}').ok_or_else(invalid)?;
            parts.push(match name {
                "body" => SignedPart::Body,
                "timestamp" => SignedPart::Timestamp,
                "method" => SignedPart::Method,
                "url" => SignedPart::Url,
                "form" => SignedPart::Form,
                place => SignedPart::At(place.parse().map_err(|_| invalid())?),
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(SignedPart::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }
}

impl Webhook {
    /// Whether the delivery's id is signed, so that an attacker cannot send a recorded webhook under another id.
    pub fn signs_its_id(&self) -> bool {
        let Verification::Signature(recipe) = &self.verification else { return false };
        let is_signed = |place: &Locator| {
            recipe.signed.0.iter().any(|part| match (part, place) {
                (SignedPart::At(signed), place) => signed == place,
                (SignedPart::Body, Locator::Json(_)) | (SignedPart::Url, Locator::Query(_)) => true,
                _ => false,
            })
        };
        self.id.iter().all(is_signed)
    }

    /// Whether the signature covers the members of a form.
    pub fn signs_form(&self) -> bool {
        let Verification::Signature(recipe) = &self.verification else { return false };
        recipe.signed.0.iter().any(|part| matches!(part, SignedPart::Form))
    }

    /// Whether the webhook secret is shown when the provider checks the URL, while another secret signs.
    pub fn shows_its_secret(&self) -> bool {
        self.verification.secret_source() == SecretSource::ClientSecret
            && self.handshakes.iter().any(|handshake| handshake.token.is_some())
    }
}

impl SignatureRecipe {
    /// Whether the time of sending is signed.
    pub fn signs_its_time(&self) -> bool {
        self.timestamp.is_some()
    }
}

impl Verification {
    /// Returns which secret is needed for the verification.
    pub fn secret_source(&self) -> SecretSource {
        match self {
            Self::Signature(recipe) => recipe.secret,
            Self::Token(recipe) => recipe.secret,
            Self::Basic(_) | Self::None(_) => SecretSource::WebhookSecret,
        }
    }

    /// Returns the place of a secret that must not be stored.
    pub fn carried_secret(&self) -> Option<&Locator> {
        match self {
            Self::Token(recipe) => Some(&recipe.token),
            Self::Signature(_) | Self::Basic(_) | Self::None(_) => None,
        }
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Query(name) => write!(f, "the query parameter `{name}`"),
            Self::Json(Pointer(steps)) => write!(f, "the body's `/{}`", steps.join("/")),
        }
    }
}

macro_rules! deserialize_from_text {
    ($($name:ty),+) => {
        $(impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        })+
    };
}
deserialize_from_text!(Locator, Pointer, SignedText, Subject);

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Locator>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let texts = match Texts::deserialize(deserializer)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn header_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_place_returns_every_text_at_it() {
        let mut headers = HeaderMap::new();
        headers.append("x-event", "paid".parse().unwrap());
        let json =
            json!({ "list": [{ "id": 1 }, { "id": "two" }, { "id": null }, {}], "a/b": { "~": true } });
        let view = View { headers: &headers, query: "a=1&b=%202&a=3", json: &json };
        let texts = |place: &str| view.texts(&place.parse().unwrap());
        assert_eq!(texts("header:X-Event"), ["paid"]);
        assert_eq!(texts("query:a"), ["1", "3"]);
        assert_eq!(texts("query:b"), [" 2"]);
        assert_eq!(texts("json:/list/*/id"), ["1", "two"]);
        assert_eq!(texts("json:/list/1/id"), ["two"]);
        assert!(texts("json:/a~1b/~0").is_empty(), "true is not a text");
        assert!(texts("json:/nowhere/*").is_empty());
    }

    #[test]
    fn a_signed_text_is_parsed_into_parts() {
        let text: SignedText = "v0:{timestamp}:{body}{header:x-id}".parse().unwrap();
        let expected = vec![
            SignedPart::Text("v0:".to_owned()),
            SignedPart::Timestamp,
            SignedPart::Text(":".to_owned()),
            SignedPart::Body,
            SignedPart::At("header:x-id".parse().unwrap()),
        ];
        assert_eq!(text.0, expected);
        for wrong in ["{body", "{unknown}", "{header:}"] {
            assert!(wrong.parse::<SignedText>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_invalid_place_is_refused() {
        for wrong in ["x-event", "header:", "header:a b", "query:", "json:event", "cookie:a"] {
            assert!(wrong.parse::<Locator>().is_err(), "{wrong}");
        }
        for wrong in ["connection", "metadata.", "config.a"] {
            assert!(wrong.parse::<Subject>().is_err(), "{wrong}");
        }
    }
}
