//! Functions that send requests with an ordinary HTTP client, through `wasi:http`: the same rules apply as to
//! requests of the SDK.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::{Answer, Bundle, Connection, PROVIDER_KEY, Provider, eventually, text};

struct Scene {
    connection: Connection,
    provider: Provider,
}

impl Scene {
    async fn start() -> Self {
        Self::with(|bundle| bundle).await
    }

    /// With a modified bundle.
    async fn with(change: impl FnOnce(Bundle) -> Bundle) -> Self {
        let provider = Provider::start().await;
        let bundle =
            Bundle::guest("wasi-http").replace("provider = \"unauthenticated\"", "provider = \"tests-own\"");
        provider.host.deploy(&change(bundle)).await;
        let credentials = json!({ "type": "API_KEY", "apiKey": PROVIDER_KEY });
        let connection =
            Connection::import(&provider.host, "wasi-http", "customer-1", credentials, json!({})).await;
        Self { connection, provider }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.provider.server.base_url())
    }

    async fn fetch(&self, url: &str) -> Answer {
        self.connection.action("fetch", &json!({ "url": url })).await
    }

    /// The messages in the log of the last run.
    async fn log(&self) -> String {
        let host = &self.provider.host;
        let id = eventually("the run is stored", async || {
            let run = host.get("/runs?kind=action").await.expect(200).json()["runs"][0].clone();
            Some(run["id"].as_str()?.to_owned()).filter(|_| run["state"] != "running")
        })
        .await;
        let log = host.get(&format!("/runs/{id}/logs")).await.expect(200).json();
        let lines = log["logs"].as_array().expect("a list").iter();
        lines.map(|line| text(&line["message"])).collect::<Vec<_>>().join("\n")
    }
}

/// The request that the provider received, from its echo.
fn echoed(answer: Answer) -> Value {
    let answer = answer.expect(200).json();
    serde_json::from_str(text(&answer["body"])).expect("the echo is JSON")
}

#[tokio::test]
async fn a_request_to_the_provider_carries_the_credentials() {
    let scene = Scene::start().await;
    let request = json!({
        "method": "PATCH", "url": scene.url("/items/1?a=b%20c"), "headers": { "X-Own": "1" },
        "body": "{\"name\":\"Ada\"}",
    });
    let answer = scene.connection.action("fetch", &request).await.expect(200);
    assert_eq!(answer.json()["status"], 200);
    assert_eq!(answer.json()["headers"]["x-of-provider"], "1");
    let received = echoed(answer);
    assert_eq!(received["method"], "PATCH");
    assert_eq!(received["target"], "/api/items/1?a=b%20c");
    assert_eq!(received["headers"]["x-own"], "1");
    assert_eq!(received["headers"]["x-api-key"], PROVIDER_KEY);
    assert_eq!(received["headers"]["host"], scene.provider.server.address.to_string());
    assert_eq!(received["body"], "{\"name\":\"Ada\"}");
    assert!(scene.log().await.contains("PATCH"), "the request is in the run's log");
}

#[tokio::test]
async fn an_error_status_is_a_response() {
    let scene = Scene::start().await;
    assert_eq!(scene.fetch(&scene.url("/refuse?404")).await.expect(200).json()["status"], 404);
}

#[tokio::test]
async fn the_host_repeats_requests_that_are_safe_to_repeat() {
    let scene = Scene::start().await;
    let answer = scene.fetch(&scene.url("/flaky?503")).await.expect(200).json();
    assert_eq!(answer["status"], 200);
    assert_eq!(scene.provider.server.seen.requests().len(), 2);
}

#[tokio::test]
async fn a_full_url_of_the_provider_means_the_connections_own_address() {
    let provider = "provider = \"tests-own\"";
    let scene = Scene::with(|bundle| bundle).await;
    let elsewhere = scene.provider.elsewhere.base_url();
    let moved = Bundle::guest("wasi-http")
        .replace("provider = \"unauthenticated\"", &format!("{provider}\nbase_url = \"{elsewhere}\""));
    scene.provider.host.deploy(&moved).await;
    let received = echoed(scene.fetch(&scene.url("/items")).await);
    assert_eq!(received["headers"]["host"], scene.provider.elsewhere.address.to_string());
    assert_eq!(received["headers"]["x-api-key"], PROVIDER_KEY);
    assert!(scene.provider.server.seen.requests().is_empty());
}

#[tokio::test]
async fn other_hosts_need_allow_hosts_and_get_no_credentials() {
    let scene = Scene::start().await;
    let elsewhere = format!("{}/items?secret=planted", scene.provider.elsewhere.base_url());
    let refused = scene.fetch(&elsewhere).await;
    assert_eq!(refused.refusal().0, 400);
    assert!(refused.message().contains("HttpRequestDenied"), "{}", refused.message());
    let log = scene.log().await;
    assert!(log.contains("is neither the provider's host nor in the integration's `allow_hosts`"), "{log}");
    assert!(!log.contains("planted"), "a query may contain secrets: {log}");
    assert!(scene.provider.elsewhere.seen.requests().is_empty());

    let address = scene.provider.elsewhere.address;
    let allowing = Bundle::guest("wasi-http").replace(
        "provider = \"unauthenticated\"",
        &format!("provider = \"tests-own\"\nallow_hosts = [\"{}:{}\"]", address.ip(), address.port()),
    );
    scene.provider.host.deploy(&allowing).await;
    let received = echoed(scene.fetch(&elsewhere).await);
    assert_eq!(received["headers"]["host"], address.to_string());
    assert_eq!(received["headers"]["x-api-key"], Value::Null);
}

#[tokio::test]
async fn a_private_address_is_refused() {
    let scene = Scene::with(|bundle| {
        bundle
            .replace("provider = \"tests-own\"", "provider = \"tests-own\"\nallow_hosts = [\"127.0.0.1:1\"]")
    })
    .await;
    let refused = scene.fetch("https://127.0.0.1:1/").await;
    assert!(refused.message().contains("DestinationIpProhibited"), "{}", refused.message());
}

#[tokio::test]
async fn a_function_cannot_set_the_header_of_the_credentials() {
    let scene = Scene::start().await;
    let request = json!({ "url": scene.url("/items"), "headers": { "X-Api-Key": "forged" } });
    let refused = scene.connection.action("fetch", &request).await;
    assert_eq!(refused.refusal().0, 400);
    let reason = "the header `x-api-key` cannot be set: the host sends the connection's credentials in it";
    assert!(refused.message().contains(reason), "{}", refused.message());
    assert!(scene.log().await.contains(reason));
    assert!(scene.provider.server.seen.requests().is_empty());
}

#[tokio::test]
async fn a_body_is_sent_while_the_function_writes_it() {
    let scene = Scene::start().await;
    let upload = json!({ "url": scene.url("/upload"), "chunks": 40, "chunk_bytes": 100_000 });
    assert_eq!(scene.connection.action("upload", &upload).await.expect(200).json(), 200);
    assert_eq!(scene.provider.server.seen.received_bytes.load(Ordering::SeqCst), 4_000_000);
}

#[tokio::test]
async fn a_body_larger_than_the_functions_memory_is_refused() {
    let scene = Scene::with(|bundle| bundle.limit("upload", "memory = \"8MB\"")).await;
    let upload = json!({ "url": scene.url("/upload"), "chunks": 100, "chunk_bytes": 100_000 });
    let refused = scene.connection.action("upload", &upload).await;
    assert_eq!(refused.refusal().0, 400);
    let log = scene.log().await;
    assert!(log.contains("HTTP request body size exceeds limit: 8388608 bytes"), "{log}");
    assert!(scene.provider.server.seen.requests().is_empty());
}

#[tokio::test]
async fn a_response_larger_than_the_limit_is_an_error() {
    let scene = Scene::with(|bundle| bundle.limit("fetch", "response = \"64KB\"")).await;
    assert_eq!(scene.fetch(&scene.url("/long?65536")).await.expect(200).json()["status"], 200);
    let refused = scene.fetch(&scene.url("/long?65537")).await;
    assert!(refused.message().contains("HttpResponseBodySize"), "{}", refused.message());
}

#[tokio::test]
async fn requests_run_at_the_same_time() {
    let scene = Scene::start().await;
    let urls = vec![scene.url("/slow-redirect?1"); 4];
    let began = std::time::Instant::now();
    let statuses = scene.connection.action("fetch-all", &json!(urls)).await.expect(200).json();
    assert_eq!(statuses, json!([200, 200, 200, 200]));
    assert!(
        began.elapsed().as_secs_f64() < 5.0,
        "each takes 2 s, and together they took {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_function_that_sends_too_many_requests_is_stopped() {
    let scene = Scene::with(|bundle| bundle.limit("fetch-all", "requests = 3")).await;
    let urls = vec![scene.url("/items"); 3];
    scene.connection.action("fetch-all", &json!(urls)).await.expect(200);
    let urls = vec![scene.url("/items"); 4];
    let stopped = scene.connection.action("fetch-all", &json!(urls)).await;
    assert_eq!(stopped.refusal(), (400, "limit_exceeded".to_owned()), "{}", stopped.text());
    assert_eq!(stopped.json()["error"]["payload"], json!({ "limit": "requests" }));
}

#[tokio::test]
async fn a_long_rate_limit_ends_the_run() {
    let scene = Scene::with(|bundle| bundle.limit("fetch", "wall = \"30s\"")).await;
    let ended = scene.fetch(&scene.url("/limited?3000")).await;
    assert_eq!(ended.refusal(), (429, "rate_limited".to_owned()), "{}", ended.text());
}

#[tokio::test]
async fn a_request_ends_with_its_run() {
    let scene = Scene::start().await;
    scene.connection.action("abandon", &json!(scene.url("/silence"))).await.expect(200);
    eventually("the provider sees that the client is gone", async || {
        scene.provider.server.seen.was_abandoned.load(Ordering::SeqCst).then_some(())
    })
    .await;
}
