//! Requests that do not match the schemas of the OpenAPI document, generated from the document: new operations are
//! covered without a change here.

use serde_json::{Value, json};

use crate::support::operations::{Operation, resolve, stage, with};
use crate::support::text;

/// The paths of all objects in a schema, each with a body in which that object is `placed`.
fn objects(schema: &'static Value, example: &Value, placed: &Value) -> Vec<(Vec<String>, Value)> {
    let schema = resolve(schema);
    let variants = ["oneOf", "anyOf"].iter().flat_map(|one| schema[*one].as_array().into_iter().flatten());
    let mut found: Vec<_> = variants.flat_map(|variant| objects(variant, example, placed)).collect();
    let is = |kind: &str| {
        schema["type"] == kind || schema["type"].as_array().is_some_and(|all| all.contains(&json!(kind)))
    };
    if is("object") {
        found.push((Vec::new(), placed.clone()));
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            for (path, body) in objects(member, &example[name], placed) {
                found.push(([vec![name.clone()], path].concat(), with(example, name, body)));
            }
        }
        let members = &schema["additionalProperties"];
        if members.is_object() {
            for (path, body) in objects(members, &json!({}), placed) {
                found.push(([vec!["hostile".to_owned()], path].concat(), json!({ "hostile": body })));
            }
        }
    }
    if is("array") {
        for (path, body) in objects(&schema["items"], &json!({}), placed) {
            found.push(([vec!["0".to_owned()], path].concat(), json!([body])));
        }
    }
    found
}

#[tokio::test]
async fn a_list_is_refused_in_place_of_every_object_of_every_body() {
    let (_stage, api, values) = stage().await;
    let mut sent = 0;
    for operation in Operation::all() {
        // Errors of the MCP are JSON-RPC errors; `mcp.rs` tests them.
        let Some((schema, example)) = operation.body().filter(|_| operation.path != "/mcp") else { continue };
        for placed in [json!([]), json!([true, true]), json!(["x", null, null, null, null])] {
            for (path, body) in objects(schema, example, &placed) {
                let request = operation.request(&operation.api(&api, &values), &values);
                let answer = request.bytes(body.to_string()).send().await;
                let name = format!("{} with {body}", operation.name());
                assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{name}: {}", answer.text());
                assert_eq!(answer.json()["error"]["errors"][0]["path"], json!(path), "{name}");
                sent += 1;
            }
        }
    }
    assert!(sent > 150, "{sent} requests");
}

#[tokio::test]
async fn a_limit_of_any_size_is_served_as_the_maximum() {
    let (stage, api, values) = stage().await;
    let mut count = 0;
    for operation in Operation::all() {
        let is_limit =
            |parameter: &&Value| parameter["name"] == "limit" && parameter["schema"]["maximum"].is_null();
        if operation.parameters("query").iter().any(is_limit) {
            for limit in ["9223372036854775808", "18446744073709551616", "999999999999999999999999999999"] {
                let parameters = operation.parameters("query").into_iter();
                let sent = parameters.filter(|one| one["required"] == true || one["name"] == "wait");
                let value = |name: &str| match name {
                    "model" => "Item",
                    "syncs" => "*",
                    "wait" => "0",
                    _ => "hostile",
                };
                let pairs = sent.map(|parameter| text(&parameter["name"])).map(|name| (name, value(name)));
                let pairs: Vec<_> = pairs.chain([("limit", limit)]).collect();
                let request = operation.request_with(&api, &values, &crate::support::query(&pairs));
                let answer = request.send().await;
                assert_ne!(answer.status, 400, "{} with {limit}: {}", operation.name(), answer.text());
                count += 1;
            }
        }
    }
    assert!(count > 15, "{count} requests");
    let prune = |limit: &str| format!(r#"{{"model": "Item", "until_cursor": "x", "limit": {limit}}}"#);
    for limit in ["9223372036854775808", "18446744073709551616"] {
        let request = stage.request("PATCH", "/records/prune").header("Content-Type", "application/json");
        let answer = request.bytes(prune(limit)).send().await;
        assert_ne!(answer.refusal().1, "invalid_body", "{limit}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_parameter_with_one_value_is_refused_if_it_is_repeated() {
    let (_stage, api, values) = stage().await;
    let mut sent = 0;
    for operation in Operation::all() {
        // These routes pass the query on, or show a page.
        if operation.answers_with_pages()
            || ["/proxy/{path}", "/webhook/{environment_uuid}/{unique_key}"].contains(&operation.path)
        {
            continue;
        }
        for parameter in operation.parameters("query") {
            let kind = &parameter["schema"]["type"];
            let name = text(&parameter["name"]);
            if kind == "array" || kind == "object" {
                continue;
            }
            let token = ("connect_session_token", values["connect_session_token"].as_str());
            let mut pairs = vec![(name, "1"), (name, "1")];
            if name == token.0 {
                pairs = vec![token, token];
            } else if !operation.accepts_secret_key() {
                pairs.push(token);
            }
            let api = operation.api(&api, &values);
            let answer = operation.request_with(&api, &values, &crate::support::query(&pairs)).send().await;
            let request = format!("{} with {name} twice", operation.name());
            assert_eq!(answer.refusal(), (400, "invalid_query_params".to_owned()), "{request}");
            let error = &answer.json()["error"]["errors"][0];
            assert_eq!(
                (&error["path"], &error["message"]),
                (&json!([name]), &json!("must be given only once")),
                "{request}"
            );
            sent += 1;
        }
    }
    assert!(sent > 60, "{sent} requests");
}
