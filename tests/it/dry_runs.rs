//! `syncline dryrun`: runs a function without a deployment, and shows what it would save.

use serde_json::{Value, json};

use crate::support::{
    Bundle, HostOptions, LocalProject, METADATA_KEY, ProviderServer, SECRET_KEY, TestDatabase,
};

const CANARY: &str = "planted-key-of-a-dry-run-52c1";

/// A provider that receives a user name and a password.
fn with_credentials(bundle: Bundle, server: &ProviderServer) -> Bundle {
    bundle
        .replace("provider = \"unauthenticated\"", "provider = \"stripe-api-key\"")
        .at_address(&server.base_url())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_a_sync_would_save_and_its_requests() {
    let server = ProviderServer::start().await;
    for language in ["typescript", "python"] {
        let project =
            LocalProject::create(&Bundle::guest(language).at_address(&server.base_url()), Some(&server));
        let printed = project.dryrun("items", &[]).expect(0);
        for line in [
            "  info  full: true\n",
            "/api/list: 200 (",
            "/api/list?after=2: 200 (",
            "  + Item 1  {\"id\":\"1\",\"name\":\"Ada\"}\n",
            "records: 3 added, 0 updated, 0 deleted, 0 unchanged\n",
            "checkpoint: none → {\"cursor\":\"2\"}\n",
        ] {
            assert!(printed.contains(line), "{language}: {line} in {printed}");
        }
        let checkpoint = r#"{"cursor":"2"}"#;
        let printed = project.dryrun("items", &["--checkpoint", checkpoint, "--json"]).expect(0);
        let result: Value = serde_json::from_str(&printed).expect("the output is JSON");
        assert_eq!(result["former_checkpoint"], json!({ "cursor": "2" }), "{language}");
        assert_eq!(result["requests"].as_array().map(Vec::len), Some(1), "{language}");
        let records = &result["outcome"]["records"];
        assert_eq!(records[0]["after"], json!({ "id": "3", "name": "Linus" }), "{language}");
        assert_eq!(result["outcome"]["log"][0]["message"], "full: false", "{language}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_from_the_command_line_reach_the_provider_and_are_not_printed() {
    let server = ProviderServer::start().await;
    let project =
        LocalProject::create(&with_credentials(Bundle::guest("typescript"), &server), Some(&server));
    let credentials = json!({ "username": CANARY, "password": "" }).to_string();
    let options = ["--credentials", &credentials, "--input", r#"{"url":"/items"}"#];
    let printed = project.dryrun("fetch", &options).expect(0);
    assert!(!printed.contains(CANARY), "{printed}");
    assert!(printed.contains("Basic ***"), "{printed}");
    let sent = server.seen.requests().pop().expect("a request was sent");
    assert!(sent["headers"]["authorization"].as_str().is_some_and(|value| value.starts_with("Basic ")));

    let file = project.path("credentials.json");
    std::fs::write(&file, &credentials).expect("the folder is writable");
    let file = file.display().to_string();
    project.dryrun("fetch", &["--credentials", &file, "--input", r#"{"url":"/items"}"#]).expect(0);

    let missing = project.dryrun("fetch", &["--input", r#"{"url":"/items"}"#]).expect(1);
    assert!(missing.contains("auth mode is BASIC") && missing.contains("--credentials"), "{missing}");
    let wrong = project.dryrun("fetch", &["--credentials", r#"{"apiKey":"x"}"#]).expect(1);
    assert!(wrong.contains("`username`"), "{wrong}");
    let absent = project.dryrun("fetch", &["--credentials", "absent.json"]).expect(1);
    assert!(absent.contains("could not read absent.json"), "{absent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_function_ends_with_exit_code_1_and_its_error() {
    let project = LocalProject::create(&Bundle::guest("hostile"), None);
    let failed =
        project.dryrun("fail", &["--input", r#"{"code":"no-cheese","message":"sold out"}"#]).expect(1);
    assert!(failed.contains("the function failed with action_script_runtime_error: sold out"), "{failed}");
    let limited = project.dryrun("recurse", &[]).expect(1);
    assert!(limited.contains("limit_exceeded") && limited.contains("`stack`"), "{limited}");
    let changes = json!({ "model": "Item", "items": "[{\"id\":\"a\",\"count\":\"many\"}]" }).to_string();
    let refused = project.dryrun("save-raw", &["--input", &changes]).expect(1);
    assert!(refused.contains("does not match model `Item`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_a_command_line_are_explained() {
    let project = LocalProject::create(&Bundle::guest("hostile"), None);
    for (function, options, expected) in [
        ("commit-rav", &[][..], "did you mean `commit-raw`?"),
        ("steps", &["--integration", "hostil"], "did you mean `hostile`?"),
        ("steps", &["--checkpoint", "{"], "--checkpoint is not valid JSON"),
        ("steps", &["--checkpoint", "3"], "--checkpoint must be a JSON object (got `3`)"),
        ("steps", &["--input", "3"], "a function of kind sync has no --input"),
        ("print", &["--full"], "are for syncs, but `print` is a function of kind action"),
        ("exit", &["--input", "\"x\""], "invalid_action_input"),
    ] {
        let printed = project.dryrun(function, options).expect(1);
        assert!(printed.contains(expected), "{function} {options:?}: {printed}");
    }
    project.dryrun("steps", &["--variable", "x"]).expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_with_a_connection_compares_with_its_records_and_changes_nothing() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).spawn().await;
    let bundle = Bundle::example("minimal").tracking_deletes("numbers");
    host.deploy(&bundle).await;
    let metadata = json!({ "count": 10, "batch": 4, "salt": "first" });
    let connection = host.connect_as("customer-1", "minimal", metadata).await;
    connection.wait_until_idle().await;
    let before = connection.all(&[("model", "Number")]).await;

    let project = LocalProject::create(&bundle, None);
    let url = format!("http://{}", host.address());
    let host_options = ["--connection", "customer-1", "--url", &url, "--secret-key", SECRET_KEY];
    let printed = project.dryrun("numbers", &host_options).expect(0);
    assert!(printed.contains("records: 0 added, 0 updated, 0 deleted, 10 unchanged"), "{printed}");

    let metadata = r#"{"first":2,"count":10,"batch":4,"salt":"second"}"#;
    let printed =
        project.dryrun("numbers", &[&host_options[..], &["--metadata", metadata]].concat()).expect(0);
    for line in [
        "records: 2 added, 8 updated, 2 deleted, 0 unchanged",
        "  - Number number-0\n  - Number number-1\n",
        "  ~ Number number-2\n",
        "      salt: \"first\" → \"second\"\n",
    ] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
    let after = connection.all(&[("model", "Number")]).await;
    assert_eq!(after, before);
    assert!(after.iter().all(|record| record[METADATA_KEY]["last_action"] == "ADDED"));
    assert!(after.iter().all(|record| record["salt"] == "first"));

    let unknown =
        project.dryrun("numbers", &["--connection", "nobody", "--url", &url, "--secret-key", SECRET_KEY]);
    assert!(unknown.expect(1).contains("unknown_connection"));
}
