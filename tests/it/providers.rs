//! The catalogue API, provider logos, and the list of deployed functions.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Bundle, Host, HostOptions, Stage, TestDatabase, eventually, text};

fn names(listed: &Value) -> Vec<String> {
    let data = listed["data"].as_array().expect("`data` is a list");
    data.iter().map(|one| text(&one["name"]).to_owned()).collect()
}

#[tokio::test]
async fn providers_are_listed_searched_and_shown() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let all = host.get("/providers").await.expect(200).json();
    assert!(names(&all).len() >= 100, "{} providers", names(&all).len());
    for search in ["STRIPE-API", "stripe%20(API"] {
        let found = host.get(&format!("/providers?search={search}")).await.expect(200).json();
        assert_eq!(names(&found), ["stripe-api-key"], "{search}");
    }
    let found = host.get("/providers?search=no-such-provider").await.expect(200).json();
    assert_eq!(found, json!({ "data": [] }));
    let one = host.get("/providers/stripe-api-key").await.expect(200).json();
    assert_eq!(
        (&one["data"]["auth_mode"], &one["data"]["name"]),
        (&json!("BASIC"), &json!("stripe-api-key"))
    );
    assert_eq!(
        one["data"]["logo_url"],
        format!("{}/images/template-logos/stripe-api-key.svg", host.base_url())
    );
    let templates = host.get("/providers/stripe-api-key/templates").await.expect(200).json();
    assert_eq!(templates, json!({ "data": [] }));
    for path in ["/providers/acme", "/providers/acme/templates", "/providers/a%20b"] {
        assert_eq!(host.get(path).await.refusal(), (404, "unknown_provider".to_owned()), "{path}");
    }
    assert_eq!(host.get("/providers?name=x").await.refusal(), (400, "invalid_query_params".to_owned()));
    host.with_key(None).get("/providers").await.expect(401);
}

#[tokio::test]
async fn a_running_host_reads_changed_provider_files() {
    let db = TestDatabase::create().await;
    let folder = TempDir::new().unwrap();
    let directory = folder.path().display().to_string();
    let host = HostOptions::new().database(&db).variable("SYNCLINE_PROVIDERS_DIR", &directory).spawn().await;
    let missing = Bundle::example("minimal").replace("\"unauthenticated\"", "\"acme\"");
    let refused = host.post_bundle(missing.to_tar(), false).await;
    assert!(
        refused.message().contains(&format!("provider files are read from {directory}")),
        "{}",
        refused.message()
    );

    let file = folder.path().join("acme.toml");
    let provider = |title: &str| {
        format!(
            "name = \"acme\"\ndisplay_name = \"{title}\"\nauth_mode = \"NONE\"\n\
             docs = \"https://acme.example\"\n[source]\naddress = \"https://acme.example\"\nchecked_at = \"2026-11-21\"\n\
             [proxy]\nbase_url = \"https://acme.example\"\n"
        )
    };
    let shown = async |title: &str| {
        eventually(&format!("the host knows {title}"), async || {
            let answer = host.get("/providers/acme").await;
            (answer.status == 200 && answer.json()["data"]["display_name"] == title).then_some(())
        })
        .await;
    };
    std::fs::write(&file, provider("Acme")).unwrap();
    shown("Acme").await;
    host.deploy(&missing).await;
    // A file with a mistake changes nothing, and the log names it.
    std::fs::write(&file, provider("Other").replace("NONE", "SECRET")).unwrap();
    eventually("the mistake is logged", async || {
        let log = host.log();
        (log.contains("the provider files were not reloaded") && log.contains("acme.toml")).then_some(())
    })
    .await;
    assert_eq!(host.get("/providers/acme").await.expect(200).json()["data"]["display_name"], "Acme");
    std::fs::write(&file, provider("Acme 2")).unwrap();
    shown("Acme 2").await;
}

#[tokio::test]
async fn every_provider_logo_is_served_without_active_content() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let stranger = host.with_key(None);
    for provider in names(&host.get("/providers").await.expect(200).json()) {
        let path = format!("/images/template-logos/{provider}.svg");
        let logo = stranger.get(&path).await.expect(200);
        assert_eq!(logo.header("content-type"), Some("image/svg+xml"));
        assert_eq!(logo.header("content-security-policy"), Some("default-src 'none'; sandbox"));
        assert_eq!(logo.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(logo.header("cache-control"), Some("public, max-age=86400"));
        assert!(logo.text().starts_with("<svg ") && !logo.text().contains("<script"), "{}", logo.text());
        let tag = logo.header("etag").unwrap().to_owned();
        let again = stranger.request("GET", &path).header("If-None-Match", &tag).send().await.expect(304);
        assert_eq!(again.text(), "");
    }
    let unknown = stranger.get("/images/template-logos/acme.svg").await;
    assert_eq!(unknown.refusal(), (404, "unknown_provider".to_owned()));
}

#[tokio::test]
async fn deployed_functions_are_listed_and_shown() {
    let stage = Stage::numbers(1).await;
    let host = &stage.host;
    let listed = host.get("/integrations/minimal/functions").await.expect(200).json();
    assert_eq!(listed["pagination"], json!({ "total": 2, "page": 0, "limit": 20 }));
    let sync = host.get("/integrations/minimal/functions/numbers").await.expect(200).json();
    let mut sync = sync["data"].clone();
    for varying in ["id", "last_deployed"] {
        assert!(sync.as_object_mut().unwrap().remove(varying).is_some(), "{varying}");
    }
    let schema = sync.as_object_mut().unwrap().remove("json_schema").unwrap();
    assert_eq!(schema["$defs"]["Number"]["required"], json!(["id", "value", "salt", "padding"]));
    assert_eq!(
        sync,
        json!({
            "name": "numbers", "type": "sync", "enabled": true, "source": "repo", "returns": ["Number"],
            "runs": "every 1 hour", "auto_start": true, "track_deletes": false,
        })
    );
    let found = async |query: &str| {
        let found = host.get(&format!("/integrations/minimal/functions?{query}")).await.expect(200).json();
        names(&found)
    };
    assert_eq!(found("type=action").await, ["echo"]);
    assert_eq!(found("search=NUM").await, ["numbers"]);
    assert_eq!(found("limit=1&page=1").await, ["numbers"]);
    assert_eq!(found("page=2").await, [""; 0]);
    for (query, status, code) in [
        ("functions?type=webhooks", 400, "invalid_query_params"),
        ("functions?limit=101", 400, "invalid_query_params"),
        ("functions?search=", 400, "invalid_query_params"),
        ("functions/dance", 404, "unknown_function"),
        ("functions/numbers?type=action", 404, "unknown_function"),
        ("functions/a%20b", 400, "invalid_uri_params"),
        ("functions/numbers/code", 501, "not_implemented"),
    ] {
        let answer = host.get(&format!("/integrations/minimal/{query}")).await;
        assert_eq!(answer.refusal(), (status, code.to_owned()), "{query}");
    }
    let unknown = host.get("/integrations/acme/functions").await;
    assert_eq!(unknown.refusal(), (404, "unknown_integration".to_owned()));
    let deletion = host.delete("/integrations/minimal/functions/numbers?type=sync").await;
    assert_eq!(deletion.refusal(), (501, "not_implemented".to_owned()));

    let config = host.get("/scripts/config").await.expect(200).json();
    assert_eq!((&config[0]["provider"], &config[0]["on-events"]), (&json!("unauthenticated"), &json!([])));
    assert_eq!(
        (&config[0]["syncs"][0]["name"], &config[0]["actions"][0]["input"]),
        (&json!("numbers"), &json!("json"))
    );
    let tools = host.get("/scripts/config?format=openai").await.expect(200).json();
    assert_eq!(
        tools,
        json!({ "data": [{
            "name": "echo", "description": "",
            "parameters": { "type": "object", "properties": { "input": {} }, "required": ["input"] },
        }] })
    );
    let refused = host.get("/scripts/config?format=yaml").await;
    assert_eq!(refused.refusal(), (400, "invalid_query_params".to_owned()));
}

#[tokio::test]
async fn a_connect_session_can_read_the_catalogue() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "a" }))
        .await
        .expect(200);
    let session =
        host.post("/connect/sessions", &json!({ "end_user": { "id": "u" } })).await.expect(201).json();
    let browser = host.with_key(Some(text(&session["data"]["token"])));
    browser.get("/providers").await.expect(200);
    browser.get("/providers/unauthenticated").await.expect(200);
    browser.get("/integrations").await.expect(200);
    browser.get("/connections").await.expect(401);
    browser.get("/integrations/a").await.expect(401);
}
