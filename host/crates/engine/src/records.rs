//! Records: committed by functions, read and followed by clients.

pub(crate) mod changes;
pub(crate) mod commit;
pub mod cursor;
pub(crate) mod progress;
pub(crate) mod prune;
pub(crate) mod read;
mod stream_numbers;

use std::sync::Arc;

use crate::functions::Functions;
use crate::records::changes::RecordChanges;
use crate::records::stream_numbers::StreamNumbers;
use syncline_auth::Environments;
use syncline_store::Store;

/// Settings for records that an operator can change.
#[derive(Debug, Clone)]
pub struct RecordSettings {
    /// The member of a record that contains its metadata.
    pub metadata_key: Arc<str>,
    /// Maximum number of records of one model, connection and variant.
    pub max_stream_records: u64,
    /// The length of payloads at which a page of records or dead letters ends, in bytes.
    pub max_page_bytes: usize,
}

/// Writes and reads records.
pub struct Records {
    store: Store,
    environments: Arc<Environments>,
    functions: Arc<Functions>,
    changes: Arc<RecordChanges>,
    streams: StreamNumbers,
    settings: RecordSettings,
}

impl Records {
    pub fn new(
        store: Store,
        environments: Arc<Environments>,
        functions: Arc<Functions>,
        changes: Arc<RecordChanges>,
        settings: RecordSettings,
    ) -> Arc<Self> {
        let streams = StreamNumbers::new(store.clone());
        Arc::new(Self { store, environments, functions, changes, streams, settings })
    }
}
