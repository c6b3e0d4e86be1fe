//! Statements about requests through the proxy.

use serde_json::{Value, json};

use super::support::{Section, body, get, string};
use crate::support::{Answer, PROVIDER_KEY, Provider, Request};

#[tokio::test]
async fn proxy() {
    let provider = Provider::start().await;
    let mut section = Section::new("Proxy");
    requests(&mut section, &provider).await;
    responses(&mut section, &provider).await;
    retries(&mut section, &provider).await;
    invalid(&mut section, &provider).await;
    section.finish();
}

fn send(provider: &Provider, method: &str, path: &str) -> Request {
    provider.connection.request(method, &format!("/proxy{path}"))
}

/// The header that the provider received, or null.
fn received(answer: &Answer, name: &str) -> Value {
    body(answer)["headers"][name].clone()
}

async fn requests(section: &mut Section, provider: &Provider) {
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let answer = section
            .returns(&format!("`{method} /proxy/{{path}}`"), send(provider, method, "/v1/things"), 200)
            .await;
        section.equal(
            &format!("The provider receives the method `{method}`"),
            &body(&answer)["method"],
            method,
        );
    }
    let path = "/v1/a%2Fb%20c?x=%20y&tags[]=1&tags[]=2&e";
    let answer = send(provider, "GET", path).send().await;
    section.equal(
        "The provider receives the path and the query unchanged",
        &body(&answer)["target"],
        format!("/api{path}"),
    );
    section.equal(
        "The provider receives the connection's credentials",
        &received(&answer, "x-api-key"),
        PROVIDER_KEY,
    );
    for name in ["authorization", "connection-id", "provider-config-key"] {
        section.equal(
            &format!("The provider does not receive `{name}`"),
            &received(&answer, name),
            Value::Null,
        );
    }
    for body_text in [r#"{"a": 1.50}"#, "plain text"] {
        let request =
            send(provider, "POST", "/v1/things").header("Content-Type", "application/json").bytes(body_text);
        let answer = request.send().await;
        section.equal(
            &format!("The provider receives the body `{body_text}` unchanged"),
            &body(&answer)["body"],
            body_text,
        );
    }
    for content_type in [
        "application/x-www-form-urlencoded",
        "text/xml",
        "application/octet-stream",
        "multipart/form-data; boundary=x",
    ] {
        let request = send(provider, "POST", "/v1/things").header("Content-Type", content_type).bytes("a=b");
        let answer = section.returns(&format!("A body of the type `{content_type}`"), request, 200).await;
        section.equal(
            &format!("The provider receives the type `{content_type}`"),
            &received(&answer, "content-type"),
            content_type,
        );
    }
    let request =
        send(provider, "GET", "/v1/things").header("Nango-Proxy-X-Tenant", "t-1").header("X-Other", "x");
    let answer = request.send().await;
    section.equal("A header `Nango-Proxy-<Name>` is sent as `<Name>`", &received(&answer, "x-tenant"), "t-1");
    section.equal("Other headers are not sent", &received(&answer, "x-other"), Value::Null);
    let request = send(provider, "GET", "/v1/things").header("NANGO-PROXY-ACCEPT", "application/xml");
    section.equal("The prefix ignores case", &received(&request.send().await, "accept"), "application/xml");
    let full = format!("/{}/v1/full", provider.server.base_url());
    let answer = section.returns("A full URL at the provider", send(provider, "GET", &full), 200).await;
    section.equal("The base URL of a full URL is not repeated", &body(&answer)["target"], "/api/v1/full");
    let empty = send(provider, "GET", "/v1/things").header("Base-Url-Override", "");
    section.returns("An empty `Base-Url-Override`", empty, 200).await;
    let own = send(provider, "GET", "/v2").header("Base-Url-Override", &provider.server.base_url());
    section.returns("A `Base-Url-Override` at the provider", own, 200).await;
    for (name, value) in [
        ("Retries", "0"),
        ("Retry-On", "404,409"),
        ("Decompress", "true"),
        ("Decompress", "false"),
        ("Forward-Headers-On-Redirect", "true"),
        ("Nango-Activity-Log-Id", ""),
        ("Nango-Is-Sync", "true"),
        ("Nango-Is-Dry-Run", "false"),
    ] {
        let request = send(provider, "GET", "/v1/things").header(name, value);
        section.returns(&format!("The header `{name}: {value}`"), request, 200).await;
    }
}

async fn responses(section: &mut Section, provider: &Provider) {
    let answer = send(provider, "GET", "/v1/things").send().await;
    section.header("A response of the provider", &answer, "syncline-proxied", "true");
    section.header("A response of the provider", &answer, "content-type", "application/json");
    section.header("A response of the provider", &answer, "x-request-id", "of-the-provider");
    section.header("A response of the provider", &answer, "x-of-provider", "1");
    for status in [400, 401, 404, 422, 500, 503] {
        let request = send(provider, "GET", &format!("/refuse?{status}"));
        let answer = section.returns(&format!("A provider's response with {status}"), request, status).await;
        let has_body = body(&answer)["target"] == format!("/api/refuse?{status}");
        section.holds(&format!("The body of a {status} is the provider's"), has_body, &answer.text());
    }
    let long = send(provider, "GET", "/long?3000000");
    let answer = section.returns("A response of 3 MB", long, 200).await;
    section.equal("A long response is complete", &json!(answer.body.len()), 3_000_000);
    let members = send(provider, "GET", "/members").header("Decompress", "true");
    let answer = members.send().await;
    section.holds(
        "`Decompress: true` decompresses the response",
        answer.text() == "one;two;",
        &answer.text(),
    );
    let plain = send(provider, "GET", "/members").send().await;
    section.holds(
        "Without `Decompress`, the bytes are unchanged",
        plain.body.starts_with(&[0x1f, 0x8b]),
        &plain.body.len(),
    );
    let redirect = format!("/redirect?302={}/v1/moved", provider.server.base_url());
    let answer = section.returns("A redirect at the provider", send(provider, "GET", &redirect), 200).await;
    section.equal("A redirect is followed", &body(&answer)["target"], "/api/v1/moved");
    section.equal(
        "A redirect at the provider keeps the credentials",
        &received(&answer, "x-api-key"),
        PROVIDER_KEY,
    );
    let looping = send(provider, "GET", "/loop");
    section.rejects("A request with more than five redirects", looping, 502, "too_many_redirects").await;
    section
        .rejects(
            "A provider that breaks the connection",
            send(provider, "GET", "/cut-early"),
            502,
            "upstream_failed",
        )
        .await;
}

async fn retries(section: &mut Section, provider: &Provider) {
    let failing = send(provider, "GET", "/flaky?503");
    section.returns("A 503 without `Retries`", failing, 503).await;
    let other = Provider::start().await;
    let retried = send(&other, "GET", "/flaky?503").header("Retries", "1");
    section.returns("A 503 with `Retries: 1`", retried, 200).await;
    let sent = other.server.seen.requests().len();
    section.equal("The request is sent twice", &json!(sent), 2);
    let other = Provider::start().await;
    let retried = send(&other, "GET", "/flaky?404").header("Retries", "1").header("Retry-On", "404,409");
    section.returns("A 404 with `Retries: 1` and `Retry-On: 404,409`", retried, 200).await;
    let other = Provider::start().await;
    let final_status = send(&other, "GET", "/flaky?404").header("Retries", "1");
    section.returns("A 404 with `Retries: 1` and without `Retry-On`", final_status, 404).await;
}

async fn invalid(section: &mut Section, provider: &Provider) {
    let host = &provider.host;
    let invalid = (400, "invalid_headers");
    section
        .rejects_at("A request without both headers", get(host, "/proxy/v1"), invalid, "connection-id")
        .await;
    let lacking = get(host, "/proxy/v1").header("Connection-Id", "customer-1");
    section
        .rejects_at("A request without `Provider-Config-Key`", lacking, invalid, "provider-config-key")
        .await;
    for (name, value) in [
        ("retries", "many"),
        ("retries", "-1"),
        ("retry-on", "4xx"),
        ("decompress", "perhaps"),
        ("forward-headers-on-redirect", "2"),
        ("base-url-override", "example.com"),
        ("nango-is-sync", "maybe"),
    ] {
        let request = send(provider, "GET", "/v1").header(name, value);
        section.rejects_at(&format!("The header `{name}: {value}`"), request, invalid, name).await;
    }
    let long = send(provider, "GET", "/v1").header("Nango-Activity-Log-Id", &"x".repeat(256));
    section.rejects("A `Nango-Activity-Log-Id` of 256 characters", long, 400, "invalid_headers").await;
    let before = provider.server.seen.requests().len();
    let unknown = provider.connection.with_id("unknown");
    let unknown = unknown.request("GET", "/proxy/v1");
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = provider.connection.to("unknown");
    section
        .rejects("An unknown integration", unknown.request("GET", "/proxy/v1"), 404, "unknown_integration")
        .await;
    let elsewhere = send(provider, "GET", "/v1").header("Base-Url-Override", "https://example.com");
    let code = "base_url_override_not_allowed";
    section.rejects("A `Base-Url-Override` at another host", elsewhere, 400, code).await;
    let elsewhere = send(provider, "GET", "/https://example.com/v1");
    section.rejects("A full URL at another host", elsewhere, 400, "host_not_allowed").await;
    let forged = send(provider, "GET", "/v1").header("Nango-Proxy-X-Api-Key", "mine");
    section.rejects("A header that carries the credentials", forged, 400, "invalid_proxy_request").await;
    let address = send(provider, "GET", "/v1").header("Nango-Proxy-Host", "example.com");
    section.rejects("The header `Nango-Proxy-Host`", address, 400, "invalid_proxy_request").await;
    let after = provider.server.seen.requests().len();
    section.equal("Rejected requests do not reach the provider", &json!(after), before);
    let trace = send(provider, "TRACE", "/v1");
    section.rejects("The method `TRACE`", trace, 405, "method_not_allowed").await;
    let refused = send(provider, "GET", "/v1").header("Retries", "many").send().await;
    let is_marked = refused.header("syncline-proxied").is_some();
    section.holds(
        "An error of the host lacks the header `Syncline-Proxied`",
        !is_marked,
        &string(&body(&refused)["error"]["code"]),
    );
}
