//! `POST /mcp`: the actions of a connection as tools.

use serde_json::{Value, json};

use crate::support::{
    Answer, Api, Bundle, Connection, Host, HostOptions, SECRET_KEY, SlowProvider, Stage, TestDatabase,
    repository, text,
};

/// Connects the published client, which then lists tools (`null`) or calls them. Returns the responses, preceded by the
/// server's description of itself.
async fn run_client(api: &Api, connection: &Connection, calls: Value) -> Vec<Value> {
    let output = tokio::process::Command::new("node")
        .arg("mcp_client.mjs")
        .current_dir(repository("tests/node"))
        .env("MCP_URL", format!("{}/mcp", api.base_url()))
        .env("MCP_KEY", SECRET_KEY)
        .env("MCP_CONNECTION", &connection.id)
        .env("MCP_INTEGRATION", &connection.integration)
        .env("MCP_CALLS", calls.to_string())
        .output()
        .await
        .expect("Node.js is not installed; `scripts/setup` says how to get it");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    serde_json::from_slice(&output.stdout).expect("the script prints a list")
}

async fn post(connection: &Connection, body: &str) -> Answer {
    let request = connection.request("POST", "/mcp").header("Content-Type", "application/json");
    request.bytes(body.to_owned()).send().await
}

async fn call(connection: &Connection, tool: &str, arguments: &str) -> Answer {
    let params = format!(r#"{{"name": "{tool}", "arguments": {arguments}}}"#);
    post(connection, &format!(r#"{{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {params}}}"#))
        .await
}

fn rpc_error(answer: &Answer) -> (u16, i64) {
    (answer.status.as_u16(), answer.json()["error"]["code"].as_i64().expect("it is an error of JSON-RPC"))
}

#[tokio::test]
async fn a_published_client_lists_tools_and_calls_them() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let integration = json!({ "provider": "unauthenticated", "unique_key": "minimal" });
    host.post("/integrations", &integration).await.expect(200);
    let connection = host.connect_as("ada", "minimal", json!({ "count": 0 })).await;
    let before = run_client(&host, &connection, json!([{}])).await;
    assert_eq!(before[0]["server"]["name"], "syncline");
    assert_eq!(before[0]["capabilities"], json!({ "tools": {} }));
    assert!(text(&before[0]["instructions"]).contains("`ada`"));
    assert_eq!(before[1]["tools"], json!([]), "nothing is deployed yet");

    let bundle = Bundle::example("minimal")
        .replace(
            "[integrations.minimal]\n",
            "[models.Order]\nnumber = \"integer\"\nnote = \"string?\"\n\n[integrations.minimal]\n",
        )
        .replace(
            "input = \"json\"\noutput = \"json\"",
            "description = \"Gives an order back.\"\ninput = \"Order\"\noutput = \"Order\"",
        );
    host.deploy(&bundle).await;
    let calls = json!([
        {},
        { "tool": "echo", "arguments": { "number": 7, "note": "soon" } },
        { "tool": "echo", "arguments": { "number": "seven" } },
        { "tool": "dance", "arguments": {} },
        { "tool": "numbers", "arguments": {} },
    ]);
    let answers = run_client(&host, &connection, calls).await;
    let schema = json!({
        "type": "object",
        "properties": {
            "number": { "type": "integer" },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        },
        "required": ["number"],
    });
    let tools = answers[1]["tools"].as_array().expect("tools are a list");
    assert_eq!(tools.len(), 1, "{tools:?}");
    assert_eq!(
        (&tools[0]["name"], &tools[0]["description"]),
        (&json!("echo"), &json!("Gives an order back."))
    );
    for member in ["inputSchema", "outputSchema"] {
        let mut given = tools[0][member].clone();
        given.as_object_mut().expect("a schema is an object").remove("$defs");
        assert_eq!(given, schema, "{member}");
    }
    assert_eq!(answers[2]["structuredContent"], json!({ "number": 7, "note": "soon" }));
    assert_eq!(answers[2]["content"][0]["type"], "text");
    assert_eq!(answers[3]["isError"], true);
    assert!(text(&answers[3]["content"][0]["text"]).contains("input model"), "{}", answers[3]);
    for unknown in [&answers[4], &answers[5]] {
        assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
        assert!(text(&unknown["error"]["message"]).contains("does not exist"), "{unknown}");
    }
}

#[tokio::test]
async fn values_are_passed_through_unchanged() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::example("minimal")).await;
    let connection = host.connect_as("ada", "minimal", json!({ "count": 0 })).await;
    let answer = call(&connection, "echo", r#"{"input": [12345678901234567890123, "ü"]}"#).await.expect(200);
    let result = &answer.json()["result"];
    assert_eq!(result["content"], json!([{ "type": "text", "text": "[12345678901234567890123, \"ü\"]" }]));
    assert_eq!(result.get("structuredContent"), None, "the action does not declare an object as its output");
}

#[tokio::test]
async fn structured_content_is_the_output_as_the_function_wrote_it() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let bundle = Bundle::example("minimal")
        .replace(
            "[integrations.minimal]\n",
            "[models.Measure]\nvalue = \"number\"\nnote = \"string\"\n\n[integrations.minimal]\n",
        )
        .replace("input = \"json\"\noutput = \"json\"", "input = \"Measure\"\noutput = \"Measure\"");
    host.deploy(&bundle).await;
    let connection = host.connect_as("ada", "minimal", json!({ "count": 0 })).await;
    for value in ["12345678901234567890123", "0.1234567890123456789", "1e400"] {
        let output = format!(r#"{{"value": {value}, "note": "{{\"structuredContent\":ü}}"}}"#);
        let trigger =
            connection.request("POST", "/action/trigger").header("Content-Type", "application/json");
        let trigger = trigger.bytes(format!(r#"{{"action_name": "echo", "input": {output}}}"#)).send().await;
        let answer = call(&connection, "echo", &output).await.expect(200).text();
        // An output that can be returned is returned unchanged.
        let is_kept = answer.contains(&format!("\"structuredContent\":{}", trigger.text()));
        assert_eq!(is_kept, trigger.status == 200, "{answer}: {}", trigger.text());
        assert_eq!(answer.contains("\"isError\":true"), trigger.status != 200, "{answer}");
    }
}

#[tokio::test]
async fn extreme_numbers_depths_and_escapes_reach_the_action() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::example("minimal")).await;
    let connection = host.connect_as("ada", "minimal", json!({ "count": 0 })).await;
    let deep = format!("{}1{}", "[".repeat(150), "]".repeat(150));
    for value in ["1e400", deep.as_str(), r#""\ud800""#] {
        let trigger =
            connection.request("POST", "/action/trigger").header("Content-Type", "application/json");
        let trigger = trigger.bytes(format!(r#"{{"action_name": "echo", "input": {value}}}"#)).send().await;
        let called = call(&connection, "echo", &format!(r#"{{"input": {value}}}"#)).await.expect(200);
        let result = &called.json()["result"];
        // The tool call has the same outcome as the action.
        assert_eq!(result["isError"], trigger.status != 200, "{value}: {} {result}", trigger.text());
        let printed = if trigger.status == 200 { trigger.text() } else { trigger.message() };
        assert_eq!(result["content"][0]["text"], printed, "{value}");
    }
}

#[tokio::test]
async fn duplicate_arguments_are_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::example("minimal")).await;
    let connection = host.connect_as("ada", "minimal", json!({ "count": 0 })).await;
    let answer = call(&connection, "echo", r#"{"input": "first", "input": "second"}"#).await;
    assert_eq!(rpc_error(&answer), (200, -32602));
    assert!(answer.message().contains("duplicate field `input`"), "{}", answer.message());
}

#[tokio::test]
async fn failures_are_returned_as_results_with_the_reason() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::guest("hostile").limit("sleep", "wall = \"200ms\"")).await;
    let connection = host.connect_as("ada", "hostile", json!({ "steps": 0 })).await;
    let failed = async |tool: &str, arguments: &str| {
        let result = call(&connection, tool, arguments).await.expect(200).json()["result"].take();
        assert_eq!(result["isError"], true, "{tool}: {result}");
        let details: Value =
            serde_json::from_str(text(&result["content"][1]["text"])).expect("details are JSON");
        (text(&result["content"][0]["text"]).to_owned(), details)
    };
    let own = r#"{"code": "odd", "message": "the shop is closed", "details": {"until": "Monday"}}"#;
    let details = json!({ "code": "action_script_runtime_error", "payload": { "until": "Monday" } });
    assert_eq!(failed("fail", own).await, ("the shop is closed".to_owned(), details));
    assert_eq!(failed("sleep", r#"{"input": 60000}"#).await.1["code"], "execution_timeout");
    assert_eq!(failed("panic", "{}").await.1["code"], "script_internal_error");
    assert_eq!(failed("bad-json-output", "{}").await.1["code"], "invalid_action_output");
    assert_eq!(failed("sleep", r#"{"input": "long"}"#).await.1["code"], "invalid_action_input");
    let nothing = call(&connection, "print", r#"{"input": "x"}"#).await.expect(200);
    assert_eq!(nothing.json()["result"], json!({ "content": [], "isError": false }));
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_call() {
    let db = TestDatabase::create().await;
    let provider = SlowProvider::listen().await;
    let host =
        HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address()).spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect_as("ada", "hostile", json!({ "steps": 0 })).await;
    let arguments = json!({ "input": { "url": "/slow" } }).to_string();
    let calling = tokio::spawn(async move { call(&connection, "fetch", &arguments).await });
    let pending = provider.next_request().await;
    calling.abort();
    pending.wait_for_disconnect().await;
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_the_reason() {
    let stage = Stage::hostile().await;
    let list = r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}"#;
    post(&stage, list).await.expect(200);
    for (body, error) in [
        ("", (400, -32700)),
        ("{\"jsonrpc\":", (400, -32700)),
        ("nonsense", (400, -32700)),
        ("[]", (400, -32600)),
        ("7", (400, -32600)),
        ("{}", (400, -32600)),
        (r#"{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}"#, (400, -32600)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": [1]}"#, (400, -32600)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "tools/call"}"#, (400, -32600)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}"#, (400, -32600)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ["print"]}"#, (400, -32600)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/dance"}"#, (200, -32601)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "x"}}"#, (200, -32601)),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}"#, (200, -32602)),
        (
            r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nobody"}}"#,
            (200, -32602),
        ),
    ] {
        assert_eq!(rpc_error(&post(&stage, body).await), error, "{body}");
    }
    for (body, problem) in [
        (
            r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": 1e400}}"#,
            "number out of range",
        ),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": "\ud800"}}"#, "hex escape"),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "ping"}"#, "duplicate field `method`"),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#, "expected a string"),
    ] {
        let answer = post(&stage, body).await;
        assert_eq!(rpc_error(&answer), (400, -32600), "{body}");
        assert!(answer.message().contains(problem), "{}", answer.message());
    }
    let notification = r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#;
    post(&stage, notification).await.expect(202);

    let with = |name: &'static str, value: &'static str| {
        stage.request("POST", "/mcp").header(name, value).bytes(list).send()
    };
    let refused = |code: &str, status: u16| (status, code.to_owned());
    assert_eq!(with("Content-Type", "text/plain").await.refusal(), refused("invalid_content_type", 415));
    assert_eq!(
        with("Origin", "https://evil.example.com").await.refusal(),
        refused("origin_not_allowed", 403)
    );
    with("Origin", "http://localhost:6274").await.expect(200);
    with("Accept", "application/json").await.expect(200);
    let unknown = with("Mcp-Protocol-Version", "1999-01-01").await;
    assert_eq!(unknown.refusal(), refused("invalid_headers", 400));
    assert_eq!(unknown.json()["error"]["errors"][0]["path"], json!(["mcp-protocol-version"]));
    with("Mcp-Protocol-Version", "2025-06-18").await.expect(200);
    let query = stage.request("POST", "/mcp?x=1").bytes(list).send().await;
    assert_eq!(query.refusal(), refused("invalid_query_params", 400));
    for method in ["GET", "DELETE"] {
        let answer = stage.request(method, "/mcp").send().await;
        assert_eq!(answer.refusal(), refused("method_not_allowed", 405), "{method}");
        assert_eq!(answer.header("allow"), Some("POST"));
    }
    assert_eq!(post(&stage.with_id("nobody"), list).await.refusal(), refused("unknown_connection", 404));
    assert_eq!(post(&stage.to("nothing"), list).await.refusal(), refused("unknown_integration", 404));
    let nameless = stage.host.request("POST", "/mcp").bytes(list).send().await;
    assert_eq!(nameless.refusal(), refused("invalid_headers", 400));
    let stranger = stage.connection.through(&stage.host.with_key(None));
    assert_eq!(post(&stranger, list).await.refusal(), refused("missing_auth_header", 401));
}

#[tokio::test]
async fn calling_a_tool_requires_the_scope_to_run_actions() {
    let stage = Stage::hostile().await;
    let list = r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}"#;
    let with_scopes = |name: &str, scopes: &str| {
        let create = ["keys", "create", name, "--scopes", scopes];
        let key = stage.host.command(&stage.db, &create).trim().to_owned();
        stage.connection.through(&stage.host.with_key(Some(&key)))
    };
    let listing = with_scopes("listing", "environment:mcp");
    post(&listing, list).await.expect(200);
    let forbidden = (403, "forbidden".to_owned());
    assert_eq!(call(&listing, "print", r#"{"input": "x"}"#).await.refusal(), forbidden);
    let acting = with_scopes("acting", "environment:actions:execute");
    assert_eq!(post(&acting, list).await.refusal(), forbidden);
    let both = with_scopes("both", "environment:mcp,environment:actions:execute");
    call(&both, "print", r#"{"input": "x"}"#).await.expect(200);
}
