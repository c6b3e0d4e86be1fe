//! `/metrics`, parsed with Prometheus's own library.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::webhook_scene::{Scene, push};
use crate::support::{Answer, Api, HostOptions, Stage, TestDatabase, eventually, free_port, repository};

/// Name, labels and value of each sample.
struct Samples(Vec<(String, Value, f64)>);

impl Samples {
    #[track_caller]
    fn parse(answer: &Answer) -> Self {
        let mut parser = Command::new(repository(".tools/venv/bin/python"))
            .arg(repository("tests/servers/parse_metrics.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python is not installed; `scripts/setup` installs it");
        parser
            .stdin
            .take()
            .expect("standard input is piped")
            .write_all(&answer.body)
            .expect("the process reads its input");
        let output = parser.wait_with_output().expect("the process is our child");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}\n{}", answer.text());
        Self(serde_json::from_slice(&output.stdout).expect("it writes JSON"))
    }

    /// The sum of the samples with this name and these labels.
    fn sum(&self, name: &str, labels: Value) -> f64 {
        let wanted = labels.as_object().expect("labels are an object");
        let fits = |labels: &Value| wanted.iter().all(|(name, value)| &labels[name] == value);
        self.0.iter().filter(|sample| sample.0 == name && fits(&sample.1)).map(|sample| sample.2).sum()
    }

    /// Like `sum`, for counts.
    fn count(&self, name: &str, labels: Value) -> u64 {
        let sum = self.sum(name, labels);
        assert!(sum >= 0.0 && sum.fract().abs() < f64::EPSILON, "`{name}` is {sum}");
        sum as u64
    }
}

async fn fetch(api: &Api) -> Samples {
    let answer = api.with_key(None).get("/metrics").await.expect(200);
    let content_type = answer.header("content-type").unwrap_or_default().to_owned();
    assert!(content_type.starts_with("application/openmetrics-text; version=1.0.0"), "{content_type}");
    Samples::parse(&answer)
}

#[tokio::test]
async fn metrics_follow_runs_records_and_requests() {
    let stage = Stage::numbers(20).await;
    let before = fetch(&stage.host).await;
    let of_syncs = json!({ "kind": "sync", "state": "success", "integration": "minimal" });
    assert_eq!(before.count("syncline_runs_total", of_syncs.clone()), 1);
    assert_eq!(before.count("syncline_records_total", json!({ "change": "added" })), 20);

    stage.connection.set_metadata(json!({ "count": 25, "batch": 10 })).await;
    stage.connection.run("numbers").await;
    stage.connection.action("echo", &json!("hello")).await.expect(200);
    stage.connection.action("no-such-action", &json!("hello")).await.expect(404);
    let after = fetch(&stage.host).await;
    assert_eq!(after.count("syncline_runs_total", of_syncs), 2);
    assert_eq!(after.count("syncline_runs_total", json!({ "kind": "action", "state": "success" })), 1);
    assert_eq!(after.count("syncline_run_duration_seconds_count", json!({ "kind": "sync" })), 2);
    assert!(after.sum("syncline_run_cpu_seconds_total", json!({ "kind": "sync" })) > 0.0);
    assert_eq!(after.count("syncline_records_total", json!({ "change": "added" })), 25);
    let actions = |status: &str| json!({ "method": "POST", "route": "/action/trigger", "status": status });
    assert_eq!(after.count("syncline_api_requests_total", actions("2xx")), 1);
    assert_eq!(after.count("syncline_api_requests_total", actions("4xx")), 1);
    assert_eq!(after.count("syncline_database_up", json!({})), 1);
    assert_eq!(after.count("syncline_build_info", json!({ "version": env!("CARGO_PKG_VERSION") })), 1);
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"] {
        assert!(after.sum(name, json!({})) > 0.0, "{name}");
    }
    let current = stage.host.with_key(None).get("/metrics").await.text();
    assert!(!current.contains("customer-1"), "no label contains a connection: {current}");
}

#[tokio::test]
async fn runs_in_progress_are_counted() {
    let stage = Stage::hostile().await;
    assert_eq!(fetch(&stage.host).await.count("syncline_schedules_due", json!({})), 0);
    stage.connection.set_metadata(json!({ "steps": 1_000_000, "pause_ms": 50 })).await;
    stage.connection.trigger("steps").await;
    eventually("the run is counted", async || {
        (fetch(&stage.host).await.count("syncline_runs_on", json!({})) == 1).then_some(())
    })
    .await;
    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
}

#[tokio::test]
async fn inbound_webhooks_are_counted_from_ingest_to_completion() {
    let scene = Scene::create().await;
    let host = &scene.host;
    let received = |result: &str| json!({ "provider": "github-pat", "result": result });
    let refused = |provider: &str, reason: &str| json!({ "provider": provider, "reason": reason });
    let waits = async |what: &str, name: &str, labels: Value, count: u64| {
        eventually(what, async || (fetch(host).await.count(name, labels.clone()) == count).then_some(()))
            .await;
    };

    let deliver = async |event: &str, id: &str, body: &Value| {
        let answer = scene.deliver(event, id, body).await.expect(200);
        answer.header("x-syncline-webhook-id").unwrap_or_default().to_owned()
    };
    let ended = "syncline_processed_webhooks_total";
    let processed = deliver("push", "d1", &push("main")).await;
    assert_eq!(deliver("push", "d1", &push("main")).await, "", "the delivery is a duplicate");
    let unmatched = deliver("star", "d2", &json!({ "repository": { "full_name": "acme/unknown" } })).await;
    scene.wait_for_state(&processed, "processed").await;
    waits("one webhook is processed", ended, json!({ "state": "processed" }), 1).await;
    scene.wait_for_state(&unmatched, "unmatched").await;
    waits("one webhook is unmatched", ended, json!({ "state": "unmatched" }), 1).await;
    scene.connection.set_metadata(json!({ "repository": "acme/shop", "fails": true })).await;
    let failed = deliver("push", "d3", &push("main")).await;
    scene.wait_for_state(&failed, "failed").await;
    waits("one webhook has failed", ended, json!({ "state": "failed" }), 1).await;

    let open = host.with_key(None);
    open.post(&scene.url, &push("main")).await.expect(401);
    open.get(&scene.url).await.expect(400);
    open.post(&scene.url.replace("webhooks", "odd"), &push("main")).await.expect(404);
    open.post("/webhook/odd/webhooks", &push("main")).await.expect(400);
    open.request("HEAD", &scene.url).send().await.expect(200);
    let current = fetch(host).await;
    assert_eq!(current.count("syncline_received_webhooks_total", received("stored")), 3);
    assert_eq!(current.count("syncline_received_webhooks_total", received("duplicate")), 1);
    assert_eq!(current.count("syncline_received_webhooks_total", json!({})), 4);
    for (provider, reason) in [
        ("github-pat", "missing_webhook_signature"),
        ("github-pat", "unknown_handshake"),
        ("none", "unknown_integration"),
        ("none", "invalid_uri_params"),
    ] {
        assert_eq!(
            current.count("syncline_refused_webhooks_total", refused(provider, reason)),
            1,
            "{reason}"
        );
    }
    assert_eq!(current.count("syncline_refused_webhooks_total", json!({})), 4);
    assert_eq!(current.count("syncline_received_webhooks_waiting", json!({})), 0);

    // A webhook that cannot be processed now is processed later.
    let refuse =
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END'";
    scene.db.execute(refuse).await;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON function_jobs EXECUTE FUNCTION refuse()";
    scene.db.execute(trigger).await;
    let waiting = deliver("star", "d4", &push("-")).await;
    let older =
        format!("UPDATE inbound_webhooks SET received_at = now() - interval '90 s' WHERE id = '{waiting}'");
    scene.db.execute(&older).await;
    eventually("one waiting webhook is counted with its age", async || {
        let current = fetch(host).await;
        let age = current.sum("syncline_received_webhooks_age_seconds", json!({}));
        (current.count("syncline_received_webhooks_waiting", json!({})) == 1 && age >= 90.0).then_some(())
    })
    .await;
    scene.db.execute("DROP TRIGGER refuse ON function_jobs").await;
    scene.wait_for_state(&waiting, "processed").await;
    waits("the processed webhook is counted", ended, json!({ "state": "processed" }), 2).await;
    waits("no webhook waits", "syncline_received_webhooks_waiting", json!({}), 0).await;
    assert!(
        !host.with_key(None).get("/metrics").await.text().contains("acme/"),
        "no label contains webhook content"
    );
}

#[tokio::test]
async fn metrics_can_be_served_on_a_separate_listener() {
    let db = TestDatabase::create().await;
    let address = format!("127.0.0.1:{}", free_port());
    let host = HostOptions::new().database(&db).variable("SYNCLINE_METRICS_LISTEN", &address).spawn().await;
    assert_eq!(host.get("/metrics").await.refusal(), (404, "not_found".to_owned()));
    let beside = Api::new(format!("http://{address}"), None);
    assert_eq!(fetch(&beside).await.count("syncline_database_up", json!({})), 1);
    assert_eq!(beside.get("/health").await.status, 404);
}
