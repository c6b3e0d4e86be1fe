//! Provider webhooks beyond the capacity of a host: providers are asked to retry, and acknowledged webhooks are never
//! lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::webhook_scene::{SECRET, Scene, integration, push};
use crate::support::{Answer, Host, eventually};

/// Concurrent requests of one integration that a host accepts.
const MAX_IN_FLIGHT: usize = 512;
/// Maximum length of a body.
const MAX_BODY_BYTES: usize = 25 << 20;
/// More bodies of that length than fit into the share of one integration, which is 56 MiB.
const BUFFERED_BODIES: usize = 5;

/// After this time, the host ends a request whose body is incomplete.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Sends a request that announces a body of `announced` bytes, of which only `sent` follows.
async fn stall(host: &Host, path: &str, announced: usize, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
    let address = host.address();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {announced}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the host reads");
    // The host may answer before it has read everything.
    let _result = stream.write_all(sent).await;
    stream
}

#[track_caller]
fn assert_must_retry(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.refusal(), (status, code.to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

/// The ids of stored deliveries.
async fn stored(scene: &Scene) -> BTreeSet<String> {
    scene.db.texts("SELECT delivery_id FROM inbound_webhooks").await.into_iter().collect()
}

#[tokio::test]
async fn an_integration_over_its_request_limit_gets_429_and_loses_nothing() {
    let scene = Scene::create().await;
    let neighbour = integration(&scene.host, "gitlab-pat", Value::Null, Some(SECRET)).await;
    let stall_many =
        async |count| join_all((0..count).map(|_| stall(&scene.host, &scene.url, 10, b"{"))).await;
    let mut stalled = stall_many(MAX_IN_FLIGHT).await;
    // This invalidates the cached integrations, but not the count of requests in flight.
    let change = json!({ "custom": { "webhook_secret": SECRET, "odd": "1" } });
    scene.host.patch("/integrations/gitlab-pat", &change).await.expect(200);
    let refused = eventually("every permit is in use", async || {
        // The host ends stalled requests after a time, so a slow machine needs new ones.
        stalled.extend(stall_many(32).await);
        let unsigned = scene.host.with_key(None).post(&scene.url, &push("-")).await;
        (unsigned.status != 401).then_some(unsigned)
    })
    .await;
    assert_must_retry(&refused, 429, "too_many_webhooks");
    let others = scene.host.with_key(None).request("POST", &neighbour).header("x-gitlab-token", SECRET);
    others.json(&push("-")).send().await.expect(200);
    scene.db.execute("DELETE FROM inbound_webhooks WHERE delivery_id IS NULL").await;

    // While permits become free, some requests succeed.
    let send = async |id: String| (scene.deliver("star", &id, &push("-")).await, id);
    let mut taken = BTreeSet::new();
    let burst = join_all((0..100).map(|number| send(format!("burst-{number}"))));
    let (answers, ()) = join(burst, async { stalled.truncate(MAX_IN_FLIGHT / 2) }).await;
    let mut left = Vec::new();
    for (answer, id) in answers {
        if answer.status == 200 {
            taken.insert(id);
        } else {
            assert_must_retry(&answer, 429, "too_many_webhooks");
            left.push(id);
        }
    }
    assert_eq!(stored(&scene).await, taken, "exactly the acknowledged webhooks are stored");

    drop(stalled);
    for id in left {
        eventually("the repeated request is accepted", async || {
            (send(id.clone()).await.0.status == 200).then_some(())
        })
        .await;
        taken.insert(id);
    }
    assert_eq!(stored(&scene).await, taken);
    scene.wait_for_notes(taken.len()).await;
}

/// Sends a webhook of 16 MiB that is not signed.
async fn send_long(scene: &Scene, url: &str) -> Answer {
    scene.host.with_key(None).request("POST", url).bytes(vec![b' '; 16 << 20]).send().await
}

/// Stalls long webhooks until another one is refused. Returns them with the refusal.
async fn fill_buffer(scene: &Scene) -> (Vec<TcpStream>, Answer) {
    let almost_all = vec![b' '; MAX_BODY_BYTES - 1];
    let fill = async || {
        let stalls =
            (0..BUFFERED_BODIES).map(|_| stall(&scene.host, &scene.url, MAX_BODY_BYTES, &almost_all));
        (join_all(stalls).await, Instant::now())
    };
    let (mut stalled, mut filled_at) = fill().await;
    let refused = eventually("the buffer has no room for a long body", async || {
        let answer = send_long(scene, &scene.url).await;
        if answer.status == 401 && filled_at.elapsed() > STALL_LIMIT {
            (stalled, filled_at) = fill().await; // A slow machine has not read everything in time.
        }
        (answer.status != 401).then_some(answer)
    })
    .await;
    (stalled, refused)
}

#[tokio::test]
async fn a_host_at_its_buffer_limit_still_accepts_short_webhooks() {
    let scene = Scene::create().await;
    let (stalled, refused) = fill_buffer(&scene).await;
    assert_must_retry(&refused, 503, "intake_busy");
    scene.deliver("star", "d1", &push("-")).await.expect(200);
    drop(stalled);
    eventually("the buffer has room again", async || {
        (send_long(&scene, &scene.url).await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_integration_at_its_buffer_limit_does_not_affect_others() {
    let scene = Scene::create().await;
    let neighbour = integration(&scene.host, "gitlab-pat", Value::Null, Some(SECRET)).await;
    let (_stalled, refused) = fill_buffer(&scene).await;
    assert_must_retry(&refused, 503, "intake_busy");
    let accepted = send_long(&scene, &neighbour).await;
    assert_eq!(accepted.refusal(), (401, "missing_webhook_signature".to_owned()));
}

#[tokio::test]
async fn webhooks_that_cannot_be_stored_get_503() {
    const COUNT: usize = 40;
    let scene = Scene::create().await;
    let refuse =
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END'";
    scene.db.execute(refuse).await;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON inbound_webhooks EXECUTE FUNCTION refuse()";
    scene.db.execute(trigger).await;
    let send_all = async || {
        let send = async |number: usize| scene.deliver("star", &format!("d{number}"), &push("-")).await;
        join_all((0..COUNT).map(send)).await
    };
    for answer in send_all().await {
        assert_must_retry(&answer, 503, "intake_busy");
    }
    assert!(stored(&scene).await.is_empty());
    scene.db.execute("DROP TRIGGER refuse ON inbound_webhooks").await;
    for answer in send_all().await {
        answer.expect(200);
    }
    assert_eq!(stored(&scene).await.len(), COUNT);
    scene.wait_for_notes(COUNT).await;
}

#[tokio::test]
async fn an_unsigned_webhook_of_almost_the_maximum_length_takes_little_memory() {
    let scene = Scene::create().await;
    let app = json!({ "type": "OAUTH2", "client_id": "client-1", "client_secret": "planted-secret-71d3" });
    // Its provider does not sign webhooks.
    let url = integration(&scene.host, "strava", app, None).await;
    // Twelve million numbers, each of which would take 32 bytes. The end is missing, so the webhook is not dispatched.
    let body = format!("[0{}", ",0".repeat(12 << 20));
    let before = scene.host.peak_memory_mb();
    let request = scene.host.with_key(None).request("POST", &url).header("Content-Type", "application/json");
    let refused = request.bytes(body.into_bytes()).send().await;
    assert_eq!(refused.refusal(), (400, "invalid_json".to_owned()));
    let taken = scene.host.peak_memory_mb() - before;
    assert!(taken < 150, "the host used {taken} MB for a body of 24 MB");
    assert_eq!(scene.stored().await, 0);
}
