//! Functions in TypeScript and Python run like those in Rust.

use serde_json::{Value, json};

use crate::support::{Answer, Bundle, Connection, PROVIDER_KEY, Provider, eventually, text};

/// The guests have the same functions. Each has its language's name.
const LANGUAGES: [&str; 2] = ["typescript", "python"];

struct Scene {
    connection: Connection,
    provider: Provider,
}

impl Scene {
    async fn start(language: &str) -> Self {
        let provider = Provider::start().await;
        let bundle =
            Bundle::guest(language).replace("provider = \"unauthenticated\"", "provider = \"tests-own\"");
        provider.host.deploy(&bundle).await;
        let credentials = json!({ "type": "API_KEY", "apiKey": PROVIDER_KEY });
        let connection =
            Connection::import(&provider.host, language, "customer-1", credentials, json!({})).await;
        Self { connection, provider }
    }

    async fn call(&self, action: &str, input: Value) -> Answer {
        self.connection.action(action, &input).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.provider.server.base_url())
    }

    /// The lines in the log of the last run of a function.
    async fn log(&self, function: &str) -> Vec<String> {
        let host = &self.provider.host;
        let path = format!("/runs?function={function}&limit=1");
        let id = eventually("the run is stored", async || {
            let run = host.get(&path).await.expect(200).json()["runs"][0].clone();
            Some(run["id"].as_str()?.to_owned()).filter(|_| run["state"] != "running")
        })
        .await;
        let log = host.get(&format!("/runs/{id}/logs")).await.expect(200).json();
        let lines = log["logs"].as_array().expect("a list").iter();
        lines.map(|line| text(&line["message"]).to_owned()).collect()
    }
}

#[tokio::test]
async fn the_usual_http_client_of_each_language_reaches_the_provider() {
    for language in LANGUAGES {
        let scene = Scene::start(language).await;
        let request = json!({
            "method": "PUT", "url": scene.url("/items/1?a=b%20c"), "headers": { "X-Own": "1" },
            "body": "{\"name\":\"Ada\"}",
        });
        let answer = scene.call("fetch", request).await.expect(200).json();
        assert_eq!(answer["status"], 200, "{language}");
        assert_eq!(answer["headers"]["x-of-provider"], "1", "{language}");
        let received: Value = serde_json::from_str(text(&answer["body"])).expect("the echo is JSON");
        assert_eq!(received["method"], "PUT", "{language}");
        assert_eq!(received["target"], "/api/items/1?a=b%20c", "{language}");
        assert_eq!(received["headers"]["x-own"], "1", "{language}");
        assert_eq!(received["headers"]["x-api-key"], PROVIDER_KEY, "{language}");
        assert_eq!(received["body"], "{\"name\":\"Ada\"}", "{language}");

        let elsewhere = format!("{}/items", scene.provider.elsewhere.base_url());
        let refused = scene.call("fetch", json!({ "url": elsewhere })).await;
        assert_eq!(refused.refusal().0, 400, "{language}");
        assert!(refused.message().contains("allow_hosts"), "{language}: {}", refused.message());
        assert!(scene.provider.elsewhere.seen.requests().is_empty(), "{language}");
    }
}

#[tokio::test]
async fn wasi_http_works_in_python() {
    let scene = Scene::start("python").await;
    let answer = scene.call("fetch-wasi", json!(scene.url("/items"))).await.expect(200).json();
    let received: Value = serde_json::from_str(text(&answer["body"])).expect("the echo is JSON");
    assert_eq!(received["headers"]["x-api-key"], PROVIDER_KEY);
}

#[tokio::test]
async fn a_crash_names_the_authors_file_and_line() {
    for (language, place) in [("typescript", "src/index.ts:2"), ("python", "main.py:3")] {
        let scene = Scene::start(language).await;
        let crashed = scene.call("fail", json!("no cheese")).await;
        assert_eq!(crashed.refusal(), (400, "script_internal_error".to_owned()), "{language}");
        let message = crashed.message();
        assert!(message.contains("no cheese") && message.contains(place), "{language}: {message}");
        let log = scene.log("fail").await;
        let printed = log.iter().filter(|line| *line == "about to fail with no cheese").count();
        assert_eq!(printed, 1, "{language}: {log:?}");
    }
}

#[tokio::test]
async fn an_unhandled_error_of_the_provider_is_passed_on() {
    for language in LANGUAGES {
        let scene = Scene::start(language).await;
        let refused = scene.call("refuse", Value::Null).await;
        assert_eq!(refused.refusal(), (424, "script_http_error".to_owned()), "{language}");
        assert_eq!(refused.json()["error"]["upstream"]["status"], 403, "{language}");
        assert!(!refused.text().contains(PROVIDER_KEY), "{language}");
    }
}

#[tokio::test]
async fn a_function_that_loses_changes_fails_in_each_language() {
    for language in LANGUAGES {
        let scene = Scene::start(language).await;
        let failed = scene.call("lose-changes", Value::Null).await;
        assert_eq!(failed.refusal(), (400, "action_script_runtime_error".to_owned()), "{language}");
        assert_eq!(failed.json()["error"]["payload"]["code"], "unsaved-changes", "{language}");
        let message = failed.message();
        assert!(message.starts_with("1 change was not saved to `Item`"), "{language}: {message}");
    }
}

#[tokio::test]
async fn a_sync_saves_pages_with_a_checkpoint() {
    for language in LANGUAGES {
        let scene = Scene::start(language).await;
        // The first run starts with the connection.
        scene.connection.wait_until_idle().await;
        let status = scene.connection.status("items").await;
        assert_eq!(status["status"], "SUCCESS", "{language}: {:?}", scene.log("items").await);
        let records = scene.connection.all(&[("model", "Item")]).await;
        let names: Vec<&str> = records.iter().map(|record| text(&record["name"])).collect();
        assert_eq!(names, ["Ada", "Grace", "Linus"], "{language}");
        assert_eq!(status["checkpoint"], json!({ "cursor": "2" }), "{language}");
        let log = scene.log("items").await;
        assert!(log.iter().any(|line| line == "full: true"), "{language}: {log:?}");

        let status = scene.connection.run("items").await;
        assert_eq!(status["status"], "SUCCESS", "{language}");
        let log = scene.log("items").await;
        assert!(log.iter().any(|line| line == "full: false"), "{language}: {log:?}");
        assert!(log.iter().any(|line| line.contains("after=2")), "{language}: {log:?}");
    }
}
