//! What runs tell while they are on: their log, how far they are, and what they have moved.
//!
//! Once a second everything new of all runs of this host is written together. A run of a sync has its row from the
//! claim on; any other run gets one when it has lasted for a second, so that short ones are written once, at their end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::invoker::run_writer::log_lines;
use crate::records::commit::Changes;
use syncline_sandbox::RunLog;
use syncline_store::Store;
use syncline_store::runs::{self, LogLine, Progress, ProgressCounts, RunStart};

const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is counted of a run while it is on.
#[derive(Debug, Default)]
pub(crate) struct RunMeter {
    sent_bytes: AtomicI64,
    received_bytes: AtomicI64,
    records: AtomicI64,
    progress: Mutex<Option<Progress>>,
    changes: Mutex<Changes>,
}

impl RunMeter {
    pub(crate) fn count_exchange(&self, sent_bytes: usize, received_bytes: usize) {
        self.sent_bytes.fetch_add(sent_bytes as i64, Ordering::Relaxed);
        self.received_bytes.fetch_add(received_bytes as i64, Ordering::Relaxed);
    }

    pub(crate) fn count_records(&self, records: u64) {
        self.records.fetch_add(records.cast_signed(), Ordering::Relaxed);
    }

    pub(crate) fn note_changes(&self, changes: Changes) {
        if !changes.streams.is_empty() {
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).extend(changes);
        }
    }

    /// What the function has changed so far, as far as it is committed.
    pub(crate) fn changes(&self) -> Changes {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_progress(&self, done: u64, total: Option<u64>) {
        let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let progress = Progress { done: number(done), total: total.map(number) };
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    pub(crate) fn figures(&self) -> ProgressCounts {
        ProgressCounts {
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            progress: *self.progress.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The runs that are on at this host.
pub struct LiveRuns {
    store: Store,
    on: Mutex<HashMap<Uuid, Entry>>,
    /// Held while something is written, so that a log is never appended to behind lines that are still to come.
    writing: tokio::sync::Mutex<()>,
}

struct Entry {
    log: RunLog,
    meter: Arc<RunMeter>,
    /// None if its row is there.
    start: Option<RunStart>,
    began: Instant,
    /// Something of it was, or is being, written.
    is_told: bool,
    /// Lines that could not be written.
    left: Vec<LogLine>,
    told: ProgressCounts,
}

/// What is new of a run.
struct RunUpdates {
    run: Uuid,
    start: Option<RunStart>,
    lines: Vec<LogLine>,
    figures: Option<ProgressCounts>,
}

/// A run that is told of until this is dropped.
pub(crate) struct LiveRun {
    pub(crate) id: Uuid,
    runs: Arc<LiveRuns>,
    pub(crate) log: RunLog,
    pub(crate) meter: Arc<RunMeter>,
}

impl LiveRun {
    /// Stops telling of the run, and gives what is left to be written of its log.
    pub(crate) async fn finish(&self) -> Vec<LogLine> {
        let is_told = self.runs.on().get(&self.id).is_some_and(|entry| entry.is_told);
        if is_told {
            // What is being written comes first.
            drop(self.runs.writing.lock().await);
        }
        self.take_lines()
    }

    /// As [`finish`](Self::finish), for somebody who cannot wait.
    pub(crate) fn take_lines(&self) -> Vec<LogLine> {
        let mut lines = self.runs.on().remove(&self.id).map(|entry| entry.left).unwrap_or_default();
        lines.append(&mut log_lines(self.log.drain()));
        lines
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        self.runs.on().remove(&self.id);
    }
}

impl LiveRuns {
    pub fn new(store: Store) -> Arc<Self> {
        Arc::new(Self { store, on: Mutex::default(), writing: tokio::sync::Mutex::default() })
    }

    /// Begins to tell of a run. `start` is what its row will be made of, unless it is there.
    pub(crate) fn begin(self: &Arc<Self>, id: Uuid, start: Option<RunStart>, log: RunLog) -> LiveRun {
        let meter = Arc::<RunMeter>::default();
        let entry = Entry {
            log: log.clone(),
            meter: Arc::clone(&meter),
            start,
            began: Instant::now(),
            is_told: false,
            left: Vec::new(),
            told: ProgressCounts::default(),
        };
        self.on().insert(id, entry);
        LiveRun { id, runs: Arc::clone(self), log, meter }
    }

    /// Writes what is new of the runs that are on, until `shutdown`.
    pub async fn write_news(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(TELL_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let _writing = self.writing.lock().await;
            let news = self.collect();
            if news.is_empty() {
                continue;
            }
            if let Err(error) = write(&self.store, &news).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the progress of runs could not be written; it will be tried again");
                self.put_back(news);
            }
        }
    }

    fn collect(&self) -> Vec<RunUpdates> {
        let mut news = Vec::new();
        for (run, entry) in self.on().iter_mut() {
            if entry.start.is_some() && entry.began.elapsed() < TELL_EVERY {
                continue;
            }
            let mut lines = std::mem::take(&mut entry.left);
            lines.append(&mut log_lines(entry.log.drain()));
            let figures = entry.meter.figures();
            let figures = (figures != entry.told).then_some(figures);
            if entry.start.is_none() && lines.is_empty() && figures.is_none() {
                continue;
            }
            entry.is_told = true;
            entry.told = figures.unwrap_or(entry.told);
            news.push(RunUpdates { run: *run, start: entry.start.take(), lines, figures });
        }
        news
    }

    fn put_back(&self, news: Vec<RunUpdates>) {
        let mut on = self.on();
        for RunUpdates { run, start, lines, figures } in news {
            if let Some(entry) = on.get_mut(&run) {
                entry.start = start;
                entry.left = lines;
                if figures.is_some() {
                    entry.told = ProgressCounts::default();
                }
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.on().len()
    }

    fn on(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(store: &Store, news: &[RunUpdates]) -> sqlx::Result<()> {
    let starts: Vec<RunStart> = news.iter().filter_map(|news| news.start.clone()).collect();
    let lines: Vec<(Uuid, &LogLine)> =
        news.iter().flat_map(|news| news.lines.iter().map(|line| (news.run, line))).collect();
    let figures: Vec<(Uuid, ProgressCounts)> =
        news.iter().filter_map(|news| Some((news.run, news.figures?))).collect();
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
