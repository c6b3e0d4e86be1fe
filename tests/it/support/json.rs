//! Helpers that read JSON responses, and compare them without varying values.

use serde_json::{Value, json};

use super::METADATA_KEY;

/// Members whose values differ between runs.
const VARYING: [&str; 14] = [
    "cursor",
    "next_cursor",
    "first_seen_at",
    "last_modified_at",
    "deleted_at",
    "pruned_at",
    "created_at",
    "updated_at",
    "last_fetched_at",
    "created",
    "finishedAt",
    "nextScheduledSyncAt",
    "expires_at",
    "id",
];

/// Replaces the values of varying members with `…`, at any depth. Null stays null. Of `id`, only UUIDs and row numbers
/// are replaced, because tests choose the ids of records.
pub fn masked(mut value: Value) -> Value {
    mask(&mut value);
    value
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if is_varying(name, member) {
                    *member = json!("…");
                } else {
                    mask(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

fn is_varying(name: &str, member: &Value) -> bool {
    match member {
        Value::String(text) if name == "id" => uuid::Uuid::parse_str(text).is_ok(),
        Value::String(_) => VARYING.contains(&name),
        Value::Number(_) => name == "id",
        _ => false,
    }
}

/// A record without its metadata.
pub fn without_metadata(mut record: Value) -> Value {
    if let Some(members) = record.as_object_mut() {
        members.remove(METADATA_KEY);
    }
    record
}

/// The text of a JSON string.
#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}

/// The ids of records, in order.
#[track_caller]
pub fn ids_of(records: &[Value]) -> Vec<&str> {
    let mut ids = Vec::with_capacity(records.len());
    for record in records {
        ids.push(text(&record["id"]));
    }
    ids
}

/// The cursor after this record.
#[track_caller]
pub fn cursor_of(record: &Value) -> &str {
    text(&record[METADATA_KEY]["cursor"])
}
