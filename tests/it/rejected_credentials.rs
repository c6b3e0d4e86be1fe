//! Providers that reject a connection's credentials: the error of the run and of the connection, and its end.

use serde_json::{Value, json};

use crate::support::{Bundle, Connection, Echo, eventually, text};

const KEY: &str = "planted-api-key-55e1";

async fn with_api_key() -> (Echo, Connection) {
    let echo = Echo::start(Echo::API_KEY, Bundle::guest("hostile")).await;
    let connection = echo.connect(json!({ "type": "API_KEY", "apiKey": KEY })).await;
    (echo, connection)
}

/// Runs the sync `commit-raw`, which sends a request to this path of the provider.
async fn run_with_request(connection: &Connection, path: &str) -> Value {
    connection.merge_metadata(json!({ "fetches": [path] })).await;
    connection.run("commit-raw").await
}

/// The types of the connection's errors, with the id of the authentication error's run.
async fn errors(echo: &Echo) -> (Vec<String>, Option<String>) {
    let listed = echo.host.get("/connections").await.expect(200).json();
    let errors = listed["connections"][0]["errors"].as_array().expect("a list").clone();
    let mut types: Vec<_> = errors.iter().map(|error| text(&error["type"]).to_owned()).collect();
    types.sort();
    let of_auth = errors.iter().find(|error| error["type"] == "auth");
    (types, of_auth.map(|error| text(&error["log_id"]).to_owned()))
}

async fn wait_for_errors(echo: &Echo, expected: &[&str]) {
    let what = format!("the connection has the errors {expected:?}");
    eventually(&what, async || (errors(echo).await.0 == expected).then_some(())).await;
}

/// The code of the error of the run that the authentication error names.
async fn code_of_rejected_run(echo: &Echo) -> Value {
    eventually("the run is stored", async || {
        let id = errors(echo).await.1.expect("an authentication error");
        let run = echo.host.get(&format!("/runs/{id}")).await;
        (run.status == 200).then(|| run.json()["error"]["code"].clone())
    })
    .await
}

/// The webhooks about rejected credentials.
fn rejections(echo: &Echo) -> Vec<Value> {
    let bodies = echo.receiver.webhooks().into_iter().map(|webhook| webhook.body());
    bodies.filter(|body| body["type"] == "auth" && body["operation"] == "refresh").collect()
}

#[tokio::test]
async fn a_rejected_api_key_is_an_error_of_its_connection_until_it_works_again() {
    let (echo, connection) = with_api_key().await;
    assert_eq!(run_with_request(&connection, "/refuse?401").await["status"], "ERROR");
    wait_for_errors(&echo, &["auth", "sync"]).await;
    assert_eq!(code_of_rejected_run(&echo).await, "credentials_rejected");
    let body = eventually("the backend receives the webhook", async || rejections(&echo).pop()).await;
    assert_eq!((&body["success"], &body["authMode"]), (&json!(false), &json!("API_KEY")));
    let error = &body["error"];
    assert_eq!(error["type"], "credentials_rejected");
    let host = echo.server.address.ip().to_string();
    for part in [&*host, "answered sync `commit-raw` with 401", "the end user must reconnect"] {
        assert!(error["description"].as_str().unwrap().contains(part), "`{part}` in {error}");
    }

    let first = errors(&echo).await.1;
    assert_eq!(run_with_request(&connection, "/refuse?401").await["status"], "ERROR");
    eventually("the error names the later run", async || (errors(&echo).await.1 != first).then_some(()))
        .await;

    assert_eq!(run_with_request(&connection, "/echo").await["status"], "SUCCESS");
    wait_for_errors(&echo, &[]).await;
    assert_eq!(rejections(&echo).len(), 1, "one webhook for both failed runs");
}

#[tokio::test]
async fn an_action_keeps_its_answer_and_a_proxied_request_clears_the_error() {
    let (echo, connection) = with_api_key().await;
    let refused = connection.action("tell-answers", &json!(["/refuse?401"])).await;
    assert_eq!(refused.refusal(), (424, "script_http_error".to_owned()));
    assert_eq!(errors(&echo).await.0, ["auth"]);
    assert_eq!(code_of_rejected_run(&echo).await, "credentials_rejected");

    // A rejection after a request that works is the later state. One before it is not.
    connection.action("tell-answers", &json!(["/echo"])).await.expect(400);
    assert_eq!(errors(&echo).await.0, [""; 0]);
    connection.action("tell-answers", &json!(["/echo", "/refuse?401"])).await.expect(424);
    assert_eq!(errors(&echo).await.0, ["auth"]);
    connection.request("GET", "/proxy/echo").send().await.expect(200);
    assert_eq!(errors(&echo).await.0, [""; 0]);
    connection.action("reach", &json!(["/refuse?401"])).await.expect(200);
    assert_eq!(errors(&echo).await.0, [""; 0], "the function did not fail");
}

#[tokio::test]
async fn an_access_token_is_refreshed_before_its_rejection_counts() {
    let echo = Echo::start(Echo::OAUTH2, Bundle::guest("hostile")).await;
    echo.set_app("planted-client-secret-1c0f").await;
    let credentials = json!({ "type": "OAUTH2", "access_token": "planted-token-1c0f", "refresh_token": "r" });
    let connection = echo.connect(credentials).await;
    // Credentials that were obtained a moment ago are not refreshed when a provider rejects them.
    let age = "UPDATE connections SET credentials_changed_at = now() - interval '1 hour'";
    let version = async || echo.db.number("SELECT credentials_version FROM connections").await;
    echo.db.execute(age).await;
    let before = version().await;
    assert_eq!(run_with_request(&connection, "/flaky?401").await["status"], "SUCCESS");
    assert_eq!((version().await, errors(&echo).await.0.len()), (before + 1, 0));

    echo.db.execute(age).await;
    assert_eq!(run_with_request(&connection, "/refuse?401").await["status"], "ERROR");
    wait_for_errors(&echo, &["auth", "sync"]).await;
    assert_eq!(version().await, before + 2, "the token was refreshed first");
    assert_eq!(code_of_rejected_run(&echo).await, "credentials_rejected");

    // A reconnect clears the error at once. The error of the sync stays until its next success.
    connection.set_metadata(json!({ "fetches": ["/echo"] })).await;
    assert_eq!(errors(&echo).await.0, ["sync"]);
}

#[tokio::test]
async fn a_denied_request_keeps_the_error_of_its_sync() {
    let (echo, connection) = with_api_key().await;
    assert_eq!(run_with_request(&connection, "/refuse?403").await["status"], "ERROR");
    wait_for_errors(&echo, &["auth", "sync"]).await;
    assert_eq!(code_of_rejected_run(&echo).await, "script_http_error");
    let messages = "SELECT code || ': ' || message FROM connection_errors WHERE type = 'auth'";
    let messages = echo.db.texts(messages).await;
    assert!(messages[0].starts_with("provider_access_denied: "), "{messages:?}");
    assert!(messages[0].contains("answered sync `commit-raw` with 403"), "{messages:?}");

    // Other functions may be allowed what this one is not.
    connection.action("tell-answers", &json!(["/echo"])).await.expect(400);
    assert_eq!(errors(&echo).await.0, ["auth", "sync"]);
    connection.action("tell-answers", &json!(["/refuse?403"])).await.expect(424);
    assert_eq!(errors(&echo).await.0, ["auth", "sync"]);
    assert_eq!(run_with_request(&connection, "/echo").await["status"], "SUCCESS");
    assert_eq!(errors(&echo).await.0, [""; 0]);
    assert_eq!(rejections(&echo), [] as [Value; 0], "the credentials may work for everything else");
}

#[tokio::test]
async fn a_rejection_does_not_concern_the_credentials_of_a_reconnect() {
    let (echo, connection) = with_api_key().await;
    let mut reconnect = echo.db.connect().await;
    sqlx::raw_sql("BEGIN; UPDATE connections SET credentials_version = credentials_version + 1")
        .execute(&mut reconnect)
        .await
        .expect("the connection is locked");
    let refused = async { connection.action("tell-answers", &json!(["/refuse?401"])).await.expect(424) };
    let committed = async {
        eventually("the rejection waits for the reconnect", async || {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = \
                           (SELECT oid FROM pg_database WHERE datname = current_database()) \
                           OR NOT granted AND locktype = 'transactionid'";
            (echo.db.number(waiting).await > 0).then_some(())
        })
        .await;
        sqlx::raw_sql("COMMIT").execute(&mut reconnect).await.expect("the reconnect is committed");
    };
    tokio::join!(refused, committed);
    assert_eq!(errors(&echo).await.0, [""; 0]);
    assert_eq!(rejections(&echo), [] as [Value; 0]);
}
