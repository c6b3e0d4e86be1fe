//! The log of one invocation: what the guest writes by `log.write`, on stdout and on stderr.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

use super::Limit;
use crate::nul::without_nul;

/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 10_000;
/// What a line costs besides its text.
const LINE_OVERHEAD_BYTES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
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

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn push(&mut self, level: LogLevel, message: &str, fields: Option<String>) {
        let end = message.floor_char_boundary(MAX_LINE_BYTES);
        let message = without_nul(&message[..end]);
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
    fn a_long_line_is_cut_between_characters() {
        let log = RunLog::new(1 << 20);
        log.write(LogLevel::Info, &"é".repeat(MAX_LINE_BYTES), None).unwrap();
        let line = &log.drain()[0];
        assert!(line.message.len() <= MAX_LINE_BYTES && line.message.chars().all(|c| c == 'é'));
    }
}
