//! Recordings of runs on hosts: which runs are recorded, where the recordings are kept, and how they are replayed.

use serde_json::{Value, json};

use crate::support::{
    Answer, Bundle, Connection, Host, HostOptions, LocalProject, ProviderServer, SECRET_KEY, Stage,
    TestDatabase, eventually,
};

const CANARY: &str = "planted-key-of-a-recorded-run-19e4";

/// Chooses the recorded runs of a sync.
async fn record(stage: &Stage, sync: &str, runs: Value) -> Answer {
    let body = json!({
        "provider_config_key": stage.integration,
        "connection_id": stage.id,
        "sync_name": sync,
        "runs": runs,
    });
    stage.host.put("/sync/recording", &body).await
}

#[track_caller]
fn refuses(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.refusal(), (status, code.to_owned()), "{}", answer.request);
}

/// The newest run of a sync.
async fn newest_run(stage: &Stage, sync: &str) -> String {
    let found = stage.host.get(&format!("/runs?function={sync}&limit=1")).await.expect(200).json();
    found["runs"][0]["id"].as_str().expect("there is a run").to_owned()
}

async fn recording_of(stage: &Stage, run: &str) -> Answer {
    stage.host.get(&format!("/runs/{run}/recording")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_on_a_host_is_replayed_elsewhere_with_the_same_result() {
    let server = ProviderServer::start().await;
    let bundle = Bundle::guest("typescript");
    let stage = Stage::at_provider(&server, &[], bundle).await;
    // A record that the provider no longer has. The next full run deletes it.
    stage.run("items").await;
    let before = stage.page(&[("model", "Item")]).await.records.len();
    record(&stage, "items", json!("every_run")).await.expect(200);
    stage.run("items").await;
    let incremental = newest_run(&stage, "items").await;
    stage.run_with("items", json!({ "reset": true })).await;
    let full = newest_run(&stage, "items").await;

    let local =
        LocalProject::create(&Bundle::guest("typescript").at_address(&server.base_url()), Some(&server));
    let seen = server.seen.requests().len();
    for run in [&incremental, &full] {
        let file = local.path(&format!("tests/recordings/{run}.json")).display().to_string();
        let export = ["runs", "export", run, "--output", &file, "--url", stage.host.base_url()];
        let printed = stage.db.command(&[&export[..], &["--secret-key", SECRET_KEY]].concat()).run();
        assert_eq!(printed.trim(), format!("wrote {file}"));
    }
    local.test(&["--repeat", "3"]).expect(0);
    assert_eq!(server.seen.requests().len(), seen, "a replay sends no requests");

    let recording: Value = recording_of(&stage, &full).await.expect(200).json();
    assert_eq!(recording["run"]["is_full"], true, "{recording}");
    assert_eq!(recording["kept"].as_array().map(Vec::len), Some(before), "{recording}");
    assert_eq!(recording["expected"]["unchanged"], before, "{recording}");
    let recording: Value = recording_of(&stage, &incremental).await.expect(200).json();
    assert_eq!(recording["checkpoint"], json!({ "cursor": "2" }), "{recording}");
    let lines = stage.host.get(&format!("/runs/{full}/logs?search=exported")).await.expect(200).json();
    assert_eq!(lines["logs"].as_array().map(Vec::len), Some(0));
    let lines =
        stage.host.get(&format!("/runs/{full}/logs?search=runs+export+{full}")).await.expect(200).json();
    assert_eq!(lines["logs"].as_array().map(Vec::len), Some(1), "the log says how to get the recording");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_next_failed_run_is_recorded() {
    let stage = Stage::numbers(3).await;
    let answer = record(&stage, "numbers", json!("next_failed_run")).await.expect(200).json();
    assert_eq!(answer, json!({ "runs": "next_failed_run", "retention_days": 7 }));
    stage.run("numbers").await;
    let successful = newest_run(&stage, "numbers").await;
    refuses(&recording_of(&stage, &successful).await, 404, "unknown_recording");

    stage.set_metadata(json!({ "count": "three" })).await;
    stage.run("numbers").await;
    let failed = newest_run(&stage, "numbers").await;
    let recording = recording_of(&stage, &failed).await.expect(200).json();
    let error = recording["expected"]["error"]["message"].as_str().expect("the run failed");
    assert!(error.contains("\"three\", expected u64"), "{recording}");
    assert_eq!(recording["connection"]["metadata"], json!({ "count": "three" }));
    let local = LocalProject::create(&Bundle::example("minimal"), None);
    let file = local.path("tests/recordings/failed.json");
    std::fs::create_dir_all(file.parent().expect("a file has a folder")).expect("the folder is writable");
    std::fs::write(&file, recording.to_string()).expect("the folder is writable");
    local.test(&[]).expect(0);

    // The order is completed, so the next failed run is not recorded.
    stage.run("numbers").await;
    let next = newest_run(&stage, "numbers").await;
    assert_ne!(next, failed);
    refuses(&recording_of(&stage, &next).await, 404, "unknown_recording");
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_are_sealed_masked_and_deleted_with_their_connection() {
    let server = ProviderServer::start().await;
    let bundle = Bundle::guest("typescript")
        .replace("provider = \"unauthenticated\"", "provider = \"stripe-api-key\"")
        .at_address(&server.base_url());
    let db = TestDatabase::create().await;
    let address = server.address.to_string();
    let host = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &address).spawn().await;
    host.deploy(&bundle).await;
    let credentials = json!({ "type": "BASIC", "username": CANARY, "password": "" });
    let connection = Connection::import(&host, "typescript", "secret", credentials, json!({})).await;
    connection.wait_until_idle().await;
    let stage = Stage { connection, host, db };
    record(&stage, "items", json!("every_run")).await.expect(200);
    stage.run("items").await;
    let run = newest_run(&stage, "items").await;
    let recording = recording_of(&stage, &run).await.expect(200).text();
    assert!(recording.contains("Linus") && !recording.contains(CANARY), "{recording}");
    let readable = "SELECT count(*) FROM recordings WHERE position('Linus'::bytea IN sealed_recording) > 0";
    assert_eq!(stage.db.number(readable).await, 0, "a recording is stored encrypted");

    stage.db.execute("UPDATE recordings SET expires_at = now()").await;
    refuses(&recording_of(&stage, &run).await, 404, "unknown_recording");
    stage.host.delete(&format!("/connections/{}?provider_config_key=typescript", stage.id)).await.expect(200);
    assert_eq!(stage.db.number("SELECT count(*) FROM recordings").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_recordings_are_deleted() {
    let stage = Stage::numbers(1).await;
    record(&stage, "numbers", json!("every_run")).await.expect(200);
    stage.run("numbers").await;
    let expired = newest_run(&stage, "numbers").await;
    stage.run("numbers").await;
    let kept = newest_run(&stage, "numbers").await;
    assert_ne!(kept, expired);
    assert_eq!(stage.db.number("SELECT count(*) FROM recordings").await, 2);
    let expire = format!("UPDATE recordings SET expires_at = now() WHERE run_id = '{expired}'");
    stage.db.execute(&expire).await;
    // A host deletes expired recordings when it starts, and then every ten minutes.
    let second = Host::spawn(&stage.db).await;
    eventually("the expired recording is deleted", async || {
        (stage.db.number("SELECT count(*) FROM recordings").await == 1).then_some(())
    })
    .await;
    second.get(&format!("/runs/{kept}/recording")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_recordings_are_checked() {
    let stage = Stage::numbers(1).await;
    for (days, code) in [(0, "too_small"), (31, "too_big")] {
        let body = json!({
            "provider_config_key": "minimal", "connection_id": stage.id, "sync_name": "numbers",
            "runs": "every_run", "retention_days": days,
        });
        let answer = stage.host.put("/sync/recording", &body).await;
        assert_eq!(answer.json()["error"]["errors"][0]["code"], code);
    }
    refuses(&record(&stage, "numbers", json!("sometimes")).await, 400, "invalid_body");
    refuses(&record(&stage, "nmbers", json!("every_run")).await, 404, "unknown_sync");
    let unknown = "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11";
    refuses(&recording_of(&stage, unknown).await, 404, "unknown_run");

    let record = |runs: &str| {
        let arguments = ["runs", "record", "numbers", runs, "--url", stage.host.base_url()];
        stage.db.command(&[&arguments[..], &["--secret-key", SECRET_KEY]].concat()).run()
    };
    assert!(record("every").starts_with("hosts record every run of numbers of minimal/"));
    stage.run("numbers").await;
    let recorded = newest_run(&stage, "numbers").await;
    recording_of(&stage, &recorded).await.expect(200);
    assert!(record("none").starts_with("hosts record no further runs of numbers"));
    stage.run("numbers").await;
    let unrecorded = newest_run(&stage, "numbers").await;
    refuses(&recording_of(&stage, &unrecorded).await, 404, "unknown_recording");
    assert_eq!(stage.db.audited("run.recording_read").await, [format!("run {recorded}")]);
}
