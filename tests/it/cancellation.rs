//! Functions that are ended from the outside: since whoever asked for them went away.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Api, SlowProvider, Stage, eventually, query, text};

/// A run that was ended is closed by then.
const BOUND: Duration = Duration::from_secs(15);

/// The newest run of a function.
async fn newest(api: &Api, function: &str) -> Option<Value> {
    let found = api.get(&format!("/runs?{}", query(&[("function", function)]))).await.expect(200).json();
    found["runs"].get(0).cloned()
}

async fn run(api: &Api, id: &Value) -> Value {
    api.get(&format!("/runs/{}", text(id))).await.expect(200).json()
}

/// Waits until a run is closed, and checks that it was cancelled.
async fn assert_cancelled(api: &Api, id: &Value) {
    let since = Instant::now();
    let over = eventually("the run is closed", async || {
        let now = run(api, id).await;
        (now["state"] != "running").then_some(now)
    })
    .await;
    assert_eq!(
        (&over["state"], &over["error"]["code"]),
        (&json!("cancelled"), &json!("script_cancelled")),
        "{over}"
    );
    assert!(since.elapsed() < BOUND, "it took {:?}", since.elapsed());
}

/// Level and message of each line but the host's notes of requests.
async fn log(api: &Api, id: &Value) -> Vec<(String, String)> {
    let log = api.get(&format!("/runs/{}/logs?level=info", text(id))).await.expect(200).json();
    let lines = log["logs"].as_array().expect("`logs` is a list");
    lines.iter().map(|line| (text(&line["level"]).to_owned(), text(&line["message"]).to_owned())).collect()
}

#[tokio::test]
async fn a_line_without_an_end_is_kept_though_the_caller_went_away() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle).await;
    let said = json!("half a line");
    let asker = tokio::select! {
        answer = stage.action("print-and-wait", &said) => panic!("it has ended: {}", answer.text()),
        asker = provider.asked() => asker,
    };
    asker.wait_for_hang_up().await;
    let run = eventually("the run is written", async || newest(&stage.host, "print-and-wait").await).await;
    assert_cancelled(&stage.host, &run["id"]).await;
    let lines = ["info", "warn"].map(|level| (level.to_owned(), "half a line".to_owned()));
    assert_eq!(log(&stage.host, &run["id"]).await, lines);
}
