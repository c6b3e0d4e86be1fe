//! Writes the runs of actions in groups, after their answers: at most a tenth of a second of them is at risk.
//!
//! Runs with long logs have a queue of their own, which is written at a bounded rate, so that whoever logs a lot waits
//! behind its like and nobody else does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use syncline_sandbox::LogEntry;
use syncline_store::Store;
use syncline_store::runs::{self, FinishedRun, LogLine};
use syncline_types::sanitize::sanitize_json;

const COLLECT_FOR: Duration = Duration::from_millis(100);
const MAX_GROUP: usize = 1000;
/// More waiting than this, and the answer of an action waits until there is room.
const QUEUE: usize = 10_000;
/// A log beyond this is long.
const LONG_LOG_BYTES: usize = 16 << 10;
/// About how much of long logs is written after each wait of [`COLLECT_FOR`]: 10 MB a second.
const LONG_LOGS_AT_ONCE_BYTES: usize = 1 << 20;
/// As [`QUEUE`], for runs with long logs, of which each may have some megabytes.
const LONG_QUEUE: usize = 16;
/// A database that is away for a moment loses no runs: they are tried again after these waits.
const TRY_AGAIN_AFTER: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];

/// Takes runs that are over.
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

    /// Writes runs, until `shutdown` and until the last that was handed over is written.
    pub async fn write_runs(self: Arc<Self>, shutdown: CancellationToken) {
        let (mut short, mut long) = tokio::join!(self.short_runs.lock(), self.long_runs.lock());
        tokio::join!(
            write_short(&self.store, &mut short, &shutdown),
            write_long(&self.store, &mut long, &shutdown)
        );
    }

    pub async fn write(&self, run: FinishedRun) {
        if self.queue_of(&run).send(run).await.is_err() {
            tracing::error!("a run was not written: the writer has ended");
        }
    }

    /// For a run whose end nobody waits for.
    pub fn write_if_there_is_room(&self, run: FinishedRun) {
        if let Err(error) = self.queue_of(&run).try_send(run) {
            tracing::error!(error = &error as &dyn std::error::Error, "a run was not written");
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
        // Not a wait for the next one: being woken for each would cost the actions that end meanwhile.
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

/// The next run. After `shutdown` nothing more is taken, and `None` says that nothing is left.
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
    let mut waits = TRY_AGAIN_AFTER.into_iter();
    while let Err(error) = write_once(store, group).await {
        let Some(wait) = waits.next() else {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, runs = group.len(), "runs were not written");
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
        // Fields that are no JSON are kept as the text they are.
        fields: entry
            .fields
            .map(|text| sanitize_json(serde_json::from_str(&text).unwrap_or(Value::String(text)))),
    };
    entries.into_iter().map(line).collect()
}
