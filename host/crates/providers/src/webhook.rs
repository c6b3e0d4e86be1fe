//! How a provider's webhooks are told from others', whose they are, and what they report. Pure: it reads a request
//! that is there as a whole.

mod raw_body;

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub use self::raw_body::{RawBody, media_type};

use super::key_encoding::KeyEncoding;
use super::question::Pattern;
use super::source::Source;

/// What the catalogue knows of a provider's webhooks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub source: Source,
    pub verification: Verification,
    /// Requests that the provider makes to see that the URL is the integration's; the first that fits is answered.
    #[serde(default, rename = "handshake")]
    pub handshakes: Vec<Handshake>,
    /// Where the event's type stands; the first place that has one.
    #[serde(default, rename = "type", deserialize_with = "one_or_many")]
    pub event_type: Vec<Locator>,
    /// Where the delivery's id stands, the same when the provider sends it again.
    #[serde(default, deserialize_with = "one_or_many")]
    pub id: Vec<Locator>,
    /// Where the list of events stands, if one request brings several. Types and routes are then looked for in each.
    #[serde(default)]
    pub each: Option<Pointer>,
    /// The member of a form that holds the body as JSON.
    #[serde(default)]
    pub form_member: Option<String>,
    /// Which connections an event is about; the first rule that finds any.
    #[serde(default, rename = "route")]
    pub routes: Vec<Route>,
}

/// How a request proves that the provider sent it.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verification {
    /// By a signature over what it says.
    Signature(Box<SignatureRecipe>),
    /// By a secret that it carries.
    Token(TokenRecipe),
    /// By basic authentication; the secret is `user:password`.
    Basic(NoOptions),
    /// Not at all: the provider has no such thing.
    None(NoOptions),
}

/// A table without members.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecipe {
    /// Every value there must be the secret.
    pub token: Locator,
    /// What stands before it.
    #[serde(default)]
    pub prefix: String,
    #[serde(default)]
    pub secret: SecretSource,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureRecipe {
    pub algorithm: Algorithm,
    /// Where signatures stand; one that is right is enough.
    #[serde(deserialize_with = "one_or_many")]
    pub signature: Vec<Locator>,
    /// What separates the pieces of such a place.
    #[serde(default)]
    pub separator: Option<String>,
    /// How a piece begins that is a signature.
    #[serde(default)]
    pub prefix: String,
    pub encoding: Encoding,
    #[serde(default)]
    pub signed: SignedText,
    /// When it was signed.
    #[serde(default)]
    pub timestamp: Option<Timestamp>,
    #[serde(default)]
    pub secret: SecretSource,
    /// What stands before the secret and is no part of it.
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
    /// The secret is the public key, as X.509 writes it; the signature is in DER.
    #[serde(rename = "ecdsa-p256-sha256")]
    EcdsaP256,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    Hex,
    Base64,
}

/// Which secret of the integration it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    #[default]
    WebhookSecret,
    /// That of the app; a webhook secret counts as well.
    ClientSecret,
    /// That of the connection which the URL names, as `webhook_secret` of its metadata: each webhook has one of its
    /// own. A webhook secret counts as well.
    Connection,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Where it stands, or in a piece beside the signature.
    #[serde(default)]
    pub at: Option<Locator>,
    /// How the piece begins that is the timestamp.
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
    /// A time as text, as RFC 3339 writes it.
    Rfc3339,
}

/// What is signed: text with `{body}`, `{timestamp}`, `{method}`, `{url}`, `{form}` and places such as
/// `{header:webhook-id}` in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedText(pub Vec<SignedPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedPart {
    Text(String),
    Body,
    Timestamp,
    Method,
    /// As the provider was given it: the public one, with its query.
    Url,
    /// The members of the form, each name before its value, in the order of names.
    Form,
    At(Locator),
}

/// A request to answer at once, without storing it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// What tells it from others: that there is something at this place …
    pub when: Locator,
    /// … or that it is this.
    #[serde(default)]
    pub equals: Option<String>,
    /// What the answer is made of, if not what stands at `when`.
    #[serde(default)]
    pub value: Option<Locator>,
    /// Where the provider sends the secret along, which has to be right.
    #[serde(default)]
    pub token: Option<Locator>,
    /// What `{hmac}` in the answer is.
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

/// `{value}` and `{hmac}` stand for what they are.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The body is this text.
    Text(String),
    /// The body is an object of these texts.
    Json(std::collections::BTreeMap<String, String>),
    /// Header and value; the body is empty.
    Header(#[serde(deserialize_with = "header_name")] HeaderName),
    /// The body is empty. The request is kept, so that what it says can be looked up.
    Kept(NoOptions),
}

/// How connections are found.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// What stands in the event …
    pub value: Locator,
    /// … of which the one group of this expression is taken …
    #[serde(default)]
    pub extract: Option<Pattern>,
    /// … and is the connection's.
    pub connection: Subject,
}

/// Something by which a connection is known: `connection_id`, or a member of its configuration, metadata or tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject(String);

impl Subject {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text in a webhook's table does not say what it should. Says what would.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhook {
    #[error("`{0}` must be a place such as `header:x-event`, `query:token` or `json:/event/id`")]
    Locator(String),
    #[error("`{0}` must be a JSON pointer such as `/event/id`; `*` stands for every item of a list")]
    Pointer(String),
    #[error("`{0}` must be `connection_id`, `connection_config.NAME`, `metadata.NAME` or `tags.NAME`")]
    Subject(String),
    #[error(
        "`{0}` may have {{body}}, {{timestamp}}, {{method}}, {{url}}, {{form}} and places such as {{header:x-id}} in it"
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

/// A path into JSON whose `*` stands for every item of a list.
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
    /// The members on the way.
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// What stands there; several if there is a `*` on the way.
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
    /// The texts and numbers at a place.
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

    /// The first text at the first of these places that has one.
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
    /// Whether a delivery's id is a part of what is signed, so that nobody can give a recorded one another.
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

    /// Whether the webhook secret is what the provider shows when it tries the URL out, while something else signs.
    pub fn shows_its_secret(&self) -> bool {
        self.verification.secret_source() == SecretSource::ClientSecret
            && self.handshakes.iter().any(|handshake| handshake.token.is_some())
    }
}

impl SignatureRecipe {
    /// Whether when it was sent is a part of what is signed.
    pub fn signs_its_time(&self) -> bool {
        self.timestamp.is_some()
    }
}

impl Verification {
    /// Which secret it takes to verify.
    pub fn secret_source(&self) -> SecretSource {
        match self {
            Self::Signature(recipe) => recipe.secret,
            Self::Token(recipe) => recipe.secret,
            Self::Basic(_) | Self::None(_) => SecretSource::WebhookSecret,
        }
    }

    /// Where a secret stands that must not be kept.
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
    fn a_place_gives_every_text_that_stands_there() {
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
        assert!(texts("json:/a~1b/~0").is_empty(), "true is no text");
        assert!(texts("json:/nowhere/*").is_empty());
    }

    #[test]
    fn what_is_signed_is_read_part_by_part() {
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
    fn what_is_no_place_is_refused() {
        for wrong in ["x-event", "header:", "header:a b", "query:", "json:event", "cookie:a"] {
            assert!(wrong.parse::<Locator>().is_err(), "{wrong}");
        }
        for wrong in ["connection", "metadata.", "config.a"] {
            assert!(wrong.parse::<Subject>().is_err(), "{wrong}");
        }
    }
}
