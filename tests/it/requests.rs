//! Invalid requests: each is rejected with its own status and code, and the next request is served.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Api, Host, SECRET_KEY, Stage, TestDatabase, eventually};

/// The paths of the field errors of a response.
fn paths(answer: &Value) -> Vec<String> {
    let errors = answer["error"]["errors"].as_array().cloned().unwrap_or_default();
    let path = |error: &Value| {
        let path = error["path"].as_array().expect("a path is a list").iter();
        path.map(|part| part.as_str().expect("of text")).collect::<Vec<_>>().join(".")
    };
    errors.iter().map(path).collect()
}

#[tokio::test]
async fn invalid_json_and_invalid_bodies_have_different_codes() {
    let stage = Stage::hostile().await;
    let put = async |body: &'static str| {
        let request = stage
            .host
            .request("PUT", "/environment-variables/NAME")
            .header("Content-Type", "application/json");
        request.bytes(body).send().await
    };
    for body in
        ["", "{", "{\"value\": }", "{\"value\": \"x\"} trailing", "\u{feff}{}", "{\"value\": \"\\ud800\"}"]
    {
        assert_eq!(put(body).await.refusal(), (400, "invalid_json".to_owned()), "{body}");
    }
    for (body, path) in [
        ("{}", "value"),
        ("[]", ""),
        ("null", ""),
        ("{\"value\": 7}", "value"),
        ("{\"value\": null}", "value"),
        ("{\"value\": \"x\", \"other\": 1}", "other"),
    ] {
        let answer = put(body).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{body}");
        assert_eq!(paths(&answer.json()), [path], "{body}");
    }
    put("{\"value\": \"x\"}").await.expect(204);
}

#[tokio::test]
async fn too_deeply_nested_json_is_rejected() {
    let stage = Stage::hostile().await;
    let deep = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
    let post = async |path: &str, body: String| {
        let request = stage.request("POST", path).header("Content-Type", "application/json");
        request.bytes(body).send().await.refusal()
    };
    let metadata = format!(
        "{{\"provider_config_key\": \"hostile\", \"credentials\": {{\"type\": \"NONE\"}}, \"metadata\": {{\"deep\": {deep}}}}}"
    );
    assert_eq!(post("/connections", metadata).await, (400, "invalid_json".to_owned()));
    for action in ["print", "save-raw"] {
        let input = format!("{{\"action_name\": \"{action}\", \"input\": {deep}}}");
        assert_eq!(post("/action/trigger", input).await.0, 400, "{action}");
    }
    stage.host.get("/integrations").await.expect(200);
}

#[tokio::test]
async fn member_names_that_serde_interprets_are_rejected() {
    let stage = Stage::hostile().await;
    let post = async |method: &str, path: &str, body: &str| {
        let request = stage.request(method, path).header("Content-Type", "application/json");
        request.bytes(body.to_owned()).send().await
    };
    let none =
        r#""provider_config_key":"hostile","connection_id":"customer-1","credentials":{"type":"NONE"}"#;
    for reserved in [
        r#"{"$serde_json::private::RawValue":"{\"a\":1}"}"#,
        r#"{"\u0024serde_json::private::RawValue":"{\"a\":1}"}"#,
        r#"{"a":[{"$serde_json::private::Number":"1"}]}"#,
    ] {
        for (method, path, body) in [
            ("POST", "/connections", format!(r#"{{{none},"metadata":{reserved}}}"#)),
            ("POST", "/connections", format!(r#"{{{none},"connection_config":{{"a":{reserved}}}}}"#)),
            ("POST", "/connection/customer-1/metadata", reserved.to_owned()),
            (
                "POST",
                "/integrations",
                format!(r#"{{"provider":"hubspot","unique_key":"a","credentials":{reserved}}}"#),
            ),
            ("POST", "/action/trigger", format!(r#"{{"action_name":"save-raw","input":{reserved}}}"#)),
            (
                "POST",
                "/connect/sessions",
                format!(
                    r#"{{"tags":{{}},"integrations_config_defaults":{{"hostile":{{"connection_config":{reserved}}}}}}}"#
                ),
            ),
        ] {
            let answer = post(method, path, &body).await;
            assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{body}");
            assert!(answer.message().contains("reserved name"), "{body}: {}", answer.message());
        }
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"print","arguments":{reserved}}}}}"#
        );
        let answer = post("POST", "/mcp", &call).await.expect(400);
        assert!(answer.text().contains("reserved name"), "{}", answer.text());
    }

    // Text of functions stays text.
    let fields = r#"{"$serde_json::private::RawValue":"[1]"}"#;
    stage.action("log-fields", &json!(fields)).await.expect(200);
    let logged = eventually("the run is stored", async || {
        let run = stage.host.get("/runs?function=log-fields").await.expect(200).json()["runs"][0].clone();
        Some(run["id"].as_str()?.to_owned()).filter(|_| run["state"] == "success")
    })
    .await;
    let log = stage.host.get(&format!("/runs/{logged}/logs")).await.expect(200).json();
    let lines = log["logs"].as_array().expect("a list").iter();
    let stored: Vec<_> = lines.map(|line| &line["fields"]).filter(|fields| !fields.is_null()).collect();
    assert_eq!(stored, [&json!(fields)], "{log}");
    let record = format!(r#"[{{"id":"a","name":"x","more":{fields}}}]"#);
    stage.save_raw("Item", &record).await.expect(200);
    let records = stage.get_records(&[("model", "Item")]).await.expect(200).text();
    assert!(records.contains(fields), "{records}");
}

#[tokio::test]
async fn an_invalid_body_is_rejected_with_the_field() {
    let stage = Stage::hostile().await;
    let connection = |changes: Value| {
        let mut body = json!({ "provider_config_key": "hostile", "credentials": { "type": "NONE" } });
        for (name, value) in changes.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    };
    let trigger = |changes: Value| {
        let mut body = json!({ "provider_config_key": "hostile", "connection_id": stage.id, "syncs": [] });
        for (name, value) in changes.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    };
    for (path, body, field) in [
        ("/integrations", json!({ "provider": "unauthenticated" }), "unique_key"),
        ("/integrations", json!({ "provider": "unauthenticated", "unique_key": "a/b" }), "unique_key"),
        ("/integrations", json!({ "provider": "unauthenticated", "unique_key": 7 }), "unique_key"),
        ("/integrations", json!({ "provider": "no provider", "unique_key": "a" }), "provider"),
        (
            "/integrations",
            json!({ "provider": "unauthenticated", "unique_key": "a", "displayName": "A" }),
            "displayName",
        ),
        (
            "/integrations",
            json!({ "provider": "unauthenticated", "unique_key": "a", "display_name": "" }),
            "display_name",
        ),
        ("/connections", connection(json!({ "connection_id": "caf\u{e9}" })), "connection_id"),
        ("/connections", connection(json!({ "connection_id": "" })), "connection_id"),
        ("/connections", connection(json!({ "connection_id": "x".repeat(256) })), "connection_id"),
        ("/connections", connection(json!({ "credentials": "secret" })), "credentials"),
        ("/connections", connection(json!({ "credentials": {} })), "credentials.type"),
        (
            "/connections",
            connection(json!({ "credentials": { "type": "API_KEY", "apiKey": "k" } })),
            "credentials.type",
        ),
        (
            "/connections",
            connection(json!({ "credentials": { "type": "NONE", "apiKey": "k" } })),
            "credentials.apiKey",
        ),
        ("/connections", connection(json!({ "metadata": [] })), "metadata"),
        ("/connections", connection(json!({ "metadata": null })), "metadata"),
        ("/connections", connection(json!({ "tags": { "1st": "x" } })), "tags.1st"),
        ("/connections", connection(json!({ "tags": { "key": 7 } })), "tags.key"),
        ("/connections", connection(json!({ "end_user": { "email": "a@example.com" } })), "end_user.id"),
        (
            "/connections",
            connection(json!({ "webhook_url_override": "ftp://example.com" })),
            "webhook_url_override",
        ),
        ("/sync/trigger", json!({ "syncs": [], "connection_id": stage.id }), "provider_config_key"),
        ("/sync/trigger", json!({ "provider_config_key": "hostile" }), "syncs"),
        ("/sync/trigger", trigger(json!({ "syncs": "steps" })), "syncs"),
        ("/sync/trigger", trigger(json!({ "syncs": ["no name"] })), "syncs"),
        ("/sync/trigger", trigger(json!({ "syncs": ["steps", 1] })), "syncs.1"),
        ("/sync/trigger", trigger(json!({ "syncs": [["steps"]] })), "syncs.0"),
        ("/sync/trigger", trigger(json!({ "syncs": [{ "variant": "base" }] })), "syncs.0.name"),
        (
            "/sync/pause",
            trigger(json!({ "syncs": [{ "name": "steps", "variant": null }] })),
            "syncs.0.variant",
        ),
        (
            "/sync/start",
            trigger(json!({ "syncs": [{ "name": "steps", "variant": "base", "x": 1 }] })),
            "syncs.0.x",
        ),
        ("/sync/trigger", trigger(json!({ "syncs": vec!["steps"; 257] })), "syncs"),
        ("/sync/trigger", trigger(json!({ "opts": { "reset": "yes" } })), "opts.reset"),
        ("/sync/trigger", trigger(json!({ "opts": { "emptycache": true } })), "opts.emptycache"),
        ("/sync/trigger", trigger(json!({ "opts": {}, "full_resync": true })), "opts"),
        ("/sync/start", trigger(json!({ "opts": {} })), "opts"),
        ("/sync/pause", json!({ "syncs": [] }), "provider_config_key"),
    ] {
        let answer = stage.host.post(path, &body).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{path} {body}");
        assert_eq!(paths(&answer.json()), [field], "{path} {body}: {}", answer.text());
    }
}

#[tokio::test]
async fn an_invalid_query_is_rejected_with_the_parameter() {
    let stage = Stage::hostile().await;
    for (path, parameter) in [
        ("/records", "model"),
        ("/records?model=Item&modell=Item", "modell"),
        ("/records?model=Item&variant=no%20name", "variant"),
        ("/sync/status", "provider_config_key"),
        ("/sync/status?provider_config_key=hostile", "syncs"),
        ("/sync/status?provider_config_key=hostile&syncs=", "syncs"),
        ("/sync/status?provider_config_key=hostile&syncs=*&connection=x", "connection"),
        (&format!("/sync/status?provider_config_key=hostile&syncs={}", ["steps"; 257].join(",")), "syncs"),
        ("/connections?limit=0", "limit"),
        ("/connections?limit=ten", "limit"),
        ("/connections?page=-1", "page"),
        ("/connections?connection_id=x", "connection_id"),
        ("/connections/customer-1", "provider_config_key"),
        ("/connections/customer-1?provider_config_key=a/b", "provider_config_key"),
        ("/connections/customer-1?provider_config_key=hostile&force_refresh=perhaps", "force_refresh"),
        ("/integrations?provider=x", ""),
        ("/environment-variables?name=x", ""),
        ("/integrations/hostile/functions?limit=101", "limit"),
        ("/records?&", "model"),
        ("/deployments?dry_run=perhaps", "dry_run"),
    ] {
        let method = if path.starts_with("/deployments") { "POST" } else { "GET" };
        let answer = stage.request(method, path).send().await;
        assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "{path}");
        assert_eq!(paths(&answer.json()), [parameter], "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn missing_and_invalid_headers_are_rejected_by_name() {
    let stage = Stage::hostile().await;
    let get = |headers: &[(&str, &str)]| {
        let mut request = stage.host.request("GET", "/records?model=Item");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send()
    };
    for (headers, named) in [
        (&[][..], &["connection-id", "provider-config-key"][..]),
        (&[("Connection-Id", "customer-1")], &["provider-config-key"]),
        (&[("Provider-Config-Key", "hostile")], &["connection-id"]),
        (&[("Connection-Id", "customer-1"), ("Provider-Config-Key", "a/b")], &["provider-config-key"]),
        (&[("Connection-Id", ""), ("Provider-Config-Key", "hostile")], &["connection-id"]),
    ] {
        let answer = get(headers).await;
        assert_eq!(answer.refusal(), (400, "invalid_headers".to_owned()), "{headers:?}");
        assert_eq!(paths(&answer.json()), named, "{headers:?}");
    }
    get(&[("Connection-Id", "customer-1"), ("Provider-Config-Key", "hostile")]).await.expect(200);
}

#[tokio::test]
async fn a_sync_command_with_an_unreadable_header_affects_nothing() {
    let stage = Stage::hostile().await;
    stage.wait_until_idle().await;
    let runs = "SELECT count(*) FROM runs";
    let before = stage.db.number(runs).await;
    for (name, header) in [("connection-id", "Connection-Id"), ("provider-config-key", "Provider-Config-Key")]
    {
        for value in ["caf\u{e9}", "", "no\u{2028}way"] {
            let mut body =
                json!({ "provider_config_key": "hostile", "connection_id": "customer-1", "syncs": [] });
            body.as_object_mut().unwrap().remove(&name.replace('-', "_"));
            let request = stage.host.request("POST", "/sync/trigger").header(header, value).json(&body);
            let answer = request.send().await;
            assert_eq!(answer.refusal(), (400, "invalid_headers".to_owned()), "{header}: {value}");
            assert_eq!(paths(&answer.json()), [name]);
        }
    }
    let metadata = stage.host.request("POST", "/connection/customer-1/metadata");
    let metadata = metadata.header("Provider-Config-Key", "caf\u{e9}").json(&json!({})).send().await;
    assert_eq!(metadata.refusal(), (400, "invalid_headers".to_owned()));
    assert_eq!(stage.db.number(runs).await, before);
    let due = "SELECT count(*) FROM schedules WHERE due_at <= now()";
    assert_eq!(stage.db.number(due).await, 0);
}

#[tokio::test]
async fn invalid_path_parameters_are_rejected_with_json() {
    let stage = Stage::hostile().await;
    let body = json!({ "provider_config_key": "hostile", "connection_id": "customer-1" });
    for (method, path) in [
        ("POST", "/sync/steps/variant/%FF"),
        ("POST", "/sync/%FF/variant/second"),
        ("POST", "/sync/a%20b/variant/second"),
        ("POST", "/sync/steps/variant/a%20b"),
        ("DELETE", "/sync/steps/variant/%FF"),
        ("DELETE", "/sync/a%20b/variant/second"),
        ("GET", "/integrations/hostile/functions/%FF"),
        ("GET", "/webhook/%FF/hostile"),
        ("POST", "/webhook/%FF/hostile"),
        ("POST", "/webhook/123e4567-e89b-42d3-a456-426614174000/%FF"),
    ] {
        let mut request = stage.host.request(method, path);
        if path.starts_with("/sync/") {
            request = request.json(&body);
        }
        let answer = request.send().await;
        assert_eq!(answer.refusal(), (400, "invalid_uri_params".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn every_missing_resource_has_its_own_error_code() {
    let stage = Stage::hostile().await;
    let records = |integration: &str, connection: &str| {
        let request = stage.host.request("GET", "/records?model=Item");
        request.header("Provider-Config-Key", integration).header("Connection-Id", connection).send()
    };
    let trigger = |integration: &str, connection: &str, sync: &str| {
        let body =
            json!({ "provider_config_key": integration, "connection_id": connection, "syncs": [sync] });
        let host = &stage.host;
        async move { host.post("/sync/trigger", &body).await }
    };
    let unknown_provider =
        stage.host.post("/integrations", &json!({ "provider": "acme", "unique_key": "a" })).await;
    let body = json!({ "provider_config_key": "acme", "credentials": { "type": "NONE" } });
    for (answer, code) in [
        (records("hostile", "nobody").await, "unknown_connection"),
        (records("acme", "customer-1").await, "unknown_integration"),
        (trigger("hostile", "nobody", "steps").await, "unknown_connection"),
        (trigger("acme", "customer-1", "steps").await, "unknown_integration"),
        (trigger("hostile", "customer-1", "leaps").await, "unknown_sync"),
        (trigger("hostile", "customer-1", "steps::second").await, "unknown_variant"),
        (stage.control("pause", "steps::second").await, "unknown_variant"),
        (stage.control("start", "steps::second").await, "unknown_variant"),
        (
            stage
                .host
                .post(
                    "/sync/trigger",
                    &json!({ "provider_config_key": "hostile", "syncs": ["steps", "steps::second"] }),
                )
                .await,
            "unknown_variant",
        ),
        (
            stage.host.get("/sync/status?provider_config_key=hostile&syncs=steps,steps::second").await,
            "unknown_variant",
        ),
        (stage.action("dance", &Value::Null).await, "unknown_action"),
        (stage.action("steps", &Value::Null).await, "unknown_action"),
        (unknown_provider, "unknown_provider"),
        (stage.host.post("/connections", &body).await, "unknown_integration"),
        (stage.host.get("/connections/nobody?provider_config_key=hostile").await, "unknown_connection"),
        (stage.host.get("/connections/customer-1?provider_config_key=acme").await, "unknown_integration"),
    ] {
        assert_eq!(answer.refusal(), (404, code.to_owned()), "{}", answer.request);
    }
    let again = json!({ "provider": "unauthenticated", "unique_key": "hostile" });
    let duplicate = stage.host.post("/integrations", &again).await;
    assert_eq!(duplicate.refusal(), (409, "duplicate_integration".to_owned()));
}

#[tokio::test]
async fn an_unknown_route_is_a_json_404_and_an_unknown_method_a_405() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (method, path) in
        [("GET", "/"), ("GET", "/nothing/here"), ("POST", "/records/purge"), ("GET", "/records//")]
    {
        let answer = host.request(method, path).send().await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{method} {path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    for (method, path, allowed) in [
        ("POST", "/records", "GET, HEAD"),
        ("GET", "/records/prune", "PATCH"),
        ("DELETE", "/sync/trigger", "POST"),
        ("GET", "/environment-variables/NAME", "DELETE, PUT"),
        ("PATCH", "/integrations", "GET, HEAD, POST"),
        // Routes that the OpenAPI document does not list.
        ("PUT", "/", "GET, HEAD"),
        ("PUT", "/openapi.json", "GET, HEAD"),
        ("PUT", "/metrics", "GET, HEAD"),
        ("PUT", "/images/template-logos/x.svg", "GET, HEAD"),
        ("PUT", "/connect/", "GET, HEAD"),
        ("PUT", "/connection/x", "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/integrations/quickstart", "DELETE, GET, HEAD, PATCH, POST"),
        ("PUT", "/integrations/x/functions/y", "DELETE, GET, HEAD"),
        ("PUT", "/integrations/x/functions/y/code", "GET, HEAD"),
    ] {
        let answer = host.request(method, path).send().await;
        assert_eq!(answer.refusal(), (405, "method_not_allowed".to_owned()), "{method} {path}");
        let mut methods: Vec<&str> =
            answer.header("allow").unwrap_or_default().split(',').map(str::trim).collect();
        methods.sort_unstable();
        assert_eq!(methods.join(", "), allowed, "{method} {path}");
    }
}

#[tokio::test]
async fn an_unsupported_content_type_is_rejected() {
    let stage = Stage::hostile().await;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", "nonsense"] {
        let request = stage.host.request("POST", "/sync/trigger").header("Content-Type", content_type);
        let answer = request.bytes("{}").send().await;
        assert_eq!(answer.refusal(), (415, "invalid_content_type".to_owned()), "{content_type}");
    }
    let deployment = stage.host.request("POST", "/deployments").header("Content-Type", "application/json");
    assert_eq!(deployment.bytes("{}").send().await.refusal(), (415, "invalid_content_type".to_owned()));
    for content_type in ["application/json; charset=utf-8", "Application/JSON"] {
        let request =
            stage.host.request("PUT", "/environment-variables/NAME").header("Content-Type", content_type);
        request.bytes("{\"value\": \"x\"}").send().await.expect(204);
    }
}

#[tokio::test]
async fn a_request_needs_a_valid_key() {
    let stage = Stage::hostile().await;
    let generated = format!("sk_syncline_{}", "A".repeat(51));
    for (key, code) in [
        (None, "missing_auth_header"),
        (Some(""), "malformed_auth_header"),
        (Some("short"), "invalid_secret_key_format"),
        (Some(&*generated), "invalid_secret_key_format"),
        (Some("a-key-that-nobody-has-made"), "unknown_account"),
        (Some(&SECRET_KEY.to_uppercase()), "unknown_account"),
    ] {
        for path in ["/integrations", "/records?model=Item"] {
            let answer = stage.through(&stage.host.with_key(key)).request("GET", path).send().await;
            assert_eq!(answer.refusal(), (401, code.to_owned()), "{path} with key {key:?}");
        }
    }
    // A client without a key learns nothing about other errors in its request.
    let anonymous = stage.host.with_key(None);
    let answer = anonymous
        .request("POST", "/sync/trigger")
        .header("Content-Type", "text/plain")
        .bytes("x")
        .send()
        .await;
    assert_eq!(answer.refusal(), (401, "missing_auth_header".to_owned()));
    for open in ["/health", "/ready", "/openapi.json"] {
        anonymous.get(open).await.expect(200);
    }
}

#[tokio::test]
async fn a_key_works_with_and_without_its_scheme() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let keyless = host.with_key(None);
    for header in [format!("Bearer {SECRET_KEY}"), format!("bearer {SECRET_KEY}"), SECRET_KEY.to_owned()] {
        keyless.request("GET", "/integrations").header("Authorization", &header).send().await.expect(200);
    }
    // The header that `curl -u key:` sends.
    let answer =
        keyless.request("GET", "/integrations").header("Authorization", "Basic cGxhbnRlZDo=").send().await;
    assert_eq!(answer.refusal(), (401, "malformed_auth_header".to_owned()));
    assert_eq!(answer.message(), "the Authorization header must be `Bearer <secret key>`");
}

/// Announces a body of this length, sends nothing of it, and returns the response as text.
async fn announce(api: &Api, head: &str, length: usize) -> String {
    let address = api.base_url().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("the host listens");
    let request = format!(
        "{head} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {SECRET_KEY}\r\nConnection-Id: customer-1\r\n\
         Provider-Config-Key: hostile\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("the host reads");
    let mut answer = String::new();
    while !answer.ends_with("}}") {
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).await.expect("the host answers");
        assert!(read > 0, "the answer ends early: {answer}");
        answer += &String::from_utf8_lossy(&bytes[..read]);
    }
    answer
}

/// Sends a request without a body, and reads until the host disconnects.
async fn send_head(host: &Host, first_line: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
    let head = format!("{first_line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.expect("the host reads");
    let mut answer = Vec::new();
    // The host may disconnect before it has read the whole head, which the client sees as a reset.
    let _ended = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn an_oversized_request_head_is_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let query = |length: usize| format!("GET /health?{}", "x".repeat(length));
    let header = |length: usize| format!("X-Long: {}\r\n", "x".repeat(length));
    let headers = |count: usize| (0..count).map(|number| format!("X-{number}: x\r\n")).collect::<String>();
    for (first_line, headers, status) in [
        (query(0), header(60_000), 200),
        (query(0), header(66_000), 431),
        (query(60_000), String::new(), 200),
        (query(40_000), header(40_000), 431),
        // `Host` and `Connection` count, too.
        (query(0), headers(98), 200),
        (query(0), headers(99), 431),
    ] {
        let answer = send_head(&host, &first_line, &headers).await;
        let asked = (first_line.len(), headers.len());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{asked:?}: {answer}");
        if status == 431 {
            assert!(answer.ends_with("\r\n\r\n"), "it has no body: {answer}");
        }
    }
    host.get("/health").await.expect(200);
}

#[tokio::test]
async fn an_oversized_body_is_rejected_before_it_is_read() {
    let stage = Stage::hostile().await;
    for (head, length) in [
        ("POST /action/trigger", 76 << 20),
        ("PATCH /records/prune", 76 << 20),
        ("POST /deployments", 257 << 20),
    ] {
        let answer = announce(&stage.host, head, length).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{head}: {answer}");
        assert!(answer.contains("\"payload_too_large\""), "{head}: {answer}");
    }
}

#[tokio::test]
async fn an_error_response_reaches_a_client_that_is_still_sending() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let anonymous = host.with_key(None);
    for _ in 0..10 {
        let answer = anonymous.post_bundle(vec![0; 8 << 20], false).await;
        assert_eq!(answer.refusal(), (401, "missing_auth_header".to_owned()));
    }
}

#[tokio::test]
async fn nul_characters_are_rejected_or_replaced() {
    let stage = Stage::hostile().await;
    let fail = json!({ "code": "odd", "message": "before\u{0}after", "details": { "a\u{0}": "b\u{0}" } });
    stage.action("fail", &fail).await.expect(400);
    stage.action("fail", &json!({ "code": "plain", "message": "neighbour" })).await.expect(400);
    let written = eventually("both runs are stored", async || {
        let runs =
            stage.db.texts("SELECT error_message FROM runs WHERE kind = 'action' ORDER BY started_at").await;
        (runs.len() == 2).then_some(runs)
    });
    assert_eq!(written.await, ["before\u{fffd}after", "neighbour"]);

    let import = json!({
        "provider_config_key": "hostile", "credentials": { "type": "NONE" }, "metadata": { "a": "\u{0}" },
    });
    assert_eq!(stage.host.post("/connections", &import).await.refusal(), (400, "invalid_body".to_owned()));
    let search = stage.host.get("/connections?search=%00").await;
    assert_eq!(search.refusal(), (400, "invalid_query_params".to_owned()));
    let path = stage.host.get("/connections/%FF?provider_config_key=hostile").await;
    assert_eq!(path.refusal(), (400, "invalid_uri_params".to_owned()));
}
