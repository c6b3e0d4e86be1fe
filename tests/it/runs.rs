//! Runs and their logs, during the run and afterwards.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::support::{
    Api, Bundle, Connection, Host, PROVIDER_KEY, Provider, SECRET_KEY, Stage, eventually, query, text,
};

/// The runs that a query finds, the newest first.
async fn runs(api: &Api, parameters: &[(&str, &str)]) -> Vec<Value> {
    let found = api.get(&format!("/runs?{}", query(parameters))).await.expect(200).json();
    found["runs"].as_array().expect("`runs` is a list").clone()
}

async fn run(api: &Api, id: &Value) -> Value {
    api.get(&format!("/runs/{}", text(id))).await.expect(200).json()
}

/// All log messages of a finished run.
async fn messages(api: &Api, id: &Value, parameters: &[(&str, &str)]) -> Vec<String> {
    let path = format!("/runs/{}/logs?{}", text(id), query(parameters));
    let found = api.get(&path).await.expect(200).json();
    assert_eq!(found["next_cursor"], Value::Null, "{found}");
    let lines = found["logs"].as_array().expect("`logs` is a list");
    lines.iter().map(|line| text(&line["message"]).to_owned()).collect()
}

#[tokio::test]
async fn a_run_shows_its_function_outcome_and_usage() {
    let stage = Stage::numbers(30).await;
    let found = runs(&stage.host, &[("kind", "sync")]).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let run = run(&stage.host, &found[0]["id"]).await;
    let expected = json!({
        "kind": "sync", "function": "numbers", "variant": "base", "provider_config_key": "minimal",
        "connection_id": "customer-1", "trigger": "schedule", "attempt": 1, "job_id": null, "state": "success",
        "error": null, "counts": { "Number": { "added": 30, "updated": 0, "deleted": 0 } },
    });
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(&run[member], value, "{member}: {run}");
    }
    assert_eq!(run["usage"]["records"], 30);
    assert!(run["usage"]["cpu_ms"].as_f64() > Some(0.0), "{run}");
    assert!(run["usage"]["peak_memory_bytes"].as_i64() > Some(0), "{run}");
    assert!(run["duration_ms"].is_i64() && run["finished_at"].is_string(), "{run}");
}

#[tokio::test]
async fn provider_requests_are_counted_and_logged() {
    let scene = Provider::start().await;
    let bundle = Bundle::guest("hostile").replace("unauthenticated", "tests-own");
    scene.host.deploy(&bundle).await;
    let credentials = json!({ "type": "API_KEY", "apiKey": PROVIDER_KEY });
    let metadata = json!({ "steps": 0 });
    let connection = Connection::import(&scene.host, "hostile", "customer-1", credentials, metadata).await;
    let body = json!({ "method": "POST", "url": "/upload", "body": "x".repeat(1_000) });
    connection.action("fetch", &body).await.expect(200);
    let found =
        eventually("the run is stored", async || runs(&scene.host, &[("function", "fetch")]).await.pop())
            .await;
    let run = run(&scene.host, &found["id"]).await;
    assert_eq!((&run["usage"]["requests"], &run["usage"]["sent_bytes"]), (&json!(1), &json!(1_000)), "{run}");
    assert!(run["usage"]["received_bytes"].as_i64() > Some(0), "{run}");
    let log = messages(&scene.host, &found["id"], &[]).await;
    assert!(log.iter().any(|line| line.contains("/api/upload: 200")), "{log:?}");
    assert!(!log.iter().any(|line| line.contains(PROVIDER_KEY)), "{log:?}");
}

#[tokio::test]
async fn runs_are_filtered_and_paged() {
    let stage = Stage::hostile().await;
    for number in 0..5 {
        let input = json!({ "code": "none", "message": format!("failure {number}") });
        stage.connection.action("fail", &input).await.expect(400);
    }
    stage.connection.action("print", &json!("said")).await.expect(200);
    let host = &*stage.host;
    eventually("the runs of the actions are stored", async || {
        (runs(host, &[("kind", "action")]).await.len() == 6).then_some(())
    })
    .await;
    let count = async |parameters: &[(&str, &str)]| runs(host, parameters).await.len();
    let of_connection = [("provider_config_key", "hostile"), ("connection_id", "customer-1")];
    assert_eq!(count(&[]).await, 8, "two syncs and six actions");
    assert_eq!(count(&of_connection).await, 8);
    assert_eq!(count(&of_connection[..1]).await, 8);
    assert_eq!(count(&[of_connection[0], ("state", "error")]).await, 5);
    assert_eq!(count(&[of_connection[0], of_connection[1], ("function", "print")]).await, 1);
    assert_eq!(count(&[("state", "error")]).await, 5);
    assert_eq!(count(&[("state", "running")]).await, 0);
    assert_eq!(count(&[("kind", "sync"), ("trigger", "schedule"), ("variant", "base")]).await, 2);
    assert_eq!(count(&[("trigger", "api"), ("function", "print")]).await, 1);
    assert_eq!(count(&[("started_after", "2999-01-01T00:00:00Z")]).await, 0);
    assert_eq!(count(&[("started_before", "2999-01-01T00:00:00Z")]).await, 8);

    let all: Vec<Value> = runs(host, &[]).await.iter().map(|run| run["id"].clone()).collect();
    for scope in [&[][..], &of_connection[..1], &of_connection] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut parameters = [scope, &[("limit", "3")]].concat();
            if !cursor.is_empty() {
                parameters.push(("cursor", &cursor));
            }
            let page = host.get(&format!("/runs?{}", query(&parameters))).await.expect(200).json();
            seen.extend(page["runs"].as_array().unwrap().iter().map(|run| run["id"].clone()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            next.clone_into(&mut cursor);
        }
        assert_eq!(seen, all, "{scope:?}");
    }
    let started: Vec<_> =
        runs(host, &[]).await.iter().map(|run| text(&run["started_at"]).to_owned()).collect();
    assert!(started.is_sorted_by(|newer, older| newer >= older), "{started:?}");
}

#[tokio::test]
async fn invalid_run_queries_are_rejected_with_the_reason() {
    let stage = Stage::hostile().await;
    let id = text(&runs(&stage.host, &[]).await[0]["id"]).to_owned();
    for (path, refusal) in [
        ("/runs?state=broken", (400, "invalid_query_params")),
        ("/runs?kind=cron", (400, "invalid_query_params")),
        ("/runs?trigger=hand", (400, "invalid_query_params")),
        ("/runs?function=a%20b", (400, "invalid_query_params")),
        ("/runs?started_after=yesterday", (400, "invalid_query_params")),
        ("/runs?limit=0", (400, "invalid_query_params")),
        ("/runs?unknown=1", (400, "invalid_query_params")),
        ("/runs?connection_id=customer-1", (400, "invalid_query_params")),
        ("/runs?cursor=AAAAAAAA", (400, "invalid_cursor")),
        ("/runs?provider_config_key=none", (404, "unknown_integration")),
        ("/runs?provider_config_key=hostile&connection_id=nobody", (404, "unknown_connection")),
        ("/runs/nonsense", (404, "unknown_run")),
        ("/runs/00000000-0000-0000-0000-000000000000", (404, "unknown_run")),
        ("/runs/00000000-0000-0000-0000-000000000000/logs", (404, "unknown_run")),
        (&*format!("/runs/{id}/logs?level=loud"), (400, "invalid_query_params")),
        (&*format!("/runs/{id}/logs?cursor=x"), (400, "invalid_cursor")),
        (&*format!("/runs/{id}/logs?since=x"), (400, "invalid_query_params")),
    ] {
        let answer = stage.host.get(path).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()), "{path}");
    }
    let key = stage.host.command(&stage.db, &["keys", "create", "syncs", "--scopes", "environment:syncs:*"]);
    let without = stage.host.with_key(Some(key.trim()));
    stage.host.command(&stage.db, &["env", "create", "other"]);
    let key = stage.host.command(&stage.db, &["keys", "create", "other", "--environment", "other"]);
    let other = stage.host.with_key(Some(key.trim()));
    for path in ["/runs".to_owned(), format!("/runs/{id}"), format!("/runs/{id}/logs")] {
        assert_eq!(without.get(&path).await.refusal(), (403, "forbidden".to_owned()), "{path}");
    }
    assert_eq!(runs(&other, &[]).await, [Value::Null; 0]);
    for path in [format!("/runs/{id}"), format!("/runs/{id}/logs")] {
        assert_eq!(other.get(&path).await.refusal(), (404, "unknown_run".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn a_run_log_is_paged_and_filtered_by_level_and_text() {
    let stage = Stage::hostile().await;
    let refused = stage.connection.action("log-flood", &Value::Null).await;
    assert_eq!(refused.refusal(), (400, "limit_exceeded".to_owned()));
    let found =
        eventually("the run is stored", async || runs(&stage.host, &[("function", "log-flood")]).await.pop())
            .await;
    assert_eq!(found["error"]["code"], "limit_exceeded");
    let path = format!("/runs/{}/logs", text(&found["id"]));
    let whole = stage.host.get(&format!("{path}?limit=1000")).await.expect(200).json();
    let whole = whole["logs"].as_array().unwrap();
    assert!(whole.len() > 100, "{}", whole.len());
    let mut seen = Vec::new();
    let mut cursor = "-1".to_owned();
    loop {
        let page = stage.host.get(&format!("{path}?limit=150&cursor={cursor}")).await.expect(200).json();
        seen.extend(page["logs"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { break };
        next.clone_into(&mut cursor);
    }
    assert_eq!(seen[..whole.len()], whole[..]);
    let lines: Vec<i64> = seen.iter().filter_map(|line| line["line"].as_i64()).collect();
    assert!(lines.is_sorted() && lines.len() == seen.len(), "{lines:?}");
    let matching = messages(&stage.host, &found["id"], &[("search", "17 XXXX")]).await;
    assert!(matching.len() > 1 && matching.iter().all(|line| line.contains("17 xxxx")), "{matching:?}");
    assert!(messages(&stage.host, &found["id"], &[("level", "error"), ("search", "17 x")]).await.is_empty());
    assert!(messages(&stage.host, &found["id"], &[("since", "2999-01-01T00:00:00Z")]).await.is_empty());
}

#[tokio::test]
async fn a_run_in_progress_is_visible() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await;
    stage.connection.set_metadata(json!({ "steps": 3_000, "pause_ms": 5 })).await;
    stage.connection.trigger("steps").await;
    let running_run = eventually("the progress is visible", async || {
        let found = runs(&stage.host, &[("function", "steps"), ("state", "running")]).await.pop()?;
        found["progress"]["done"].is_i64().then_some(found)
    })
    .await;
    assert_eq!(running_run["progress"]["total"], 3_000, "{running_run}");
    assert!(
        running_run["usage"]["records"].as_i64() > Some(0) && running_run["finished_at"].is_null(),
        "{running_run}"
    );
    let later = eventually("the run makes progress", async || {
        let now = run(&stage.host, &running_run["id"]).await;
        (now["progress"]["done"].as_i64() > running_run["progress"]["done"].as_i64()).then_some(now)
    })
    .await;
    assert_eq!(later["state"], "running");
    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
}

#[tokio::test]
async fn a_long_action_is_visible_and_closed_if_its_host_dies() {
    let mut stage = Stage::hostile().await;
    let path = stage.connection.trigger_async("sleep", &json!(20_000)).await;
    assert!(path.contains("/action/"), "{path}");
    let running_run = eventually("the run is visible", async || {
        runs(&stage.host, &[("function", "sleep"), ("state", "running")]).await.pop()
    })
    .await;
    assert_eq!((&running_run["kind"], &running_run["trigger"]), (&json!("action"), &json!("api")));
    assert!(path.ends_with(text(&running_run["job_id"])), "{path}");
    stage.host.kill();
    stage.db.execute("UPDATE hosts SET last_heartbeat_at = now() - interval '10 minutes'").await;
    let second = Host::spawn(&stage.db).await;
    let over = eventually("the run is closed", async || {
        let now = run(&second, &running_run["id"]).await;
        (now["state"] != "running").then_some(now)
    })
    .await;
    assert_eq!((&over["state"], &over["error"]["code"]), (&json!("lost"), &json!("host_lost")));
    // Otherwise the job would run again when its lease expires.
    second.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
}

#[tokio::test]
async fn runs_with_long_logs_do_not_delay_others() {
    let stage = Stage::hostile().await;
    let mut holder = stage.db.connect().await;
    let mut tx = holder.begin().await.unwrap();
    sqlx::query("LOCK TABLE run_logs IN EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    for _ in 0..5 {
        assert_eq!(stage.connection.action("log-flood", &Value::Null).await.status, 400);
    }
    stage.connection.action("sleep", &json!(0)).await.expect(200);
    eventually("the run without a log is stored", async || {
        runs(&stage.host, &[("function", "sleep")]).await.pop()
    })
    .await;
    assert!(runs(&stage.host, &[("function", "log-flood")]).await.is_empty());
    tx.rollback().await.unwrap();
    eventually("the other runs are stored", async || {
        (runs(&stage.host, &[("function", "log-flood")]).await.len() == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn runs_survive_a_short_database_outage() {
    let stage = Stage::hostile().await;
    let leave_and_return = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stage.db.refuse_connections().await;
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        stage.db.accept_connections().await;
    };
    let (answer, ()) =
        futures_util::future::join(stage.connection.action("sleep", &json!(600)), leave_and_return).await;
    answer.expect(200);
    eventually("the run is stored", async || {
        let path = format!("/runs?{}", query(&[("function", "sleep")]));
        let found = stage.host.get(&path).await;
        (found.status == 200 && found.json()["runs"].as_array().map(Vec::len) == Some(1)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn old_runs_are_deleted_except_those_that_a_status_needs() {
    let stage = Stage::numbers(3).await;
    for _ in 0..2 {
        stage.connection.run("numbers").await;
    }
    stage.connection.action("echo", &json!("old")).await.expect(200);
    eventually("the run of the action is stored", async || {
        (runs(&stage.host, &[]).await.len() == 4).then_some(())
    })
    .await;
    let before = stage.connection.status("numbers").await;
    assert_eq!(before["type"], "INCREMENTAL");
    let age = "started_at = started_at - interval '31 days', finished_at = finished_at - interval '31 days'";
    stage.db.execute(&format!("UPDATE runs SET {age}")).await;
    // A host deletes old runs at its start.
    let second = Host::spawn(&stage.db).await;
    let left = eventually("the old rows are deleted", async || {
        let left = runs(&second, &[]).await;
        (left.len() == 1).then_some(left)
    })
    .await;
    assert_eq!(left[0]["kind"], "sync");
    let after = stage.connection.status("numbers").await;
    for member in ["type", "status", "latestResult", "recordCount"] {
        assert_eq!(after[member], before[member], "{member}");
    }
    // The status does not depend on the remaining run to know about the first success.
    stage.db.execute("DELETE FROM runs").await;
    assert_eq!(stage.connection.status("numbers").await["type"], "INCREMENTAL");
}

#[tokio::test]
async fn environment_variables_read_by_a_function_are_masked_in_its_log() {
    const VARIABLE: &str = "planted-variable-of-the-run-5521";
    let stage = Stage::hostile().await;
    stage.host.put("/environment-variables/TOKEN", &json!({ "value": VARIABLE })).await.expect(204);
    let seen = stage.connection.action("read-env", &Value::Null).await.expect(200).text();
    assert!(seen.contains(VARIABLE), "the function can read the variable: {seen}");
    stage.connection.action("tell-env", &Value::Null).await.expect(400);
    let found =
        eventually("the run is stored", async || runs(&stage.host, &[("function", "tell-env")]).await.pop())
            .await;
    let whole = run(&stage.host, &found["id"]).await.to_string();
    let log = messages(&stage.host, &found["id"], &[]).await.join("\n");
    for said in [&whole, &log] {
        assert!(!said.contains(VARIABLE) && said.contains("it is ***"), "{said}");
    }
    assert_eq!(
        stage
            .db
            .number(&format!("SELECT count(*) FROM run_logs WHERE run_logs::text LIKE '%{VARIABLE}%'"))
            .await,
        0
    );
}

#[tokio::test]
async fn process_environment_variables_are_masked_in_errors() {
    const VARIABLE: &str = "planted-variable-of-the-process-7d02";
    let granted =
        Bundle::guest("hostile").replace("component = \".\"", "component = \".\"\nenv = [\"TOKEN\"]");
    let stage = Stage::of(&granted, json!({ "steps": 0 })).await;
    stage.host.put("/environment-variables/TOKEN", &json!({ "value": VARIABLE })).await.expect(204);
    let failure = json!({ "code": "told", "message": format!("it is {VARIABLE}"), "details": [VARIABLE] });
    let answer = stage.connection.action("fail", &failure).await;
    assert!(answer.message().contains(VARIABLE), "the caller gets the unmasked message");
    let found =
        eventually("the run is stored", async || runs(&stage.host, &[("function", "fail")]).await.pop())
            .await;
    let stored = run(&stage.host, &found["id"]).await["error"].clone();
    assert_eq!((&stored["message"], &stored["details"]), (&json!("it is ***"), &json!(["***"])));
}

#[tokio::test]
async fn a_huge_error_is_truncated_in_storage() {
    let stage = Stage::hostile().await;
    let failure = |bytes: usize| {
        let details = json!({ "text": "d".repeat(bytes) });
        json!({ "code": "huge", "message": "m".repeat(bytes), "details": details })
    };
    let whole_error = stage.connection.action("fail", &failure(1_000_000)).await.expect(400);
    assert_eq!(whole_error.message().len(), 1_000_000, "the caller gets the whole message");
    let cut = stage.connection.action("fail", &failure(3_000_000)).await.expect(400);
    assert!(cut.text().len() < 5_000_000, "{}", cut.text().len());
    let stored = eventually("the runs are stored", async || {
        let found = runs(&stage.host, &[("function", "fail")]).await;
        (found.len() == 2).then_some(found)
    })
    .await;
    for found in stored {
        let error = run(&stage.host, &found["id"]).await["error"].clone();
        assert_eq!(text(&error["message"]).len(), 10_000);
        assert_eq!(error["details"], Value::Null);
    }
}

#[tokio::test]
async fn the_cli_lists_shows_and_follows_runs() {
    let stage = Stage::hostile().await;
    let command = |arguments: &[&str]| {
        let url = stage.host.base_url().to_owned();
        let arguments = [&["runs"], arguments, &["--url", &url, "--secret-key", SECRET_KEY]].concat();
        stage.db.command(&arguments).run()
    };
    stage.connection.action("fail", &json!({ "code": "none", "message": "on purpose" })).await.expect(400);
    eventually("the run is stored", async || runs(&stage.host, &[("function", "fail")]).await.pop()).await;
    let listed = command(&["list", "--state", "error"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(
        listed.contains("hostile/customer-1  fail  api  action_script_runtime_error: on purpose"),
        "{listed}"
    );
    let as_json: Value =
        serde_json::from_str(&command(&["list", "--integration", "hostile", "--json"])).unwrap();
    assert_eq!(as_json.as_array().map(Vec::len), Some(3));
    let id = listed.split_whitespace().next().unwrap();
    let shown: Value = serde_json::from_str(&command(&["show", id])).unwrap();
    assert_eq!(shown["error"]["message"], "on purpose");
    let last = command(&["logs", "--last", "--function", "fail"]);
    assert_eq!(last, command(&["logs", id]));

    stage.connection.set_metadata(json!({ "steps": 300, "pause_ms": 20 })).await;
    stage.connection.trigger("steps").await;
    let running_run = eventually("the sync is running", async || {
        runs(&stage.host, &[("function", "steps"), ("state", "running")]).await.pop()
    })
    .await;
    let followed = command(&["logs", text(&running_run["id"]), "--follow", "--json"]);
    assert_eq!(
        run(&stage.host, &running_run["id"]).await["state"],
        "success",
        "the command followed the run to its end: {followed}"
    );
}

#[tokio::test]
async fn a_run_without_a_schedule_is_closed() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 2_000, "pause_ms": 10 })).await;
    stage.trigger("steps").await;
    stage.wait_until_running("steps").await;
    stage.db.execute("DELETE FROM schedules WHERE sync_name = 'steps'").await;
    // A host checks this when it starts.
    let _other = Host::spawn(&stage.db).await;
    let running_run = "SELECT count(*) FROM runs WHERE state = 'running'";
    eventually("the run is closed", async || (stage.db.number(running_run).await == 0).then_some(())).await;
    let ends = "SELECT concat_ws(' ', state, error_code) FROM runs WHERE function_name = 'steps'
                ORDER BY started_at DESC LIMIT 1";
    assert_eq!(stage.db.texts(ends).await, ["cancelled script_cancelled"]);
}
