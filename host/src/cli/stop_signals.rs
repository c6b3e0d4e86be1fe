//! The signals that ask the host to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Listens for SIGTERM and SIGINT from its creation until it is dropped.
pub(super) struct StopSignals {
    requested: CancellationToken,
    listener: JoinHandle<()>,
}

impl StopSignals {
    /// Replaces the default effect of both signals, which is to end the process at once.
    pub(super) fn listen() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let requested = CancellationToken::new();
        let listener = tokio::spawn({
            let requested = requested.clone();
            async move {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                tracing::info!("stopping: received {name}");
                requested.cancel();
            }
        });
        Ok(Self { requested, listener })
    }

    /// Cancelled by the first signal.
    pub(super) fn requested(&self) -> &CancellationToken {
        &self.requested
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.listener.abort();
    }
}
