//! Statements about listing, showing, changing and deleting connections.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, delete, get, patch, string};
use crate::support::{Api, Host, TestDatabase};

const BODY: (u16, &str) = (400, "invalid_body");
const QUERY: (u16, &str) = (400, "invalid_query_params");

/// The members of a connection in a list.
const LISTED: [(&str, Kind); 9] = [
    ("id", Kind::Integer),
    ("connection_id", Kind::Text),
    ("provider_config_key", Kind::Text),
    ("provider", Kind::Text),
    ("errors", Kind::List),
    ("end_user", Kind::Object),
    ("tags", Kind::Object),
    ("metadata", Kind::Object),
    ("created", Kind::TimeWithOffset),
];

/// The members of a single connection.
pub const SHOWN: [(&str, Kind); 14] = [
    ("id", Kind::Integer),
    ("connection_id", Kind::Text),
    ("provider_config_key", Kind::Text),
    ("provider", Kind::Text),
    ("errors", Kind::List),
    ("end_user", Kind::Object),
    ("tags", Kind::Object),
    ("metadata", Kind::Object),
    ("connection_config", Kind::Object),
    ("webhook_url_override", Kind::Null),
    ("created_at", Kind::TimeWithOffset),
    ("updated_at", Kind::TimeWithOffset),
    ("last_fetched_at", Kind::TimeWithOffset),
    ("credentials", Kind::Object),
];

#[tokio::test]
async fn connections() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (provider, key) in [("unauthenticated", "one"), ("sendgrid", "two")] {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    for (integration, id, user, plan) in
        [("one", "c-1", "ada", "pro"), ("one", "c-2", "grace", "free"), ("two", "c-1", "ada", "free")]
    {
        let credentials = match integration {
            "one" => json!({ "type": "NONE" }),
            _ => json!({ "type": "API_KEY", "apiKey": "planted-key" }),
        };
        let import = json!({
            "connection_id": id, "provider_config_key": integration, "credentials": credentials,
            "end_user": { "id": user, "email": format!("{user}@example.com"), "display_name": format!("Dr. {user}") },
            "organization": { "id": format!("org-{user}") }, "tags": { "plan": plan },
        });
        host.post("/connections", &import).await.expect(201);
    }
    let mut section = Section::new("Connections");
    list(&mut section, &host).await;
    invalid_lists(&mut section, &host).await;
    show(&mut section, &host).await;
    change(&mut section, &host).await;
    deletion(&mut section, &host).await;
    section.finish();
}

async fn list(section: &mut Section, host: &Api) {
    let listed = section.returns("`GET /connections`", get(host, "/connections"), 200).await;
    section.only_members("The body", &body(&listed), &[("connections", Kind::List)]);
    let first = body(&listed)["connections"][0].clone();
    section.only_members("A connection in the list", &first, &LISTED);
    let shows_secret = listed.text().contains("planted-key");
    section.holds("The list contains no credentials", !shows_secret, &"a credential");
    let user = [
        ("id", Kind::Text),
        ("display_name", Kind::Text),
        ("email", Kind::Text),
        ("tags", Kind::Null),
        ("organization", Kind::Object),
    ];
    section.only_members("An end user", &first["end_user"], &user);
    let organization = [("id", Kind::Text), ("display_name", Kind::Null)];
    section.only_members("An organization", &first["end_user"]["organization"], &organization);
    for (statement, query, expected) in [
        ("Connections are listed newest first", "", &["two/c-1", "one/c-2", "one/c-1"][..]),
        ("`connectionId` selects an id in every integration", "connectionId=c-1", &["two/c-1", "one/c-1"]),
        ("`connectionId` matches the whole id", "connectionId=c-", &[]),
        ("`integrationId` selects an integration", "integrationId=one", &["one/c-2", "one/c-1"]),
        ("`integrationId` accepts several keys", "integrationId=one,two", &["two/c-1", "one/c-2", "one/c-1"]),
        ("`integrationId` ignores spaces around keys", "integrationId=two,%20none", &["two/c-1"]),
        ("`endUserId` selects an end user", "endUserId=ada", &["two/c-1", "one/c-1"]),
        ("`endUserOrganizationId` selects an organization", "endUserOrganizationId=org-grace", &["one/c-2"]),
        ("`search` finds a part of the connection id", "search=-2", &["one/c-2"]),
        ("`search` finds a part of the email address", "search=grace@", &["one/c-2"]),
        ("`search` finds a part of the display name", "search=dr.%20g", &["one/c-2"]),
        ("`search` ignores case", "search=GRACE", &["one/c-2"]),
        ("`tags[key]` selects connections with this tag", "tags[plan]=free", &["two/c-1", "one/c-2"]),
        ("The key of `tags[key]` ignores case", "tags[PLAN]=pro", &["one/c-1"]),
        ("Several tags must all match", "tags[plan]=free&tags[end_user_id]=ada", &["two/c-1"]),
        ("Several filters must all match", "connectionId=c-1&integrationId=one", &["one/c-1"]),
        ("`limit` is the number of connections on a page", "limit=2", &["two/c-1", "one/c-2"]),
        ("`page` counts from 0", "limit=2&page=0", &["two/c-1", "one/c-2"]),
        ("`page=1` is the second page", "limit=2&page=1", &["one/c-1"]),
        ("A page after the last one is empty", "limit=2&page=2", &[]),
    ] {
        let listed = body(&get(host, &format!("/connections?{query}")).send().await);
        let name = |one: &Value| {
            format!("{}/{}", string(&one["provider_config_key"]), string(&one["connection_id"]))
        };
        let names: Vec<String> = listed["connections"].as_array().into_iter().flatten().map(name).collect();
        section.equal(statement, &json!(names), json!(expected));
    }
    section.returns("`limit=2000`", get(host, "/connections?limit=2000"), 200).await;
    section.returns("`GET /connection`, an older name of the list", get(host, "/connection"), 200).await;
}

async fn invalid_lists(section: &mut Section, host: &Api) {
    let long = "x".repeat(256);
    for (name, query, place) in [
        ("`limit=0`", "limit=0", "limit"),
        ("`limit=2001`", "limit=2001", "limit"),
        ("A `limit` that is not a number", "limit=ten", "limit"),
        ("`page=-1`", "page=-1", "page"),
        ("A `page` that is not a number", "page=one", "page"),
        ("An empty `search`", "search=", "search"),
        ("A `search` of 256 characters", &format!("search={long}"), "search"),
        ("An empty `connectionId`", "connectionId=", "connectionId"),
        ("An empty `endUserId`", "endUserId=", "endUserId"),
        ("An empty `endUserOrganizationId`", "endUserOrganizationId=", "endUserOrganizationId"),
        ("A malformed `integrationId`", "integrationId=a/b", "integrationId"),
        ("An unknown parameter", "connection_id=c-1", "connection_id"),
    ] {
        section.rejects_at(name, get(host, &format!("/connections?{query}")), QUERY, place).await;
    }
}

async fn show(section: &mut Section, host: &Api) {
    let path = "/connections/c-1?provider_config_key=two";
    let _first = get(host, path).send().await;
    let shown = section.returns("`GET /connections/{id}`", get(host, path), 200).await;
    let shown = body(&shown);
    section.only_members("A connection", &shown, &SHOWN);
    section.equal("`connection_id` is the client's id", &shown["connection_id"], "c-1");
    section.equal("`provider_config_key` is the integration's key", &shown["provider_config_key"], "two");
    section.equal("`provider` is the integration's provider", &shown["provider"], "sendgrid");
    section.equal(
        "`credentials` contains the live credentials",
        &shown["credentials"]["apiKey"],
        "planted-key",
    );
    section.equal("`errors` of a connection without errors is empty", &shown["errors"], json!([]));
    let now = chrono::Utc::now();
    let fetched =
        chrono::DateTime::parse_from_rfc3339(&string(&shown["last_fetched_at"])).unwrap_or_default();
    let age = (now - fetched.to_utc()).num_seconds();
    section.holds("`last_fetched_at` is the time of the latest request", (0..30).contains(&age), &age);
    let same_id = body(&get(host, "/connections/c-1?provider_config_key=one").send().await);
    section.holds("The same id exists in several integrations", same_id["id"] != shown["id"], &same_id["id"]);
    for flags in [
        "force_refresh=false&refresh_token=false&refresh_github_app_jwt_token=false",
        "force_refresh=true",
        "refresh_token=true",
        "refresh_github_app_jwt_token=true",
    ] {
        section.returns(&format!("`{flags}`"), get(host, &format!("{path}&{flags}")), 200).await;
    }
    let alias = "/connection/c-1?provider_config_key=two";
    section.returns("`GET /connection/{id}`, an older name", get(host, alias), 200).await;
    let encoded = json!({
        "connection_id": "a b@[x]/$", "provider_config_key": "one", "credentials": { "type": "NONE" },
    });
    host.post("/connections", &encoded).await.expect(201);
    let request = get(host, "/connections/a%20b@%5Bx%5D%2F$?provider_config_key=one");
    section.returns("An id with special characters", request, 200).await;
    host.delete("/connections/a%20b@%5Bx%5D%2F$?provider_config_key=one").await.expect(200);

    let missing = get(host, "/connections/c-1");
    section
        .rejects_at("A request without `provider_config_key`", missing, QUERY, "provider_config_key")
        .await;
    for flag in ["force_refresh", "refresh_token", "refresh_github_app_jwt_token"] {
        let request = get(host, &format!("{path}&{flag}=perhaps"));
        section.rejects_at(&format!("`{flag}=perhaps`"), request, QUERY, flag).await;
    }
    section.rejects_at("An unknown parameter", get(host, &format!("{path}&raw=true")), QUERY, "raw").await;
    let unknown = get(host, "/connections/unknown?provider_config_key=two");
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = get(host, "/connections/c-1?provider_config_key=unknown");
    section.rejects("An unknown integration", unknown, 404, "unknown_integration").await;
}

async fn change(section: &mut Section, host: &Api) {
    let path = "/connections/c-1?provider_config_key=two";
    let stored = async || body(&get(host, path).send().await);
    let before = stored().await;
    let send = |change: Value| patch(host, path, &change);
    let changed = section
        .returns("`PATCH /connections/{id}` with tags", send(json!({ "tags": { "Region": "eu" } })), 200)
        .await;
    section.equal("The body is `{\"success\": true}`", &body(&changed), json!({ "success": true }));
    let after = stored().await;
    section.equal("The tags replace all existing tags", &after["tags"], json!({ "region": "eu" }));
    section.equal("The end user stays", &after["end_user"], before["end_user"].clone());
    section.equal("The credentials stay", &after["credentials"], before["credentials"].clone());
    section.equal("`created_at` stays", &after["created_at"], before["created_at"].clone());
    let is_later = string(&after["updated_at"]) > string(&before["updated_at"]);
    section.holds("`updated_at` is the time of the change", is_later, &after["updated_at"]);
    let user = json!({ "end_user": { "id": "eve", "email": "eve@example.com" }, "tags": { "plan": "pro" } });
    section.returns("`PATCH` with an end user", send(user), 200).await;
    let after = stored().await;
    section.equal("The end user is the given one", &after["end_user"]["id"], "eve");
    let tags = json!({ "end_user_id": "eve", "end_user_email": "eve@example.com", "plan": "pro" });
    section.equal("The tags are generated from the end user and extended by `tags`", &after["tags"], tags);
    let url = "https://example.com/hooks";
    section.returns("`PATCH` with a webhook URL", send(json!({ "webhook_url_override": url })), 200).await;
    section.equal("The connection has the webhook URL", &stored().await["webhook_url_override"], url);
    section.equal("The tags stay", &stored().await["tags"]["plan"], "pro");
    section
        .returns("`PATCH` with an empty webhook URL", send(json!({ "webhook_url_override": "" })), 200)
        .await;
    section.equal("The webhook URL is removed", &stored().await["webhook_url_override"], Value::Null);
    section.returns("`PATCH` with `{}`", send(json!({})), 200).await;
    section.returns("`PATCH` with empty tags", send(json!({ "tags": {} })), 200).await;
    section.equal("All tags are removed", &stored().await["tags"], json!({}));
    for (name, change, place) in [
        ("`PATCH` with credentials", json!({ "credentials": {} }), "credentials"),
        ("`PATCH` with metadata", json!({ "metadata": {} }), "metadata"),
        ("`PATCH` with a malformed tag", json!({ "tags": { "a b": "x" } }), "tags.a b"),
        ("`PATCH` with an end user without an id", json!({ "end_user": {} }), "end_user.id"),
        (
            "`PATCH` with a malformed URL",
            json!({ "webhook_url_override": "ftp://a" }),
            "webhook_url_override",
        ),
    ] {
        section.rejects_at(name, send(change), BODY, place).await;
    }
    let missing = patch(host, "/connections/c-1", &json!({}));
    section.rejects_at("`PATCH` without `provider_config_key`", missing, QUERY, "provider_config_key").await;
    let unknown = patch(host, "/connections/unknown?provider_config_key=two", &json!({}));
    section.rejects("`PATCH` of an unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = patch(host, "/connections/c-1?provider_config_key=unknown", &json!({}));
    section.rejects("`PATCH` at an unknown integration", unknown, 404, "unknown_integration").await;
}

async fn deletion(section: &mut Section, host: &Api) {
    let path = "/connections/c-1?provider_config_key=two";
    let missing = delete(host, "/connections/c-1");
    section.rejects_at("`DELETE` without `provider_config_key`", missing, QUERY, "provider_config_key").await;
    let deleted = section.returns("`DELETE /connections/{id}`", delete(host, path), 200).await;
    section.equal(
        "The body of the deletion is `{\"success\": true}`",
        &body(&deleted),
        json!({ "success": true }),
    );
    section.rejects("`GET` of a deleted connection", get(host, path), 404, "unknown_connection").await;
    section.rejects("`DELETE` of a deleted connection", delete(host, path), 404, "unknown_connection").await;
    let unknown = delete(host, "/connections/c-1?provider_config_key=unknown");
    section.rejects("`DELETE` at an unknown integration", unknown, 404, "unknown_integration").await;
    let same_id = get(host, "/connections/c-1?provider_config_key=one");
    section.returns("The connection with the same id in another integration", same_id, 200).await;
    let alias = delete(host, "/connection/c-2?provider_config_key=one");
    section.returns("`DELETE /connection/{id}`, an older name", alias, 200).await;
}
