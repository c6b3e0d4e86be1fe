//! Looking into answers, and comparing them without what differs from run to run.

use serde_json::{Value, json};

use super::METADATA_KEY;

/// Members whose text is never the same twice.
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

/// Replaces text under the usual varying members by `…`, at any depth; null stays null. Of `id` only UUIDs and
/// row numbers are replaced: a record's id says something.
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

/// A record's own fields.
pub fn without_metadata(mut record: Value) -> Value {
    if let Some(members) = record.as_object_mut() {
        members.remove(METADATA_KEY);
    }
    record
}

/// What is text there.
#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("this is no text: {value}"))
}

/// The ids of records, in their order.
#[track_caller]
pub fn ids_of(records: &[Value]) -> Vec<&str> {
    let mut ids = Vec::with_capacity(records.len());
    for record in records {
        ids.push(text(&record["id"]));
    }
    ids
}

/// Where a reader continues after this record.
#[track_caller]
pub fn cursor_of(record: &Value) -> &str {
    text(&record[METADATA_KEY]["cursor"])
}
