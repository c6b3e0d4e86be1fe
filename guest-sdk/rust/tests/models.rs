//! A host with models refuses records, inputs and outputs that the real host refuses.

use serde_json::{Value, json};
use syncline_sdk::testing::Host;
use syncline_sdk::{Result, Writer, action, sync};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/generated/syncline.toml");

/// Saves records of a model, and returns the code and the message of the error.
fn save(model: &str, records: &[Value]) -> Result<(), (String, String)> {
    let mut writer = Writer::new(model);
    let saved = writer.save_all(records).and_then(|()| writer.finish().map(drop));
    saved.map_err(|error| (error.code().to_owned(), error.message().to_owned()))
}

fn refusal(model: &str, record: Value) -> String {
    let (code, message) = save(model, &[record]).expect_err("the record does not match the model");
    assert_eq!(code, "invalid-records");
    message
}

fn everything() -> Value {
    json!({
        "id": 7, "text": "a", "amount": 1.5, "open": true, "day": "2026-03-01", "at": "2026-03-01T09:00:00Z",
        "anything": [null, { "a": 1 }], "state": "a, b", "customer": { "id": "c" },
        "address": { "street": "s" }, "tags": ["x"], "matrix": [[1.0], []],
        "lines": [{ "sku": "k", "quantity": 2 }], "gaps": ["x", null], "states": ["on", "off"],
        "strange-name": "n", "undeclared": true,
    })
}

#[test]
fn a_record_that_matches_its_model_is_saved() {
    let host = Host::for_config(CONFIG);
    let mut nested = everything();
    nested["parent"] = everything();
    save("Everything", &[everything(), nested]).unwrap();
    assert_eq!(host.records("Everything").len(), 1);
}

#[test]
fn a_record_that_does_not_match_its_model_is_refused_with_its_batch() {
    let host = Host::for_config(CONFIG);
    let bad = json!({ "id": "b", "email": 5 });
    let worse = json!({ "id": "c", "email": true });
    let (code, message) = save("Customer", &[json!({ "id": "a" }), bad, worse]).unwrap_err();
    assert_eq!(code, "invalid-records");
    assert_eq!(
        message,
        "record 1 (`b`) does not match model `Customer`: at /email: expected string or null, got integer; 1 more \
         records of the batch are not valid; the batch was not saved"
    );
    assert!(host.records("Customer").is_empty() && host.commits().is_empty());
}

#[test]
fn each_problem_is_named_with_its_place() {
    let _host = Host::for_config(CONFIG);
    let cases = [
        ("day", json!("2026-02-30"), "at /day: expected date such as 2026-03-01, got another string"),
        ("at", json!(1), "at /at: expected datetime such as 2026-03-01T09:00:00Z, got integer"),
        (
            "lines",
            json!([{ "sku": "k", "quantity": 1.5 }]),
            "at /lines/0/quantity: expected integer, got number",
        ),
        ("states", json!(["on", "odd"]), "at /states/1: expected enum(on, off), got another string"),
        ("customer", json!({}), "at /customer/id: is missing, expected string"),
        ("tags", json!("x"), "at /tags: expected array, got string"),
    ];
    for (field, value, problem) in cases {
        let mut record = everything();
        record[field] = value;
        let message = refusal("Everything", record);
        assert!(message.contains(&format!("`Everything`: {problem};")), "{message}");
    }
    let message = refusal("Audit-Entry", json!({ "id": "1", "kind": "k", "more": 1 }));
    assert!(message.contains("at /more: is not declared, and the model is strict"), "{message}");
}

#[test]
fn an_id_may_be_text_or_an_integer() {
    let _host = Host::for_config(CONFIG);
    let mut record = everything();
    record["id"] = json!("7");
    save("Everything", &[record.clone()]).unwrap();
    save("Customer", &[json!({ "id": 7 })]).unwrap();
    record["id"] = json!("seven");
    assert!(refusal("Everything", record).contains("at /id: expected integer, got string"));
}

#[test]
fn a_merged_record_is_checked() {
    let host = Host::for_config(CONFIG);
    host.keep("Customer", json!({ "id": "a", "email": "a@example.com" }));
    let mut customers = Writer::new("Customer");
    customers.update(&json!({ "id": "a", "email": null })).unwrap();
    customers.flush().unwrap();
    customers.update(&json!({ "id": "a", "email": [] })).unwrap();
    assert_eq!(customers.finish().unwrap_err().code(), "invalid-records");
    assert_eq!(host.records("Customer"), [json!({ "id": "a", "email": null })]);
}

#[test]
fn a_record_is_checked_against_a_json_schema() {
    let host = Host::for_config(CONFIG);
    save("Invoice", &[json!({ "id": 1, "total": 2 })]).unwrap();
    let message = refusal("Invoice", json!({ "id": "2", "total": "2" }));
    assert!(message.contains("at /total: expected integer, got string"), "{message}");
    assert_eq!(host.records("Invoice").len(), 1);
}

#[test]
fn a_model_that_is_not_in_the_file_is_unknown() {
    let _host = Host::for_config(CONFIG);
    let (code, message) = save("Order", &[json!({ "id": "1" })]).unwrap_err();
    assert_eq!(code, "unknown-model");
    assert!(message.ends_with("syncline.toml has no model `Order`"), "{message}");
}

#[action]
fn create_customer(input: Value) -> Result<Value> {
    if input["email"] == "other" {
        let mut invoices = Writer::new("Invoice");
        invoices.save(&json!({ "id": "1" }))?;
        invoices.finish()?;
    }
    Ok(json!({ "id": "1", "email": input["tags"] }))
}

#[sync]
fn not_in_the_file() -> Result {
    Ok(())
}

#[test]
fn the_input_and_output_of_an_action_are_checked() {
    let host = Host::for_config(CONFIG);
    let output = host.call(create_customer::FUNCTION, json!({ "email": "a" })).unwrap();
    assert_eq!(output, Some(json!({ "id": "1", "email": null })));

    let error = host.call(create_customer::FUNCTION, ()).unwrap_err();
    assert_eq!(error.code(), "invalid-input");
    assert_eq!(
        error.message(),
        "the input does not match the action's input model: expected object, got null"
    );

    let error = host.call(create_customer::FUNCTION, json!({ "email": "a", "tags": ["x"] })).unwrap_err();
    assert_eq!(error.code(), "invalid-output");
    assert_eq!(
        error.message(),
        "the output does not match the action's output model: at /email: expected string or null, got array"
    );
}

#[test]
fn a_function_may_save_only_the_models_that_it_declares() {
    let host = Host::for_config(CONFIG);
    let error = host.call(create_customer::FUNCTION, json!({ "email": "other" })).unwrap_err();
    assert_eq!(error.code(), "unknown-model");
    assert_eq!(error.message(), "the function saves `Invoice`, but it declares only `Customer`");
}

#[test]
#[should_panic(expected = "syncline.toml has no sync `not-in-the-file`")]
fn a_function_that_the_file_does_not_contain_cannot_be_called() {
    let host = Host::for_config(CONFIG);
    drop(host.call(not_in_the_file::FUNCTION, ()));
}

#[test]
fn a_host_without_models_validates_nothing() {
    let host = Host::new();
    save("Customer", &[json!({ "id": "a", "email": 5 })]).unwrap();
    host.call(create_customer::FUNCTION, json!({ "email": 5, "tags": 5 })).unwrap();
    host.call(not_in_the_file::FUNCTION, ()).unwrap();
}
