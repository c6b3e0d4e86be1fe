//! Reads the enums of `types` from their text columns.

use std::str::FromStr;

/// The value of an enum, or the error of a column that has a text which this version does not know.
pub(crate) fn parse<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    column: &str,
    text: &str,
) -> sqlx::Result<T> {
    text.parse()
        .map_err(|error: T::Err| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}
