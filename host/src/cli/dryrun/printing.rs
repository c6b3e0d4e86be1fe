//! Prints the result of a dry run.

use serde::Serialize;
use serde_json::value::RawValue;

use syncline_engine::{Report, SentRequest};
use syncline_recording::{LoggedLine, Outcome, RecordChange, SavedRecord, changed_fields};
use syncline_types::json::indented;

/// Longer payloads are truncated.
const MAX_SHOWN_CHARS: usize = 200;

pub(super) fn print(report: &Report) {
    let outcome = report.outcome();
    section("log", outcome.log.iter().map(log_line));
    section("requests", report.requests.iter().map(request_line));
    section("records", outcome.records.iter().flat_map(record_lines));
    let count = |change| outcome.count(change);
    println!(
        "records: {} added, {} updated, {} deleted, {} unchanged",
        count(RecordChange::Added),
        count(RecordChange::Updated),
        count(RecordChange::Deleted),
        outcome.unchanged
    );
    print_change("checkpoint", report.former_checkpoint(), outcome.checkpoint.as_deref().map(RawValue::get));
    print_change("metadata", Some(report.former_metadata()), Some(outcome.metadata.get()));
    if let Some(output) = &outcome.output {
        println!("output: {}", output.get());
    }
}

/// The result as JSON. Numbers keep their spelling.
#[derive(Serialize)]
struct JsonReport<'r> {
    outcome: Outcome,
    requests: &'r [SentRequest],
    former_checkpoint: Option<&'r RawValue>,
    former_metadata: &'r RawValue,
}

pub(super) fn print_json(report: &Report) -> anyhow::Result<()> {
    let result = JsonReport {
        outcome: report.outcome(),
        requests: &report.requests,
        former_checkpoint: report.former_checkpoint().map(serde_json::from_str).transpose()?,
        former_metadata: serde_json::from_str(report.former_metadata())?,
    };
    println!("{}", indented(&serde_json::to_string(&result)?));
    Ok(())
}

fn section(title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        println!("{title}:");
        lines.for_each(|line| println!("  {line}"));
    }
}

fn log_line(LoggedLine { level, message, fields }: &LoggedLine) -> String {
    let fields = fields.as_ref().map(|fields| format!("  {}", fields.get())).unwrap_or_default();
    format!("{level:<5} {message}{fields}")
}

fn request_line(sent: &SentRequest) -> String {
    let SentRequest { method, url, status, error, ms, attempt } = sent;
    let outcome = match (status, error) {
        (Some(status), _) => status.to_string(),
        (None, error) => error.clone().unwrap_or_default(),
    };
    let attempt = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
    format!("{method} {url}: {outcome} ({ms} ms{attempt})")
}

fn record_lines(record: &SavedRecord) -> Vec<String> {
    let SavedRecord { model, variant, id, change, before, after } = record;
    let variant = if variant == "base" { String::new() } else { format!(" (variant {variant})") };
    let name = format!("{model} {id}{variant}");
    match change {
        RecordChange::Added => {
            let payload = after.as_deref().map(|after| cut(after.get())).unwrap_or_default();
            vec![format!("+ {name}  {payload}")]
        }
        RecordChange::Deleted => vec![format!("- {name}")],
        RecordChange::Updated => {
            let fields = changed_fields(before.as_deref(), after.as_deref());
            let fields = fields.into_iter().map(|field| format!("    {field}"));
            [format!("~ {name}")].into_iter().chain(fields).collect()
        }
    }
}

fn print_change(name: &str, before: Option<&str>, after: Option<&str>) {
    let shown = |text: Option<&str>| text.unwrap_or("none").to_owned();
    if before == after {
        println!("{name}: {} (unchanged)", shown(before));
    } else {
        println!("{name}: {} → {}", shown(before), shown(after));
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
