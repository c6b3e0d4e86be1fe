//! The types that `syncline generate` writes read and write every kind of type.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[path = "generated/src/models.rs"]
#[expect(unused_qualifications, reason = "a project need not depend on serde_json itself")]
mod models;

use models::{AuditEntry, CreateCustomerInput, Everything, EverythingState, Invoice, NamesOutput};

/// Reads and writes a value.
fn read_back<T: DeserializeOwned + serde::Serialize>(value: &Value) -> Value {
    let read: T = serde_json::from_value(value.clone()).expect("the value matches the model");
    serde_json::to_value(&read).expect("a model can be written")
}

#[test]
fn every_kind_of_type_is_read_and_written() {
    let mut value = json!({
        "id": 7, "text": "a", "amount": 1.5, "open": true, "day": "2026-03-01", "at": "2026-03-01T09:00:00Z",
        "anything": [null, { "a": 1 }], "state": "a, b", "customer": { "id": "c", "email": null },
        "address": { "street": "s", "zip": "z" }, "tags": ["x"], "matrix": [[1.0], []],
        "lines": [{ "sku": "k", "quantity": 2 }], "gaps": ["x", null], "states": ["on", "off"],
        "note": null, "parent": null, "detail": { "reason": "r" }, "strange-name": "n",
    });
    let child = value.clone();
    value["parent"] = child;
    assert_eq!(read_back::<Everything>(&value), value);
    let read: Everything = serde_json::from_value(value).unwrap();
    assert_eq!(read.state, EverythingState::AB);
}

#[test]
fn optional_fields_may_be_missing() {
    let input = json!({ "email": "ada@example.com" });
    assert_eq!(read_back::<CreateCustomerInput>(&input)["tags"], Value::Null);
    assert!(serde_json::from_value::<AuditEntry>(json!({ "id": "1" })).is_err(), "`kind` is required");
}

#[test]
fn other_types_have_a_name() {
    assert_eq!(read_back::<Invoice>(&json!({ "id": "1", "total": 2 })), json!({ "id": "1", "total": 2 }));
    assert_eq!(read_back::<NamesOutput>(&json!(["a"])), json!(["a"]));
}
