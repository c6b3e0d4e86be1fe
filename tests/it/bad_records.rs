//! Invalid records, and unusual valid ones, saved through the real sandbox boundary.

use serde_json::{Value, json};

use crate::support::{Bundle, METADATA_KEY, Stage, eventually, save, text, without_metadata};

/// The error message with which the host rejects the records, as the guest returns it to its caller.
async fn refusal(stage: &Stage, model: &str, items: &str) -> String {
    let answer = stage.save_raw(model, items).await;
    assert_eq!(answer.refusal(), (400, "action_script_runtime_error".to_owned()), "{items:.200}");
    answer.message()
}

async fn items(stage: &Stage) -> Vec<Value> {
    stage.all(&[("model", "Item")]).await.into_iter().map(without_metadata).collect()
}

#[tokio::test]
async fn invalid_records_are_rejected_with_the_reason() {
    let stage = Stage::hostile().await;
    let long = format!(r#"[{{"id":"{}"}}]"#, "x".repeat(300));
    for (text, reason) in [
        ("", "must be a JSON array of objects"),
        ("{\"id\":\"a\"}", "must be a JSON array of objects"),
        ("[{\"id\":\"a\"},{\"id\":}]", "record 1 is not JSON"),
        ("[{\"id\":\"a\"}", "record 0 is not JSON"),
        ("[{\"id\":\"a\",}]", "record 0 is not JSON"),
        ("[{\"id\":\"a\"}] more", "is not JSON"),
        ("[1]", "expected object, got"),
        ("[{\"name\":\"nobody\"}]", "at /id: is missing"),
        ("[{\"id\":\"\"}]", "at /id: is empty"),
        ("[{\"id\":null}]", "at /id: expected string"),
        ("[{\"id\":{}}]", "at /id: expected string"),
        (&long, "at /id: has 300 bytes, expected at most 255"),
        ("[{\"id\":\"a\\u0000b\"}]", "at /id: must not contain a NUL character"),
        ("[{\"id\":\"a\",\"name\":7}]", "at /name: expected string or null, got integer"),
        ("[{\"id\":\"a\",\"count\":\"7\"}]", "at /count: expected integer or null, got string"),
        ("[{\"id\":\"a\",\"count\":1.5}]", "at /count: expected integer or null, got number"),
        ("[{\"id\":\"a\",\"at\":\"yesterday\"}]", "at /at: "),
        (
            "[{\"id\":\"a\"},{\"id\":\"b\",\"name\":[]}]",
            "record 1 (`b`) does not match model `Item`: at /name: expected string or null, got array",
        ),
    ] {
        let message = refusal(&stage, "Item", text).await;
        assert!(message.contains(reason), "{text:.200}: {message}");
    }
    assert_eq!(items(&stage).await, [] as [Value; 0], "nothing was saved");
}

#[tokio::test]
async fn saving_an_undeclared_model_is_rejected() {
    let stage = Stage::hostile().await;
    let message = refusal(&stage, "Unicorn", r#"[{"id":"a"}]"#).await;
    assert!(message.contains("saves `Unicorn`, but it declares only `Item`"), "{message}");
}

#[tokio::test]
async fn a_commit_over_50_mb_is_rejected() {
    let bundle = Bundle::guest("hostile").limit("save-raw", "memory = \"512MB\"");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let items = format!(r#"[{{"id":"a","padding":"{}"}}]"#, "x".repeat(50 << 20));
    let answer = stage.save_raw("Item", &items).await;
    assert_eq!(answer.refusal(), (400, "action_script_runtime_error".to_owned()));
    assert!(answer.message().contains("commit them in smaller batches"), "{}", answer.message());
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
}

#[tokio::test]
async fn a_commit_is_saved_completely_or_not_at_all() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"kept"}]"#).await.expect(200);
    let changes = json!([
        { "save": { "model": "Item", "items": r#"[{"id":"good"}]"# } },
        { "delete": { "model": "Item", "ids": ["kept"] } },
        { "save": { "model": "Item", "items": r#"[{"id":"bad","count":"x"}]"# } },
    ]);
    let commit = json!({ "changes": changes, "checkpoint": r#"{"cursor":"beyond"}"# });
    stage.set_metadata(json!({ "steps": 0, "commits": [commit] })).await;
    let status = stage.run("commit-raw").await;
    assert_eq!((&status["status"], &status["checkpoint"]), (&json!("ERROR"), &Value::Null));
    assert_eq!(items(&stage).await, [json!({ "id": "kept" })]);
    let page = stage.page(&[("model", "Item")]).await;
    assert_eq!(page.records[0][METADATA_KEY]["last_action"], "ADDED");
}

#[tokio::test]
async fn batches_committed_before_a_failure_stay_saved() {
    let stage = Stage::hostile().await;
    let commit = |id: &str| {
        let changes = json!([save(&json!([{ "id": id }]))]);
        json!({ "changes": changes, "checkpoint": json!({ "cursor": id }).to_string() })
    };
    for (end, ids) in [("fail", vec!["a", "b"]), ("panic", vec!["c", "d"])] {
        let commits: Vec<_> = ids.iter().map(|id| commit(id)).collect();
        stage.set_metadata(json!({ "steps": 0, "commits": commits, "end": end })).await;
        let status = stage.run("commit-raw").await;
        assert_eq!(status["status"], "ERROR");
        assert_eq!(status["checkpoint"], json!({ "cursor": ids[1] }));
        assert_eq!(status["latestResult"], json!({ "Item": { "added": 2, "updated": 0, "deleted": 0 } }));
    }
    assert_eq!(items(&stage).await.len(), 4);
}

#[tokio::test]
async fn unusual_text_and_long_numbers_are_returned_exactly_as_sent() {
    let stage = Stage::hostile().await;
    let odd = [
        r#"{"id":"quotes \" and \\ and '","name":"it's \"quoted\""}"#,
        r#"{"id":"🎩 \u00e9 é \t","name":"\ud83c\udfa9"}"#,
        r#"{"id":"numbers","big":123456789012345678901234567890,"exact":1.10,"small":1e-400,"neg":-0.0}"#,
        r#"{"id":"<script>'; DROP TABLE records; --","nested":{"":[[],{}],"null":null}}"#,
    ];
    stage.save_raw("Item", &format!("[{}]", odd.join(","))).await.expect(200);
    let text = stage.get_records(&[("model", "Item")]).await.expect(200).text();
    for record in odd {
        let as_it_was = record.strip_suffix('}').unwrap();
        assert!(text.contains(as_it_was), "{as_it_was} in {text}");
    }
}

#[tokio::test]
async fn a_numeric_id_becomes_a_string() {
    let stage = Stage::hostile().await;
    let answer = stage.save_raw("Item", r#"[{"id":12345678901234567890},{"id":"7"}]"#).await.expect(200);
    assert_eq!(answer.json(), json!({ "added": 2, "updated": 0, "deleted": 0, "unchanged": 0 }));
    assert_eq!(items(&stage).await, [json!({ "id": "12345678901234567890" }), json!({ "id": "7" })]);
    let again = stage.save_raw("Item", r#"[{"id":"12345678901234567890"},{"id":7}]"#).await.expect(200);
    assert_eq!(again.json(), json!({ "added": 0, "updated": 0, "deleted": 0, "unchanged": 2 }));
}

#[tokio::test]
async fn the_last_of_two_records_with_the_same_id_wins() {
    let stage = Stage::hostile().await;
    let batch = r#"[{"id":"a","name":"first"},{"id":"b"},{"id":"a","name":"last"}]"#;
    let answer = stage.save_raw("Item", batch).await.expect(200);
    assert_eq!(answer.json()["added"], 2);
    assert_eq!(items(&stage).await, [json!({ "id": "b" }), json!({ "id": "a", "name": "last" })]);
    let log = eventually("the run's log is stored", async || {
        let runs = stage.host.get("/runs?function=save-raw").await.expect(200).json();
        let id = text(runs["runs"].get(0)?.get("id")?).to_owned();
        Some(stage.host.get(&format!("/runs/{id}/logs")).await.expect(200).json())
    })
    .await;
    let warnings: Vec<&Value> =
        log["logs"].as_array().unwrap().iter().filter(|line| line["level"] == "warn").collect();
    let said =
        "a batch of `Item` contained 1 records with repeated ids; the last record with each id was used";
    assert!(warnings.len() == 1 && warnings[0]["message"] == said, "{log}");
}

#[tokio::test]
async fn different_key_order_or_whitespace_is_not_an_update() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a","name":"x","extra":{"p":1,"q":[1.0,2]}}]"#).await.expect(200);
    let before = stage.all(&[("model", "Item")]).await;
    for (same, text) in [
        (true, r#"[{"extra":{"q":[1.0,2],"p":1},"name":"x","id":"a"}]"#),
        (true, r#" [ { "id" : "a", "extra" : { "p" : 1 , "q" : [ 1.0 , 2 ] } , "name" : "\u0078" } ] "#),
        (false, r#"[{"id":"a","name":"x","extra":{"p":1,"q":[2,1.0]}}]"#),
    ] {
        let counts = stage.save_raw("Item", text).await.expect(200).json();
        assert_eq!(counts["unchanged"] == 1, same, "{text}: {counts}");
        assert_eq!(stage.all(&[("model", "Item")]).await == before, same, "{text}");
    }
}

#[tokio::test]
async fn numbers_that_differ_beyond_double_precision_are_an_update() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a","count":9007199254740993}]"#).await.expect(200);
    let counts = stage.save_raw("Item", r#"[{"id":"a","count":9007199254740992}]"#).await.expect(200).json();
    assert_eq!(counts["updated"], 1);
}

#[tokio::test]
async fn a_record_cannot_set_its_own_metadata() {
    let stage = Stage::hostile().await;
    let forged = r#"[{"id":"a","_service_metadata":{"last_action":"DELETED","cursor":"mine"}}]"#;
    stage.save_raw("Item", forged).await.expect(200);
    let text = stage.get_records(&[("model", "Item")]).await.expect(200).text();
    assert_eq!(text.matches(METADATA_KEY).count(), 1, "{text}");
    assert!(!text.contains("mine"), "{text}");
    let unchanged = stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200).json();
    assert_eq!(unchanged["unchanged"], 1);
}

#[tokio::test]
async fn an_update_is_merged_into_the_stored_record() {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": "Ada", "extra": { "p": 1, "q": 2 } }]))])).await;
    let changes = r#"[{"id":"a","count":3,"extra":{"q":[4]}},{"id":"never-there","count":1}]"#;
    let status = stage.commit(json!([{ "update": { "model": "Item", "items": changes } }])).await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 0, "updated": 1, "deleted": 0 } }));
    let merged = json!({ "id": "a", "name": "Ada", "count": 3, "extra": { "p": 1, "q": [4] } });
    assert_eq!(items(&stage).await, [merged]);
}
