//! Statements about actions that a client waits for.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, post, with, without};
use crate::support::{Bundle, Request, SlowProvider, Stage};

const BODY: (u16, &str) = (400, "invalid_body");
const HEADERS: (u16, &str) = (400, "invalid_headers");

#[tokio::test]
async fn actions() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| {
        bundle
            .limit("sleep", "wall = \"200ms\"")
            .limit("spin", "cpu = \"100ms\"")
            .limit("big-output", "output = \"1KB\"")
    })
    .await;
    stage.host.deploy(&Bundle::example("minimal")).await;
    stage.host.connect("minimal", json!({ "count": 0 })).await;
    let mut section = Section::new("Actions");
    results(&mut section, &stage).await;
    failures(&mut section, &stage).await;
    invalid(&mut section, &stage).await;
    idempotency(&mut section, &stage).await;
    section.finish();
}

fn trigger(stage: &Stage, action: &str, input: impl Into<Value>) -> Request {
    stage.request("POST", "/action/trigger").json(&json!({ "action_name": action, "input": input.into() }))
}

async fn results(section: &mut Section, stage: &Stage) {
    let minimal = stage.to("minimal");
    let echo = |input: &str| {
        let request = minimal.request("POST", "/action/trigger").header("Content-Type", "application/json");
        request.bytes(format!(r#"{{"action_name":"echo","input":{input}}}"#))
    };
    let answer = section.returns("`POST /action/trigger`", echo(r#"{"a":1}"#), 200).await;
    section.header("The response", &answer, "content-type", "application/json");
    for output in
        ["{\"b\": 1.50, \"a\": [12345678901234567890123]}", "\"text\"", "0", "true", "[]", "null", "{}"]
    {
        let answer = echo(output).send().await;
        let statement = format!("An output of `{output}` is returned as the function returned it");
        section.holds(&statement, answer.text() == output, &answer.text());
    }
    let nothing = trigger(stage, "print", "x");
    let nothing = section.returns("An action that returns nothing", nothing, 200).await;
    section.empty("The response of an action that returns nothing", &nothing);
    let absent = stage.request("POST", "/action/trigger").json(&json!({ "action_name": "tell-env" }));
    section.rejects("An action without `input` runs", absent, 400, "action_script_runtime_error").await;
    stage.host.put("/environment-variables/REGION", &json!({ "value": "eu" })).await.expect(204);
    let seen = body(&trigger(stage, "read-env", Value::Null).send().await);
    section.equal("A function can read the environment's variables", &seen["variables"]["REGION"], "eu");
    let waits = trigger(stage, "print", "x").header("X-Async", "false");
    section.returns("`X-Async: false`", waits, 200).await;
}

async fn failures(section: &mut Section, stage: &Stage) {
    let fail = json!({ "code": "no", "message": "not today", "details": { "why": [1, 2] } });
    let answer = trigger(stage, "fail", fail);
    let answer = section.rejects("An action that fails", answer, 400, "action_script_runtime_error").await;
    let error = body(&answer)["error"].clone();
    section.equal("`message` is the function's message", &error["message"], "not today");
    section.equal("`payload` contains the function's details", &error["payload"], json!({ "why": [1, 2] }));
    let plain = trigger(stage, "fail", json!({ "code": "no", "message": "not today" })).send().await;
    section.equal(
        "`payload` of a failure without details has the code",
        &body(&plain)["error"]["payload"]["code"],
        "no",
    );
    let answer = trigger(stage, "panic", "oh no");
    section.rejects("An action that crashes", answer, 400, "script_internal_error").await;
    let answer = trigger(stage, "sleep", 60_000);
    let answer = section.rejects("An action beyond its maximum time", answer, 408, "execution_timeout").await;
    section.equal(
        "`payload` names the limit `wall`",
        &body(&answer)["error"]["payload"],
        json!({ "limit": "wall" }),
    );
    for (action, input, limit) in [
        ("spin", Value::Null, "cpu"),
        ("allocate", Value::Null, "memory"),
        ("big-output", json!(4_096), "output"),
    ] {
        let name = format!("An action beyond its limit `{limit}`");
        let answer = section.rejects(&name, trigger(stage, action, input), 400, "limit_exceeded").await;
        let statement = format!("`payload` names the limit `{limit}`");
        section.equal(&statement, &body(&answer)["error"]["payload"]["limit"], limit);
    }
    let details = json!({
        "status": 503, "headers": { "x-rate-left": "0", "content-type": "application/json", "server": "shop" },
        "body": "{\"payload\":[1]}",
    });
    let input = json!({ "code": "provider-http-error", "message": "GET /x: 503", "details": details });
    let answer = trigger(stage, "fail", input);
    let answer =
        section.rejects("An unhandled error of the provider", answer, 424, "script_http_error").await;
    let upstream = body(&answer)["error"]["upstream"].clone();
    section.only_members(
        "`upstream`",
        &upstream,
        &[("status", Kind::Integer), ("headers", Kind::Object), ("body", Kind::Object)],
    );
    section.equal("`upstream.status` is the provider's status", &upstream["status"], 503);
    let headers = json!({ "x-rate-left": "0", "content-type": "application/json" });
    section.equal("`upstream.headers` has `content-type` and `x-rate…` only", &upstream["headers"], headers);
    section.equal("`upstream.body` is the provider's body", &upstream["body"], json!({ "payload": [1] }));
    section.equal(
        "`payload` is the member `payload` of the provider's body",
        &body(&answer)["error"]["payload"],
        json!([1]),
    );
    let answer = trigger(stage, "bad-json-output", Value::Null);
    section.rejects("An output that is not JSON", answer, 400, "invalid_action_output").await;
    for (action, input, place) in [
        ("sleep", json!("soon"), ""),
        ("fail", json!({ "code": "x" }), "message"),
        ("fail", json!({ "code": 1, "message": "x" }), "code"),
    ] {
        let name = format!("The input `{input}` of `{action}`");
        section.rejects_at(&name, trigger(stage, action, input), (400, "invalid_action_input"), place).await;
    }
}

async fn invalid(section: &mut Section, stage: &Stage) {
    section.rejects("An unknown action", trigger(stage, "dance", Value::Null), 404, "unknown_action").await;
    section
        .rejects("A sync in place of an action", trigger(stage, "steps", Value::Null), 404, "unknown_action")
        .await;
    let good = json!({ "action_name": "print", "input": "x" });
    let at = |connection: &str, integration: &str| {
        let request = post(&stage.host, "/action/trigger", &good).header("Connection-Id", connection);
        request.header("Provider-Config-Key", integration)
    };
    section.rejects("An unknown connection", at("unknown", "hostile"), 404, "unknown_connection").await;
    section.rejects("An unknown integration", at("customer-1", "unknown"), 404, "unknown_integration").await;
    let other = at("customer-1", "minimal");
    section.rejects("An action of another integration", other, 404, "unknown_action").await;
    let send = |body: &Value| stage.request("POST", "/action/trigger").json(body);
    for (name, body, place) in [
        ("A request without `action_name`", without(&good, "action_name"), "action_name"),
        ("A malformed `action_name`", with(&good, "action_name", "no name"), "action_name"),
        ("An `action_name` of 256 characters", with(&good, "action_name", "x".repeat(256)), "action_name"),
        ("An unknown member", with(&good, "inputs", 1), "inputs"),
    ] {
        section.rejects_at(name, send(&body), BODY, place).await;
    }
    let bare = || post(&stage.host, "/action/trigger", &good);
    section.rejects_at("A request without both headers", bare(), HEADERS, "connection-id").await;
    let lacking = bare().header("Connection-Id", "customer-1");
    section
        .rejects_at("A request without `Provider-Config-Key`", lacking, HEADERS, "provider-config-key")
        .await;
    let lacking = bare().header("Provider-Config-Key", "hostile");
    section.rejects_at("A request without `Connection-Id`", lacking, HEADERS, "connection-id").await;
    let query = stage.request("POST", "/action/trigger?async=true").json(&good);
    section.rejects("A query parameter", query, 400, "invalid_query_params").await;
    let long = "k".repeat(256);
    for (name, value) in [
        ("x-async", "perhaps"),
        ("x-max-retries", "6"),
        ("x-max-retries", "-1"),
        ("x-max-retries", "many"),
        ("idempotency-key", ""),
        ("idempotency-key", &long),
    ] {
        let request = send(&good).header(name, value);
        section.rejects_at(&format!("The header `{name}: {value:.8}`"), request, HEADERS, name).await;
    }
    for retries in ["0", "5"] {
        let request = send(&good).header("X-Max-Retries", retries);
        section.returns(&format!("The header `X-Max-Retries: {retries}`"), request, 200).await;
    }
}

async fn idempotency(section: &mut Section, stage: &Stage) {
    let item = json!({ "model": "Item", "items": r#"[{"id":"1"}]"# });
    let keyed = |action: &str, input: Value| trigger(stage, action, input).header("Idempotency-Key", "key-1");
    let first =
        section.returns("A request with an `Idempotency-Key`", keyed("save-raw", item.clone()), 200).await;
    let again = section.returns("The same request again", keyed("save-raw", item.clone()), 200).await;
    section.equal(
        "It returns the first result, and the action does not run again",
        &body(&again),
        body(&first),
    );
    section.header("A repeated response", &again, "idempotent-replayed", "true");
    let other = with(&item, "items", r#"[{"id":"2"}]"#);
    section
        .rejects("The same key with another input", keyed("save-raw", other), 409, "idempotency_key_reused")
        .await;
    let fail = json!({ "code": "no", "message": "not today" });
    let first = section
        .rejects(
            "The same key of another action",
            keyed("fail", fail.clone()),
            400,
            "action_script_runtime_error",
        )
        .await;
    let again = keyed("fail", fail).send().await;
    section.equal("A failure is repeated, too", &body(&again), body(&first));
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let request = other.request("POST", "/action/trigger").header("Idempotency-Key", "key-1");
    let request = request.json(&json!({ "action_name": "save-raw", "input": item }));
    let answer = section.returns("The same key of another connection", request, 200).await;
    section.equal("It runs the action", &body(&answer)["added"], 1);
}
