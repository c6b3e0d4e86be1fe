//! Writes the records that a function saves. A batch and its checkpoint commit in one transaction.

pub(crate) mod checks;
mod counts;
pub(crate) mod writing;

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

pub(crate) use self::checks::incoming;
pub use self::counts::{Changes, ModelCounts, RunCounts, without_carried};
pub(crate) use self::writing::check_stream_limit;

use self::checks::{ChangeChecks, CheckedCommit, change_bytes};
use crate::functions::WritableModels;
use crate::records::Records;
use crate::records::changes::RecordChanges;
use crate::records::progress::Progress;
use syncline_auth::Environments;
use syncline_crypto::RecordKeys;
use syncline_sandbox::{Change, Counts, GuestError, Interrupt, Limit, Limits, RunLog};
use syncline_store::dead_letters::Author;
use syncline_store::sync_states::Attempt;
use syncline_store::{Store, records, streams};
use syncline_types::ids::{ConnectionPk, ModelName, Variant};

/// Longer text is parsed on a thread where it does not block other tasks.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// Writes records of one connection for one invocation.
pub struct RecordWriter {
    store: Store,
    environments: Arc<Environments>,
    changes: Arc<RecordChanges>,
    author: Author,
    connection: ConnectionPk,
    checks: ChangeChecks,
    /// Only syncs have an attempt, and therefore a checkpoint.
    attempt: Option<Attempt>,
    progress: Option<Progress>,
    /// A run after a reset restores pruned payloads.
    restores_pruned: bool,
    /// The memory limit of the function: it cannot receive more than this.
    memory_bytes: usize,
    stream_records: u64,
    counts: RunCounts,
    /// The changes of commits whose outcome is not known, without counts.
    unconfirmed: Changes,
}

pub type StreamName = (ModelName, Variant);

/// The result of a commit.
#[derive(Debug)]
pub struct Committed {
    pub counts: Counts,
    pub changed: Changes,
    /// The commit did more than repeat earlier commits of its run.
    pub makes_progress: bool,
}

impl RecordWriter {
    pub fn new(
        records: &Records,
        author: Author,
        connection: ConnectionPk,
        models: WritableModels,
        limits: &Limits,
        log: RunLog,
    ) -> Self {
        Self {
            store: records.store.clone(),
            environments: Arc::clone(&records.environments),
            changes: Arc::clone(&records.changes),
            author,
            connection,
            checks: ChangeChecks::new(models, Arc::clone(&records.settings.metadata_key), None, limits, log),
            attempt: None,
            progress: None,
            restores_pruned: false,
            memory_bytes: limits.memory_bytes,
            stream_records: records.settings.max_stream_records,
            counts: RunCounts::new(),
            unconfirmed: Changes::default(),
        }
    }

    /// For a sync: every write checks the fencing token of the attempt and includes its checkpoint. `carried` contains
    /// the unreported counts of earlier attempts, the first of which began at `since`.
    pub fn for_attempt(
        self,
        attempt: Attempt,
        restores_pruned: bool,
        carried: RunCounts,
        since: DateTime<Utc>,
    ) -> Self {
        let progress = Some(Progress::new(since));
        let checks = self.checks.for_sync(attempt.variant.clone());
        Self { attempt: Some(attempt), checks, progress, restores_pruned, counts: carried, ..self }
    }

    pub async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Committed, GuestError> {
        let bytes: usize = changes.iter().map(change_bytes).sum();
        let check = || self.checks.check(&changes, checkpoint);
        let CheckedCommit { changes, checkpoint, saved } =
            if bytes > LONG_TEXT_BYTES { tokio::task::block_in_place(check)? } else { check()? };
        let committed = self.write(changes, &checkpoint).await?;
        self.checks.count(saved);
        Ok(committed)
    }

    /// The checks of this writer, with a log of their own.
    pub(crate) fn copy_checks(&self) -> ChangeChecks {
        let mut checks = self.checks.clone();
        checks.log = RunLog::new(0);
        checks
    }

    /// Takes the changes that may have been committed although [`commit`](Self::commit) failed. They have no counts.
    pub fn take_unconfirmed(&mut self) -> Changes {
        std::mem::take(&mut self.unconfirmed)
    }

    /// The payloads of the existing records with these ids, in the order of `ids`.
    pub async fn find(&self, model: &str, ids: &[String]) -> Result<Vec<Option<String>>, GuestError> {
        let (model, _) = self.checks.known_model(model)?;
        let keys = self.record_keys().await?;
        let found = self.find_payloads(&model, ids, &keys).await.map_err(host_failure)?;
        let found = found.ok_or(Interrupt::Limit(Limit::Memory(self.memory_bytes)))?;
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn find_payloads(
        &self,
        model: &ModelName,
        ids: &[String],
        keys: &RecordKeys,
    ) -> sqlx::Result<Option<HashMap<String, String>>> {
        let mut conn = self.store.connect_records().await?;
        let variant = self.checks.own_variant();
        let Some(key) = streams::find(&mut conn, self.connection, model, &variant).await? else {
            return Ok(Some(HashMap::new()));
        };
        let ids = storable(ids);
        let keys = keys.of_stream(key.connection.0, key.number, false);
        let found = records::find_payloads(&mut conn, key, &keys, &ids, self.memory_bytes).await?;
        Ok(found.map(|found| found.into_iter().collect()))
    }

    /// The environment's record keys. They are in the control database, so they are read before a transaction in the
    /// records database begins.
    async fn record_keys(&self) -> Result<Arc<RecordKeys>, Interrupt> {
        let environment = self.author.environment;
        let keys = if self.checks.models.values().any(|model| model.keeping.encrypt) {
            self.environments.ensure_record_keys(environment).await
        } else {
            self.environments.record_keys(environment).await
        };
        keys.map_err(|error| Interrupt::Host(error.into()))
    }
}

/// Returns the ids that a stored record can have: none contains a NUL character.
pub(crate) fn storable(ids: &[String]) -> Vec<&str> {
    ids.iter().map(String::as_str).filter(|id| !id.contains('\0')).collect()
}

fn host_failure(error: sqlx::Error) -> Interrupt {
    Interrupt::Host(anyhow::Error::new(error).context("records could not be written"))
}
