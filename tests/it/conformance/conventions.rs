//! Statements about every request: errors, content types, query strings, CORS, and routes without a key.

use serde_json::json;

use super::support::{Kind, Section, body, get, post, put};
use crate::support::{Host, HostOptions, Stage, TestDatabase};

#[tokio::test]
async fn conventions() {
    let stage = Stage::hostile().await;
    let mut section = Section::new("Conventions of all requests");
    errors(&mut section, &stage.host).await;
    bodies(&mut section, &stage.host).await;
    queries(&mut section, &stage.host).await;
    cross_origin(&mut section, &stage.host).await;
    open_routes(&mut section, &stage.host).await;
    section.finish();
}

async fn errors(section: &mut Section, host: &Host) {
    let unknown =
        section.rejects("`GET` of an unknown route", get(host, "/nothing/here"), 404, "not_found").await;
    section.header("The response of an unknown route", &unknown, "content-type", "application/json");
    section.only_members("The body of an error", &body(&unknown), &[("error", Kind::Object)]);
    let error = body(&unknown)["error"].clone();
    section.only_members("An error", &error, &[("code", Kind::Text), ("message", Kind::Text)]);
    let id = unknown.header("x-request-id");
    section.holds("Every response has the header `X-Request-Id`", id.is_some_and(|id| !id.is_empty()), &id);

    let method = host.request("DELETE", "/records");
    let refused =
        section.rejects("A method that a route does not accept", method, 405, "method_not_allowed").await;
    section.header("A 405 response", &refused, "allow", "GET,HEAD");

    let invalid = post(host, "/integrations", &json!({}));
    let refused = section.rejects("A body without required members", invalid, 400, "invalid_body").await;
    let error = &body(&refused)["error"];
    section.members(
        "An error about a body",
        error,
        &[("code", Kind::Text), ("message", Kind::Text), ("errors", Kind::List)],
    );
    let first = &error["errors"][0];
    let members = [("code", Kind::Text), ("message", Kind::Text), ("path", Kind::List)];
    section.only_members("An entry of `errors`", first, &members);
    section.equal("`path` of an entry is a list of strings", &first["path"], json!(["provider"]));
    section.equal("A missing member has the code `invalid_type` in `errors`", &first["code"], "invalid_type");

    let head = host.request("HEAD", "/integrations");
    let head = section.returns("`HEAD` of a route with `GET`", head, 200).await;
    section.empty("The response to a `HEAD` request", &head);
}

async fn bodies(section: &mut Section, host: &Host) {
    let send = |content_type: &str, body: &'static str| {
        host.request("POST", "/sync/pause").header("Content-Type", content_type).bytes(body)
    };
    let good = r#"{"provider_config_key":"hostile","syncs":[]}"#;
    section
        .returns("A body with `Content-Type: application/json`", send("application/json", good), 200)
        .await;
    let with_charset = send("application/json; charset=utf-8", good);
    section.returns("A body with `Content-Type: application/json; charset=utf-8`", with_charset, 200).await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/xml"] {
        let name = format!("A body with `Content-Type: {content_type}`");
        section.rejects(&name, send(content_type, good), 415, "invalid_content_type").await;
    }
    for (name, broken) in [
        ("A body that is cut off", r#"{"provider_config_key":"#),
        ("A body that is not JSON", "syncs=all"),
        ("A body with text after the JSON value", r#"{"provider_config_key":"hostile","syncs":[]} x"#),
    ] {
        section.rejects(name, send("application/json", broken), 400, "invalid_json").await;
    }
    let list = send("application/json", r"[]");
    section.rejects("A list in place of an object", list, 400, "invalid_body").await;
    let unknown = send("application/json", r#"{"provider_config_key":"hostile","syncs":[],"more":1}"#);
    let refused =
        section.rejects_at("A body with an unknown member", unknown, (400, "invalid_body"), "more").await;
    let code = &body(&refused)["error"]["errors"][0]["code"];
    section.equal(
        "An unknown member has the code `unrecognized_keys` in `errors`",
        code,
        "unrecognized_keys",
    );
    let long = json!({ "action_name": "print", "input": "x" }).to_string();
    let compressed = host.request("POST", "/sync/pause").header("Content-Type", "application/json");
    let compressed = compressed.header("Content-Encoding", "gzip").bytes(long);
    section.rejects("A compressed body", compressed, 415, "invalid_content_encoding").await;
    let oversize =
        put(host, "/sync/update-connection-frequency", &json!({ "frequency": "x".repeat(70_000) }));
    section.rejects("A body above the limit of its route", oversize, 413, "payload_too_large").await;
    let get_with_type = get(host, "/integrations").header("Content-Type", "application/json");
    section.returns("A `GET` request with `Content-Type` and without a body", get_with_type, 200).await;
}

async fn queries(section: &mut Section, host: &Host) {
    for path in ["/integrations", "/environment-variables", "/connections", "/providers", "/environment"] {
        let name = format!("`GET {path}` with an unknown query parameter");
        let request = get(host, &format!("{path}?surprise=1"));
        section.rejects(&name, request, 400, "invalid_query_params").await;
    }
    for path in ["/sync/pause?x=1", "/sync/trigger?x=1", "/sync/start?x=1", "/connections?x=1"] {
        let name = format!("`POST {}` with a query parameter", path.trim_end_matches("?x=1"));
        let request = post(host, path, &json!({ "provider_config_key": "hostile", "syncs": [] }));
        section.rejects(&name, request, 400, "invalid_query_params").await;
    }
    let flag = |value: &str| {
        get(host, &format!("/connections/customer-1?provider_config_key=hostile&refresh_token={value}"))
    };
    for value in ["true", "false", "1", "0", "yes", "no", "on", "off", "y", "n", "enabled", "disabled"] {
        section.returns(&format!("The boolean query parameter `{value}`"), flag(value), 200).await;
    }
    let refused = flag("maybe");
    let place = "refresh_token";
    section
        .rejects_at("A boolean query parameter `maybe`", refused, (400, "invalid_query_params"), place)
        .await;
    let twice = get(host, "/connections?limit=1&limit=2");
    section.rejects_at("A repeated parameter", twice, (400, "invalid_query_params"), "limit").await;
    let encoded = get(host, "/connections?tags%5Bplan%5D=pro");
    section.returns("A query with percent-encoded brackets", encoded, 200).await;
    let path = get(host, "/connections/%FF?provider_config_key=hostile");
    section.rejects("A path that is not UTF-8", path, 400, "invalid_uri_params").await;
    for name in ["Nango-Is-Sync", "Nango-Is-Script", "Nango-Is-Dry-Run"] {
        let request = get(host, "/integrations").header(name, "false");
        section.returns(&format!("A request with the client's header `{name}`"), request, 200).await;
    }
}

async fn cross_origin(section: &mut Section, host: &Host) {
    let anonymous = host.with_key(None);
    let preflight =
        anonymous.request("OPTIONS", "/connect/session").header("Origin", "https://app.example.com");
    let preflight = preflight.header("Access-Control-Request-Method", "GET");
    let answer = section.returns("A CORS preflight request without a key", preflight, 200).await;
    section.header("A preflight response", &answer, "access-control-allow-origin", "*");
    section.header("A preflight response", &answer, "access-control-max-age", "600");
    let allowed = answer.header("access-control-allow-headers").unwrap_or_default().to_owned();
    let is_allowed = |name: &str| allowed.split(',').any(|one| one.trim().eq_ignore_ascii_case(name));
    for name in [
        "Authorization",
        "Content-Type",
        "Accept",
        "Origin",
        "X-Requested-With",
        "Provider-Config-Key",
        "Connection-Id",
        "Sentry-Trace",
        "Baggage",
    ] {
        section.holds(
            &format!("A preflight response allows the header `{name}`"),
            is_allowed(name),
            &allowed,
        );
    }
    let methods = answer.header("access-control-allow-methods").unwrap_or_default();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let is_allowed = methods.split(',').any(|one| one.trim() == method);
        section.holds(&format!("A preflight response allows the method `{method}`"), is_allowed, &methods);
    }
    let request = get(&anonymous, "/health").header("Origin", "https://app.example.com");
    let answer = section.returns("`GET /health` from another origin", request, 200).await;
    section.header("A response", &answer, "access-control-allow-origin", "*");
    let exposed = answer.header("access-control-expose-headers").unwrap_or_default().to_owned();
    for name in ["authorization", "etag", "content-type", "content-length"] {
        let is_exposed = exposed.split(',').any(|one| one.trim().eq_ignore_ascii_case(name));
        section.holds(&format!("A response exposes the header `{name}`"), is_exposed, &exposed);
    }
}

async fn open_routes(section: &mut Section, host: &Host) {
    let anonymous = host.with_key(None);
    let health = section.returns("`GET /health` without a key", get(&anonymous, "/health"), 200).await;
    section.equal(
        "The body of `GET /health` is `{\"result\": \"ok\"}`",
        &body(&health),
        json!({ "result": "ok" }),
    );
    for path in ["/ready", "/openapi.json", "/docs", "/metrics", "/connect/"] {
        section.returns(&format!("`GET {path}` without a key"), get(&anonymous, path), 200).await;
    }
    let document = body(&get(&anonymous, "/openapi.json").send().await);
    let version = document["openapi"].as_str();
    section.holds("`GET /openapi.json` returns an OpenAPI document", version.is_some(), &version);
    section.equal(
        "The OpenAPI document names its error schema",
        &document["components"]["schemas"]["ErrorBody"]["type"],
        "object",
    );
}

#[tokio::test]
async fn request_limits() {
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_KEY", "5");
    let host = options.spawn().await;
    let mut section = Section::new("Limits of requests");
    let mut answers = Vec::new();
    for _ in 0..12 {
        answers.push(get(&host, "/integrations").send().await);
    }
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    section.holds("A key can send as many requests per minute as the operator allows", served >= 5, &served);
    let Some(refused) = answers.iter().find(|answer| answer.status != 200) else {
        section.holds("Further requests are rejected", false, &served);
        return section.finish();
    };
    section.equal("Further requests return 429", &json!(refused.status.as_u16()), 429);
    section.equal("Their code is `too_many_request`", &body(refused)["error"]["code"], "too_many_request");
    let seconds: Option<u64> = refused.header("retry-after").and_then(|text| text.parse().ok());
    let is_short = seconds.is_some_and(|seconds| (1..=60).contains(&seconds));
    section.holds("A 429 response has `Retry-After` in seconds, at most a minute", is_short, &seconds);
    let anonymous = host.with_key(None);
    section.returns("`GET /health` beyond the limit", get(&anonymous, "/health"), 200).await;
    section.finish();
}
