//! The file of a recording.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use syncline_sandbox::{ConnectionInfo, RandomSeed, RunInfo};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{FunctionName, IntegrationKey};
use syncline_types::json;

use crate::exchange::Exchange;
use crate::outcome::Outcome;

/// The version of the format that this version of Syncline reads and writes.
pub const FORMAT: u32 = 1;

/// A recording. Its members are written in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    pub format: u32,
    pub integration: IntegrationKey,
    pub kind: FunctionKind,
    pub function: FunctionName,
    pub started_at: DateTime<Utc>,
    /// All random numbers of the run are derived from it.
    pub random_seed: String,
    pub run: RecordedRun,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    pub connection: RecordedConnection,
    /// The variables that the function could read.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// The checkpoint before the run.
    #[serde(default)]
    pub checkpoint: Option<Box<RawValue>>,
    /// The stored records that the run read, changed or deleted. Other records did not exist.
    #[serde(default)]
    pub kept: Vec<KeptRecord>,
    pub exchanges: Vec<Exchange>,
    pub expected: Outcome,
}

/// What the function can read about its run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRun {
    pub id: String,
    pub variant: String,
    pub attempt: u32,
    pub is_full: bool,
}

/// The connection of the run. The secret values of its credentials are masked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedConnection {
    pub id: String,
    pub provider: String,
    pub environment: String,
    pub config: Box<RawValue>,
    pub tags: Box<RawValue>,
    pub metadata: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Box<RawValue>>,
}

/// A stored record at the start of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptRecord {
    pub model: String,
    pub variant: String,
    pub id: String,
    pub record: Box<RawValue>,
}

/// Why a text is not a recording. Lines and columns are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecording {
    #[error("line {line}, column {column}: {problem}")]
    Syntax { line: usize, column: usize, problem: String },
    #[error(
        "the recording has format {found}, but this version of syncline reads format {FORMAT}; record the run again"
    )]
    OtherFormat { found: String },
    #[error("`{member}`: {problem}")]
    Value { member: String, problem: String },
}

impl Recording {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, InvalidRecording> {
        let version: Version = serde_json::from_str(text).map_err(|error| syntax(&error))?;
        match version.format {
            Some(format) if format.get() == FORMAT.to_string() => {}
            Some(format) => return Err(InvalidRecording::OtherFormat { found: format.get().to_owned() }),
            None => {
                let problem = format!("it is missing; a recording begins with `\"format\": {FORMAT}`");
                return Err(InvalidRecording::Value { member: "format".to_owned(), problem });
            }
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let recording: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let member = error.path().to_string();
            let inner = error.into_inner();
            let (line, column) = (inner.line(), inner.column());
            let text = inner.to_string();
            let problem = text.split(" at line ").next().unwrap_or_default();
            let problem = if member == "." { problem.to_owned() } else { format!("`{member}`: {problem}") };
            InvalidRecording::Syntax { line, column, problem }
        })?;
        recording.seed()?;
        for (index, exchange) in recording.exchanges.iter().enumerate() {
            let member = || format!("exchanges[{index}]");
            let answers =
                [exchange.response.is_some(), exchange.failure.is_some(), exchange.rate_limited_ms.is_some()];
            if answers.into_iter().filter(|given| *given).count() > 1 {
                let problem =
                    "it must have only one of `response`, `failure` and `rate_limited_ms`".to_owned();
                return Err(InvalidRecording::Value { member: member(), problem });
            }
            if exchange.response.as_ref().is_some_and(|response| !response.has_valid_body()) {
                let problem = "`body_base64` is not valid Base64".to_owned();
                return Err(InvalidRecording::Value { member: member(), problem });
            }
        }
        Ok(recording)
    }

    /// The text of the file.
    pub fn render(&self) -> String {
        let text = serde_json::to_string(self).expect("a recording can be represented as JSON");
        json::indented(&text) + "\n"
    }

    pub fn seed(&self) -> Result<RandomSeed, InvalidRecording> {
        self.random_seed.parse().map_err(|error: syncline_sandbox::InvalidRandomSeed| {
            InvalidRecording::Value { member: "random_seed".to_owned(), problem: error.to_string() }
        })
    }

    pub fn run_info(&self) -> RunInfo {
        let RecordedRun { id, variant, attempt, is_full } = self.run.clone();
        RunInfo { id, variant, attempt, is_full }
    }

    pub fn connection_info(&self) -> ConnectionInfo {
        let RecordedConnection { id, provider, environment, config, tags, .. } = self.connection.clone();
        ConnectionInfo {
            connection_id: id,
            integration: self.integration.to_string(),
            provider,
            environment,
            config: config.get().to_owned(),
            tags: tags.get().to_owned(),
        }
    }
}

/// The first member, which decides how the others are read.
#[derive(Deserialize)]
struct Version<'t> {
    #[serde(borrow)]
    format: Option<&'t RawValue>,
}

fn syntax(error: &serde_json::Error) -> InvalidRecording {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or_default().to_owned();
    InvalidRecording::Syntax { line, column, problem }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text() -> String {
        let recording = json!({
            "format": 1, "integration": "shop", "kind": "sync", "function": "items",
            "started_at": "2026-01-01T00:00:00Z", "random_seed": "07".repeat(32),
            "run": { "id": "r", "variant": "base", "attempt": 1, "is_full": true },
            "connection": {
                "id": "c", "provider": "p", "environment": "dev", "config": {}, "tags": {}, "metadata": {},
            },
            "exchanges": [], "expected": { "metadata": {} },
        });
        recording.to_string()
    }

    fn problem(text: &str) -> String {
        Recording::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_recording_is_written_in_a_stable_order_with_all_digits() {
        let text = text().replace(r#""metadata":{}"#, r#""metadata":{"z":1.10,"a":12345678901234567890}"#);
        let rendered = Recording::parse(&text).unwrap().render();
        assert!(rendered.starts_with("{\n  \"format\": 1,\n  \"integration\": \"shop\",\n"), "{rendered}");
        assert!(rendered.contains("\"z\": 1.10,\n"), "{rendered}");
        assert_eq!(Recording::parse(&rendered).unwrap().render(), rendered);
    }

    #[test]
    fn an_error_names_the_place() {
        assert_eq!(problem("{\n  \"format\": 1,\n  oops"), "line 3, column 3: key must be a string");
        let other = problem(&text().replace(r#""format":1"#, r#""format":2"#));
        assert!(other.contains("format 2") && other.contains("record the run again"), "{other}");
        assert!(problem("{}").starts_with("`format`: it is missing"));
        let kind = problem(&text().replace(r#""sync""#, r#""synk""#));
        assert!(
            kind.starts_with("line 1, column") && kind.contains("`kind`: unknown variant `synk`"),
            "{kind}"
        );
        let seed = problem(&text().replace(&"07".repeat(32), "07"));
        assert_eq!(seed, "`random_seed`: a random seed has 64 hexadecimal digits");
        let exchange = r#""exchanges":[{"request":{"method":"GET","url":"/"},"took_us":1,"rate_limited_ms":1,
            "failure":{"code":"timeout","message":""}}]"#;
        let twice = problem(&text().replace(r#""exchanges":[]"#, exchange));
        assert!(twice.starts_with("`exchanges[0]`: it must have only one of"), "{twice}");
    }
}
