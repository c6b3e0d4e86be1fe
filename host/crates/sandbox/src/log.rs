//! The log of one invocation: what the guest writes by `log.write`, on stdout and on stderr.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::Limit;
use syncline_types::sanitize::sanitize_text;
use syncline_types::secret::Mask;

/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 10_000;
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
    /// Everything that no line may show.
    hidden: Mask,
    /// Of these, the connection's credentials, which nobody may be shown in an error either.
    credentials: Mask,
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

    /// Masks a value that the function is shown in every line from now on.
    pub fn hide(&self, secret: &str) {
        self.lock().hidden.add(secret);
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

    /// As [`hide`](Self::hide), for credentials of the connection: the provider may repeat them, and then they are not
    /// for whoever called the function.
    pub fn hide_credentials<'s>(&self, credentials: impl IntoIterator<Item = &'s str>) {
        let mut buffer = self.lock();
        for secret in credentials {
            buffer.hidden.add(secret);
            buffer.credentials.add(secret);
        }
    }

    /// Masks the connection's credentials, as far as the run has used or seen them.
    pub fn credentials_mask(&self) -> Mask {
        self.lock().credentials.clone()
    }

    /// The text without what is hidden.
    pub fn masked(&self, text: &str) -> String {
        self.lock().hidden.text(text).into_owned()
    }

    /// The same for every text in a document.
    pub fn masked_json(&self, value: Value) -> Value {
        self.lock().hidden.json(value)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
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
    fn credentials_are_hidden_like_everything_else_and_known_apart() {
        let log = RunLog::new(1 << 20);
        log.hide("shown_0123456789");
        log.hide_credentials(["tok_before_refresh", "tok_after_refresh"]);
        let said = "shown_0123456789, tok_before_refresh, tok_after_refresh";
        assert_eq!(log.masked(said), "***, ***, ***");
        assert_eq!(log.credentials_mask().text(said), "shown_0123456789, ***, ***");
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let log = RunLog::new(1 << 20);
        log.write(LogLevel::Info, &"é".repeat(MAX_LINE_BYTES), None).unwrap();
        let line = &log.drain()[0];
        assert!(line.message.len() <= MAX_LINE_BYTES && line.message.chars().all(|c| c == 'é'));
    }
}
