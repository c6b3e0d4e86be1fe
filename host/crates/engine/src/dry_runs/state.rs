//! What a run has changed so far, in memory.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::dry_runs::RunData;
use crate::dry_runs::kept::KeptRecords;
use crate::functions::DeployedFunction;
use crate::invoker::capabilities::{invalid_metadata, parse_metadata};
use crate::records::commit::checks::{
    ChangeChecks, CheckedChange, CheckedCommit, MergedRecord, incoming, letter_of_refused,
};
use crate::records::commit::writing::set_aside_note;
use syncline_model::canonical_hash;
use syncline_sandbox::{Change, Counts, GuestError, Interrupt, LogLevel, RunInfo};
use syncline_store::records::IncomingRecord;
use syncline_store::sync_states::CheckpointChange;
use syncline_types::ids::{ModelName, Variant};
use syncline_types::metadata::Metadata;

/// Model, variant and id.
pub(crate) type RecordKey = (ModelName, Variant, String);

/// A record before the run and now.
#[derive(Debug, Clone, Default)]
pub(crate) struct DryRecord {
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
    /// Whether the run has saved or found the record.
    pub(crate) is_seen: bool,
}

/// What a run has changed so far.
pub(crate) struct DryRunState {
    kept: Arc<dyn KeptRecords>,
    pub(crate) records: BTreeMap<RecordKey, DryRecord>,
    pub(crate) checkpoint: Option<String>,
    pub(crate) metadata: Metadata,
}

impl DryRunState {
    pub(crate) fn new(data: &RunData, kept: Arc<dyn KeptRecords>) -> Self {
        let metadata = Metadata::parse(&data.metadata).unwrap_or_default();
        Self { kept, records: BTreeMap::new(), checkpoint: data.checkpoint.clone(), metadata }
    }

    /// Reads the records that are not in memory yet.
    async fn load(&mut self, model: &ModelName, variant: &Variant, ids: &[&str]) -> Result<(), Interrupt> {
        let is_missing =
            |id: &&&str| !self.records.contains_key(&(model.clone(), variant.clone(), (**id).to_owned()));
        let missing: HashSet<&str> = ids.iter().filter(is_missing).copied().collect();
        let mut missing: Vec<String> = missing.into_iter().map(str::to_owned).collect();
        missing.sort();
        if missing.is_empty() {
            return Ok(());
        }
        let found =
            self.kept.find(model.as_str(), variant.as_str(), &missing).await.map_err(Interrupt::Host)?;
        for (id, before) in missing.into_iter().zip(found) {
            let record = DryRecord { after: before.clone(), before, is_seen: false };
            self.records.insert((model.clone(), variant.clone(), id), record);
        }
        Ok(())
    }

    /// Checks and applies the changes of a commit, without accepting them yet.
    pub(crate) async fn stage(
        &mut self,
        checks: &ChangeChecks,
        changes: &[Change],
        checkpoint: Option<String>,
    ) -> Result<Staged<'_>, GuestError> {
        let CheckedCommit { changes, checkpoint, saved } = checks.check(changes, checkpoint)?;
        let counts = Counts { added: 0, updated: 0, deleted: 0, unchanged: 0 };
        let mut staged =
            Staged { state: self, records: BTreeMap::new(), counts, notes: Vec::new(), checkpoint, saved };
        for ((model, variant), change) in changes {
            staged.apply(checks, &model, &variant, change).await?;
        }
        Ok(staged)
    }

    /// The payloads of records of the run's own variant, in the order of `ids`.
    pub(crate) async fn find(
        &mut self,
        checks: &ChangeChecks,
        model: &str,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        let (model, _) = checks.known_model(model)?;
        let variant = checks.own_variant();
        let wanted: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.load(&model, &variant, &wanted).await?;
        let payload = |id: String| self.records.get(&(model.clone(), variant.clone(), id))?.after.clone();
        Ok(ids.into_iter().map(payload).collect())
    }

    pub(crate) fn set_metadata(&mut self, metadata: &str, merge: bool) -> Result<(), GuestError> {
        let metadata = parse_metadata(metadata)?;
        self.metadata =
            if merge { self.metadata.merge(&metadata).map_err(invalid_metadata)? } else { metadata };
        Ok(())
    }

    /// Completes a successful sync: a full run deletes the records that it did not save.
    pub(crate) async fn complete(
        &mut self,
        function: &DeployedFunction,
        run: &RunInfo,
    ) -> anyhow::Result<()> {
        if !run.is_full {
            return Ok(());
        }
        let variant = run.variant.parse().unwrap_or_else(|_| Variant::base());
        for model in function.models.keys() {
            for (id, payload) in self.kept.list(model.as_str(), variant.as_str()).await? {
                let record = self.records.entry((model.clone(), variant.clone(), id)).or_insert_with(|| {
                    DryRecord { before: Some(payload.clone()), after: Some(payload), is_seen: false }
                });
                if !record.is_seen {
                    record.after = None;
                }
            }
        }
        if !function.has_incremental_runs() {
            self.checkpoint = None;
        }
        Ok(())
    }
}

/// The changes of one commit. They become part of the state if all of them are valid.
pub(crate) struct Staged<'s> {
    state: &'s mut DryRunState,
    records: BTreeMap<RecordKey, DryRecord>,
    counts: Counts,
    notes: Vec<String>,
    checkpoint: CheckpointChange,
    saved: u64,
}

impl Staged<'_> {
    /// Makes the changes part of the state.
    pub(crate) fn accept(self, checks: &mut ChangeChecks) -> Counts {
        let Self { state, records, counts, notes, checkpoint, saved } = self;
        state.records.extend(records);
        match checkpoint {
            CheckpointChange::Keep => {}
            CheckpointChange::Clear => state.checkpoint = None,
            CheckpointChange::Set(text) => state.checkpoint = Some(text),
        }
        checks.count(saved);
        notes.iter().for_each(|note| checks.log.note(LogLevel::Warn, note));
        counts
    }

    fn record(&mut self, key: RecordKey) -> &mut DryRecord {
        let state = &self.state.records;
        self.records.entry(key).or_insert_with_key(|key| state.get(key).cloned().unwrap_or_default())
    }

    fn save(&mut self, key: RecordKey, record: IncomingRecord<'_>) {
        let stored = self.record(key);
        stored.is_seen = true;
        let hash = stored.after.as_deref().and_then(|payload| canonical_hash(payload).ok());
        let counter = match (&stored.after, hash) {
            (None, _) => 0,
            (Some(_), Some(hash)) if hash.0 == record.payload_hash => 2,
            (Some(_), _) => 1,
        };
        if counter < 2 {
            stored.after = Some(record.payload.into_owned());
        }
        let counts = &mut self.counts;
        *[&mut counts.added, &mut counts.updated, &mut counts.unchanged][counter] += 1;
    }

    async fn apply(
        &mut self,
        checks: &ChangeChecks,
        model: &ModelName,
        variant: &Variant,
        change: CheckedChange<'_>,
    ) -> Result<(), GuestError> {
        let key = |id: &str| (model.clone(), variant.clone(), id.to_owned());
        match change {
            CheckedChange::Save { records, bad } => {
                let ids: Vec<&str> = records.iter().map(|record| &*record.id).collect();
                self.state.load(model, variant, &ids).await?;
                for record in records {
                    let key = key(&record.id);
                    self.save(key, incoming(record));
                }
                let letters: Vec<_> = bad.into_iter().map(letter_of_refused).collect();
                // The provider still has these records.
                let ids: Vec<&str> =
                    letters.iter().filter_map(|letter| letter.external_id.as_deref()).collect();
                self.state.load(model, variant, &ids).await?;
                ids.iter().for_each(|id| self.record(key(id)).is_seen = true);
                if !letters.is_empty() {
                    self.notes.push(set_aside_note(model, &letters));
                }
            }
            CheckedChange::Update(changes) => {
                let ids: Vec<&str> = changes.iter().map(|change| &*change.id).collect();
                self.state.load(model, variant, &ids).await?;
                let mut letters = Vec::new();
                for (index, change) in changes.iter().enumerate() {
                    let Some(stored) = self.record(key(&change.id)).after.clone() else { continue };
                    match checks.merge(model, index, change, &stored)? {
                        MergedRecord::Valid(record) => self.save(key(&change.id), record),
                        MergedRecord::SetAside(letter) => letters.push(letter),
                    }
                }
                if !letters.is_empty() {
                    self.notes.push(set_aside_note(model, &letters));
                }
            }
            CheckedChange::Delete(ids) => {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                self.state.load(model, variant, &ids).await?;
                for id in ids {
                    if self.record(key(id)).after.take().is_some() {
                        self.counts.deleted += 1;
                    }
                }
            }
        }
        Ok(())
    }
}
