//! Failed syncs: they are retried a few times soon after, whatever the error, and then at their next scheduled run.

use serde_json::{Value, json};

use crate::support::{Bundle, Stage, TestDatabase, eventually, save};

const SYNC: &str = "[integrations.hostile.syncs.commit-raw]";

/// Trigger and outcome of each run of the sync, the oldest first.
async fn runs(db: &TestDatabase) -> Vec<String> {
    let sql = "SELECT trigger || ' ' || coalesce(error_code, state) FROM runs
               WHERE function_name = 'commit-raw' ORDER BY fence";
    db.texts(sql).await
}

/// Why the sync is due next, and how many seconds after the end of its latest run.
async fn next_due(db: &TestDatabase) -> (String, i64) {
    let reason = db.texts("SELECT due_reason FROM schedules WHERE sync_name = 'commit-raw'").await.remove(0);
    let sql = "SELECT extract(epoch FROM due_at - (
                   SELECT max(finished_at) FROM runs WHERE function_name = 'commit-raw'
               ))::bigint FROM schedules WHERE sync_name = 'commit-raw'";
    (reason, db.number(sql).await)
}

/// Makes the waiting sync due now, and waits until that run has ended.
async fn run_now(db: &TestDatabase) {
    let before = runs(db).await.len();
    db.execute(
        "UPDATE schedules SET due_at = now() WHERE sync_name = 'commit-raw' AND run_id IS NULL;
         SELECT pg_notify('syncline', 'due')",
    )
    .await;
    let idle = "SELECT count(*) FROM schedules WHERE sync_name = 'commit-raw' AND run_id IS NULL";
    eventually("the run has ended", async || {
        (runs(db).await.len() > before && db.number(idle).await == 1).then_some(())
    })
    .await;
}

fn ending(end: &str) -> Value {
    json!({ "steps": 0, "end": end })
}

#[tokio::test]
async fn a_failed_run_is_retried_soon_whatever_its_error() {
    let bundle = Bundle::guest("hostile").replace(SYNC, &format!("{SYNC}\nlimits = {{ records = 1 }}"));
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let two = json!([{ "changes": [save(&json!([{ "id": "a" }, { "id": "b" }]))] }]);
    for (metadata, code) in [
        (ending("fail"), "sync_script_failure"),
        (ending("panic"), "script_internal_error"),
        (json!({ "steps": 0, "commits": two }), "limit_exceeded"),
    ] {
        stage.set_metadata(metadata).await;
        assert_eq!(stage.run("commit-raw").await["status"], "ERROR");
        assert_eq!(runs(&stage.db).await.last().unwrap(), &format!("trigger {code}"));
        let (reason, seconds) = next_due(&stage.db).await;
        assert_eq!(reason, "retry", "{code}");
        assert!((5..=13).contains(&seconds), "{code}: the retry is due {seconds} s later");
        stage.set_metadata(json!({ "steps": 0 })).await;
        run_now(&stage.db).await;
        assert_eq!(runs(&stage.db).await.last().unwrap(), "retry success");
    }
}

#[tokio::test]
async fn retries_end_and_the_next_scheduled_run_follows() {
    let stage = Stage::hostile().await;
    let db = &stage.db;
    db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/hooks'").await;
    let reported = async || {
        let failures =
            "SELECT count(*) FROM outbound_webhook_deliveries WHERE body LIKE '%\"success\":false%'";
        db.number(failures).await
    };
    stage.set_metadata(ending("fail")).await;
    stage.run("commit-raw").await;
    for (least, most) in [(5, 13), (13, 25), (28, 50)] {
        let (reason, seconds) = next_due(db).await;
        assert_eq!(reason, "retry");
        assert!((least..=most).contains(&seconds), "the retry is due {seconds} s later");
        assert_eq!(reported().await, 1, "only the first failure is reported while retries follow");
        run_now(db).await;
    }
    let failed = "sync_script_failure";
    let expected: Vec<String> =
        ["trigger", "retry", "retry", "retry"].map(|trigger| format!("{trigger} {failed}")).into();
    assert_eq!(runs(db).await[1..], expected);
    assert_eq!(reported().await, 2, "the failure of the last retry is reported");
    let (reason, seconds) = next_due(db).await;
    assert_eq!(reason, "schedule");
    assert!((3_500..=3_700).contains(&seconds), "the next scheduled run is due {seconds} s later");

    run_now(db).await;
    assert_eq!(runs(db).await.last().unwrap(), &format!("schedule {failed}"));
    assert_eq!(
        next_due(db).await.0,
        "schedule",
        "until the next success, failed scheduled runs are not retried"
    );
    assert_eq!(reported().await, 3);

    stage.set_metadata(ending("return")).await;
    assert_eq!(stage.run("commit-raw").await["status"], "SUCCESS");
    stage.set_metadata(ending("fail")).await;
    stage.run("commit-raw").await;
    assert_eq!(next_due(db).await.0, "retry", "after a success, failures are retried again");
}

#[tokio::test]
async fn the_status_of_a_failed_sync_has_its_error_and_the_time_of_its_retry() {
    let stage = Stage::hostile().await;
    let db = &stage.db;
    stage.set_metadata(ending("fail")).await;
    let status = stage.run("commit-raw").await;
    assert_eq!((&status["status"], &status["latestExecutionStatus"]), (&json!("ERROR"), &json!("STOPPED")));
    let run =
        db.texts("SELECT id::text FROM runs WHERE function_name = 'commit-raw' AND state = 'error'").await;
    let message = "the metadata asks for a failure";
    let expected = json!({ "code": "sync_script_failure", "message": message, "runId": run[0] });
    assert_eq!(status["latestError"], expected);
    let seconds_until = |name: &str| {
        let at = chrono::DateTime::parse_from_rfc3339(status[name].as_str().expect("a time")).unwrap();
        (at.to_utc() - chrono::Utc::now()).num_seconds()
    };
    let (retry, regular) = (seconds_until("retryAt"), seconds_until("nextScheduledSyncAt"));
    assert!((0..=13).contains(&retry), "the retry is due in {retry} s");
    assert!(regular > 60, "the regular run is due in {regular} s");

    // The retry of a paused sync waits until the sync is started.
    stage.control("pause", "commit-raw").await.expect(200);
    let paused = stage.status("commit-raw").await;
    assert_eq!((&paused["retryAt"], &paused["latestError"]), (&Value::Null, &expected));
    stage.set_metadata(ending("return")).await;
    let status = stage.run("commit-raw").await;
    assert_eq!((&status["retryAt"], &status["latestError"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn the_first_failure_is_reported_even_if_it_is_a_retry() {
    let stage = Stage::hostile().await;
    let db = &stage.db;
    db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/hooks'").await;
    stage.set_metadata(ending("fail")).await;
    // The state after an attempt whose host was lost.
    db.execute("UPDATE schedules SET failures = 1, due_reason = 'retry' WHERE sync_name = 'commit-raw'")
        .await;
    for _ in 0..2 {
        run_now(db).await;
        assert_eq!(runs(db).await.last().unwrap(), "retry sync_script_failure");
        assert_eq!(next_due(db).await.0, "retry");
        let reported =
            "SELECT count(*) FROM outbound_webhook_deliveries WHERE body LIKE '%\"success\":false%'";
        assert_eq!(db.number(reported).await, 1);
    }
}

#[tokio::test]
async fn a_scheduled_run_that_is_due_first_replaces_the_retry() {
    let often = Bundle::guest("hostile")
        .replace(&format!("{SYNC}\nruns = \"every 1 hour\""), &format!("{SYNC}\nruns = \"every 2 seconds\""));
    let variables = [("SYNCLINE_MINIMUM_INTERVAL_SECONDS", "1")];
    let stage = Stage::with(&variables, &often, ending("fail")).await;
    let failed = "schedule sync_script_failure";
    let runs = eventually("three scheduled runs have failed", async || {
        let runs = runs(&stage.db).await;
        (runs.iter().filter(|run| *run == failed).count() >= 3).then_some(runs)
    })
    .await;
    assert!(!runs.iter().any(|run| run.starts_with("retry")), "{runs:?}");
}
