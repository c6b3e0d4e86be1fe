//! The log of one invocation: the guest's calls of `log.write`, its standard output and its standard error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::Limit;
use syncline_types::sanitize::sanitize_text;
use syncline_types::secret::Mask;

/// Longer lines are truncated.
const MAX_LINE_BYTES: usize = 10_000;
/// Added to the length of each line when it counts towards the limit.
const LINE_OVERHEAD_BYTES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

#[derive(Debug, Clone)]
pub struct LogEntry {
    /// The number of the line, counted from 0 within the invocation.
    pub line: i32,
    pub at: DateTime<Utc>,
    pub level: LogLevel,
    pub message: String,
    /// A JSON object.
    pub fields: Option<String>,
}

/// A log that the invocation writes and its caller drains, possibly from another task.
#[derive(Debug, Clone)]
pub struct RunLog(Arc<Mutex<Buffer>>);

#[derive(Debug, Default)]
struct Buffer {
    entries: Vec<LogEntry>,
    /// The lines for the recording of the run. `None` unless the run is recorded.
    recorded: Option<Vec<LogEntry>>,
    next_line: i32,
    written_bytes: usize,
    traced_bytes: usize,
    limit_bytes: usize,
    /// All secrets to mask in the log.
    hidden: Mask,
    /// The connection's credentials, which are also masked in errors.
    credentials: Mask,
}

impl RunLog {
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Buffer { limit_bytes, ..Buffer::default() })))
    }

    /// Adds a line. Fails if it would exceed the log's limit.
    pub fn write(&self, level: LogLevel, message: &str, fields: Option<String>) -> Result<(), Limit> {
        let mut buffer = self.lock();
        let size =
            message.len().min(MAX_LINE_BYTES) + fields.as_ref().map_or(0, String::len) + LINE_OVERHEAD_BYTES;
        if buffer.written_bytes + size > buffer.limit_bytes {
            return Err(Limit::Log(buffer.limit_bytes));
        }
        buffer.written_bytes += size;
        buffer.push_and_record(level, message, fields);
        Ok(())
    }

    /// Adds a line from the host. The limit does not apply to it.
    pub fn note(&self, level: LogLevel, message: &str) {
        self.lock().push_and_record(level, message, None);
    }

    /// Adds a debug line about the guest's activity, such as a request that it sent. Such lines are dropped once they
    /// fill half of the guest's limit.
    pub fn trace(&self, message: &str) {
        let mut buffer = self.lock();
        let size = message.len() + LINE_OVERHEAD_BYTES;
        if buffer.traced_bytes + size <= buffer.limit_bytes / 2 {
            buffer.traced_bytes += size;
            buffer.push(LogLevel::Debug, message, None);
        }
    }

    /// Keeps a copy of all later lines except those of [`trace`](Self::trace), which a replay of the run does not have.
    pub fn record(&self) {
        self.lock().recorded = Some(Vec::new());
    }

    /// Ends the copy, and returns its lines. Returns `None` if the log was not recorded.
    pub fn take_recorded(&self) -> Option<Vec<LogEntry>> {
        self.lock().recorded.take()
    }

    /// Removes and returns the lines that were added since the last call.
    pub fn drain(&self) -> Vec<LogEntry> {
        std::mem::take(&mut self.lock().entries)
    }

    /// Masks a secret in all later lines.
    pub fn hide(&self, secret: &str) {
        self.lock().hidden.add(secret);
    }

    /// Masks every string of a JSON document like [`hide`](Self::hide).
    pub fn hide_all(&self, secrets: &Value) {
        match secrets {
            Value::String(secret) => self.hide(secret),
            Value::Array(values) => values.iter().for_each(|value| self.hide_all(value)),
            Value::Object(members) => members.values().for_each(|value| self.hide_all(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Masks credentials of the connection like [`hide`](Self::hide), and also in errors. A provider may repeat
    /// credentials in its answer, and the function's caller must not see them.
    pub fn hide_credentials<'s>(&self, credentials: impl IntoIterator<Item = &'s str>) {
        let mut buffer = self.lock();
        for secret in credentials {
            buffer.hidden.add(secret);
            buffer.credentials.add(secret);
        }
    }

    /// Returns a mask for the connection's credentials that the run has used or seen so far.
    pub fn credentials_mask(&self) -> Mask {
        self.lock().credentials.clone()
    }

    /// Returns the text with all hidden secrets masked.
    pub fn masked(&self, text: &str) -> String {
        self.lock().hidden.text(text).into_owned()
    }

    /// Returns the JSON document with all hidden secrets masked.
    pub fn masked_json(&self, value: Value) -> Value {
        self.lock().hidden.json(value)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn push_and_record(&mut self, level: LogLevel, message: &str, fields: Option<String>) {
        self.push(level, message, fields);
        if let (Some(recorded), Some(entry)) = (&mut self.recorded, self.entries.last()) {
            recorded.push(entry.clone());
        }
    }

    fn push(&mut self, level: LogLevel, message: &str, fields: Option<String>) {
        let message = self.hidden.text(message);
        let end = message.floor_char_boundary(MAX_LINE_BYTES);
        let message = sanitize_text(&message[..end]);
        let fields = fields.map(|fields| self.hidden.text(&fields).into_owned());
        self.entries.push(LogEntry { line: self.next_line, at: Utc::now(), level, message, fields });
        self.next_line = self.next_line.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_still_accepts_lines_of_the_host() {
        let log = RunLog::new(200);
        assert!(log.write(LogLevel::Info, "first", None).is_ok());
        assert!(log.write(LogLevel::Info, &"x".repeat(100), None).is_err());
        log.note(LogLevel::Error, "ended");
        let lines: Vec<_> = log.drain().into_iter().map(|entry| (entry.line, entry.message)).collect();
        assert_eq!(lines, [(0, "first".to_owned()), (1, "ended".to_owned())]);
        assert!(log.drain().is_empty());
    }

    #[test]
    fn a_recorded_log_keeps_a_copy_without_traces() {
        let log = RunLog::new(1 << 20);
        log.write(LogLevel::Info, "before", None).unwrap();
        log.record();
        log.write(LogLevel::Info, "first", None).unwrap();
        log.trace("GET /items: 200");
        assert_eq!(log.drain().len(), 3);
        log.note(LogLevel::Warn, "second");
        let lines: Vec<_> = log.take_recorded().unwrap().into_iter().map(|entry| entry.message).collect();
        assert_eq!(lines, ["first", "second"]);
        assert!(log.take_recorded().is_none());
    }

    #[test]
    fn hidden_secrets_are_masked_in_lines_and_errors() {
        let log = RunLog::new(1 << 20);
        log.hide_all(
            &serde_json::json!({ "token": "tok_0123456789", "key": "line\none \"two\"", "short": "on" }),
        );
        log.write(LogLevel::Info, "on with tok_0123456789", Some(r#"{"a":"line\none \"two\""}"#.to_owned()))
            .unwrap();
        let line = &log.drain()[0];
        assert_eq!((&*line.message, line.fields.as_deref()), ("on with ***", Some(r#"{"a":"***"}"#)));
        assert_eq!(log.masked("it has line\none \"two\" in it"), "it has *** in it");
        let details = serde_json::json!([{ "body": "tok_0123456789tok_0123456789" }]);
        assert_eq!(log.masked_json(details), serde_json::json!([{ "body": "******" }]));
    }

    #[test]
    fn credentials_are_masked_in_the_log_and_by_their_own_mask() {
        let log = RunLog::new(1 << 20);
        log.hide("shown_0123456789");
        log.hide_credentials(["tok_before_refresh", "tok_after_refresh"]);
        let text = "shown_0123456789, tok_before_refresh, tok_after_refresh";
        assert_eq!(log.masked(text), "***, ***, ***");
        assert_eq!(log.credentials_mask().text(text), "shown_0123456789, ***, ***");
    }

    #[test]
    fn a_long_line_is_truncated_between_characters() {
        let log = RunLog::new(1 << 20);
        log.write(LogLevel::Info, &"é".repeat(MAX_LINE_BYTES), None).unwrap();
        let line = &log.drain()[0];
        assert!(line.message.len() <= MAX_LINE_BYTES && line.message.chars().all(|c| c == 'é'));
    }
}
