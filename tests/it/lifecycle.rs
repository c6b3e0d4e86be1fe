//! Functions at the turns of a connection's life.

use serde_json::{Value, json};

use crate::support::{Answer, Bundle, Host, HostOptions, SlowProvider, TestDatabase, eventually};

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
    host.get("/connections/customer-1?provider_config_key=lifecycle").await
}

async fn delete(host: &Host) -> Answer {
    host.request("DELETE", "/connections/customer-1?provider_config_key=lifecycle").send().await
}

async fn wait_until_greeted(host: &Host) {
    eventually("the function after the creation has run", async || {
        (get(host).await.json()["metadata"]["greeted"] == true).then_some(())
    })
    .await;
}

async fn deliveries(db: &TestDatabase) -> Vec<String> {
    let fields = "body::json->>'operation' || ' ' || (body::json->>'success')";
    db.texts(&format!("SELECT {fields} FROM webhook_deliveries WHERE type = 'auth' ORDER BY pk")).await
}

#[tokio::test]
async fn a_connection_that_a_function_refuses_is_not_made() {
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
    wait_until_greeted(&host).await;
}

#[tokio::test]
async fn a_connection_that_is_refused_when_it_is_connected_anew_stays_and_says_so() {
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
async fn what_follows_a_creation_survives_a_kill() {
    let (db, provider, mut host) = stage().await;
    import(&host, json!({ "tells": true })).await.expect(201);
    assert_eq!(provider.asked().await.path, "/created");
    host.kill();
    let second = spawn(&db, &provider).await;
    provider.asked().await.answer("ok").await;
    wait_until_greeted(&second).await;
}

#[tokio::test]
async fn a_function_runs_before_a_deletion_and_cannot_prevent_it() {
    let (db, provider, host) = stage().await;
    import(&host, json!({ "clings": true })).await.expect(201);
    wait_until_greeted(&host).await;
    let orders = json!({ "clings": true, "tells": true }).to_string();
    db.execute(&format!("UPDATE connections SET metadata = '{orders}'")).await;
    let (deleted, ()) = tokio::join!(delete(&host), async {
        let asker = provider.asked().await;
        assert_eq!(asker.path, "/deleting");
        // It is still there for the function.
        get(&host).await.expect(200);
        asker.answer("ok").await;
    });
    deleted.expect(200);
    assert_eq!(get(&host).await.refusal(), (404, "unknown_connection".to_owned()));
    eventually("the run is written", async || {
        let failed =
            "SELECT count(*) FROM runs WHERE function_name = 'connection-deleting' AND state = 'error'";
        (db.number(failed).await == 1).then_some(())
    })
    .await;
}
