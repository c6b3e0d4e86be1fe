//! Pages of rows that end at a number of bytes, so that a page of long rows does not fill the memory of a host.

use futures_util::{Stream, TryStreamExt};
use serde_json::Value;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;

/// The maximum size of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageLimit {
    pub rows: i64,
    /// The page ends before the row that would exceed this number of bytes, but has at least one row.
    pub bytes: usize,
}

/// The rows of a page.
#[derive(Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// Whether the page ended early because of its bytes.
    pub is_cut: bool,
}

impl<T> Page<T> {
    /// Reads rows until the next one would exceed `max_bytes`.
    pub(crate) async fn read(
        mut rows: impl Stream<Item = sqlx::Result<T>> + Unpin,
        max_bytes: usize,
        bytes_of: impl Fn(&T) -> usize,
    ) -> sqlx::Result<Self> {
        let mut page = Self { rows: Vec::new(), is_cut: false };
        let mut bytes = 0;
        while let Some(row) = rows.try_next().await? {
            bytes += bytes_of(&row);
            if bytes > max_bytes && !page.rows.is_empty() {
                page.is_cut = true;
                break;
            }
            page.rows.push(row);
        }
        Ok(page)
    }

    /// Releases the connection that read this page. After a page that ended early, Postgres is still sending rows. The
    /// connection is then closed, because its next user would have to read all of them.
    pub fn release(&self, mut conn: PoolConnection<Postgres>) {
        if self.is_cut {
            conn.close_on_drop();
        }
    }

    /// Truncates the page to `limit` rows. Returns whether more rows follow.
    pub fn truncate(&mut self, limit: i64) -> bool {
        let has_more = self.is_cut || self.rows.len() as i64 > limit;
        self.rows.truncate(limit.unsigned_abs() as usize);
        has_more
    }
}

/// The approximate length of a JSON text.
pub(crate) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + json_bytes(item)).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(name, value)| name.len() + 4 + json_bytes(value)).sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn page(sizes: &[usize], max_bytes: usize) -> Page<usize> {
        let rows = stream::iter(sizes.iter().map(|size| Ok(*size)));
        Page::read(rows, max_bytes, |size| *size).await.unwrap()
    }

    #[tokio::test]
    async fn a_page_ends_before_the_row_that_exceeds_its_bytes() {
        for (sizes, max_bytes, rows, is_cut) in [
            (&[][..], 10, 0, false),
            (&[4, 6], 10, 2, false),
            (&[4, 6, 1], 10, 2, true),
            (&[11, 1], 10, 1, true),
            (&[11], 10, 1, false),
        ] {
            let page = page(sizes, max_bytes).await;
            assert_eq!((page.rows.len(), page.is_cut), (rows, is_cut), "{sizes:?}");
        }
    }

    #[tokio::test]
    async fn more_rows_follow_a_page_that_ended_early() {
        for (sizes, limit, has_more) in
            [(&[1, 1][..], 2, false), (&[1, 1, 1], 2, true), (&[9, 9], 2, true), (&[9, 9], 1, true)]
        {
            let mut page = page(sizes, 10).await;
            assert_eq!(page.truncate(limit), has_more, "{sizes:?}");
            assert!(page.rows.len() as i64 <= limit);
        }
    }
}
