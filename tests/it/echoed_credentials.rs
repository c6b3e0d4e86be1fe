//! Providers that return the request in their response, including credentials. No error and no log reveals them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::{Bundle, Connection, Echo, REFRESHED_TOKEN, eventually, open_session, query};

const BASIC: &str = r#"
auth_mode = "BASIC"
credentials.username = { title = "User", description = "Yours." }
credentials.password = { title = "Password", description = "Yours.", secret = true }
proxy = { base_url = "{server}" }
"#;
const TWO_STEP: &str = r#"
auth_mode = "TWO_STEP"
token_url = "{server}/token-refusal"
token_request = { format = "json", body = { pin = "${credentials.pin}" } }
credentials.pin = { title = "Pin", description = "Yours.", secret = true }
proxy = { base_url = "{server}" }
"#;

/// Makes every kind of function fail with the provider's response, and checks every place that reports it.
async fn assert_never_revealed(entry: &str, credentials: Value, secrets: &[&str]) {
    let echo = Echo::start(entry, Bundle::guest("hostile")).await;
    let connection = echo.connect(credentials).await;
    let sent = connection.action("fetch", &json!({ "url": "/echo" })).await.expect(200).json();
    let sent = sent["body"].as_str().expect("the provider's answer").to_owned();
    let repeated: Value = serde_json::from_str(&sent).expect("it is JSON");
    let repeated = repeated["headers"].to_string().replace(r#"\""#, r#"""#);
    let is_sent = |secret: &&str| repeated.contains(*secret);
    assert!(secrets.iter().any(is_sent), "the provider received the secret: {repeated}");

    let mut outputs = Vec::new();
    for (urls, status) in [(json!(["/refuse?403"]), 424), (json!(["/echo"]), 400)] {
        let waited_for = connection.action("tell-answers", &urls).await.expect(status);
        let keyed = [("Idempotency-Key", if status == 424 { "refused" } else { "repeated" })];
        let first = connection.action_with(&keyed, "tell-answers", &urls).await.expect(status);
        let again = connection.action_with(&keyed, "tell-answers", &urls).await.expect(status);
        let later = connection.trigger_async("tell-answers", &urls).await;
        let later = connection.result(&later).await.expect(status);
        outputs.extend([waited_for, first, again, later].map(|answer| ("an action's answer", answer.text())));
    }
    outputs.push(("a tool's answer", call_tool(&connection, &json!(["/refuse?403"])).await));

    connection.set_metadata(json!({ "steps": 0, "fetches": ["/refuse?403"] })).await;
    assert_eq!(connection.run("commit-raw").await["status"], "ERROR");
    eventually("the backend receives the webhook", async || {
        let webhooks = echo.receiver.webhooks();
        let failed = webhooks
            .iter()
            .find(|webhook| webhook.body()["type"] == "sync" && webhook.body()["success"] == false);
        failed.map(|webhook| assert!(webhook.text.contains("script_http_error"), "{}", webhook.text))
    })
    .await;
    eventually("all runs are stored", async || {
        (echo.db.number("SELECT count(*) FROM runs WHERE state = 'error'").await == 8).then_some(())
    })
    .await;
    outputs.push(("the webhooks to the backend", echo.webhook_texts()));
    outputs.push(("the runs and their logs", echo.run_details().await));
    outputs.push(("the list of connections", echo.host.get("/connections").await.expect(200).text()));
    for secret in secrets {
        for (what, text) in &outputs {
            assert!(!text.contains(secret), "`{secret}` is in {what}: {text}");
        }
        assert_eq!(echo.db.tables_with(secret).await, [""; 0], "tables with `{secret}` in them");
    }
    let of_runs = &outputs[outputs.len() - 2].1;
    assert!(of_runs.contains("***"), "the secret is masked: {of_runs}");
}

async fn call_tool(connection: &Connection, input: &Value) -> String {
    let params = json!({ "name": "tell-answers", "arguments": { "input": input } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = connection.request("POST", "/mcp").header("Content-Type", "application/json");
    let answer = request.bytes(call.to_string()).send().await.expect(200).text();
    assert!(answer.contains("script_http_error"), "{answer}");
    answer
}

#[tokio::test]
async fn an_api_key_echoed_by_the_provider_is_masked() {
    const KEY: &str = "planted-api-key/7c+21==";
    assert_never_revealed(Echo::API_KEY, json!({ "type": "API_KEY", "apiKey": KEY }), &[KEY]).await;
}

#[tokio::test]
async fn a_password_echoed_by_the_provider_is_masked() {
    const PASSWORD: &str = "planted-\"password\"-5e90";
    let credentials = json!({ "type": "BASIC", "username": "ada", "password": PASSWORD });
    let encoded = STANDARD.encode(format!("ada:{PASSWORD}"));
    let encoded = encoded.trim_end_matches('=');
    assert_never_revealed(BASIC, credentials, &[PASSWORD, "planted-\\\"password\\\"-5e90", encoded]).await;
}

#[tokio::test]
async fn an_access_token_echoed_by_the_provider_is_masked() {
    const TOKEN: &str = "planted-access-token-61ab";
    assert_never_revealed(Echo::OAUTH2, json!({ "type": "OAUTH2", "access_token": TOKEN }), &[TOKEN]).await;
}

#[tokio::test]
async fn old_and_new_token_are_masked_after_a_refresh_during_a_run() {
    const BEFORE: &str = "planted-token-before-the-refresh-40d2";
    const REFRESH_TOKEN: &str = "planted-refresh-token-40d2";
    let echo = Echo::start(Echo::OAUTH2, Bundle::guest("hostile")).await;
    echo.set_app("planted-client-secret-40d2").await;
    let credentials = json!({ "type": "OAUTH2", "access_token": BEFORE, "refresh_token": REFRESH_TOKEN });
    let connection = echo.connect(credentials).await;
    // Credentials that were obtained a moment ago are not refreshed when a provider rejects them.
    echo.db.execute("UPDATE connections SET credentials_changed_at = now() - interval '1 hour'").await;
    let urls = json!(["/echo", "/flaky?401", "/refuse?403"]);
    let refused = connection.action("tell-answers", &urls).await.expect(424).text();
    let sent = json!(echo.server.seen.requests()).to_string();
    assert!(sent.contains(BEFORE) && sent.contains(REFRESHED_TOKEN), "both were sent: {sent}");
    eventually("the run is stored", async || {
        (echo.db.number("SELECT count(*) FROM runs WHERE state = 'error'").await == 1).then_some(())
    })
    .await;
    let of_runs = echo.run_details().await;
    for secret in [BEFORE, REFRESHED_TOKEN, REFRESH_TOKEN] {
        assert!(!refused.contains(secret) && !of_runs.contains(secret), "`{secret}`: {refused}\n{of_runs}");
        assert_eq!(echo.db.tables_with(secret).await, [""; 0], "tables with `{secret}` in them");
    }
}

#[tokio::test]
async fn a_refresh_token_echoed_by_the_provider_is_masked() {
    const SECRETS: [&str; 2] = ["planted-refresh-token-88f0", "planted-client-secret-88f0"];
    let entry = Echo::OAUTH2.replace("{server}/token", "{server}/token-refusal");
    let echo = Echo::start(&entry, Bundle::guest("hostile")).await;
    echo.set_app(SECRETS[1]).await;
    let credentials = json!({
        "type": "OAUTH2", "access_token": "planted-access-token-88f0", "refresh_token": SECRETS[0],
    });
    echo.connect(credentials).await;
    let path = "/connections/customer-1?provider_config_key=hostile&force_refresh=true";
    let refused = echo.host.get(path).await;
    assert_eq!(refused.refusal(), (400, "invalid_credentials".to_owned()));
    assert!(refused.message().contains("invalid_grant (you sent "), "{}", refused.message());
    let listed = echo.host.get("/connections").await.expect(200);
    assert!(listed.json()["connections"][0]["errors"][0]["type"] == "auth", "{}", listed.text());
    eventually("the backend receives the webhook", async || {
        echo.webhook_texts().contains("invalid_grant").then_some(())
    })
    .await;
    for secret in SECRETS {
        for output in [&refused.text(), &listed.text(), &echo.webhook_texts()] {
            assert!(!output.contains(secret), "`{secret}`: {output}");
        }
        assert_eq!(echo.db.tables_with(secret).await, [""; 0], "tables with `{secret}` in them");
    }
}

#[tokio::test]
async fn a_typed_credential_echoed_by_the_provider_is_masked() {
    const PIN: &str = "planted-pin-3d17";
    let echo = Echo::start(TWO_STEP, Bundle::guest("hostile")).await;
    let session = open_session(&echo.host, "/connect/sessions", json!({ "end_user": { "id": "u-7" } })).await;
    let path = format!("/auth/two-step/hostile?{}", query(&[("connect_session_token", &*session)]));
    let refused = echo.host.with_key(None).post(&path, &json!({ "type": "TWO_STEP", "pin": PIN })).await;
    assert_eq!(refused.refusal(), (400, "connection_test_failed".to_owned()));
    assert!(refused.message().contains("you sent {\"pin\":\"***\"}"), "{}", refused.message());
    eventually("the backend receives the webhook", async || {
        echo.webhook_texts().contains("connection_test_failed").then_some(())
    })
    .await;
    assert!(!echo.webhook_texts().contains(PIN), "{}", echo.webhook_texts());
    assert_eq!(echo.db.tables_with(PIN).await, [""; 0]);
}

#[tokio::test]
async fn credentials_echoed_during_a_validation_are_masked() {
    const KEY: &str = "planted-api-key-of-a-validation-02bc";
    let echo = Echo::start(Echo::API_KEY, Bundle::guest("lifecycle")).await;
    let body = json!({
        "connection_id": "customer-1", "provider_config_key": "lifecycle",
        "credentials": { "type": "API_KEY", "apiKey": KEY }, "metadata": { "asks": "/refuse?403" },
    });
    let refused = echo.host.post("/connections", &body).await.expect(400);
    eventually("the run is stored", async || {
        (echo.db.number("SELECT count(*) FROM runs WHERE state = 'error'").await == 1).then_some(())
    })
    .await;
    let of_runs = echo.run_details().await;
    assert!(of_runs.contains("script_http_error") && of_runs.contains("***"), "{of_runs}");
    for output in [refused.text(), of_runs, echo.webhook_texts()] {
        assert!(!output.contains(KEY), "{output}");
    }
    assert_eq!(echo.db.tables_with(KEY).await, [""; 0]);
}
