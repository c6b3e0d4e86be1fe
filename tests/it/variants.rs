//! Variants of a sync, and the frequency of one connection's sync.

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::{Answer, Bundle, Stage, cursor_of, eventually};

fn body(stage: &Stage) -> Value {
    json!({ "provider_config_key": stage.integration, "connection_id": stage.id })
}

async fn create(stage: &Stage, sync: &str, variant: &str) -> Answer {
    stage.host.post(&format!("/sync/{sync}/variant/{variant}"), &body(stage)).await
}

async fn delete(stage: &Stage, sync: &str, variant: &str) -> Answer {
    stage.host.request("DELETE", &format!("/sync/{sync}/variant/{variant}")).json(&body(stage)).send().await
}

async fn numbers(stage: &Stage, variant: &str) -> Vec<Value> {
    stage.all(&[("model", "Number"), ("variant", variant), ("limit", "500")]).await
}

async fn set_frequency(stage: &Stage, sync: &str, frequency: &Value) -> Answer {
    let mut request = body(stage);
    request["sync_name"] = json!(sync);
    request["frequency"] = frequency.clone();
    stage.host.put("/sync/update-connection-frequency", &request).await
}

#[tokio::test]
async fn a_variant_has_its_own_schedule_and_records() {
    let stage = Stage::numbers(20).await;
    let made = create(&stage, "numbers", "second").await.expect(200).json();
    assert_eq!((&made["name"], &made["variant"]), (&json!("numbers"), &json!("second")));
    stage.wait_until_idle().await;

    let statuses = stage.statuses("*").await;
    let variants: Vec<_> = statuses.iter().map(|status| &status["variant"]).collect();
    assert!(variants.contains(&&json!("base")) && variants.contains(&&json!("second")), "{statuses:?}");
    assert_eq!(numbers(&stage, "second").await.len(), 20);
    let status = stage.status("numbers::second").await;
    assert_eq!((&status["id"], &status["status"]), (&made["id"], &json!("SUCCESS")));

    stage.control("pause", "numbers::second").await.expect(200);
    assert_eq!(stage.status("numbers::second").await["status"], "PAUSED");
    assert_eq!(stage.status("numbers").await["status"], "SUCCESS", "the base variant continues");
}

#[tokio::test]
async fn a_variant_has_its_own_checkpoint() {
    let stage = Stage::hostile().await;
    let set_steps = async |steps: u32| stage.set_metadata(json!({ "steps": steps, "pause_ms": 0 })).await;
    let added = |status: &Value| status["latestResult"]["Step"]["added"].clone();
    set_steps(3).await;
    stage.run("steps").await;
    set_steps(5).await;
    create(&stage, "steps", "second").await.expect(200);
    let second = stage.wait_for_finish_after("steps::second", None).await;
    assert_eq!((added(&second), &second["checkpoint"]), (json!(5), &json!({ "cursor": "5" })), "{second}");
    assert_eq!(stage.status("steps").await["checkpoint"], json!({ "cursor": "3" }));
    let base = stage.run("steps").await;
    assert_eq!((added(&base), &base["checkpoint"]), (json!(2), &json!({ "cursor": "5" })), "{base}");

    set_steps(6).await;
    stage.run_with("steps::second", json!({ "reset": true })).await;
    assert_eq!(stage.status("steps").await["checkpoint"], json!({ "cursor": "5" }));
    assert_eq!(added(&stage.run("steps").await), json!(1));
    set_steps(7).await;
    assert_eq!(added(&stage.run("steps::second").await), json!(1));
}

#[tokio::test]
async fn deleting_a_variant_removes_its_records_and_nothing_else() {
    let stage = Stage::numbers(20).await;
    create(&stage, "numbers", "second").await.expect(200);
    stage.wait_until_idle().await;
    let old = cursor_of(numbers(&stage, "second").await.last().expect("there are records")).to_owned();

    let answer = delete(&stage, "numbers", "second").await.expect(200);
    assert_eq!(answer.text(), "");
    assert_eq!(numbers(&stage, "second").await, Vec::<Value>::new());
    assert_eq!(numbers(&stage, "base").await.len(), 20);
    assert_eq!(delete(&stage, "numbers", "second").await.refusal(), (404, "unknown_variant".to_owned()));

    // A new variant of the same name starts over, but its positions continue: a reader with an old cursor gets all
    // records again.
    create(&stage, "numbers", "second").await.expect(200);
    stage.wait_until_idle().await;
    let page =
        stage.page(&[("model", "Number"), ("variant", "second"), ("limit", "500"), ("cursor", &old)]).await;
    assert_eq!(page.records.len(), 20);
}

#[tokio::test]
async fn deleting_a_variant_clears_its_seen_positions() {
    let bundle = Bundle::guest("hostile").tracking_deletes("commit-raw");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let saves = json!({ "save": { "model": "Item", "items": r#"[{"id":"a"},{"id":"b"}]"# } });
    let metadata = json!({ "steps": 0, "commits": [{ "changes": [saves] }], "end": "fail" });
    stage.set_metadata(metadata.clone()).await;
    create(&stage, "commit-raw", "second").await.expect(200);
    for _ in 0..2 {
        stage.run("commit-raw::second").await;
    }
    let seen_positions = "SELECT count(*) FROM seen_positions";
    // Another run may have begun meanwhile, which drops the positions until its commit.
    eventually("a run has seen records", async || (stage.db.number(seen_positions).await > 0).then_some(()))
        .await;
    delete(&stage, "commit-raw", "second").await.expect(200);
    assert_eq!(stage.db.number(seen_positions).await, 0);
}

#[tokio::test]
async fn records_of_an_undeclared_model_are_removed_with_their_variant() {
    let declares = |models: &str| {
        let table = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\n";
        let items = "[integrations.hostile.syncs.commit-raw]\nruns = \"every 1 hour\"\n";
        Bundle::guest("hostile")
            .replace(&format!("{table}model = \"Step\"\n"), "")
            .replace(&format!("{items}model = \"Item\""), &format!("{items}models = {models}"))
    };
    let stage = Stage::of(&declares(r#"["Item", "Step"]"#), json!({ "steps": 0 })).await;
    let save = |model: &str, items: &str| json!({ "save": { "model": model, "items": items } });
    let both = [save("Item", r#"[{"id":"a"}]"#), save("Step", r#"[{"id":"a","run":"b"}]"#)];
    stage.set_metadata(json!({ "steps": 0, "commits": [{ "changes": both }] })).await;
    stage.run("commit-raw").await;
    create(&stage, "commit-raw", "second").await.expect(200);
    stage.wait_until_idle().await;
    stage.host.deploy(&declares(r#"["Item"]"#)).await;
    let stored = async |variant: &str| {
        let of = |model| [("model", model), ("variant", variant)];
        (stage.all(&of("Item")).await.len(), stage.all(&of("Step")).await.len())
    };
    assert_eq!((stored("base").await, stored("second").await), ((1, 1), (1, 1)));
    delete(&stage, "commit-raw", "second").await.expect(200);
    assert_eq!((stored("base").await, stored("second").await), ((1, 1), (0, 0)));
    stage.set_metadata(json!({ "steps": 0 })).await;
    stage.run_with("commit-raw", json!({ "reset": true, "emptyCache": true })).await;
    assert_eq!(stored("base").await, (0, 0));
}

#[tokio::test]
async fn a_variant_can_be_deleted_while_its_sync_runs() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 1_000, "pause_ms": 10 })).await;
    create(&stage, "steps", "doomed").await.expect(200);
    let records = async || stage.all(&[("model", "Step"), ("variant", "doomed"), ("limit", "500")]).await;
    eventually("the run has saved something", async || (!records().await.is_empty()).then_some(())).await;

    delete(&stage, "steps", "doomed").await.expect(200);
    assert_eq!(records().await, Vec::<Value>::new());
    let log = "SELECT count(*) FROM runs WHERE variant = 'doomed' AND state = 'running'";
    assert_eq!(stage.db.number(log).await, 0);
    // The run would have saved a hundred more steps by now.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(records().await, Vec::<Value>::new());
}

#[tokio::test]
async fn deleting_a_variant_survives_a_deadlock_with_its_ending_run() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 1_000, "pause_ms": 10 })).await;
    create(&stage, "steps", "doomed").await.expect(200);
    let running = "SELECT count(*) FROM runs WHERE variant = 'doomed' AND state = 'running'";
    eventually("the variant runs", async || (stage.db.number(running).await == 1).then_some(())).await;

    // The end of a run locks the run before the schedule. The deletion locks the schedule before the run. The host
    // checks for a deadlock after one second, so the host is the one that gives up.
    let mut conn = stage.db.connect().await;
    let mut tx = conn.begin().await.expect("a transaction begins");
    for sql in [
        "SET LOCAL deadlock_timeout = '5s'",
        "SELECT id FROM runs WHERE variant = 'doomed' AND state = 'running' FOR UPDATE",
    ] {
        sqlx::query(sql).execute(&mut *tx).await.expect(sql);
    }
    let (answer, ()) = tokio::join!(delete(&stage, "steps", "doomed"), async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                     AND wait_event_type = 'Lock' AND query LIKE '%UPDATE runs%cancelled%'";
        eventually("the deletion waits", async || (stage.db.number(waits).await == 1).then_some(())).await;
        let schedule = "SELECT pk FROM schedules WHERE variant = 'doomed' FOR UPDATE";
        sqlx::query(schedule).execute(&mut *tx).await.expect("the deletion gives up its locks");
        tx.rollback().await.expect("the transaction ends");
    });
    answer.expect(200);
    assert_eq!(stage.db.number("SELECT count(*) FROM schedules WHERE variant = 'doomed'").await, 0);
}

#[tokio::test]
async fn invalid_variants_are_rejected() {
    let stage = Stage::numbers(1).await;
    for name in ["base", "BASE"] {
        assert_eq!(create(&stage, "numbers", name).await.refusal(), (400, "invalid_variant".to_owned()));
        assert_eq!(delete(&stage, "numbers", name).await.refusal(), (400, "invalid_variant".to_owned()));
    }
    assert_eq!(create(&stage, "numbers", "a%20b").await.refusal(), (400, "invalid_uri_params".to_owned()));
    assert_eq!(create(&stage, "nothing", "a").await.refusal(), (404, "unknown_sync".to_owned()));
    create(&stage, "numbers", "a").await.expect(200);
    assert_eq!(
        create(&stage, "numbers", "a").await.refusal(),
        (409, "sync_variant_already_exists".to_owned())
    );
    let stranger = json!({ "provider_config_key": stage.integration, "connection_id": "nobody" });
    let answer = stage.host.post("/sync/numbers/variant/b", &stranger).await;
    assert_eq!(answer.refusal(), (404, "unknown_connection".to_owned()));
}

#[tokio::test]
async fn a_sync_has_at_most_one_hundred_variants() {
    let stage = Stage::numbers(1).await;
    stage.control("pause", "numbers").await.expect(200);
    for number in 1..80 {
        create(&stage, "numbers", &format!("v{number}")).await.expect(200);
    }
    // Concurrent creations are counted correctly.
    let many: Vec<String> = (80..120).map(|number| format!("v{number}")).collect();
    let answers = join_all(many.iter().map(|variant| create(&stage, "numbers", variant))).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((made.len(), refused.len()), (20, 20));
    for answer in refused {
        assert_eq!(answer.refusal(), (400, "resource_capped".to_owned()));
    }
    assert_eq!(stage.db.number("SELECT count(*) FROM schedules").await, 100);
}

#[tokio::test]
async fn the_frequency_of_a_connection_can_be_overridden_and_restored() {
    let stage = Stage::hostile().await;
    let seconds_to_next = async || {
        let status = stage.status("steps").await;
        let next =
            chrono::DateTime::parse_from_rfc3339(status["nextScheduledSyncAt"].as_str().unwrap()).unwrap();
        (status["frequency"].clone(), (next.to_utc() - chrono::Utc::now()).num_seconds())
    };
    for (given, active, least, most) in [
        (json!("every 5 minutes"), "every 5 minutes", 280, 316),
        (json!("half hour"), "", 0, 0),
        (json!("every half hour"), "every 30 minutes", 1_780, 1_831),
        (json!("0 0 1 1 *"), "0 0 1 1 *", 60, 400 * 86_400),
        (Value::Null, "every 1 hour", 3_580, 3_631),
    ] {
        let answer = set_frequency(&stage, "steps", &given).await;
        if active.is_empty() {
            assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{given}");
            continue;
        }
        assert_eq!(answer.expect(200).json(), json!({ "frequency": active }));
        let (frequency, seconds) = seconds_to_next().await;
        assert_eq!(frequency, active);
        assert!((least..=most).contains(&seconds), "{given}: next in {seconds} s");
    }
    for wrong in [json!("every 5 seconds"), json!("sometimes"), json!(5)] {
        let answer = set_frequency(&stage, "steps", &wrong).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{wrong}");
    }
    let mut missing = body(&stage);
    missing["sync_name"] = json!("steps");
    let answer = stage.host.put("/sync/update-connection-frequency", &missing).await;
    assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()));
}

#[tokio::test]
async fn a_variant_has_its_own_frequency() {
    let stage = Stage::hostile().await;
    create(&stage, "steps", "second").await.expect(200);
    stage.wait_until_idle().await;
    let set = async |variant: Option<&str>, frequency: &str| {
        let mut request = body(&stage);
        request["sync_name"] = json!("steps");
        request["frequency"] = json!(frequency);
        if let Some(variant) = variant {
            request["sync_variant"] = json!(variant);
        }
        stage.host.put("/sync/update-connection-frequency", &request).await
    };
    let seen = async |sync: &str| {
        let status = stage.status(sync).await;
        let next =
            chrono::DateTime::parse_from_rfc3339(status["nextScheduledSyncAt"].as_str().unwrap()).unwrap();
        let minutes = (next.to_utc() - chrono::Utc::now()).num_minutes();
        (status["frequency"].clone(), minutes)
    };
    let before = seen("steps").await;
    set(Some("second"), "every 5 minutes").await.expect(200);
    let second = seen("steps::second").await;
    assert!(second.0 == "every 5 minutes" && second.1 <= 5, "{second:?}");
    let base = seen("steps").await;
    assert!(base.0 == "every 1 hour" && before.1 - base.1 <= 1, "{before:?}, then {base:?}");
    set(None, "every 10 minutes").await.expect(200);
    assert_eq!(seen("steps").await.0, "every 10 minutes");
    assert_eq!(
        seen("steps::second").await.0,
        "every 5 minutes",
        "without a variant, the base variant is changed"
    );
    assert_eq!(set(Some("third"), "every 5 minutes").await.refusal(), (404, "unknown_variant".to_owned()));
    assert_eq!(set(Some("a b"), "every 5 minutes").await.refusal(), (400, "invalid_body".to_owned()));
}

#[tokio::test]
async fn a_frequency_that_changes_during_a_run_counts_from_its_end() {
    let stage = Stage::hostile().await;
    let before = stage.status("steps").await["finishedAt"].clone();
    stage.set_metadata(json!({ "steps": 60, "pause_ms": 50 })).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    set_frequency(&stage, "steps", &json!("every 2 minutes")).await.expect(200);
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    let next = chrono::DateTime::parse_from_rfc3339(status["nextScheduledSyncAt"].as_str().unwrap()).unwrap();
    let seconds = (next.to_utc() - chrono::Utc::now()).num_seconds();
    assert!((1..=130).contains(&seconds), "next in {seconds} s");
}

#[tokio::test]
async fn a_new_frequency_counts_from_the_latest_run() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    let next = async || stage.status("steps").await["nextScheduledSyncAt"].as_str().unwrap().to_owned();
    for frequency in [Value::Null, json!("every 20 minutes")] {
        set_frequency(&stage, "steps", &frequency).await.expect(200);
        let before = next().await;
        set_frequency(&stage, "steps", &frequency).await.expect(200);
        assert_eq!(next().await, before, "{frequency}");
    }
    let ago = "UPDATE runs SET started_at = started_at - interval '6 minutes' WHERE function_name = 'steps'";
    stage.db.execute(ago).await;
    set_frequency(&stage, "steps", &json!("every 10 minutes")).await.expect(200);
    let at = chrono::DateTime::parse_from_rfc3339(&next().await).unwrap();
    let seconds = (at.to_utc() - chrono::Utc::now()).num_seconds();
    assert!((200..=270).contains(&seconds), "in {seconds} s");
    let before = stage.status("steps").await["finishedAt"].clone();
    // The new slot is already in the past.
    set_frequency(&stage, "steps", &json!("every 5 minutes")).await.expect(200);
    stage.wait_for_finish_after("steps", before.as_str()).await;
}

#[tokio::test]
async fn a_variant_can_be_deleted_after_its_sync_is_removed() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.run("steps").await;
    create(&stage, "steps", "second").await.expect(200);
    stage.wait_for_finish_after("steps::second", None).await;
    let table = "[integrations.hostile.syncs.steps]\nruns = \"every 1 hour\"\nmodel = \"Step\"\n";
    stage.host.deploy(&Bundle::guest("hostile").replace(table, "")).await;
    let count = async |variant: &str| {
        stage.all(&[("model", "Step"), ("variant", variant), ("limit", "500")]).await.len()
    };
    assert_eq!((count("base").await, count("second").await), (3, 3));
    delete(&stage, "steps", "second").await.expect(200);
    assert_eq!((count("base").await, count("second").await), (3, 0));
    assert_eq!(delete(&stage, "steps", "third").await.refusal(), (404, "unknown_sync".to_owned()));
    // After another deployment, the variant can be created again.
    stage.host.deploy(&Bundle::guest("hostile")).await;
    create(&stage, "steps", "second").await.expect(200);
    stage.wait_for_finish_after("steps::second", None).await;
    assert_eq!(count("second").await, 3);
}
