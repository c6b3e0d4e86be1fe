//! Statements about the catalogue of providers, and about deployed functions.

use serde_json::json;

use super::support::{Kind, Section, body, delete, get, post};
use crate::support::{Bundle, Host, Stage};

const QUERY: (u16, &str) = (400, "invalid_query_params");

#[tokio::test]
async fn providers_and_functions() {
    let stage = Stage::numbers(1).await;
    stage.host.deploy(&Bundle::guest("lifecycle")).await;
    let mut section = Section::new("Providers and functions");
    providers(&mut section, &stage.host).await;
    functions(&mut section, &stage.host).await;
    scripts(&mut section, &stage.host).await;
    section.finish();
}

async fn providers(section: &mut Section, host: &Host) {
    let listed = section.returns("`GET /providers`", get(host, "/providers"), 200).await;
    section.only_members("The body of the list", &body(&listed), &[("data", Kind::List)]);
    let first = body(&listed)["data"][0].clone();
    let members = [
        ("name", Kind::Text),
        ("display_name", Kind::Text),
        ("auth_mode", Kind::Text),
        ("docs", Kind::Url),
        ("logo_url", Kind::Url),
    ];
    section.members("A provider", &first, &members);
    let found = async |search: &str| {
        let found = body(&get(host, &format!("/providers?search={search}")).send().await);
        found["data"].as_array().map_or(0, Vec::len)
    };
    section.holds("`search` finds a provider by its name", found("sendgrid").await == 1, &"sendgrid");
    section.holds("`search` ignores case", found("SENDGRID").await == 1, &"SENDGRID");
    section.holds(
        "A search without results returns an empty list",
        found("no-such-provider").await == 0,
        &"",
    );
    let unknown = get(host, "/providers?name=x");
    section.rejects("`GET /providers` with an unknown parameter", unknown, 400, "invalid_query_params").await;

    for (provider, mode) in [
        ("stripe-api-key", "BASIC"),
        ("sendgrid", "API_KEY"),
        ("hubspot", "OAUTH2"),
        ("trello", "OAUTH1"),
        ("github-app", "APP"),
        ("github-app-oauth", "CUSTOM"),
        ("netsuite-tba", "TBA"),
        ("microsoft-oauth2-cc", "OAUTH2_CC"),
        ("unauthenticated", "NONE"),
    ] {
        let name = format!("`GET /providers/{provider}`");
        let one = section.returns(&name, get(host, &format!("/providers/{provider}")), 200).await;
        let one = body(&one)["data"].clone();
        section.equal(&format!("`name` of `{provider}` is its slug"), &one["name"], provider);
        section.equal(&format!("`auth_mode` of `{provider}` is `{mode}`"), &one["auth_mode"], mode);
    }
    let oauth = body(&get(host, "/providers/hubspot").send().await)["data"].clone();
    let members = [("authorization_url", Kind::Url), ("token_url", Kind::Url), ("proxy", Kind::Object)];
    section.members("A provider with OAuth 2", &oauth, &members);
    let keyed = body(&get(host, "/providers/sendgrid").send().await)["data"].clone();
    section.members("A provider with an API key", &keyed, &[("credentials", Kind::Object)]);
    let field = &keyed["credentials"]["apiKey"];
    section.members("A field of a form", field, &[("title", Kind::Text), ("description", Kind::Text)]);
    let unknown = get(host, "/providers/acme");
    section.rejects("`GET` of an unknown provider", unknown, 404, "unknown_provider").await;
    let templates = get(host, "/providers/hubspot/templates");
    let templates = section.returns("`GET /providers/{provider}/templates`", templates, 200).await;
    section.equal("The list of templates is empty", &body(&templates), json!({ "data": [] }));
    let unknown = get(host, "/providers/acme/templates");
    section.rejects("A request for templates of an unknown provider", unknown, 404, "unknown_provider").await;
}

async fn functions(section: &mut Section, host: &Host) {
    let path = "/integrations/minimal/functions";
    let listed = section.returns("`GET /integrations/{key}/functions`", get(host, path), 200).await;
    let listed = body(&listed);
    section.only_members(
        "The body of the list",
        &listed,
        &[("data", Kind::List), ("pagination", Kind::Object)],
    );
    let page = json!({ "total": 2, "page": 0, "limit": 20 });
    section.equal(
        "`pagination` has the total, the page and the limit, 20 by default",
        &listed["pagination"],
        page,
    );
    let names = async |query: &str| {
        let found = body(&get(host, &format!("{path}?{query}")).send().await);
        found["data"].as_array().into_iter().flatten().map(|one| one["name"].clone()).collect::<Vec<_>>()
    };
    for (statement, query, expected) in [
        ("`type=sync` selects syncs", "type=sync", json!(["numbers"])),
        ("`type=action` selects actions", "type=action", json!(["echo"])),
        ("`type=on-event` selects lifecycle functions", "type=on-event", json!([])),
        ("`search` finds functions by a part of their name", "search=umb", json!(["numbers"])),
        ("`limit` and `page` select a page", "limit=1&page=1", json!(["numbers"])),
        ("A page after the last one is empty", "page=9", json!([])),
    ] {
        section.equal(statement, &json!(names(query).await), expected);
    }
    for (name, query, place) in [
        ("An unknown `type`", "type=job", "type"),
        ("An empty `search`", "search=", "search"),
        ("A `search` of 256 characters", &format!("search={}", "x".repeat(256)), "search"),
        ("`limit=0`", "limit=0", "limit"),
        ("`limit=101`", "limit=101", "limit"),
        ("`page=-1`", "page=-1", "page"),
    ] {
        section.rejects_at(name, get(host, &format!("{path}?{query}")), QUERY, place).await;
    }
    let sync = section
        .returns("`GET /integrations/{key}/functions/{name}`", get(host, &format!("{path}/numbers")), 200)
        .await;
    let sync = body(&sync)["data"].clone();
    let common = [
        ("name", Kind::Text),
        ("type", Kind::Text),
        ("id", Kind::Integer),
        ("enabled", Kind::Boolean),
        ("last_deployed", Kind::Time),
        ("source", Kind::Text),
        ("returns", Kind::List),
        ("json_schema", Kind::Object),
    ];
    section.members("A deployed function", &sync, &common);
    let of_sync = [("runs", Kind::Text), ("auto_start", Kind::Boolean), ("track_deletes", Kind::Boolean)];
    section.members("A deployed sync", &sync, &of_sync);
    section.equal("`type` of a sync is `sync`", &sync["type"], "sync");
    section.equal("`source` of a function from a bundle is `repo`", &sync["source"], "repo");
    section.equal("`runs` of a sync is its frequency", &sync["runs"], "every 1 hour");
    section.equal("`returns` of a sync lists its models", &sync["returns"], json!(["Number"]));
    let action = body(&get(host, &format!("{path}/echo?type=action")).send().await)["data"].clone();
    section.equal("`type` of an action is `action`", &action["type"], "action");
    section.members("A deployed action", &action, &[("input", Kind::Text)]);
    let event = get(host, "/integrations/lifecycle/functions?type=on-event").send().await;
    let event = body(&event)["data"][0].clone();
    section.members("A deployed lifecycle function", &event, &[("event", Kind::Text)]);
    let missing = (404, "unknown_function");
    let unknown = get(host, &format!("{path}/dance"));
    section.rejects("`GET` of an unknown function", unknown, missing.0, missing.1).await;
    let other = get(host, &format!("{path}/numbers?type=action"));
    section.rejects("`GET` of a function with another type", other, missing.0, missing.1).await;
    let elsewhere = get(host, "/integrations/unknown/functions");
    section
        .rejects("A request for functions of an unknown integration", elsewhere, 404, "unknown_integration")
        .await;
    let code = get(host, &format!("{path}/numbers/code"));
    section.rejects("`GET` of a function's code", code, 501, "not_implemented").await;
    let deletion = delete(host, &format!("{path}/numbers?type=sync"));
    section.rejects("`DELETE` of a function", deletion, 501, "not_implemented").await;
}

async fn scripts(section: &mut Section, host: &Host) {
    let listed = section.returns("`GET /scripts/config`", get(host, "/scripts/config"), 200).await;
    let listed = body(&listed);
    section.holds("The body is a list of integrations", listed.as_array().map(Vec::len) == Some(2), &listed);
    let all = listed.as_array().cloned().unwrap_or_default();
    let minimal = all.into_iter().find(|one| one["providerConfigKey"] == "minimal").unwrap_or_default();
    let members = [
        ("providerConfigKey", Kind::Text),
        ("provider", Kind::Text),
        ("syncs", Kind::List),
        ("actions", Kind::List),
        ("on-events", Kind::List),
    ];
    section.members("An entry of the list", &minimal, &members);
    section.equal("`syncs` contains the syncs", &minimal["syncs"][0]["name"], "numbers");
    section.equal("`actions` contains the actions", &minimal["actions"][0]["name"], "echo");
    let function =
        [("name", Kind::Text), ("type", Kind::Text), ("returns", Kind::List), ("endpoints", Kind::List)];
    section.members("A function in the list", &minimal["syncs"][0], &function);
    let same = section.returns("`format=nango`", get(host, "/scripts/config?format=nango"), 200).await;
    section.equal("`nango` is the default format", &body(&same), listed.clone());
    let tools = section.returns("`format=openai`", get(host, "/scripts/config?format=openai"), 200).await;
    let tool = body(&tools)["data"][0].clone();
    let members = [("name", Kind::Text), ("description", Kind::Text), ("parameters", Kind::Object)];
    section.members("A tool", &tool, &members);
    section.equal("The parameters of a tool are an object's schema", &tool["parameters"]["type"], "object");
    section
        .rejects_at("An unknown `format`", get(host, "/scripts/config?format=yaml"), QUERY, "format")
        .await;
}

#[tokio::test]
async fn deployments() {
    let stage = Stage::numbers(1).await;
    let host: &Host = &stage.host;
    let mut section = Section::new("Deployments");
    let json = post(host, "/deployments", &json!({}));
    section.rejects("A bundle as JSON", json, 415, "invalid_content_type").await;
    let send = |path: &str, bytes: Vec<u8>| {
        host.request("POST", path).header("Content-Type", "application/x-tar").bytes(bytes)
    };
    let broken = send("/deployments", b"no bundle".to_vec());
    section.rejects("A body that is not a bundle", broken, 400, "invalid_bundle").await;
    let bundle = || Bundle::example("minimal").to_tar();
    let plan = section.returns("A dry run", send("/deployments?dry_run=true", bundle()), 200).await;
    let members =
        [("bundle", Kind::Text), ("changes", Kind::List), ("digest", Kind::Text), ("warnings", Kind::List)];
    section.members("The plan of a dry run", &body(&plan), &members);
    section.equal("A bundle that is deployed already changes nothing", &body(&plan)["changes"], json!([]));
    let more = Bundle::guest("hostile").to_tar();
    section.returns("A deployment", send("/deployments?accept_capabilities=true", more), 200).await;
    section.returns("Its integration exists", get(host, "/integrations/hostile"), 200).await;
    section.returns("Integrations of other bundles stay", get(host, "/integrations/minimal"), 200).await;
    let perhaps = send("/deployments?dry_run=perhaps", bundle());
    section.rejects_at("An invalid `dry_run`", perhaps, QUERY, "dry_run").await;
    let listed = section.returns("`GET /deployments`", get(host, "/deployments"), 200).await;
    section.members("The list of deployments", &body(&listed), &[("deployments", Kind::List)]);
    section.finish();
}
