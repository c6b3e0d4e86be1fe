//! Functions that exceed limits, crash or fail: only they end, and the error says why.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{
    Assembled, Bundle, Connection, HostOptions, ProviderServer, Shop, SlowProvider, Stage, TestDatabase,
    eventually, query, text,
};

/// Checks that other functions still work.
async fn assert_others_work(connection: &Connection) {
    connection.save_raw("Item", r#"[{"id":"neighbour"}]"#).await.expect(200);
}

async fn limited(action: &str, limit: &str) -> Stage {
    Stage::of(&Bundle::guest("hostile").limit(action, limit), json!({ "steps": 0 })).await
}

/// Runs an action that exceeds a limit. Checks that the error names the limit and that other functions still work.
async fn assert_over_limit(connection: &Connection, action: &str, input: Value, limit: &str) {
    assert_limit_error(connection, action, input, limit).await;
    assert_others_work(connection).await;
}

async fn assert_limit_error(connection: &Connection, action: &str, input: Value, limit: &str) {
    let answer = connection.action(action, &input).await;
    assert_eq!(answer.refusal(), (400, "limit_exceeded".to_owned()), "{action}: {}", answer.text());
    assert_eq!(answer.json()["error"]["payload"], json!({ "limit": limit }), "{action}");
    assert!(answer.message().contains(&format!("(limit `{limit}`)")), "{action}: {}", answer.message());
}

#[tokio::test]
async fn an_endless_computation_is_ended_while_others_are_served() {
    let stage = limited("spin", "cpu = \"800ms\"").await;
    let spinning = async {
        assert_over_limit(&stage, "spin", Value::Null, "cpu").await;
        Instant::now()
    };
    let neighbours = async {
        for _ in 0..10 {
            assert_others_work(&stage).await;
        }
        Instant::now()
    };
    let (ended_at, served_at) = futures_util::future::join(spinning, neighbours).await;
    assert!(served_at < ended_at, "other functions waited for the endless one");
}

#[tokio::test]
async fn other_functions_run_while_cpu_heavy_functions_exceed_the_processors() {
    let stage = limited("spin", "cpu = \"1s\"").await;
    let spinners = async {
        let spinners = (0..4).map(|_| Box::pin(stage.action("spin", &Value::Null)));
        let (first, ..) = futures_util::future::select_all(spinners).await;
        (first.refusal(), Instant::now())
    };
    let neighbours = async {
        for _ in 0..20 {
            assert_others_work(&stage).await;
        }
        Instant::now()
    };
    let ((ended, ended_at), served_at) = futures_util::future::join(spinners, neighbours).await;
    assert_eq!(ended, (400, "limit_exceeded".to_owned()));
    assert!(served_at < ended_at, "other functions waited for the CPU-heavy ones");
}

#[tokio::test]
async fn a_huge_log_message_hits_the_memory_limit() {
    let stage = limited("big-log", "memory = \"32MB\"").await;
    assert_over_limit(&stage, "big-log", json!(64 << 20), "memory").await;
}

#[tokio::test]
async fn an_endless_allocation_hits_the_memory_limit() {
    let stage = limited("allocate", "memory = \"32MB\"").await;
    assert_over_limit(&stage, "allocate", Value::Null, "memory").await;
}

#[tokio::test]
async fn more_memory_than_can_exist_hits_the_memory_limit() {
    let stage = Stage::hostile().await;
    assert_over_limit(&stage, "reserve", Value::Null, "memory").await;
}

#[tokio::test]
async fn a_function_that_ends_its_process_gets_advice() {
    let stage = Stage::hostile().await;
    for (status, advice) in
        [(3, "with a failure status; return an error"), (0, "with a success status; return")]
    {
        let answer = stage.action("exit", &json!(status)).await;
        assert_eq!(answer.refusal(), (400, "script_internal_error".to_owned()), "{status}");
        assert!(answer.message().contains(advice), "{status}: {}", answer.message());
    }
}

#[tokio::test]
async fn a_function_that_looks_for_a_file_learns_that_there_are_none() {
    let stage = Stage::hostile().await;
    stage.action("read-file", &json!("data.csv")).await.expect(400);
    let id = eventually("the run is stored", async || {
        let run = stage.host.get("/runs?function=read-file").await.expect(200).json()["runs"][0].clone();
        Some(run["id"].as_str()?.to_owned()).filter(|_| run["state"] == "error")
    })
    .await;
    let log = stage.host.get(&format!("/runs/{id}/logs")).await.expect(200).text();
    assert!(log.contains("functions have no files"), "{log}");
}

#[tokio::test]
async fn an_initial_memory_over_the_limit_is_reported() {
    let stage = limited("print", "memory = \"64KB\"").await;
    assert_over_limit(&stage, "print", json!("x"), "memory").await;
}

#[tokio::test]
async fn an_endlessly_growing_table_hits_the_table_limit() {
    let stage = Stage::hostile().await;
    let growing = Assembled::new(&[("sync", "numbers"), ("action", "echo")]);
    stage.host.deploy(&Bundle::example("minimal").with_component(&growing.component())).await;
    let growing = stage.host.connect("minimal", json!({})).await;
    assert_limit_error(&growing, "echo", Value::Null, "table").await;
    assert_eq!(growing.status("numbers").await["status"], "ERROR");
    assert_others_work(&stage).await;
}

#[tokio::test]
async fn endless_logging_hits_the_log_limit() {
    let stage = limited("log-flood", "log = \"256KB\"").await;
    assert_over_limit(&stage, "log-flood", Value::Null, "log").await;
}

#[tokio::test]
async fn endless_recursion_hits_the_stack_limit() {
    let stage = Stage::hostile().await;
    assert_over_limit(&stage, "recurse", Value::Null, "stack").await;
}

#[tokio::test]
async fn an_oversized_result_hits_the_output_limit() {
    let stage = limited("big-output", "output = \"64KB\"").await;
    assert_over_limit(&stage, "big-output", json!(64 << 10), "output").await;
    let fits = stage.action("big-output", &json!((64 << 10) - 2)).await.expect(200);
    assert_eq!(fits.body.len(), 64 << 10);
}

#[tokio::test]
async fn endless_requests_hit_the_request_limit() {
    let shop = Shop::start().await;
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).allow(&shop).spawn().await;
    host.deploy(&Bundle::guest("hostile").at(&shop).limit("request-flood", "requests = 5")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    assert_over_limit(&connection, "request-flood", json!("/js.stripe.com/v3/"), "requests").await;
    assert_eq!(shop.log().matches("GET /js.stripe.com/v3/").count(), 5);
}

#[tokio::test]
async fn a_batch_of_requests_over_the_limit_sends_none() {
    let server = ProviderServer::start().await;
    let stage = Stage::at_provider(&server, &[], Bundle::guest("hostile")).await;
    assert_over_limit(&stage, "request-storm", json!({ "url": "/", "count": 1_001 }), "requests").await;
    assert_eq!(server.seen.requests().len(), 0);
}

#[tokio::test]
async fn responses_beyond_the_guests_memory_are_not_buffered() {
    let server = ProviderServer::start().await;
    let bundle = Bundle::guest("hostile").limit("request-storm", "memory = \"16MB\"");
    let stage = Stage::at_provider(&server, &[], bundle).await;
    let before = stage.host.peak_memory_mb();
    let storm = json!({ "url": "/long?8000000", "count": 60 });
    assert_over_limit(&stage, "request-storm", storm, "memory").await;
    let taken = stage.host.peak_memory_mb() - before;
    assert!(taken < 300, "the host used {taken} MB for responses of 480 MB");
}

#[tokio::test]
async fn records_beyond_the_guests_memory_are_not_buffered() {
    let bundle = Bundle::guest("hostile")
        .limit("find-raw", "memory = \"16MB\"")
        .limit("change-raw", "batch = \"4MB\"");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let long = |id: &str| json!([{ "id": id, "name": "x".repeat(1 << 20) }]).to_string();
    for id in ["a", "b", "c", "d", "e"] {
        stage.save_raw("Item", &long(id)).await.expect(200);
    }
    let before = stage.host.peak_memory_mb();
    let find = json!({ "model": "Item", "ids": vec!["a"; 500] });
    assert_over_limit(&stage, "find-raw", find, "memory").await;
    let taken = stage.host.peak_memory_mb() - before;
    assert!(taken < 200, "the host used {taken} MB for records of 500 MB");

    let update = |ids: &[&str]| {
        let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "count": 1 })).collect();
        json!({ "changes": [{ "update": { "model": "Item", "items": json!(items).to_string() } }] })
    };
    let refused = stage.action("change-raw", &update(&["a", "b", "c", "d", "e"])).await;
    assert_eq!(refused.refusal(), (400, "action_script_runtime_error".to_owned()));
    assert!(refused.message().contains("longer than the 4194304 bytes"), "{}", refused.message());
    stage.action("change-raw", &update(&["a", "b", "c"])).await.expect(200);
}

#[tokio::test]
async fn a_function_that_runs_too_long_times_out() {
    let stage = limited("sleep", "wall = \"300ms\"").await;
    let answer = stage.action("sleep", &json!(60_000)).await;
    assert_eq!(answer.refusal(), (408, "execution_timeout".to_owned()));
    assert!(answer.message().contains("(limit `wall`)"), "{}", answer.message());
    assert_others_work(&stage).await;
    stage.action("sleep", &json!(1)).await.expect(200);
}

#[tokio::test]
async fn a_function_that_waits_for_a_silent_provider_times_out() {
    let provider = SlowProvider::listen().await;
    // Long enough for the request to be sent on a busy machine.
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle.limit("fetch", "wall = \"3s\"")).await;
    let input = json!({ "url": "/" });
    let (answer, pending) = tokio::join!(stage.action("fetch", &input), provider.next_request());
    assert_eq!(answer.refusal(), (408, "execution_timeout".to_owned()));
    pending.wait_for_disconnect().await;
    assert_others_work(&stage).await;
}

#[tokio::test]
async fn a_sync_over_its_limit_fails_and_keeps_committed_records() {
    let table = "[integrations.hostile.syncs.steps]";
    let limits = format!("{table}\nlimits = {{ records = 5 }}");
    let bundle = Bundle::guest("hostile").replace(table, &limits);
    let stage = Stage::of(&bundle, json!({ "steps": 8, "pause_ms": 0 })).await;
    let status = stage.status("steps").await;
    assert_eq!((&status["status"], &status["checkpoint"]), (&json!("ERROR"), &json!({ "cursor": "5" })));
    assert_eq!(stage.all(&[("model", "Step")]).await.len(), 5);
}

#[tokio::test]
async fn a_panic_includes_the_guests_message() {
    let stage = Stage::hostile().await;
    let answer = stage.action("panic", &json!("out of \"cheese\" 🧀")).await;
    assert_eq!(answer.refusal(), (400, "script_internal_error".to_owned()));
    assert!(answer.message().contains("out of \"cheese\" 🧀"), "{}", answer.message());
    assert_others_work(&stage).await;
}

#[tokio::test]
async fn a_trap_ends_only_its_own_function() {
    let stage = Stage::hostile().await;
    for action in ["trap", "read-out-of-bounds", "recurse-in-memory", "bad-utf8-log"] {
        let answer = stage.action(action, &Value::Null).await;
        assert_eq!(answer.refusal(), (400, "script_internal_error".to_owned()), "{action}");
        assert_others_work(&stage).await;
    }
}

#[tokio::test]
async fn a_failure_returns_its_message_and_details_to_the_caller() {
    let stage = Stage::hostile().await;
    let failure =
        json!({ "code": "out-of-stock", "message": "no cheese today", "details": { "kinds": ["brie"] } });
    let answer = stage.action("fail", &failure).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()),
        (
            400,
            json!({ "error": {
                "code": "action_script_runtime_error", "message": "no cheese today",
                "payload": { "kinds": ["brie"] },
            } })
        )
    );
}

#[tokio::test]
async fn output_that_is_not_json_is_rejected() {
    let stage = Stage::hostile().await;
    let half = stage.action("bad-json-output", &Value::Null).await;
    assert_eq!(half.refusal(), (400, "invalid_action_output".to_owned()));
    let bytes = stage.action("bad-utf8-output", &Value::Null).await;
    assert_eq!(bytes.refusal(), (400, "script_internal_error".to_owned()));
    assert_others_work(&stage).await;
}

#[tokio::test]
async fn log_lines_with_invalid_fields_are_stored() {
    let stage = Stage::hostile().await;
    let deep = ["[".repeat(300), "]".repeat(300)].concat();
    let fields =
        [r#"{"a\u0000b": ["\u0000"]}"#, "a\0b", r#"{"half": "#, r#""\ud800""#, "1e999999", &deep, ""];
    for fields in fields {
        stage.action("log-fields", &json!(fields)).await.expect(200);
    }
    assert_others_work(&stage).await;
    let stored = eventually("all runs are stored", async || {
        let found =
            stage.host.get(&format!("/runs?{}", query(&[("kind", "action")]))).await.expect(200).json();
        let runs = found["runs"].as_array().expect("`runs` is a list").clone();
        (runs.len() == fields.len() + 1).then_some(runs)
    })
    .await;
    for run in stored.iter().filter(|run| run["function"] == "log-fields") {
        let log = stage.host.get(&format!("/runs/{}/logs", text(&run["id"]))).await.expect(200).json();
        assert_eq!(log["logs"][0]["message"], "with fields", "{log}");
        assert!(!log["logs"][0]["fields"].is_null(), "{log}");
    }
}

#[tokio::test]
async fn a_function_without_a_result_returns_an_empty_body() {
    let stage = Stage::hostile().await;
    let answer = stage.action("print", &json!("a line")).await.expect(200);
    assert_eq!(answer.text(), "");
}

#[tokio::test]
async fn a_guest_cannot_reach_files_sockets_or_private_addresses() {
    let shop = Shop::start().await;
    let stage = Stage::of(&Bundle::guest("hostile").at(&shop), json!({ "steps": 0 })).await;
    for (action, input) in [
        ("read-file", json!("/etc/passwd")),
        ("read-file", json!("/proc/self/environ")),
        ("open-socket", json!(shop.address())),
        ("open-socket", json!(shop.address().replace("127.0.0.1", "localhost"))),
        ("fetch", json!({ "url": "/v1/customers" })),
        ("fetch", json!({ "url": format!("{}/v1/customers", shop.base_url()) })),
        ("fetch", json!({ "url": "http://169.254.169.254/latest/meta-data/" })),
    ] {
        let answer = stage.action(action, &input).await;
        assert_eq!(answer.refusal(), (400, "action_script_runtime_error".to_owned()), "{action} {input}");
    }
    assert_eq!(shop.log().matches("HTTP/1.1").count(), 0, "{}", shop.log());
}

#[tokio::test]
async fn oversized_records_and_streams_are_rejected_with_the_limit() {
    let bundle = Bundle::guest("hostile").limit("save-raw", "record = \"1KB\"");
    let stage = Stage::with(&[("SYNCLINE_MAX_STREAM_RECORDS", "3")], &bundle, json!({ "steps": 0 })).await;
    let long = json!([{ "id": "short" }, { "id": "long", "name": "x".repeat(1_024) }]).to_string();
    let refused = stage.save_raw("Item", &long).await;
    assert_eq!(refused.refusal(), (400, "action_script_runtime_error".to_owned()));
    assert!(refused.message().contains("expected at most 1024 (limit `record`)"), "{}", refused.message());

    stage.save_raw("Item", r#"[{"id":"1"},{"id":"2"},{"id":"3"}]"#).await.expect(200);
    let refused = stage.save_raw("Item", r#"[{"id":"3","name":"new"},{"id":"4"}]"#).await;
    assert_eq!(refused.refusal(), (400, "limit_exceeded".to_owned()));
    assert_eq!(refused.json()["error"]["payload"], json!({ "limit": "stream" }));
    stage.save_raw("Item", r#"[{"id":"3","name":"new"}]"#).await.expect(200);
    assert_eq!(stage.all(&[("model", "Item")]).await.len(), 3);
}
