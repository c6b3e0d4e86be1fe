//! Statements about the credentials of connections, for each type that can be imported.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, get, post, with, without};
use crate::support::{Api, Host, TestDatabase, repository};

const BODY: (u16, &str) = (400, "invalid_body");
const EXPIRY: &str = "2099-01-01T00:00:00Z";

/// A type of credentials.
struct Type {
    name: &'static str,
    provider: &'static str,
    /// Members of the app's credentials.
    app: &'static [&'static str],
    config: Value,
    required: Value,
    optional: Value,
    /// The members of the credentials that the API returns.
    shown: &'static [(&'static str, Kind)],
    /// Members with their longest length.
    lengths: &'static [(&'static str, usize)],
}

fn types() -> Vec<Type> {
    let client: &[&str] = &["client_id", "client_secret"];
    vec![
        Type {
            name: "OAUTH2",
            provider: "hubspot",
            app: client,
            config: json!({}),
            required: json!({ "access_token": "planted-a" }),
            optional: json!({ "refresh_token": "planted-r", "expires_at": EXPIRY, "config_override": { "client_id": "i", "client_secret": "planted-s" } }),
            shown: &[
                ("access_token", Kind::Text),
                ("expires_at", Kind::Moment),
                ("raw", Kind::Object),
                ("config_override", Kind::Object),
            ],
            lengths: &[("access_token", 16_384)],
        },
        Type {
            name: "OAUTH2_CC",
            provider: "microsoft-oauth2-cc",
            app: &[],
            config: json!({ "tenantId": "6f2c1f3e-8f1c-4a0e-9d0b-3c0c5f1c7a11" }),
            required: json!({ "token": "planted-t", "client_id": "i", "client_secret": "planted-s" }),
            optional: json!({ "expires_at": EXPIRY }),
            shown: &[
                ("token", Kind::Text),
                ("expires_at", Kind::Moment),
                ("client_id", Kind::Text),
                ("client_secret", Kind::Text),
                ("raw", Kind::Object),
            ],
            lengths: &[("token", 4_096), ("client_id", 255), ("client_secret", 2_048)],
        },
        Type {
            name: "OAUTH1",
            provider: "trello",
            app: client,
            config: json!({}),
            required: json!({ "oauth_token": "planted-t", "oauth_token_secret": "planted-s" }),
            optional: json!({}),
            shown: &[("oauth_token", Kind::Text), ("oauth_token_secret", Kind::Text), ("raw", Kind::Object)],
            lengths: &[("oauth_token", 2_048), ("oauth_token_secret", 2_048)],
        },
        Type {
            name: "API_KEY",
            provider: "sendgrid",
            app: &[],
            config: json!({}),
            required: json!({ "apiKey": "planted-k" }),
            optional: json!({}),
            shown: &[("apiKey", Kind::Text)],
            lengths: &[("apiKey", 1_024)],
        },
        Type {
            name: "BASIC",
            provider: "stripe-api-key",
            app: &[],
            config: json!({}),
            required: json!({ "username": "planted-u", "password": "" }),
            optional: json!({}),
            shown: &[("username", Kind::Text), ("password", Kind::Text)],
            lengths: &[("username", 1_024), ("password", 1_024)],
        },
        Type {
            name: "TBA",
            provider: "netsuite-tba",
            app: client,
            config: json!({ "accountId": "1234567-SB1" }),
            required: json!({ "token_id": "planted-t", "token_secret": "planted-s" }),
            optional: json!({ "config_override": { "client_id": "i", "client_secret": "planted-s" } }),
            shown: &[
                ("token_id", Kind::Text),
                ("token_secret", Kind::Text),
                ("config_override", Kind::Object),
            ],
            lengths: &[],
        },
        Type {
            name: "APP",
            provider: "github-app",
            app: &["app_id", "app_link", "private_key"],
            config: json!({}),
            required: json!({ "app_id": "7", "installation_id": "42" }),
            optional: json!({}),
            shown: &[],
            lengths: &[],
        },
        Type {
            name: "CUSTOM",
            provider: "github-app-oauth",
            app: &["client_id", "client_secret", "app_id", "app_link", "private_key"],
            config: json!({}),
            required: json!({ "app_id": "7", "installation_id": "42" }),
            optional: json!({}),
            shown: &[],
            lengths: &[],
        },
        Type {
            name: "NONE",
            provider: "unauthenticated",
            app: &[],
            config: json!({}),
            required: json!({}),
            optional: json!({}),
            shown: &[],
            lengths: &[],
        },
    ]
}

#[tokio::test]
async fn credentials() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let mut section = Section::new("Credentials of connections");
    for one in types() {
        create_integration(&host, &one).await;
        import(&mut section, &host, &one).await;
    }
    refresh_tokens(&mut section, &host).await;
    unsupported(&mut section, &host).await;
    section.finish();
}

async fn create_integration(host: &Api, one: &Type) {
    let key = std::fs::read_to_string(repository("tests/keys/app.pem")).expect("the key file exists");
    let mut app = json!({ "type": one.name });
    for member in one.app {
        app[*member] = match *member {
            "private_key" => json!(key),
            "app_link" => json!("https://code.test/apps/a"),
            "client_secret" => json!("planted-app-secret"),
            _ => json!("7"),
        };
    }
    let mut integration = json!({ "provider": one.provider, "unique_key": one.name });
    if !one.app.is_empty() {
        integration["credentials"] = app;
    }
    host.post("/integrations", &integration).await.expect(200);
}

fn body_of(one: &Type, credentials: &Value) -> Value {
    json!({
        "connection_id": "c-1", "provider_config_key": one.name, "connection_config": one.config,
        "credentials": with(credentials, "type", one.name),
    })
}

async fn import(section: &mut Section, host: &Api, one: &Type) {
    let send = |credentials: &Value| post(host, "/connections", &body_of(one, credentials));
    let name = one.name;
    section.returns(&format!("An import of `{name}` credentials"), send(&one.required), 201).await;
    let mut all = one.required.clone();
    let members = all.as_object_mut().into_iter();
    members.for_each(|members| members.extend(one.optional.as_object().cloned().unwrap_or_default()));
    let made = section
        .returns(&format!("An import of `{name}` credentials with all members"), send(&all), 201)
        .await;
    let made = body(&made)["credentials"].clone();
    section.equal(&format!("`type` of `{name}` credentials is `{name}`"), &made["type"], name);
    section.members(&format!("`{name}` credentials"), &made, one.shown);
    for (member, value) in all.as_object().into_iter().flatten() {
        if one.shown.iter().any(|(shown, _)| shown == member) {
            section.equal(
                &format!("`{member}` of `{name}` credentials is the given value"),
                &made[member],
                value.clone(),
            );
        }
    }
    if one.shown.iter().any(|(member, _)| *member == "raw") {
        let statement = format!("`raw` of `{name}` credentials contains the submitted ones");
        let first = one.required.as_object().and_then(|members| members.iter().next());
        let (member, value) = first.expect("the type has a member");
        section.equal(&statement, &made["raw"][member], value.clone());
    }
    for member in one.required.as_object().into_iter().flat_map(serde_json::Map::keys) {
        let request = send(&without(&all, member));
        let statement = format!("An import of `{name}` credentials without `{member}`");
        section.rejects_at(&statement, request, BODY, &format!("credentials.{member}")).await;
    }
    for (member, length) in one.lengths {
        let place = format!("credentials.{member}");
        let request = send(&with(&all, member, "x".repeat(length + 1)));
        let statement = format!("A `{member}` of `{name}` credentials above {length} characters");
        section.rejects_at(&statement, request, BODY, &place).await;
    }
    let request = send(&with(&all, "surprise", 1));
    let statement = format!("An import of `{name}` credentials with an unknown member");
    section.rejects_at(&statement, request, BODY, "credentials.surprise").await;
    if name == "TBA" {
        let body = without(&body_of(one, &all), "connection_config");
        let statement = "An import of `TBA` credentials without `connection_config.accountId`";
        section
            .rejects_at(statement, post(host, "/connections", &body), BODY, "connection_config.accountId")
            .await;
    }
    if name == "OAUTH2" {
        let request = send(&with(&all, "expires_at", "soon"));
        section
            .rejects_at("An `expires_at` that is not a time", request, BODY, "credentials.expires_at")
            .await;
    }
}

async fn refresh_tokens(section: &mut Section, host: &Api) {
    let path = "/connections/c-1?provider_config_key=OAUTH2";
    let plain = body(&get(host, path).send().await)["credentials"].clone();
    section.lacks("`OAUTH2` credentials", &plain, "refresh_token");
    section.lacks("`raw` of `OAUTH2` credentials", &plain["raw"], "refresh_token");
    let full = body(&get(host, &format!("{path}&refresh_token=true")).send().await)["credentials"].clone();
    section.equal("`refresh_token=true` adds the refresh token", &full["refresh_token"], "planted-r");
    section.equal("`refresh_token=true` adds it to `raw`", &full["raw"]["refresh_token"], "planted-r");
    section.equal("A valid access token is returned without a refresh", &plain["access_token"], "planted-a");
}

async fn unsupported(section: &mut Section, host: &Api) {
    for (provider, mode) in [("greenhouse-harvest", "TWO_STEP"), ("bill", "BILL")] {
        let integration = json!({ "provider": provider, "unique_key": mode });
        host.post("/integrations", &integration).await.expect(200);
        let import = json!({ "provider_config_key": mode, "credentials": { "type": mode, "token": "t" } });
        let statement = format!("An import of `{mode}` credentials, which is not supported,");
        section.rejects_at(&statement, post(host, "/connections", &import), BODY, "credentials.type").await;
    }
}
