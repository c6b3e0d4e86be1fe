//! All hosts keep to a provider's rate limit that one of them received.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Api, Bundle, Connection, Host, HostOptions, PROVIDER_KEY, Provider, ProviderServer, TestDatabase,
    eventually,
};

struct Scene {
    connection: Connection,
    host: Host,
    db: TestDatabase,
    server: ProviderServer,
}

async fn host(db: &TestDatabase, server: &ProviderServer) -> Host {
    HostOptions::new()
        .database(db)
        .variable("SYNCLINE_EGRESS_ALLOW", &server.address.to_string())
        .spawn()
        .await
}

/// A host, and a connection to a provider that answers the first request to `/limited?SECONDS` with 429 and that
/// `Retry-After`.
async fn scene() -> Scene {
    let db = TestDatabase::create().await;
    let server = ProviderServer::start().await;
    let host = host(&db, &server).await;
    host.deploy(&Bundle::guest("hostile").at_address(&server.base_url())).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    Scene { connection, host, db, server }
}

/// Sends a request from a function, and returns the provider's status.
async fn fetch(connection: &Connection, url: &str) -> Value {
    connection.action("fetch", &json!({ "url": url, "retries": 0 })).await.expect(200).json()["status"]
        .clone()
}

#[tokio::test]
async fn a_rate_limit_seen_by_one_host_delays_all_hosts() {
    const HELD: Duration = Duration::from_secs(6);
    let scene = scene().await;
    let second = host(&scene.db, &scene.server).await;
    let there = scene.connection.through(&second);
    let neighbour = second.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    assert_eq!(fetch(&there, "/warm").await, 200);

    let began = Instant::now();
    assert_eq!(fetch(&scene.connection, "/limited?6").await, 429);
    assert_eq!(fetch(&neighbour, "/neighbour").await, 200);
    assert!(began.elapsed() < HELD, "another connection is not delayed");
    // Until it is notified, the other host still sends requests.
    eventually("the other host delays requests", async || {
        let asked = Instant::now();
        assert_eq!(fetch(&there, "/there").await, 200);
        (asked.elapsed() > HELD / 3).then_some(())
    })
    .await;
    assert!(began.elapsed() >= HELD, "the request was sent after {:?}", began.elapsed());
}

#[tokio::test]
async fn the_statistics_contain_the_time_that_requests_waited() {
    let scene = scene().await;
    assert_eq!(fetch(&scene.connection, "/limited?2").await, 429);
    assert_eq!(fetch(&scene.connection, "/after").await, 200);
    let counted =
        "SELECT coalesce(sum(succeeded), 0)::bigint FROM run_statistics WHERE kind = 'action' AND hours = 24";
    eventually("both actions are counted", async || (scene.db.number(counted).await == 2).then_some(()))
        .await;
    let waited = "SELECT sum(backoff_ms)::bigint FROM run_statistics WHERE kind = 'action' AND hours = 24";
    let waited = scene.db.number(waited).await;
    assert!((1_000..60_000).contains(&waited), "the requests waited for {waited} ms");
}

#[tokio::test]
async fn a_sync_ends_on_a_long_rate_limit_and_is_retried_afterwards() {
    let scene = scene().await;
    scene.connection.set_metadata(json!({ "steps": 0, "fetches": ["/limited?1200"] })).await;
    assert_eq!(scene.connection.run("commit-raw").await["status"], "ERROR");
    let codes = scene.db.texts("SELECT error_code FROM runs WHERE error_code IS NOT NULL").await;
    assert_eq!(codes, ["rate_limited"]);
    let due_in =
        "SELECT extract(epoch FROM due_at - now())::bigint FROM schedules WHERE due_reason = 'retry'";
    let due_in = scene.db.number(due_in).await;
    assert!((1_100..=1_200).contains(&due_in), "the retry is in {due_in} s");

    // Other requests fail with the same error, and the provider receives none.
    let action = scene.connection.action("fetch", &json!({ "url": "/later" })).await;
    assert_eq!(action.refusal(), (429, "rate_limited".to_owned()));
    let wait: u64 = action
        .header("retry-after")
        .expect("it has a `Retry-After` header")
        .parse()
        .expect("a number of seconds");
    assert!((1_100..=1_200).contains(&wait), "{wait}");
    let proxied = scene.connection.request("GET", "/proxy/later").send().await;
    assert_eq!(proxied.refusal(), (429, "rate_limited".to_owned()));
    let targets: Vec<_> = scene.server.seen.requests().iter().map(|seen| seen["target"].clone()).collect();
    assert_eq!(targets, [json!("/api/limited?1200")]);
    drop(scene.host);
}

#[tokio::test]
async fn a_stored_rate_limit_error_shows_the_remaining_wait() {
    let scene = scene().await;
    let connection = &scene.connection;
    assert_eq!(fetch(connection, "/limited?1200").await, 429);
    let input = json!({ "url": "/later" });
    let key = [("Idempotency-Key", "a")];
    let first = connection.action_with(&key, "fetch", &input).await;
    let path = connection.trigger_async("fetch", &input).await;
    let of_job = connection.result(&path).await;
    // The remaining wait is recomputed for each response.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let repeat = connection.action_with(&key, "fetch", &input).await;
    assert_eq!((repeat.text(), repeat.header("idempotent-replayed")), (first.text(), Some("true")));
    let mut waits = Vec::new();
    for answer in [&first, &of_job, &repeat] {
        assert_eq!(answer.refusal(), (429, "rate_limited".to_owned()));
        let wait: u64 =
            answer.header("retry-after").expect("it has a `Retry-After` header").parse().expect("a number");
        assert!((1_100..=1_200).contains(&wait), "{wait}");
        waits.push(wait);
    }
    assert!(waits[2] + 1 < waits[0], "{waits:?}");
}

/// Sends the given number of requests of a connection at once. Returns how long they took.
async fn proxy_at_once(connection: &Connection, count: usize) -> Duration {
    let began = Instant::now();
    let send = async |number: usize| {
        connection.request("GET", &format!("/proxy/{number}")).send().await.expect(200);
    };
    join_all((0..count).map(send)).await;
    began.elapsed()
}

#[tokio::test]
async fn hosts_together_stay_below_the_catalogues_rate_limit() {
    let provider =
        Provider::start_entry("rate_limit = { requests = 5, per_seconds = 1 }", |options| options).await;
    let second = provider.second_host().await;
    let there = provider.connection.through(&second);
    let began = Instant::now();
    let (here, there) = tokio::join!(proxy_at_once(&provider.connection, 10), proxy_at_once(&there, 10));
    // Alone, either host would finish after little more than a second.
    assert!(began.elapsed() >= Duration::from_secs(2), "20 requests took {here:?} and {there:?}");
    assert_eq!(provider.server.seen.requests().len(), 20);

    let credentials = json!({ "type": "API_KEY", "apiKey": PROVIDER_KEY });
    let host: &Api = &provider.host;
    let neighbour = Connection::import(host, "own", "customer-2", credentials, json!({})).await;
    let burst = tokio::join!(proxy_at_once(&provider.connection, 10), proxy_at_once(&neighbour, 2));
    assert!(burst.0 >= Duration::from_secs(1), "10 requests took {:?}", burst.0);
    assert!(burst.1 < burst.0, "another connection has its own rate: {burst:?}");
}

#[tokio::test]
async fn requests_of_one_host_reduce_the_budget_of_the_others() {
    const WINDOW: Duration = Duration::from_secs(3);
    const RATE: usize = 20;
    let provider =
        Provider::start_entry("rate_limit = { requests = 20, per_seconds = 3 }", |options| options).await;
    let second = provider.second_host().await;
    let there = provider.connection.through(&second);
    let began = Instant::now();
    proxy_at_once(&provider.connection, RATE).await;
    // Until it is notified of the last request, the other host still sends requests.
    eventually("the other host waits", async || (proxy_at_once(&there, 1).await > WINDOW / 4).then_some(()))
        .await;
    assert!(began.elapsed() >= WINDOW, "the request was sent after {:?}", began.elapsed());
    let sent_there = provider.server.seen.requests().len() - RATE;
    assert!(sent_there <= RATE / 2, "it waited only after {sent_there} of its own requests");
}

#[tokio::test]
async fn a_repeatedly_rate_limited_sync_reports_one_failure() {
    let scene = scene().await;
    scene.db.execute("UPDATE environments SET webhook_url = 'http://127.0.0.1:9/'").await;
    scene.connection.set_metadata(json!({ "steps": 0, "fetches": ["/limited?1200"] })).await;
    assert_eq!(scene.connection.run("commit-raw").await["status"], "ERROR");
    for failed in 2..=3 {
        let retry = "UPDATE schedules SET due_at = now() WHERE due_reason = 'retry';
                     SELECT pg_notify('syncline', 'due')";
        scene.db.execute(retry).await;
        let failures = "SELECT count(*) FROM runs WHERE error_code = 'rate_limited'";
        eventually("the sync has failed again", async || {
            (scene.db.number(failures).await == failed).then_some(())
        })
        .await;
    }
    let reported =
        "SELECT count(*) FROM outbound_webhook_deliveries WHERE body::json ->> 'success' = 'false'";
    assert_eq!(scene.db.number(reported).await, 1);
    drop(scene.host);
}
