//! Recordings of runs and their replays: `syncline dryrun --record` and `syncline test`.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::{Bundle, LocalProject, ProviderServer, repository};

const CANARY: &str = "planted-key-of-a-recording-7be0";

fn project(guest: &str, server: &ProviderServer) -> LocalProject {
    LocalProject::create(&Bundle::guest(guest).at_address(&server.base_url()), Some(server))
}

/// Replays every recording 100 times, and returns the digests.
#[track_caller]
fn replay_100_times(project: &LocalProject) -> Vec<String> {
    let printed = project.test(&["--repeat", "100", "--json"]).expect(0);
    let results: Vec<Value> = serde_json::from_str(&printed).expect("the output is JSON");
    results.iter().map(|result| result["digest"].as_str().expect("a digest").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_replays_have_the_same_result_in_each_language() {
    let server = ProviderServer::start().await;
    for language in ["typescript", "python"] {
        let project = project(language, &server);
        project.record("items", &[]);
        let request = json!({ "url": format!("{}/items", server.base_url()), "method": "POST", "body": "é" });
        project.record("fetch", &["--input", &request.to_string()]);
        let seen = server.seen.requests().len();
        assert_eq!(replay_100_times(&project).len(), 2, "{language}");
        assert_eq!(server.seen.requests().len(), seen, "{language}: a replay sends no requests");
    }
    let rust = LocalProject::create(&Bundle::example("minimal"), None);
    rust.record("numbers", &["--metadata", r#"{"count":5,"size_bytes":60}"#]);
    assert_eq!(replay_100_times(&rust).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_are_replayed_by_their_content_and_in_their_recorded_order() {
    let server = ProviderServer::start().await;
    let project = project("wasi-http", &server);
    // Each request receives another status, which the action returns in the order of the requests.
    let statuses = [400, 403, 404, 405, 406, 409, 410, 422];
    let urls = statuses.map(|status| format!("{}/refuse?{status}", server.base_url()));
    project.record("fetch-all", &["--input", &json!(urls).to_string()]);
    let upload =
        json!({ "url": format!("{}/upload", server.base_url()), "chunks": 20, "chunk_bytes": 5_000 });
    project.record("upload", &["--input", &upload.to_string()]);
    replay_100_times(&project);

    // Another order of the exchanges in the file changes nothing.
    project.edit("fetch-all", |recording| {
        recording["exchanges"].as_array_mut().expect("a list").reverse();
    });
    project.test(&["fetch-all"]).expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeps_take_no_time_in_a_replay() {
    let project = LocalProject::create(&Bundle::guest("hostile"), None);
    let began = Instant::now();
    project.record("sleep", &["--input", "1500"]);
    assert!(began.elapsed() > Duration::from_millis(1500), "the recorded run slept");
    let began = Instant::now();
    replay_100_times(&project);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_contains_no_secret() {
    let server = ProviderServer::start().await;
    let bundle = Bundle::guest("typescript").replace("\"unauthenticated\"", "\"stripe-api-key\"");
    let project = LocalProject::create(&bundle.at_address(&server.base_url()), Some(&server));
    let credentials = json!({ "username": CANARY, "password": "planted-password" }).to_string();
    let variable = format!("TOKEN={CANARY}-variable");
    let input = r#"{"url":"/items","headers":{"cookie":"session=planted-session"}}"#;
    let options = ["--credentials", &credentials, "--variable", &variable, "--input", input];
    let recording = project.record("fetch", &options);
    let encoded = STANDARD.encode(format!("{CANARY}:planted-password"));
    for secret in [CANARY, "planted-password", "planted-session", &encoded] {
        assert!(!recording.contains(secret), "{recording}");
    }
    assert!(recording.contains("\"TOKEN\": \"***\""), "{recording}");
    let parsed: Value = serde_json::from_str(&recording).expect("a recording is JSON");
    assert_eq!(parsed["exchanges"][0]["request"]["headers"], json!(["cookie: ***"]));
    replay_100_times(&project);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_component_shows_a_diff_until_the_recording_is_updated() {
    let bundle = Bundle::example("minimal");
    let project = LocalProject::create(&bundle, None);
    project.record("numbers", &["--metadata", r#"{"count":2,"size_bytes":60}"#]);
    project.test(&[]).expect(0);

    let mut component = bundle.component().to_vec();
    let (old, new) = (b"number-", b"nombre-");
    let places: Vec<usize> = (0..component.len()).filter(|at| component[*at..].starts_with(old)).collect();
    assert!(!places.is_empty(), "the component contains the text");
    places.iter().for_each(|at| component[*at..*at + new.len()].copy_from_slice(new));
    std::fs::write(project.path("component.wasm"), component).expect("the folder is writable");

    let printed = project.test(&[]).expect(1);
    assert!(printed.contains("differs  tests/recordings/numbers.json (minimal numbers)\n"), "{printed}");
    assert!(printed.contains("  Number `nombre-0`: now added: {\"id\":\"nombre-0\""), "{printed}");
    assert!(printed.contains("  Number `number-0`: no longer added\n"), "{printed}");
    assert!(printed.contains("1 of 1 recordings differ") && printed.contains("--update"), "{printed}");

    let printed = project.test(&["--update"]).expect(0);
    assert!(printed.contains("updated  tests/recordings/numbers.json"), "{printed}");
    project.test(&[]).expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_difference_is_shown() {
    let server = ProviderServer::start().await;
    let project = project("typescript", &server);
    project.record("items", &[]);
    project.edit("items", |recording| {
        let expected = &mut recording["expected"];
        expected["records"][0]["after"]["name"] = json!("Eve");
        expected["checkpoint"] = json!({ "cursor": "7" });
        expected["metadata"] = json!({ "region": "eu" });
        expected["log"][0]["message"] = json!("full: perhaps");
        let mut unsent = recording["exchanges"][0].clone();
        unsent["request"]["url"] = json!("/other");
        recording["exchanges"].as_array_mut().expect("a list").push(unsent);
    });
    let printed = project.test(&[]).expect(1);
    for line in [
        "  Item `1`: name: \"Eve\" → \"Ada\"\n",
        "  checkpoint: cursor: \"7\" → \"2\"\n",
        "  metadata: region: \"eu\" → (none)\n",
        "  request GET /other: no longer sent\n",
        "  log line 1: info full: perhaps → info full: true\n",
    ] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_recorded_ends_the_replay_with_its_name() {
    let server = ProviderServer::start().await;
    let project = project("python", &server);
    project.record("items", &[]);
    project.edit("items", |recording| {
        recording["exchanges"][1]["request"]["url"] = json!("/list?after=3");
    });
    let printed = project.test(&["--update"]).expect(1);
    let expected = "request: the recording has no response for `GET /list?after=2`; the nearest recorded request is \
                    `GET /list?after=3`";
    assert!(printed.contains(expected), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_recordings_are_reported_with_file_and_line() {
    let project = LocalProject::create(&Bundle::example("minimal"), None);
    let none = project.test(&[]).expect(1);
    assert!(none.contains("contains no recordings") && none.contains("--record"), "{none}");
    project.record("numbers", &["--metadata", r#"{"count":1,"size_bytes":60}"#]);
    let file = project.path("tests/recordings/numbers.json");
    let text = std::fs::read_to_string(&file).expect("there is a recording");
    for (broken, expected) in [
        (text.replacen("\"format\": 1", "\"format\": 9", 1), "the recording has format 9"),
        (text.replacen("\"kind\": \"sync\"", "\"kind\": sync", 1), "numbers.json: line 4, column "),
        (text.replacen("\"kind\"", "\"kynd\"", 1), "unknown field `kynd`"),
        (text.replacen("\"function\": \"numbers\"", "\"function\": \"gone\"", 1), "has no sync `gone`"),
        (
            text.replacen("\"integration\": \"minimal\"", "\"integration\": \"gone\"", 1),
            "has no integration `gone`",
        ),
        (text[..text.len() / 2].to_owned(), "EOF while parsing"),
    ] {
        std::fs::write(&file, broken).expect("the folder is writable");
        let printed = project.test(&[]).expect(3);
        assert!(printed.contains("error: tests/recordings/numbers.json: "), "{printed}");
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    std::fs::write(&file, text).expect("the folder is writable");
    let unmatched = project.test(&["nothing"]).expect(1);
    assert!(unmatched.contains("has `nothing` in its name"), "{unmatched}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recordings_of_the_examples_match() {
    for example in ["github", "hubspot", "stripe"] {
        let project = LocalProject::create(&Bundle::example(example), None);
        project.copy_recordings(&repository(format!("examples/{example}")));
        replay_100_times(&project);
    }
}
