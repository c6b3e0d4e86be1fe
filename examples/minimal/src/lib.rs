//! The smallest sync and action. Neither calls a provider, so they also measure the overhead of the host.

use serde::{Deserialize, Serialize};
use syncline_sdk::serde_json::value::RawValue;
use syncline_sdk::{Result, Writer, action, connection, sync};

/// Settings that the connection's metadata can override.
#[derive(Deserialize)]
#[serde(default)]
struct Settings {
    /// Number of records, and the number of the first one.
    count: u64,
    first: u64,
    /// Number of records in a batch.
    batch: usize,
    /// Minimum length of a record as JSON text, in bytes.
    size_bytes: usize,
    /// Another value changes every record.
    salt: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { count: 1_000, first: 0, batch: 1_000, size_bytes: 400, salt: String::new() }
    }
}

#[derive(Serialize)]
struct Number<'a> {
    id: &'a str,
    value: u64,
    salt: &'a str,
    padding: &'a str,
}

/// Saves consecutive numbers. The connection's metadata sets how many.
#[sync]
fn numbers() -> Result {
    let settings: Settings = connection::metadata()?;
    let padding = ".".repeat(settings.size_bytes);
    let mut numbers = Writer::new("Number").batch_records(settings.batch);
    for value in settings.first..settings.first + settings.count {
        let id = format!("number-{value}");
        let mut number = Number { id: &id, value, salt: &settings.salt, padding: "" };
        number.padding = &padding[..settings.size_bytes.saturating_sub(length(&number))];
        numbers.save(&number)?;
    }
    numbers.finish()?;
    Ok(())
}

/// Returns the length of a number without padding as JSON text.
fn length(number: &Number) -> usize {
    let digits = number.value.checked_ilog10().map_or(1, |log| log as usize + 1);
    r#"{"id":"","value":,"salt":"","padding":""}"#.len() + number.id.len() + digits + number.salt.len()
}

/// Returns its input.
#[action]
fn echo(input: Box<RawValue>) -> Result<Box<RawValue>> {
    Ok(input)
}

syncline_sdk::export!(numbers, echo);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use syncline_sdk::testing::Host;

    #[test]
    fn metadata_sets_number_and_length_of_records() {
        let host = Host::for_project();
        host.set_metadata(json!({ "count": 25, "first": 90, "batch": 10, "size_bytes": 400, "salt": "a" }));
        numbers().unwrap();
        let batches: Vec<usize> = host.commits().iter().map(|commit| commit.changes.len()).collect();
        assert_eq!(batches, [10, 10, 5]);
        let records = host.records("Number");
        assert!(records.iter().all(|record| record.to_string().len() == 400));
        assert!(records.iter().any(|record| record["id"] == "number-114"));
    }

    #[test]
    fn another_salt_changes_every_record() {
        let host = Host::for_project();
        let run = |salt: &str| -> Vec<Value> {
            host.set_metadata(json!({ "count": 3, "salt": salt }));
            numbers().unwrap();
            host.records("Number")
        };
        let (before, same, after) = (run("a"), run("a"), run("b"));
        assert_eq!(before, same);
        assert!(
            before.iter().zip(&after).all(|(before, after)| before["id"] == after["id"] && before != after)
        );
    }

    #[test]
    fn echo_keeps_every_digit() {
        let input = r#"{"amount": 12345678901234567890.10}"#;
        let output = echo(RawValue::from_string(input.to_owned()).unwrap()).unwrap();
        assert_eq!(output.get(), input);
    }
}
