//! Records that syncs save. Payloads are stored as the JSON text that the function saved.
//!
//! Each record has a position in its stream, which grows with every change. Positions are assigned while the stream is
//! locked, so they become visible in order.

mod read;
mod sealed;
mod seen;
mod write;

pub use read::{
    ActionSet, Content, Filter, Pruned, Span, StoredRecord, find_payloads, has_payload, page, page_by_ids,
    position_at, prune,
};
pub use sealed::missing_key;
pub use seen::{
    Unseen, begin_generation, delete_all, delete_held, delete_unseen, end_generation, hold_generation,
    mark_seen,
};
pub use write::{Deleted, IncomingRecord, Saved, delete, list_pruned, positions, save};

use sqlx::Type;

/// The last change of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Type)]
#[repr(i16)]
pub enum LastAction {
    Added = 0,
    Updated = 1,
    Deleted = 2,
}
