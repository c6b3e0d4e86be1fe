//! The smallest sync and action. Neither calls a provider, so they also measure what a host adds of its own.

use serde::{Deserialize, Serialize};
use syncline_sdk::serde_json::value::RawValue;
use syncline_sdk::{Result, Writer, action, connection, sync};

/// What the connection's metadata may set.
#[derive(Deserialize)]
#[serde(default)]
struct Settings {
    /// How many records to make, and the number of the first one.
    count: u64,
    first: u64,
    /// How many records go into one batch.
    batch: usize,
    /// How long a record is as JSON text, at least.
    size_bytes: usize,
    /// Another salt changes every record.
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

/// Numbers in a row, as many as the connection's metadata asks for.
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

/// How long a number without padding is as JSON text.
fn length(number: &Number) -> usize {
    let digits = number.value.checked_ilog10().map_or(1, |log| log as usize + 1);
    r#"{"id":"","value":,"salt":"","padding":""}"#.len() + number.id.len() + digits + number.salt.len()
}

/// Gives back what it is given.
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
    fn metadata_says_how_many_and_how_long() {
        let host = Host::new();
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
        let host = Host::new();
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
