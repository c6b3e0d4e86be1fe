//! `/openapi.json`: the document is valid and lists exactly the existing routes.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Host, Stage, TestDatabase, repository};

/// Method and path of every operation of this version.
const ROUTES: &[&str] = &[
    "DELETE /connect/session",
    "DELETE /connections/metadata",
    "DELETE /connections/{connection_id}",
    "DELETE /dead-letters/{id}",
    "DELETE /environment-variables/{name}",
    "DELETE /environment/api-keys",
    "DELETE /environments/{id}",
    "DELETE /integrations/quickstart",
    "DELETE /integrations/{unique_key}",
    "DELETE /integrations/{unique_key}/functions/{name}",
    "DELETE /proxy/{path}",
    "DELETE /sync/{name}/variant/{variant}",
    "GET /action/{id}",
    "GET /app-auth/connect",
    "GET /audit-log",
    "GET /audit-log/export",
    "GET /connect/authorizations/{id}",
    "GET /connect/session",
    "GET /connections",
    "GET /connections/metadata",
    "GET /connections/{connection_id}",
    "GET /dead-letters",
    "GET /deployments",
    "GET /environment",
    "GET /environment-variables",
    "GET /health",
    "GET /integrations",
    "GET /integrations/quickstart",
    "GET /integrations/{unique_key}",
    "GET /integrations/{unique_key}/functions",
    "GET /integrations/{unique_key}/functions/{name}",
    "GET /integrations/{unique_key}/functions/{name}/code",
    "GET /oauth/callback",
    "GET /oauth/connect/{unique_key}",
    "GET /providers",
    "GET /providers/{provider}",
    "GET /providers/{provider}/templates",
    "GET /proxy/{path}",
    "GET /ready",
    "GET /records",
    "GET /records/changes",
    "GET /runs",
    "GET /runs/{id}",
    "GET /runs/{id}/logs",
    "GET /runs/{id}/recording",
    "GET /scripts/config",
    "GET /sync/status",
    "GET /webhook/{environment_uuid}/{unique_key}",
    "GET /webhooks/deliveries",
    "GET /webhooks/deliveries/{id}",
    "GET /webhooks/received",
    "GET /webhooks/received/{id}",
    "PATCH /connections/metadata",
    "PATCH /connections/{connection_id}",
    "PATCH /environment",
    "PATCH /integrations/quickstart",
    "PATCH /integrations/{unique_key}",
    "PATCH /proxy/{path}",
    "PATCH /records/prune",
    "POST /action/trigger",
    "POST /api-auth/api-key/{key}",
    "POST /api-auth/basic/{key}",
    "POST /auth/bill/{key}",
    "POST /auth/jwt/{key}",
    "POST /auth/signature/{key}",
    "POST /auth/tba/{key}",
    "POST /auth/two-step/{key}",
    "POST /auth/unauthenticated/{key}",
    "POST /connect/sessions",
    "POST /connect/sessions/reconnect",
    "POST /connect/telemetry",
    "POST /connections",
    "POST /connections/metadata",
    "POST /dead-letters/{id}/replay",
    "POST /deployments",
    "POST /deployments/rollback",
    "POST /environment/api-keys",
    "POST /environment/webhook-signing-key/rotate",
    "POST /environments",
    "POST /integrations",
    "POST /integrations/quickstart",
    "POST /mcp",
    "POST /oauth2/auth/{key}",
    "POST /proxy/{path}",
    "POST /runs/{id}/approve",
    "POST /sync/pause",
    "POST /sync/start",
    "POST /sync/trigger",
    "POST /sync/{name}/variant/{variant}",
    "POST /webhook/{environment_uuid}/{unique_key}",
    "POST /webhooks/deliveries/redeliver",
    "POST /webhooks/deliveries/{id}/redeliver",
    "POST /webhooks/received/replay",
    "POST /webhooks/received/{id}/replay",
    "PUT /environment-variables/{name}",
    "PUT /proxy/{path}",
    "PUT /sync/recording",
    "PUT /sync/update-connection-frequency",
];

fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().expect("`paths` is an object");
    let operation = |(path, item): (&String, &Value)| {
        let methods = item.as_object().expect("a path's item is an object").keys().cloned();
        methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    let named = paths.iter().flat_map(operation);
    named.map(|(method, path)| (method.clone(), path.clone(), &paths[&path][method.to_lowercase()])).collect()
}

#[tokio::test]
async fn the_document_is_valid() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let document = host.with_key(None).get("/openapi.json").await.expect(200);
    assert_eq!(document.header("content-type"), Some("application/json"));
    assert!(document.json()["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")));
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), &document.body).unwrap();
    let output = Command::new(repository(".tools/venv/bin/openapi-spec-validator"))
        .arg(file.path())
        .output()
        .expect("openapi-spec-validator is not installed; `scripts/setup` installs it");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
}

#[tokio::test]
async fn the_document_lists_every_route_with_its_error_responses() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let document = host.get("/openapi.json").await.expect(200).json();
    let operations = operations(&document);
    let listed: BTreeSet<String> =
        operations.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let expected: BTreeSet<String> = ROUTES.iter().map(|route| (*route).to_owned()).collect();
    assert_eq!(listed, expected);
    let mut ids = BTreeSet::new();
    for (method, path, operation) in &operations {
        let id = operation["operationId"].as_str().unwrap_or_default();
        assert!(!id.is_empty() && ids.insert(id), "{method} {path} needs a unique id, not `{id}`");
        assert!(operation["summary"].is_string(), "{method} {path} has a summary");
        let is_open = operation["security"] == json!([]) || operation["security"] == json!([{}]);
        let fails = operation["responses"].as_object().is_some_and(|codes| codes.contains_key("401"));
        assert!(is_open || fails, "{method} {path} has an error response: {operation}");
    }
}

#[tokio::test]
async fn scopes_are_checked_before_the_rest_of_a_request() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let key = host.command(&db, &["keys", "create", "narrow", "--scopes", "environment:functions:list"]);
    let narrow = host.with_key(Some(key.trim()));
    let document = host.get("/openapi.json").await.expect(200).json();
    let mut asked = 0;
    for (method, path, operation) in operations(&document) {
        // By default, a route requires a secret key.
        if operation["security"].is_null() {
            let answer = narrow.request(&method, &path.replace(['{', '}'], "")).bytes("{").send().await;
            assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{method} {path}");
            asked += 1;
        }
    }
    assert!(asked > 50, "{asked} routes");
}

#[tokio::test]
async fn requests_are_authenticated_before_their_body_is_read() {
    // The bodies of these routes identify the sender. They have small limits of size and time.
    const EXCEPTIONS: [&str; 2] =
        ["POST /connect/telemetry", "POST /webhook/{environment_uuid}/{unique_key}"];
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let document = host.get("/openapi.json").await.expect(200).json();
    let mut asked = 0;
    for (method, path, _) in operations(&document) {
        let route = format!("{method} {path}");
        if method == "GET" || EXCEPTIONS.contains(&&*route) {
            continue;
        }
        let path = path.replace(['{', '}'], "");
        let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("the host reads");
        let mut answer = [0; 1_024];
        // The body never arrives, so a route that waits for it does not answer in time.
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut answer)).await;
        let read =
            read.unwrap_or_else(|_| panic!("{route} waits for the body before it authenticates the request"));
        let answer = String::from_utf8_lossy(&answer[..read.expect("the host answers")]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{route}: {answer}");
        asked += 1;
    }
    assert!(asked > 40, "{asked} routes");
}

#[tokio::test]
async fn every_listed_route_exists() {
    let stage = Stage::hostile().await;
    let document = stage.host.get("/openapi.json").await.expect(200).json();
    for (method, path, _) in operations(&document) {
        let filled = path.replace(['{', '}'], "");
        let answer = stage.host.request(&method, &filled).send().await;
        assert!(![405, 500].contains(&answer.status.as_u16()), "{method} {path}: {}", answer.text());
        let is_unknown = answer.status == 404 && answer.refusal().1 == "not_found";
        assert!(!is_unknown, "{method} {path}: {}", answer.text());
    }
}
