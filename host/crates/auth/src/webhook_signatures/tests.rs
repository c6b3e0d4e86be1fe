use std::time::Duration;

use http::HeaderMap;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::*;

const BODY: &str = r#"{"id":"evt_1"}"#;
const URL: &str = "https://example.com/webhook/e/k?a=1";

struct Sent {
    webhook: Webhook,
    secrets: WebhookSecrets,
    headers: HeaderMap,
    body: String,
    now: i64,
}

impl Sent {
    fn new(recipe: &str, secret: &str) -> Self {
        Self {
            webhook: verified_by(recipe),
            secrets: WebhookSecrets { webhook: vec![secret.to_owned().into()], ..WebhookSecrets::default() },
            headers: HeaderMap::new(),
            body: BODY.to_owned(),
            now: 1_700_000_000,
        }
    }

    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.append(name, value.parse().unwrap());
        self
    }

    fn verify(&self) -> Result<Verified, Refusal> {
        let body = self.body.as_bytes();
        let request = IncomingWebhook {
            method: &Method::POST,
            url: URL,
            query: "a=1",
            headers: &self.headers,
            body,
            raw: RawBody::new(&self.headers, body, None),
        };
        let now = DateTime::from_timestamp(self.now, 0).unwrap();
        verify_webhook(&self.webhook, &self.secrets, &request, now)
    }
}

fn verified_by(recipe: &str) -> Webhook {
    let source = r#"source = { address = "https://example.com", checked_at = "2026-01-01" }"#;
    toml::from_str(&format!("{source}\n[verification]\n{recipe}")).unwrap()
}

fn signature(secret: &str, text: &str) -> String {
    let key = hmac_key(Algorithm::HmacSha256, secret.as_bytes()).unwrap();
    hex(hmac::sign(&key, text.as_bytes()).as_ref())
}

const TIMED: &str = r#"
    kind = "signature"
    algorithm = "hmac-sha256"
    signature = "header:x-signature"
    separator = ","
    prefix = "v1="
    encoding = "hex"
    signed = "{timestamp}.{body}"
    timestamp = { prefix = "t=" }
"#;

#[test]
fn one_valid_and_recent_signature_among_several_is_accepted() {
    let right = signature("planted", &format!("1700000000.{BODY}"));
    let value = format!("t=1700000000, v1={}, v1={right}", "0".repeat(64));
    let sent = |now| Sent { now, ..Sent::new(TIMED, "planted").header("x-signature", &value) };
    assert!(sent(1_700_000_000).verify().unwrap().fingerprint.is_some());
    assert!(sent(1_700_000_300).verify().is_ok());
    assert_eq!(sent(1_700_000_301).verify(), Err(Refusal::Expired(300)));
    assert_eq!(sent(1_699_999_699).verify(), Err(Refusal::Expired(300)));
    let other_body = Sent { body: "{}".to_owned(), ..sent(1_700_000_000) };
    assert_eq!(other_body.verify(), Err(Refusal::WrongSignature));
    let other_time = Sent::new(TIMED, "planted").header("x-signature", &format!("t=1700000001,v1={right}"));
    assert_eq!(other_time.verify(), Err(Refusal::WrongSignature));
}

#[test]
fn missing_and_wrong_signatures_are_rejected() {
    let unsigned = Sent::new(TIMED, "planted").verify().unwrap_err();
    assert_eq!(unsigned.to_string(), "the request is not signed: the header `x-signature` is missing");
    for value in ["nonsense", "v1=zz,t=1700000000", "t=1700000000", "v1=,t=1700000000", "v1=00,t=soon"] {
        let rejected = Sent::new(TIMED, "planted").header("x-signature", value).verify().unwrap_err();
        assert!(matches!(rejected, Refusal::WrongSignature | Refusal::Unsigned(_)), "{value}: {rejected}");
    }
    let mut without = Sent::new(TIMED, "planted");
    without.secrets.webhook.clear();
    assert!(matches!(without.verify(), Err(Refusal::NoSecret(_))));
}

#[test]
fn the_current_and_the_previous_secret_both_verify() {
    for secret in ["older", "newer"] {
        let right = signature(secret, &format!("1700000000.{BODY}"));
        let mut sent = Sent::new(TIMED, "newer").header("x-signature", &format!("t=1700000000,v1={right}"));
        sent.secrets.webhook.push("older".to_owned().into());
        assert!(sent.verify().is_ok(), "{secret}");
    }
}

#[test]
fn a_client_secret_verifies_even_if_a_webhook_secret_is_set() {
    let recipe = TIMED.replace("encoding", "secret = \"client_secret\"\nencoding");
    let right = signature("client", &format!("1700000000.{BODY}"));
    let mut sent = Sent::new(&recipe, "token").header("x-signature", &format!("t=1700000000,v1={right}"));
    assert_eq!(sent.verify(), Err(Refusal::WrongSignature));
    sent.secrets.client = Some("client".to_owned().into());
    assert!(sent.verify().is_ok());
}

#[test]
fn a_connections_secret_verifies_only_if_the_provider_signs_with_it() {
    let recipe = "kind = \"token\"\ntoken = \"header:x-token\"";
    let of_connection = &*format!("{recipe}\nsecret = \"connection\"");
    for (recipe, secret, expected) in [
        (of_connection, "connection", Ok(())),
        (of_connection, "webhook", Ok(())),
        (of_connection, "client", Err(Refusal::WrongSignature)),
        (recipe, "connection", Err(Refusal::WrongSignature)),
        (recipe, "webhook", Ok(())),
    ] {
        let mut sent = Sent::new(recipe, "webhook").header("x-token", secret);
        sent.secrets.client = Some("client".to_owned().into());
        sent.secrets.connection = Some("connection".to_owned().into());
        assert_eq!(sent.verify().map(drop), expected, "{recipe}, {secret}");
    }
}

#[test]
fn a_secret_that_a_handshake_reveals_does_not_sign_webhooks() {
    let sent = |handshake: &str, signing: &str| {
        let right = signature(signing, &format!("1700000000.{BODY}"));
        let recipe = format!("{TIMED}\nsecret = \"client_secret\"\n{handshake}");
        let mut sent =
            Sent::new(&recipe, "webhook").header("x-signature", &format!("t=1700000000,v1={right}"));
        sent.secrets.client = Some("client".to_owned().into());
        sent.verify().map(drop)
    };
    let revealing = r#"
        [[handshake]]
        when = "query:challenge"
        token = "query:token"
        answer = { text = "{value}" }
    "#;
    assert_eq!(sent("", "webhook"), Ok(()));
    assert_eq!(sent(revealing, "webhook"), Err(Refusal::WrongSignature));
    assert_eq!(sent(revealing, "client"), Ok(()));
}

#[test]
fn equal_secrets_and_equal_signatures_verify() {
    let right = signature("planted", &format!("1700000000.{BODY}"));
    let value = format!("t=1700000000,v1={right},v1={right}");
    assert!(Sent::new(TIMED, "planted").header("x-signature", &value).verify().is_ok());
    let token = "kind = \"token\"\ntoken = \"header:x-token\"";
    let mut sent = Sent::new(token, "planted").header("x-token", "planted");
    sent.secrets.webhook.push("planted".to_owned().into());
    assert!(sent.verify().is_ok());
}

#[test]
fn only_pairs_of_hexadecimal_digits_are_decoded() {
    assert_eq!(decode_hex("00fFa9"), Some(vec![0x00, 0xff, 0xa9]));
    for text in ["0", "00f", "+f", "0x", "g0", "é"] {
        assert_eq!(decode_hex(text), None, "{text}");
    }
}

/// The example in the specification of Standard Webhooks.
#[test]
fn the_example_of_standard_webhooks_verifies() {
    let recipe = r#"
        kind = "signature"
        algorithm = "hmac-sha256"
        signature = "header:webhook-signature"
        separator = " "
        prefix = "v1,"
        encoding = "base64"
        signed = "{header:webhook-id}.{timestamp}.{body}"
        timestamp = { at = "header:webhook-timestamp" }
        secret_prefix = "whsec_"
        secret_encoding = "base64"
    "#;
    let sent = |signature: &str| Sent {
        body: r#"{"test": 2432232314}"#.to_owned(),
        now: 1_614_265_330,
        ..Sent::new(recipe, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
            .header("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
            .header("webhook-timestamp", "1614265330")
            .header("webhook-signature", signature)
    };
    let right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    assert!(sent(right).verify().is_ok());
    assert!(sent(&format!("v1,AAAA v1a,BBBB {right}")).verify().is_ok());
    assert_eq!(
        sent("v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=").verify(),
        Err(Refusal::WrongSignature)
    );
}

/// An example from the tests of Twilio's own libraries.
#[test]
fn form_fields_are_signed_in_the_order_of_their_names() {
    let recipe = r#"
        kind = "signature"
        algorithm = "hmac-sha1"
        signature = "header:x-twilio-signature"
        encoding = "base64"
        signed = "https://mycompany.com/myapp.php?foo=1&bar=2{form}"
    "#;
    let body =
        "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212";
    let sent = Sent {
        body: body.to_owned(),
        ..Sent::new(recipe, "12345").header("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")
    };
    let changed = Sent { body: body.replace("1234&", "1235&"), ..Sent::new(recipe, "12345") };
    let changed = changed.header("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=");
    assert!(sent.verify().is_ok());
    assert_eq!(changed.verify(), Err(Refusal::WrongSignature));
}

/// The first example of RFC 8032.
#[test]
fn public_key_signatures_verify() {
    let recipe = r#"
        kind = "signature"
        algorithm = "ed25519"
        signature = "header:x-signature"
        encoding = "hex"
        secret_encoding = "hex"
    "#;
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let signature = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
    let sent = Sent { body: String::new(), ..Sent::new(recipe, key).header("x-signature", signature) };
    assert!(sent.verify().is_ok());
    let other = Sent::new(recipe, key).header("x-signature", signature);
    assert_eq!(other.verify(), Err(Refusal::WrongSignature));
    let no_key = Sent::new(recipe, "not hexadecimal").header("x-signature", signature);
    assert_eq!(no_key.verify(), Err(Refusal::UnusableSecret));
}

/// The key is at the end of the public key in X.509 form, as providers show it.
#[test]
fn a_public_key_in_x509_form_verifies() {
    const X509_OF_P256: &str = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pair = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pair.as_ref(), &random).unwrap();
    let recipe = r#"
        kind = "signature"
        algorithm = "ecdsa-p256-sha256"
        signature = "header:x-signature"
        encoding = "hex"
        secret_encoding = "hex"
    "#;
    let right = hex(pair.sign(&random, BODY.as_bytes()).unwrap().as_ref());
    let verify = |key: &str| Sent::new(recipe, key).header("x-signature", &right).verify().map(drop);
    let point = hex(pair.public_key().as_ref());
    assert_eq!(verify(&format!("{X509_OF_P256}{point}")), Ok(()));
    assert_eq!(verify(&point[2..]), Err(Refusal::UnusableSecret));
}

/// A request with this many wrong signatures of the right length before the right one.
fn after_wrong_signatures(wrong: usize) -> Sent {
    let right = signature("planted", &format!("1700000000.{BODY}"));
    let wrong = format!("v1={},", "0".repeat(64)).repeat(wrong);
    Sent::new(TIMED, "planted").header("x-signature", &format!("t=1700000000,{wrong}v1={right}"))
}

#[test]
fn only_the_first_signatures_of_a_request_are_checked() {
    assert!(after_wrong_signatures(MAX_SIGNATURES - 1).verify().is_ok());
    assert_eq!(after_wrong_signatures(MAX_SIGNATURES).verify(), Err(Refusal::WrongSignature));
}

#[test]
fn the_first_signatures_of_several_headers_are_checked_together() {
    let right = signature("planted", &format!("1700000000.{BODY}"));
    let sent = |wrong: usize| {
        let sent = Sent::new(TIMED, "planted").header("x-signature", "t=1700000000");
        let sent =
            (0..wrong).fold(sent, |sent, _| sent.header("x-signature", &format!("v1={}", "0".repeat(64))));
        sent.header("x-signature", &format!("v1={right}")).verify()
    };
    assert!(sent(MAX_SIGNATURES - 1).is_ok());
    assert_eq!(sent(MAX_SIGNATURES), Err(Refusal::WrongSignature));
}

#[test]
fn only_the_first_public_key_signatures_are_checked() {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let ecdsa = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let ecdsa = EcdsaKeyPair::from_pkcs8(algorithm, ecdsa.as_ref(), &random).unwrap();
    let ed25519 =
        Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
    for (algorithm, key, right, other) in [
        (
            "ecdsa-p256-sha256",
            hex(ecdsa.public_key().as_ref()),
            hex(ecdsa.sign(&random, BODY.as_bytes()).unwrap().as_ref()),
            hex(ecdsa.sign(&random, b"other").unwrap().as_ref()),
        ),
        (
            "ed25519",
            hex(ed25519.public_key().as_ref()),
            hex(ed25519.sign(BODY.as_bytes()).as_ref()),
            hex(ed25519.sign(b"other").as_ref()),
        ),
    ] {
        let recipe = format!(
            r#"
            kind = "signature"
            algorithm = "{algorithm}"
            signature = "header:x-signature"
            encoding = "hex"
            secret_encoding = "hex"
            "#
        );
        let sent = |others: usize| {
            let sent =
                (0..others).fold(Sent::new(&recipe, &key), |sent, _| sent.header("x-signature", &other));
            sent.header("x-signature", &right).verify()
        };
        assert!(sent(MAX_SIGNATURES - 1).is_ok(), "{algorithm}");
        assert_eq!(sent(MAX_SIGNATURES), Err(Refusal::WrongSignature), "{algorithm}");
    }
}

#[test]
fn malformed_signatures_do_not_count_towards_the_limit() {
    let right = signature("planted", &format!("1700000000.{BODY}"));
    for malformed in ["v1=00", "v1=", "v1=zz", "v0=00", "v1"] {
        let value = format!("t=1700000000,{}v1={right}", format!("{malformed},").repeat(1_000));
        let sent = Sent::new(TIMED, "planted").header("x-signature", &value);
        assert!(sent.verify().is_ok(), "{malformed}");
    }
}

#[test]
fn many_signatures_of_a_long_body_cost_as_much_as_one() {
    let processor_time = |wrong: usize| {
        let sent = Sent { body: "x".repeat(4 << 20), ..after_wrong_signatures(wrong) };
        let verify = || {
            let began = thread_time();
            assert_eq!(sent.verify(), Err(Refusal::WrongSignature));
            thread_time().saturating_sub(began)
        };
        (0..5).map(|_| verify()).min().unwrap()
    };
    // With one HMAC for each signature, the time would be `MAX_SIGNATURES` times as long.
    let (one, many) = (processor_time(0), processor_time(MAX_SIGNATURES - 1));
    assert!(many < 3 * one, "{many:?} for {MAX_SIGNATURES} signatures, {one:?} for one");
}

/// The CPU time of this thread, which does not depend on other processes.
fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn a_token_must_match_in_all_places() {
    let token = |recipe: &str, name, value: &str| Sent::new(recipe, "planted").header(name, value).verify();
    let recipe = "kind = \"token\"\ntoken = \"header:x-gitlab-token\"";
    assert!(token(recipe, "x-gitlab-token", "planted").is_ok());
    assert_eq!(token(recipe, "x-gitlab-token", "planted2"), Err(Refusal::WrongSignature));
    assert!(matches!(token(recipe, "x-other", "planted"), Err(Refusal::Unsigned(_))));
    let in_body = |body: Value| {
        let recipe = "kind = \"token\"\ntoken = \"json:/value/*/clientState\"";
        Sent { body: body.to_string(), ..Sent::new(recipe, "planted") }.verify()
    };
    assert!(
        in_body(json!({ "value": [{ "clientState": "planted" }, { "clientState": "planted" }] })).is_ok()
    );
    let one_is_wrong = json!({ "value": [{ "clientState": "planted" }, { "clientState": "x" }] });
    assert_eq!(in_body(one_is_wrong), Err(Refusal::WrongSignature));
    let basic =
        |value: &str| Sent::new("kind = \"basic\"", "user:planted").header("authorization", value).verify();
    assert!(basic(&format!("Basic {}", BASE64.encode("user:planted"))).is_ok());
    assert_eq!(basic(&format!("Basic {}", BASE64.encode("user:other"))), Err(Refusal::WrongSignature));
    assert!(matches!(basic("Bearer planted"), Err(Refusal::Unsigned(_))));
}

fn webhook(handshake: &str) -> Webhook {
    let text = format!(
        r#"
        source = {{ address = "https://example.com", checked_at = "2026-01-01" }}
        verification = {{ kind = "none" }}
        [[handshake]]
        {handshake}
        "#
    );
    toml::from_str(&text).unwrap()
}

fn send_handshake(
    webhook: &Webhook,
    secret: Option<&str>,
    query: &str,
    body: &Value,
) -> Option<Result<Answered, Refusal>> {
    let secrets = WebhookSecrets {
        webhook: secret.map(|secret| secret.to_owned().into()).into_iter().collect(),
        ..WebhookSecrets::default()
    };
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-hook-secret"), "abc".parse().unwrap())]);
    let body = body.to_string();
    let raw = RawBody::new(&headers, body.as_bytes(), None);
    let request =
        IncomingWebhook { method: &Method::GET, url: URL, query, headers: &headers, body: b"", raw };
    answer_handshake(webhook, &secrets, &request)
}

#[test]
fn handshakes_are_answered_in_each_providers_form() {
    let slack = webhook(
        r#"
        when = "json:/type"
        equals = "url_verification"
        value = "json:/challenge"
        answer = { json = { challenge = "{value}" } }"#,
    );
    let body = json!({ "type": "url_verification", "challenge": "c1" });
    assert_eq!(
        send_handshake(&slack, None, "", &body),
        Some(Ok(Answered::Json(json!({ "challenge": "c1" }))))
    );
    assert_eq!(send_handshake(&slack, None, "", &json!({ "type": "event" })), None);
    let meta = webhook(
        r#"
        when = "query:hub.challenge"
        token = "query:hub.verify_token"
        answer = { text = "{value}" }"#,
    );
    let query = |token: &str| format!("hub.mode=subscribe&hub.verify_token={token}&hub.challenge=42");
    let none = Value::Null;
    assert_eq!(
        send_handshake(&meta, Some("planted"), &query("planted"), &none),
        Some(Ok(Answered::Text("42".to_owned())))
    );
    assert_eq!(
        send_handshake(&meta, Some("planted"), &query("x"), &none),
        Some(Err(Refusal::WrongSignature))
    );
    let asana = webhook("when = \"header:x-hook-secret\"\nanswer = { header = \"x-hook-secret\" }");
    let name = HeaderName::from_static("x-hook-secret");
    assert_eq!(
        send_handshake(&asana, None, "", &none),
        Some(Ok(Answered::Header(name, "abc".parse().unwrap())))
    );
}

#[test]
fn handshakes_are_stored_only_until_a_secret_is_set() {
    let notion = webhook("when = \"json:/verification_token\"\nanswer = { kept = {} }");
    let body = json!({ "verification_token": "secret_x" });
    assert_eq!(send_handshake(&notion, None, "", &body), Some(Ok(Answered::Kept)));
    assert_eq!(send_handshake(&notion, Some("planted"), "", &body), None);
}

#[test]
fn a_handshake_does_not_sign_webhook_contents() {
    let zoom = webhook(
        r#"
        when = "json:/token"
        hmac = { algorithm = "hmac-sha256", encoding = "hex" }
        answer = { json = { plain = "{value}", encrypted = "{hmac}" } }"#,
    );
    let proof = signature("planted", "qgg8vlvZRS6UYooatFL8Aw");
    let expected = json!({ "plain": "qgg8vlvZRS6UYooatFL8Aw", "encrypted": proof });
    let answer = send_handshake(&zoom, Some("planted"), "", &json!({ "token": "qgg8vlvZRS6UYooatFL8Aw" }));
    assert_eq!(answer, Some(Ok(Answered::Json(expected))));
    for forged in ["v0:1700000000:{}", r#"{"id":1}"#, "1.2", "a b"] {
        let answer = send_handshake(&zoom, Some("planted"), "", &json!({ "token": forged }));
        assert_eq!(answer, Some(Err(Refusal::WrongSignature)), "{forged}");
    }
}

#[test]
fn control_characters_and_long_values_are_not_echoed() {
    let echo = webhook("when = \"query:validationToken\"\nanswer = { text = \"{value}\" }");
    let rejected = Some(Err(Refusal::UnusableChallenge("the query parameter `validationToken`".to_owned())));
    for forged in ["a%0d%0aset-cookie:%20a=b", "%00"] {
        let answer = send_handshake(&echo, None, &format!("validationToken={forged}"), &Value::Null);
        assert_eq!(answer, rejected, "{forged}");
    }
    let long = |length: usize| {
        send_handshake(&echo, None, &format!("validationToken={}", "a".repeat(length)), &Value::Null)
    };
    assert_eq!(long(MAX_ECHO), Some(Ok(Answered::Text("a".repeat(MAX_ECHO)))));
    assert_eq!(long(MAX_ECHO + 1), rejected);
    assert_eq!(long(MAX_ECHO + 2), rejected);
}
