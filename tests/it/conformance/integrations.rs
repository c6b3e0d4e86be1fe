//! Statements about integrations.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, delete, get, patch, post, string, with, without};
use crate::support::{Api, Host, TestDatabase, repository};

/// The members of an integration without `include`.
const MEMBERS: [(&str, Kind); 7] = [
    ("unique_key", Kind::Text),
    ("provider", Kind::Text),
    ("display_name", Kind::Text),
    ("logo", Kind::Url),
    ("forward_webhooks", Kind::Boolean),
    ("created_at", Kind::Time),
    ("updated_at", Kind::Time),
];
const INVALID: (u16, &str) = (400, "invalid_body");
const MASK: &str = "********";

fn app() -> Value {
    json!({
        "type": "OAUTH2", "client_id": "id-1", "client_secret": "planted-app-secret", "scopes": "a:read,b.write",
        "webhook_secret": "planted-webhook-secret",
    })
}

fn oauth(key: &str) -> Value {
    json!({ "provider": "hubspot", "unique_key": key, "credentials": app() })
}

fn plain(key: &str) -> Value {
    json!({ "provider": "unauthenticated", "unique_key": key })
}

#[tokio::test]
async fn integrations() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let mut section = Section::new("Integrations");
    creation(&mut section, &host).await;
    reading(&mut section, &host).await;
    update(&mut section, &host).await;
    deletion(&mut section, &host).await;
    section.finish();
}

#[tokio::test]
async fn app_credentials() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let mut section = Section::new("App credentials of integrations");
    credentials(&mut section, &host).await;
    invalid_credentials(&mut section, &host).await;
    let reader = host.with_key(Some(&host.create_key(&db, "reader", "read-only")));
    let shown = body(&get(&reader, "/integrations/OAUTH2?include=credentials").send().await);
    section.lacks(
        "an integration that a key without the scope for credentials gets",
        &shown["data"],
        "credentials",
    );
    section.finish();
}

async fn creation(section: &mut Section, host: &Api) {
    let create = |body: &Value| post(host, "/integrations", body);
    let made = section
        .returns("`POST /integrations` with a provider and a unique key", create(&plain("a")), 200)
        .await;
    section.only_members("The body", &body(&made), &[("data", Kind::Object)]);
    let data = body(&made)["data"].clone();
    section.only_members("A new integration", &data, &MEMBERS);
    section.equal("`unique_key` is the given key", &data["unique_key"], "a");
    section.equal("`provider` is the given provider", &data["provider"], "unauthenticated");
    section.equal("`forward_webhooks` is true by default", &data["forward_webhooks"], true);
    section.equal(
        "`updated_at` of a new integration equals `created_at`",
        &data["updated_at"],
        data["created_at"].clone(),
    );
    let logo = format!("{}/images/template-logos/unauthenticated.svg", host.base_url());
    section.equal("`logo` is the logo of the provider", &data["logo"], logo);
    section
        .returns(
            "`GET` of an integration's `logo`",
            get(host, "/images/template-logos/unauthenticated.svg"),
            200,
        )
        .await;
    let own = json!({ "provider": "sendgrid", "unique_key": "b", "display_name": "Ours", "forward_webhooks": false });
    let own = section.returns("`POST /integrations` with all optional members", create(&own), 200).await;
    section.equal("`display_name` can be given", &body(&own)["data"]["display_name"], "Ours");
    section.equal("`forward_webhooks` can be false", &body(&own)["data"]["forward_webhooks"], false);
    let provider = body(&get(host, "/providers/sendgrid").send().await)["data"]["display_name"].clone();
    let unnamed = body(&create(&json!({ "provider": "sendgrid", "unique_key": "c" })).send().await);
    section.equal(
        "`display_name` is the provider's name by default",
        &unnamed["data"]["display_name"],
        provider,
    );
    let oauth =
        section.returns("`POST /integrations` with OAuth credentials", create(&oauth("crm")), 200).await;
    section.lacks("The new integration", &body(&oauth)["data"], "credentials");
    for key in ["~:.@ _-", &"x".repeat(255)] {
        let name = format!("A unique key of {} characters such as `{:.8}`", key.len(), key);
        section.returns(&name, create(&plain(key)), 200).await;
    }

    section.rejects("A unique key that exists", create(&plain("a")), 409, "duplicate_integration").await;
    let unknown = json!({ "provider": "no-such-provider", "unique_key": "x" });
    section.rejects("An unknown provider", create(&unknown), 404, "unknown_provider").await;
    for (name, body, place) in [
        ("A creation without `provider`", without(&plain("x"), "provider"), "provider"),
        ("A creation without `unique_key`", without(&plain("x"), "unique_key"), "unique_key"),
        ("A unique key with a slash", plain("a/b"), "unique_key"),
        ("An empty unique key", plain(""), "unique_key"),
        ("A unique key of 256 characters", plain(&"x".repeat(256)), "unique_key"),
        ("A unique key that is a number", with(&plain("x"), "unique_key", 7), "unique_key"),
        ("A provider with a space", with(&plain("x"), "provider", "a b"), "provider"),
        ("An empty display name", with(&plain("x"), "display_name", ""), "display_name"),
        (
            "A display name of 256 characters",
            with(&plain("x"), "display_name", "x".repeat(256)),
            "display_name",
        ),
        ("`forward_webhooks` as text", with(&plain("x"), "forward_webhooks", "yes"), "forward_webhooks"),
        ("An unknown member", with(&plain("x"), "logo", "x"), "logo"),
        ("An OAuth provider without credentials", without(&oauth_body(), "credentials"), "credentials"),
        (
            "An integration with credentials whose provider has none",
            with(&plain("x"), "credentials", app()),
            "credentials",
        ),
        (
            "An `integration_config` with a number",
            with(&plain("x"), "integration_config", json!({ "a": 1 })),
            "integration_config.a",
        ),
        (
            "An `integration_config` value above 8,192 characters",
            with(&plain("x"), "integration_config", json!({ "a": "x".repeat(8193) })),
            "integration_config.a",
        ),
        ("A `custom` value that is a list", with(&plain("x"), "custom", json!({ "a": [] })), "custom.a"),
    ] {
        section.rejects_at(name, create(&body), INVALID, place).await;
    }
    let quickstart = post(host, "/integrations/quickstart", &plain("q"));
    section.rejects("`POST /integrations/quickstart`", quickstart, 501, "not_implemented").await;
}

fn oauth_body() -> Value {
    oauth("x")
}

async fn reading(section: &mut Section, host: &Api) {
    let listed = section.returns("`GET /integrations`", get(host, "/integrations"), 200).await;
    section.only_members("The body of the list", &body(&listed), &[("data", Kind::List)]);
    let listed = body(&listed)["data"].clone();
    section.members("An integration in the list", &listed[0], &MEMBERS);
    let keys: Vec<String> =
        listed.as_array().into_iter().flatten().map(|one| string(&one["unique_key"])).collect();
    section.holds("The list contains every integration", keys.len() == 6, &keys);
    let shows_secrets =
        listed.to_string().contains("credentials") || listed.to_string().contains("webhook_url");
    section.holds("The list contains neither credentials nor webhook URLs", !shows_secrets, &listed);

    let one = section.returns("`GET /integrations/{key}`", get(host, "/integrations/crm"), 200).await;
    let data = body(&one)["data"].clone();
    section.only_members("An integration without `include`", &data, &MEMBERS);
    let spaced = get(host, "/integrations/~:.@%20_-");
    section.returns("`GET /integrations/{key}` with a percent-encoded key", spaced, 200).await;
    let show = async |query: &str| {
        body(&get(host, &format!("/integrations/crm?{query}")).send().await)["data"].clone()
    };
    for query in ["include=webhook", "include[]=webhook", "include[0]=webhook"] {
        let shown = show(query).await;
        section.members(&format!("An integration with `{query}`"), &shown, &[("webhook_url", Kind::Url)]);
        section.lacks(&format!("An integration with `{query}`"), &shown, "credentials");
    }
    for query in ["include=credentials", "include[]=credentials"] {
        let shown = show(query).await;
        section.members(&format!("An integration with `{query}`"), &shown, &[("credentials", Kind::Object)]);
        section.lacks(&format!("An integration with `{query}`"), &shown, "webhook_url");
    }
    for query in ["include[]=webhook&include[]=credentials", "include=webhook&include=credentials"] {
        let both = [("webhook_url", Kind::Url), ("credentials", Kind::Object)];
        section.members(&format!("An integration with `{query}`"), &show(query).await, &both);
    }
    let environment = string(&body(&get(host, "/environment").send().await)["data"]["id"]);
    let url = format!("{}/webhook/{environment}/crm", host.base_url());
    let statement = "`webhook_url` consists of the base address, the environment's id and the unique key";
    section.equal(statement, &show("include=webhook").await["webhook_url"], url);
    host.post("/integrations", &json!({ "provider": "launchdarkly", "unique_key": "flags" }))
        .await
        .expect(200);
    let without_webhooks = body(&get(host, "/integrations/flags?include=webhook").send().await);
    let statement = "An integration whose provider has no webhooks";
    section.members(statement, &without_webhooks["data"], &[("webhook_url", Kind::Null)]);
    let place = "include";
    let query = (400, "invalid_query_params");
    section
        .rejects_at("An unknown value of `include`", get(host, "/integrations/crm?include=all"), query, place)
        .await;
    let unknown = get(host, "/integrations/unknown");
    section.rejects("`GET` of an unknown integration", unknown, 404, "unknown_integration").await;
    let malformed = get(host, "/integrations/a%2Fb");
    section.rejects("`GET` of a malformed unique key", malformed, 400, "invalid_uri_params").await;
}

async fn update(section: &mut Section, host: &Api) {
    let before = body(&get(host, "/integrations/crm").send().await)["data"].clone();
    let change = |body: Value| patch(host, "/integrations/crm", &body);
    let same = section.returns("`PATCH /integrations/{key}` with `{}`", change(json!({})), 200).await;
    section.only_members("The updated integration", &body(&same)["data"], &MEMBERS);
    let changed =
        section.returns("`PATCH` of the display name", change(json!({ "display_name": "New" })), 200).await;
    let data = body(&changed)["data"].clone();
    section.equal("The display name is the given one", &data["display_name"], "New");
    section.equal(
        "Members that are not given stay",
        &data["forward_webhooks"],
        before["forward_webhooks"].clone(),
    );
    section.equal("`created_at` stays", &data["created_at"], before["created_at"].clone());
    let is_later = string(&data["updated_at"]) > string(&before["updated_at"]);
    section.holds("`updated_at` is the time of the change", is_later, &data["updated_at"]);
    let changed = section
        .returns("`PATCH` of `forward_webhooks`", change(json!({ "forward_webhooks": false })), 200)
        .await;
    section.equal(
        "`forward_webhooks` is the given value",
        &body(&changed)["data"]["forward_webhooks"],
        false,
    );
    let credentials =
        json!({ "credentials": { "type": "OAUTH2", "client_id": "id-2", "client_secret": "planted-2" } });
    section.returns("`PATCH` of the credentials", change(credentials), 200).await;
    let shown =
        body(&get(host, "/integrations/crm?include=credentials").send().await)["data"]["credentials"].clone();
    section.equal("The client id is the given one", &shown["client_id"], "id-2");
    section.equal("Scopes that are not given stay", &shown["scopes"], "a:read,b.write");
    for (name, body, place) in [
        ("An update with an unknown member", json!({ "provider": "sendgrid" }), "provider"),
        ("An update with an empty display name", json!({ "display_name": "" }), "display_name"),
        ("An update with a malformed key", json!({ "unique_key": "a/b" }), "unique_key"),
        (
            "An update with credentials of another type",
            json!({ "credentials": { "type": "OAUTH1", "client_id": "i", "client_secret": "s" } }),
            "credentials.type",
        ),
    ] {
        section.rejects_at(name, change(body), INVALID, place).await;
    }
    let taken = change(json!({ "unique_key": "a" }));
    section.rejects("Renaming to a key that exists", taken, 409, "duplicate_integration").await;
    let unknown = patch(host, "/integrations/unknown", &json!({}));
    section.rejects("`PATCH` of an unknown integration", unknown, 404, "unknown_integration").await;
    let renamed =
        section.returns("`PATCH` of the unique key", change(json!({ "unique_key": "sales" })), 200).await;
    section.equal("The integration has the new key", &body(&renamed)["data"]["unique_key"], "sales");
    section.returns("`GET` with the new key", get(host, "/integrations/sales"), 200).await;
    section
        .rejects("`GET` with the previous key", get(host, "/integrations/crm"), 404, "unknown_integration")
        .await;
}

async fn deletion(section: &mut Section, host: &Api) {
    host.connect_as("customer-1", "a", json!({})).await;
    let deleted = section.returns("`DELETE /integrations/{key}`", delete(host, "/integrations/a"), 200).await;
    section.equal(
        "The body of the deletion is `{\"success\": true}`",
        &body(&deleted),
        json!({ "success": true }),
    );
    section.rejects("A deleted integration", get(host, "/integrations/a"), 404, "unknown_integration").await;
    let listed = body(&get(host, "/connections").send().await);
    section.equal("Its connections are deleted", &listed["connections"], json!([]));
    let again = delete(host, "/integrations/a");
    section.rejects("`DELETE` of an unknown integration", again, 404, "unknown_integration").await;
    section
        .returns(
            "The key of a deleted integration can be used again",
            post(host, "/integrations", &plain("a")),
            200,
        )
        .await;
    let connection = get(host, "/connections/customer-1?provider_config_key=a");
    section.rejects("A connection of the deleted integration", connection, 404, "unknown_connection").await;
}

async fn credentials(section: &mut Section, host: &Api) {
    let key = std::fs::read_to_string(repository("tests/keys/app.pem")).expect("the key file exists");
    let client = json!({ "client_id": "id-1", "client_secret": "planted-app-secret" });
    let installed = json!({ "app_id": "7", "app_link": "https://code.test/apps/a", "private_key": key });
    let both = |first: &Value, second: &Value| {
        let mut all = first.clone();
        all.as_object_mut()
            .into_iter()
            .for_each(|all| all.extend(second.as_object().cloned().unwrap_or_default()));
        all
    };
    let oauth = [
        ("type", Kind::Text),
        ("client_id", Kind::Text),
        ("client_secret", Kind::Text),
        ("scopes", Kind::Text),
    ];
    let app =
        [("type", Kind::Text), ("app_id", Kind::Text), ("app_link", Kind::Url), ("private_key", Kind::Text)];
    let of_both = [&oauth[..3], &app[1..]].concat();
    let scoped = with(&with(&client, "scopes", "a:read,b.write"), "webhook_secret", "planted-webhook-secret");
    for (provider, mode, given, members) in [
        ("hubspot", "OAUTH2", &scoped, [&oauth[..], &[("webhook_secret", Kind::Text)]].concat()),
        (
            "trello",
            "OAUTH1",
            &with(&client, "scopes", ""),
            [&oauth[..], &[("webhook_secret", Kind::Null)]].concat(),
        ),
        (
            "netsuite-tba",
            "TBA",
            &with(&client, "scopes", "a"),
            [&oauth[..], &[("webhook_secret", Kind::Null)]].concat(),
        ),
        ("github-app", "APP", &installed, app.to_vec()),
        ("github-app-oauth", "CUSTOM", &both(&client, &installed), of_both),
    ] {
        let made =
            json!({ "provider": provider, "unique_key": mode, "credentials": with(given, "type", mode) });
        let name = format!("`POST /integrations` with `{mode}` credentials");
        section.returns(&name, post(host, "/integrations", &made), 200).await;
        let shown = get(host, &format!("/integrations/{mode}?include=credentials")).send().await;
        let shown = body(&shown)["data"]["credentials"].clone();
        section.only_members(&format!("`credentials` of `{mode}`"), &shown, &members);
        section.equal(&format!("`type` of `{mode}` credentials is `{mode}`"), &shown["type"], mode);
        for secret in ["client_secret", "private_key", "webhook_secret"] {
            if given.get(secret).is_some() {
                section.equal(&format!("`{secret}` of `{mode}` credentials is masked"), &shown[secret], MASK);
            }
        }
        for open in ["client_id", "app_id", "app_link", "scopes"] {
            if let Some(value) = given.get(open) {
                section.equal(
                    &format!("`{open}` of `{mode}` credentials is shown"),
                    &shown[open],
                    value.clone(),
                );
            }
        }
    }
    let none = json!({ "provider": "sendgrid", "unique_key": "keys" });
    host.post("/integrations", &none).await.expect(200);
    let shown = body(&get(host, "/integrations/keys?include=credentials").send().await)["data"].clone();
    section.members("An integration whose provider needs no app", &shown, &[("credentials", Kind::Null)]);
}

async fn invalid_credentials(section: &mut Section, host: &Api) {
    let changed = |member: &str, value: Value| with(&oauth("x"), "credentials", with(&app(), member, value));
    let key = |value: &str| {
        let credentials =
            json!({ "type": "APP", "app_id": "1", "app_link": "https://a.test", "private_key": value });
        json!({ "provider": "github-app", "unique_key": "x", "credentials": credentials })
    };
    let lacking = |member: &str| with(&oauth("x"), "credentials", without(&app(), member));
    for (name, body, place) in [
        ("An integration with credentials without `type`", lacking("type"), "credentials.type"),
        (
            "An integration with credentials without `client_id`",
            lacking("client_id"),
            "credentials.client_id",
        ),
        (
            "An integration with credentials without `client_secret`",
            lacking("client_secret"),
            "credentials.client_secret",
        ),
        (
            "An integration with credentials of another type",
            changed("type", json!("OAUTH1")),
            "credentials.type",
        ),
        ("An empty client id", changed("client_id", json!("")), "credentials.client_id"),
        (
            "A client id of 256 characters",
            changed("client_id", json!("x".repeat(256))),
            "credentials.client_id",
        ),
        ("An empty client secret", changed("client_secret", json!("")), "credentials.client_secret"),
        (
            "An integration with scopes that are separated by spaces",
            changed("scopes", json!("a b")),
            "credentials.scopes",
        ),
        (
            "A webhook secret of 256 characters",
            changed("webhook_secret", json!("x".repeat(256))),
            "credentials.webhook_secret",
        ),
        ("An unknown member of credentials", changed("app_id", json!("1")), "credentials.app_id"),
        (
            "An integration whose credentials are a list",
            with(&oauth("x"), "credentials", json!([])),
            "credentials",
        ),
        ("A private key that is not PEM", key("no key"), "credentials.private_key"),
    ] {
        section.rejects_at(name, post(host, "/integrations", &body), INVALID, place).await;
    }
}
