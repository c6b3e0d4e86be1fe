//! The page with the settings of an environment.

use serde_json::{Value, json};

use super::{change, in_environment, open};
use crate::support::{Host, Person, TestDatabase, between};

async fn stage() -> (TestDatabase, Host, Person) {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let person = Person::administrator(&host, &db).await;
    (db, host, person)
}

async fn settings(host: &Host) -> Value {
    host.get("/environment").await.expect(200).json()["data"].clone()
}

#[tokio::test]
async fn each_form_changes_its_own_settings() {
    let (_db, host, person) = stage().await;
    let hook = "https://app.example.com/hooks";
    let (status, page) =
        change(&person, "settings/webhooks", &[("webhook_url", hook), ("on_sync_error", "true")]).await;
    assert_eq!(status, 200, "{page}");
    let (status, page) =
        change(&person, "settings/callback", &[("callback_url", "https://a.example/back")]).await;
    assert_eq!(status, 200, "{page}");
    let look = [("title", "Connect <b>Acme</b>"), ("color", "#1a7f37")];
    let (status, page) = change(&person, "settings/connect-ui", &look).await;
    assert_eq!(status, 200, "{page}");
    assert!(
        page.contains("Connect &lt;b&gt;Acme&lt;/b&gt;") && page.contains("https://a.example/back"),
        "{page}"
    );
    let now = settings(&host).await;
    for (name, value) in [
        ("webhook_url", json!(hook)),
        ("on_sync_error", json!(true)),
        ("on_auth_creation", json!(false)),
        ("callback_url", json!("https://a.example/back")),
        ("connect_ui_title", json!("Connect <b>Acme</b>")),
        ("connect_ui_primary_color", json!("#1a7f37")),
    ] {
        assert_eq!(now[name], value, "{name}");
    }

    let (status, page) = change(&person, "settings/webhooks", &[("webhook_url", "ftp://a.example")]).await;
    assert_eq!(status, 400, "{page}");
    assert!(page.contains("Webhook URL: must be an `http` or `https` URL"), "{page}");
    let (status, _) = change(&person, "settings/webhooks", &[]).await;
    assert_eq!(status, 200);
    let (status, _) = change(&person, "settings/connect-ui/reset", &[]).await;
    assert_eq!(status, 200);
    let now = settings(&host).await;
    for name in ["webhook_url", "connect_ui_title", "connect_ui_primary_color"] {
        assert_eq!(now[name], Value::Null, "{name}");
    }
}

#[tokio::test]
async fn signing_keys_are_shown_on_request_and_rotated() {
    let (_db, host, person) = stage().await;
    let page = open(&person, "settings").await;
    assert!(page.contains("whsec_…") && !page.contains("data-copy=\"whsec_"), "{page}");
    let (status, page) = change(&person, "settings/signing-keys", &[]).await;
    assert_eq!(status, 200, "{page}");
    let first = between(&page, "data-copy=\"whsec_", "\"");
    let (status, page) = change(&person, "settings/signing-keys/rotate", &[]).await;
    assert_eq!(status, 200, "{page}");
    let second = between(&page, "data-copy=\"whsec_", "\"");
    assert_ne!(first, second);
    let keys = settings(&host).await["webhook_signing_keys"].clone();
    assert_eq!(keys[0]["key"], json!(format!("whsec_{second}")));
    let (status, page) = change(&person, "settings/signing-keys/rotate", &[]).await;
    assert_eq!(status, 409, "{page}");
    assert!(page.contains("the previous signing key is still valid"), "{page}");
}

#[tokio::test]
async fn the_preview_opens_the_connect_ui_for_the_signed_in_person() {
    let (_db, host, person) = stage().await;
    let answer =
        person.submit("/dashboard/profile", &in_environment("settings/connect-ui/preview"), &[]).await;
    let address = answer.expect(303).header("location").unwrap_or_default().to_owned();
    assert!(address.starts_with(&format!("{}/connect/?session_token=", host.base_url())), "{address}");
    assert!(address.ends_with("&preview=true"), "{address}");
}

#[tokio::test]
async fn a_viewer_sees_no_settings() {
    let (_db, host, person) = stage().await;
    let viewer = person.invite(&host, "grace@example.com", "viewer").await;
    assert_eq!(viewer.get(&in_environment("settings")).await.status.as_u16(), 403);
    for path in [
        "webhooks",
        "callback",
        "connect-ui",
        "connect-ui/reset",
        "connect-ui/preview",
        "signing-keys",
        "signing-keys/rotate",
    ] {
        let (status, page) =
            change(&viewer, &format!("settings/{path}"), &[("title", "x"), ("color", "#000000")]).await;
        assert_eq!(status, 403, "{path}: {page}");
    }
    assert_eq!(settings(&host).await["connect_ui_title"], Value::Null);
}
