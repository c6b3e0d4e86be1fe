//! Statements about actions that a client polls for.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, get, string};
use crate::support::{Request, SlowProvider, Stage};

#[tokio::test]
async fn async_actions() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle.limit("sleep", "wall = \"200ms\"")).await;
    let mut section = Section::new("Asynchronous actions");
    unfinished(&mut section, &stage, &provider).await;
    finished(&mut section, &stage).await;
    rejected(&mut section, &stage).await;
    section.finish();
}

fn trigger(stage: &Stage, action: &str, input: &Value) -> Request {
    let request = stage.request("POST", "/action/trigger").header("X-Async", "true");
    request.json(&json!({ "action_name": action, "input": input }))
}

async fn unfinished(section: &mut Section, stage: &Stage, provider: &SlowProvider) {
    let request = trigger(stage, "fetch", &json!({ "url": "/slow" }));
    let accepted = section.returns("`POST /action/trigger` with `X-Async: true`", request, 202).await;
    let members = [("id", Kind::Uuid), ("statusUrl", Kind::Text)];
    section.only_members("The body", &body(&accepted), &members);
    let path = format!("/action/{}", string(&body(&accepted)["id"]));
    section.equal("`statusUrl` is `/action/` and the id", &body(&accepted)["statusUrl"], path.as_str());
    let location = json!(accepted.header("location"));
    section.equal("The header `Location` is the same path", &location, path.as_str());
    let pending = provider.next_request().await;
    let request = get(&stage.host, &path);
    let waiting =
        section.rejects("`GET /action/{id}` of a running job", request, 404, "action_not_finished").await;
    let state = json!({ "state": "running" });
    section.equal("`payload` contains the state", &body(&waiting)["error"]["payload"], state);
    let seconds: Option<u64> = waiting.header("retry-after").and_then(|text| text.parse().ok());
    section.holds("The response has `Retry-After` in seconds", seconds.is_some(), &seconds);
    pending.answer("done").await;
    let result = stage.result(&path).await;
    section.equal("A finished job returns 200", &json!(result.status.as_u16()), 200);
    section.equal("A finished job returns the output", &body(&result)["body"], "done");
    section.header("The response of a finished job", &result, "content-type", "application/json");
    let again = get(&stage.host, &path).send().await;
    section.equal("The result can be read several times", &body(&again), body(&result));
}

async fn finished(section: &mut Section, stage: &Stage) {
    let nothing = stage.trigger_async("print", &json!("x")).await;
    let nothing = stage.result(&nothing).await;
    section.equal("A job that returns nothing returns 200", &json!(nothing.status.as_u16()), 200);
    section.empty("The response of a job that returns nothing", &nothing);
    let details = json!({ "status": 503, "headers": {}, "body": "down" });
    let provider = json!({ "code": "provider-http-error", "message": "GET /x: 503", "details": details });
    for (name, action, input, status) in [
        ("A job that fails", "fail", json!({ "code": "no", "message": "not today" }), 400),
        (
            "A job that fails with details",
            "fail",
            json!({ "code": "no", "message": "x", "details": [1] }),
            400,
        ),
        ("A job that crashes", "panic", json!("oh no"), 400),
        ("A job beyond its maximum time", "sleep", json!(60_000), 408),
        ("A job that does not handle a provider's error", "fail", provider, 424),
        ("A job whose output is not JSON", "bad-json-output", Value::Null, 400),
    ] {
        let result = stage.trigger_async(action, &input).await;
        let result = stage.result(&result).await;
        section.equal(&format!("{name} returns {status}"), &json!(result.status.as_u16()), status);
        let synchronous = stage.action(action, &input).await;
        let statement = format!("{name} returns the body of the synchronous request");
        section.equal(&statement, &body(&result), body(&synchronous));
    }
    let keyed = || trigger(stage, "print", &json!("x")).header("Idempotency-Key", "key-1");
    let first = keyed().send().await;
    let again = section.returns("A request with the same `Idempotency-Key`", keyed(), 202).await;
    section.equal("It returns the first job", &body(&again), body(&first));
    let synchronous = stage.request("POST", "/action/trigger").header("Idempotency-Key", "key-1");
    let synchronous = synchronous.json(&json!({ "action_name": "print", "input": "x" }));
    let name = "The same key without `X-Async`";
    section.rejects(name, synchronous, 409, "idempotency_key_reused").await;
}

async fn rejected(section: &mut Section, stage: &Stage) {
    let unknown = trigger(stage, "dance", &Value::Null);
    section.rejects("An unknown action", unknown, 404, "unknown_action").await;
    let input = trigger(stage, "sleep", &json!("soon"));
    section.rejects("An invalid input", input, 400, "invalid_action_input").await;
    let unknown = stage.with_id("unknown");
    let unknown = unknown.request("POST", "/action/trigger").header("X-Async", "true");
    let unknown = unknown.json(&json!({ "action_name": "print", "input": "x" }));
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = get(&stage.host, "/action/0198c0de-0000-7000-8000-000000000000");
    section.rejects("`GET` of an unknown job", unknown, 404, "unknown_job").await;
    let malformed = get(&stage.host, "/action/no-uuid");
    section
        .rejects_at("`GET` of an id that is not a UUID", malformed, (400, "invalid_uri_params"), "id")
        .await;
    stage.host.command(&stage.db, &["env", "create", "other"]);
    let key = stage.host.command(&stage.db, &["keys", "create", "backend", "--environment", "other"]);
    let path = stage.trigger_async("print", &json!("x")).await;
    stage.result(&path).await.expect(200);
    let elsewhere = get(&stage.host.with_key(Some(key.trim())), &path);
    section.rejects("`GET` of a job of another environment", elsewhere, 404, "unknown_job").await;
}
