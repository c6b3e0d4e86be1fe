//! The records that the host stores and serves.
//!
//! A sync saves records with a [`Writer`], which passes them to the host in batches. A checkpoint is saved in the
//! same transaction as the records that it belongs to. After a crash, either both are stored or neither.
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

use std::cell::RefCell;
use std::mem;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub use crate::bindings::syncline::integration::records::Counts;
use crate::bindings::syncline::integration::records::{Batch, Change, Deletion};
use crate::{Error, Result, host, log};

/// Returns the stored payloads of these ids, in the same order. The result is none for an id that has no record, is
/// deleted, or whose payload was pruned.
pub fn get<T: DeserializeOwned>(model: &str, ids: &[impl AsRef<str>]) -> Result<Vec<Option<T>>> {
    let ids: Vec<String> = ids.iter().map(|id| id.as_ref().to_owned()).collect();
    let kept = host::records::get(model, &ids).map_err(Error::from_failure)?;
    kept.iter().map(|json| Ok(json.as_deref().map(serde_json::from_str).transpose()?)).collect()
}

/// Maximum number of records, and of bytes, that a [`Writer`] collects for a batch.
const BATCH_RECORDS: usize = 1_000;
const BATCH_BYTES: usize = 1_000_000;

/// Saves, updates and deletes records of one model in batches. Each batch is one transaction.
///
/// Changes and a checkpoint that are still in the writer when it is dropped are not saved, so end with
/// [`finish`](Self::finish). A function that returns without an error after that fails with the code
/// `unsaved-changes`. A sync of several models uses a writer for each, and sets the checkpoint on the writer that it
/// finishes last.
#[derive(Debug)]
#[must_use = "pending changes are only saved by `finish`"]
pub struct Writer {
    model: String,
    variant: Option<String>,
    batch_records: usize,
    /// In the order of the calls. Adjacent changes of one kind share an entry.
    pending: Vec<Pending>,
    pending_records: usize,
    pending_bytes: usize,
    checkpoint: Option<String>,
    counts: Counts,
    /// The buffer of the last batch, which is emptied and used again.
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Pending {
    /// Records as the start of a JSON array: `[{…},{…}`.
    Save(Vec<u8>),
    Update(Vec<u8>),
    Delete(Vec<String>),
}

impl Writer {
    /// Creates a writer for a model that `syncline.toml` lists for the function.
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

    /// Sets the sync variant that owns the records. A sync cannot name a variant other than its own.
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// Sets the number of records in a batch, which is 1,000 by default. A batch also ends at about 1 MB of text.
    pub fn batch_records(mut self, records: usize) -> Self {
        self.batch_records = records.max(1);
        self
    }

    /// Adds a record, or replaces the stored record with the same `id` if it differs.
    pub fn save(&mut self, record: &impl Serialize) -> Result {
        if !matches!(self.pending.last(), Some(Pending::Save(_))) {
            let text = mem::take(&mut self.spare);
            self.pending.push(Pending::Save(text));
        }
        self.append(record)
    }

    /// Saves each record of a list, such as a page of a response.
    pub fn save_all<T: Serialize>(&mut self, records: impl IntoIterator<Item = T>) -> Result {
        records.into_iter().try_for_each(|record| self.save(&record))
    }

    /// Merges an object into the stored record with the same `id`: objects are merged key by key, and any other
    /// value is replaced. An id without a stored record is ignored.
    pub fn update(&mut self, changes: &impl Serialize) -> Result {
        if !matches!(self.pending.last(), Some(Pending::Update(_))) {
            let text = mem::take(&mut self.spare);
            self.pending.push(Pending::Update(text));
        }
        self.append(changes)
    }

    /// Marks a record as deleted. An id without a stored record is ignored.
    pub fn delete(&mut self, id: impl Into<String>) -> Result {
        let id = id.into();
        self.pending_bytes += id.len();
        match self.pending.last_mut() {
            Some(Pending::Delete(ids)) => ids.push(id),
            _ => self.pending.push(Pending::Delete(vec![id])),
        }
        self.added_one()
    }

    /// Sets where the next run resumes, once all changes until now are saved. The checkpoint is a JSON object of at
    /// most 64 KB. It is saved with the next batch; if several are set before a batch, the last one is used.
    pub fn checkpoint(&mut self, checkpoint: &impl Serialize) -> Result {
        let json = serde_json::to_string(checkpoint).map_err(|error| {
            Error::new("invalid-checkpoint", format!("could not serialize the checkpoint as JSON: {error}"))
        })?;
        self.checkpoint = Some(json);
        Ok(())
    }

    /// Like [`checkpoint`](Self::checkpoint), for a checkpoint that consists of one text in the field `cursor`.
    /// Read it with [`checkpoint::cursor`](crate::checkpoint::cursor).
    pub fn cursor(&mut self, cursor: &str) {
        self.checkpoint = Some(json!({ "cursor": cursor }).to_string());
    }

    /// Saves all pending changes now, with the checkpoint if there is one.
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

    /// Saves the remaining changes, and returns the counts of all of the writer's batches.
    pub fn finish(mut self) -> Result<Counts> {
        self.flush()?;
        Ok(self.counts)
    }

    /// Appends a record to the last pending text.
    fn append(&mut self, record: &impl Serialize) -> Result {
        let Some(Pending::Save(text) | Pending::Update(text)) = self.pending.last_mut() else {
            unreachable!("the callers have just added a text");
        };
        let before = text.len();
        text.push(if before == 0 { b'[' } else { b',' });
        if let Err(error) = serde_json::to_writer(&mut *text, record) {
            text.truncate(before);
            let message = format!("could not serialize a record of `{}` as JSON: {error}", self.model);
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

thread_local! {
    /// What a dropped writer has not saved, for the error of a function that returns without one.
    static UNSAVED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns and forgets the error for changes that a writer dropped.
pub(crate) fn take_unsaved() -> Option<Error> {
    UNSAVED.take().map(|message| Error::new("unsaved-changes", message))
}

impl Drop for Writer {
    fn drop(&mut self) {
        let lost = match self.pending_records {
            0 if self.checkpoint.is_none() => return,
            0 => "the checkpoint was".to_owned(),
            1 => "1 change was".to_owned(),
            changes => format!("{changes} changes were"),
        };
        let model = &self.model;
        let message = format!(
            "{lost} not saved to `{model}` when the writer was dropped; call `finish` on each writer, and do not \
             ignore its error"
        );
        log::warn!("{message}");
        UNSAVED.set(Some(message));
    }
}
