//! Writes the metadata of connections.

use sqlx::PgConnection;

use crate::lookup::LookupError;
use syncline_store::connections;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::ConnectionPk;
use syncline_types::metadata::{InvalidMetadata, Metadata};

/// The number of connections whose metadata is merged at once, because the host holds all of it in memory.
const MERGED_AT_ONCE: usize = 16;

/// How new metadata changes the existing metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataChange {
    Replace,
    /// Members of the new metadata replace members with the same key.
    Merge,
}

/// Why metadata was not written.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the merged metadata of a connection {0}")]
    Merged(#[from] InvalidMetadata),
}

impl MetadataError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::Merged(_) => ErrorCode::InvalidBody,
        }
    }
}

impl From<sqlx::Error> for MetadataError {
    fn from(error: sqlx::Error) -> Self {
        Self::Lookup(error.into())
    }
}

/// Writes the metadata of connections that exist. The transaction must be rolled back if this fails.
pub(crate) async fn write_metadata(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
    metadata: &Metadata,
    change: MetadataChange,
) -> Result<(), MetadataError> {
    if change == MetadataChange::Replace {
        return Ok(connections::set_metadata(conn, connections, metadata).await?);
    }
    for part in connections.chunks(MERGED_AT_ONCE) {
        let stored = connections::lock_metadata(conn, part).await?;
        let merged = stored.into_iter().map(|(connection, stored)| Ok((connection, stored.merge(metadata)?)));
        let merged = merged.collect::<Result<Vec<_>, InvalidMetadata>>()?;
        connections::set_metadata_of_each(conn, &merged).await?;
    }
    Ok(())
}
