//! Writes the runs of actions in groups, after their answers: at most a tenth of a second of them is at risk.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::nul::json_without_nul;
use crate::runtime::LogEntry;
use crate::store::Store;
use crate::store::runs::{self, FinishedRun, LogLine};

const COLLECT_FOR: Duration = Duration::from_millis(100);
const MAX_GROUP: usize = 1000;
/// More waiting than this, and the answer of an action waits until there is room.
const QUEUE: usize = 10_000;

/// Takes runs that are over.
#[derive(Clone)]
pub struct RunWriter(mpsc::Sender<FinishedRun>);

impl RunWriter {
    /// The second part is the work, to be driven until the last writer is gone.
    pub(super) fn new(store: Store) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), write_groups(store, receiver))
    }

    pub async fn write(&self, run: FinishedRun) {
        if self.0.send(run).await.is_err() {
            tracing::error!("a run was not written: the writer has ended");
        }
    }

    /// For a run whose end nobody waits for.
    pub fn write_if_there_is_room(&self, run: FinishedRun) {
        if let Err(error) = self.0.try_send(run) {
            tracing::error!(error = &error as &dyn std::error::Error, "a run was not written");
        }
    }
}

async fn write_groups(store: Store, mut receiver: mpsc::Receiver<FinishedRun>) {
    let mut group = Vec::new();
    while let Some(first) = receiver.recv().await {
        group.push(first);
        // Not a wait for the next one: being woken for each would cost the actions that end meanwhile.
        tokio::time::sleep(COLLECT_FOR).await;
        while !group.is_empty() {
            while group.len() < MAX_GROUP
                && let Ok(run) = receiver.try_recv()
            {
                group.push(run);
            }
            if let Err(error) = write_group(&store, &group).await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    runs = group.len(),
                    "runs were not written"
                );
            }
            group.clear();
            group.extend(receiver.try_recv());
        }
    }
}

async fn write_group(store: &Store, group: &[FinishedRun]) -> sqlx::Result<()> {
    let mut tx = store.begin().await?;
    runs::write_finished(&mut tx, group).await?;
    tx.commit().await
}

/// The form in which log lines are stored.
pub(super) fn log_lines(entries: Vec<LogEntry>) -> Vec<LogLine> {
    let line = |entry: LogEntry| LogLine {
        line: entry.line,
        at: entry.at,
        level: entry.level.as_str(),
        message: entry.message,
        // Fields that are no JSON are kept as the text they are.
        fields: entry
            .fields
            .map(|text| json_without_nul(serde_json::from_str(&text).unwrap_or(Value::String(text)))),
    };
    entries.into_iter().map(line).collect()
}
