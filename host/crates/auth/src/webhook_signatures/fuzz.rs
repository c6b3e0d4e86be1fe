//! Properties of the verification for generated requests.

use http::HeaderMap;
use serde_json::json;
use syncline_providers::Catalogue;

use super::*;

const NOW: i64 = 1_700_000_000;
/// No input contains a secret or its digest.
const SECRET: &str = "9f2c61d3-planted";

/// Reads lines with headers, an empty line and the body.
fn read_request(input: &[u8]) -> (HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let name = HeaderName::from_bytes(name.trim_ascii());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.trim_ascii())) {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

fn verify(
    webhook: &Webhook,
    secret: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> (Result<Verified, Refusal>, Option<Result<Answered, Refusal>>) {
    let secret = || Secret::from(secret.to_owned());
    let secrets =
        WebhookSecrets { webhook: vec![secret()], client: Some(secret()), connection: Some(secret()) };
    let request = IncomingWebhook {
        method: &Method::POST,
        url: "https://example.com/webhook/e/k?a=1",
        query: "a=1",
        headers,
        body,
        raw: RawBody::new(headers, body, webhook.form_member.as_deref()),
    };
    let now = DateTime::from_timestamp(NOW, 0).unwrap();
    (verify_webhook(webhook, &secrets, &request, now), answer_handshake(webhook, &secrets, &request))
}

#[test]
fn no_request_without_the_secret_is_accepted_by_any_provider() {
    let catalogue = Catalogue::load(None).unwrap();
    let providers = catalogue.list();
    let webhooks: Vec<&Webhook> = providers.iter().filter_map(|provider| provider.webhook.as_ref()).collect();
    assert!(webhooks.len() > 20);
    syncline_fuzz::check("signature-headers", |input| {
        let (headers, body) = read_request(input);
        for webhook in &webhooks {
            let (verified, answered) = verify(webhook, SECRET, &headers, body);
            let is_open = matches!(webhook.verification, Verification::None(_));
            assert_eq!(verified.is_ok(), is_open, "{:?}", webhook.verification);
            if let Some(Ok(Answered::Text(text))) = answered {
                assert!(text.len() <= 2 * MAX_ECHO && !text.chars().any(char::is_control));
            }
        }
    });
}

#[test]
fn a_signed_request_is_accepted_exactly_as_it_was_signed() {
    let recipe = json!({
        "source": { "address": "https://example.com", "checked_at": "2026-01-01" },
        "verification": {
            "kind": "signature", "algorithm": "hmac-sha256", "signature": "header:x-signature-of-test",
            "separator": ",", "prefix": "v1=", "encoding": "hex", "timestamp": { "prefix": "t=" },
            "signed": "{timestamp}.{body}.{form}.{header:x-signature}.{json:/id}",
        },
    });
    let webhook: Webhook = serde_json::from_value(recipe).unwrap();
    syncline_fuzz::check("signature-headers", |input| {
        let (mut headers, body) = read_request(input);
        let Verification::Signature(recipe) = &webhook.verification else { panic!("{webhook:?}") };
        headers.remove("x-signature-of-test");
        let request = IncomingWebhook {
            method: &Method::POST,
            url: "",
            query: "",
            headers: &headers,
            body,
            raw: RawBody::new(&headers, body, None),
        };
        let signed = signed_bytes(recipe, &request, &NOW.to_string());
        // The name and the value of a member are appended. Each byte that is not UTF-8 becomes three bytes.
        assert!(signed.len() <= 5 * input.len() + 100);
        let key = hmac_key(Algorithm::HmacSha256, SECRET.as_bytes()).unwrap();
        let signature = hex(hmac::sign(&key, &signed).as_ref());
        headers.insert("x-signature-of-test", format!("t={NOW},v1={signature}").parse().unwrap());
        assert!(
            verify(&webhook, SECRET, &headers, body).0.is_ok_and(|verified| verified.fingerprint.is_some())
        );
        assert_eq!(verify(&webhook, "another secret", &headers, body).0, Err(Refusal::WrongSignature));
        let longer = [body, b"x"].concat();
        assert_eq!(verify(&webhook, SECRET, &headers, &longer).0, Err(Refusal::WrongSignature));
        headers.insert("x-signature-of-test", format!("t={},v1={signature}", NOW + 1).parse().unwrap());
        assert_eq!(verify(&webhook, SECRET, &headers, body).0, Err(Refusal::WrongSignature));
    });
}
