//! Encrypted values of all tables, for the rotation of data keys.
//!
//! Migrations register the columns with encrypted values in `sealed_columns`. The statements here are composed from
//! these names, which only migrations write. So they are not checked at compile time.

use sqlx::{AssertSqlSafe, PgConnection};

use syncline_types::ids::EnvironmentPk;

/// A column with encrypted values.
#[derive(Debug, Clone)]
pub struct SealedColumn {
    pub table: String,
    pub column: String,
    /// The SQL expression for the row's name, to which a value is bound in addition to its column.
    row_name: String,
}

/// An encrypted value, with the name of the row to which it is bound.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct SealedValue {
    pub row_name: String,
    pub sealed: Vec<u8>,
    /// The current physical address of the row.
    address: String,
}

impl SealedColumn {
    /// Returns the column's name, to which values are bound.
    pub fn name(&self) -> String {
        format!("{}.{}", self.table, self.column)
    }
}

/// Lists all columns with encrypted values.
pub async fn columns(conn: &mut PgConnection) -> sqlx::Result<Vec<SealedColumn>> {
    let rows = sqlx::query!(
        r#"
        SELECT table_name::text AS "table!", column_name::text AS "column!", row_name
        FROM sealed_columns ORDER BY 1, 2
        "#
    )
    .fetch_all(conn)
    .await?;
    let columns = rows.into_iter().map(|row| SealedColumn {
        table: row.table,
        column: row.column,
        row_name: row.row_name,
    });
    Ok(columns.collect())
}

/// Lists values of an environment that an earlier version of its data key has encrypted, except those of the rows in
/// `except`.
pub async fn list_before(
    conn: &mut PgConnection,
    column: &SealedColumn,
    environment: EnvironmentPk,
    version: i32,
    except: &[String],
    limit: i64,
) -> sqlx::Result<Vec<SealedValue>> {
    let SealedColumn { table, column, row_name } = column;
    let sql = format!(
        "SELECT {row_name} AS row_name, {column} AS sealed, ctid::text AS address FROM {table} \
         WHERE environment_pk = $1 AND {column}_version < $2 AND {row_name} <> ALL ($3) LIMIT $4"
    );
    let values =
        sqlx::query_as(AssertSqlSafe(sql)).bind(environment.0).bind(version).bind(except).bind(limit);
    values.fetch_all(conn).await
}

/// Replaces a value with its new ciphertext, unless it was changed or deleted since it was read.
pub async fn replace(
    conn: &mut PgConnection,
    column: &SealedColumn,
    old: &SealedValue,
    sealed: &[u8],
) -> sqlx::Result<()> {
    let SealedColumn { table, column, .. } = column;
    let sql = format!("UPDATE {table} SET {column} = $1 WHERE ctid = $2::tid AND {column} = $3");
    sqlx::query(AssertSqlSafe(sql)).bind(sealed).bind(&old.address).bind(&old.sealed).execute(conn).await?;
    Ok(())
}
