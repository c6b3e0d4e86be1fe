//! Converts text columns to the enums of the `types` crate.

use std::str::FromStr;

/// Parses a column's text. Fails with a decoding error for a text that this version does not know.
pub(crate) fn parse<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    column: &str,
    text: &str,
) -> sqlx::Result<T> {
    text.parse()
        .map_err(|error: T::Err| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}
