//! When syncs run: pause, start, trigger, reset, and the status meanwhile.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::{
    Bundle, Connection, Host, HostOptions, METADATA_KEY, PostgresProxy, Stage, TestDatabase, cursor_of,
    eventually, save, text,
};

/// Number of finished and running runs of a sync.
async fn runs_of(stage: &Stage, sync: &str) -> i64 {
    stage.db.number(&format!("SELECT count(*) FROM runs WHERE function_name = '{sync}'")).await
}

/// Whether no schedule runs or is due within a minute.
async fn nothing_is_due(stage: &Stage) -> bool {
    let busy =
        "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL OR due_at < now() + interval '1 minute'";
    stage.db.number(busy).await == 0
}

/// Sets the number of steps of the sync. Each takes 10 ms and saves one record.
async fn set_steps(connection: &Connection, steps: u64) {
    connection.set_metadata(json!({ "steps": steps, "pause_ms": 10 })).await;
}

async fn steps(connection: &Connection) -> Vec<Value> {
    connection.all(&[("model", "Step"), ("limit", "500")]).await
}

/// The runs that saved these records.
fn saving_runs(records: &[Value]) -> BTreeSet<&str> {
    records.iter().map(|record| text(&record["run"])).collect()
}

#[tokio::test]
async fn a_new_connection_syncs_at_once_and_then_at_its_frequency() {
    let stage = Stage::hostile().await;
    let status = stage.status("steps").await;
    assert_eq!((&status["status"], &status["frequency"]), (&json!("SUCCESS"), &json!("every 1 hour")));
    let next = chrono::DateTime::parse_from_rfc3339(text(&status["nextScheduledSyncAt"])).unwrap();
    let minutes = (next.to_utc() - chrono::Utc::now()).num_minutes();
    assert!((54..=66).contains(&minutes), "the next run is in {minutes} minutes");
    assert_eq!(runs_of(&stage, "steps").await, 1);
}

#[tokio::test]
async fn the_status_shows_the_next_run_during_a_run() {
    let stage = Stage::hostile().await;
    let metadata = json!({ "steps": 200, "pause_ms": 10 });
    let connection = stage.host.connect_as("customer-2", "hostile", metadata).await;
    let seconds_to_next = async || {
        connection.wait_until_running("steps").await;
        let status = connection.status("steps").await;
        assert_eq!(status["status"], "RUNNING");
        let next = chrono::DateTime::parse_from_rfc3339(text(&status["nextScheduledSyncAt"])).unwrap();
        (next.to_utc() - chrono::Utc::now()).num_seconds()
    };
    let first = seconds_to_next().await;
    assert!((3_560..=3_601).contains(&first), "in {first} s, during the first run");
    connection.wait_until_idle().await;
    // Simulates that the sync is due by its schedule.
    set_steps(&connection, 400).await;
    stage
        .db
        .execute(
            "UPDATE schedules SET due_at = now(), next_run_at = now() - interval '1 minute' WHERE sync_name = 'steps';
             SELECT pg_notify('syncline', 'due')",
        )
        .await;
    let second = seconds_to_next().await;
    assert!((3_560..=3_601).contains(&second), "in {second} s, during the second");
}

#[tokio::test]
async fn connections_created_together_spread_over_time() {
    let stage = Stage::hostile().await;
    let mut late = Vec::new();
    for number in 0..8 {
        let id = format!("twin-{number}");
        let twin = stage.host.connect_as(&id, "hostile", json!({ "steps": 0 })).await;
        twin.wait_until_idle().await;
        let status = twin.status("steps").await;
        let time = |name: &str| chrono::DateTime::parse_from_rfc3339(text(&status[name])).unwrap();
        late.push((time("nextScheduledSyncAt") - time("finishedAt")).num_milliseconds() - 3_600_000);
    }
    late.sort_unstable();
    // The probability that all eight fall within a tenth of half a minute is one in a million.
    assert!(late[7] - late[0] > 3_000, "the schedules are hardly spread: {late:?}");
    assert!(late[0] > -10_000 && late[7] <= 30_000, "the jitter is at most 30 s: {late:?}");
}

#[tokio::test]
async fn a_sync_repeats_at_an_interval_that_the_operator_allows() {
    let db = TestDatabase::create().await;
    let host =
        HostOptions::new().database(&db).variable("SYNCLINE_MINIMUM_INTERVAL_SECONDS", "1").spawn().await;
    let table = "[integrations.hostile.syncs.commit-raw]\nruns = ";
    let often = |runs: &str| {
        Bundle::guest("hostile").replace(&format!("{table}\"every 1 hour\""), &format!("{table}\"{runs}\""))
    };
    host.deploy(&often("every 1 second")).await;
    host.connect("hostile", json!({ "steps": 0 })).await;
    let runs = "SELECT count(*) FROM runs WHERE function_name = 'commit-raw' AND trigger = 'schedule' AND state = 'success'";
    eventually("the sync has run repeatedly", async || (db.number(runs).await >= 3).then_some(())).await;

    let strict = Stage::hostile().await;
    let refused = strict.host.post_bundle(often("every 29 seconds").to_tar(), false).await;
    assert_eq!(refused.refusal(), (400, "invalid_sync_config".to_owned()));
}

#[tokio::test]
async fn a_paused_sync_has_no_next_run() {
    let stage = Stage::hostile().await;
    for _ in 0..2 {
        let answer = stage.control("pause", "steps").await.expect(200);
        assert_eq!(answer.text(), "");
        let status = stage.status("steps").await;
        assert_eq!((&status["status"], &status["nextScheduledSyncAt"]), (&json!("PAUSED"), &Value::Null));
    }
    assert!(nothing_is_due(&stage).await);
    assert_eq!(stage.status("commit-raw").await["status"], "SUCCESS", "only the named sync is paused");
}

#[tokio::test]
async fn a_run_in_progress_completes_before_the_pause_takes_effect() {
    let stage = Stage::hostile().await;
    let before = stage.status("steps").await["finishedAt"].clone();
    set_steps(&stage, 30).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    stage.control("pause", "steps").await.expect(200);
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    assert_eq!((&status["status"], &status["latestExecutionStatus"]), (&json!("PAUSED"), &json!("SUCCESS")));
    assert_eq!(steps(&stage).await.len(), 30);
    assert!(nothing_is_due(&stage).await);
}

#[tokio::test]
async fn an_interrupted_run_completes_even_if_its_sync_is_paused() {
    let db = TestDatabase::create().await;
    let options = || HostOptions::new().database(&db).variable("SYNCLINE_LEASE_SECONDS", "1");
    let mut host = options().spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    connection.wait_until_idle().await;
    // A stopped host releases the run; a killed one loses it. Both runs were triggered, and the next attempt is not.
    for (total, is_killed) in [(100_i64, false), (200, true)] {
        set_steps(&connection.through(&host), total.cast_unsigned()).await;
        connection.through(&host).trigger("steps").await;
        let saved = "SELECT count(*) FROM records";
        eventually("some steps are saved", async || (db.number(saved).await > total - 100).then_some(()))
            .await;
        if is_killed {
            host.kill();
        } else {
            host.stop().await;
        }
        // Holds the claim lock, so that no host can claim the run before it is paused.
        let mut waiting = db.connect().await;
        let mut claim = waiting.begin().await.unwrap();
        let claiming = "SELECT pg_advisory_xact_lock(x'636c61696d73'::bigint)";
        sqlx::query(claiming).execute(&mut *claim).await.unwrap();
        host = options().spawn().await;
        let interrupted = "SELECT count(*) FROM schedules WHERE sync_name = 'steps' AND is_interrupted";
        eventually("the run is interrupted", async || (db.number(interrupted).await == 1).then_some(()))
            .await;
        connection.through(&host).control("pause", "steps").await.expect(200);
        claim.rollback().await.unwrap();
        eventually("the run completes", async || {
            (connection.through(&host).status("steps").await["status"] == "PAUSED").then_some(())
        })
        .await;
        assert_eq!(db.number(saved).await, total);
        connection.through(&host).control("start", "steps").await.expect(200);
    }
}

#[tokio::test]
async fn starting_a_paused_sync_runs_it_at_once() {
    let stage = Stage::hostile().await;
    stage.control("pause", "steps").await.expect(200);
    let before = stage.status("steps").await["finishedAt"].clone();
    set_steps(&stage, 2).await;
    let answer = stage.control("start", "steps").await.expect(200);
    assert_eq!(answer.text(), "");
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    assert_eq!(status["status"], "SUCCESS");
    assert!(status["nextScheduledSyncAt"].is_string(), "the sync continues at its frequency: {status}");
    assert_eq!(steps(&stage).await.len(), 2);
}

#[tokio::test]
async fn starting_an_unpaused_sync_has_no_effect() {
    let stage = Stage::hostile().await;
    let before = stage.status("steps").await;
    stage.control("start", "steps").await.expect(200);
    assert!(nothing_is_due(&stage).await);
    assert_eq!(stage.status("steps").await, before);
}

#[tokio::test]
async fn triggering_a_paused_sync_runs_it_once_and_keeps_it_paused() {
    let stage = Stage::hostile().await;
    stage.control("pause", "steps").await.expect(200);
    set_steps(&stage, 2).await;
    let status = stage.run("steps").await;
    assert_eq!(status["status"], "PAUSED");
    assert_eq!(steps(&stage).await.len(), 2);
    assert!(nothing_is_due(&stage).await);
}

#[tokio::test]
async fn triggers_during_a_run_cause_exactly_one_more_run() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 30).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    for _ in 0..5 {
        let answer = stage.control("trigger", "steps").await.expect(200);
        assert_eq!(answer.text(), "");
    }
    eventually("no sync is due", async || nothing_is_due(&stage).await.then_some(())).await;
    assert_eq!(
        runs_of(&stage, "steps").await,
        3,
        "the connection's first run, the triggered run, and one more"
    );
    assert_eq!(saving_runs(&steps(&stage).await).len(), 1, "the follow-up continued from the checkpoint");
}

#[tokio::test]
async fn a_trigger_continues_from_the_checkpoint_and_a_reset_starts_over() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 5).await;
    let first = stage.run("steps").await;
    assert_eq!(first["checkpoint"], json!({ "cursor": "5" }));
    assert_eq!(first["latestResult"], json!({ "Step": { "added": 5, "updated": 0, "deleted": 0 } }));

    set_steps(&stage, 7).await;
    let continued = stage.run("steps").await;
    assert_eq!(continued["latestResult"], json!({ "Step": { "added": 2, "updated": 0, "deleted": 0 } }));

    let restarted = stage.run_with("steps", json!({ "reset": true })).await;
    assert_eq!(restarted["latestResult"], json!({ "Step": { "added": 0, "updated": 7, "deleted": 0 } }));
    assert_eq!(restarted["checkpoint"], json!({ "cursor": "7" }));
    assert_eq!(saving_runs(&steps(&stage).await).len(), 1);
}

#[tokio::test]
async fn emptying_the_cache_saves_records_again_after_the_old_positions() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 5).await;
    stage.run("steps").await;
    let before = steps(&stage).await;
    let cursor = cursor_of(&before[4]);
    set_steps(&stage, 3).await;
    let status = stage.run_with("steps", json!({ "reset": true, "emptyCache": true })).await;
    assert_eq!(status["latestResult"], json!({ "Step": { "added": 3, "updated": 0, "deleted": 0 } }));
    assert_eq!(status["recordCount"], json!({ "Step": 3 }));
    let after = steps(&stage).await;
    assert_eq!(after.len(), 3, "the old records are removed without tombstones");
    assert_ne!(after[0][METADATA_KEY]["first_seen_at"], before[0][METADATA_KEY]["first_seen_at"]);
    let page = stage.page(&[("model", "Step"), ("cursor", cursor)]).await;
    assert_eq!(page.records, after, "a reader with an old cursor reads the new records");
}

#[tokio::test]
async fn records_removed_by_emptying_the_cache_are_not_reported() {
    let stage = Stage::hostile().await;
    stage
        .db
        .execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/', on_sync_error = false")
        .await;
    let metadata = |items: &Value, end: &str| json!({ "steps": 0, "commits": [{ "changes": [save(items)] }], "end": end });
    stage.set_metadata(metadata(&json!([{ "id": "a" }, { "id": "b" }]), "fail")).await;
    assert_eq!(stage.run("commit-raw").await["status"], "ERROR");
    stage.set_metadata(metadata(&json!([{ "id": "c" }]), "return")).await;
    stage.run_with("commit-raw", json!({ "reset": true, "emptyCache": true })).await;
    let reported =
        "SELECT body FROM outbound_webhook_deliveries WHERE type = 'sync' ORDER BY pk DESC LIMIT 1";
    let reported: Value = serde_json::from_str(&stage.db.texts(reported).await[0]).unwrap();
    assert_eq!(reported["responseResults"], json!({ "added": 1, "updated": 0, "deleted": 0 }));
}

#[tokio::test]
async fn emptying_the_cache_without_a_reset_has_no_effect() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 3).await;
    stage.run("steps").await;
    let before = steps(&stage).await;
    stage.run_with("steps", json!({ "emptyCache": true })).await;
    assert_eq!(steps(&stage).await, before);
}

#[tokio::test]
async fn a_reset_during_a_run_cancels_it_and_starts_over() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 2_000).await;
    stage.trigger("steps").await;
    eventually("some steps are saved", async || (steps(&stage).await.len() >= 5).then_some(())).await;
    set_steps(&stage, 5).await;
    let body = json!({
        "provider_config_key": "hostile", "connection_id": stage.id, "syncs": ["steps"],
        "opts": { "reset": true, "emptyCache": true },
    });
    stage.host.post("/sync/trigger", &body).await.expect(200);
    eventually("no sync is due", async || nothing_is_due(&stage).await.then_some(())).await;
    let after = steps(&stage).await;
    assert_eq!((after.len(), saving_runs(&after).len()), (5, 1));
    assert_eq!(stage.status("steps").await["checkpoint"], json!({ "cursor": "5" }));
}

#[tokio::test]
async fn legacy_reset_options_work() {
    let stage = Stage::hostile().await;
    set_steps(&stage, 2).await;
    stage.run("steps").await;
    for (form, added, updated) in [
        (json!({ "sync_mode": "incremental" }), 0, 0),
        (json!({ "sync_mode": "full_refresh" }), 0, 2),
        (json!({ "sync_mode": "full_refresh_and_clear_cache" }), 2, 0),
        (json!({ "full_resync": true }), 0, 2),
        (json!({ "full_resync": false }), 0, 0),
    ] {
        let before = stage.status("steps").await["finishedAt"].clone();
        let mut body = form.clone();
        body["syncs"] = json!(["steps"]);
        stage.request("POST", "/sync/trigger").json(&body).send().await.expect(200);
        let status = stage.wait_for_finish_after("steps", before.as_str()).await;
        let expected = json!({ "Step": { "added": added, "updated": updated, "deleted": 0 } });
        assert_eq!(status["latestResult"], expected, "{form}");
    }
}

#[tokio::test]
async fn commands_apply_to_all_syncs_and_connections_unless_named() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    let states = async || {
        let mut states = Vec::new();
        for connection in [&stage.connection, &other] {
            for status in connection.statuses("*").await {
                states.push(text(&status["status"]).to_owned());
            }
        }
        states
    };
    let pause = async |body: Value| stage.host.post("/sync/pause", &body).await.expect(200);
    let start_all = json!({ "provider_config_key": "hostile", "syncs": [] });
    for (body, expected) in [
        (
            json!({ "provider_config_key": "hostile", "connection_id": stage.id, "syncs": ["steps"] }),
            [0, 1, 0, 0],
        ),
        (
            json!({ "provider_config_key": "hostile", "connection_id": stage.id, "syncs": ["steps::base"] }),
            [0, 1, 0, 0],
        ),
        (
            json!({ "provider_config_key": "hostile", "connection_id": stage.id,
                    "syncs": [{ "name": "steps", "variant": "base" }] }),
            [0, 1, 0, 0],
        ),
        (
            json!({ "provider_config_key": "hostile", "connection_id": stage.id, "syncs": [{ "name": "steps" }] }),
            [0, 1, 0, 0],
        ),
        (json!({ "provider_config_key": "hostile", "connection_id": stage.id, "syncs": [] }), [1, 1, 0, 0]),
        (json!({ "provider_config_key": "hostile", "syncs": ["commit-raw"] }), [1, 0, 1, 0]),
        (json!({ "provider_config_key": "hostile", "syncs": [] }), [1, 1, 1, 1]),
    ] {
        pause(body.clone()).await;
        let expected = expected.map(|is_paused| if is_paused == 1 { "PAUSED" } else { "SUCCESS" });
        assert_eq!(states().await, expected, "{body}");
        stage.host.post("/sync/start", &start_all).await.expect(200);
        eventually("no sync is due", async || nothing_is_due(&stage).await.then_some(())).await;
    }
}

#[tokio::test]
async fn a_trigger_runs_only_the_named_syncs() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    stage.host.deploy(&Bundle::example("minimal")).await;
    let stranger = stage.host.connect_as("customer-1", "minimal", json!({ "count": 1 })).await;
    let of_variant = json!({ "provider_config_key": "hostile", "connection_id": stage.id });
    stage.host.post("/sync/steps/variant/second", &of_variant).await.expect(200);
    for connection in [&stage.connection, &other, &stranger] {
        connection.wait_until_idle().await;
    }
    let triggered = async |after: i64| {
        let sql = format!(
            "SELECT concat_ws(' ', i.unique_key, c.connection_id, r.function_name, r.variant)
             FROM runs r JOIN connections c ON c.pk = r.connection_pk JOIN integrations i ON i.pk = r.integration_pk
             WHERE r.fence > {after}"
        );
        let mut runs = stage.db.texts(&sql).await;
        runs.sort();
        runs
    };
    let base = json!({ "provider_config_key": "hostile", "syncs": [] });
    for (change, expected) in [
        (
            json!({ "connection_id": "customer-1" }),
            &["customer-1 commit-raw base", "customer-1 steps base", "customer-1 steps second"][..],
        ),
        (json!({ "syncs": ["steps"] }), &["customer-1 steps base", "customer-2 steps base"]),
        (json!({ "syncs": ["steps::second"] }), &["customer-1 steps second"]),
        (
            json!({ "connection_id": "customer-1", "syncs": [{ "name": "steps", "variant": "second" }] }),
            &["customer-1 steps second"],
        ),
        (
            json!({ "connection_id": "customer-1", "syncs": ["commit-raw", "steps::second"] }),
            &["customer-1 commit-raw base", "customer-1 steps second"],
        ),
        (
            json!({}),
            &[
                "customer-1 commit-raw base",
                "customer-1 steps base",
                "customer-1 steps second",
                "customer-2 commit-raw base",
                "customer-2 steps base",
            ],
        ),
    ] {
        let before = stage.db.number("SELECT max(fence) FROM runs").await;
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        stage.host.post("/sync/trigger", &body).await.expect(200);
        eventually("no sync is due", async || nothing_is_due(&stage).await.then_some(())).await;
        let expected: Vec<String> = expected.iter().map(|run| format!("hostile {run}")).collect();
        assert_eq!(triggered(before).await, expected, "{body}");
    }
}

#[tokio::test]
async fn a_sync_without_auto_start_waits_to_be_started() {
    let table = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    let hostile = || Bundle::guest("hostile");
    let stage = Stage::of(&hostile().replace(table, ""), json!({ "steps": 2, "pause_ms": 0 })).await;
    // The existing connection gets the sync with a deployment.
    stage.host.deploy(&hostile().replace(table, &format!("{table}auto_start = false\n"))).await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 2, "pause_ms": 0 })).await;
    let of_variant = json!({ "provider_config_key": "hostile", "connection_id": stage.id });
    stage.host.post("/sync/steps/variant/second", &of_variant).await.expect(200);
    other.wait_for_finish_after("commit-raw", None).await;
    eventually("no sync is due", async || nothing_is_due(&stage).await.then_some(())).await;
    let waiting = [(&stage.connection, "steps"), (&stage.connection, "steps::second"), (&other, "steps")];
    for (connection, sync) in waiting {
        let status = connection.status(sync).await;
        assert_eq!((&status["status"], &status["nextScheduledSyncAt"]), (&json!("PAUSED"), &Value::Null));
        assert_eq!(status["finishedAt"], Value::Null, "the sync has never run: {status}");
    }
    assert_eq!(runs_of(&stage, "steps").await, 0);

    let start = json!({ "provider_config_key": "hostile", "syncs": ["steps", "steps::second"] });
    stage.host.post("/sync/start", &start).await.expect(200);
    for (connection, sync) in waiting {
        let status = connection.wait_for_finish_after(sync, None).await;
        assert_eq!((&status["status"], &status["recordCount"]), (&json!("SUCCESS"), &json!({ "Step": 2 })));
        assert!(status["nextScheduledSyncAt"].is_string(), "the sync continues at its frequency: {status}");
    }
}

#[tokio::test]
async fn a_cron_sync_runs_repeatedly_at_its_local_time() {
    let table = "[integrations.hostile.syncs.steps]\nruns = ";
    // Six o'clock in Kathmandu is 00:15 UTC, all year round.
    let six = "\"0 6 * * *\"\ntimezone = \"Asia/Kathmandu\"";
    let bundle =
        Bundle::guest("hostile").replace(&format!("{table}\"every 1 hour\""), &format!("{table}{six}"));
    let stage = Stage::of(&bundle, json!({ "steps": 1 })).await;
    let next = async || {
        let status = stage.status("steps").await;
        assert_eq!((&status["status"], &status["frequency"]), (&json!("SUCCESS"), &json!("0 6 * * *")));
        let next = text(&status["nextScheduledSyncAt"]).to_owned();
        let at = chrono::DateTime::parse_from_rfc3339(&next).unwrap().to_utc();
        assert!((0..=1_440).contains(&(at - chrono::Utc::now()).num_minutes()), "{next}");
        next
    };
    assert!(next().await.ends_with("T00:15:00.000Z"), "cron has no jitter: {}", next().await);
    let before = stage.status("steps").await["finishedAt"].clone();
    // Makes the sync due.
    stage.db.execute("UPDATE schedules SET due_at = now() WHERE sync_name = 'steps'").await;
    stage.wait_for_finish_after("steps", before.as_str()).await;
    assert!(next().await.ends_with("T00:15:00.000Z"), "{}", next().await);
    let triggers = stage.db.texts("SELECT trigger FROM runs WHERE function_name = 'steps'").await;
    assert_eq!(triggers, ["schedule", "schedule"]);
}

#[tokio::test]
async fn the_status_query_count_does_not_grow_with_connections() {
    const CONNECTIONS: u64 = 25;
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    let host = HostOptions::new().database_through(&proxy).spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    for number in 1..=CONNECTIONS {
        host.connect_as(&format!("customer-{number}"), "hostile", json!({ "steps": number })).await;
    }
    let path = "/sync/status?provider_config_key=hostile&syncs=steps";
    let statuses = eventually("all syncs have run", async || {
        let statuses = host.get(path).await.expect(200).json()["syncs"].clone();
        let have_run = |statuses: &Vec<Value>| statuses.iter().all(|status| status["status"] == "SUCCESS");
        statuses.as_array().filter(|statuses| have_run(statuses)).cloned()
    })
    .await;
    assert_eq!(statuses.len() as u64, CONNECTIONS);
    for (status, number) in statuses.iter().zip(1..) {
        assert_eq!(status["connection_id"], format!("customer-{number}"));
        assert_eq!(
            status["recordCount"],
            json!({ "Step": number }),
            "each connection has its own count: {status}"
        );
    }
    let before = proxy.statements();
    host.get(path).await.expect(200);
    let asked = proxy.statements() - before;
    assert!(asked < CONNECTIONS as usize, "{asked} statements were executed");
}

#[tokio::test]
async fn the_status_of_several_syncs_can_be_requested() {
    let stage = Stage::hostile().await;
    let names = async |syncs: &str| {
        let statuses = stage.statuses(syncs).await;
        statuses.iter().map(|status| text(&status["name"]).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("*").await, ["commit-raw", "steps"]);
    assert_eq!(names("steps,commit-raw").await, ["commit-raw", "steps"]);
    assert_eq!(names("steps::base").await, ["steps"]);
    let everywhere =
        stage.host.get("/sync/status?provider_config_key=hostile&syncs=*").await.expect(200).json();
    assert_eq!(everywhere["syncs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_failed_sync_shows_an_error_until_it_succeeds() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 0, "end": "fail" })).await;
    let errors = async || {
        let path = "/connections/customer-1?provider_config_key=hostile";
        stage.host.get(path).await.expect(200).json()["errors"].clone()
    };
    assert_eq!(errors().await, json!([]));
    let failed = stage.run("commit-raw").await;
    let shown_errors = errors().await;
    assert_eq!(shown_errors.as_array().map(Vec::len), Some(1), "{shown_errors}");
    assert_eq!(shown_errors[0]["type"], "sync");
    assert_eq!((&failed["status"], &failed["latestExecutionStatus"]), (&json!("ERROR"), &json!("STOPPED")));
    let mended = stage.commit(json!([save(&json!([{ "id": "a" }]))])).await;
    assert_eq!((&mended["status"], &mended["latestExecutionStatus"]), (&json!("SUCCESS"), &json!("SUCCESS")));
    assert_eq!(errors().await, json!([]));
}

#[tokio::test]
async fn schedules_use_the_clock_of_the_database() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    // The hosts' clocks are two hours behind the database.
    stage.db.shift_clock(2).await;
    let host = Host::spawn(&stage.db).await;
    let behind = stage.through(&host);
    drop(stage.host);
    let seconds_to_next = async |sync: &str| {
        let busy = "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL OR due_at <= now()";
        eventually("nothing is due", async || (stage.db.number(busy).await == 0).then_some(())).await;
        let due_in = "SELECT extract(epoch FROM due_at - now())::bigint FROM schedules";
        stage.db.number(&format!("{due_in} WHERE sync_name = '{sync}'")).await
    };
    // A retry, the next scheduled run, and one with another frequency.
    behind.set_metadata(json!({ "steps": 0, "end": "fail" })).await;
    behind.run("commit-raw").await;
    let next = seconds_to_next("commit-raw").await;
    assert!((0..=60).contains(&next), "the retry is in {next} s");
    behind.set_metadata(json!({ "steps": 0 })).await;
    behind.run("commit-raw").await;
    let next = seconds_to_next("commit-raw").await;
    assert!((3_500..=3_700).contains(&next), "the next run is in {next} s");
    let body = json!({
        "provider_config_key": "hostile", "connection_id": behind.id, "sync_name": "commit-raw",
        "frequency": "every 10 minutes",
    });
    host.put("/sync/update-connection-frequency", &body).await.expect(200);
    let next = seconds_to_next("commit-raw").await;
    assert!((500..=700).contains(&next), "the next run is in {next} s");
    let bundle = Bundle::guest("hostile");
    let table = "[integrations.hostile.syncs.steps]\nruns = ";
    host.deploy(&bundle.replace(&format!("{table}\"every 1 hour\""), &format!("{table}\"every 2 hours\"")))
        .await;
    let next = seconds_to_next("steps").await;
    assert!((7_100..=7_300).contains(&next), "the next run is in {next} s");
}

#[tokio::test]
async fn a_command_for_all_syncs_survives_a_deadlock() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    let schedules = stage.db.texts("SELECT pk::text FROM schedules ORDER BY pk").await;
    let pause_all = json!({ "provider_config_key": "hostile", "syncs": [] });
    let lock = |pk: &str| format!("SELECT pk FROM schedules WHERE pk = {pk} FOR UPDATE");
    // The command locks the schedules in an unknown order, so only one of the two orders here causes a deadlock.
    // Postgres may also choose the other transaction as the victim.
    for (first, second) in [(0, 1), (1, 0)].into_iter().cycle().take(20) {
        let mut conn = stage.db.connect().await;
        let mut tx = conn.begin().await.unwrap();
        let patient = "SET LOCAL deadlock_timeout = '3s'";
        sqlx::query(patient).execute(&mut *tx).await.unwrap();
        sqlx::query(AssertSqlSafe(lock(&schedules[first]))).execute(&mut *tx).await.unwrap();
        let pausing = stage.host.post("/sync/pause", &pause_all);
        let meeting = async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                         AND wait_event_type = 'Lock' AND query LIKE '%UPDATE schedules s%'";
            eventually("the command waits for the lock", async || {
                (stage.db.number(waits).await == 1).then_some(())
            })
            .await;
            let free = format!("{} SKIP LOCKED", lock(&schedules[second]));
            let is_met = stage.db.texts(&free.replace("SELECT pk", "SELECT pk::text")).await.is_empty();
            let locked = sqlx::query(AssertSqlSafe(lock(&schedules[second]))).execute(&mut *tx).await;
            tx.rollback().await.unwrap();
            is_met && locked.is_ok()
        };
        let (answer, was_its_victim) = tokio::join!(pausing, meeting);
        answer.expect(200);
        assert_eq!(stage.db.number("SELECT count(*) FROM schedules WHERE state = 'paused'").await, 2);
        if was_its_victim {
            return;
        }
    }
    panic!("there was no deadlock");
}

#[tokio::test]
async fn the_status_of_an_integrations_syncs_can_be_read_in_pages() {
    let stage = Stage::hostile().await;
    for id in ["customer-2", "customer-3"] {
        stage.host.connect_as(id, "hostile", json!({ "steps": 0 })).await;
    }
    let path = "/sync/status?provider_config_key=hostile&syncs=*";
    let ids = |answer: &Value| {
        let syncs = answer["syncs"].as_array().expect("a list").iter();
        syncs.map(|sync| sync["id"].to_string()).collect::<Vec<_>>()
    };
    let all = stage.host.get(path).await.expect(200).json();
    assert_eq!(
        (ids(&all).len(), all.get("next_cursor")),
        (6, None),
        "without a limit, all are returned: {all}"
    );

    let (mut read, mut sizes) = (Vec::new(), Vec::new());
    let mut page = stage.host.get(&format!("{path}&limit=4")).await.expect(200).json();
    loop {
        sizes.push(ids(&page).len());
        read.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        page = stage.host.get(&format!("{path}&limit=4&cursor={cursor}")).await.expect(200).json();
    }
    assert_eq!(sizes, [4, 2]);
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(read), sorted(ids(&all)));
    let foreign = stage.host.get(&format!("{path}&cursor=AAAA")).await;
    assert_eq!(foreign.refusal(), (400, "invalid_cursor".to_owned()));
}
