//! Records that do not match their model, where the model sets them aside.

use serde_json::{Value, json};

use crate::support::{
    Answer, Bundle, METADATA_KEY, SECRET_KEY, Stage, eventually, save, text, without_metadata,
};

fn setting_aside(bundle: Bundle) -> Bundle {
    bundle.replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n")
}

async fn stage() -> Stage {
    Stage::of(&setting_aside(Bundle::guest("hostile")), json!({ "steps": 0 })).await
}

async fn letters(stage: &Stage) -> Vec<Value> {
    let answer = stage.host.get("/dead-letters").await.expect(200).json();
    answer["dead_letters"].as_array().expect("a list").clone()
}

async fn items(stage: &Stage) -> Vec<Value> {
    stage.all(&[("model", "Item")]).await.into_iter().map(without_metadata).collect()
}

async fn replay(stage: &Stage, letter: &Value) -> Answer {
    stage.host.post(&format!("/dead-letters/{}/replay", text(&letter["id"])), &json!({})).await
}

#[tokio::test]
async fn invalid_records_are_set_aside_and_the_rest_are_saved() {
    let stage = stage().await;
    let batch = json!([
        { "id": "good", "name": "fits" },
        { "id": "bad", "count": "seven" },
        { "name": "without an id" },
        { "id": "also-good" },
    ]);
    let status = stage.commit(json!([save(&batch)])).await;
    assert_eq!(
        status["latestResult"],
        json!({ "Item": { "added": 2, "updated": 0, "deleted": 0, "set_aside": 2 } })
    );
    assert_eq!(items(&stage).await, [json!({ "id": "good", "name": "fits" }), json!({ "id": "also-good" })]);

    let found = letters(&stage).await;
    assert_eq!(found.len(), 2, "{found:?}");
    let run = stage
        .db
        .texts("SELECT id::text FROM runs WHERE function_name = 'commit-raw' ORDER BY started_at DESC")
        .await;
    assert_eq!(
        found[0],
        json!({
            "id": found[0]["id"], "provider_config_key": "hostile", "connection_id": stage.id,
            "model": "Item", "variant": "base", "function": "commit-raw", "run_id": run[0],
            "record_id": "bad", "payload": batch[1], "times": 1,
            "problems": [{ "path": "/count", "problem": "expected integer or null, got string" }],
            "first_seen_at": found[0]["first_seen_at"], "last_seen_at": found[0]["first_seen_at"],
        })
    );
    assert_eq!(
        (&found[1]["record_id"], &found[1]["payload"], &found[1]["problems"][0]["path"]),
        (&Value::Null, &batch[2], &json!("/id"))
    );
    let logged = "SELECT message FROM run_logs WHERE message LIKE '2 records that do not match model `Item` were set aside%'";
    assert!(stage.db.texts(logged).await[0].contains("(`bad`): at /count: expected integer"));

    stage.run("commit-raw").await;
    let again = letters(&stage).await;
    assert_eq!(again.len(), 2, "a record has one dead letter, however often it is rejected");
    assert_eq!((&again[0]["id"], &again[0]["times"]), (&found[0]["id"], &json!(2)));
}

#[tokio::test]
async fn a_failed_commit_creates_no_dead_letters() {
    let stage = stage().await;
    let changes = json!([
        save(&json!([{ "id": "bad", "count": "seven" }])),
        { "save": { "model": "Item", "items": "[{" } },
    ]);
    stage.set_metadata(json!({ "steps": 0, "commits": [{ "changes": changes }] })).await;
    assert_eq!(stage.run("commit-raw").await["status"], "ERROR");
    assert_eq!(letters(&stage).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_problem_path_is_sanitized_if_postgres_cannot_store_it() {
    let strict =
        setting_aside(Bundle::guest("hostile")).replace("[models.Item]\n", "[models.Item]\nstrict = true\n");
    let stage = Stage::of(&strict, json!({ "steps": 0 })).await;
    stage.save_raw("Item", r#"[{"id":"good"},{"id":"bad","a\u0000b":1}]"#).await.expect(200);
    assert_eq!(items(&stage).await, [json!({ "id": "good" })]);
    let letters = letters(&stage).await;
    assert_eq!((letters.len(), &letters[0]["record_id"]), (1, &json!("bad")));
    assert_eq!(letters[0]["problems"][0]["path"], "/a\u{fffd}b");
}

#[tokio::test]
async fn the_last_of_two_records_with_the_same_id_wins_even_if_one_is_invalid() {
    let stage = stage().await;
    let batch = json!([
        { "id": "a", "name": "older" }, { "id": "a", "count": "bad" },
        { "id": "b", "count": "bad" }, { "id": "b", "name": "newer" },
    ]);
    stage.save_raw("Item", &batch.to_string()).await.expect(200);
    assert_eq!(items(&stage).await, [json!({ "id": "b", "name": "newer" })]);
    let found = letters(&stage).await;
    assert_eq!(found.iter().map(|letter| &letter["record_id"]).collect::<Vec<_>>(), [&json!("a")]);
}

#[tokio::test]
async fn a_later_save_or_deletion_removes_the_dead_letter() {
    let stage = stage().await;
    let bad = json!([{ "id": "a", "count": "x" }, { "id": "b", "count": "x" }, { "id": "c", "count": "x" }]);
    stage.save_raw("Item", &bad.to_string()).await.expect(200);
    let deletion = json!({ "delete": { "model": "Item", "ids": ["b"] } });
    stage.commit(json!([save(&json!([{ "id": "a", "count": 7 }])), deletion])).await;
    let left = letters(&stage).await;
    assert_eq!(left.iter().map(|letter| &letter["record_id"]).collect::<Vec<_>>(), [&json!("c")]);
    let counted = stage.db.number("SELECT dead_letters FROM streams WHERE model = 'Item'").await;
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn an_invalid_update_sets_aside_the_merged_record() {
    let stage = stage().await;
    stage.save_raw("Item", r#"[{"id":"a","name":"kept"},{"id":"b"}]"#).await.expect(200);
    let changes = json!([{ "id": "a", "count": "x" }, { "id": "b", "count": 2 }]).to_string();
    stage.commit(json!([{ "update": { "model": "Item", "items": changes } }])).await;
    assert_eq!(items(&stage).await, [json!({ "id": "a", "name": "kept" }), json!({ "id": "b", "count": 2 })]);
    let found = letters(&stage).await;
    assert_eq!(found[0]["payload"], json!({ "id": "a", "name": "kept", "count": "x" }));
}

#[tokio::test]
async fn a_replay_saves_a_record_that_now_matches_but_never_a_stale_one() {
    let stage = stage().await;
    let bad = json!([{ "id": "a", "count": "x" }, { "id": "b", "count": "y" }]);
    stage.save_raw("Item", &bad.to_string()).await.expect(200);
    let found = letters(&stage).await;
    let refused = replay(&stage, &found[0]).await;
    assert_eq!(refused.refusal(), (409, "dead_letter_refused".to_owned()));
    assert_eq!(refused.json()["error"]["errors"][0]["path"], json!(["count"]));

    // A newer record was saved without removing the dead letter, as restoring a backup might.
    stage.db.execute("UPDATE dead_letters SET letter_key = 'id:elsewhere' WHERE external_id = 'b'").await;
    stage.save_raw("Item", r#"[{"id":"b","count":2}]"#).await.expect(200);
    let wider = setting_aside(Bundle::guest("hostile")).replace("count = \"integer?\"", "count = \"json?\"");
    stage.host.deploy(&wider).await;
    let superseded = replay(&stage, &found[1]).await;
    assert_eq!(superseded.refusal(), (409, "dead_letter_superseded".to_owned()));
    assert_eq!(replay(&stage, &found[0]).await.expect(200).json(), json!({ "outcome": "added" }));
    assert_eq!(items(&stage).await, [json!({ "id": "b", "count": 2 }), json!({ "id": "a", "count": "x" })]);
    let again = replay(&stage, &found[0]).await;
    assert_eq!(again.refusal(), (404, "unknown_dead_letter".to_owned()));
    stage.host.delete(&format!("/dead-letters/{}", text(&found[1]["id"]))).await.expect(204);
    assert_eq!(
        stage.db.audited("dead_letter.replayed").await,
        [format!("dead_letter {}", text(&found[0]["id"]))]
    );
    assert_eq!(
        stage.db.audited("dead_letter.deleted").await,
        [format!("dead_letter {}", text(&found[1]["id"]))]
    );
}

#[tokio::test]
async fn a_record_that_is_set_aside_does_not_count_as_deleted() {
    let bundle = setting_aside(Bundle::guest("hostile")).tracking_deletes("commit-raw");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let three = json!([{ "id": "a", "count": 1 }, { "id": "b" }, { "id": "c" }]);
    stage.commit(json!([save(&three)])).await;
    let status = stage.commit(json!([save(&json!([{ "id": "a", "count": "x" }, { "id": "b" }]))])).await;
    assert_eq!(
        status["latestResult"],
        json!({ "Item": { "added": 0, "updated": 0, "deleted": 1, "set_aside": 1 } })
    );
    let records = stage.all(&[("model", "Item")]).await;
    let live: Vec<_> = records.iter().filter(|record| record[METADATA_KEY]["deleted_at"].is_null()).collect();
    assert_eq!(live.len(), 2, "{live:?}");
}

#[tokio::test]
async fn dead_letters_are_paged_filtered_and_require_scopes() {
    let stage = stage().await;
    let bad: Value = (0..5).map(|number| json!({ "id": number.to_string(), "count": "x" })).collect();
    stage.save_raw("Item", &bad.to_string()).await.expect(200);
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    for _ in 0..3 {
        let page = stage.host.get(&format!("/dead-letters?limit=2{cursor}")).await.expect(200).json();
        ids.extend(
            page["dead_letters"].as_array().expect("a list").iter().map(|letter| letter["record_id"].clone()),
        );
        cursor = page["next_cursor"].as_str().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
    }
    assert_eq!(ids, ["0", "1", "2", "3", "4"]);
    assert_eq!(cursor, "");
    for (query, found) in [
        ("provider_config_key=hostile", 5),
        (&*format!("provider_config_key=hostile&connection_id={}", stage.id), 5),
        ("model=Step", 0),
        ("model=Item", 5),
    ] {
        let page = stage.host.get(&format!("/dead-letters?{query}")).await.expect(200).json();
        assert_eq!(page["dead_letters"].as_array().map(Vec::len), Some(found), "{query}");
    }
    for (query, refusal) in [
        ("connection_id=a", (400, "invalid_query_params")),
        ("limit=0", (400, "invalid_query_params")),
        ("cursor=AAAA", (400, "invalid_cursor")),
        ("provider_config_key=nobody", (404, "unknown_integration")),
    ] {
        let answer = stage.host.get(&format!("/dead-letters?{query}")).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()), "{query}");
    }
    let reader = stage.host.create_key(&stage.db, "reader", "read-only");
    let reader = stage.host.with_key(Some(&reader));
    reader.get("/dead-letters").await.expect(200);
    let path = format!("/dead-letters/{}", text(&letters(&stage).await[0]["id"]));
    let refused = reader.request("DELETE", &path).send().await;
    assert_eq!(refused.refusal(), (403, "forbidden".to_owned()));
    stage.host.request("DELETE", &path).send().await.expect(204);
    assert_eq!(letters(&stage).await.len(), 4);
}

#[tokio::test]
async fn the_cli_lists_replays_and_drops_dead_letters() {
    let stage = stage().await;
    let bad = json!([{ "id": "a", "count": "x" }, { "id": "b", "count": "x" }]);
    stage.save_raw("Item", &bad.to_string()).await.expect(200);
    let found = letters(&stage).await;
    let run = |arguments: &[&str]| {
        let host = ["--url", stage.host.base_url(), "--secret-key", SECRET_KEY];
        stage.host.command(&stage.db, &[&["dead-letters"], arguments, &host].concat())
    };
    let listed = run(&["list", "--integration", "hostile"]);
    assert!(listed.contains("Item a  at /count: expected integer or null, got string"), "{listed}");
    let (a, b) = (text(&found[0]["id"]), text(&found[1]["id"]));
    run(&["drop", b]);
    let wider = setting_aside(Bundle::guest("hostile")).replace("count = \"integer?\"", "count = \"json?\"");
    stage.host.deploy(&wider).await;
    assert_eq!(run(&["replay", a]).trim(), "the record was saved: added");
    assert_eq!(letters(&stage).await, Vec::<Value>::new());
}

#[tokio::test]
async fn dead_letters_expire_and_are_removed_with_their_connection() {
    let stage = Stage::with(
        &[("SYNCLINE_RETENTION_EVERY", "50ms")],
        &setting_aside(Bundle::guest("hostile")),
        json!({ "steps": 0 }),
    )
    .await;
    let bad = json!([{ "id": "a", "count": "x" }, { "id": "b", "count": "x" }]);
    stage.save_raw("Item", &bad.to_string()).await.expect(200);
    let age = "UPDATE dead_letters SET last_seen_at = now() - interval '31 days' WHERE external_id = 'a'";
    stage.db.execute(age).await;
    eventually("the older dead letter is deleted", async || (letters(&stage).await.len() == 1).then_some(()))
        .await;
    assert_eq!(stage.db.number("SELECT dead_letters FROM streams WHERE model = 'Item'").await, 1);
    let path = format!("/connections/{}?provider_config_key=hostile", stage.id);
    stage.host.request("DELETE", &path).send().await.expect(200);
    eventually("the other dead letter is deleted with its connection", async || {
        (stage.db.number("SELECT count(*) FROM dead_letters").await == 0).then_some(())
    })
    .await;
}
