//! One attempt: builds the headers with their signatures, and sends the request.

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ring::hmac;
use sha2::{Digest, Sha256};
use url::Url;

use super::Sender;
use super::retry::Outcome;
use syncline_auth::SigningKey;
use syncline_crypto::hex;
use syncline_egress::{EgressError, retry_after};
use syncline_engine::stored_headers;
use syncline_store::outbound_webhooks::sending::Claimed;

/// The header names that existing receivers verify.
const LEGACY_SIGNATURE: HeaderName = HeaderName::from_static("x-nango-signature");
const LEGACY_HMAC: HeaderName = HeaderName::from_static("x-nango-hmac-sha256");
/// The header names of the Standard Webhooks specification.
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Signs and sends a delivery. An error is internal; every reaction of the receiver is an outcome.
pub(super) async fn send(sender: &Sender, delivery: &Claimed) -> anyhow::Result<Outcome> {
    let keys = sender.environments.signing_keys(delivery.environment).await?;
    let timestamp = sender.clock.now().timestamp();
    let own = headers(&delivery.message_id.to_string(), timestamp, &delivery.body, &keys)?;
    let mut headers = stored_headers(&delivery.headers);
    // Replaces headers of a forwarded provider webhook with the same names.
    headers.extend(own);
    let Ok(url) = Url::parse(&delivery.url) else {
        let reason = "the webhook URL is not a valid URL".to_owned();
        return Ok(Outcome::NoAnswer(EgressError::InvalidRequest { reason }));
    };
    let body = Bytes::copy_from_slice(delivery.body.as_bytes());
    let answer = sender.gateway.post_message(url, headers, body, sender.settings.timeout).await;
    Ok(match answer {
        Ok((status, headers)) => {
            Outcome::Answered { status, retry_after: retry_after(&headers, sender.clock.system_time()) }
        }
        Err(error) => Outcome::NoAnswer(error),
    })
}

/// Returns the headers for a body. `webhook-signature` contains a signature of each valid key. The older headers have
/// space for one signature, made with the newest key.
fn headers(id: &str, timestamp: i64, body: &str, keys: &[SigningKey]) -> anyhow::Result<HeaderMap> {
    let newest = keys.first().context("the environment has no signing key")?.expose_text();
    let timestamp = timestamp.to_string();
    let signed = [id, &timestamp, body].join(".");
    let standard: Vec<String> = keys
        .iter()
        .map(|key| format!("v1,{}", STANDARD.encode(sign(&key.expose_bytes(), signed.as_bytes()))))
        .collect();
    let legacy = Sha256::new().chain_update(newest).chain_update(body).finalize();
    let values = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (ID, id.to_owned()),
        (TIMESTAMP, timestamp),
        (SIGNATURE, standard.join(" ")),
        (LEGACY_SIGNATURE, hex(&legacy)),
        (LEGACY_HMAC, hex(sign(newest.as_bytes(), body.as_bytes()).as_ref())),
    ];
    values.into_iter().map(|(name, value)| Ok((name, HeaderValue::from_str(&value)?))).collect()
}

fn sign(key: &[u8], message: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message)
}
