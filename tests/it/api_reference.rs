//! `/docs`, the API reference in a browser. If SYNCLINE_SCREENSHOTS names a folder, screenshots are saved there.

use serde_json::json;

use crate::support::{Host, TestDatabase, repository, run_in_browser};

#[tokio::test]
async fn a_browser_shows_the_api_reference_without_requests_to_other_servers() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let screenshots = std::env::var_os("SYNCLINE_SCREENSHOTS").map(repository);
    run_in_browser("api_reference.mjs", &json!({ "host": host.base_url(), "screenshots": screenshots }))
        .await;
}

#[tokio::test]
async fn the_api_reference_needs_no_key_and_allows_only_the_hosts_own_files() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let open = host.with_key(None);
    let page = open.get("/docs").await.expect(200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("the page has a policy");
    assert!(policy.contains("default-src 'none'; script-src 'self';"), "{policy}");
    for script in ["/docs/scalar.js", "/docs/start.js"] {
        let script = open.get(script).await.expect(200);
        assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(script.header("cache-control"), Some("no-cache"));
    }
}
