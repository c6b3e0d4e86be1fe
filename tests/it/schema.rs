//! Rules for every table of the database.

use crate::support::{RECORD_TABLES, TestDatabase, repository};

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

/// Records can be on a Citus cluster, which distributes changes of tables one statement at a time.
#[test]
fn later_migrations_of_records_have_one_statement() {
    /// The last migration before the tables could be distributed.
    const BEFORE: u32 = 18;
    const CHANGES: [&str; 6] = ["TABLE", "ON", "INTO", "UPDATE", "FROM", "ONLY"];

    let mut examined = 0;
    for entry in std::fs::read_dir(repository("host/crates/store/migrations")).expect("the folder exists") {
        let entry = entry.expect("the folder can be read");
        let name = entry.file_name().into_string().expect("the name is text");
        let number: u32 = name.split('_').next().and_then(|part| part.parse().ok()).expect("it has a number");
        examined += 1;
        if number <= BEFORE {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("the migration is text");
        let code: Vec<_> = text.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
        let code = code.join(" ");
        let words: Vec<_> = code.split(|at: char| !at.is_alphanumeric() && at != '_').collect();
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let changes_records =
            words.windows(2).any(|pair| CHANGES.contains(&pair[0]) && RECORD_TABLES.contains(&pair[1]));
        let statements = code.split(';').filter(|statement| !statement.trim().is_empty()).count();
        assert!(
            !changes_records || statements == 1,
            "{name} has {statements} statements: use a file for each"
        );
    }
    assert!(examined >= 18, "the migrations are examined");
}
