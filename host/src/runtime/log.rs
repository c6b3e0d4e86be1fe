//! The log of one invocation: what the guest writes by `log.write`, on stdout and on stderr.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::Limit;
use crate::nul::without_nul;

/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 10_000;
/// Shorter values are not taken for secrets: hiding them would hide half of what is said.
const MIN_SECRET_BYTES: usize = 6;
/// What a secret is shown as.
const HIDDEN: &str = "***";
/// What a line costs besides its text.
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
    /// Counts from 0 within the invocation.
    pub line: i32,
    pub at: DateTime<Utc>,
    pub level: LogLevel,
    pub message: String,
    /// A JSON object.
    pub fields: Option<String>,
}

/// A log that the invocation fills and its caller empties, from another task if it likes.
#[derive(Debug, Clone)]
pub struct RunLog(Arc<Mutex<Buffer>>);

#[derive(Debug, Default)]
struct Buffer {
    entries: Vec<LogEntry>,
    next_line: i32,
    written_bytes: usize,
    traced_bytes: usize,
    limit_bytes: usize,
    /// Longest first, so that a part of one does not hide in another.
    hidden: Vec<String>,
}

impl RunLog {
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Buffer { limit_bytes, ..Buffer::default() })))
    }

    /// Adds a line. Fails once the log holds more than it may.
    pub fn write(&self, level: LogLevel, message: &str, fields: Option<String>) -> Result<(), Limit> {
        let mut buffer = self.lock();
        let size =
            message.len().min(MAX_LINE_BYTES) + fields.as_ref().map_or(0, String::len) + LINE_OVERHEAD_BYTES;
        if buffer.written_bytes + size > buffer.limit_bytes {
            return Err(Limit::Log(buffer.limit_bytes));
        }
        buffer.written_bytes += size;
        buffer.push(level, message, fields);
        Ok(())
    }

    /// Adds a line of the host's own, which the limit does not stop.
    pub fn note(&self, level: LogLevel, message: &str) {
        self.lock().push(level, message, None);
    }

    /// Adds a line about the guest's doings, such as a request that it sent, for as long as they fill no more than
    /// half of what the guest may write itself.
    pub fn trace(&self, message: &str) {
        let mut buffer = self.lock();
        let size = message.len() + LINE_OVERHEAD_BYTES;
        if buffer.traced_bytes + size <= buffer.limit_bytes / 2 {
            buffer.traced_bytes += size;
            buffer.push(LogLevel::Debug, message, None);
        }
    }

    /// Takes what was added since the last time.
    pub fn drain(&self) -> Vec<LogEntry> {
        std::mem::take(&mut self.lock().entries)
    }

    /// Keeps a value that the function is shown out of everything that is written from now on.
    pub fn hide(&self, secret: &str) {
        if secret.len() < MIN_SECRET_BYTES {
            return;
        }
        let mut buffer = self.lock();
        // In fields it is written as JSON has it.
        let quoted = Value::from(secret).to_string();
        for form in [secret, &quoted[1..quoted.len() - 1]] {
            if !buffer.hidden.iter().any(|hidden| hidden == form) {
                buffer.hidden.push(form.to_owned());
            }
        }
        buffer.hidden.sort_by_key(|hidden| std::cmp::Reverse(hidden.len()));
    }

    /// As [`hide`](Self::hide), for every text in a document.
    pub fn hide_all(&self, secrets: &Value) {
        match secrets {
            Value::String(secret) => self.hide(secret),
            Value::Array(values) => values.iter().for_each(|value| self.hide_all(value)),
            Value::Object(members) => members.values().for_each(|value| self.hide_all(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The text without what is hidden.
    pub fn masked(&self, text: &str) -> String {
        self.lock().masked(text)
    }

    /// Likewise, for every text in a document.
    pub fn masked_json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.masked(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.masked_json(value)).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(name, value)| (name, self.masked_json(value))).collect()
            }
            other => other,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn push(&mut self, level: LogLevel, message: &str, fields: Option<String>) {
        let message = self.masked(message);
        let end = message.floor_char_boundary(MAX_LINE_BYTES);
        let message = without_nul(&message[..end]);
        let fields = fields.map(|fields| self.masked(&fields));
        self.entries.push(LogEntry { line: self.next_line, at: Utc::now(), level, message, fields });
        self.next_line = self.next_line.saturating_add(1);
    }

    fn masked(&self, text: &str) -> String {
        let mut masked = text.to_owned();
        for secret in &self.hidden {
            if masked.contains(secret.as_str()) {
                masked = masked.replace(secret.as_str(), HIDDEN);
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_takes_as_much_as_it_may_and_the_hosts_own_lines() {
        let log = RunLog::new(200);
        assert!(log.write(LogLevel::Info, "first", None).is_ok());
        assert!(log.write(LogLevel::Info, &"x".repeat(100), None).is_err());
        log.note(LogLevel::Error, "ended");
        let lines: Vec<_> = log.drain().into_iter().map(|entry| (entry.line, entry.message)).collect();
        assert_eq!(lines, [(0, "first".to_owned()), (1, "ended".to_owned())]);
        assert!(log.drain().is_empty());
    }

    #[test]
    fn what_is_hidden_is_in_no_line_and_no_error() {
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
    fn a_long_line_is_cut_between_characters() {
        let log = RunLog::new(1 << 20);
        log.write(LogLevel::Info, &"é".repeat(MAX_LINE_BYTES), None).unwrap();
        let line = &log.drain()[0];
        assert!(line.message.len() <= MAX_LINE_BYTES && line.message.chars().all(|c| c == 'é'));
    }
}
