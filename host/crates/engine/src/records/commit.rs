//! Writes the records that a function saves. A batch and its checkpoint commit in one transaction.

mod checks;
mod counts;
mod writing;

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

pub use self::counts::{Changes, ModelCounts, RunCounts, without_carried};
pub(crate) use self::writing::{check_stream_limit, incoming};

use crate::functions::{WritableModel, WritableModels};
use crate::records::Records;
use crate::records::changes::RecordChanges;
use crate::records::progress::Progress;
use syncline_auth::Environments;
use syncline_crypto::RecordKeys;
use syncline_model::records::RecordOptions;
use syncline_sandbox::{Change, Counts, Failure, GuestError, Interrupt, Limit, Limits, RunLog};
use syncline_store::dead_letters::Author;
use syncline_store::sync_states::Attempt;
use syncline_store::{Store, records, streams};
use syncline_types::failure_code::FailureCode;
use syncline_types::ids::{ConnectionPk, ModelName, Variant};

/// The maximum number of records in one commit.
const MAX_COMMIT_RECORDS: usize = 100_000;
/// Longer text is parsed on a thread where it does not block other tasks.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// Writes records of one connection for one invocation.
pub struct RecordWriter {
    store: Store,
    environments: Arc<Environments>,
    changes: Arc<RecordChanges>,
    author: Author,
    connection: ConnectionPk,
    models: WritableModels,
    metadata_key: Arc<str>,
    /// Only syncs have an attempt, and therefore a checkpoint.
    attempt: Option<Attempt>,
    progress: Option<Progress>,
    /// A run after a reset restores pruned payloads.
    restores_pruned: bool,
    batch_bytes: usize,
    record_bytes: usize,
    /// The memory limit of the function: it cannot receive more than this.
    memory_bytes: usize,
    stream_records: u64,
    records_left: u64,
    records_limit: u64,
    counts: RunCounts,
    log: RunLog,
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
            models,
            metadata_key: Arc::clone(&records.settings.metadata_key),
            attempt: None,
            progress: None,
            restores_pruned: false,
            batch_bytes: limits.batch_bytes,
            record_bytes: limits.record_bytes,
            memory_bytes: limits.memory_bytes,
            stream_records: records.settings.max_stream_records,
            records_left: limits.records,
            records_limit: limits.records,
            counts: RunCounts::new(),
            log,
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
        Self { attempt: Some(attempt), progress, restores_pruned, counts: carried, ..self }
    }

    pub async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Committed, GuestError> {
        let bytes: usize = changes.iter().map(change_bytes).sum();
        if bytes > self.batch_bytes {
            let message = format!(
                "the changes are {bytes} bytes long, but one commit may have at most {}; commit them in smaller \
                 batches",
                self.batch_bytes
            );
            return Err(Failure::new(FailureCode::BatchTooLarge, message).into());
        }
        let checkpoint = self.check_checkpoint(checkpoint)?;
        let checked = if bytes > LONG_TEXT_BYTES {
            tokio::task::block_in_place(|| self.check_changes(&changes))?
        } else {
            self.check_changes(&changes)?
        };
        let saved: usize = checked.iter().map(|(_, change)| change.len()).sum();
        if saved > MAX_COMMIT_RECORDS {
            let message = format!(
                "the changes contain {saved} records, but one commit may have at most {MAX_COMMIT_RECORDS}; use \
                 smaller batches"
            );
            return Err(Failure::new(FailureCode::BatchTooLarge, message).into());
        }
        if saved as u64 > self.records_left {
            return Err(Interrupt::Limit(Limit::Records(self.records_limit)).into());
        }
        let committed = self.write(checked, &checkpoint).await?;
        self.records_left -= saved as u64;
        Ok(committed)
    }

    /// The payloads of the existing records with these ids, in the order of `ids`.
    pub async fn find(&self, model: &str, ids: &[String]) -> Result<Vec<Option<String>>, GuestError> {
        let (model, _) = self.known_model(model)?;
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
        let variant = self.own_variant();
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
        let keys = if self.models.values().any(|model| model.keeping.encrypt) {
            self.environments.ensure_record_keys(environment).await
        } else {
            self.environments.record_keys(environment).await
        };
        keys.map_err(|error| Interrupt::Host(error.into()))
    }

    fn record_options(&self) -> RecordOptions<'_> {
        RecordOptions { metadata_key: &self.metadata_key, max_bytes: self.record_bytes }
    }

    fn own_variant(&self) -> Variant {
        self.attempt.as_ref().map_or_else(Variant::base, |attempt| attempt.variant.clone())
    }

    fn known_model(&self, name: &str) -> Result<(ModelName, &WritableModel), Failure> {
        self.models.get_key_value(name).map(|(name, model)| (name.clone(), model)).ok_or_else(|| {
            let known: Vec<_> = self.models.keys().map(|name| format!("`{name}`")).collect();
            let message = match known.as_slice() {
                [] => format!("the function saves `{name}`, but it declares no models"),
                _ => format!("the function saves `{name}`, but it declares only {}", known.join(", ")),
            };
            Failure::new(FailureCode::UnknownModel, message)
        })
    }
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Save(batch) | Change::Update(batch) => batch.items.len(),
        Change::Delete(deletion) => deletion.ids.iter().map(String::len).sum(),
    }
}

/// Returns the ids that a stored record can have: none contains a NUL character.
fn storable(ids: &[String]) -> Vec<&str> {
    ids.iter().map(String::as_str).filter(|id| !id.contains('\0')).collect()
}

fn host_failure(error: sqlx::Error) -> Interrupt {
    Interrupt::Host(anyhow::Error::new(error).context("records could not be written"))
}
