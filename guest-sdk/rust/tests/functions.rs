//! The description of a component's functions, and the calls that reach them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use syncline_sdk::function::{describe, invoke};
use syncline_sdk::testing::Host;
use syncline_sdk::{Error, Result, Webhook, Writer, action, lifecycle, run, sync, webhook};

#[derive(Serialize, Deserialize)]
struct Greeting {
    name: String,
}

/// Greets by name.
///
/// Politely.
#[action]
fn say_hello(greeting: Greeting) -> Result<String> {
    match greeting.name.as_str() {
        "" => {
            Err(Error::new("nameless", "a greeting needs a name").with_details(&json!({ "field": "name" })))
        }
        name => Ok(format!("Hello, {name}")),
    }
}

#[action]
fn parse_number(text: Option<String>) -> Result<u32, std::num::ParseIntError> {
    text.unwrap_or_default().parse()
}

#[action]
fn nothing() -> Result {
    Ok(())
}

mod deeper {
    use super::*;

    #[sync]
    pub fn customers() -> Result {
        run::progress(1, None);
        Ok(())
    }
}

#[webhook]
fn on_change(call: Webhook<Greeting>) -> Result {
    match call.headers.get("x-event").map(String::as_str) {
        Some("changed") => Ok(()),
        other => Err(Error::new("odd", format!("{other:?} for {}", call.body.name))),
    }
}

/// Forgets to finish, and fails or not.
#[action]
fn drop_writer(fails: bool) -> Result {
    let mut greetings = Writer::new("Greeting");
    greetings.save(&json!({ "id": "a" }))?;
    if fails { Err(Error::new("other", "another error")) } else { Ok(()) }
}

#[lifecycle(connection_created)]
fn set_up() -> Result {
    Ok(())
}

syncline_sdk::export!(say_hello, parse_number, nothing, drop_writer, deeper::customers, on_change, set_up);

fn call(
    kind: &str,
    name: &str,
    input: Option<Value>,
) -> Result<Option<String>, (String, String, Option<String>)> {
    invoke(SYNCLINE_FUNCTIONS, kind, name, input.map(|input| input.to_string()))
        .map_err(|failure| (failure.code, failure.message, failure.details))
}

#[test]
fn functions_are_described_by_kind_kebab_case_name_and_doc_comment() {
    let description: Value = serde_json::from_str(&describe(SYNCLINE_FUNCTIONS)).unwrap();
    let expected = json!({
        "sdk": { "name": "syncline-sdk", "version": env!("CARGO_PKG_VERSION") },
        "functions": [
            { "kind": "action", "name": "say-hello", "description": "Greets by name.\n\nPolitely." },
            { "kind": "action", "name": "parse-number", "description": "" },
            { "kind": "action", "name": "nothing", "description": "" },
            { "kind": "action", "name": "drop-writer", "description": "Forgets to finish, and fails or not." },
            { "kind": "sync", "name": "customers", "description": "" },
            { "kind": "webhook", "name": "on-change", "description": "" },
            { "kind": "lifecycle", "name": "connection-created", "description": "" },
        ],
    });
    assert_eq!(description, expected);
}

#[test]
fn input_and_output_are_json_and_unit_means_no_output() {
    assert_eq!(
        call("action", "say-hello", Some(json!({ "name": "Ada" }))),
        Ok(Some("\"Hello, Ada\"".to_owned()))
    );
    assert_eq!(call("action", "nothing", None), Ok(None));
    assert_eq!(
        call("lifecycle", "connection-created", Some(json!({ "event": "connection-created" }))),
        Ok(None)
    );
    let webhook = json!({ "headers": { "x-event": "changed" }, "body": { "name": "Ada" } });
    assert_eq!(call("webhook", "on-change", Some(webhook)), Ok(None));
}

#[test]
fn a_sync_runs_by_its_name() {
    let host = Host::new();
    assert_eq!(call("sync", "customers", None), Ok(None));
    assert_eq!(host.progress(), Some((1, None)));
}

#[test]
fn a_failure_keeps_code_message_and_details() {
    let failure = call("action", "say-hello", Some(json!({ "name": "" }))).unwrap_err();
    let details = Some(r#"{"field":"name"}"#.to_owned());
    assert_eq!(failure, ("nameless".to_owned(), "a greeting needs a name".to_owned(), details));
    let (code, message, _) = call("action", "parse-number", Some(json!("x"))).unwrap_err();
    assert_eq!((code.as_str(), message.as_str()), ("failed", "invalid digit found in string"));
}

#[test]
fn an_invalid_input_is_distinguished_from_a_missing_one() {
    let (code, message, _) = call("action", "say-hello", Some(json!({ "name": 5 }))).unwrap_err();
    assert_eq!(code, "invalid-input");
    assert!(message.contains("expected a string"), "{message}");
    let (code, message, _) = call("action", "say-hello", None).unwrap_err();
    assert_eq!(code, "invalid-input");
    assert!(message.contains("the request has no input"), "{message}");
    let (code, _, _) = call("action", "parse-number", None).unwrap_err();
    assert_eq!(code, "failed", "an optional input can be missing");
}

#[test]
fn a_name_of_another_kind_is_unknown() {
    let (code, message, _) = call("sync", "say-hello", None).unwrap_err();
    assert_eq!(code, "unknown-function");
    assert_eq!(message, "this component has no sync `say-hello`");
}

#[test]
fn a_function_that_loses_changes_fails() {
    let _host = Host::new();
    let (code, message, _) = call("action", "drop-writer", Some(json!(false))).unwrap_err();
    assert_eq!(code, "unsaved-changes");
    assert!(message.starts_with("1 change was not saved to `Greeting`"), "{message}");
    let (code, ..) = call("action", "drop-writer", Some(json!(true))).unwrap_err();
    assert_eq!(code, "other", "its own error is more important");
    assert_eq!(call("action", "nothing", None), Ok(None), "the next call starts anew");
}
