//! Publishes the log, progress and traffic of runs in progress.
//!
//! Once a second, this host writes the new data of all its runs together. A run of a sync has a row from its claim on.
//! Any other run gets a row after one second, so that short runs are written only once, at their end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::credentials::rejection::Rejection;
use crate::invoker::run_writer::log_lines;
use crate::records::commit::Changes;
use syncline_sandbox::RunLog;
use syncline_store::Store;
use syncline_store::runs::{self, LogLine, Progress, ProgressCounts, RunStart};

const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of a run in progress.
#[derive(Debug, Default)]
pub(crate) struct RunMeter {
    sent_bytes: AtomicI64,
    received_bytes: AtomicI64,
    records: AtomicI64,
    backoff_ms: AtomicI64,
    progress: Mutex<Option<Progress>>,
    changes: Mutex<Changes>,
    rejection: Mutex<Option<Rejection>>,
}

impl RunMeter {
    pub(crate) fn count_exchange(&self, sent_bytes: usize, received_bytes: usize) {
        self.sent_bytes.fetch_add(sent_bytes as i64, Ordering::Relaxed);
        self.received_bytes.fetch_add(received_bytes as i64, Ordering::Relaxed);
    }

    pub(crate) fn count_records(&self, records: u64) {
        self.records.fetch_add(records.cast_signed(), Ordering::Relaxed);
    }

    /// Adds the time for which a request waited because of a rate limit.
    pub(crate) fn count_backoff(&self, waited: Duration) {
        let waited = i64::try_from(waited.as_millis()).unwrap_or(i64::MAX);
        self.backoff_ms.fetch_add(waited, Ordering::Relaxed);
    }

    pub(crate) fn note_changes(&self, changes: Changes) {
        if !changes.streams.is_empty() {
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).extend(changes);
        }
    }

    /// The committed changes of the function so far.
    pub(crate) fn changes(&self) -> Changes {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_progress(&self, done: u64, total: Option<u64>) {
        let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let progress = Progress { done: number(done), total: total.map(number) };
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Notes that the provider has rejected the connection's credentials, or with `None` that it has accepted them.
    pub(crate) fn note_rejection(&self, rejection: Option<Rejection>) {
        *self.rejection.lock().unwrap_or_else(PoisonError::into_inner) = rejection;
    }

    /// The provider's rejection of the credentials, unless it has accepted them since.
    pub(crate) fn rejection(&self) -> Option<Rejection> {
        self.rejection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn figures(&self) -> ProgressCounts {
        ProgressCounts {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            backoff_ms: self.backoff_ms.load(Ordering::Relaxed),
            progress: *self.progress.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The runs in progress on this host.
pub struct LiveRuns {
    store: Store,
    entries: Mutex<HashMap<Uuid, Entry>>,
    /// Held during a write, so that no one appends to a log before the lines that are still being written.
    writing: tokio::sync::Mutex<()>,
}

struct Entry {
    log: RunLog,
    meter: Arc<RunMeter>,
    /// `None` if the run has a row already.
    start: Option<RunStart>,
    started_at: Instant,
    /// Part of the run was written, or is being written.
    is_written: bool,
    /// Lines that could not be written yet.
    unwritten: Vec<LogLine>,
    written_figures: ProgressCounts,
}

/// Changes of a run that are not written yet.
struct RunUpdates {
    run: Uuid,
    start: Option<RunStart>,
    lines: Vec<LogLine>,
    figures: Option<ProgressCounts>,
}

/// A run whose data is published until this is dropped.
pub(crate) struct LiveRun {
    pub(crate) id: Uuid,
    runs: Arc<LiveRuns>,
    pub(crate) log: RunLog,
    pub(crate) meter: Arc<RunMeter>,
}

impl LiveRun {
    /// Stops publishing the run, and returns the lines of its log that are not written yet.
    pub(crate) async fn finish(&self) -> Vec<LogLine> {
        let is_written = self.runs.entries().get(&self.id).is_some_and(|entry| entry.is_written);
        if is_written {
            // Lines that are being written come first.
            drop(self.runs.writing.lock().await);
        }
        self.take_lines()
    }

    /// Like [`finish`](Self::finish), without waiting.
    pub(crate) fn take_lines(&self) -> Vec<LogLine> {
        let mut lines = self.runs.entries().remove(&self.id).map(|entry| entry.unwritten).unwrap_or_default();
        lines.append(&mut log_lines(self.log.drain()));
        lines
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        self.runs.entries().remove(&self.id);
    }
}

impl LiveRuns {
    pub fn new(store: Store) -> Arc<Self> {
        Arc::new(Self { store, entries: Mutex::default(), writing: tokio::sync::Mutex::default() })
    }

    /// Starts publishing a run. `start` describes the row to create; `None` if the run has a row already.
    pub(crate) fn begin(self: &Arc<Self>, id: Uuid, start: Option<RunStart>, log: RunLog) -> LiveRun {
        let meter = Arc::<RunMeter>::default();
        let entry = Entry {
            log: log.clone(),
            meter: Arc::clone(&meter),
            start,
            started_at: Instant::now(),
            is_written: false,
            unwritten: Vec::new(),
            written_figures: ProgressCounts::default(),
        };
        self.entries().insert(id, entry);
        LiveRun { id, runs: Arc::clone(self), log, meter }
    }

    /// Writes new data of runs in progress, until `shutdown`.
    pub async fn write_news(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let _writing = self.writing.lock().await;
            let updates = self.collect();
            if updates.is_empty() {
                continue;
            }
            if let Err(error) = write(&self.store, &updates).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not write the progress of runs; retrying");
                self.put_back(updates);
            }
        }
    }

    fn collect(&self) -> Vec<RunUpdates> {
        let mut updates = Vec::new();
        for (run, entry) in self.entries().iter_mut() {
            if entry.start.is_some() && entry.started_at.elapsed() < WRITE_INTERVAL {
                continue;
            }
            let mut lines = std::mem::take(&mut entry.unwritten);
            lines.append(&mut log_lines(entry.log.drain()));
            let figures = entry.meter.figures();
            let figures = (figures != entry.written_figures).then_some(figures);
            if entry.start.is_none() && lines.is_empty() && figures.is_none() {
                continue;
            }
            entry.is_written = true;
            entry.written_figures = figures.unwrap_or(entry.written_figures);
            updates.push(RunUpdates { run: *run, start: entry.start.take(), lines, figures });
        }
        updates
    }

    fn put_back(&self, updates: Vec<RunUpdates>) {
        let mut entries = self.entries();
        for RunUpdates { run, start, lines, figures } in updates {
            if let Some(entry) = entries.get_mut(&run) {
                entry.start = start;
                entry.unwritten = lines;
                if figures.is_some() {
                    entry.written_figures = ProgressCounts::default();
                }
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(store: &Store, updates: &[RunUpdates]) -> sqlx::Result<()> {
    let starts: Vec<RunStart> = updates.iter().filter_map(|update| update.start.clone()).collect();
    let lines: Vec<(Uuid, &LogLine)> =
        updates.iter().flat_map(|update| update.lines.iter().map(|line| (update.run, line))).collect();
    let figures: Vec<(Uuid, ProgressCounts)> =
        updates.iter().filter_map(|update| Some((update.run, update.figures?))).collect();
    let mut conn = store.connect().await?;
    if !starts.is_empty() {
        runs::open(&mut conn, &starts).await?;
    }
    runs::append_logs(&mut conn, &lines).await?;
    if !figures.is_empty() {
        runs::note_progress_counts(&mut conn, &figures).await?;
    }
    Ok(())
}
