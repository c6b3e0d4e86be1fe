//! Verifies inbound webhooks with the signature scheme that the catalogue defines for their provider, and answers
//! handshakes. Pure: time and secrets are parameters.

use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use ring::hmac;
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey};
use serde_json::Value;
use subtle::ConstantTimeEq;

use syncline_crypto::hex;
use syncline_providers::KeyEncoding;
use syncline_providers::webhook::{
    Algorithm, Answer, Encoding, Handshake, HandshakeHmac, Locator, RawBody, SecretSource, SignatureRecipe,
    SignedPart, TimeUnit, TokenRecipe, Verification, View, Webhook,
};
use syncline_types::secret::Secret;

/// Maximum length of a text that a handshake echoes.
const MAX_ECHO: usize = 4096;
/// How many signatures of one request are checked. A provider that is replacing its key sends one signature for each
/// key, so two or three are common. Anyone can send a request, and each check of a public-key signature reads the
/// whole body. Only signatures of the right length count.
const MAX_SIGNATURES: usize = 8;
/// The size of the uncompressed point at the end of a P-256 public key in X.509.
const P256_POINT_BYTES: usize = 65;
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A request as it was received.
#[derive(Debug, Clone, Copy)]
pub struct IncomingWebhook<'a> {
    pub method: &'a Method,
    /// The URL that the provider was given, with its query.
    pub url: &'a str,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    /// The bytes that the signature covers.
    pub body: &'a [u8],
    /// The same bytes, for looking up values.
    pub raw: RawBody<'a>,
}

/// The secrets with which a provider may sign the webhooks of an integration.
#[derive(Debug, Clone, Default)]
pub struct WebhookSecrets {
    /// There are several while one replaces another.
    pub webhook: Vec<Secret<String>>,
    pub client: Option<Secret<String>>,
    /// The secret of the connection that the URL names.
    pub connection: Option<Secret<String>>,
}

/// A request whose signature is valid.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// A value that is unique to this delivery, if the signature covers a time.
    pub fingerprint: Option<String>,
}

/// Why a request is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the integration has no secret to verify webhooks with; set `{0}`")]
    NoSecret(&'static str),
    #[error("the request is not signed: {0} is missing")]
    Unsigned(String),
    #[error("the signature was not made with the integration's secret")]
    WrongSignature,
    #[error("the signature's time differs from this host's clock by more than {0} seconds")]
    Expired(u32),
    #[error("the integration's webhook secret is not a key of the kind that the provider signs with")]
    UnusableSecret,
    #[error(
        "the value to echo ({0}) is missing, longer than {MAX_ECHO} bytes, or contains control characters"
    )]
    UnusableChallenge(String),
}

/// The answer to a handshake.
#[derive(Debug, PartialEq)]
pub enum Answered {
    Text(String),
    Json(Value),
    Header(HeaderName, HeaderValue),
    /// An empty answer. The request is stored.
    Kept,
}

impl IncomingWebhook<'_> {
    fn texts(&self, locator: &Locator) -> Vec<String> {
        match locator {
            Locator::Json(pointer) => self.raw.texts(pointer),
            Locator::Header(_) | Locator::Query(_) => {
                View { headers: self.headers, query: self.query, json: &Value::Null }.texts(locator)
            }
        }
    }
}

impl WebhookSecrets {
    fn of(&self, source: SecretSource) -> Result<Vec<&str>, Refusal> {
        let client = self.client.iter().filter(|_| source == SecretSource::ClientSecret);
        let connection = self.connection.iter().filter(|_| source == SecretSource::Connection);
        let secrets = client.chain(connection).chain(&self.webhook);
        let secrets: Vec<&str> = secrets.map(|secret| secret.expose().as_str()).collect();
        if !secrets.is_empty() {
            return Ok(secrets);
        }
        Err(Refusal::NoSecret(match source {
            SecretSource::WebhookSecret => "credentials.webhook_secret` or `custom.webhook_secret",
            SecretSource::ClientSecret => "credentials.client_secret` or `custom.webhook_secret",
            SecretSource::Connection => {
                "webhook_secret` in the metadata of the connection that the URL names, or `custom.webhook_secret"
            }
        }))
    }
}

/// Verifies that the provider sent the request.
pub fn verify_webhook(
    webhook: &Webhook,
    secrets: &WebhookSecrets,
    request: &IncomingWebhook<'_>,
    now: DateTime<Utc>,
) -> Result<Verified, Refusal> {
    match &webhook.verification {
        Verification::Signature(recipe) if webhook.shows_its_secret() => {
            let signing = WebhookSecrets { webhook: Vec::new(), ..secrets.clone() };
            verify_signature(recipe, &signing, request, now)
        }
        Verification::Signature(recipe) => verify_signature(recipe, secrets, request, now),
        Verification::Token(recipe) => {
            verify_token(recipe, secrets, request).map(|()| Verified { fingerprint: None })
        }
        Verification::Basic(_) => verify_basic(secrets, request).map(|()| Verified { fingerprint: None }),
        Verification::None(_) => Ok(Verified { fingerprint: None }),
    }
}

fn verify_token(
    recipe: &TokenRecipe,
    secrets: &WebhookSecrets,
    request: &IncomingWebhook<'_>,
) -> Result<(), Refusal> {
    let secrets = secrets.of(recipe.secret)?;
    let given = request.texts(&recipe.token);
    if given.is_empty() {
        return Err(Refusal::Unsigned(recipe.token.to_string()));
    }
    let is_right = |token: &String| {
        let token = token.strip_prefix(&recipe.prefix).unwrap_or_default();
        is_any(token.as_bytes(), secrets.iter().map(|secret| secret.as_bytes()))
    };
    if given.iter().all(is_right) { Ok(()) } else { Err(Refusal::WrongSignature) }
}

fn verify_basic(secrets: &WebhookSecrets, request: &IncomingWebhook<'_>) -> Result<(), Refusal> {
    let secrets = secrets.of(SecretSource::WebhookSecret)?;
    let given =
        request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
    let Some((_, encoded)) = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic")) else {
        return Err(Refusal::Unsigned("basic authentication".to_owned()));
    };
    let decoded = BASE64.decode(encoded.trim()).map_err(|_| Refusal::WrongSignature)?;
    let is_right = is_any(&decoded, secrets.iter().map(|secret| secret.as_bytes()));
    if is_right { Ok(()) } else { Err(Refusal::WrongSignature) }
}

/// Compares digests, which all have the same length, so that the duration discloses nothing.
fn is_any<'s>(given: &[u8], right: impl Iterator<Item = &'s [u8]>) -> bool {
    let given = blake3::hash(given);
    right.fold(false, |found, secret| {
        found | bool::from(blake3::hash(secret).as_bytes().ct_eq(given.as_bytes()))
    })
}

fn verify_signature(
    recipe: &SignatureRecipe,
    secrets: &WebhookSecrets,
    request: &IncomingWebhook<'_>,
    now: DateTime<Utc>,
) -> Result<Verified, Refusal> {
    let keys = secrets.of(recipe.secret)?;
    // A malformed key must not prevent verification with the others.
    let keys: Vec<Vec<u8>> = keys.into_iter().filter_map(|secret| decode_key(recipe, secret)).collect();
    if keys.is_empty() {
        return Err(Refusal::UnusableSecret);
    }
    let places: Vec<String> = recipe.signature.iter().flat_map(|locator| request.texts(locator)).collect();
    let pieces: Vec<&str> = match &recipe.separator {
        Some(separator) => {
            places.iter().flat_map(|text| text.split(separator.as_str())).map(str::trim).collect()
        }
        None => places.iter().map(|text| text.trim()).collect(),
    };
    let lengths = signature_lengths(recipe.algorithm);
    let decoded =
        pieces.iter().filter_map(|piece| decode(recipe.encoding, piece.strip_prefix(&recipe.prefix)?));
    let well_formed = decoded.filter(|signature| lengths.contains(&signature.len()));
    let signatures: Vec<Vec<u8>> = well_formed.take(MAX_SIGNATURES).collect();
    if pieces.iter().all(|piece| piece.is_empty()) {
        let places: Vec<_> = recipe.signature.iter().map(Locator::to_string).collect();
        return Err(Refusal::Unsigned(places.join(" or ")));
    }
    let timestamp = find_timestamp(recipe, &pieces, request)?;
    if signatures.is_empty() {
        return Err(Refusal::WrongSignature);
    }
    let signed = signed_bytes(recipe, request, timestamp.as_deref().unwrap_or_default());
    if !keys.iter().any(|key| is_signed(recipe.algorithm, key, &signed, &signatures)) {
        return Err(Refusal::WrongSignature);
    }
    check_time(recipe, timestamp.as_deref(), now)?;
    let fingerprint = recipe.signs_its_time().then(|| format!("signed:{}", blake3::hash(&signed).to_hex()));
    Ok(Verified { fingerprint })
}

fn find_timestamp(
    recipe: &SignatureRecipe,
    pieces: &[&str],
    request: &IncomingWebhook<'_>,
) -> Result<Option<String>, Refusal> {
    let Some(timestamp) = &recipe.timestamp else { return Ok(None) };
    let found = match (&timestamp.at, &timestamp.prefix) {
        (Some(locator), _) => request.texts(locator).into_iter().next(),
        (None, Some(prefix)) => {
            pieces.iter().find_map(|piece| piece.strip_prefix(prefix.as_str())).map(str::to_owned)
        }
        (None, None) => None,
    };
    let missing = || {
        let locator = timestamp.at.as_ref().map_or_else(|| "its time".to_owned(), Locator::to_string);
        Refusal::Unsigned(locator)
    };
    found.map(Some).ok_or_else(missing)
}

/// Called only after the signature was verified, so that a rejection discloses nothing about the key.
fn check_time(recipe: &SignatureRecipe, given: Option<&str>, now: DateTime<Utc>) -> Result<(), Refusal> {
    let (Some(timestamp), Some(given)) = (&recipe.timestamp, given) else { return Ok(()) };
    let at = match timestamp.unit {
        TimeUnit::Seconds => given.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)),
        TimeUnit::Milliseconds => given.parse().ok().and_then(DateTime::from_timestamp_millis),
        TimeUnit::Rfc3339 => DateTime::parse_from_rfc3339(given).ok().map(|time| time.to_utc()),
    };
    let tolerance = TimeDelta::seconds(timestamp.tolerance_seconds.into());
    let is_near = at.is_some_and(|at| now.signed_duration_since(at).abs() <= tolerance);
    if is_near { Ok(()) } else { Err(Refusal::Expired(timestamp.tolerance_seconds)) }
}

fn signed_bytes(recipe: &SignatureRecipe, request: &IncomingWebhook<'_>, timestamp: &str) -> Vec<u8> {
    let mut signed = Vec::with_capacity(request.body.len() + 64);
    for part in &recipe.signed.0 {
        match part {
            SignedPart::Text(text) => signed.extend_from_slice(text.as_bytes()),
            SignedPart::Body => signed.extend_from_slice(request.body),
            SignedPart::Timestamp => signed.extend_from_slice(timestamp.as_bytes()),
            SignedPart::Method => signed.extend_from_slice(request.method.as_str().as_bytes()),
            SignedPart::Url => signed.extend_from_slice(request.url.as_bytes()),
            SignedPart::Form => append_form(request.body, &mut signed),
            SignedPart::At(locator) => {
                let text = request.texts(locator).into_iter().next().unwrap_or_default();
                signed.extend_from_slice(text.as_bytes());
            }
        }
    }
    signed
}

/// Appends names and values, ordered by name and then by value. Of equal pairs, only one is appended.
fn append_form(body: &[u8], signed: &mut Vec<u8>) {
    let mut pairs: Vec<_> = url::form_urlencoded::parse(body).collect();
    pairs.sort();
    pairs.dedup();
    for (name, value) in pairs {
        signed.extend_from_slice(name.as_bytes());
        signed.extend_from_slice(value.as_bytes());
    }
}

fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Base64 => BASE64.decode(text).ok(),
        Encoding::Hex => decode_hex(text),
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

/// Decodes the key from a secret. Returns `None` if it is not a key of the expected kind.
fn decode_key(recipe: &SignatureRecipe, secret: &str) -> Option<Vec<u8>> {
    let secret = secret.trim();
    let secret = secret.strip_prefix(&recipe.secret_prefix).unwrap_or(secret);
    let decoded = match recipe.secret_encoding {
        KeyEncoding::Text => secret.as_bytes().to_vec(),
        KeyEncoding::Hex => decode_hex(secret)?,
        KeyEncoding::Base64 => BASE64.decode(secret).ok()?,
    };
    match recipe.algorithm {
        Algorithm::EcdsaP256 => Some(decoded.last_chunk::<P256_POINT_BYTES>()?.to_vec()),
        _ => Some(decoded),
    }
}

/// Returns the valid lengths of a signature in bytes.
fn signature_lengths(algorithm: Algorithm) -> RangeInclusive<usize> {
    match algorithm {
        Algorithm::HmacSha1 => 20..=20,
        Algorithm::HmacSha256 => 32..=32,
        Algorithm::HmacSha512 | Algorithm::Ed25519 => 64..=64,
        // A sequence of two integers in DER. Each has between 1 and 33 bytes, and every item has a header of 2 bytes.
        Algorithm::EcdsaP256 => 8..=72,
    }
}

/// Whether one of the signatures was made with this key. An HMAC is computed once, however many signatures there are.
fn is_signed(algorithm: Algorithm, key: &[u8], signed: &[u8], signatures: &[Vec<u8>]) -> bool {
    let verify = |key: &UnparsedPublicKey<&[u8]>| {
        signatures.iter().any(|signature| key.verify(signed, signature).is_ok())
    };
    match algorithm {
        Algorithm::Ed25519 => verify(&UnparsedPublicKey::new(&ED25519, key)),
        Algorithm::EcdsaP256 => verify(&UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key)),
        Algorithm::HmacSha1 | Algorithm::HmacSha256 | Algorithm::HmacSha512 => {
            let Ok(key) = hmac_key(algorithm, key) else { return false };
            let expected = hmac::sign(&key, signed);
            // Compares with all signatures, so that the duration does not disclose which one is right.
            signatures.iter().fold(false, |found, signature| {
                found | bool::from(expected.as_ref().ct_eq(signature.as_slice()))
            })
        }
    }
}

/// Returns the key of an HMAC. Schemes with a public key cannot sign here.
fn hmac_key(algorithm: Algorithm, secret: &[u8]) -> Result<hmac::Key, Refusal> {
    let algorithm = match algorithm {
        Algorithm::HmacSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        Algorithm::HmacSha256 => hmac::HMAC_SHA256,
        Algorithm::HmacSha512 => hmac::HMAC_SHA512,
        Algorithm::Ed25519 | Algorithm::EcdsaP256 => return Err(Refusal::UnusableSecret),
    };
    Ok(hmac::Key::new(algorithm, secret))
}

/// Answers a handshake. Returns `None` if the request is not a handshake.
pub fn answer_handshake(
    webhook: &Webhook,
    secrets: &WebhookSecrets,
    request: &IncomingWebhook<'_>,
) -> Option<Result<Answered, Refusal>> {
    let matches_request = |handshake: &&Handshake| {
        let texts = request.texts(&handshake.when);
        match &handshake.equals {
            Some(wanted) => texts.iter().any(|text| text == wanted),
            None => !texts.is_empty(),
        }
    };
    let handshake = webhook.handshakes.iter().find(matches_request)?;
    // A stored handshake may contain the future secret. Once a secret is set, only signed requests are accepted.
    let is_stored = matches!(handshake.answer, Answer::Kept(_));
    if is_stored && secrets.of(SecretSource::WebhookSecret).is_ok() {
        return None;
    }
    Some(answer(handshake, secrets, request))
}

fn answer(
    handshake: &Handshake,
    secrets: &WebhookSecrets,
    request: &IncomingWebhook<'_>,
) -> Result<Answered, Refusal> {
    if let Some(locator) = &handshake.token {
        let recipe = TokenRecipe {
            token: locator.clone(),
            prefix: String::new(),
            secret: SecretSource::WebhookSecret,
        };
        verify_token(&recipe, secrets, request)?;
    }
    let locator = handshake.value.as_ref().unwrap_or(&handshake.when);
    let unusable = || Refusal::UnusableChallenge(locator.to_string());
    let value = request.texts(locator).into_iter().next().ok_or_else(unusable)?;
    if value.len() > MAX_ECHO || value.chars().any(char::is_control) {
        return Err(unusable());
    }
    let hmac = handshake.hmac.as_ref().map(|hmac| prove(hmac, secrets, &value)).transpose()?;
    let fill = |text: &String| {
        text.replace("{hmac}", hmac.as_deref().unwrap_or_default()).replace("{value}", &value)
    };
    Ok(match &handshake.answer {
        Answer::Text(text) => Answered::Text(fill(text)),
        Answer::Json(members) => {
            Answered::Json(members.iter().map(|(name, text)| (name.clone(), fill(text))).collect())
        }
        Answer::Header(name) => {
            let value = HeaderValue::from_str(&value).map_err(|_| unusable())?;
            Answered::Header(name.clone(), value)
        }
        Answer::Kept(_) => Answered::Kept,
    })
}

/// Proves knowledge of the secret. Anyone can send a handshake, so the value to sign must not resemble the signed text
/// of a webhook.
fn prove(wanted: &HandshakeHmac, secrets: &WebhookSecrets, value: &str) -> Result<String, Refusal> {
    let is_harmless = value.len() <= 255
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte));
    if !is_harmless {
        return Err(Refusal::WrongSignature);
    }
    let secrets = secrets.of(wanted.secret)?;
    let proof = hmac::sign(&hmac_key(wanted.algorithm, secrets[0].as_bytes())?, value.as_bytes());
    Ok(match wanted.encoding {
        Encoding::Hex => hex(proof.as_ref()),
        Encoding::Base64 => BASE64.encode(proof),
    })
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
