//! The data of a connection on a running host. Nothing is written to the host.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use anyhow::Context;

use crate::cli::client::{Client, HostArgs, item_path};
use syncline_config::IntegrationSpec;
use syncline_engine::KeptRecords;
use syncline_model::Shape;
use syncline_model::records::{RecordOptions, single};
use syncline_types::ids::FunctionName;
use syncline_types::json;

/// The number of records in one request.
const IDS_AT_ONCE: usize = 50;
const PAGE: &str = "500";

/// A connection as the host has it now.
pub(super) struct Connected {
    client: Client,
    id: String,
    pub(super) credentials: Map<String, Value>,
    pub(super) config: String,
    pub(super) tags: String,
    pub(super) metadata: String,
}

#[derive(Deserialize)]
struct ConnectionBody {
    credentials: Map<String, Value>,
    connection_config: Box<RawValue>,
    tags: Box<RawValue>,
    metadata: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct StatusBody {
    syncs: Vec<SyncBody>,
}

#[derive(Deserialize)]
struct SyncBody {
    checkpoint: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct VariableBody {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct RecordsBody {
    records: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

impl Connected {
    pub(super) async fn fetch(
        host: &HostArgs,
        integration: &IntegrationSpec,
        id: &str,
    ) -> anyhow::Result<Self> {
        let client = host.client()?;
        let parameters = [("provider_config_key", Some(integration.key.as_str()))];
        let body: ConnectionBody = client.query(&item_path("connections", id), &parameters).await?;
        let text = |raw: Box<RawValue>| raw.get().to_owned();
        Ok(Self {
            client,
            id: id.to_owned(),
            credentials: body.credentials,
            config: text(body.connection_config),
            tags: text(body.tags),
            metadata: body.metadata.map_or_else(|| "{}".to_owned(), text),
        })
    }

    pub(super) async fn variables(&self) -> anyhow::Result<Vec<(String, String)>> {
        let variables: Vec<VariableBody> = self.client.get("environment-variables").await?;
        Ok(variables.into_iter().map(|VariableBody { name, value }| (name, value)).collect())
    }

    /// The checkpoint of a sync. A sync that is not deployed has none.
    pub(super) async fn checkpoint(
        &self,
        integration: &IntegrationSpec,
        sync: &FunctionName,
    ) -> anyhow::Result<Option<String>> {
        let parameters = [
            ("provider_config_key", Some(integration.key.as_str())),
            ("connection_id", Some(self.id.as_str())),
            ("syncs", Some("*")),
        ];
        let all: Value = self.client.query("sync/status", &parameters).await?;
        let is_deployed = all["syncs"]
            .as_array()
            .is_some_and(|syncs| syncs.iter().any(|deployed| deployed["name"] == sync.as_str()));
        if !is_deployed {
            return Ok(None);
        }
        let parameters = [parameters[0], parameters[1], ("syncs", Some(sync.as_str()))];
        let status: StatusBody = self.client.query("sync/status", &parameters).await?;
        let checkpoint = status.syncs.into_iter().next().and_then(|sync| sync.checkpoint);
        Ok(checkpoint.map(|checkpoint| checkpoint.get().to_owned()))
    }
}

/// The records of a connection.
pub(super) struct HostRecords {
    connected: Connected,
    integration: String,
    metadata_key: String,
}

impl HostRecords {
    pub(super) fn new(connected: Connected, integration: &IntegrationSpec, metadata_key: String) -> Self {
        Self { connected, integration: integration.key.to_string(), metadata_key }
    }

    /// Reads all pages, and returns the ids and payloads of the records that are not deleted.
    async fn read(&self, parameters: &[(&str, &str)]) -> anyhow::Result<Vec<(String, String)>> {
        let connection =
            [("connection-id", self.connected.id.as_str()), ("provider-config-key", &self.integration)];
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let cursor_parameter = cursor.as_deref().map(|cursor| ("cursor", cursor));
            let of_page: Vec<_> =
                parameters.iter().copied().chain([("limit", PAGE)]).chain(cursor_parameter).collect();
            let page: RecordsBody = self.connected.client.query_as("records", &of_page, &connection).await?;
            for record in page.records {
                found.extend(self.stored(record.get())?);
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(found);
            }
        }
    }

    /// The id and the stored form of a record, unless it is deleted or its payload was pruned.
    fn stored(&self, text: &str) -> anyhow::Result<Option<(String, String)>> {
        let record = json::parse(text)?;
        let metadata = record.get(&self.metadata_key).with_context(|| {
            format!(
                "the host's records have no field `{}`; set --record-metadata-key to the host's \
                 SYNCLINE_RECORD_METADATA_KEY",
                self.metadata_key
            )
        })?;
        if !metadata["deleted_at"].is_null() || !metadata["pruned_at"].is_null() {
            return Ok(None);
        }
        let options = RecordOptions { metadata_key: &self.metadata_key, max_bytes: usize::MAX };
        let record = single(text, &Shape::any(), options).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Some((record.id.into_owned(), record.payload.into_owned())))
    }
}

#[async_trait]
impl KeptRecords for HostRecords {
    async fn find(&self, model: &str, variant: &str, ids: &[String]) -> anyhow::Result<Vec<Option<String>>> {
        let mut found = std::collections::HashMap::new();
        for some in ids.chunks(IDS_AT_ONCE) {
            let ids = some.iter().map(|id| ("ids", id.as_str()));
            let parameters: Vec<_> =
                [("model", model), ("variant", variant)].into_iter().chain(ids).collect();
            found.extend(self.read(&parameters).await?);
        }
        Ok(ids.iter().map(|id| found.remove(id)).collect())
    }

    async fn list(&self, model: &str, variant: &str) -> anyhow::Result<Vec<(String, String)>> {
        self.read(&[("model", model), ("variant", variant)]).await
    }
}
