//! Writes checked changes in one transaction of the records database.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::records::commit::checks::{CheckedChange, MergedRecord, incoming, letter_of_refused};
use crate::records::commit::{
    Changes, Committed, ModelCounts, RecordWriter, StreamName, host_failure, storable,
};
use crate::records::progress::StreamProgress;
use syncline_crypto::PayloadKeys;
use syncline_model::records::RecordText;
use syncline_model::{OnBadRecord, Problem};
use syncline_sandbox::{Counts, Failure, GuestError, Interrupt, Limit, LogLevel};
use syncline_store::dead_letters::{self, NewLetter};
use syncline_store::records::{self, IncomingRecord};
use syncline_store::streams::LockedStream;
use syncline_store::sync_states::CheckpointChange;
use syncline_store::{RecordsTransaction, closed_connections, streams, sync_states};
use syncline_telemetry::failpoints::{self, Step};
use syncline_telemetry::metrics::{SavedRecords, metrics};
use syncline_types::failure_code::FailureCode;
use syncline_types::ids::ModelName;

/// More dead letters in one stream indicate an error in the function or the model.
const MAX_DEAD_LETTERS: i64 = 10_000;
/// Why a record whose payload was pruned cannot be updated.
const PRUNED: &str = "its payload was pruned, so the update cannot be merged; save the complete record";

/// Complete records after an update, and the records to set aside.
type Merged = (Vec<IncomingRecord<'static>>, Vec<NewLetter<'static>>);

impl RecordWriter {
    #[tracing::instrument(level = "debug", name = "commit", skip_all, fields(connection.pk = self.connection.0))]
    pub(crate) async fn write(
        &mut self,
        changes: Vec<(StreamName, CheckedChange<'_>)>,
        checkpoint: &CheckpointChange,
    ) -> Result<Committed, GuestError> {
        let record_keys = self.record_keys().await?;
        let mut tx = self.store.begin_records().await.map_err(host_failure)?;
        let may_write = match &self.attempt {
            Some(attempt) => sync_states::lock(&mut tx, attempt).await.map(|held| held.is_some()),
            None => closed_connections::hold_open(&mut tx, self.connection).await,
        };
        if !may_write.map_err(host_failure)? {
            return Err(Interrupt::Superseded.into());
        }
        let mut names: Vec<StreamName> = changes.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        let sync = self.attempt.as_ref().map(|attempt| &attempt.sync);
        let mut locked = streams::lock(&mut tx, self.connection, &names, sync).await.map_err(host_failure)?;
        let mut total = Counts { added: 0, updated: 0, deleted: 0, unchanged: 0 };
        let mut counts = self.counts.clone();
        let mut changed = Changes::default();
        let mut stream_progress = Vec::new();
        let mut notes = Vec::new();
        for ((model, variant), change) in changes {
            let stream = locked
                .iter_mut()
                .find(|stream| stream.model == model && stream.variant == variant)
                .expect("every named stream was locked");
            let encrypt = self.checks.models[model.as_str()].keeping.encrypt;
            let keys = record_keys.of_stream(stream.key.connection.0, stream.key.number, encrypt);
            let (done, progress) = self.write_change(&mut tx, stream, &keys, change, &mut notes).await?;
            total.unchanged += progress.unchanged.len();
            total.added += done.added;
            total.updated += done.updated;
            total.deleted += done.deleted;
            stream_progress.push(progress);
            counts.entry(model.clone()).or_default().add(done);
            changed.add((model, variant), done, stream.now);
        }
        for stream in &locked {
            streams::store_head(&mut tx, stream).await.map_err(host_failure)?;
        }
        failpoints::reach(Step::BatchWritten);
        if let Some(attempt) = &self.attempt {
            let makes_progress =
                self.progress.as_ref().is_some_and(|progress| progress.is_new_to_row(&stream_progress));
            sync_states::store(&mut tx, attempt, checkpoint, &json!(counts), makes_progress)
                .await
                .map_err(host_failure)?;
        }
        failpoints::reach(Step::BatchCommitting);
        if let Err(error) = tx.commit().await {
            // The response may be lost although Postgres has committed.
            self.unconfirmed.extend(changed.without_counts());
            return Err(host_failure(error).into());
        }
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
        notes.iter().for_each(|note| self.checks.log.note(LogLevel::Warn, note));
        let makes_progress =
            self.progress.as_mut().is_some_and(|progress| progress.record_commit(stream_progress));
        Ok(Committed { counts: total, changed, makes_progress })
    }

    async fn write_change(
        &self,
        tx: &mut RecordsTransaction,
        stream: &mut LockedStream,
        keys: &PayloadKeys,
        change: CheckedChange<'_>,
        notes: &mut Vec<String>,
    ) -> Result<(ModelCounts, StreamProgress), GuestError> {
        let (batch, letters) = match change {
            CheckedChange::Save { records, bad } => (
                records.into_iter().map(incoming).collect(),
                bad.into_iter().map(letter_of_refused).collect(),
            ),
            CheckedChange::Update(changes) => self.merge_into_stored(tx, stream, keys, changes).await?,
            CheckedChange::Delete(ids) => {
                let ids = storable(ids);
                let deleted = records::delete(tx, stream, &ids).await.map_err(host_failure)?;
                dead_letters::resolve(tx, stream, &ids).await.map_err(host_failure)?;
                let counts = ModelCounts { deleted: deleted.count, ..ModelCounts::default() };
                let progress = StreamProgress { replaced_since: deleted.since, ..StreamProgress::of(stream) };
                return Ok((counts, progress));
            }
        };
        let (before, letters_before) = (stream.total_count, stream.dead_letters);
        let saved =
            records::save(tx, stream, &batch, keys, self.restores_pruned).await.map_err(host_failure)?;
        check_stream_limit(stream, before, self.stream_records).map_err(Interrupt::Limit)?;
        records::mark_seen(tx, stream, &saved.unchanged_positions).await.map_err(host_failure)?;
        let ids: Vec<&str> = batch.iter().map(|record| &*record.external_id).collect();
        dead_letters::resolve(tx, stream, &ids).await.map_err(host_failure)?;
        if !letters.is_empty() {
            self.set_aside(tx, stream, &letters, keys).await.map_err(host_failure)?;
            if stream.dead_letters > MAX_DEAD_LETTERS {
                let message = format!(
                    "more than {MAX_DEAD_LETTERS} records of `{}` would be set aside; the batch was not saved",
                    stream.model
                );
                return Err(Failure::new(FailureCode::InvalidRecords, message).into());
            }
            notes.push(set_aside_note(&stream.model, &letters));
        }
        let set_aside = letters.len() as u64;
        let counts = ModelCounts { added: saved.added, updated: saved.updated, deleted: 0, set_aside };
        let progress = StreamProgress {
            is_new: stream.total_count > before || stream.dead_letters > letters_before,
            replaced_since: saved.replaced_since,
            unchanged: saved.unchanged_positions,
            ..StreamProgress::of(stream)
        };
        Ok((counts, progress))
    }

    async fn set_aside(
        &self,
        conn: &mut PgConnection,
        stream: &mut LockedStream,
        letters: &[NewLetter<'_>],
        keys: &PayloadKeys,
    ) -> sqlx::Result<()> {
        // The provider still has these records, so their stored versions must not be detected as deleted.
        let ids: Vec<&str> = letters.iter().filter_map(|letter| letter.external_id.as_deref()).collect();
        let stored = records::positions(conn, stream.key, &ids).await?;
        records::mark_seen(conn, stream, &stored).await?;
        dead_letters::set_aside(conn, stream, &self.author, letters, keys).await
    }

    async fn merge_into_stored(
        &self,
        conn: &mut PgConnection,
        stream: &LockedStream,
        keys: &PayloadKeys,
        changes: Vec<RecordText<'_>>,
    ) -> Result<Merged, GuestError> {
        let ids: Vec<&str> = changes.iter().map(|change| change.id.as_ref()).collect();
        let stored = records::find_payloads(conn, stream.key, keys, &ids, self.checks.batch_bytes)
            .await
            .map_err(host_failure)?;
        let Some(stored) = stored else {
            let message = format!(
                "the stored records to update are together longer than the {} bytes that one commit may have; use \
                 smaller batches",
                self.checks.batch_bytes
            );
            return Err(Failure::new(FailureCode::BatchTooLarge, message).into());
        };
        let stored: HashMap<String, String> = stored.into_iter().collect();
        let keeping = &self.checks.models[stream.model.as_str()].keeping;
        let missing: Vec<&str> = ids.into_iter().filter(|id| !stored.contains_key(*id)).collect();
        // An update that cannot be merged must not be lost silently, and a partial record must not be saved.
        let pruned = match missing.as_slice() {
            [] => HashSet::new(),
            missing => records::list_pruned(conn, stream.key, missing).await.map_err(host_failure)?,
        };
        if !pruned.is_empty() && keeping.on_bad_record == OnBadRecord::Fail {
            return Err(pruned_records(&stream.model, &changes, &pruned).into());
        }
        let (mut merged, mut letters) = (Vec::with_capacity(stored.len()), Vec::new());
        for (index, change) in changes.iter().enumerate() {
            let Some(payload) = stored.get(change.id.as_ref()) else {
                if pruned.contains(change.id.as_ref()) {
                    letters.push(NewLetter {
                        external_id: Some(Cow::Owned(change.id.to_string())),
                        problems: json!([Problem { path: String::new(), problem: PRUNED.to_owned() }]),
                        payload: Cow::Owned(change.payload.to_string()),
                    });
                }
                continue;
            };
            match self.checks.merge(&stream.model, index, change, payload)? {
                MergedRecord::Valid(record) => merged.push(record),
                MergedRecord::SetAside(letter) => letters.push(letter),
            }
        }
        Ok((merged, letters))
    }
}

/// Fails if a stream has grown beyond its maximum number of records.
pub(crate) fn check_stream_limit(stream: &LockedStream, before: i64, limit: u64) -> Result<(), Limit> {
    if stream.total_count > before && stream.total_count.unsigned_abs() > limit {
        return Err(Limit::Stream(limit));
    }
    Ok(())
}

/// Returns one log message for all dead letters of a batch, with the reason of the first.
pub(crate) fn set_aside_note(model: &ModelName, letters: &[NewLetter<'_>]) -> String {
    let first = &letters[0];
    let id = first.external_id.as_deref().map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let (path, problem) = (&first.problems[0]["path"], &first.problems[0]["problem"]);
    let location =
        path.as_str().filter(|path| !path.is_empty()).map(|path| format!("at {path}: ")).unwrap_or_default();
    format!(
        "{} records that do not match model `{model}` were set aside; the first{id}: {location}{}",
        letters.len(),
        problem.as_str().unwrap_or_default(),
    )
}

/// A failure that lists all pruned records, so that the function can fetch them and save them completely.
fn pruned_records(model: &ModelName, changes: &[RecordText<'_>], pruned: &HashSet<String>) -> Failure {
    let named: Vec<(usize, &str)> = changes
        .iter()
        .enumerate()
        .map(|(index, change)| (index, change.id.as_ref()))
        .filter(|(_, id)| pruned.contains(*id))
        .collect();
    let (index, id) = named[0];
    let others = match named.len() - 1 {
        0 => String::new(),
        more => format!("; so was the payload of {more} more records of the batch"),
    };
    let message = format!(
        "record {index} (`{id}`) of `{model}` cannot be updated: {PRUNED}{others}; the batch was not saved"
    );
    let details = named.iter().map(|(index, id)| json!({ "index": index, "id": id })).collect();
    Failure::new(FailureCode::PrunedRecords, message).with_details(&Value::Array(details))
}
