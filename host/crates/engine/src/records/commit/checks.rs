//! Checks changes without the database: sizes, names, and each record against its model.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::functions::{WritableModel, WritableModels};
use crate::records::commit::StreamName;
use syncline_model::records::{RecordOptions, RecordText, RefusedRecord};
use syncline_model::{self as model, Invalid, OnBadRecord, Problem, Shape};
use syncline_sandbox::{
    Batch, Change, Deletion, Failure, GuestError, Interrupt, Limit, Limits, LogLevel, RunLog,
};
use syncline_store::dead_letters::NewLetter;
use syncline_store::records::IncomingRecord;
use syncline_store::sync_states::CheckpointChange;
use syncline_types::failure_code::FailureCode;
use syncline_types::ids::{ModelName, Variant};
use syncline_types::sanitize::sanitize_json;

/// Longest checkpoint, in bytes.
const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// The maximum number of records in one commit.
const MAX_COMMIT_RECORDS: usize = 100_000;
/// Maximum number of rejected records that a failure lists.
const MAX_NAMED_RECORDS: usize = 20;

/// A change that passed all checks that need no database.
pub(crate) enum CheckedChange<'t> {
    Save { records: Vec<RecordText<'t>>, bad: Vec<RefusedRecord<'t>> },
    Update(Vec<RecordText<'t>>),
    Delete(&'t [String]),
}

/// A commit that passed all checks that need no database.
pub(crate) struct CheckedCommit<'t> {
    pub(crate) changes: Vec<(StreamName, CheckedChange<'t>)>,
    pub(crate) checkpoint: CheckpointChange,
    /// The number of records that count towards the function's limit.
    pub(crate) saved: u64,
}

impl CheckedChange<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Save { records, bad } => records.len() + bad.len(),
            Self::Update(records) => records.len(),
            Self::Delete(ids) => ids.len(),
        }
    }
}

/// Checks the changes of one invocation, and counts its records.
#[derive(Clone)]
pub(crate) struct ChangeChecks {
    pub(crate) models: WritableModels,
    metadata_key: Arc<str>,
    /// Only a sync has a variant, and therefore a checkpoint.
    sync_variant: Option<Variant>,
    pub(crate) batch_bytes: usize,
    record_bytes: usize,
    records_left: u64,
    records_limit: u64,
    pub(crate) log: RunLog,
}

/// The result of merging an update into a stored record.
pub(crate) enum MergedRecord {
    Valid(IncomingRecord<'static>),
    SetAside(NewLetter<'static>),
}

impl ChangeChecks {
    pub(crate) fn new(
        models: WritableModels,
        metadata_key: Arc<str>,
        sync_variant: Option<Variant>,
        limits: &Limits,
        log: RunLog,
    ) -> Self {
        Self {
            models,
            metadata_key,
            sync_variant,
            batch_bytes: limits.batch_bytes,
            record_bytes: limits.record_bytes,
            records_left: limits.records,
            records_limit: limits.records,
            log,
        }
    }

    /// For a sync of this variant.
    pub(crate) fn for_sync(self, variant: Variant) -> Self {
        Self { sync_variant: Some(variant), ..self }
    }

    /// Checks one commit.
    pub(crate) fn check<'t>(
        &self,
        changes: &'t [Change],
        checkpoint: Option<String>,
    ) -> Result<CheckedCommit<'t>, GuestError> {
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
        let checked = self.check_changes(changes)?;
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
        Ok(CheckedCommit { changes: checked, checkpoint, saved: saved as u64 })
    }

    /// Counts the records of a commit towards the limit.
    pub(crate) fn count(&mut self, saved: u64) {
        self.records_left -= saved;
    }

    /// Merges an update into the payload of a stored record, and checks the result.
    pub(crate) fn merge(
        &self,
        model: &ModelName,
        index: usize,
        change: &RecordText<'_>,
        payload: &str,
    ) -> Result<MergedRecord, GuestError> {
        let WritableModel { shape, keeping } = &self.models[model.as_str()];
        let text = model::merge(payload, &change.payload).map_err(|error| {
            Interrupt::Host(anyhow::Error::new(error).context("a stored record could not be read"))
        })?;
        match model::records::single(&text, shape, self.record_options()) {
            Ok(record) => Ok(MergedRecord::Valid(incoming(record).into_owned())),
            Err(invalid) if keeping.on_bad_record == OnBadRecord::SetAside => {
                Ok(MergedRecord::SetAside(NewLetter {
                    external_id: Some(Cow::Owned(change.id.to_string())),
                    problems: problems_of(&invalid),
                    payload: Cow::Owned(text),
                }))
            }
            Err(invalid) => {
                let problem = RefusedMerge { index, id: &change.id, invalid: &invalid };
                Err(problem.into_failure(model).into())
            }
        }
    }

    pub(crate) fn record_options(&self) -> RecordOptions<'_> {
        RecordOptions { metadata_key: &self.metadata_key, max_bytes: self.record_bytes }
    }

    pub(crate) fn own_variant(&self) -> Variant {
        self.sync_variant.clone().unwrap_or_else(Variant::base)
    }

    pub(crate) fn known_model(&self, name: &str) -> Result<(ModelName, &WritableModel), Failure> {
        self.models.get_key_value(name).map(|(name, model)| (name.clone(), model)).ok_or_else(|| {
            let known: Vec<_> = self.models.keys().map(|name| format!("`{name}`")).collect();
            let message = match known.as_slice() {
                [] => format!("the function saves `{name}`, but it declares no models"),
                _ => format!("the function saves `{name}`, but it declares only {}", known.join(", ")),
            };
            Failure::new(FailureCode::UnknownModel, message)
        })
    }

    fn check_checkpoint(&self, checkpoint: Option<String>) -> Result<CheckpointChange, Failure> {
        let Some(text) = checkpoint else { return Ok(CheckpointChange::Keep) };
        let refuse = |message: String| Err(Failure::new(FailureCode::InvalidCheckpoint, message));
        if self.sync_variant.is_none() {
            return refuse("only a sync can set a checkpoint".to_owned());
        }
        if text.len() > MAX_CHECKPOINT_BYTES {
            return refuse(format!(
                "the checkpoint is {} bytes long; the maximum is {MAX_CHECKPOINT_BYTES}",
                text.len()
            ));
        }
        match serde_json::from_str::<&RawValue>(&text) {
            Ok(json) if json.get() == "null" => Ok(CheckpointChange::Clear),
            Ok(json) if json.get().starts_with('{') => Ok(CheckpointChange::Set(text)),
            _ => refuse("the checkpoint must be a JSON object, or null to clear it".to_owned()),
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
                    // An update may contain only some fields, so the record is checked after the merge.
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
            named.parse().map_err(|problem| Failure::new(FailureCode::NotAllowed, format!("{problem}")))?;
        if self.sync_variant.as_ref().is_some_and(|own| *own != variant) {
            let message =
                format!("a sync of the variant `{}` cannot write to `{variant}`", self.own_variant());
            return Err(Failure::new(FailureCode::NotAllowed, message));
        }
        Ok(variant)
    }

    /// Returns the valid records, and those to set aside. If several records have the same id, only the last one is
    /// used.
    fn check_batch<'t>(
        &self,
        batch: &'t Batch,
        shape: &Shape,
        on_bad_record: OnBadRecord,
    ) -> Result<(Vec<RecordText<'t>>, Vec<RefusedRecord<'t>>), Failure> {
        let split = model::records::split(&batch.items, shape, self.record_options())
            .map_err(|error| Failure::new(FailureCode::InvalidRecords, error.to_string()))?;
        let (mut records, mut bad) = (split.records, split.refused);
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
                "a batch of `{}` contained {superseded} records with repeated ids; the last record with each \
                 id was used",
                batch.model
            );
            self.log.note(LogLevel::Warn, &message);
        }
        Ok((records, bad))
    }
}

/// A failure that lists the rejected records. The message contains the first one.
fn refused_records(model: &str, refused: &[RefusedRecord<'_>]) -> Failure {
    let named = &refused[..refused.len().min(MAX_NAMED_RECORDS)];
    let first = &named[0];
    let id = first.id.as_deref().map(|id| format!(" (`{id}`)")).unwrap_or_default();
    let problems = first.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let others = match refused.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more records of the batch are not valid"),
    };
    let message = format!(
        "record {}{id} does not match model `{model}`: {problems}{others}; the batch was not saved",
        first.index
    );
    Failure::new(FailureCode::InvalidRecords, message).with_details(&json!(named))
}

/// The length of a change, as it counts towards the limit of a commit.
pub(crate) fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Save(batch) | Change::Update(batch) => batch.items.len(),
        Change::Delete(deletion) => deletion.ids.iter().map(String::len).sum(),
    }
}

pub(crate) fn incoming(record: RecordText<'_>) -> IncomingRecord<'_> {
    IncomingRecord { external_id: record.id, payload_hash: record.hash.0, payload: record.payload }
}

/// Sanitizes the problems, because a path may contain any key of the record.
fn problems_json(problems: &[Problem]) -> Value {
    sanitize_json(json!(problems))
}

pub(crate) fn letter_of_refused(refused: RefusedRecord<'_>) -> NewLetter<'_> {
    NewLetter {
        external_id: refused.id,
        problems: problems_json(&refused.problems),
        payload: Cow::Borrowed(refused.text),
    }
}

fn problems_of(invalid: &Invalid) -> Value {
    match invalid {
        Invalid::Problems(problems) => problems_json(problems),
        Invalid::Malformed(malformed) => {
            problems_json(&[Problem { path: String::new(), problem: malformed.to_string() }])
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
        let message =
            format!("record {index} (`{id}`) would not match model `{model}` after the update: {invalid}");
        Failure::new(FailureCode::InvalidRecords, message)
            .with_details(&json!([{ "index": index, "id": id }]))
    }
}
