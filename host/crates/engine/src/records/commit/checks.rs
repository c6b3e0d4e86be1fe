//! Checks changes without the database: sizes, names, and each record against its model.

use std::collections::{HashMap, HashSet};

use serde_json::json;
use serde_json::value::RawValue;

use crate::functions::WritableModel;
use crate::records::commit::{RecordWriter, StreamName};
use syncline_model::records::{RecordText, RefusedRecord};
use syncline_model::{self as model, OnBadRecord, Shape};
use syncline_sandbox::{Batch, Change, Deletion, Failure, LogLevel};
use syncline_store::sync_states::CheckpointChange;
use syncline_types::failure_code::FailureCode;
use syncline_types::ids::Variant;

/// Longest checkpoint, in bytes.
const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// Maximum number of rejected records that a failure lists.
const MAX_NAMED_RECORDS: usize = 20;

/// A change that passed all checks that need no database.
pub(crate) enum CheckedChange<'t> {
    Save { records: Vec<RecordText<'t>>, bad: Vec<RefusedRecord<'t>> },
    Update(Vec<RecordText<'t>>),
    Delete(&'t [String]),
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

impl RecordWriter {
    pub(crate) fn check_checkpoint(&self, checkpoint: Option<String>) -> Result<CheckpointChange, Failure> {
        let Some(text) = checkpoint else { return Ok(CheckpointChange::Keep) };
        let refuse = |message: String| Err(Failure::new(FailureCode::InvalidCheckpoint, message));
        if self.attempt.is_none() {
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

    pub(crate) fn check_changes<'t>(
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
        if self.attempt.as_ref().is_some_and(|attempt| attempt.variant != variant) {
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
