//! Refreshing credentials: concurrent callers, disconnects, crashes and provider outages.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Api, Host, KEY, OAuthScene, SECRET_KEY, eventually, text};

fn show(id: &str, more: &str) -> String {
    format!("/connections/{id}?provider_config_key={KEY}{more}")
}

async fn token(api: &Api, id: &str, more: &str) -> String {
    let shown = api.get(&show(id, more)).await.expect(200).json();
    text(&shown["credentials"]["access_token"]).to_owned()
}

/// How often the connection's credentials were replaced.
async fn version(scene: &OAuthScene) -> i64 {
    scene.db.number("SELECT credentials_version FROM connections").await
}

/// The provider revokes the whole grant when a refresh token is used twice, so any redundant refresh fails the test.
#[tokio::test]
async fn concurrent_callers_on_several_hosts_share_one_refresh() {
    let scene = OAuthScene::create().await;
    let id = scene.connect_account().await;
    let other = scene.another_host().await;
    for round in 1..=3 {
        let (more, before) = ("&force_refresh=true", version(&scene).await);
        let asked = (0..12).map(|number| {
            let host: &Host = if number % 2 == 0 { &scene.host } else { &other };
            token(host, &id, more)
        });
        let tokens = join_all(asked).await;
        let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
        let refreshes = version(&scene).await - before;
        // A caller that arrives after a refresh has ended requests another one. No caller needs more than two.
        assert!((1..=4).contains(&refreshes), "round {round}: {refreshes} refreshes");
        assert!(distinct.len() as i64 <= refreshes, "round {round}: {} tokens", distinct.len());
    }
    let last = token(&scene.host, &id, "").await;
    scene.expect_accepted(&last).await;
}

#[tokio::test]
async fn a_token_is_refreshed_in_the_background_before_it_expires() {
    let scene = OAuthScene::with_token_lifetime(12).await;
    let id = scene.connect_account().await;
    let before = version(&scene).await;
    eventually("the token is refreshed in the background", async || {
        (version(&scene).await > before).then_some(())
    })
    .await;
    let fresh = token(&scene.host, &id, "").await;
    scene.expect_accepted(&fresh).await;
    let shown = scene.host.get(&show(&id, "")).await.expect(200).json();
    let expires_at = chrono::DateTime::parse_from_rfc3339(text(&shown["credentials"]["expires_at"])).unwrap();
    assert!(expires_at.to_utc() > chrono::Utc::now());
}

#[tokio::test]
async fn a_refresh_completes_after_its_caller_disconnects() {
    let scene = OAuthScene::create().await;
    let id = scene.connect_account().await;
    scene.server.set_fault("late").await;
    let before = version(&scene).await;
    let path = show(&id, "&force_refresh=true");
    let asked = tokio::time::timeout(Duration::from_millis(300), scene.host.get(&path)).await;
    assert!(asked.is_err(), "the refresh ended before the caller disconnected");
    eventually("the new credentials are stored", async || (version(&scene).await > before).then_some(()))
        .await;
    scene.server.set_fault("none").await;
    let next = token(&scene.host, &id, "&force_refresh=true").await;
    scene.expect_accepted(&next).await;
}

#[tokio::test]
async fn a_host_that_dies_during_a_refresh_does_not_break_the_connection() {
    let mut scene = OAuthScene::create().await;
    let id = scene.connect_account().await;
    let other = scene.another_host().await;
    scene.server.set_fault("slow").await;
    let url = format!("{}{}", scene.host.base_url(), show(&id, "&force_refresh=true"));
    let asked = tokio::spawn(reqwest::Client::new().get(url).bearer_auth(SECRET_KEY).send());
    let leased = "SELECT count(*) FROM connections WHERE refresh_owner IS NOT NULL";
    eventually("the refresh is in progress", async || (scene.db.number(leased).await == 1).then_some(()))
        .await;
    scene.host.kill();
    assert!(asked.await.expect("the task ends").is_err(), "a dead host does not answer");
    scene.server.set_fault("none").await;
    // It waits until the lease of the dead host has expired.
    let fresh = token(&other, &id, "&force_refresh=true").await;
    scene.expect_accepted(&fresh).await;
}

#[tokio::test]
async fn an_unavailable_provider_is_an_error_only_after_the_token_expires() {
    let scene = OAuthScene::with_token_lifetime(6).await;
    let id = scene.connect_account().await;
    scene.server.set_fault("error").await;
    let still = token(&scene.host, &id, "&force_refresh=true").await;
    scene.expect_accepted(&still).await;
    tokio::time::sleep(Duration::from_secs(7)).await;

    let refused = scene.host.get(&show(&id, "")).await;
    assert_eq!(refused.refusal(), (424, "invalid_credentials".to_owned()));
    let payload = refused.json()["error"]["payload"].clone();
    assert_eq!(payload["connection"]["connection_id"], json!(id));
    assert_eq!(payload["connection"]["credentials"], json!({}));
    let errors = async || scene.connections().await[0]["errors"].clone();
    assert_eq!(errors().await[0]["type"], "auth");

    scene.server.set_fault("none").await;
    let fresh = token(&scene.host, &id, "&force_refresh=true").await;
    scene.expect_accepted(&fresh).await;
    assert_eq!(errors().await, Value::Array(Vec::new()), "the error is cleared");
}

#[tokio::test]
async fn a_rejected_refresh_is_reported_and_not_repeated() {
    let scene = OAuthScene::with_token_lifetime(4).await;
    let id = scene.connect_account().await;
    let shown = scene.host.get(&show(&id, "&refresh_token=true")).await.expect(200).json();
    scene.server.revoke(&scene.client, text(&shown["credentials"]["refresh_token"])).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let path = show(&id, "&force_refresh=true");
    assert_eq!(scene.host.get(&path).await.refusal(), (400, "invalid_credentials".to_owned()));
    // During the cool-down, only forced refreshes contact the provider.
    let cooled = scene.host.get(&show(&id, "")).await;
    assert_eq!(cooled.refusal(), (424, "invalid_credentials".to_owned()));
    assert!(cooled.message().contains("the next attempt is possible after"), "{}", cooled.message());
}
