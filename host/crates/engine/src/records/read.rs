//! Reads records for clients, and decrypts them if necessary.

use chrono::{DateTime, Utc};

use crate::connections::route::ConnectionRoute;
use crate::records::Records;
use crate::records::commit::storable;
use crate::records::cursor::{self, InvalidCursor};
use syncline_auth::EnvironmentError;
use syncline_crypto::RecordKeys;
use syncline_store::pages::Page;
pub use syncline_store::pages::PageLimit;
use syncline_store::records::{self, Filter};
pub use syncline_store::records::{ActionSet, Content, LastAction, StoredRecord};
use syncline_store::streams;
pub use syncline_store::streams::{StreamKey, StreamSummary};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{EnvironmentPk, IntegrationKey, ModelName, Variant};

/// Why records cannot be read or pruned.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    #[error(
        "no sync of integration `{integration}` has a model `{model}`, and there are no records of such a model"
    )]
    UnknownModel { model: ModelName, integration: IntegrationKey },
    #[error("the cursor {0}; omit it to start from the beginning")]
    Cursor(InvalidCursor),
    #[error("`until_cursor` {0}; use the `cursor` from a record's metadata")]
    UntilCursor(InvalidCursor),
    #[error("the keys of encrypted records could not be read")]
    Keys(#[from] EnvironmentError),
    #[error("the deployed functions could not be read")]
    Functions(#[source] anyhow::Error),
    #[error("records could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl RecordsError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownModel { .. } => ErrorCode::UnknownModel,
            Self::Cursor(_) | Self::UntilCursor(_) => ErrorCode::InvalidCursor,
            Self::Keys(_) | Self::Functions(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Selects records of a model and variant.
#[derive(Debug)]
pub struct RecordQuery {
    pub model: ModelName,
    pub variant: Variant,
    pub cursor: Option<String>,
    pub modified_since: Option<DateTime<Utc>>,
    pub actions: ActionSet,
    /// Only records with these ids. Empty for all.
    pub ids: Vec<String>,
    pub limit: i64,
}

/// Records in the order of their positions.
#[derive(Debug)]
pub struct RecordPage {
    /// `None` if nothing has been saved yet.
    pub stream: Option<StreamKey>,
    pub records: Vec<StoredRecord>,
    pub has_more: bool,
}

/// Records after a position, and the position up to which the reader has now seen everything.
#[derive(Debug)]
pub struct ChangePage {
    pub records: Vec<StoredRecord>,
    pub position: i64,
}

struct Wanted<'w> {
    stream: StreamKey,
    filter: Filter,
    ids: &'w [String],
    limit: PageLimit,
}

impl Records {
    /// Returns up to `limit` streams of a connection with their counts, sorted by model and variant.
    pub async fn streams(
        &self,
        connection: &ConnectionRoute,
        limit: i64,
    ) -> Result<Vec<StreamSummary>, RecordsError> {
        Ok(streams::list(&mut *self.store.connect_records().await?, connection.pk, limit).await?)
    }

    /// Returns the next records of a model.
    pub async fn read(
        &self,
        connection: &ConnectionRoute,
        query: &RecordQuery,
    ) -> Result<RecordPage, RecordsError> {
        let stream = self.find_stream(connection, &query.model, &query.variant).await?;
        let after = cursor::start(query.cursor.as_deref(), stream).map_err(RecordsError::Cursor)?;
        let Some(stream) = stream else {
            return Ok(RecordPage { stream: None, records: Vec::new(), has_more: false });
        };
        let filter = Filter { after, modified_since: query.modified_since, actions: query.actions };
        // Read one more record than requested, to find out whether there is a next page.
        let limit = PageLimit { rows: query.limit + 1, bytes: self.settings.max_page_bytes };
        let wanted = Wanted { stream, filter, ids: &query.ids, limit };
        let mut page = self.read_wanted(connection.environment, &wanted).await?;
        let has_more = page.truncate(query.limit);
        Ok(RecordPage { stream: Some(stream), records: page.rows, has_more })
    }

    /// Returns up to `limit` records after a position. If no more records follow, the returned position is also behind
    /// the records that `actions` excludes.
    pub async fn read_changes(
        &self,
        environment: EnvironmentPk,
        stream: StreamKey,
        after: i64,
        actions: ActionSet,
        limit: PageLimit,
    ) -> Result<ChangePage, RecordsError> {
        // Read the head first, so that the records that are read afterwards include everything up to it.
        let head = streams::head(&mut *self.store.connect_records().await?, stream).await?;
        if head <= after {
            return Ok(ChangePage { records: Vec::new(), position: after });
        }
        let filter = Filter { after, modified_since: None, actions };
        let limit = PageLimit { rows: limit.rows, bytes: limit.bytes.min(self.settings.max_page_bytes) };
        let page = self.read_wanted(environment, &Wanted { stream, filter, ids: &[], limit }).await?;
        let last = page.rows.last().map_or(after, |record| record.position);
        let may_have_more = page.is_cut || page.rows.len() as i64 == limit.rows;
        let position = if may_have_more { last } else { last.max(head) };
        Ok(ChangePage { records: page.rows, position })
    }

    /// Returns the payloads of the existing records with these ids, or `None` if they are longer than `max_bytes`
    /// together.
    pub(crate) async fn find_payloads(
        &self,
        environment: EnvironmentPk,
        stream: StreamKey,
        ids: &[String],
        max_bytes: usize,
    ) -> Result<Option<Vec<(String, String)>>, RecordsError> {
        let keys = self.environments.record_keys(environment).await?;
        let keys = keys.of_stream(stream.connection.0, stream.number, false);
        let mut conn = self.store.connect_records().await?;
        Ok(records::find_payloads(&mut conn, stream, &keys, &storable(ids), max_bytes).await?)
    }

    /// Returns the stream of a model, or `None` if nothing has been saved to it. A model that is neither declared nor
    /// stored is an error.
    pub async fn find_stream(
        &self,
        connection: &ConnectionRoute,
        model: &ModelName,
        variant: &Variant,
    ) -> Result<Option<StreamKey>, RecordsError> {
        if let Some(stream) = self.streams.find(connection.pk, model, variant).await? {
            return Ok(Some(stream));
        }
        let (environment, integration) = (connection.environment, connection.integration);
        let declares = self.functions.declares_model(environment, integration, model).await;
        if declares.map_err(RecordsError::Functions)?
            || streams::has_model(&mut *self.store.connect_records().await?, connection.pk, model).await?
        {
            return Ok(None);
        }
        let integration = connection.integration_key.clone();
        Err(RecordsError::UnknownModel { model: model.clone(), integration })
    }

    async fn read_wanted(
        &self,
        environment: EnvironmentPk,
        wanted: &Wanted<'_>,
    ) -> Result<Page<StoredRecord>, RecordsError> {
        let keys = self.environments.record_keys(environment).await?;
        let read = self.read_with(&keys, wanted).await;
        let missing = read.as_ref().err().and_then(records::missing_key);
        let Some(number) = missing else { return Ok(read?) };
        let keys = self.environments.record_keys_with(environment, number).await?;
        Ok(self.read_with(&keys, wanted).await?)
    }

    async fn read_with(&self, keys: &RecordKeys, wanted: &Wanted<'_>) -> sqlx::Result<Page<StoredRecord>> {
        let Wanted { stream, filter, ids, limit } = wanted;
        let keys = keys.of_stream(stream.connection.0, stream.number, false);
        let mut conn = self.store.connect_records().await?;
        let page = if ids.is_empty() {
            records::page(&mut conn, *stream, &keys, filter, *limit).await?
        } else {
            records::page_by_ids(&mut conn, *stream, &keys, filter, ids, *limit).await?
        };
        page.release(conn);
        Ok(page)
    }
}
