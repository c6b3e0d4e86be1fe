//! Statistics of runs, and counts of what needs attention.

use std::time::Duration;

use serde_json::json;
use syncline_engine::{Attention, MAX_ATTENTION, Overview, Statistics, StatisticsRange};
use syncline_store::{Databases, Store};
use syncline_telemetry::clock::Clock;
use syncline_types::ids::EnvironmentPk;

use crate::support::{Bundle, Host, HostOptions, Stage, TestDatabase, assert_settled, eventually, save};

const ENDED: &str = "SELECT count(*) FROM runs WHERE state <> 'running'";

async fn open(db: &TestDatabase) -> Store {
    let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
    Store::open(databases, 4).await.expect("it can be opened")
}

async fn environment(db: &TestDatabase) -> EnvironmentPk {
    EnvironmentPk(db.number("SELECT pk FROM environments WHERE name = 'dev'").await)
}

/// The statistics of the default environment.
async fn overview(db: &TestDatabase, range: StatisticsRange) -> Overview {
    let statistics = Statistics::new(Clock::system(), open(db).await);
    statistics.overview(environment(db).await, None, range).await.expect("the statistics can be read")
}

async fn attention(db: &TestDatabase) -> Attention {
    let statistics = Statistics::new(Clock::system(), open(db).await);
    statistics.attention(environment(db).await).await.expect("the counts can be read")
}

/// Waits until all runs that have ended are counted.
async fn wait_until_counted(db: &TestDatabase, at_least: i64) {
    // In one statement, because a run can end between two.
    let counted =
        format!("SELECT CASE WHEN EXISTS (SELECT FROM ended_runs) THEN 0::bigint ELSE ({ENDED}) END");
    eventually("all runs are counted", async || (db.number(&counted).await >= at_least).then_some(())).await;
}

#[tokio::test]
async fn an_overview_shows_runs_failures_records_and_times() {
    let stage = Stage::hostile().await;
    stage.connection.commit(json!([save(&json!([{ "id": "1" }, { "id": "2" }]))])).await;
    stage.connection.action("fail", &json!({ "code": "plain", "message": "on purpose" })).await.expect(400);
    wait_until_counted(&stage.db, 2).await;
    for range in [StatisticsRange::Day, StatisticsRange::Week, StatisticsRange::Month] {
        let shown = overview(&stage.db, range).await;
        let ended = stage.db.number(ENDED).await;
        let failed = stage.db.number("SELECT count(*) FROM runs WHERE state = 'error'").await;
        let saved = stage.db.number("SELECT coalesce(sum(records), 0)::bigint FROM runs").await;
        let totals = &shown.totals;
        assert_eq!(
            (totals.runs(), totals.failures(), totals.records_saved),
            (ended, failed, saved),
            "{range:?}"
        );
        assert!(failed > 0 && saved >= 2, "{failed} runs failed and {saved} records were saved");
        assert!(totals.duration_p50.is_some() && totals.duration_p95 >= totals.duration_p50, "{totals:?}");
        let keys: Vec<_> =
            shown.integrations.iter().map(|of| of.integration.as_ref().unwrap().as_str()).collect();
        assert_eq!(keys, ["hostile"], "{range:?}");
        assert_eq!(shown.integrations[0].figures, shown.totals, "{range:?}");
        let points = match range {
            StatisticsRange::Day => 24,
            StatisticsRange::Week => 28,
            StatisticsRange::Month => 30,
        };
        assert_eq!(shown.points.len(), points, "{range:?}");
        let in_points: i64 = shown.points.iter().map(|point| point.figures.runs()).sum();
        assert_eq!(in_points, ended, "{range:?}");
    }
}

#[tokio::test]
async fn the_queue_delay_of_a_sync_is_the_time_from_due_to_start() {
    let stage = Stage::numbers(3).await;
    stage.connection.wait_until_idle().await;
    stage.host.freeze();
    stage.db.execute("UPDATE schedules SET due_at = now() - interval '100 seconds'").await;
    stage.host.thaw();
    let delayed = "SELECT count(*) FROM runs WHERE started_at - due_at >= interval '100 seconds'";
    eventually("the sync has run late", async || (stage.db.number(delayed).await == 1).then_some(())).await;
    stage.connection.wait_until_idle().await;
    wait_until_counted(&stage.db, 2).await;
    let late = overview(&stage.db, StatisticsRange::Day).await.totals.queue_delay_p95;
    let late = late.expect("syncs wait in a queue");
    assert!(late > Duration::from_secs(80) && late < Duration::from_secs(200), "{late:?}");
}

#[tokio::test]
async fn two_hosts_count_each_run_once() {
    let stage = Stage::numbers(3).await;
    let second = Host::spawn(&stage.db).await;
    let there = stage.connection.through(&second);
    let input = json!(1);
    for _ in 0..30 {
        let calls = [&stage.connection, &there].map(|connection| connection.action("echo", &input));
        futures_util::future::join_all(calls).await;
    }
    wait_until_counted(&stage.db, 60).await;
    assert_settled(&stage.db).await;
    for hours in [1, 6, 24] {
        let counted =
            format!("SELECT sum(succeeded + failed)::bigint FROM run_statistics WHERE hours = {hours}");
        assert_eq!(stage.db.number(&counted).await, stage.db.number(ENDED).await, "{hours} hours");
        let measured = format!(
            "SELECT sum(runs)::bigint FROM run_statistics, unnest(durations) AS runs WHERE hours = {hours}"
        );
        assert_eq!(stage.db.number(&measured).await, stage.db.number(ENDED).await, "{hours} hours");
    }
}

#[tokio::test]
async fn the_runs_of_a_killed_host_are_counted_once() {
    let db = TestDatabase::create().await;
    let options = || HostOptions::new().database(&db).variable("SYNCLINE_LEASE_SECONDS", "1");
    let mut host = options().spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect_as("customer-1", "hostile", json!({ "steps": 40, "pause_ms": 25 })).await;
    connection.wait_until_running("steps").await;
    host.kill();
    let second = options().spawn().await;
    connection.through(&second).wait_until_idle().await;
    let outcomes = "SELECT sum(lost)::text || ' lost, ' || sum(succeeded)::text || ' succeeded'
                    FROM run_statistics WHERE hours = 1 AND kind = 'sync'";
    wait_until_counted(&db, 2).await;
    let expected = db
        .texts(
            "SELECT count(*) FILTER (WHERE state = 'lost')::text || ' lost, '
                    || count(*) FILTER (WHERE state = 'success')::text || ' succeeded'
             FROM runs WHERE kind = 'sync' AND state <> 'running'",
        )
        .await;
    assert_eq!(db.texts(outcomes).await, expected);
    assert!(!expected[0].starts_with("0 lost"), "{expected:?}");
    assert_settled(&db).await;
}

#[tokio::test]
async fn statistics_are_deleted_after_90_days() {
    let db = TestDatabase::create().await;
    Host::spawn(&db).await.stop().await;
    db.execute(
        "INSERT INTO run_statistics
         SELECT pk, 24, now() - age * interval '1 day', 1, 'sync', 1, 0, 0, 0, 0, 0, 0, 0, '{}', 0, '{}'
         FROM environments, unnest(ARRAY[1, 89, 91, 200]) AS age",
    )
    .await;
    let _host = Host::spawn(&db).await;
    let left = "SELECT count(*) FROM run_statistics";
    eventually("old statistics are deleted", async || (db.number(left).await == 2).then_some(())).await;
}

#[tokio::test]
async fn attention_counts_errors_held_deletions_dead_letters_and_failed_deliveries() {
    let stage = Stage::numbers(3).await;
    assert_eq!(
        attention(&stage.db).await,
        Attention {
            failing_connections: 0,
            failing_syncs: 0,
            held_deletions: 0,
            dead_letters: 0,
            failed_deliveries: 0
        }
    );
    stage
        .db
        .execute(
            "INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
             SELECT c.environment_pk, c.pk, 'sync', 'numbers::base', r.id, 'mass_deletion_held', ''
             FROM connections c JOIN runs r ON r.connection_pk = c.pk LIMIT 1;
             INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
             SELECT environment_pk, pk, 'auth', '', gen_random_uuid(), 'invalid_credentials', '' FROM connections;
             INSERT INTO dead_letters (connection_pk, stream_no, letter_key, environment_pk, integration_pk,
                                       function_name, run_id, problems, payload, position, first_seen_at, last_seen_at)
             SELECT s.connection_pk, s.stream_no, 'id:' || number, c.environment_pk, c.integration_pk, 'numbers', '',
                    '[]', '{}', 0, now(), now()
             FROM streams s JOIN connections c ON c.pk = s.connection_pk, generate_series(1, 1001) AS number;
             INSERT INTO outbound_webhook_deliveries (id, message_id, environment_pk, type, url, body, state)
             SELECT gen_random_uuid(), gen_random_uuid(), pk, 'sync', 'http://a.test', '', state
             FROM environments, unnest(ARRAY['failed', 'failed', 'delivered']) AS state",
        )
        .await;
    let counts = Attention {
        failing_connections: 1,
        failing_syncs: 1,
        held_deletions: 1,
        dead_letters: MAX_ATTENTION,
        failed_deliveries: 2,
    };
    assert_eq!(attention(&stage.db).await, counts);
    stage.db.execute("UPDATE runs SET approved_at = now()").await;
    assert_eq!(attention(&stage.db).await, Attention { held_deletions: 0, ..counts });
}
