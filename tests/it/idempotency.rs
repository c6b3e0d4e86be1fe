//! Requests that are repeated with the same Idempotency-Key: the function runs once.

use serde_json::{Value, json};

use crate::support::{
    Answer, Bundle, Connection, HostOptions, SlowProvider, Stage, TestDatabase, eventually, text,
};

const LEASE: &str = "SYNCLINE_LEASE_SECONDS";

async fn keyed(connection: &Connection, key: &str, action: &str, input: &Value) -> Answer {
    connection.action_with(&[("Idempotency-Key", key)], action, input).await
}

fn one_item() -> Value {
    json!({ "model": "Item", "items": r#"[{"id": "1"}]"# })
}

async fn runs(db: &TestDatabase, action: &str) -> i64 {
    db.number(&format!("SELECT count(*) FROM runs WHERE function_name = '{action}'")).await
}

#[tokio::test]
async fn a_repeated_request_returns_the_first_response_without_running() {
    let stage = Stage::hostile().await;
    let first = keyed(&stage, "a", "save-raw", &one_item()).await.expect(200);
    assert_eq!(first.header("idempotent-replayed"), None);
    // A different order of keys is the same request.
    let reordered = json!({ "items": r#"[{"id": "1"}]"#, "model": "Item" });
    for input in [one_item(), reordered] {
        let repeat = keyed(&stage, "a", "save-raw", &input).await.expect(200);
        assert_eq!((repeat.text(), repeat.header("idempotent-replayed")), (first.text(), Some("true")));
    }
    assert_eq!(runs(&stage.db, "save-raw").await, 1);
    let fresh = keyed(&stage, "b", "save-raw", &one_item()).await.expect(200);
    assert_ne!(fresh.text(), first.text(), "another key is another request");

    let fail = json!({ "code": "no", "message": "not today" });
    let failed = keyed(&stage, "a", "fail", &fail).await.expect(400);
    let repeat = keyed(&stage, "a", "fail", &fail).await.expect(400);
    assert_eq!(repeat.text(), failed.text());
    assert_eq!(runs(&stage.db, "fail").await, 1);
    let nothing = keyed(&stage, "a", "print", &json!("x")).await.expect(200);
    assert_eq!(keyed(&stage, "a", "print", &json!("x")).await.expect(200).text(), nothing.text());
    assert_eq!(runs(&stage.db, "print").await, 1);
}

#[tokio::test]
async fn reusing_a_key_for_a_different_request_is_rejected() {
    let stage = Stage::hostile().await;
    keyed(&stage, "a", "print", &json!("x")).await.expect(200);
    let reused = (409, "idempotency_key_reused".to_owned());
    assert_eq!(keyed(&stage, "a", "print", &json!("y")).await.refusal(), reused);
    let headers = [("Idempotency-Key", "a"), ("X-Async", "true")];
    assert_eq!(stage.action_with(&headers, "print", &json!("x")).await.refusal(), reused);
    // The same key of another action or connection is independent.
    keyed(&stage, "a", "sleep", &json!(0)).await.expect(200);
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    keyed(&other, "a", "print", &json!("y")).await.expect(200);
}

#[tokio::test]
async fn a_repeated_async_request_is_one_job() {
    let stage = Stage::hostile().await;
    let headers = [("Idempotency-Key", "a"), ("X-Async", "true")];
    let first = stage.action_with(&headers, "save-raw", &one_item()).await.expect(202);
    let second = stage.action_with(&headers, "save-raw", &one_item()).await.expect(202);
    assert_eq!(first.text(), second.text());
    assert_eq!(second.header("location"), first.header("location"));
    let result = stage.result(text(&first.json()["statusUrl"])).await.expect(200);
    assert_eq!(result.json()["added"], 1);
    let third = stage.action_with(&headers, "save-raw", &one_item()).await.expect(202);
    assert_eq!(third.text(), first.text());
    assert_eq!(runs(&stage.db, "save-raw").await, 1);
}

#[tokio::test]
async fn of_concurrent_requests_one_runs_and_the_others_get_a_conflict() {
    let stage = Stage::hostile().await;
    let input = json!(300);
    let calls = (0..12).map(|_| keyed(&stage, "a", "sleep", &input));
    let answers = futures_util::future::join_all(calls).await;
    let first: Vec<_> = answers.iter().filter(|answer| answer.status == 200).collect();
    let others: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(!first.is_empty());
    for answer in others {
        assert_eq!(answer.refusal(), (409, "idempotency_key_in_use".to_owned()));
        assert!(answer.header("retry-after").is_some());
    }
    keyed(&stage, "a", "sleep", &input).await.expect(200);
    assert_eq!(runs(&stage.db, "sleep").await, 1);
}

#[tokio::test]
async fn a_caller_that_disconnected_can_fetch_the_result() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
    let host = options.spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    let input = json!({ "url": "/slow" });
    let pending = tokio::select! {
        answer = keyed(&connection, "a", "fetch", &input) => panic!("the action returned early: {}", answer.text()),
        pending = provider.next_request() => pending,
    };
    assert_eq!(
        keyed(&connection, "a", "fetch", &input).await.refusal(),
        (409, "idempotency_key_in_use".to_owned())
    );
    pending.answer("once").await;
    let answer = eventually("the first call has ended", async || {
        let answer = keyed(&connection, "a", "fetch", &input).await;
        (answer.status != 409).then_some(answer)
    })
    .await;
    assert_eq!(answer.expect(200).json()["body"], "once");
    assert_eq!(runs(&db, "fetch").await, 1);
}

#[tokio::test]
async fn a_repeat_after_a_killed_host_runs_the_function_again() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    let spawn = async || {
        let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
        options.variable(LEASE, "2").spawn().await
    };
    let mut host = spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    let input = json!({ "url": "/slow" });
    let _first = tokio::select! {
        answer = keyed(&connection, "a", "fetch", &input) => panic!("the action returned early: {}", answer.text()),
        pending = provider.next_request() => pending,
    };
    host.kill();
    let second = spawn().await;
    let connection = connection.through(&second);
    let repeats = async {
        eventually("the key is free", async || {
            let answer = keyed(&connection, "a", "fetch", &input).await;
            (answer.status != 409).then_some(answer)
        })
        .await
    };
    let (answer, ()) = tokio::join!(repeats, async { provider.next_request().await.answer("again").await });
    assert_eq!(answer.expect(200).json()["body"], "again");
    let repeat = keyed(&connection, "a", "fetch", &input).await.expect(200);
    assert_eq!(repeat.json()["body"], "again");
}

#[tokio::test]
async fn a_repeat_runs_what_a_stopped_host_abandoned() {
    let (db, provider) = (TestDatabase::create().await, SlowProvider::listen().await);
    // The lease is too long to expire in this test: the repeat runs only because the host released the job.
    let spawn = async || {
        let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
        options.variable(LEASE, "3600").variable("SYNCLINE_GRACE_SECONDS", "0").spawn().await
    };
    let mut host = spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    let input = json!({ "url": "/slow" });
    let ask = async |connection: &Connection| {
        tokio::select! {
            answer = keyed(connection, "a", "fetch", &input) => panic!("the action returned early: {}", answer.text()),
            pending = provider.next_request() => pending,
        }
    };
    let _first = ask(&connection).await;
    host.stop().await;
    let second = spawn().await;
    let connection = connection.through(&second);
    ask(&connection).await.answer("again").await;
    let answer = eventually("the repeat has ended", async || {
        let answer = keyed(&connection, "a", "fetch", &input).await;
        (answer.status != 409).then_some(answer)
    })
    .await;
    assert_eq!(answer.expect(200).json()["body"], "again");
}

#[tokio::test]
async fn an_expired_key_can_be_used_again() {
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_ACTION_RESULT_SECONDS", "1");
    let host = options.spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    keyed(&connection, "a", "print", &json!("x")).await.expect(200);
    eventually("another request can use the key", async || {
        (keyed(&connection, "a", "print", &json!("y")).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_internal_error_is_not_stored_and_a_repeat_runs_again() {
    let stage = Stage::hostile().await;
    let bundle = Bundle::guest("hostile");
    let integration = "[integrations.hostile]\n";
    let with_variables = bundle.clone().replace(integration, &format!("{integration}env = [\"NAME\"]\n"));
    // Variables are read by the function. If some are passed to its process, the host also reads them before the start.
    for (key, bundle) in [("in-between", bundle), ("before", with_variables)] {
        stage.host.deploy(&bundle).await;
        let ask = async || keyed(&stage, key, "read-env", &Value::Null).await;
        stage.db.execute("ALTER TABLE environment_variables RENAME TO away").await;
        assert_eq!(ask().await.refusal(), (500, "internal_server_error".to_owned()), "{key}");
        stage.db.execute("ALTER TABLE away RENAME TO environment_variables").await;
        let first = ask().await.expect(200);
        assert_eq!(first.header("idempotent-replayed"), None, "{key}");
        assert_eq!(ask().await.expect(200).header("idempotent-replayed"), Some("true"), "{key}");
        let attempts = "SELECT state FROM runs WHERE function_name = 'read-env' ORDER BY attempt";
        assert_eq!(stage.db.texts(attempts).await, ["error", "success"], "{key}");
        assert_eq!(
            stage.db.number("SELECT count(DISTINCT job_id) FROM runs WHERE job_id IS NOT NULL").await,
            1
        );
        stage.db.execute("DELETE FROM runs").await;
    }
}
