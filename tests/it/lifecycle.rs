//! Lifecycle functions.

use std::pin::pin;

use serde_json::{Value, json};

use crate::support::{Answer, Bundle, Host, HostOptions, SlowProvider, TestDatabase, eventually, text};

const PATH: &str = "/connections/customer-1?provider_config_key=lifecycle";

async fn spawn(db: &TestDatabase, provider: &SlowProvider) -> Host {
    let options = HostOptions::new().database(db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
    options.variable("SYNCLINE_LEASE_SECONDS", "1").spawn().await
}

async fn stage() -> (TestDatabase, SlowProvider, Host) {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let host = spawn(&db, &provider).await;
    host.deploy(&Bundle::guest("lifecycle").at_address(&format!("http://{}", provider.address()))).await;
    db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/hook'").await;
    (db, provider, host)
}

async fn import(host: &Host, orders: Value) -> Answer {
    let body = json!({
        "provider_config_key": "lifecycle", "connection_id": "customer-1", "credentials": { "type": "NONE" },
        "metadata": orders,
    });
    host.post("/connections", &body).await
}

async fn get(host: &Host) -> Answer {
    host.get(PATH).await
}

async fn delete(host: &Host) -> Answer {
    host.request("DELETE", PATH).send().await
}

async fn send_for_connection(host: &Host, method: &str, path: &str) -> Answer {
    let request = host.request(method, path).header("Connection-Id", "customer-1");
    request.header("Provider-Config-Key", "lifecycle").send().await
}

async fn wait_until_created(host: &Host) {
    eventually("the post-creation function has run", async || {
        (get(host).await.json()["metadata"]["greeted"] == true).then_some(())
    })
    .await;
}

async fn deliveries(db: &TestDatabase) -> Vec<String> {
    let fields = "body::json->>'operation' || ' ' || (body::json->>'success')";
    db.texts(&format!("SELECT {fields} FROM outbound_webhook_deliveries WHERE type = 'auth' ORDER BY pk"))
        .await
}

#[tokio::test]
async fn a_connection_that_fails_validation_is_not_created() {
    let (db, _provider, host) = stage().await;
    let refused = import(&host, json!({ "refuse": "this account has no plan" })).await;
    assert_eq!(refused.refusal(), (400, "connection_validation_failed".to_owned()));
    assert_eq!(refused.message(), "this account has no plan");
    assert_eq!(get(&host).await.refusal(), (404, "unknown_connection".to_owned()));
    for table in ["connections", "schedules", "function_jobs"] {
        assert_eq!(db.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    assert!(deliveries(&db).await.is_empty());
    import(&host, json!({})).await.expect(201);
    assert_eq!(db.number("SELECT count(*) FROM schedules").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM connections WHERE validating_since IS NULL").await, 1);
    assert_eq!(deliveries(&db).await, ["creation true"]);
    wait_until_created(&host).await;
}

#[tokio::test]
async fn a_connection_that_fails_revalidation_stays_and_shows_the_error() {
    let (db, _provider, host) = stage().await;
    import(&host, json!({})).await.expect(201);
    let refused = import(&host, json!({ "refuse": "this account was closed" })).await;
    assert_eq!(refused.refusal(), (400, "connection_validation_failed".to_owned()));
    get(&host).await.expect(200);
    let errors = db.texts("SELECT type || ' ' || code || ' ' || message FROM connection_errors").await;
    assert_eq!(errors, ["auth connection_validation_failed this account was closed"]);
    import(&host, json!({})).await.expect(201);
    assert_eq!(db.number("SELECT count(*) FROM connection_errors").await, 0);
    assert_eq!(deliveries(&db).await, ["creation true", "override false", "override true"]);
}

#[tokio::test]
async fn a_validation_error_masks_environment_variables() {
    const VARIABLE: &str = "planted-variable-of-the-validation-03aa";
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.put("/environment-variables/PLAN", &json!({ "value": VARIABLE })).await.expect(204);
    let granted =
        Bundle::guest("lifecycle").replace("component = \".\"", "component = \".\"\nenv = [\"PLAN\"]");
    host.deploy(&granted).await;
    import(&host, json!({})).await.expect(201);
    let refused = import(&host, json!({ "refuse": format!("it is {VARIABLE}") })).await;
    assert_eq!(refused.message(), "it is ***");
    let long = import(&host, json!({ "refuse": "é".repeat(10_000) })).await;
    assert_eq!(long.message().len(), 10_000, "the message is truncated to the stored length");
    import(&host, json!({ "refuse": format!("it is {VARIABLE}") })).await.expect(400);
    assert_eq!(db.texts("SELECT message FROM connection_errors").await, ["it is ***"]);
}

#[tokio::test]
async fn a_connection_is_hidden_until_it_is_validated() {
    let (db, provider, host) = stage().await;
    let look = async |exists: bool| {
        for path in ["/connections", "/connections?connectionId=customer-1"] {
            let listed = host.get(path).await.expect(200).json();
            let count = listed["connections"].as_array().expect("a list").len();
            assert_eq!(count, usize::from(exists), "{listed}");
        }
        let viewed = "SELECT count(*) FROM syncline_views.connections";
        assert_eq!(db.number(viewed).await, i64::from(exists));
        let metadata = json!({
            "connection_id": "customer-1", "provider_config_key": "lifecycle", "metadata": { "seen": true },
        });
        for answer in [
            get(&host).await,
            host.patch(PATH, &json!({ "tags": { "seen": "yes" } })).await,
            host.patch("/connections/metadata", &metadata).await,
            send_for_connection(&host, "GET", "/records?model=Note").await,
        ] {
            assert_eq!(answer.status.is_success(), exists, "{}", answer.text());
            assert!(
                exists || answer.refusal() == (404, "unknown_connection".to_owned()),
                "{}",
                answer.text()
            );
        }
    };
    let (imported, ()) = tokio::join!(import(&host, json!({ "asks": "/validating" })), async {
        let pending = provider.next_request().await;
        look(false).await;
        for answer in [send_for_connection(&host, "GET", "/proxy/v1").await, delete(&host).await] {
            assert_eq!(answer.refusal(), (404, "unknown_connection".to_owned()));
        }
        pending.answer("ok").await;
    });
    imported.expect(201);
    look(true).await;
}

#[tokio::test]
async fn a_failed_validation_does_not_remove_a_newer_connection() {
    let (db, provider, host) = stage().await;
    let first = json!({ "asks": "/validating", "refuse": "not this one" });
    let (refused, ()) = tokio::join!(import(&host, first), async {
        let pending = provider.next_request().await;
        import(&host, json!({ "owner": "second" })).await.expect(201);
        pending.answer("ok").await;
    });
    assert_eq!(refused.refusal(), (400, "connection_validation_failed".to_owned()));
    assert_eq!(get(&host).await.expect(200).json()["metadata"]["owner"], "second");
    assert_eq!(db.number("SELECT count(*) FROM schedules").await, 1);
    assert_eq!(deliveries(&db).await, ["creation true"]);
}

#[tokio::test]
async fn the_later_of_two_concurrent_validations_wins() {
    let (db, provider, host) = stage().await;
    for refusal in [Some("not this one"), None] {
        let mut first = pin!(import(&host, json!({ "asks": "/first" })));
        let pending = tokio::select! {
            pending = provider.next_request() => pending,
            _answer = &mut first => panic!("the import returned before its validation"),
        };
        let mut second = pin!(import(&host, json!({ "asks": "/second", "refuse": refusal })));
        let other = tokio::select! {
            other = provider.next_request() => other,
            _answer = &mut second => panic!("the import returned before its validation"),
        };
        pending.answer("ok").await;
        assert_eq!(first.await.refusal(), (409, "connection_replaced".to_owned()));
        assert_eq!(get(&host).await.status, 404, "the connection is not validated yet");
        other.answer("ok").await;
        let second = second.await;
        let (imported, found) = if refusal.is_some() { (400, 404) } else { (201, 200) };
        assert_eq!(second.status, imported, "{}", second.text());
        assert_eq!(get(&host).await.status, found);
    }
    assert_eq!(deliveries(&db).await, ["creation true"]);
}

#[tokio::test]
async fn the_later_of_two_concurrent_reconnects_wins() {
    let (db, provider, host) = stage().await;
    import(&host, json!({})).await.expect(201);
    for (first, second, status, errors) in [
        (json!({ "asks": "/first", "refuse": "not this one" }), json!({ "owner": "second" }), 201, 0),
        (json!({ "asks": "/first" }), json!({ "owner": "second", "refuse": "nor this one" }), 400, 1),
    ] {
        let (overtaken, ()) = tokio::join!(import(&host, first), async {
            let pending = provider.next_request().await;
            let later = import(&host, second).await;
            assert_eq!(later.status, status, "{}", later.text());
            pending.answer("ok").await;
        });
        assert_eq!(overtaken.refusal(), (409, "connection_replaced".to_owned()));
        let found = get(&host).await.expect(200).json();
        assert_eq!(found["metadata"]["owner"], "second");
        assert_eq!(found["errors"].as_array().map(Vec::len), Some(errors), "{found}");
    }
    assert_eq!(deliveries(&db).await, ["creation true", "override true", "override false"]);
}

#[tokio::test]
async fn a_lost_hosts_revalidation_is_repeated() {
    let (db, provider, mut host) = stage().await;
    import(&host, json!({})).await.expect(201);
    wait_until_created(&host).await;
    for orders in [json!({ "asks": "/judging", "refuse": "not this one" }), json!({ "asks": "/judging" })] {
        tokio::select! {
            _pending = provider.next_request() => {}
            _answer = import(&host, orders) => panic!("the import returned before its validation"),
        }
        host.kill();
        // Skips the wait until the host counts as lost.
        db.execute("UPDATE hosts SET last_heartbeat_at = last_heartbeat_at - interval '5 minutes'").await;
        host = spawn(&db, &provider).await;
        let count_before = deliveries(&db).await.len();
        provider.next_request().await.answer("ok").await;
        eventually("the connection is revalidated", async || {
            (deliveries(&db).await.len() > count_before).then_some(())
        })
        .await;
    }
    assert_eq!(deliveries(&db).await, ["creation true", "override false", "override true"]);
    assert_eq!(get(&host).await.expect(200).json()["errors"], json!([]));
}

#[tokio::test]
async fn an_end_user_sees_the_validation_error() {
    let (db, _provider, host) = stage().await;
    let connect = async |tags: Value| {
        let session = host.post("/connect/sessions", &json!({ "tags": tags })).await.expect(201).json();
        let token = text(&session["data"]["token"]).to_owned();
        let path = format!("/auth/unauthenticated/lifecycle?connect_session_token={token}");
        host.with_key(None).post(&path, &json!({})).await
    };
    let refused = connect(json!({ "refuse": "this account has no plan" })).await;
    assert_eq!(refused.refusal(), (400, "connection_validation_failed".to_owned()));
    assert_eq!(refused.message(), "this account has no plan");
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
    connect(json!({})).await.expect(200);
    assert_eq!(db.number("SELECT count(*) FROM connections WHERE validating_since IS NULL").await, 1);
    assert_eq!(deliveries(&db).await, ["creation false", "creation true"]);
}

#[tokio::test]
async fn a_post_creation_function_survives_a_killed_host() {
    let (db, provider, mut host) = stage().await;
    import(&host, json!({ "tells": true })).await.expect(201);
    assert_eq!(provider.next_request().await.path, "/created");
    host.kill();
    let second = spawn(&db, &provider).await;
    provider.next_request().await.answer("ok").await;
    wait_until_created(&second).await;
}

#[tokio::test]
async fn pre_deletion_functions_run_when_the_integration_is_deleted() {
    let (_db, provider, host) = stage().await;
    let change = json!({
        "connection_id": ["customer-1", "customer-2"], "provider_config_key": "lifecycle",
        "metadata": { "tells": true, "greeted": true },
    });
    for id in ["customer-1", "customer-2"] {
        let body = json!({
            "provider_config_key": "lifecycle", "connection_id": id, "credentials": { "type": "NONE" },
        });
        host.post("/connections", &body).await.expect(201);
        eventually("the post-creation function has run", async || {
            let path = format!("/connections/{id}?provider_config_key=lifecycle");
            (host.get(&path).await.json()["metadata"]["greeted"] == true).then_some(())
        })
        .await;
    }
    host.patch("/connections/metadata", &change).await.expect(200);
    let (deleted, ()) = tokio::join!(host.delete("/integrations/lifecycle"), async {
        // Both at the same time.
        let pending_requests = [provider.next_request().await, provider.next_request().await];
        for pending in pending_requests {
            assert_eq!(pending.path, "/deleting");
            get(&host).await.expect(200);
            pending.answer("ok").await;
        }
    });
    deleted.expect(200);
    assert_eq!(get(&host).await.status, 404);
    assert_eq!(host.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
}

#[tokio::test]
async fn a_deletion_completes_after_its_caller_disconnects() {
    let (_db, provider, host) = stage().await;
    import(&host, json!({})).await.expect(201);
    wait_until_created(&host).await;
    let change = json!({
        "connection_id": "customer-1", "provider_config_key": "lifecycle", "metadata": { "tells": true },
    });
    host.patch("/connections/metadata", &change).await.expect(200);
    let pending = tokio::select! {
        pending = provider.next_request() => pending,
        _answer = delete(&host) => panic!("the deletion returned before the function"),
    };
    assert_eq!(pending.path, "/deleting");
    // The client has disconnected by now.
    pending.answer("ok").await;
    eventually("the connection is deleted", async || (get(&host).await.status == 404).then_some(())).await;
}

#[tokio::test]
async fn a_pre_deletion_function_cannot_prevent_the_deletion() {
    let (db, provider, host) = stage().await;
    import(&host, json!({ "clings": true })).await.expect(201);
    wait_until_created(&host).await;
    let orders = json!({ "clings": true, "tells": true }).to_string();
    db.execute(&format!("UPDATE connections SET metadata = '{orders}'")).await;
    let (deleted, ()) = tokio::join!(delete(&host), async {
        let pending = provider.next_request().await;
        assert_eq!(pending.path, "/deleting");
        // The connection still exists for the function.
        get(&host).await.expect(200);
        pending.answer("ok").await;
    });
    deleted.expect(200);
    assert_eq!(get(&host).await.refusal(), (404, "unknown_connection".to_owned()));
    eventually("the run is stored", async || {
        let failed =
            "SELECT count(*) FROM runs WHERE function_name = 'connection-deleting' AND state = 'error'";
        (db.number(failed).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn lifecycle_functions_just_deployed_through_another_host_run() {
    let (db, provider, host) = stage().await;
    let mut less = Bundle::guest("lifecycle").at_address(&format!("http://{}", provider.address()));
    for event in ["connection-created", "connection-deleting", "connection-validating"] {
        let table = format!("[integrations.lifecycle.lifecycle.{event}]\nevent = \"{event}\"\n");
        less = less.replace(&table, "");
    }
    // From here on, the host's cache contains no lifecycle functions.
    let forget = async || {
        host.deploy(&less).await;
        db.switch_to_first_versions().await;
    };
    forget().await;
    let refused = import(&host, json!({ "refuse": "this account has no plan" })).await;
    assert_eq!(refused.refusal(), (400, "connection_validation_failed".to_owned()));
    forget().await;
    import(&host, json!({})).await.expect(201);
    wait_until_created(&host).await;
    db.execute(r#"UPDATE connections SET metadata = '{"tells": true}'"#).await;
    forget().await;
    let (deleted, ()) = tokio::join!(delete(&host), async {
        let pending = provider.next_request().await;
        assert_eq!(pending.path, "/deleting");
        pending.answer("ok").await;
    });
    deleted.expect(200);
}

/// Creates another environment with a connection that sends a request when it is deleted.
async fn connect_in_other_environment(host: &Host, db: &TestDatabase, provider: &SlowProvider) {
    host.command(db, &["env", "create", "other"]);
    let key = host.command(db, &["keys", "create", "backend", "--environment", "other"]);
    let other = host.with_key(Some(key.trim()));
    other.deploy(&Bundle::guest("lifecycle").at_address(&format!("http://{}", provider.address()))).await;
    other.connect_as("customer-1", "lifecycle", json!({})).await;
    let greeted = "SELECT count(*) FROM connections WHERE metadata->>'greeted' = 'true'";
    eventually("the post-creation function has run", async || (db.number(greeted).await == 1).then_some(()))
        .await;
    db.execute(r#"UPDATE connections SET metadata = '{"tells": true}'"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_an_environment_by_cli_runs_pre_deletion_functions_first() {
    let (db, provider, host) = stage().await;
    connect_in_other_environment(&host, &db, &provider).await;
    let command = db.command(&["env", "delete", "other", "--yes"]);
    let command = tokio::task::spawn_blocking(|| command.run());
    let pending = provider.next_request().await;
    assert_eq!(pending.path, "/deleting");
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 1);
    pending.answer("ok").await;
    assert_eq!(command.await.unwrap(), "deleted `other`\n");
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
}

#[tokio::test]
async fn deleting_an_environment_without_a_host_reports_skipped_functions() {
    let (db, provider, mut host) = stage().await;
    connect_in_other_environment(&host, &db, &provider).await;
    host.stop().await;
    let said = db.command(&["env", "delete", "other", "--yes"]).run();
    assert!(said.contains("no host is running"), "{said}");
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
}
