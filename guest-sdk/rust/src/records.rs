//! The copies of the provider's objects that the host keeps and serves.
//!
//! A sync saves through a [`Writer`], which hands records over in batches as they come. The checkpoint goes
//! with the records it belongs to, in one transaction: after a crash either both are there or neither.
//!
//! ```
//! # let _host = syncline_sdk::testing::Host::new();
//! use syncline_sdk::Writer;
//!
//! #[derive(serde::Serialize)]
//! struct Customer { id: &'static str }
//!
//! let mut customers = Writer::new("Customer");
//! customers.save(&Customer { id: "cus_1" })?;
//! customers.delete("cus_0")?;
//! customers.cursor("evt_9");
//! let counts = customers.finish()?;
//! assert_eq!(counts.added, 1);
//! # Ok::<(), syncline_sdk::Error>(())
//! ```

use std::mem;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub use crate::bindings::syncline::integration::records::Counts;
use crate::bindings::syncline::integration::records::{Batch, Change, Deletion};
use crate::{Error, Result, host, log};

/// The kept payloads of these ids, in their order; none where an id is not kept, is deleted, or its payload
/// was pruned.
pub fn get<T: DeserializeOwned>(model: &str, ids: &[impl AsRef<str>]) -> Result<Vec<Option<T>>> {
    let ids: Vec<String> = ids.iter().map(|id| id.as_ref().to_owned()).collect();
    let kept = host::records::get(model, &ids).map_err(Error::from_failure)?;
    kept.iter().map(|json| Ok(json.as_deref().map(serde_json::from_str).transpose()?)).collect()
}

/// How many records and how much text a [`Writer`] gathers before it hands them over.
const BATCH_RECORDS: usize = 1_000;
const BATCH_BYTES: usize = 1_000_000;

/// Saves, updates and deletes records of one model in batches, each of them one transaction.
///
/// What is not handed over when a writer is dropped is not saved: end with [`finish`](Self::finish). A sync
/// of several models has a writer for each, and gives the checkpoint to the one that it finishes last.
#[derive(Debug)]
#[must_use = "what a writer gathers is saved by `finish`"]
pub struct Writer {
    model: String,
    variant: Option<String>,
    batch_records: usize,
    /// In the order in which they were asked for. Neighbours of one kind share an entry.
    pending: Vec<Pending>,
    pending_records: usize,
    pending_bytes: usize,
    checkpoint: Option<String>,
    counts: Counts,
    /// The text of the last batch, emptied, to be filled again.
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Pending {
    /// Records as the beginning of a JSON array: `[{…},{…}`.
    Save(Vec<u8>),
    Update(Vec<u8>),
    Delete(Vec<String>),
}

impl Writer {
    /// A writer for a model that `syncline.toml` declares for the function.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            variant: None,
            batch_records: BATCH_RECORDS,
            pending: Vec::new(),
            pending_records: 0,
            pending_bytes: 0,
            checkpoint: None,
            counts: Counts { added: 0, updated: 0, deleted: 0, unchanged: 0 },
            spare: Vec::new(),
        }
    }

    /// Whose records these are. A sync writes to its own variant and can name no other.
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// How many records make a batch: 1,000 unless set. A batch also ends at about 1 MB of text.
    pub fn batch_records(mut self, records: usize) -> Self {
        self.batch_records = records.max(1);
        self
    }

    /// Adds a record, or replaces the kept one of the same `id` where it differs.
    pub fn save(&mut self, record: &impl Serialize) -> Result {
        if !matches!(self.pending.last(), Some(Pending::Save(_))) {
            let text = mem::take(&mut self.spare);
            self.pending.push(Pending::Save(text));
        }
        self.append(record)
    }

    /// Saves each record of a list, such as a page of an answer.
    pub fn save_all<T: Serialize>(&mut self, records: impl IntoIterator<Item = T>) -> Result {
        records.into_iter().try_for_each(|record| self.save(&record))
    }

    /// Merges an object into the kept one of the same `id`: objects key by key, everything else replaced. It
    /// is passed over where that id is not kept.
    pub fn update(&mut self, changes: &impl Serialize) -> Result {
        if !matches!(self.pending.last(), Some(Pending::Update(_))) {
            let text = mem::take(&mut self.spare);
            self.pending.push(Pending::Update(text));
        }
        self.append(changes)
    }

    /// Marks a record as deleted. An id that is not kept is passed over.
    pub fn delete(&mut self, id: impl Into<String>) -> Result {
        let id = id.into();
        self.pending_bytes += id.len();
        match self.pending.last_mut() {
            Some(Pending::Delete(ids)) => ids.push(id),
            _ => self.pending.push(Pending::Delete(vec![id])),
        }
        self.added_one()
    }

    /// Where the next run continues, once everything that was asked for until now is saved. It is a JSON
    /// object of at most 64 KB and goes with the next batch; of several before it the last counts.
    pub fn checkpoint(&mut self, checkpoint: &impl Serialize) -> Result {
        let json = serde_json::to_string(checkpoint).map_err(|error| {
            Error::new("invalid-checkpoint", format!("the checkpoint is no JSON: {error}"))
        })?;
        self.checkpoint = Some(json);
        Ok(())
    }

    /// As [`checkpoint`](Self::checkpoint), for a checkpoint that is one text under the key `cursor`; read it
    /// with [`checkpoint::cursor`](crate::checkpoint::cursor).
    pub fn cursor(&mut self, cursor: &str) {
        self.checkpoint = Some(json!({ "cursor": cursor }).to_string());
    }

    /// Hands everything over now, with the checkpoint, if there is one.
    pub fn flush(&mut self) -> Result {
        if self.pending.is_empty() && self.checkpoint.is_none() {
            return Ok(());
        }
        let changes = mem::take(&mut self.pending)
            .into_iter()
            .map(|pending| self.change(pending))
            .collect::<Result<Vec<_>>>()?;
        let counts =
            host::records::commit(&changes, self.checkpoint.as_deref()).map_err(Error::from_failure)?;
        self.counts.added += counts.added;
        self.counts.updated += counts.updated;
        self.counts.deleted += counts.deleted;
        self.counts.unchanged += counts.unchanged;
        self.checkpoint = None;
        self.pending_records = 0;
        self.pending_bytes = 0;
        if let Some(Change::Save(batch) | Change::Update(batch)) = changes.into_iter().next() {
            self.spare = batch.items.into_bytes();
            self.spare.clear();
        }
        Ok(())
    }

    /// Hands over the rest and tells what all of the writer's batches did.
    pub fn finish(mut self) -> Result<Counts> {
        self.flush()?;
        Ok(self.counts)
    }

    /// Writes a record at the end of the last pending text.
    fn append(&mut self, record: &impl Serialize) -> Result {
        let Some(Pending::Save(text) | Pending::Update(text)) = self.pending.last_mut() else {
            unreachable!("the callers have just put a text at the end");
        };
        let before = text.len();
        text.push(if before == 0 { b'[' } else { b',' });
        if let Err(error) = serde_json::to_writer(&mut *text, record) {
            text.truncate(before);
            let message = format!("a record of `{}` cannot be written as JSON: {error}", self.model);
            return Err(Error::new("invalid-records", message));
        }
        self.pending_bytes += text.len() - before;
        self.added_one()
    }

    fn added_one(&mut self) -> Result {
        self.pending_records += 1;
        if self.pending_records >= self.batch_records || self.pending_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn change(&self, pending: Pending) -> Result<Change> {
        let (model, variant) = (self.model.clone(), self.variant.clone());
        let batch = |mut text: Vec<u8>| {
            text.extend_from_slice(if text.is_empty() { b"[]" } else { b"]" });
            Ok::<_, Error>(Batch {
                model: model.clone(),
                items: String::from_utf8(text)?,
                variant: variant.clone(),
            })
        };
        Ok(match pending {
            Pending::Save(text) => Change::Save(batch(text)?),
            Pending::Update(text) => Change::Update(batch(text)?),
            Pending::Delete(ids) => Change::Delete(Deletion { model, ids, variant }),
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.pending_records > 0 {
            let (left, model) = (self.pending_records, &self.model);
            log::warn!(
                "{left} changes of `{model}` were not saved: the function ended before the writer did"
            );
        }
    }
}
