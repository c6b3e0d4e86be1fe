//! Writes what a function saves: a batch and its checkpoint in one transaction, all of it or nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::functions::{WritableModel, WritableModels};
use super::{Engine, RecordChanges};
use crate::auth::Environments;
use crate::crypto::{PayloadKeys, RecordKeys};
use crate::failpoints::{self, Step};
use crate::ids::{ConnectionPk, ModelName, Variant};
use crate::metrics::{SavedRecords, metrics};
use crate::model::records::{RecordOptions, RecordText, RefusedRecord};
use crate::model::{self, Invalid, OnBadRecord, Problem, Shape};
use crate::runtime::{
    Batch, Change, Counts, Deletion, Failure, Interrupt, Limit, Limits, LogLevel, Outcome, RunLog,
};
use crate::store::dead_letters::{self, Author, NewLetter};
use crate::store::records::{self, IncomingRecord};
use crate::store::streams::LockedStream;
use crate::store::sync_states::{Attempt, CheckpointChange};
use crate::store::{Store, closed_connections, streams, sync_states};

/// Longest checkpoint, in bytes.
const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// Most records of one commit.
const MAX_COMMIT_RECORDS: usize = 100_000;
/// A stream of which more is set aside is a mistake of its function or of its model.
const MAX_DEAD_LETTERS: i64 = 10_000;
/// Of the records that were refused, how many a failure names.
const MAX_NAMED_RECORDS: usize = 20;
/// Text that is longer is read on a thread where it holds nobody up.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// What a run has done to the records of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCounts {
    pub added: u64,
    pub updated: u64,
    pub deleted: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub set_aside: u64,
}

/// Counts by model, as `latestResult` shows them.
pub type RunCounts = BTreeMap<ModelName, ModelCounts>;

/// The right of one invocation to write records of one connection.
pub struct RecordWriter {
    store: Store,
    environments: Arc<Environments>,
    changes: Arc<RecordChanges>,
    author: Author,
    connection: ConnectionPk,
    models: WritableModels,
    metadata_key: Arc<str>,
    /// Only a sync has one, and with it a checkpoint.
    attempt: Option<Attempt>,
    /// A run after a reset brings pruned payloads back.
    restores_pruned: bool,
    batch_bytes: usize,
    record_bytes: usize,
    stream_records: u64,
    records_left: u64,
    records_limit: u64,
    counts: RunCounts,
    log: RunLog,
}

/// A change, checked as far as it can be without the database.
enum CheckedChange<'t> {
    Save { records: Vec<RecordText<'t>>, bad: Vec<RefusedRecord<'t>> },
    Update(Vec<RecordText<'t>>),
    Delete(&'t [String]),
}

type StreamName = (ModelName, Variant);

impl RecordWriter {
    pub fn new(
        engine: &Engine,
        author: Author,
        connection: ConnectionPk,
        models: WritableModels,
        limits: &Limits,
        log: RunLog,
    ) -> Self {
        Self {
            store: engine.store.clone(),
            environments: Arc::clone(&engine.environments),
            changes: Arc::clone(&engine.record_changes),
            author,
            connection,
            models,
            metadata_key: Arc::clone(&engine.settings.record_metadata_key),
            attempt: None,
            restores_pruned: false,
            batch_bytes: limits.batch_bytes,
            record_bytes: limits.record_bytes,
            stream_records: engine.settings.max_stream_records,
            records_left: limits.records,
            records_limit: limits.records,
            counts: RunCounts::new(),
            log,
        }
    }

    /// For a sync: everything is written under its fence, and with its checkpoint.
    /// `carried` is what earlier attempts have counted that was not told yet.
    pub fn for_attempt(self, attempt: Attempt, restores_pruned: bool, carried: RunCounts) -> Self {
        Self { attempt: Some(attempt), restores_pruned, counts: carried, ..self }
    }

    pub async fn commit(&mut self, changes: Vec<Change>, checkpoint: Option<String>) -> Outcome<Counts> {
        let bytes: usize = changes.iter().map(change_bytes).sum();
        if bytes > self.batch_bytes {
            let message = format!(
                "the changes are {bytes} bytes long and one commit takes {}; commit them in smaller batches",
                self.batch_bytes
            );
            return Ok(Err(failure("batch-too-large", message, None)));
        }
        let checkpoint = match self.check_checkpoint(checkpoint) {
            Ok(checkpoint) => checkpoint,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let checked = if bytes > LONG_TEXT_BYTES {
            tokio::task::block_in_place(|| self.check_changes(&changes))
        } else {
            self.check_changes(&changes)
        };
        let checked = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let saved: usize = checked.iter().map(|(_, change)| change.len()).sum();
        if saved > MAX_COMMIT_RECORDS {
            let message = format!(
                "the changes are of {saved} records and one commit takes {MAX_COMMIT_RECORDS}; commit them in smaller batches"
            );
            return Ok(Err(failure("batch-too-large", message, None)));
        }
        if saved as u64 > self.records_left {
            return Err(Interrupt::Limit(Limit::Records(self.records_limit)));
        }
        let written = self.write(checked, &checkpoint).await?;
        if written.is_ok() {
            self.records_left -= saved as u64;
        }
        Ok(written)
    }

    /// The kept payloads of live records, in the order of `ids`.
    pub async fn find(&self, model: &str, ids: &[String]) -> Outcome<Vec<Option<String>>> {
        let model = match self.known_model(model) {
            Ok((model, _)) => model,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let keys = self.record_keys().await?;
        let found = self.find_payloads(&model, ids, &keys).await.map_err(host_failure)?;
        Ok(Ok(ids.iter().map(|id| found.get(id).cloned()).collect()))
    }

    async fn find_payloads(
        &self,
        model: &ModelName,
        ids: &[String],
        keys: &RecordKeys,
    ) -> sqlx::Result<HashMap<String, String>> {
        let mut conn = self.store.connect_records().await?;
        let variant = self.own_variant();
        let Some(key) = streams::find(&mut conn, self.connection, model, &variant).await? else {
            return Ok(HashMap::new());
        };
        let ids = keepable(ids);
        let keys = keys.of_stream(key.connection.0, key.number, false);
        Ok(records::find_payloads(&mut conn, key, &keys, &ids).await?.into_iter().collect())
    }

    /// The environment's record keys. They are on the control side, so this comes before a transaction beside records.
    async fn record_keys(&self) -> Result<Arc<RecordKeys>, Interrupt> {
        let environment = self.author.environment;
        let keys = if self.models.values().any(|model| model.keeping.encrypt) {
            self.environments.ensure_record_keys(environment).await
        } else {
            self.environments.record_keys(environment).await
        };
        keys.map_err(|error| Interrupt::Host(error.into()))
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
            failure("unknown-model", message, None)
        })
    }

    fn check_checkpoint(&self, checkpoint: Option<String>) -> Result<CheckpointChange, Failure> {
        let Some(text) = checkpoint else { return Ok(CheckpointChange::Keep) };
        let refuse = |message: String| Err(failure("invalid-checkpoint", message, None));
        if self.attempt.is_none() {
            return refuse("only a sync has a checkpoint".to_owned());
        }
        if text.len() > MAX_CHECKPOINT_BYTES {
            return refuse(format!("it is {} bytes long and may be {MAX_CHECKPOINT_BYTES}", text.len()));
        }
        match serde_json::from_str::<&RawValue>(&text) {
            Ok(json) if json.get() == "null" => Ok(CheckpointChange::Clear),
            Ok(json) if json.get().starts_with('{') => Ok(CheckpointChange::Set(text)),
            _ => refuse("it must be a JSON object, or null to clear it".to_owned()),
        }
    }

    fn check_changes<'t>(
        &self,
        changes: &'t [Change],
    ) -> Result<Vec<(StreamName, CheckedChange<'t>)>, Failure> {
        changes
            .iter()
            .map(|change| {
                let (model, variant) = match change {
                    Change::Save(Batch { model, variant, .. })
                    | Change::Update(Batch { model, variant, .. })
                    | Change::Delete(Deletion { model, variant, .. }) => (model, variant),
                };
                let variant = self.check_variant(variant.as_deref())?;
                let (model, WritableModel { shape, keeping }) = self.known_model(model)?;
                let checked = match change {
                    Change::Save(batch) => {
                        let (records, bad) = self.check_batch(batch, shape, keeping.on_bad_record)?;
                        CheckedChange::Save { records, bad }
                    }
                    // A change need not be a whole record: it is checked after the merge.
                    Change::Update(batch) => {
                        CheckedChange::Update(self.check_batch(batch, &Shape::any(), OnBadRecord::Fail)?.0)
                    }
                    Change::Delete(deletion) => CheckedChange::Delete(&deletion.ids),
                };
                Ok(((model, variant), checked))
            })
            .collect()
    }

    fn check_variant(&self, named: Option<&str>) -> Result<Variant, Failure> {
        let Some(named) = named else { return Ok(self.own_variant()) };
        let variant: Variant =
            named.parse().map_err(|problem| failure("not-allowed", format!("{problem}"), None))?;
        if self.attempt.as_ref().is_some_and(|attempt| attempt.variant != variant) {
            let message =
                format!("a sync of the variant `{}` cannot write to `{variant}`", self.own_variant());
            return Err(failure("not-allowed", message, None));
        }
        Ok(variant)
    }

    /// Gives the records, and those to be set aside. Of several with one id the last counts, good or bad.
    fn check_batch<'t>(
        &self,
        batch: &'t Batch,
        shape: &Shape,
        on_bad_record: OnBadRecord,
    ) -> Result<(Vec<RecordText<'t>>, Vec<RefusedRecord<'t>>), Failure> {
        let read = model::records::split(&batch.items, shape, self.record_options())
            .map_err(|error| failure("invalid-records", error.to_string(), None))?;
        let (mut records, mut bad) = (read.records, read.refused);
        if !bad.is_empty() && on_bad_record == OnBadRecord::Fail {
            return Err(refused_records(&batch.model, &bad));
        }
        let sent = records.len() + bad.len();
        let last_bad: HashMap<String, usize> =
            bad.iter().filter_map(|bad| Some((bad.id.as_deref()?.to_owned(), bad.index))).collect();
        records.retain(|record| last_bad.get(&*record.id).is_none_or(|bad| *bad < record.index));
        let good: HashSet<&str> = records.iter().map(|record| &*record.id).collect();
        bad.retain(|bad| match bad.id.as_deref() {
            Some(id) => !good.contains(id) && last_bad[id] == bad.index,
            None => true,
        });
        model::records::dedupe(&mut records);
        let superseded = sent - records.len() - bad.len();
        if superseded > 0 {
            let message = format!(
                "a batch of `{}` had {superseded} records under ids that come again; the last of each counts",
                batch.model
            );
            self.log.note(LogLevel::Warn, &message);
        }
        Ok((records, bad))
    }

    fn record_options(&self) -> RecordOptions<'_> {
        RecordOptions { metadata_key: &self.metadata_key, max_bytes: self.record_bytes }
    }

    #[tracing::instrument(level = "debug", name = "commit", skip_all, fields(connection.pk = self.connection.0))]
    async fn write(
        &mut self,
        changes: Vec<(StreamName, CheckedChange<'_>)>,
        checkpoint: &CheckpointChange,
    ) -> Outcome<Counts> {
        let record_keys = self.record_keys().await?;
        let mut tx = self.store.begin_records().await.map_err(host_failure)?;
        let may_write = match &self.attempt {
            Some(attempt) => sync_states::lock(&mut tx, attempt).await.map(|held| held.is_some()),
            None => closed_connections::hold_open(&mut tx, self.connection).await,
        };
        if !may_write.map_err(host_failure)? {
            return Err(Interrupt::Superseded);
        }
        let mut names: Vec<StreamName> = changes.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        let sync = self.attempt.as_ref().map(|attempt| &attempt.sync);
        let mut locked = streams::lock(&mut tx, self.connection, &names, sync).await.map_err(host_failure)?;
        let mut total = Counts { added: 0, updated: 0, deleted: 0, unchanged: 0 };
        let mut counts = self.counts.clone();
        let mut notes = Vec::new();
        for ((model, variant), change) in changes {
            let stream = locked
                .iter_mut()
                .find(|stream| stream.model == model && stream.variant == variant)
                .expect("every named stream was locked");
            let encrypt = self.models[model.as_str()].keeping.encrypt;
            let keys = record_keys.of_stream(stream.key.connection.0, stream.key.number, encrypt);
            let written = self.write_change(&mut tx, stream, &keys, change, &mut notes).await?;
            let (done, unchanged) = match written {
                Ok(done) => done,
                Err(refusal) => return Ok(Err(refusal)),
            };
            total.unchanged += unchanged;
            total.added += done.added;
            total.updated += done.updated;
            total.deleted += done.deleted;
            counts.entry(model).or_default().add(done);
        }
        for stream in &locked {
            streams::store_head(&mut tx, stream).await.map_err(host_failure)?;
        }
        failpoints::reach(Step::BatchWritten);
        if let Some(attempt) = &self.attempt {
            sync_states::store(&mut tx, attempt, checkpoint, &json!(counts)).await.map_err(host_failure)?;
        }
        failpoints::reach(Step::BatchCommitting);
        tx.commit().await.map_err(host_failure)?;
        failpoints::reach(Step::BatchCommitted);
        if total.added + total.updated + total.deleted > 0 {
            self.changes.note(self.connection);
        }
        metrics().count_records(SavedRecords {
            added: total.added,
            updated: total.updated,
            deleted: total.deleted,
            unchanged: total.unchanged,
        });
        self.counts = counts;
        notes.iter().for_each(|note| self.log.note(LogLevel::Warn, note));
        Ok(Ok(total))
    }

    /// Gives what changed, and how many records were saved as they already are.
    async fn write_change(
        &self,
        conn: &mut PgConnection,
        stream: &mut LockedStream,
        keys: &PayloadKeys,
        change: CheckedChange<'_>,
        notes: &mut Vec<String>,
    ) -> Outcome<(ModelCounts, u64)> {
        let (batch, letters) = match change {
            CheckedChange::Save { records, bad } => (
                records.into_iter().map(incoming).collect(),
                bad.into_iter().map(letter_of_refused).collect(),
            ),
            CheckedChange::Update(changes) => {
                match self.merge_into_kept(conn, stream, keys, changes).await.map_err(host_failure)? {
                    Ok(merged) => merged,
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            CheckedChange::Delete(ids) => {
                let ids = keepable(ids);
                let deleted = records::delete(conn, stream, &ids).await.map_err(host_failure)?;
                dead_letters::resolve(conn, stream, &ids).await.map_err(host_failure)?;
                return Ok(Ok((ModelCounts { deleted, ..ModelCounts::default() }, 0)));
            }
        };
        let before = stream.total_count;
        let saved =
            records::save(conn, stream, &batch, keys, self.restores_pruned).await.map_err(host_failure)?;
        ensure_room(stream, before, self.stream_records)?;
        records::mark_seen(conn, stream, &saved.unchanged_positions).await.map_err(host_failure)?;
        let ids: Vec<&str> = batch.iter().map(|record| &*record.external_id).collect();
        dead_letters::resolve(conn, stream, &ids).await.map_err(host_failure)?;
        if !letters.is_empty() {
            self.set_aside(conn, stream, &letters, keys).await.map_err(host_failure)?;
            if stream.dead_letters > MAX_DEAD_LETTERS {
                let message = format!(
                    "more than {MAX_DEAD_LETTERS} records of `{}` would be set aside; nothing was saved",
                    stream.model
                );
                return Ok(Err(failure("invalid-records", message, None)));
            }
            notes.push(set_aside_note(&stream.model, &letters));
        }
        let set_aside = letters.len() as u64;
        let counts = ModelCounts { added: saved.added, updated: saved.updated, deleted: 0, set_aside };
        Ok(Ok((counts, saved.unchanged)))
    }

    async fn set_aside(
        &self,
        conn: &mut PgConnection,
        stream: &mut LockedStream,
        letters: &[NewLetter<'_>],
        keys: &PayloadKeys,
    ) -> sqlx::Result<()> {
        // What does not fit is there at the provider: what is kept of it must not be taken for gone.
        let ids: Vec<&str> = letters.iter().filter_map(|letter| letter.external_id.as_deref()).collect();
        let kept = records::positions(conn, stream.key, &ids).await?;
        records::mark_seen(conn, stream, &kept).await?;
        dead_letters::set_aside(conn, stream, &self.author, letters, keys).await
    }

    async fn merge_into_kept(
        &self,
        conn: &mut PgConnection,
        stream: &LockedStream,
        keys: &PayloadKeys,
        changes: Vec<RecordText<'_>>,
    ) -> sqlx::Result<Result<Merged, Failure>> {
        let ids: Vec<&str> = changes.iter().map(|change| change.id.as_ref()).collect();
        let kept: HashMap<String, String> =
            records::find_payloads(conn, stream.key, keys, &ids).await?.into_iter().collect();
        let WritableModel { shape, keeping } = &self.models[stream.model.as_str()];
        let (mut merged, mut letters) = (Vec::with_capacity(kept.len()), Vec::new());
        for (index, change) in changes.iter().enumerate() {
            let Some(payload) = kept.get(change.id.as_ref()) else { continue };
            let text =
                model::merge(payload, &change.payload).map_err(|error| sqlx::Error::Decode(error.into()))?;
            match model::records::single(&text, shape, self.record_options()) {
                Ok(record) => merged.push(incoming(record).into_owned()),
                Err(invalid) if keeping.on_bad_record == OnBadRecord::SetAside => letters.push(NewLetter {
                    external_id: Some(Cow::Owned(change.id.to_string())),
                    problems: problems_of(&invalid),
                    payload: Cow::Owned(text),
                }),
                Err(invalid) => {
                    let problem = RefusedMerge { index, id: &change.id, invalid: &invalid };
                    return Ok(Err(problem.into_failure(&stream.model)));
                }
            }
        }
        Ok(Ok((merged, letters)))
    }
}

/// Whole records after an update, and those to be set aside.
type Merged = (Vec<IncomingRecord<'static>>, Vec<NewLetter<'static>>);

impl ModelCounts {
    pub fn add(&mut self, other: Self) {
        self.added += other.added;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.set_aside += other.set_aside;
    }

    fn without(self, other: Self) -> Self {
        Self {
            added: self.added.saturating_sub(other.added),
            updated: self.updated.saturating_sub(other.updated),
            deleted: self.deleted.saturating_sub(other.deleted),
            set_aside: self.set_aside.saturating_sub(other.set_aside),
        }
    }
}

/// What is left of `counts` without those that were carried over.
pub fn without_carried(counts: &RunCounts, carried: &RunCounts) -> RunCounts {
    let own = |(model, counts): (&ModelName, &ModelCounts)| {
        (model.clone(), counts.without(carried.get(model).copied().unwrap_or_default()))
    };
    counts.iter().map(own).collect()
}

impl CheckedChange<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Save { records, bad } => records.len() + bad.len(),
            Self::Update(records) => records.len(),
            Self::Delete(ids) => ids.len(),
        }
    }
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Save(batch) | Change::Update(batch) => batch.items.len(),
        Change::Delete(deletion) => deletion.ids.iter().map(String::len).sum(),
    }
}

/// Ends an invocation that would let a stream grow beyond what it may have.
pub(super) fn ensure_room(stream: &LockedStream, before: i64, limit: u64) -> Result<(), Interrupt> {
    if stream.total_count > before && stream.total_count.unsigned_abs() > limit {
        return Err(Interrupt::Limit(Limit::Stream(limit)));
    }
    Ok(())
}

fn letter_of_refused(refused: RefusedRecord<'_>) -> NewLetter<'_> {
    NewLetter {
        external_id: refused.id,
        problems: json!(refused.problems),
        payload: Cow::Borrowed(refused.text),
    }
}

fn problems_of(invalid: &Invalid) -> Value {
    match invalid {
        Invalid::Problems(problems) => json!(problems),
        Invalid::Malformed(malformed) => {
            json!([Problem { path: String::new(), problem: malformed.to_string() }])
        }
    }
}

/// Says it once for a batch, with the first reason.
fn set_aside_note(model: &ModelName, letters: &[NewLetter<'_>]) -> String {
    let first = &letters[0];
    let who = first.external_id.as_deref().map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let (path, problem) = (&first.problems[0]["path"], &first.problems[0]["problem"]);
    let place =
        path.as_str().filter(|path| !path.is_empty()).map(|path| format!("at {path}: ")).unwrap_or_default();
    format!(
        "{} records that are no `{model}` were set aside; the first{who}: {place}{}",
        letters.len(),
        problem.as_str().unwrap_or_default(),
    )
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub(super) fn incoming(record: RecordText<'_>) -> IncomingRecord<'_> {
    IncomingRecord { external_id: record.id, payload_hash: record.hash.0, payload: record.payload }
}

impl IncomingRecord<'_> {
    fn into_owned(self) -> IncomingRecord<'static> {
        IncomingRecord {
            external_id: Cow::Owned(self.external_id.into_owned()),
            payload: Cow::Owned(self.payload.into_owned()),
            payload_hash: self.payload_hash,
        }
    }
}

struct RefusedMerge<'a> {
    index: usize,
    id: &'a str,
    invalid: &'a Invalid,
}

impl RefusedMerge<'_> {
    fn into_failure(self, model: &ModelName) -> Failure {
        let Self { index, id, invalid } = self;
        let message = format!("record {index} (`{id}`) would not be a `{model}` after the update: {invalid}");
        failure("invalid-records", message, Some(json!([{ "index": index, "id": id }])))
    }
}

/// Of these ids those that a record can have: one with a NUL is never kept.
fn keepable(ids: &[String]) -> Vec<&str> {
    ids.iter().map(String::as_str).filter(|id| !id.contains('\0')).collect()
}

/// Names the culprits, with the first one in the message.
fn refused_records(model: &str, refused: &[RefusedRecord<'_>]) -> Failure {
    let named = &refused[..refused.len().min(MAX_NAMED_RECORDS)];
    let first = &named[0];
    let who = first.id.as_deref().map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let what = first.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let others = match refused.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more of the batch cannot be kept either"),
    };
    let message = format!(
        "record {}{who} is no `{model}`: {what}{others}; nothing of the batch was saved",
        first.index
    );
    failure("invalid-records", message, serde_json::to_value(named).ok())
}

fn failure(code: &str, message: String, details: Option<Value>) -> Failure {
    Failure { code: code.to_owned(), message, details: details.map(|details| details.to_string()) }
}

fn host_failure(error: sqlx::Error) -> Interrupt {
    Interrupt::Host(anyhow::Error::new(error).context("records could not be written"))
}
