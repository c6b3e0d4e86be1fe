//! Requests that `schemathesis` generates from the OpenAPI document: the host never answers with an internal error, an
//! undocumented status or a body that does not match its schema, accepts what the document allows, and rejects the rest.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::support::populated::Populated;
use crate::support::{HostOptions, Receiver, TestDatabase, repository};

/// `make fuzz` sets the number of requests for each operation.
const EXAMPLES: &str = "SYNCLINE_FUZZ_EXAMPLES";
/// How long `make test` fuzzes, after about 25 seconds of requests that are the same for every seed.
const SECONDS: &str = "30";

#[tokio::test(flavor = "multi_thread")]
async fn generated_requests_are_answered_as_documented() {
    let db = TestDatabase::create().await;
    let receiver = Receiver::start().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address());
    let host = options.spawn().await;
    let arguments = ["keys", "create", "fuzz", "--scopes", "environment:*,account:*"];
    let key = host.command(&db, &arguments);
    let objects = Populated::create(host.with_key(Some(key.trim())), &receiver).await;

    let folder = tempfile::tempdir().unwrap();
    for file in ["schemathesis.toml", "hooks.py"] {
        fs::copy(repository("tests/fuzz").join(file), folder.path().join(file)).unwrap();
    }
    let ids = [&objects.run, &objects.dead_letter, &objects.delivery, &objects.webhook, &objects.job];
    fs::write(folder.path().join("ids.txt"), ids.map(|id| format!("\"{id}\"")).join("\n")).unwrap();
    let environment = format!("\"{}\"", objects.environment);
    fs::write(folder.path().join("environments.txt"), environment).unwrap();
    let values = json!({ "cursor": objects.cursor, "session_token": objects.session_token });
    let mut fuzzer = Command::new(repository(".tools/venv/bin/python"));
    fuzzer
        .args(["-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "--no-color", "run"])
        .arg(format!("{}/openapi.json", host.base_url()))
        .current_dir(&folder)
        .env("PYTHONPATH", folder.path())
        .env("SYNCLINE_FUZZ_KEY", key.trim())
        .env("SYNCLINE_FUZZ_TOKEN", &objects.session_token)
        .env("SYNCLINE_FUZZ_VALUES", values.to_string());
    match std::env::var(EXAMPLES) {
        Ok(examples) => fuzzer.args(["--max-examples", &examples]),
        // The same requests every time, so that a failure is caused by a change. `make fuzz` looks for new ones.
        Err(_) => fuzzer.args(["--max-time", SECONDS, "--max-examples", "2", "--seed", "1"]),
    };
    let output = tokio::task::spawn_blocking(move || fuzzer.output()).await.unwrap();
    let output = output.expect("schemathesis is not installed; `scripts/setup` installs it");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    println!("{printed}");
}
