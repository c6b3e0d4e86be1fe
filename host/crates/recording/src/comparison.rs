//! Compares the outcome of a replay with the recorded one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use serde_json::value::RawValue;
use syncline_types::json;

use crate::exchange::Exchange;
use crate::outcome::{LoggedLine, Outcome, SavedRecord};

/// Longer values are truncated.
const MAX_SHOWN_CHARS: usize = 120;

/// Returns a line for each difference, or an empty list.
pub fn differences(
    expected: &Outcome,
    recorded: &[Exchange],
    found: &Outcome,
    replayed: &[Exchange],
) -> Vec<String> {
    let mut lines = Vec::new();
    compare_results(expected, found, &mut lines);
    compare_records(&expected.records, &found.records, &mut lines);
    if expected.unchanged != found.unchanged {
        lines.push(format!("unchanged records: expected {}, found {}", expected.unchanged, found.unchanged));
    }
    compare_values("checkpoint", expected.checkpoint.as_deref(), found.checkpoint.as_deref(), &mut lines);
    compare_values("metadata", Some(&expected.metadata), Some(&found.metadata), &mut lines);
    compare_requests(recorded, replayed, &mut lines);
    compare_logs(&expected.log, &found.log, &mut lines);
    lines
}

/// Returns `path: before → after` for each member that differs, in the order of their paths. `None` is a value that
/// does not exist.
pub fn changed_fields(before: Option<&RawValue>, after: Option<&RawValue>) -> Vec<String> {
    let parse =
        |raw: &RawValue| json::parse(raw.get()).unwrap_or_else(|_| Value::String(raw.get().to_owned()));
    let mut changes = Vec::new();
    collect_changes("", before.map(parse).as_ref(), after.map(parse).as_ref(), &mut changes);
    // Parsed numbers lose digits beyond those of a double.
    let text = |raw: Option<&RawValue>| raw.map(|raw| json::indented(raw.get()));
    if changes.is_empty() && text(before) != text(after) {
        let shown = |raw: Option<&RawValue>| raw.map_or_else(|| "(none)".to_owned(), |raw| cut(raw.get()));
        changes.push(format!("{} → {}", shown(before), shown(after)));
    }
    changes
}

fn collect_changes(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<String>) {
    if before == after {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (before, after) {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            collect_changes(&path, before.get(name), after.get(name), changes);
        }
        return;
    }
    let shown =
        |value: Option<&Value>| value.map_or_else(|| "(none)".to_owned(), |value| cut(&value.to_string()));
    let change = format!("{} → {}", shown(before), shown(after));
    changes.push(if path.is_empty() { change } else { format!("{path}: {change}") });
}

fn compare_results(expected: &Outcome, found: &Outcome, lines: &mut Vec<String>) {
    match (&expected.error, &found.error) {
        (None, Some(error)) => {
            lines.push(format!(
                "result: expected success, but the run failed with {}: {}",
                error.code,
                cut(&error.message)
            ));
        }
        (Some(error), None) => {
            lines.push(format!("result: expected {}, but the run was successful", error.code));
        }
        (Some(expected), Some(found)) if expected != found => {
            lines.push(format!(
                "error: expected {}: {}; found {}: {}",
                expected.code,
                cut(&expected.message),
                found.code,
                cut(&found.message)
            ));
        }
        _ => {}
    }
    compare_values("output", expected.output.as_deref(), found.output.as_deref(), lines);
}

fn compare_values(
    name: &str,
    expected: Option<&RawValue>,
    found: Option<&RawValue>,
    lines: &mut Vec<String>,
) {
    for change in changed_fields(expected, found) {
        lines.push(format!("{name}: {change}"));
    }
}

fn compare_records(expected: &[SavedRecord], found: &[SavedRecord], lines: &mut Vec<String>) {
    let (expected, found) = (index(expected), index(found));
    let keys: BTreeSet<&Key<'_>> = expected.keys().chain(found.keys()).collect();
    for key in keys {
        let (model, variant, id) = key;
        let variant = if *variant == "base" { String::new() } else { format!(" of the variant {variant}") };
        let name = format!("{model} `{id}`{variant}");
        match (expected.get(key), found.get(key)) {
            (Some(expected), Some(found)) if expected.change != found.change => {
                let (expected, found) = (expected.change.as_str(), found.change.as_str());
                lines.push(format!("{name}: expected {expected}, found {found}"));
            }
            (Some(expected), Some(found)) => {
                for change in changed_fields(expected.after.as_deref(), found.after.as_deref()) {
                    lines.push(format!("{name}: {change}"));
                }
            }
            (Some(expected), None) => lines.push(format!("{name}: no longer {}", expected.change.as_str())),
            (None, Some(found)) => {
                let payload =
                    found.after.as_deref().map(|after| format!(": {}", cut(after.get()))).unwrap_or_default();
                lines.push(format!("{name}: now {}{payload}", found.change.as_str()));
            }
            (None, None) => {}
        }
    }
}

/// Model, variant and id.
type Key<'r> = (&'r str, &'r str, &'r str);

fn index(records: &[SavedRecord]) -> BTreeMap<Key<'_>, &SavedRecord> {
    records.iter().map(|record| ((&*record.model, &*record.variant, &*record.id), record)).collect()
}

fn compare_requests(recorded: &[Exchange], replayed: &[Exchange], lines: &mut Vec<String>) {
    let mut unsent: Vec<&Exchange> = recorded.iter().collect();
    for exchange in replayed {
        let Some(at) = unsent.iter().position(|recorded| recorded.request.asks_the_same(&exchange.request))
        else {
            continue;
        };
        let expected = unsent.remove(at);
        if expected.request.headers != exchange.request.headers {
            lines.push(format!(
                "request {}: headers: expected {:?}, found {:?}",
                cut(&exchange.request.name()),
                expected.request.headers,
                exchange.request.headers
            ));
        }
    }
    for exchange in unsent {
        lines.push(format!("request {}: no longer sent", cut(&exchange.request.name())));
    }
}

fn compare_logs(expected: &[LoggedLine], found: &[LoggedLine], lines: &mut Vec<String>) {
    let shown = |line: Option<&LoggedLine>| match line {
        Some(LoggedLine { level, message, fields }) => {
            let fields = fields.as_ref().map(|fields| format!(" {}", fields.get())).unwrap_or_default();
            cut(&format!("{level} {message}{fields}"))
        }
        None => "(none)".to_owned(),
    };
    for index in 0..expected.len().max(found.len()) {
        let (before, after) = (shown(expected.get(index)), shown(found.get(index)));
        if before != after {
            lines.push(format!("log line {}: {before} → {after}", index + 1));
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn changed_fields_are_named_by_their_path() {
        let before = raw(r#"{"a":{"b":1,"c":2},"d":[1],"e":null}"#);
        let after = raw(r#"{"a":{"b":1,"c":3},"d":[1,2],"f":"x"}"#);
        let changes = changed_fields(Some(&before), Some(&after));
        assert_eq!(changes, ["a.c: 2 → 3", "d: [1] → [1,2]", "e: null → (none)", "f: (none) → \"x\""]);
        assert!(changed_fields(Some(&before), Some(&before)).is_empty());
        assert_eq!(changed_fields(None, Some(&raw("1"))), ["(none) → 1"]);
    }
}
