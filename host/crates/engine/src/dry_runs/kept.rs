//! The records that exist before a dry run.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use serde_json::value::RawValue;

use syncline_recording::KeptRecord;

/// Reads the records that exist before a run.
#[async_trait]
pub trait KeptRecords: Send + Sync {
    /// The payloads of these records, in the order of `ids`. `None` for a record that does not exist.
    async fn find(&self, model: &str, variant: &str, ids: &[String]) -> anyhow::Result<Vec<Option<String>>>;

    /// The ids and payloads of all records of a model.
    async fn list(&self, model: &str, variant: &str) -> anyhow::Result<Vec<(String, String)>>;
}

/// No record exists.
pub struct NoKeptRecords;

#[async_trait]
impl KeptRecords for NoKeptRecords {
    async fn find(
        &self,
        _model: &str,
        _variant: &str,
        ids: &[String],
    ) -> anyhow::Result<Vec<Option<String>>> {
        Ok(vec![None; ids.len()])
    }

    async fn list(&self, _model: &str, _variant: &str) -> anyhow::Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }
}

/// The records of a recording.
pub(crate) struct RecordedRecords(HashMap<(String, String), BTreeMap<String, String>>);

impl RecordedRecords {
    pub(crate) fn new(kept: &[KeptRecord]) -> Self {
        let mut records: HashMap<_, BTreeMap<_, _>> = HashMap::new();
        for KeptRecord { model, variant, id, record } in kept {
            let of_stream = records.entry((model.clone(), variant.clone())).or_default();
            of_stream.insert(id.clone(), RawValue::get(record).to_owned());
        }
        Self(records)
    }

    fn stream(&self, model: &str, variant: &str) -> Option<&BTreeMap<String, String>> {
        self.0.get(&(model.to_owned(), variant.to_owned()))
    }
}

#[async_trait]
impl KeptRecords for RecordedRecords {
    async fn find(&self, model: &str, variant: &str, ids: &[String]) -> anyhow::Result<Vec<Option<String>>> {
        let stream = self.stream(model, variant);
        Ok(ids.iter().map(|id| stream?.get(id).cloned()).collect())
    }

    async fn list(&self, model: &str, variant: &str) -> anyhow::Result<Vec<(String, String)>> {
        Ok(self.stream(model, variant).cloned().unwrap_or_default().into_iter().collect())
    }
}
