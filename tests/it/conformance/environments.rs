//! Statements about environment variables, settings, environments and keys.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, delete, get, patch, post, put, string, with, without};
use crate::support::{Api, Host, TestDatabase};

const BODY: (u16, &str) = (400, "invalid_body");

#[tokio::test]
async fn environments() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let account = host.with_key(Some(&host.create_key(&db, "account", "account")));
    let mut section = Section::new("Environments");
    variables(&mut section, &host).await;
    settings(&mut section, &host).await;
    signing_keys(&mut section, &host).await;
    creation(&mut section, &account).await;
    keys(&mut section, &host, &account).await;
    section.finish();
}

async fn variables(section: &mut Section, host: &Api) {
    let list = || get(host, "/environment-variables");
    let empty = section.returns("`GET /environment-variables`", list(), 200).await;
    section.equal("Without variables, the body is an empty list", &body(&empty), json!([]));
    let set = |name: &str, value: Value| {
        put(host, &format!("/environment-variables/{name}"), &json!({ "value": value }))
    };
    let made = section.returns("`PUT /environment-variables/{name}`", set("REGION", json!("eu")), 204).await;
    section.empty("The response to a change", &made);
    set("API_URL", json!("https://example.com")).send().await.expect(204);
    let listed = body(&list().send().await);
    section.only_members("A variable", &listed[0], &[("name", Kind::Text), ("value", Kind::Text)]);
    let both =
        json!([{ "name": "API_URL", "value": "https://example.com" }, { "name": "REGION", "value": "eu" }]);
    section.equal("The list contains every variable with its value", &listed, both);
    section.returns("`PUT` of an existing variable", set("REGION", json!("us")), 204).await;
    section.equal("It replaces the value", &body(&list().send().await)[1]["value"], "us");
    section.returns("`PUT` of an empty value", set("EMPTY", json!("")), 204).await;
    let removed = delete(host, "/environment-variables/EMPTY");
    let removed = section.returns("`DELETE /environment-variables/{name}`", removed, 204).await;
    section.empty("The response to a deletion", &removed);
    section.equal("The variable is gone", &json!(body(&list().send().await).as_array().map(Vec::len)), 2);
    section.rejects_at("A value that is a number", set("A", json!(7)), BODY, "value").await;
    section.rejects_at("A value with NUL", set("A", json!("a\u{0}")), BODY, "value").await;
    let nothing = put(host, "/environment-variables/A", &json!({}));
    section.rejects_at("A request without `value`", nothing, BODY, "value").await;
    let more = put(host, "/environment-variables/A", &json!({ "value": "a", "name": "A" }));
    section.rejects_at("An unknown member", more, BODY, "name").await;
    for name in ["1ST", "A-B", "A%20B"] {
        let request = set(name, json!("x"));
        section.rejects(&format!("A variable named `{name}`"), request, 400, "invalid_uri_params").await;
    }
}

async fn settings(section: &mut Section, host: &Api) {
    let show = async || body(&get(host, "/environment").send().await)["data"].clone();
    let shown = section.returns("`GET /environment`", get(host, "/environment"), 200).await;
    let shown = body(&shown)["data"].clone();
    let members = [
        ("id", Kind::Uuid),
        ("name", Kind::Text),
        ("created_at", Kind::Time),
        ("webhook_signing_keys", Kind::List),
    ];
    section.members("An environment", &shown, &members);
    section.equal("The default environment is `dev`", &shown["name"], "dev");
    for name in [
        "on_auth_creation",
        "on_auth_refresh_error",
        "on_sync_completion_always",
        "on_sync_error",
        "on_async_action_completion",
    ] {
        section.equal(&format!("`{name}` is true by default"), &shown[name], true);
        let request = patch(host, "/environment", &json!({ name: false }));
        let changed = section.returns(&format!("`PATCH /environment` of `{name}`"), request, 200).await;
        section.equal(&format!("`{name}` can be false"), &body(&changed)["data"][name], false);
        let text = patch(host, "/environment", &json!({ name: "no" }));
        section.rejects_at(&format!("`{name}` that is text"), text, BODY, name).await;
    }
    for (name, value) in [
        ("webhook_url", "https://example.com/hooks"),
        ("webhook_url_secondary", "https://example.com/second"),
        ("callback_url", "https://app.example.com/oauth"),
        ("connect_ui_title", "Connect to Acme"),
        ("connect_ui_primary_color", "#1a7f37"),
    ] {
        section.equal(&format!("`{name}` is null by default"), &shown[name], Value::Null);
        patch(host, "/environment", &json!({ name: value })).send().await.expect(200);
        section.equal(&format!("`{name}` can be set"), &show().await[name], value);
        patch(host, "/environment", &json!({ name: null })).send().await.expect(200);
        section.equal(&format!("`{name}` can be removed with null"), &show().await[name], Value::Null);
    }
    for (name, change, place) in [
        ("A webhook URL that is not a URL", json!({ "webhook_url": "example.com" }), "webhook_url"),
        ("A webhook URL with another scheme", json!({ "webhook_url": "ftp://example.com" }), "webhook_url"),
        (
            "A color that is not `#rrggbb`",
            json!({ "connect_ui_primary_color": "red" }),
            "connect_ui_primary_color",
        ),
        ("A title of 101 characters", json!({ "connect_ui_title": "x".repeat(101) }), "connect_ui_title"),
        ("An unknown setting", json!({ "hooks": true }), "hooks"),
    ] {
        section.rejects_at(name, patch(host, "/environment", &change), BODY, place).await;
    }
}

async fn signing_keys(section: &mut Section, host: &Api) {
    let shown = body(&get(host, "/environment").send().await)["data"]["webhook_signing_keys"].clone();
    let members =
        [("id", Kind::Uuid), ("created_at", Kind::Time), ("expires_at", Kind::Null), ("key", Kind::Text)];
    section.only_members("A signing key", &shown[0], &members);
    section.holds(
        "A signing key begins with `whsec_`",
        string(&shown[0]["key"]).starts_with("whsec_"),
        &"another form",
    );
    let rotate = || host.request("POST", "/environment/webhook-signing-key/rotate");
    let rotated = section.returns("`POST /environment/webhook-signing-key/rotate`", rotate(), 200).await;
    section.only_members("The body", &body(&rotated)["data"], &[("webhook_signing_key", Kind::Text)]);
    let is_new = body(&rotated)["data"]["webhook_signing_key"] != shown[0]["key"];
    section.holds("The signing key is a new one", is_new, &"the same key");
    let both = body(&get(host, "/environment").send().await)["data"]["webhook_signing_keys"].clone();
    section.members("The previous signing key", &both[1], &[("expires_at", Kind::Time)]);
    section
        .rejects("A second rotation within 24 hours", rotate(), 409, "multiple_webhook_signing_keys")
        .await;
}

async fn creation(section: &mut Section, account: &Api) {
    let create = |body: &Value| post(account, "/environments", body);
    let staging = json!({ "name": "staging", "callback_url": "https://app.example.com/oauth" });
    let made = section.returns("`POST /environments`", create(&staging), 200).await;
    section.only_members(
        "The new environment",
        &body(&made)["data"],
        &[("id", Kind::Uuid), ("name", Kind::Text)],
    );
    section.equal("`name` is the given name", &body(&made)["data"]["name"], "staging");
    section.rejects("A name that exists", create(&staging), 409, "duplicate_environment").await;
    for (name, body, place) in [
        ("An environment without a name", json!({}), "name"),
        ("A name in upper case", json!({ "name": "Staging" }), "name"),
        ("A name with a space", json!({ "name": "a b" }), "name"),
        ("A name of 256 characters", json!({ "name": "x".repeat(256) }), "name"),
        ("A malformed callback URL", json!({ "name": "x", "callback_url": "x" }), "callback_url"),
        ("An unknown member", json!({ "name": "x", "color": "red" }), "color"),
    ] {
        section.rejects_at(name, create(&body), BODY, place).await;
    }
    let remove = |id: &str| delete(account, &format!("/environments/{id}"));
    let id = string(&body(&made)["data"]["id"]);
    let removed = section.returns("`DELETE /environments/{id}`", remove(&id), 204).await;
    section.empty("The response to the deletion", &removed);
    section.rejects("Deleting it again", remove(&id), 404, "unknown_environment").await;
    section.rejects("An id that is not a UUID", remove("dev"), 400, "invalid_uri_params").await;
    let dev = string(&body(&get(account, "/environment").send().await)["data"]["id"]);
    section.rejects("Deleting `dev`", remove(&dev), 400, "cannot_delete_default_environment").await;
}

async fn keys(section: &mut Section, host: &Api, account: &Api) {
    let environment = string(&body(&get(host, "/environment").send().await)["data"]["id"]);
    let request = json!({ "environment_id": environment, "display_name": "backend" });
    let create = |body: &Value| post(account, "/environment/api-keys", body);
    let made = section.returns("`POST /environment/api-keys`", create(&request), 200).await;
    let key = body(&made)["data"].clone();
    let members = [
        ("id", Kind::Uuid),
        ("display_name", Kind::Text),
        ("scopes", Kind::List),
        ("secret", Kind::Text),
        ("created_at", Kind::Time),
    ];
    section.only_members("The new key", &key, &members);
    section.equal(
        "A key has all scopes of the environment by default",
        &key["scopes"],
        json!(["environment:*"]),
    );
    let secret = string(&key["secret"]);
    section
        .returns("A request with the new key", get(&host.with_key(Some(&secret)), "/integrations"), 200)
        .await;
    section.rejects("A name that exists", create(&request), 409, "duplicate_api_key").await;
    let unknown = with(&request, "environment_id", "0198c0de-0000-7000-8000-000000000000");
    section.rejects("An unknown environment", create(&unknown), 404, "unknown_environment").await;
    for (name, body, place) in [
        ("A key without a name", without(&request, "display_name"), "display_name"),
        ("A key without an environment", without(&request, "environment_id"), "environment_id"),
        ("An empty name", with(&request, "display_name", ""), "display_name"),
        ("A name of 256 characters", with(&request, "display_name", "x".repeat(256)), "display_name"),
        ("An environment that is not a UUID", with(&request, "environment_id", "dev"), "environment_id"),
        (
            "An unknown scope",
            with(&with(&request, "display_name", "x"), "scopes", json!(["environment:magic"])),
            "scopes",
        ),
        ("An unknown member", with(&request, "name", "x"), "name"),
    ] {
        section.rejects_at(name, create(&body), BODY, place).await;
    }
    let narrow =
        with(&with(&request, "display_name", "narrow"), "scopes", json!(["environment:records:read"]));
    let narrow = section.returns("A key with given scopes", create(&narrow), 200).await;
    section.equal(
        "It has these scopes",
        &body(&narrow)["data"]["scopes"],
        json!(["environment:records:read"]),
    );
    let narrow = host.with_key(body(&narrow)["data"]["secret"].as_str());
    section.rejects("A request beyond its scopes", get(&narrow, "/integrations"), 403, "forbidden").await;
    let revoke = json!({ "environment_id": environment, "key_id": key["id"] });
    let request = || account.request("DELETE", "/environment/api-keys").json(&revoke);
    let revoked = section.returns("`DELETE /environment/api-keys`", request(), 200).await;
    section.equal("The body is `{\"success\": true}`", &body(&revoked), json!({ "success": true }));
    let used = get(&host.with_key(Some(&secret)), "/integrations");
    section.rejects("A request with a revoked key", used, 401, "unknown_account").await;
    section.rejects("Revoking a revoked key", request(), 404, "unknown_api_key").await;
}
