//! Writes a guest's standard output and standard error to the run's log, line by line.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use super::{Interrupt, Limit, LogLevel, RunLog};

/// A longer line is split at this length.
const MAX_UNFINISHED_BYTES: usize = 10_000;
/// The number of bytes that a guest may write before it checks again.
const PERMIT_BYTES: usize = 64 << 10;

/// A guest's output streams. When this is dropped, a last line without a line break is logged as well, however the
/// invocation ended.
pub(super) struct Output {
    pub(super) stdout: LogStream,
    pub(super) stderr: LogStream,
}

impl Output {
    pub(super) fn new(log: &RunLog) -> Self {
        let stream = |level| LogStream { level, log: log.clone(), unfinished: Arc::default() };
        Self { stdout: stream(LogLevel::Info), stderr: stream(LogLevel::Warn) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.stdout.finish();
        self.stderr.finish();
    }
}

/// One of a guest's output streams.
#[derive(Clone)]
pub(super) struct LogStream {
    level: LogLevel,
    log: RunLog,
    unfinished: Arc<Mutex<Vec<u8>>>,
}

impl LogStream {
    fn append(&self, bytes: &[u8]) -> Result<(), Limit> {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            unfinished.extend_from_slice(part);
            if unfinished.ends_with(b"\n") || unfinished.len() >= MAX_UNFINISHED_BYTES {
                self.write_line(&mut unfinished)?;
            }
        }
        Ok(())
    }

    /// Logs the last line, which may have no line break.
    fn finish(&self) {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        if !unfinished.is_empty() {
            let _over_the_limit = self.write_line(&mut unfinished);
        }
    }

    fn write_line(&self, unfinished: &mut Vec<u8>) -> Result<(), Limit> {
        let line = std::mem::take(unfinished);
        let text = String::from_utf8_lossy(&line);
        self.log.write(self.level, text.trim_end_matches(['\n', '\r']), None)
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for LogStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(
            self.append(bytes)
                .map(|()| bytes.len())
                .map_err(|limit| std::io::Error::other(limit.to_string())),
        )
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait::async_trait]
impl Pollable for LogStream {
    async fn ready(&mut self) {}
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes).map_err(|limit| StreamError::Trap(Interrupt::Limit(limit).into()))
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PERMIT_BYTES)
    }
}
