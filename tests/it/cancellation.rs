//! Functions that are cancelled: by a reset, or because their caller disconnected.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Api, Bundle, Connection, ProviderServer, SlowProvider, Stage, eventually, query, text};

/// Upper limit for the time until a cancelled run is closed.
const BOUND: Duration = Duration::from_secs(15);

/// The newest run of a function.
async fn newest_run(api: &Api, function: &str) -> Option<Value> {
    let found = api.get(&format!("/runs?{}", query(&[("function", function)]))).await.expect(200).json();
    found["runs"].get(0).cloned()
}

async fn run(api: &Api, id: &Value) -> Value {
    api.get(&format!("/runs/{}", text(id))).await.expect(200).json()
}

/// Waits until the newest run of a function is in progress.
async fn wait_for_run(api: &Api, function: &str) -> Value {
    eventually(&format!("a run of `{function}` is in progress"), async || {
        newest_run(api, function).await.filter(|run| run["state"] == "running")
    })
    .await
}

/// Waits until a run is closed, and checks that it was cancelled.
async fn assert_cancelled(api: &Api, id: &Value) {
    let since = Instant::now();
    let ended = eventually("the run is closed", async || {
        let now = run(api, id).await;
        (now["state"] != "running").then_some(now)
    })
    .await;
    assert_eq!(
        (&ended["state"], &ended["error"]["code"]),
        (&json!("cancelled"), &json!("script_cancelled")),
        "{ended}"
    );
    assert!(since.elapsed() < BOUND, "it took {:?}", since.elapsed());
}

/// Level and message of each log line, without the host's debug lines about requests.
async fn log(api: &Api, id: &Value) -> Vec<(String, String)> {
    let log = api.get(&format!("/runs/{}/logs?level=info", text(id))).await.expect(200).json();
    let lines = log["logs"].as_array().expect("`logs` is a list");
    lines.iter().map(|line| (text(&line["level"]).to_owned(), text(&line["message"]).to_owned())).collect()
}

/// Calls an action and disconnects once it is running. Returns the run.
async fn start_and_disconnect(connection: &Connection, api: &Api, action: &str, input: Value) -> Value {
    tokio::select! {
        answer = connection.action(action, &input) => panic!("the action returned early: {}", answer.text()),
        run = wait_for_run(api, action) => run,
    }
}

#[tokio::test]
async fn a_sync_that_ignores_cancellation_is_terminated() {
    let server = ProviderServer::start().await;
    let patience = [("SYNCLINE_GRACE_SECONDS", "1")];
    let stage = Stage::at_provider(&server, &patience, Bundle::guest("hostile")).await;
    let saved = async || stage.all(&[("model", "Item")]).await;
    stage.set_metadata(json!({ "steps": 0, "end": "go-on" })).await;
    stage.trigger("commit-raw").await;
    let id =
        eventually("the sync saves", async || saved().await.first().map(|item| item["name"].clone())).await;

    stage.set_metadata(json!({ "steps": 0 })).await;
    let asked_before = server.seen.requests().len();
    let reset = json!({
        "provider_config_key": "hostile", "connection_id": stage.id, "syncs": ["commit-raw"],
        "opts": { "reset": true },
    });
    stage.host.post("/sync/trigger", &reset).await.expect(200);
    assert_cancelled(&stage.host, &id).await;
    // The run that the reset triggered finishes, and one more.
    stage.wait_until_idle().await;
    let (asked, records) = (server.seen.requests().len(), saved().await);
    assert!(asked > asked_before, "the sync ignores cancellation");
    assert_eq!(stage.run("commit-raw").await["status"], "SUCCESS");
    assert_eq!((server.seen.requests().len(), saved().await), (asked, records));
    let printed = ("info".to_owned(), "never done".to_owned());
    assert!(log(&stage.host, &id).await.contains(&printed), "the unterminated line is in the log");
}

#[tokio::test]
async fn an_abandoned_action_sends_no_further_requests() {
    let server = ProviderServer::start().await;
    let endless = Bundle::guest("hostile").limit("request-flood", "requests = 1000000");
    let stage = Stage::at_provider(&server, &[], endless).await;
    let run = start_and_disconnect(&stage, &stage.host, "request-flood", json!("/again")).await;
    assert_cancelled(&stage.host, &run["id"]).await;
    // Requests that were already in flight when the caller disconnected may still arrive.
    let neighbour = async || stage.save_raw("Item", r#"[{"id":"neighbour"}]"#).await.expect(200);
    neighbour().await;
    let asked = server.seen.requests().len();
    for _ in 0..5 {
        neighbour().await;
    }
    assert_eq!(server.seen.requests().len(), asked);
}

#[tokio::test]
async fn an_abandoned_action_stops_computing() {
    let stage = Stage::hostile().await;
    let run = start_and_disconnect(&stage, &stage.host, "spin", Value::Null).await;
    assert_cancelled(&stage.host, &run["id"]).await;
}

#[tokio::test]
async fn an_unterminated_log_line_is_stored_when_the_caller_disconnects() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle).await;
    let said = json!("half a line");
    let pending = tokio::select! {
        answer = stage.action("print-and-wait", &said) => panic!("the action returned early: {}", answer.text()),
        pending = provider.next_request() => pending,
    };
    pending.wait_for_disconnect().await;
    let run = eventually("the run is stored", async || newest_run(&stage.host, "print-and-wait").await).await;
    assert_cancelled(&stage.host, &run["id"]).await;
    let lines = ["info", "warn"].map(|level| (level.to_owned(), "half a line".to_owned()));
    assert_eq!(log(&stage.host, &run["id"]).await, lines);
}
