//! Verification of provider webhooks: vendors' signatures, shared secrets, and handshakes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::webhook_scene::{
    SECRET, app, hex_hmac, integration, options_for, set_secret, webhook_path,
};
use crate::support::{Bundle, Host, Receiver, TestDatabase, eventually, node, text};

/// In the format of Standard Webhooks.
const STANDARD_SECRET: &str = "whsec_cGxhbnRlZC1zdGFuZGFyZC13ZWJob29rcy1rZXk=";

#[tokio::test]
async fn webhooks_signed_by_vendor_libraries_are_accepted_unless_modified() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let form = "application/x-www-form-urlencoded";
    let event = r#"{"id":"evt_1","type":"customer.created","account":"acct_1"}"#;
    for (vendor, provider, credentials, secret, content_type, body) in [
        ("stripe", "stripe-api-key", Value::Null, SECRET, "application/json", event),
        ("github", "github", app(), SECRET, "application/json", event),
        ("openai", "openai", Value::Null, STANDARD_SECRET, "application/json", event),
        ("resend", "resend", Value::Null, STANDARD_SECRET, "application/json", event),
        ("twilio", "twilio", Value::Null, SECRET, form, "From=%2B14158675310&Body=A+b%C3%A9&AccountSid=AC1"),
    ] {
        let path = integration(&host, provider, credentials, Some(secret)).await;
        let url = format!("{}{path}?connection_id=c1", host.base_url());
        let headers = node(
            "sign-webhook.mjs",
            &json!({ "vendor": vendor, "secret": secret, "url": url, "body": body }),
        );
        let send = async |body: &str| {
            let request = host.with_key(None).request("POST", &format!("{path}?connection_id=c1"));
            let headers = headers.as_object().expect("they are an object");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(name, text(value)));
            request.header("content-type", content_type).bytes(body.to_owned()).send().await
        };
        send(body).await.expect(200);
        let changed = send(&body.replace('1', "2")).await;
        assert_eq!(changed.refusal(), (401, "invalid_webhook_signature".to_owned()), "{vendor}");
        // A repeated request is not stored again. If it has no id, it is recognized by its signature.
        send(body).await.expect(200);
        let of_provider = format!(
            "SELECT count(*) FROM inbound_webhooks r JOIN integrations i ON i.pk = r.integration_pk
             WHERE i.provider = '{provider}'"
        );
        // The requests for GitHub and Twilio have no delivery id.
        let expected = if matches!(vendor, "github" | "twilio") { 2 } else { 1 };
        assert_eq!(db.number(&of_provider).await, expected, "{vendor}");
    }
}

#[tokio::test]
async fn a_form_with_very_many_members_is_rejected_before_it_is_verified() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let form = "application/x-www-form-urlencoded";
    for (provider, content_type) in [("twilio", form), ("twilio", "text/plain"), ("stripe-api-key", form)] {
        let path = match db
            .number(&format!("SELECT count(*) FROM integrations WHERE provider = '{provider}'"))
            .await
        {
            0 => integration(&host, provider, Value::Null, Some(SECRET)).await,
            _ => webhook_path(&host, provider).await,
        };
        let send = async |members: usize| {
            let request = host.with_key(None).request("POST", &path).header("content-type", content_type);
            let signed = request.header("x-twilio-signature", "AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
            signed.bytes("&a".repeat(members)).send().await.refusal()
        };
        assert_eq!(send(10_000).await.0, 401, "{provider}");
        assert_eq!(send(10_001).await, (413, "payload_too_large".to_owned()), "{provider} {content_type}");
    }
}

#[tokio::test]
async fn the_host_and_vendor_libraries_accept_the_same_webhooks() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let verdicts = node("judge-webhooks.mjs", &json!({ "now": chrono::Utc::now().timestamp() }));
    let verdicts = verdicts.as_array().expect("it is a list");
    assert_eq!(verdicts.len(), 6);
    for vendor in verdicts {
        let provider = text(&vendor["provider"]);
        let credentials = if matches!(provider, "sendgrid" | "razorpay") { Value::Null } else { app() };
        let path = integration(&host, provider, credentials, Some(text(&vendor["secret"]))).await;
        let tried = vendor["tried"].as_array().expect("it is a list");
        assert_eq!(tried.iter().filter(|one| one["is_taken"] == true).count(), 1, "{provider}: {tried:?}");
        for one in tried {
            let request =
                host.with_key(None).request("POST", &path).header("content-type", "application/json");
            let headers = one["headers"].as_object().expect("they are an object");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(name, text(value)));
            let answer = request.bytes(text(&one["body"]).to_owned()).send().await;
            let expected = if one["is_taken"] == true { 200 } else { 401 };
            assert_eq!(answer.status, expected, "{provider}, {}: {}", one["what"], answer.text());
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM inbound_webhooks").await, 6);
}

#[tokio::test]
async fn a_signature_expires_after_a_few_minutes() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "stripe-api-key", Value::Null, Some(SECRET)).await;
    let send = async |age_seconds: i64| {
        let (body, at) = (r#"{"id":"evt_1"}"#, chrono::Utc::now().timestamp() - age_seconds);
        let header = format!("t={at},v1={}", hex_hmac(SECRET, &format!("{at}.{body}")));
        let request = host.with_key(None).request("POST", &path).header("stripe-signature", &header);
        request.bytes(body).send().await
    };
    send(240).await.expect(200);
    assert_eq!(send(420).await.refusal(), (401, "expired_webhook_signature".to_owned()));
    assert_eq!(send(-420).await.refusal(), (401, "expired_webhook_signature".to_owned()));
}

#[tokio::test]
async fn a_long_webhook_is_verified_with_its_signature_in_header_or_body() {
    let db = TestDatabase::create().await;
    let host = options_for(&db).spawn().await;
    let filler = "x".repeat(300_000);
    let now = chrono::Utc::now().timestamp();
    let send = async |path: &str, header: Option<(&str, &str)>, body: &Value| {
        let request = host.with_key(None).request("POST", path);
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request.json(body).send().await
    };
    let wrong = |code: &str| (401, code.to_owned());
    let path = integration(&host, "linear", app(), Some(SECRET)).await;
    for (age_seconds, refused) in [(0, None), (90, Some("expired_webhook_signature"))] {
        let body = json!({ "filler": filler, "webhookTimestamp": (now - age_seconds) * 1000 });
        let signature = hex_hmac(SECRET, &body.to_string());
        let answer = send(&path, Some(("linear-signature", &signature)), &body).await;
        match refused {
            Some(code) => assert_eq!(answer.refusal(), wrong(code)),
            None => drop(answer.expect(200)),
        }
    }
    let path = integration(&host, "mailgun", Value::Null, Some(SECRET)).await;
    for (token, refused) in [("t1", false), ("t2", true)] {
        let signature = json!({
            "timestamp": now.to_string(), "token": token, "signature": hex_hmac(SECRET, &format!("{now}t1")),
        });
        let answer = send(&path, None, &json!({ "filler": filler, "signature": signature })).await;
        if refused {
            assert_eq!(answer.refusal(), wrong("invalid_webhook_signature"));
        } else {
            answer.expect(200);
        }
    }
    let figma = integration(&host, "figma", app(), Some(SECRET)).await;
    let microsoft = integration(&host, "microsoft", app(), Some(SECRET)).await;
    let passcode = |secret: &str| json!({ "filler": filler, "passcode": secret });
    let state = |secret: &str| json!({ "value": [{ "clientState": SECRET, "resource": filler }, { "clientState": secret }] });
    send(&figma, None, &passcode(SECRET)).await.expect(200);
    send(&microsoft, None, &state(SECRET)).await.expect(200);
    for (path, body) in [(&figma, passcode("odd")), (&microsoft, state("odd"))] {
        assert_eq!(send(path, None, &body).await.refusal(), wrong("invalid_webhook_signature"));
    }
    assert_eq!(db.number("SELECT count(*) FROM inbound_webhooks").await, 4);
}

#[tokio::test]
async fn handshakes_of_providers_are_answered() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let open = host.with_key(None);
    let slack = integration(&host, "slack", app(), Some(SECRET)).await;
    let challenge = json!({ "type": "url_verification", "challenge": "c1", "token": "t" });
    let answer = open.post(&slack, &challenge).await.expect(200);
    assert_eq!(answer.json(), json!({ "challenge": "c1" }));
    let microsoft = integration(&host, "microsoft", app(), Some(SECRET)).await;
    let answer =
        open.request("POST", &format!("{microsoft}?validationToken=a%3Cb%3E+c")).send().await.expect(200);
    assert_eq!(
        (answer.text(), answer.header("content-type")),
        ("a<b> c".into(), Some("text/plain; charset=utf-8"))
    );
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let zoom = integration(&host, "zoom", app(), Some(SECRET)).await;
    let token = json!({ "event": "endpoint.url_validation", "payload": { "plainToken": "abc" } });
    let answer = open.post(&zoom, &token).await.expect(200).json();
    assert_eq!(answer, json!({ "plainToken": "abc", "encryptedToken": hex_hmac(SECRET, "abc") }));
    let trello = integration(&host, "asana", app(), Some(SECRET)).await;
    open.request("HEAD", &trello).send().await.expect(200);
    let answer = open.request("POST", &trello).header("x-hook-secret", "s1").send().await.expect(200);
    assert_eq!(answer.header("x-hook-secret"), Some("s1"));
    assert_eq!(db.number("SELECT count(*) FROM inbound_webhooks").await, 0);
    // Notion's first request contains the token that signs all others. Users who may read webhooks can see it.
    let notion = integration(&host, "notion", app(), None).await;
    open.post(&notion, &json!({ "verification_token": "secret_notion" })).await.expect(200);
    let listed = host.get("/webhooks/received?provider_config_key=notion").await.expect(200).json();
    let id = text(&listed["webhooks"][0]["id"]);
    let shown = host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
    assert_eq!(shown["body"], json!({ "verification_token": "secret_notion" }));
    assert_eq!(shown["state"], "handshake");
}

#[tokio::test]
async fn unauthenticated_handshakes_are_stored_but_not_processed() {
    const KEPT: usize = 10;
    let receiver = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    let made = json!({ "provider": "notion", "unique_key": "webhooks", "credentials": app() });
    host.post("/integrations", &made).await.expect(200);
    host.deploy(&Bundle::guest("webhooks").replace("\"github-pat\"", "\"notion\"")).await;
    let connection = json!({
        "provider_config_key": "webhooks", "connection_id": "c1", "metadata": { "workspace_id": "w1" },
        "credentials": { "type": "OAUTH2", "access_token": "planted-token" },
    });
    host.post("/connections", &connection).await.expect(201);
    let path = webhook_path(&host, "webhooks").await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    db.execute("DELETE FROM outbound_webhook_deliveries").await;
    let open = host.with_key(None);
    for number in 0..KEPT + 3 {
        let token = format!("secret_{number}");
        let forged = json!({ "verification_token": token, "workspace_id": "w1", "type": "x", "id": "e1" });
        let taken = open.post(&format!("{path}?connection_id=c1"), &forged).await.expect(200);
        assert_eq!(taken.header("x-syncline-webhook-id"), None);
    }
    let long = json!({ "verification_token": "secret_long", "filler": "x".repeat(70_000) });
    assert_eq!(open.post(&path, &long).await.refusal(), (503, "webhook_secret_missing".to_owned()));
    let listed = host.get("/webhooks/received?state=handshake").await.expect(200).json();
    let ids: Vec<&str> =
        listed["webhooks"].as_array().expect("a list").iter().map(|one| text(&one["id"])).collect();
    assert_eq!(ids.len(), KEPT, "only the newest handshakes are kept");
    let replay = host.post(&format!("/webhooks/received/{}/replay", ids[0]), &json!({})).await;
    assert_eq!(replay.refusal(), (409, "webhook_in_flight".to_owned()));
    let all = json!({ "since": "2026-01-01T00:00:00Z", "state": "handshake" });
    assert_eq!(host.post("/webhooks/received/replay", &all).await.refusal().0, 400);
    // A signed request is processed afterwards, even if a stranger has used its id before.
    set_secret(&host, "webhooks", SECRET).await;
    let body = r#"{"id":"e1","type":"page.created","workspace_id":"w1"}"#;
    let signature = format!("sha256={}", hex_hmac(SECRET, body));
    let request = open.request("POST", &format!("{path}?connection_id=c1"));
    let request = request.header("x-notion-signature", &signature).header("content-type", "application/json");
    request.bytes(body).send().await.expect(200);
    let forwarded = eventually("the webhook is forwarded", async || {
        let forwarded = receiver.webhooks().into_iter().map(|forwarded| forwarded.body());
        forwarded.into_iter().find(|forwarded| forwarded["type"] == "forward")
    })
    .await;
    assert_eq!(forwarded["payload"]["id"], "e1");
    assert!(receiver.webhooks().iter().all(|forwarded| !forwarded.text.contains("verification_token")));
    let jobs = db.number("SELECT count(*) FROM function_jobs WHERE kind = 'webhook'").await;
    assert_eq!(jobs, 1, "only the signed webhook is processed");
    let stored = db.texts("SELECT DISTINCT state FROM inbound_webhooks WHERE delivery_id IS NULL").await;
    assert_eq!(stored, ["handshake"]);
}

#[tokio::test]
async fn a_connection_can_have_its_own_webhook_secret() {
    let db = TestDatabase::create().await;
    let host = options_for(&db).spawn().await;
    let path = integration(&host, "clickup", app(), None).await;
    for (id, secret) in [("c1", "planted-one"), ("c2", "planted-two")] {
        let body = json!({
            "provider_config_key": "clickup", "connection_id": id, "metadata": { "webhook_secret": secret },
            "credentials": { "type": "OAUTH2", "access_token": "planted-token" },
        });
        host.post("/connections", &body).await.expect(201);
    }
    let body = r#"{"event":"taskCreated","webhook_id":"w1"}"#;
    let send = async |query: &str, secret: &str| {
        let request = host.with_key(None).request("POST", &format!("{path}{query}"));
        request.header("x-signature", &hex_hmac(secret, body)).bytes(body).send().await
    };
    send("?connection_id=c1", "planted-one").await.expect(200);
    send("?connection_id=c2", "planted-two").await.expect(200);
    let others = send("?connection_id=c1", "planted-two").await;
    assert_eq!(others.refusal(), (401, "invalid_webhook_signature".to_owned()));
    let unnamed = send("", "planted-one").await;
    assert_eq!(unnamed.refusal(), (503, "webhook_secret_missing".to_owned()));
    let of = "SELECT state || connections FROM inbound_webhooks";
    eventually("both webhooks are matched to their connection", async || {
        (db.texts(of).await == ["processed1", "processed1"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn secrets_in_webhook_requests_are_neither_stored_nor_forwarded() {
    let receiver = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let path = integration(&host, "gitlab-pat", Value::Null, Some(SECRET)).await;
    let request = host.with_key(None).request("POST", &path).header("x-gitlab-token", SECRET);
    let request = request.header("authorization", "Basic planted").header("x-gitlab-event", "Push Hook");
    request.header("cookie", "a=planted").json(&json!({ "object_kind": "push" })).send().await.expect(200);
    let forwarded = receiver.wait_for(1).await.remove(0);
    assert_eq!(forwarded.header("x-gitlab-event"), "Push Hook");
    assert!(!format!("{:?}", forwarded.headers).contains("planted"), "{:?}", forwarded.headers);
    for (provider, body) in [
        ("figma", json!({ "event_type": "FILE_UPDATE", "passcode": SECRET, "retries": 1.00 })),
        (
            "microsoft",
            json!({ "value": [{ "clientState": SECRET, "id": 1 }, { "clientState": SECRET, "id": 2 }] }),
        ),
    ] {
        let path = integration(&host, provider, app(), Some(SECRET)).await;
        let taken = host.with_key(None).request("POST", &path).json(&body).send().await.expect(200);
        let id = taken.header("x-syncline-webhook-id").expect("the response has a webhook id");
        let emptied: Value = serde_json::from_str(&body.to_string().replace(SECRET, "")).expect("it is JSON");
        let shown = host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
        assert_eq!(shown["body"], emptied);
        eventually("the webhook is forwarded", async || {
            receiver.webhooks().into_iter().find(|forwarded| forwarded.body() == emptied)
        })
        .await;
    }
    assert!(receiver.webhooks().iter().all(|forwarded| !forwarded.text.contains("planted")));
    let stored = "SELECT headers::text || query || convert_from(body, 'UTF8') FROM inbound_webhooks";
    let stored = db.texts(stored).await;
    assert_eq!(stored.len(), 3);
    assert!(stored.iter().all(|stored| !stored.contains("planted")), "{stored:?}");
}

#[tokio::test]
async fn a_handshake_token_cannot_sign_webhooks() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let try_out = async |path: &str, token: &str| {
        let query = format!("hub.mode=subscribe&hub.verify_token={token}&hub.challenge=42");
        host.with_key(None).request("GET", &format!("{path}?{query}")).send().await
    };
    for (provider, answer) in [("facebook", "42"), ("strava", r#"{"hub.challenge":"42"}"#)] {
        let path = integration(&host, provider, app(), None).await;
        assert_eq!(try_out(&path, "mine").await.refusal(), (503, "webhook_secret_missing".to_owned()));
        set_secret(&host, provider, SECRET).await;
        assert_eq!(try_out(&path, SECRET).await.expect(200).text(), answer);
        assert_eq!(try_out(&path, "mine").await.refusal(), (401, "invalid_webhook_signature".to_owned()));
    }
    let facebook = webhook_path(&host, "facebook").await;
    let body = r#"{"object":"page","entry":[{"id":"p1","changes":[{"field":"feed"}]}]}"#;
    let send = async |secret: &str| {
        let signature = format!("sha256={}", hex_hmac(secret, body));
        let request = host.with_key(None).request("POST", &facebook);
        request.header("x-hub-signature-256", &signature).bytes(body).send().await
    };
    send("planted-client-secret").await.expect(200);
    assert_eq!(send(SECRET).await.refusal(), (401, "invalid_webhook_signature".to_owned()));
    let strava = webhook_path(&host, "strava").await;
    host.with_key(None).post(&strava, &json!({ "object_type": "athlete", "owner_id": 1 })).await.expect(200);
}

#[tokio::test]
async fn an_invalid_secret_does_not_prevent_verification_with_another() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "resend", Value::Null, Some("whsec_no key")).await;
    let key = STANDARD.decode(STANDARD_SECRET.trim_start_matches("whsec_")).expect("it is base64");
    let send = async |id: &str| {
        let (body, now) = (r#"{"type":"email.sent"}"#, chrono::Utc::now().timestamp().to_string());
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length");
        mac.update(format!("{id}.{now}.{body}").as_bytes());
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let request = host.with_key(None).request("POST", &path).header("svix-id", id);
        let request = request.header("svix-timestamp", &now).header("svix-signature", &signature);
        request.bytes(body).send().await
    };
    assert_eq!(send("m1").await.refusal(), (503, "webhook_secret_missing".to_owned()));
    for (newer, older) in [("whsec_no key", STANDARD_SECRET), (STANDARD_SECRET, "whsec_no key")] {
        let custom = json!({ "custom": { "webhook_secret": newer, "former_webhook_secret": older } });
        host.patch("/integrations/resend", &custom).await.expect(200);
        eventually("the secrets have reached the host", async || {
            (send("m1").await.status == 200).then_some(())
        })
        .await;
    }
}

/// A body of 250 KB, whose HMAC takes the host at least a tenth of a millisecond.
fn long_body() -> String {
    "x".repeat(250_000)
}

#[tokio::test]
async fn a_webhook_with_twenty_thousand_signatures_is_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "stripe-api-key", Value::Null, Some(SECRET)).await;
    let (body, signatures) = (long_body(), "v1=00,".repeat(20_000));
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\nStripe-Signature: t=1,{signatures}\r\n\r\n{body}",
        host.address(),
        body.len(),
    );
    let refused = async {
        let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
        // The host may answer and disconnect before it has read everything.
        let _sent = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let (answer, neighbour) = tokio::join!(refused, host.get("/health"));
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    neighbour.expect(200);
}

#[tokio::test]
async fn the_cost_of_a_forged_webhook_does_not_grow_with_its_signatures() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "stripe-api-key", Value::Null, Some(SECRET)).await;
    let at = chrono::Utc::now().timestamp();
    let cpu_time = async |signatures: usize| {
        let header = format!("t={at}{}", format!(",v1={}", "0".repeat(64)).repeat(signatures));
        let before = host.cpu_time();
        for _ in 0..40 {
            let request = host.with_key(None).request("POST", &path).header("stripe-signature", &header);
            let refused = request.bytes(long_body()).send().await;
            assert_eq!(refused.refusal(), (401, "invalid_webhook_signature".to_owned()));
        }
        host.cpu_time().saturating_sub(before)
    };
    let one = cpu_time(1).await;
    // As many signatures as fit into a request head. With one HMAC for each, the request would take seconds.
    let many = cpu_time(900).await;
    assert!(many < 3 * one + Duration::from_millis(500), "{many:?} for 900 signatures, {one:?} for one");
}
