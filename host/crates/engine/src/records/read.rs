//! Reading records for clients, whether they are sealed or not.

use crate::records::Records;
use syncline_auth::EnvironmentError;
use syncline_crypto::RecordKeys;
use syncline_store::records::{self, Filter, StoredRecord};
use syncline_store::streams::StreamKey;
use syncline_types::ids::EnvironmentPk;

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the keys of sealed records could not be read")]
    Keys(#[from] EnvironmentError),
    #[error("records could not be read")]
    Store(#[from] sqlx::Error),
}

/// Which records of a stream are wanted.
#[derive(Debug)]
pub struct WantedRecords<'w> {
    pub stream: StreamKey,
    pub filter: &'w Filter,
    /// Only these; none of them named means all.
    pub ids: &'w [String],
    pub limit: i64,
}

impl Records {
    /// The next records in the order of positions.
    pub async fn read_records(
        &self,
        environment: EnvironmentPk,
        wanted: &WantedRecords<'_>,
    ) -> Result<Vec<StoredRecord>, ReadError> {
        let keys = self.environments.record_keys(environment).await?;
        let read = self.read_with(&keys, wanted).await;
        let missing = read.as_ref().err().and_then(records::missing_key);
        let Some(number) = missing else { return Ok(read?) };
        let keys = self.environments.record_keys_with(environment, number).await?;
        Ok(self.read_with(&keys, wanted).await?)
    }

    async fn read_with(
        &self,
        keys: &RecordKeys,
        wanted: &WantedRecords<'_>,
    ) -> sqlx::Result<Vec<StoredRecord>> {
        let WantedRecords { stream, filter, ids, limit } = wanted;
        let keys = keys.of_stream(stream.connection.0, stream.number, false);
        let mut conn = self.store.connect_records().await?;
        if ids.is_empty() {
            records::page(&mut conn, *stream, &keys, filter, *limit).await
        } else {
            records::page_by_ids(&mut conn, *stream, &keys, filter, ids, *limit).await
        }
    }
}
