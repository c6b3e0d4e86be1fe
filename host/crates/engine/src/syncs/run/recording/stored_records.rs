//! The stored records of a connection, for the recording of a run.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::MAX_BYTES;
use crate::connections::route::ConnectionRoute;
use crate::dry_runs::kept::KeptRecords;
use crate::records::Records;
use crate::records::read::{ActionSet, Content, PageLimit, StreamKey};
use syncline_recording::Recorder;
use syncline_types::ids::{ModelName, Variant};
use syncline_types::json;

/// Records in one query.
const PAGE: PageLimit = PageLimit { rows: 1_000, bytes: 4 << 20 };

pub(super) struct StoredRecords {
    records: Arc<Records>,
    connection: Arc<ConnectionRoute>,
    recorder: Recorder,
}

impl StoredRecords {
    pub(super) fn new(records: &Arc<Records>, connection: &Arc<ConnectionRoute>, recorder: Recorder) -> Self {
        Self { records: Arc::clone(records), connection: Arc::clone(connection), recorder }
    }

    async fn stream(&self, model: &str, variant: &str) -> anyhow::Result<Option<StreamKey>> {
        let (model, variant): (ModelName, Variant) = (model.parse()?, variant.parse()?);
        Ok(self.records.find_stream(&self.connection, &model, &variant).await?)
    }
}

#[async_trait]
impl KeptRecords for StoredRecords {
    async fn find(&self, model: &str, variant: &str, ids: &[String]) -> anyhow::Result<Vec<Option<String>>> {
        let Some(stream) = self.stream(model, variant).await? else { return Ok(vec![None; ids.len()]) };
        let environment = self.connection.environment;
        let found = self.records.find_payloads(environment, stream, ids, MAX_BYTES).await?;
        let Some(found) = found else {
            self.recorder.count(MAX_BYTES + 1);
            return Ok(vec![None; ids.len()]);
        };
        self.recorder.count(found.iter().map(|(_, payload)| payload.len()).sum());
        let mut found: HashMap<String, String> = found.into_iter().collect();
        Ok(ids.iter().map(|id| found.remove(id)).collect())
    }

    async fn list(&self, model: &str, variant: &str) -> anyhow::Result<Vec<(String, String)>> {
        let Some(stream) = self.stream(model, variant).await? else { return Ok(Vec::new()) };
        let existing = ActionSet { added: true, updated: true, deleted: false };
        let (mut listed, mut after) = (Vec::new(), 0);
        loop {
            let environment = self.connection.environment;
            let page = self.records.read_changes(environment, stream, after, existing, PAGE).await?;
            if page.position == after || self.recorder.is_too_long() {
                return Ok(listed);
            }
            after = page.position;
            for record in page.records {
                let Content::Payload(payload) = record.content else { continue };
                self.recorder.count(payload.len());
                listed.push((id_of(&payload)?, payload));
            }
        }
    }
}

/// The id in a stored payload.
fn id_of(payload: &str) -> anyhow::Result<String> {
    match json::parse(payload)?.get("id") {
        Some(Value::String(id)) => Ok(id.clone()),
        Some(Value::Number(id)) => Ok(id.to_string()),
        _ => anyhow::bail!("a stored record has no id"),
    }
}
