//! Sealed values of all tables, for those who seal them anew.
//!
//! Which columns hold some is in the database: a migration that makes one declares it. So these statements are put
//! together from the names in `sealed_columns`, which only migrations write, and are not checked at compile time.

use sqlx::{AssertSqlSafe, PgConnection};

use syncline_types::ids::EnvironmentPk;

/// A column of sealed values.
#[derive(Debug, Clone)]
pub struct SealedColumn {
    pub table: String,
    pub column: String,
    /// SQL of what a value is bound to beside its column.
    row_name: String,
}

/// One value, by the place that it is bound to.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct SealedValue {
    pub row_name: String,
    pub sealed: Vec<u8>,
    /// Where the row is stored at the moment.
    address: String,
}

impl SealedColumn {
    /// As sealed values are bound to it.
    pub fn name(&self) -> String {
        format!("{}.{}", self.table, self.column)
    }
}

/// Every column of sealed values.
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

/// Some values of an environment that an earlier version of its data key has sealed, but for those of the rows named
/// in `except`.
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

/// Puts the value sealed anew in the place of the old one, unless that has changed or gone since it was read.
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
