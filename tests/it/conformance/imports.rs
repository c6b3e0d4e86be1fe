//! Statements about importing connections.

use serde_json::{Value, json};

use super::connections::SHOWN;
use super::support::{Kind, Section, body, delete, get, post, string, with, without};
use crate::support::{Api, Bundle, Host, Request, TestDatabase, eventually};

const BODY: (u16, &str) = (400, "invalid_body");

fn none(id: &str) -> Value {
    json!({ "connection_id": id, "provider_config_key": "open", "credentials": { "type": "NONE" } })
}

fn import(host: &Api, body: &Value) -> Request {
    post(host, "/connections", body)
}

#[tokio::test]
async fn imports() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (provider, key) in [("unauthenticated", "open"), ("sendgrid", "mail"), ("zendesk-api-key", "desk")] {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    let mut section = Section::new("Importing connections");
    creation(&mut section, &host).await;
    replacement(&mut section, &host).await;
    invalid_imports(&mut section, &host).await;
    validation(&mut section, &host).await;
    section.finish();
}

async fn creation(section: &mut Section, host: &Api) {
    let made = section.returns("`POST /connections` with credentials", import(host, &none("c-1")), 201).await;
    let made = body(&made);
    let expected: Vec<(&str, Kind)> = SHOWN
        .into_iter()
        .map(|(name, kind)| match name {
            "end_user" | "last_fetched_at" => (name, Kind::Null),
            "created_at" | "updated_at" => (name, Kind::Time),
            _ => (name, kind),
        })
        .collect();
    section.only_members("The new connection", &made, &expected);
    section.equal("`connection_id` is the given id", &made["connection_id"], "c-1");
    section.equal("`metadata` is `{}` by default", &made["metadata"], json!({}));
    section.equal("`connection_config` is `{}` by default", &made["connection_config"], json!({}));
    section.equal("`tags` is `{}` by default", &made["tags"], json!({}));
    section.equal("`end_user` is null by default", &made["end_user"], Value::Null);
    section.equal("`errors` is empty", &made["errors"], json!([]));
    let unnamed = section
        .returns("An import without `connection_id`", import(host, &without(&none(""), "connection_id")), 201)
        .await;
    section.members("The connection without a given id", &body(&unnamed), &[("connection_id", Kind::Uuid)]);
    let full = json!({
        "connection_id": "c-2", "provider_config_key": "desk",
        "credentials": { "type": "BASIC", "username": "ada@example.com/token", "password": "planted" },
        "metadata": { "nested": { "list": [1, null] } }, "connection_config": { "subdomain": "acme" },
        "webhook_url_override": "https://example.com/hooks",
        "end_user": { "id": "u-1", "email": "ada@example.com", "display_name": "Ada", "tags": { "Role": "admin" } },
        "organization": { "id": "o-1", "display_name": "Engines" },
        "tags": { "Plan": "pro", "end_user_id": "mine" },
    });
    let made = section.returns("An import with all optional members", import(host, &full), 201).await;
    let made = body(&made);
    section.equal("`metadata` is the given object", &made["metadata"], full["metadata"].clone());
    section.equal(
        "`connection_config` is the given object",
        &made["connection_config"],
        full["connection_config"].clone(),
    );
    let url = "https://example.com/hooks";
    section.equal("`webhook_url_override` is the given URL", &made["webhook_url_override"], url);
    let user = &made["end_user"];
    for (member, value) in [("id", "u-1"), ("email", "ada@example.com"), ("display_name", "Ada")] {
        section.equal(&format!("`end_user.{member}` is the given value"), &user[member], value);
    }
    section.equal(
        "`end_user.organization` is the given organization",
        &user["organization"],
        full["organization"].clone(),
    );
    for (tag, value) in [
        ("end_user_email", "ada@example.com"),
        ("end_user_display_name", "Ada"),
        ("organization_id", "o-1"),
        ("organization_display_name", "Engines"),
        ("role", "admin"),
    ] {
        section.equal(&format!("The tag `{tag}` is generated"), &made["tags"][tag], value);
    }
    section.equal("Keys of tags are stored in lower case", &made["tags"]["plan"], "pro");
    section.equal("A given tag replaces a generated one", &made["tags"]["end_user_id"], "mine");
    section.equal("The credentials are returned", &made["credentials"]["password"], "planted");
    for id in ["a,.;:=+~[]|@${}\"'\\/_ -", &"x".repeat(255)] {
        let name = format!("A connection id of {} characters such as `{id:.12}`", id.len());
        section.returns(&name, import(host, &none(id)), 201).await;
    }
    let other = with(
        &with(&none("c-1"), "provider_config_key", "mail"),
        "credentials",
        json!({ "type": "API_KEY", "apiKey": "k" }),
    );
    section.returns("The same id in another integration", import(host, &other), 201).await;
    section.returns("`POST /connection`, an older name", post(host, "/connection", &none("c-3")), 201).await;
}

async fn replacement(section: &mut Section, host: &Api) {
    let path = "/connections/c-1?provider_config_key=open";
    let before = body(&get(host, path).send().await);
    let again = with(&none("c-1"), "metadata", json!({ "new": true }));
    let again = section.returns("An import under an existing id", import(host, &again), 201).await;
    section.equal("The connection keeps its `id`", &body(&again)["id"], before["id"].clone());
    section.equal(
        "The connection keeps its `created_at`",
        &body(&get(host, path).send().await)["created_at"],
        before["created_at"].clone(),
    );
    section.equal("The metadata is the new one", &body(&again)["metadata"], json!({ "new": true }));
    let count = body(&get(host, "/connections?connectionId=c-1&integrationId=open").send().await);
    let count = count["connections"].as_array().map(Vec::len);
    section.holds("There is still one connection", count == Some(1), &count);
}

async fn invalid_imports(section: &mut Section, host: &Api) {
    let long = "x".repeat(256);
    let more = |member: &str, value: Value| with(&none("x"), member, value);
    let eleven: Value = (0..11).map(|number| (format!("k{number}"), json!("v"))).collect();
    for (name, body, place) in [
        (
            "An import without `provider_config_key`",
            without(&none("x"), "provider_config_key"),
            "provider_config_key",
        ),
        ("An import without `credentials`", without(&none("x"), "credentials"), "credentials"),
        ("An import of credentials without `type`", more("credentials", json!({})), "credentials.type"),
        (
            "An import of credentials of another auth mode",
            more("credentials", json!({ "type": "BASIC", "username": "a", "password": "b" })),
            "credentials.type",
        ),
        (
            "An unknown type of credentials",
            more("credentials", json!({ "type": "MAGIC" })),
            "credentials.type",
        ),
        (
            "An import of `NONE` credentials with a member",
            more("credentials", json!({ "type": "NONE", "apiKey": "k" })),
            "credentials.apiKey",
        ),
        ("An empty connection id", none(""), "connection_id"),
        ("A connection id of 256 characters", none(&long), "connection_id"),
        ("A connection id with a letter outside ASCII", none("caf\u{e9}"), "connection_id"),
        ("A connection id that is a number", more("connection_id", json!(7)), "connection_id"),
        ("A malformed integration key", more("provider_config_key", json!("a/b")), "provider_config_key"),
        ("Metadata that is a list", more("metadata", json!([])), "metadata"),
        ("Metadata that is text", more("metadata", json!("x")), "metadata"),
        ("A configuration that is text", more("connection_config", json!("x")), "connection_config"),
        (
            "`oauth_scopes_override` that is text",
            more("connection_config", json!({ "oauth_scopes_override": "a" })),
            "connection_config.oauth_scopes_override",
        ),
        (
            "A webhook URL that is not a URL",
            more("webhook_url_override", json!("hooks")),
            "webhook_url_override",
        ),
        ("An end user without an id", more("end_user", json!({})), "end_user.id"),
        (
            "An end user with an unknown member",
            more("end_user", json!({ "id": "u", "name": "x" })),
            "end_user.name",
        ),
        ("An end user's id of 256 characters", more("end_user", json!({ "id": long })), "end_user.id"),
        (
            "An email address without a domain",
            more("end_user", json!({ "id": "u", "email": "ada@" })),
            "end_user.email",
        ),
        ("An import with eleven tags", more("tags", eleven), "tags"),
        ("A tag whose key has a space", more("tags", json!({ "a b": "x" })), "tags.a b"),
        (
            "A tag's key of 65 characters",
            more("tags", json!({ "k".repeat(65): "x" })),
            &format!("tags.{}", "k".repeat(65)),
        ),
        ("A tag with an empty value", more("tags", json!({ "a": "" })), "tags.a"),
        ("A tag's value of 256 characters", more("tags", json!({ "a": long })), "tags.a"),
        ("An unknown member", more("provider", json!("x")), "provider"),
    ] {
        section.rejects_at(name, import(host, &body), BODY, place).await;
    }
    let unknown = with(&none("x"), "provider_config_key", "unknown");
    section
        .rejects("An import at an unknown integration", import(host, &unknown), 404, "unknown_integration")
        .await;
}

async fn validation(section: &mut Section, host: &Api) {
    host.deploy(&Bundle::guest("lifecycle")).await;
    let with_metadata = |metadata: Value| {
        let body = with(&none("validated"), "provider_config_key", "lifecycle");
        import(host, &with(&body, "metadata", metadata))
    };
    let path = "/connections/validated?provider_config_key=lifecycle";
    let refused = with_metadata(json!({ "refuse": "this account has no plan" }));
    let name = "An import that the validation function rejects";
    let refused = section.rejects(name, refused, 400, "connection_validation_failed").await;
    let message = string(&body(&refused)["error"]["message"]);
    let contains = message.contains("this account has no plan");
    section.holds("`message` is the function's message", contains, &message);
    section.rejects("The rejected connection", get(host, path), 404, "unknown_connection").await;
    section.returns("An import that the validation function accepts", with_metadata(json!({})), 201).await;
    let greeted = eventually("the function has run", async || {
        let shown = body(&get(host, path).send().await);
        Some(shown["metadata"]["greeted"].clone()).filter(Value::is_boolean)
    });
    section.equal("The post-creation function runs after the creation", &greeted.await, true);
    let statuses = get(host, "/sync/status?provider_config_key=lifecycle&connection_id=validated&syncs=*");
    let statuses = body(&statuses.send().await);
    section.equal("A new connection has a schedule for each sync", &statuses["syncs"][0]["name"], "nothing");
    with_metadata(json!({ "clings": true })).send().await.expect(201);
    let deleted = delete(host, path);
    section.returns("`DELETE` whose pre-deletion function fails", deleted, 200).await;
}
