//! The positions of connections in lists, as the addresses of the next pages name them.

use chrono::DateTime;

use crate::error::PageError;
use syncline_engine::{Connection, ConnectionPosition};
use syncline_types::ids::ConnectionPk;

/// The creation time of a connection in microseconds, and its row number.
pub(crate) fn position_text(connection: &Connection) -> String {
    format!("{}.{}", connection.created_at.timestamp_micros(), connection.pk)
}

pub(crate) fn parse_position(text: &str) -> Result<ConnectionPosition, PageError> {
    let position = || {
        let (created_at, pk) = text.split_once('.')?;
        let created_at = DateTime::from_timestamp_micros(created_at.parse().ok()?)?;
        Some(ConnectionPosition { created_at, pk: ConnectionPk(pk.parse().ok()?) })
    };
    position().ok_or_else(|| PageError::invalid("Page", "the address is malformed; go to the first page"))
}
