//! Pruning: emptying the payloads of records that a client no longer needs.

use crate::connections::route::ConnectionRoute;
use crate::records::Records;
use crate::records::cursor;
use crate::records::read::RecordsError;
use syncline_store::records::{self, Span};
use syncline_store::streams;
use syncline_types::ids::{ModelName, Variant};

/// Records that one transaction prunes, which bounds its size.
const BATCH: i64 = 1000;

/// Which payloads are emptied.
#[derive(Debug)]
pub struct PruneRequest {
    pub model: ModelName,
    pub variant: Variant,
    /// Everything up to and including the record with this cursor.
    pub until_cursor: String,
    /// Maximum number of records; `None` for all.
    pub limit: Option<i64>,
}

/// The result of pruning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneResult {
    pub count: u64,
    /// Whether the limit was reached before the cursor.
    pub has_more: bool,
}

impl Records {
    /// Empties payloads up to a cursor, the oldest first, and keeps their metadata.
    pub async fn prune(
        &self,
        connection: &ConnectionRoute,
        request: &PruneRequest,
    ) -> Result<PruneResult, RecordsError> {
        let stream = self.find_stream(connection, &request.model, &request.variant).await?;
        let until = cursor::start(Some(&request.until_cursor), stream).map_err(RecordsError::UntilCursor)?;
        let Some(stream) = stream else { return Ok(PruneResult { count: 0, has_more: false }) };

        let mut left = request.limit.unwrap_or(i64::MAX);
        let mut count = 0;
        let mut after = 0;
        while left > 0 {
            let batch = left.min(BATCH);
            let mut tx = self.store.begin_records().await?;
            // Writers lock the stream before its records too, so there is no deadlock.
            after = streams::lock_for_pruning(&mut tx, stream).await?.max(after);
            let pruned = records::prune(&mut tx, stream, Span { after, until }, batch).await?;
            if let Some(last) = pruned.last {
                streams::note_pruned(&mut tx, stream, last).await?;
                after = last;
            }
            tx.commit().await?;
            count += pruned.count;
            left -= pruned.count.cast_signed();
            if pruned.count.cast_signed() < batch {
                return Ok(PruneResult { count, has_more: false });
            }
        }
        let mut conn = self.store.connect_records().await?;
        let has_more = records::has_payload(&mut conn, stream, Span { after, until }).await?;
        Ok(PruneResult { count, has_more })
    }
}
