//! Asynchronous actions, and how synchronous ones share capacity with them.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{
    Bundle, Connection, Host, HostOptions, PendingRequest, SECRET_KEY, SlowProvider, Stage, TestDatabase,
    eventually, repository, text,
};

const ASYNC: (&str, &str) = ("X-Async", "true");
const LEASE: &str = "SYNCLINE_LEASE_SECONDS";

/// Starts a host whose hostile guest uses this provider.
async fn spawn(db: &TestDatabase, provider: &SlowProvider, variables: &[(&str, &str)]) -> Host {
    let options = HostOptions::new().database(db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
    variables.iter().fold(options, |options, (name, value)| options.variable(name, value)).spawn().await
}

async fn deploy_and_connect(
    db: &TestDatabase,
    provider: &SlowProvider,
    bundle: &Bundle,
    variables: &[(&str, &str)],
) -> (Host, Connection) {
    let host = spawn(db, provider, variables).await;
    host.deploy(bundle).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    (host, connection)
}

async fn runs(db: &TestDatabase, action: &str) -> Vec<String> {
    let order = "ORDER BY started_at, attempt";
    db.texts(&format!("SELECT state || ' ' || attempt FROM runs WHERE function_name = '{action}' {order}"))
        .await
}

#[tokio::test]
async fn an_async_action_returns_its_result_when_polled() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &[]).await;
    let accepted = connection.action_with(&[ASYNC], "fetch", &json!({ "url": "/slow" })).await.expect(202);
    let id = text(&accepted.json()["id"]).to_owned();
    let path = format!("/action/{id}");
    assert_eq!(accepted.json(), json!({ "id": id, "statusUrl": path }));
    assert_eq!(accepted.header("location"), Some(&*path));

    let pending = provider.next_request().await;
    let unfinished = host.get(&path).await;
    assert_eq!(unfinished.refusal(), (404, "action_not_finished".to_owned()));
    assert_eq!(unfinished.json()["error"]["payload"], json!({ "state": "running" }));
    assert!(unfinished.header("retry-after").is_some());
    pending.answer("done").await;
    assert_eq!(connection.result(&path).await.expect(200).json()["body"], "done");

    let nothing = connection.trigger_async("print", &json!("x")).await;
    let nothing = connection.result(&nothing).await.expect(200);
    assert_eq!((nothing.text(), nothing.header("content-type")), (String::new(), None));
    assert_eq!(runs(&db, "fetch").await, ["success 1"]);
    for (path, refusal) in [
        ("/action/0198c0de-0000-7000-8000-000000000000", (404, "unknown_job")),
        ("/action/no-uuid", (400, "invalid_uri_params")),
    ] {
        assert_eq!(host.get(path).await.refusal(), (refusal.0, refusal.1.to_owned()));
    }
}

#[tokio::test]
async fn a_failed_job_returns_the_same_error_as_a_synchronous_call() {
    let bundle = Bundle::guest("hostile").limit("sleep", "wall = \"200ms\"");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let answered = json!({ "status": 503, "headers": { "x-rate-left": "0" }, "body": "{\"payload\":[1]}" });
    for (action, input) in [
        ("sleep", json!(60_000)),
        ("fail", json!({ "code": "provider-http-error", "message": "GET /x: 503", "details": answered })),
        ("fail", json!({ "code": "no", "message": "not today", "details": { "why": [1, 2] } })),
        ("fail", json!({ "code": "no", "message": "not today" })),
        ("panic", json!("oh")),
        ("bad-json-output", Value::Null),
    ] {
        let waited_for = stage.action(action, &input).await;
        let path = stage.trigger_async(action, &input).await;
        let asked_for = stage.result(&path).await;
        assert_eq!((waited_for.status, waited_for.text()), (asked_for.status, asked_for.text()), "{action}");
        let expected = match (action, input["code"].as_str()) {
            ("sleep", _) => 408,
            ("fail", Some("provider-http-error")) => 424,
            _ => 400,
        };
        assert_eq!(waited_for.status, expected, "{action}");
    }
    // Errors that are known immediately are returned immediately.
    for (action, input, refusal) in [
        ("dance", Value::Null, (404, "unknown_action")),
        ("sleep", json!("soon"), (400, "invalid_action_input")),
    ] {
        let answer = stage.action_with(&[ASYNC], action, &input).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()));
    }
    let stranger = stage.with_id("nobody").action_with(&[ASYNC], "print", &json!("x")).await;
    assert_eq!(stranger.refusal(), (404, "unknown_connection".to_owned()));
}

#[tokio::test]
async fn a_job_is_visible_only_to_keys_of_its_environment() {
    let stage = Stage::hostile().await;
    stage.host.command(&stage.db, &["env", "create", "other"]);
    let key = stage.host.command(&stage.db, &["keys", "create", "backend", "--environment", "other"]);
    let path = stage.trigger_async("print", &json!("x")).await;
    stage.result(&path).await.expect(200);
    let stranger = stage.host.with_key(Some(key.trim())).get(&path).await;
    assert_eq!(stranger.refusal(), (404, "unknown_job".to_owned()));
    let reader = stage.host.create_key(&stage.db, "reader", "read-only");
    assert_eq!(stage.host.with_key(Some(&reader)).get(&path).await.status, 403);
}

#[tokio::test]
async fn invalid_action_headers_are_rejected_by_name() {
    let stage = Stage::hostile().await;
    let long = "k".repeat(256);
    for (name, value) in [
        ("x-async", "perhaps"),
        ("x-max-retries", "6"),
        ("x-max-retries", "-1"),
        ("x-max-retries", "many"),
        ("idempotency-key", ""),
        ("idempotency-key", "caf\u{e9}"),
        ("idempotency-key", &long),
    ] {
        let answer = stage.action_with(&[(name, value)], "print", &json!("x")).await;
        assert_eq!(answer.refusal(), (400, "invalid_headers".to_owned()), "{name}: {value}");
        assert_eq!(answer.json()["error"]["errors"][0]["path"], json!([name]));
    }
}

#[tokio::test]
async fn another_host_reruns_a_killed_hosts_job_under_the_same_id() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (mut host, connection) =
        deploy_and_connect(&db, &provider, &provider.bundle(), &[(LEASE, "1")]).await;
    let path = connection.trigger_async("fetch", &json!({ "url": "/slow" })).await;
    let _first = provider.next_request().await;
    host.kill();
    let second = spawn(&db, &provider, &[(LEASE, "1")]).await;
    provider.next_request().await.answer("again").await;
    let result = connection.through(&second).result(&path).await.expect(200);
    assert_eq!(result.json()["body"], "again");
    assert_eq!(runs(&db, "fetch").await, ["success 2"]);
    let job = path.trim_start_matches("/action/");
    assert_eq!(db.texts("SELECT job_id::text FROM runs WHERE function_name = 'fetch'").await, [job]);
}

#[tokio::test]
async fn a_queued_job_survives_a_killed_host() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (mut host, connection) = deploy_and_connect(
        &db,
        &provider,
        &provider.bundle(),
        &[("SYNCLINE_MAX_ASYNC_ACTIONS", "1"), (LEASE, "1")],
    )
    .await;
    let first = connection.trigger_async("fetch", &json!({ "url": "/first" })).await;
    let _pending = provider.next_request().await;
    let second = connection.trigger_async("fetch", &json!({ "url": "/second" })).await;
    let unfinished = host.get(&second).await;
    assert_eq!(unfinished.json()["error"]["payload"], json!({ "state": "queued" }));
    host.kill();
    let host = spawn(&db, &provider, &[(LEASE, "1")]).await;
    let connection = connection.through(&host);
    for _ in 0..2 {
        provider.next_request().await.answer("ok").await;
    }
    connection.result(&first).await.expect(200);
    connection.result(&second).await.expect(200);
}

#[tokio::test]
async fn a_late_result_of_a_frozen_host_is_ignored() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (mut frozen, connection) =
        deploy_and_connect(&db, &provider, &provider.bundle(), &[(LEASE, "1")]).await;
    let path = connection.trigger_async("fetch", &json!({ "url": "/slow" })).await;
    let first = provider.next_request().await;
    frozen.freeze();
    let second = spawn(&db, &provider, &[(LEASE, "1")]).await;
    provider.next_request().await.answer("of the second").await;
    let connection = connection.through(&second);
    assert_eq!(connection.result(&path).await.json()["body"], "of the second");
    frozen.thaw();
    first.answer_if_connected("of the first").await;
    // After a graceful stop, the host has finished all its pending work.
    frozen.stop().await;
    assert_eq!(connection.result(&path).await.json()["body"], "of the second");
    assert_eq!(runs(&db, "fetch").await, ["lost 1", "success 2"]);
}

#[tokio::test]
async fn a_job_with_an_expired_lease_continues_if_no_host_took_it_over() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &[(LEASE, "1")]).await;
    let path = connection.trigger_async("fetch", &json!({ "url": "/slow" })).await;
    let asked = provider.next_request().await;
    host.freeze();
    let expired = "SELECT count(*) FROM function_jobs WHERE state = 'running' AND lease_expires_at < now()";
    eventually("the lease has expired", async || (db.number(expired).await == 1).then_some(())).await;
    host.thaw();
    let held = "SELECT count(*) FROM function_jobs WHERE state = 'running' AND lease_expires_at > now()";
    eventually("the lease is renewed", async || (db.number(held).await == 1).then_some(())).await;
    asked.answer("ok").await;
    assert_eq!(connection.result(&path).await.json()["body"], "ok");
    assert_eq!(runs(&db, "fetch").await, ["success 1"]);
}

#[tokio::test]
async fn a_stopping_host_releases_its_jobs_to_another_host() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    // The lease is too long to expire in this test: the second host starts at once only because the first released the
    // job.
    let variables = [(LEASE, "3600"), ("SYNCLINE_GRACE_SECONDS", "0")];
    let (mut host, connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &variables).await;
    let path = connection.trigger_async("fetch", &json!({ "url": "/slow" })).await;
    let _first = provider.next_request().await;
    let second = spawn(&db, &provider, &variables).await;
    host.stop().await;
    provider.next_request().await.answer("ok").await;
    connection.through(&second).result(&path).await.expect(200);
}

#[tokio::test]
async fn two_hosts_share_the_queue_and_run_each_job_once() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (_host, connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &[]).await;
    let _second = spawn(&db, &provider, &[]).await;
    let mut paths = Vec::new();
    for _ in 0..30 {
        paths.push(connection.trigger_async("sleep", &json!(20)).await);
    }
    for path in &paths {
        connection.result(path).await.expect(200);
    }
    assert_eq!(db.number("SELECT count(DISTINCT job_id) FROM runs WHERE function_name = 'sleep'").await, 30);
    assert_eq!(db.number("SELECT count(*) FROM runs WHERE function_name = 'sleep'").await, 30);
}

#[tokio::test]
async fn a_transient_failure_is_retried_up_to_x_max_retries() {
    let stage = Stage::hostile().await;
    let passing = json!({ "code": "timeout", "message": "later" });
    let retries = [ASYNC, ("X-Max-Retries", "2")];
    let accepted = stage.action_with(&retries, "fail", &passing).await.expect(202).json();
    let result = stage.result(text(&accepted["statusUrl"])).await;
    assert_eq!(result.refusal(), (400, "action_script_runtime_error".to_owned()));
    assert_eq!(runs(&stage.db, "fail").await, ["error 1", "error 2", "error 3"]);

    let lasting = json!({ "code": "never", "message": "no" });
    let accepted = stage.action_with(&retries, "fail", &lasting).await.expect(202).json();
    stage.result(text(&accepted["statusUrl"])).await.expect(400);
    assert_eq!(runs(&stage.db, "fail").await.len(), 4);
}

#[tokio::test]
async fn ordered_actions_of_a_connection_run_one_at_a_time() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, connection) = deploy_and_connect(&db, &provider, &ordered(&provider), &[]).await;
    let second = spawn(&db, &provider, &[]).await;
    let other = second.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let mut paths = Vec::new();
    for number in 0..3 {
        // Alternates between the hosts.
        let connection = if number == 1 { connection.through(&second) } else { connection.through(&host) };
        paths.push(connection.trigger_async("fetch", &json!({ "url": format!("/{number}") })).await);
    }
    let first = provider.next_request().await;
    assert_eq!(first.path, "/0");
    let others = other.trigger_async("fetch", &json!({ "url": "/other" })).await;
    // Another connection does not wait.
    let pending = provider.next_request().await;
    assert_eq!(pending.path, "/other");
    pending.answer("ok").await;
    other.result(&others).await.expect(200);
    assert!(
        provider.receives_nothing_for(Duration::from_millis(300)).await,
        "two ordered actions run at once"
    );
    first.answer("ok").await;
    for number in 1..3 {
        let pending = provider.next_request().await;
        assert_eq!(pending.path, format!("/{number}"));
        pending.answer("ok").await;
    }
    for path in paths {
        connection.result(&path).await.expect(200);
    }
}

/// The hostile guest with an ordered `fetch`.
fn ordered(provider: &SlowProvider) -> Bundle {
    let fetch = "[integrations.hostile.actions.fetch]";
    provider.bundle().replace(fetch, &format!("{fetch}\nordered = true"))
}

/// Queues `/0` and then `/1`. Returns the paths of their results and the provider's request for the first.
async fn queue_two(
    connection: &Connection,
    provider: &SlowProvider,
    headers: &[(&str, &str)],
) -> (Vec<String>, PendingRequest) {
    let mut paths = Vec::new();
    for number in 0..2 {
        let input = json!({ "url": format!("/{number}"), "retries": 0 });
        let accepted = connection.action_with(headers, "fetch", &input).await.expect(202).json();
        paths.push(text(&accepted["statusUrl"]).to_owned());
    }
    let first = provider.next_request().await;
    assert_eq!(first.path, "/0");
    (paths, first)
}

async fn answer_in_order(connection: &Connection, provider: &SlowProvider, paths: &[String]) {
    for (number, path) in paths.iter().enumerate() {
        let pending = provider.next_request().await;
        assert_eq!(pending.path, format!("/{number}"));
        pending.answer("ok").await;
        connection.result(path).await.expect(200);
    }
}

#[tokio::test]
async fn a_retried_ordered_action_runs_before_later_ones() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (_host, connection) = deploy_and_connect(&db, &provider, &ordered(&provider), &[]).await;
    let (paths, first) = queue_two(&connection, &provider, &[ASYNC, ("X-Max-Retries", "1")]).await;
    // A missing response is a transient failure.
    drop(first);
    answer_in_order(&connection, &provider, &paths).await;
    assert_eq!(runs(&db, "fetch").await, ["error 1", "success 2", "success 1"]);
}

#[tokio::test]
async fn an_ordered_action_of_a_lost_host_runs_before_later_ones() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let lease = [(LEASE, "1")];
    let (mut host, connection) = deploy_and_connect(&db, &provider, &ordered(&provider), &lease).await;
    let (paths, _first) = queue_two(&connection, &provider, &[ASYNC]).await;
    // The second host has no other work than the queued job.
    let second = spawn(&db, &provider, &lease).await;
    assert!(
        provider.receives_nothing_for(Duration::from_millis(300)).await,
        "two ordered actions run at once"
    );
    host.kill();
    answer_in_order(&connection.through(&second), &provider, &paths).await;
}

#[tokio::test]
async fn a_connection_with_many_jobs_does_not_block_other_connections() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, busy) =
        deploy_and_connect(&db, &provider, &provider.bundle(), &[("SYNCLINE_MAX_ASYNC_ACTIONS", "2")]).await;
    for _ in 0..4 {
        busy.trigger_async("fetch", &json!({ "url": "/busy" })).await;
    }
    let pending = provider.next_request().await;
    assert_eq!(pending.path, "/busy");
    let other = host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let path = other.trigger_async("print", &json!("x")).await;
    // None of the busy connection's requests has been answered.
    other.result(&path).await.expect(200);
}

#[tokio::test]
async fn connections_share_job_capacity_fairly_when_it_is_exhausted() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, first) =
        deploy_and_connect(&db, &provider, &provider.bundle(), &[("SYNCLINE_MAX_ASYNC_ACTIONS", "2")]).await;
    let second = host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let third = host.connect_as("customer-3", "hostile", json!({ "steps": 0 })).await;
    let mut pending_requests = Vec::new();
    for (connection, path) in [(&first, "/first"), (&second, "/second")] {
        for _ in 0..3 {
            connection.trigger_async("fetch", &json!({ "url": path })).await;
        }
        let pending = provider.next_request().await;
        assert_eq!(pending.path, path);
        pending_requests.push(pending);
    }
    third.trigger_async("fetch", &json!({ "url": "/third" })).await;
    pending_requests.remove(0).answer("ok").await;
    assert_eq!(provider.next_request().await.path, "/third");
}

#[tokio::test]
async fn jobs_that_are_not_due_do_not_delay_other_connections() {
    let stage = Stage::hostile().await;
    stage
        .db
        .execute(
            "WITH copies AS (
                 INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials)
                 SELECT gen_random_uuid(), environment_pk, integration_pk, 'copy-' || number, sealed_credentials
                 FROM connections, generate_series(1, 1100) AS number
                 RETURNING pk, environment_pk, integration_pk, connection_id
             )
             INSERT INTO function_jobs (id, environment_pk, integration_pk, connection_pk, integration_key,
                                        connection_id, kind, function_name, state, is_async, is_ordered, max_retries,
                                        due_at)
             SELECT gen_random_uuid(), environment_pk, integration_pk, pk, 'hostile', connection_id, 'action', 'print',
                    'queued', true, false, 0, now() + interval '1 hour'
             FROM copies",
        )
        .await;
    let behind = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    let path = behind.trigger_async("print", &json!("x")).await;
    behind.result(&path).await.expect(200);
}

#[tokio::test]
async fn job_results_expire_and_are_removed() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let variables = [("SYNCLINE_ACTION_RESULT_SECONDS", "5")];
    let (host, connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &variables).await;
    let path = connection.trigger_async("print", &json!("x")).await;
    connection.result(&path).await.expect(200);
    eventually("the result is gone", async || {
        let answer = host.get(&path).await;
        (answer.status == 404 && answer.refusal().1 == "unknown_job").then_some(())
    })
    .await;
    eventually("the row is deleted", async || {
        (db.number("SELECT count(*) FROM function_jobs").await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn job_input_and_output_are_stored_encrypted() {
    let stage = Stage::hostile().await;
    let path = stage.trigger_async("fail", &json!({ "code": "no", "message": "planted-words" })).await;
    stage.result(&path).await.expect(400);
    let planted = "SELECT count(*) FROM function_jobs j WHERE j::text LIKE '%planted%'
                   OR position('planted-words'::bytea in sealed_result) > 0";
    assert_eq!(stage.db.number(planted).await, 0);
    assert_eq!(stage.db.number("SELECT count(*) FROM function_jobs WHERE sealed_input IS NULL").await, 1);
}

#[tokio::test]
async fn a_finished_job_sends_a_webhook() {
    let stage = Stage::hostile().await;
    stage.db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/hook'").await;
    let deliveries = "SELECT body FROM outbound_webhook_deliveries WHERE type = 'async_action'";
    let path = stage.trigger_async("print", &json!("x")).await;
    stage.result(&path).await.expect(200);
    let id = path.trim_start_matches("/action/");
    let body = format!(
        r#"{{"connectionId":"customer-1","from":"nango","payload":{{"id":"{id}","statusUrl":"{path}"}},"providerConfigKey":"hostile","type":"async_action"}}"#
    );
    assert_eq!(stage.db.texts(deliveries).await, [body]);
    // Only the last attempt sends a webhook.
    let headers = [ASYNC, ("X-Max-Retries", "1")];
    let passing = json!({ "code": "timeout", "message": "later" });
    let accepted = stage.action_with(&headers, "fail", &passing).await.expect(202).json();
    stage.result(text(&accepted["statusUrl"])).await.expect(400);
    assert_eq!(stage.db.texts(deliveries).await.len(), 2);

    stage.db.execute("UPDATE environments SET on_async_action_completion = false").await;
    let path = stage.trigger_async("print", &json!("x")).await;
    stage.result(&path).await.expect(200);
    assert_eq!(stage.db.texts(deliveries).await.len(), 2);
}

#[tokio::test]
async fn a_caller_that_disconnects_cancels_the_action() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, _connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &[]).await;
    let mut caller = TcpStream::connect(host.address()).await.expect("the host listens");
    let body = json!({ "action_name": "fetch", "input": { "url": "/slow" } }).to_string();
    let request = format!(
        "POST /action/trigger HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\n\
         Connection-Id: customer-1\r\nProvider-Config-Key: hostile\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    caller.write_all(request.as_bytes()).await.expect("the host reads");
    let pending = provider.next_request().await;
    drop(caller);
    pending.wait_for_disconnect().await;
    eventually("the run is stored", async || (runs(&db, "fetch").await == ["cancelled 1"]).then_some(()))
        .await;
}

#[tokio::test]
async fn actions_run_while_all_sync_permits_are_in_use() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let host = spawn(&db, &provider, &[("SYNCLINE_MAX_SYNCS", "1")]).await;
    host.deploy(&provider.bundle()).await;
    let metadata = json!({ "steps": 0, "end": "wait-until-cancelled" });
    let connection = host.connect_as("customer-1", "hostile", metadata).await;
    connection.wait_until_running("commit-raw").await;
    connection.action("print", &json!("x")).await.expect(200);
    let path = connection.trigger_async("print", &json!("x")).await;
    connection.result(&path).await.expect(200);
    assert_eq!(connection.status("commit-raw").await["status"], "RUNNING");
}

#[tokio::test]
async fn a_cpu_heavy_action_has_priority_over_cpu_heavy_syncs() {
    const NEEDED: Duration = Duration::from_millis(300);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).spawn().await;
    host.deploy(&Bundle::guest("hostile").limit("spin", "cpu = \"300ms\"")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    let syncs = 10 * processors;
    for number in 0..syncs {
        let id = format!("computes-{number}");
        host.connect_as(&id, "hostile", json!({ "steps": 0, "end": "spin" })).await;
    }
    let running = "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL";
    // Functions with little CPU use are not throttled. The syncs are past that once they have used this much CPU time.
    let well_begun = host.cpu_time() + Duration::from_millis(60) * syncs as u32;
    eventually("all syncs compute", async || {
        (db.number(running).await == syncs as i64 && host.cpu_time() > well_begun).then_some(())
    })
    .await;
    let before = host.cpu_time();
    let answer = connection.action("spin", &Value::Null).await;
    assert_eq!(answer.refusal(), (400, "limit_exceeded".to_owned()), "{}", answer.text());
    // Measured in CPU time, because the machine may be slow. The action gets every second time slice.
    let used = host.cpu_time().saturating_sub(before);
    let most = NEEDED * 5 * processors.saturating_sub(1).max(1) as u32;
    assert!(used < most, "all functions used {used:?} until the action had used {NEEDED:?}");
}

#[tokio::test]
async fn synchronous_actions_have_reserved_capacity_and_time_out_while_waiting() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let bundle = provider.bundle().limit("print", "wall = \"1s\"");
    let (_host, connection) =
        deploy_and_connect(&db, &provider, &bundle, &[("SYNCLINE_MAX_INVOCATIONS", "4")]).await;
    let mut pending_requests = Vec::new();
    for _ in 0..3 {
        connection.trigger_async("fetch", &json!({ "url": "/background" })).await;
        pending_requests.push(provider.next_request().await);
    }
    let behind = connection.trigger_async("fetch", &json!({ "url": "/behind" })).await;
    // The fourth permit is reserved for synchronous calls.
    connection.action("print", &json!("x")).await.expect(200);
    let fetch = json!({ "url": "/waited-for" });
    let ((), waiting) = tokio::join!(
        async {
            let pending = provider.next_request().await;
            assert_eq!(pending.path, "/waited-for");
            let late = connection.action("print", &json!("x")).await;
            assert_eq!(late.refusal(), (408, "execution_timeout".to_owned()), "{}", late.text());
            pending.answer("ok").await;
        },
        connection.action("fetch", &fetch)
    );
    waiting.expect(200);
    pending_requests.remove(0).answer("ok").await;
    provider.next_request().await.answer("ok").await;
    connection.result(&behind).await.expect(200);
}

#[tokio::test]
async fn a_job_of_a_deleted_connection_returns_unknown_connection() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (_host, connection) =
        deploy_and_connect(&db, &provider, &provider.bundle(), &[("SYNCLINE_MAX_ASYNC_ACTIONS", "1")]).await;
    connection.trigger_async("fetch", &json!({ "url": "/first" })).await;
    let pending = provider.next_request().await;
    let path = connection.trigger_async("print", &json!("x")).await;
    db.execute("DELETE FROM connections").await;
    pending.answer("ok").await;
    assert_eq!(connection.result(&path).await.refusal(), (404, "unknown_connection".to_owned()));
}

#[tokio::test]
async fn an_action_returns_gone_if_its_connection_is_deleted_while_it_runs() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let (host, _connection) = deploy_and_connect(&db, &provider, &provider.bundle(), &[]).await;
    let retried = [ASYNC, ("X-Max-Retries", "2")];
    let fetch = json!({ "url": "/slow", "retries": 0 });
    for (id, action, input, answers) in [
        ("uses-it-again", "wait-and-look", Value::Null, true),
        ("succeeds", "fetch", fetch.clone(), true),
        ("would-be-retried", "fetch", fetch, false),
    ] {
        let connection = host.connect_as(id, "hostile", json!({ "steps": 0 })).await;
        connection.wait_until_idle().await;
        let accepted = connection.action_with(&retried, action, &input).await.expect(202);
        let pending = provider.next_request().await;
        host.delete(&format!("/connections/{id}?provider_config_key=hostile")).await.expect(200);
        if answers {
            pending.answer("ok").await;
        } else {
            drop(pending);
        }
        let result = connection.result(text(&accepted.json()["statusUrl"])).await;
        assert_eq!(result.refusal(), (410, "script_aborted".to_owned()), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_client_reads_job_results() {
    let stage = Stage::hostile().await;
    let output = Command::new("node")
        .arg("async_actions_check.mjs")
        .current_dir(repository("tests/node"))
        .env("CHECK_HOST", stage.host.base_url())
        .env("CHECK_KEY", SECRET_KEY)
        .output()
        .expect("Node.js is not installed; `scripts/setup` says how to get it");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
}
