//! Takes out of an answer what differs from run to run, so that the rest can be compared as a whole.

use serde_json::{Value, json};

use super::METADATA_KEY;

/// Members whose text is never the same twice.
const VARYING: [&str; 13] = [
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
