//! Rules for every table of the database.

use crate::support::{TestDatabase, repository};

/// Without such an index, deleting a row reads all rows of each table that references it.
#[tokio::test]
async fn every_foreign_key_has_an_index_that_starts_with_its_columns() {
    let db = TestDatabase::create().await;
    // A partial index serves a key only if it merely omits rows in which a column of the key is null.
    let without = "
        SELECT key.conrelid::regclass || ' (' || columns.names || ')'
        FROM pg_constraint key
        CROSS JOIN LATERAL (
            SELECT string_agg(quote_ident(attname), ', ' ORDER BY number) AS names,
                   array_agg('(' || quote_ident(attname) || ' IS NOT NULL)') AS not_null
            FROM unnest(key.conkey) WITH ORDINALITY AS part (attribute, number)
            JOIN pg_attribute ON attrelid = key.conrelid AND attnum = attribute
        ) AS columns
        WHERE key.contype = 'f' AND key.connamespace = 'public'::regnamespace
          AND NOT EXISTS (
              SELECT FROM pg_index i
              WHERE i.indrelid = key.conrelid AND i.indisvalid
                AND (i.indkey::smallint[])[0:cardinality(key.conkey) - 1] @> key.conkey
                AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = ANY (columns.not_null))
          )
        ORDER BY 1";
    assert_eq!(db.texts(without).await, Vec::<String>::new());
    let keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f'";
    assert!(db.number(keys).await > 30, "the query examines foreign keys");
}

#[tokio::test]
async fn the_statement_of_the_webhook_benchmark_fits_the_tables() {
    let db = TestDatabase::create().await;
    let statement = std::fs::read_to_string(repository("bench/intake.sql")).expect("the benchmark has it");
    db.execute(&format!("EXPLAIN {}", statement.replace(":size", "1024"))).await;
}
