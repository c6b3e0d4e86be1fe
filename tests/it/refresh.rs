//! Refreshing credentials: concurrent callers, disconnects, crashes and provider outages.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Api, Browser, Host, KEY, OAuthScene, SECRET_KEY, eventually, open_session, text};

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
    let forced = scene.host.get(&show(&id, "&force_refresh=true")).await;
    assert_eq!(forced.refusal(), (424, "invalid_credentials".to_owned()));
    let still = token(&scene.host, &id, "").await;
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
async fn a_failed_refresh_does_not_concern_the_credentials_of_a_reconnect() {
    let scene = OAuthScene::create().await;
    let webhooks = json!({ "webhook_url": format!("{}/webhooks", scene.server.issuer()) });
    scene.host.patch("/environment", &webhooks).await.expect(200);
    let id = scene.connect_account().await;
    let session = json!({ "connection_id": id, "integration_id": KEY });
    let session = open_session(&scene.host, "/connect/sessions/reconnect", session).await;
    let mut browser = Browser::new();
    let callback = scene.authorize(&mut browser, &session, "").await;

    scene.server.set_fault("hold").await;
    let path = show(&id, "&force_refresh=true");
    let refreshed = async {
        let answer = scene.host.get(&path).await;
        (answer.status.as_u16(), answer.json()["credentials"]["access_token"].clone())
    };
    let reconnected = async {
        eventually("the refresh is in progress", async || (scene.server.held().await == 1).then_some(()))
            .await;
        scene.server.set_fault("none").await;
        browser.visit(callback.as_str()).await.answer.expect(200);
        let current = token(&scene.host, &id, "").await;
        assert_eq!(scene.server.fail_held().await, 1);
        current
    };
    let (refreshed, current) = tokio::join!(refreshed, reconnected);
    assert_eq!(refreshed, (200, json!(current)));
    scene.expect_accepted(&current).await;
    assert_eq!(scene.connections().await[0]["errors"], json!([]));
    let failures = "SELECT body FROM outbound_webhook_deliveries WHERE body LIKE '%\"refresh\"%'";
    assert_eq!(scene.db.texts(failures).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_expired_token_without_a_refresh_token_is_an_error_of_its_connection() {
    let scene = OAuthScene::create().await;
    let webhooks = json!({ "webhook_url": format!("{}/webhooks", scene.server.issuer()) });
    scene.host.patch("/environment", &webhooks).await.expect(200);
    let import = async |expires_at: &str| {
        let credentials =
            json!({ "type": "OAUTH2", "access_token": "planted-short-lived", "expires_at": expires_at });
        let body =
            json!({ "provider_config_key": KEY, "connection_id": "short", "credentials": credentials });
        scene.host.post("/connections", &body).await.expect(201);
    };
    let errors = async |more: &str| {
        let shown = scene.host.get(&show("short", more)).await.expect(200).json();
        assert_eq!(shown["credentials"]["access_token"], "planted-short-lived");
        shown["errors"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|error| error["type"].clone())
            .collect::<Value>()
    };
    import("2126-01-01T00:00:00Z").await;
    assert_eq!(errors("").await, json!([]));
    import("2026-01-01T00:00:00Z").await;
    for more in ["", "&force_refresh=true", ""] {
        assert_eq!(errors(more).await, json!(["auth"]), "{more}");
    }
    assert_eq!(scene.connections().await[0]["errors"][0]["type"], "auth");
    let failures = "SELECT body FROM outbound_webhook_deliveries WHERE body LIKE '%\"refresh\"%'";
    let failures = scene.db.texts(failures).await;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].contains("have no refresh token"), "{failures:?}");
    import("2126-01-01T00:00:00Z").await;
    assert_eq!(errors("").await, json!([]), "new credentials clear the error");
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
