//! The Connect UI, as browsers meet it.

use serde_json::{Value, json};

use crate::support::{HostOptions, TestDatabase};

#[tokio::test]
async fn the_page_is_sent_with_a_strict_policy_and_only_when_it_changed() {
    let db = TestDatabase::create().await;
    let ancestors = ("SYNCLINE_CONNECT_FRAME_ANCESTORS", "https://app.example.com");
    let host = HostOptions::new().database(&db).variable(ancestors.0, ancestors.1).spawn().await;
    let open = host.with_key(None);
    let page = open.get("/connect/").await.expect(200);
    assert_eq!(
        page.header("content-security-policy"),
        Some(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
             frame-ancestors https://app.example.com"
        )
    );
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    for (path, content_type) in [
        ("/connect/", "text/html; charset=utf-8"),
        ("/connect/connect.js", "text/javascript; charset=utf-8"),
        ("/connect/assets/main.js", "text/javascript; charset=utf-8"),
        ("/connect/assets/style.css", "text/css; charset=utf-8"),
        ("/connect/assets/locales/en.json", "application/json"),
    ] {
        let first = open.get(path).await.expect(200);
        assert_eq!(first.header("content-type"), Some(content_type), "{path}");
        assert_eq!(first.header("x-content-type-options"), Some("nosniff"), "{path}");
        let tag = first.header("etag").expect("there is a tag");
        let again =
            open.request("GET", path).header("If-None-Match", &format!("\"old\", {tag}")).send().await;
        assert_eq!(again.expect(304).text(), "", "{path}");
    }
    for path in ["/connect/assets/none.js", "/connect/assets/..%2f..%2fCargo.toml", "/connect/index.html"] {
        open.get(path).await.expect(404);
    }
}

#[tokio::test]
async fn a_page_at_another_address_knows_where_the_api_is() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new()
        .database(&db)
        .variable("SYNCLINE_CONNECT_URL", "https://connect.example.com/")
        .variable("SYNCLINE_PUBLIC_URL", "https://api.example.com/sync/")
        .spawn()
        .await;
    let page = host.with_key(None).get("/connect/").await.expect(200);
    assert!(page.text().contains(r#"content="https://api.example.com/sync""#), "{}", page.text());
    let policy = page.header("content-security-policy").expect("there is a policy");
    assert!(policy.contains("connect-src 'self' https://api.example.com wss://api.example.com;"), "{policy}");
    let made: Value = host.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201).json();
    let link = made["data"]["connect_link"].as_str().unwrap_or_default();
    assert!(link.starts_with("https://connect.example.com/?session_token=nango_connect_session_"), "{link}");
}
