//! Every operation with the key or the session token of one environment and the ids of another, generated from the
//! OpenAPI document: new operations are covered without a change here.

use serde_json::{Value, json};

use crate::support::operations::Operation;
use crate::support::populated::{PLANTED, Populated};
use crate::support::{Api, HostOptions, Receiver, Request, TestDatabase, text};

/// All that an environment shows of itself, by operation.
async fn shown(objects: &Populated) -> Vec<(String, Value)> {
    let mut shown = Vec::new();
    for operation in Operation::reads() {
        let values = objects.values(&operation);
        let mut request = operation.request(&objects.api, &values);
        if operation.path == "/records/changes" {
            request = operation.request_with(&objects.api, &values, "model=Item&wait=0");
        }
        let answer = request.header("Accept", "application/json").send().await;
        let mut answer = serde_json::from_slice(&answer.body).unwrap_or_default();
        remove(&mut answer, "last_fetched_at");
        shown.push((operation.name(), answer));
    }
    shown
}

/// Removes a member, which changes with each request, at every level.
fn remove(value: &mut Value, name: &str) {
    match value {
        Value::Object(members) => {
            members.remove(name);
            members.values_mut().for_each(|member| remove(member, name));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove(item, name)),
        _ => {}
    }
}

/// Sends every operation that accepts a secret key with these ids and another key. Returns how many there were.
async fn cross(objects: &Populated, stranger: &Api) -> usize {
    let mut sent = 0;
    for operation in Operation::all().into_iter().filter(Operation::accepts_secret_key) {
        let values = objects.values(&operation);
        send(objects, &operation, operation.request(stranger, &values)).await;
        sent += 1;
    }
    sent
}

/// Sends every operation that accepts a session token with these ids and a session of another environment. Returns how
/// many there were.
async fn cross_with_sessions(objects: &Populated, stranger: &Api) -> usize {
    let mut sent = 0;
    for operation in Operation::all().into_iter().filter(Operation::accepts_session_token) {
        // Waits for an outcome. A test of `oauth` reads it with another session.
        if operation.path == "/connect/authorizations/{id}" {
            continue;
        }
        // One operation ends its session.
        let session = stranger.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201).json();
        let token = text(&session["data"]["token"]);
        let mut values = objects.values(&operation);
        values.insert("connect_session_token", token.to_owned());
        let request = operation.request(&stranger.with_key(Some(token)), &values);
        send(objects, &operation, request).await;
        sent += 1;
    }
    sent
}

/// Sends a request of another environment. Fails if the response shows one of these objects.
async fn send(objects: &Populated, operation: &Operation, request: Request) {
    let mut request = request.header("Accept", "application/json");
    if let Some(body) = objects.body(operation) {
        request = request.json(&body);
    }
    let answer = request.send().await;
    let name = operation.name();
    for secret in objects.secrets() {
        // An error may repeat an id of the request, but no content.
        let is_repeated = answer.status.as_u16() >= 400 && secret != PLANTED;
        assert!(
            is_repeated || !answer.text().contains(secret),
            "{name} returns `{secret}`: {}",
            answer.text()
        );
    }
    let names_object = operation.path.contains('{') && !operation.path.starts_with("/providers");
    let is_own = operation.path.starts_with("/environment-variables");
    if names_object && !is_own {
        assert!(answer.status.as_u16() >= 400, "{name} answers {}: {}", answer.status, answer.text());
    }
}

#[tokio::test]
async fn a_key_reaches_nothing_of_another_environment() {
    let db = TestDatabase::create().await;
    let receiver = Receiver::start().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address());
    let host = options.spawn().await;
    host.command(&db, &["env", "create", "other"]);
    let key = host.command(&db, &["keys", "create", "backend", "--environment", "other"]);
    let stranger = host.with_key(Some(key.trim()));
    let objects = Populated::create((*host).clone(), &receiver).await;

    let before = shown(&objects).await;
    let sent = cross(&objects, &stranger).await;
    assert!(sent > 60, "{sent} operations");
    let sent = cross_with_sessions(&objects, &stranger).await;
    assert!(sent > 10, "{sent} operations");
    objects.api.with_key(Some(&objects.session_token)).get("/connect/session").await.expect(200);
    let after = shown(&objects).await;
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after, "{} has changed", before.0);
    }
}
