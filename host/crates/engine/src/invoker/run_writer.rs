//! Writes finished runs of actions in groups, after their responses. If the host dies, it loses at most the runs of the
//! last 100 ms.
//!
//! Runs with long logs have a separate queue, which is written at a bounded rate. So large logs delay only each other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use syncline_sandbox::LogEntry;
use syncline_store::Store;
use syncline_store::runs::{self, FinishedRun, LogLine};
use syncline_types::json;
use syncline_types::sanitize::sanitize_json;

const COLLECT_FOR: Duration = Duration::from_millis(100);
const MAX_GROUP: usize = 1000;
/// Maximum number of queued runs. If the queue is full, the response of an action waits.
const QUEUE: usize = 10_000;
/// A longer log counts as long.
const LONG_LOG_BYTES: usize = 16 << 10;
/// How many bytes of long logs are written after each wait of [`COLLECT_FOR`]: about 10 MB per second.
const LONG_LOGS_AT_ONCE_BYTES: usize = 1 << 20;
/// Like [`QUEUE`], for runs with long logs, which may have several megabytes each.
const LONG_QUEUE: usize = 16;
/// Delays between attempts to write, so that a brief outage of the database loses no runs.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];

/// Queues and writes finished runs.
pub struct RunWriter {
    store: Store,
    short: mpsc::Sender<FinishedRun>,
    long: mpsc::Sender<FinishedRun>,
    short_runs: Mutex<mpsc::Receiver<FinishedRun>>,
    long_runs: Mutex<mpsc::Receiver<FinishedRun>>,
}

impl RunWriter {
    pub fn new(store: Store) -> Arc<Self> {
        let (short, short_runs) = mpsc::channel(QUEUE);
        let (long, long_runs) = mpsc::channel(LONG_QUEUE);
        let (short_runs, long_runs) = (Mutex::new(short_runs), Mutex::new(long_runs));
        Arc::new(Self { store, short, long, short_runs, long_runs })
    }

    /// Writes runs until `shutdown`, and then the runs that are still queued.
    pub async fn write_runs(self: Arc<Self>, shutdown: CancellationToken) {
        let (mut short, mut long) = tokio::join!(self.short_runs.lock(), self.long_runs.lock());
        tokio::join!(
            write_short(&self.store, &mut short, &shutdown),
            write_long(&self.store, &mut long, &shutdown)
        );
    }

    pub async fn write(&self, run: FinishedRun) {
        if self.queue_of(&run).send(run).await.is_err() {
            tracing::error!("a run was not recorded: the run writer has stopped");
        }
    }

    /// Queues a run without waiting. If the queue is full, the run is lost.
    pub fn write_if_there_is_room(&self, run: FinishedRun) {
        if let Err(error) = self.queue_of(&run).try_send(run) {
            tracing::error!(error = &error as &dyn std::error::Error, "a run was not recorded");
        }
    }

    fn queue_of(&self, run: &FinishedRun) -> &mpsc::Sender<FinishedRun> {
        if log_bytes(run) > LONG_LOG_BYTES { &self.long } else { &self.short }
    }
}

async fn write_short(store: &Store, runs: &mut mpsc::Receiver<FinishedRun>, shutdown: &CancellationToken) {
    let mut group = Vec::new();
    while let Some(first) = next(runs, shutdown).await {
        group.push(first);
        // Wait instead of receiving one run at a time: a wake-up for each would slow down actions that end meanwhile.
        tokio::time::sleep(COLLECT_FOR).await;
        while !group.is_empty() {
            while group.len() < MAX_GROUP
                && let Ok(run) = runs.try_recv()
            {
                group.push(run);
            }
            write_group(store, &group).await;
            group.clear();
            group.extend(runs.try_recv());
        }
    }
}

/// Returns the next run. After `shutdown`, accepts no more runs, and returns `None` when the queue is empty.
async fn next(runs: &mut mpsc::Receiver<FinishedRun>, shutdown: &CancellationToken) -> Option<FinishedRun> {
    if let Some(run) = shutdown.run_until_cancelled(runs.recv()).await {
        return run;
    }
    runs.close();
    runs.recv().await
}

async fn write_long(store: &Store, runs: &mut mpsc::Receiver<FinishedRun>, shutdown: &CancellationToken) {
    while let Some(first) = next(runs, shutdown).await {
        tokio::time::sleep(COLLECT_FOR).await;
        let mut bytes = log_bytes(&first);
        let mut group = vec![first];
        while bytes < LONG_LOGS_AT_ONCE_BYTES
            && let Ok(run) = runs.try_recv()
        {
            bytes += log_bytes(&run);
            group.push(run);
        }
        write_group(store, &group).await;
    }
}

async fn write_group(store: &Store, group: &[FinishedRun]) {
    let mut waits = RETRY_DELAYS.into_iter();
    while let Err(error) = write_once(store, group).await {
        let Some(wait) = waits.next() else {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, runs = group.len(), "could not record runs");
            return;
        };
        tokio::time::sleep(wait).await;
    }
}

async fn write_once(store: &Store, group: &[FinishedRun]) -> sqlx::Result<()> {
    let mut tx = store.begin().await?;
    runs::write_finished(&mut tx, group).await?;
    tx.commit().await
}

fn log_bytes(run: &FinishedRun) -> usize {
    let bytes = |line: &LogLine| {
        line.message.len() + line.fields.as_ref().map_or(0, |fields| fields.to_string().len())
    };
    run.log.iter().map(bytes).sum()
}

/// The form in which log lines are stored.
pub(crate) fn log_lines(entries: Vec<LogEntry>) -> Vec<LogLine> {
    let line = |entry: LogEntry| LogLine {
        line: entry.line,
        at: entry.at,
        level: entry.level.as_str(),
        message: entry.message,
        // Fields that are not JSON are stored as text.
        fields: entry.fields.map(|text| sanitize_json(json::parse(&text).unwrap_or(Value::String(text)))),
    };
    entries.into_iter().map(line).collect()
}
