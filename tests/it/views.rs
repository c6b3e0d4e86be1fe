//! The schema `syncline_views`, for clients that read the database directly.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{Bundle, Connection, METADATA_KEY, Stage, delete, eventually, ids_of, save, text};

/// A role that may only read the views, created as in docs/how-to/read-records-with-sql.md.
struct ReadingRole {
    conn: PgConnection,
    name: String,
}

impl ReadingRole {
    async fn create(stage: &Stage) -> Self {
        let name = format!("reading_{}", uuid::Uuid::new_v4().simple());
        stage
            .db
            .execute(&format!(
                "CREATE ROLE {name};
                 GRANT USAGE ON SCHEMA syncline_views TO {name};
                 GRANT SELECT ON ALL TABLES IN SCHEMA syncline_views TO {name};"
            ))
            .await;
        let mut conn = stage.db.connect().await;
        sqlx::query(AssertSqlSafe(format!("SET ROLE {name}"))).execute(&mut conn).await.expect("it exists");
        Self { conn, name }
    }

    /// The rows of a query, as JSON.
    async fn rows(&mut self, sql: &str) -> Vec<Value> {
        let sql = format!("SELECT to_jsonb(found) FROM ({sql}) AS found");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut self.conn).await.expect("the role may read it")
    }

    /// Whether a statement fails because of a missing privilege.
    async fn is_denied(&mut self, sql: String) -> bool {
        let failed = sqlx::query(AssertSqlSafe(sql)).execute(&mut self.conn).await.err();
        let code = failed.as_ref().and_then(|error| error.as_database_error()?.code());
        code.is_some_and(|code| code == "42501")
    }

    async fn can(&mut self, sql: String) -> bool {
        sqlx::query(AssertSqlSafe(sql)).execute(&mut self.conn).await.is_ok()
    }

    async fn drop(self, stage: &Stage) {
        drop(self.conn);
        stage.db.execute(&format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name)).await;
    }
}

fn records_behind(position: i64) -> String {
    format!(
        "SELECT id, payload, last_action, position FROM syncline_views.records
         WHERE environment = 'dev' AND integration = 'hostile' AND connection_id = 'customer-1'
           AND model = 'Item' AND variant = 'base' AND position > {position}
         ORDER BY position"
    )
}

#[tokio::test]
async fn the_views_match_the_api_and_can_be_followed_by_position() {
    let stage = Stage::hostile().await;
    let mut reader = ReadingRole::create(&stage).await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": "Ada" }, { "id": "b" }])), delete(&["b"])])).await;
    let of_api = stage.all(&[("model", "Item")]).await;
    let of_view = reader.rows(&records_behind(0)).await;
    assert_eq!(ids_of(&of_view), ids_of(&of_api));
    for (row, record) in of_view.iter().zip(&of_api) {
        assert_eq!(row["last_action"], record[METADATA_KEY]["last_action"]);
        let payload: Value = serde_json::from_str(text(&row["payload"])).unwrap();
        assert_eq!(payload, crate::support::without_metadata(record.clone()));
    }

    let last = of_view[1]["position"].as_i64().unwrap();
    assert_eq!(reader.rows(&records_behind(last)).await, Vec::<Value>::new());
    stage.commit(json!([save(&json!([{ "id": "a", "name": "changed" }, { "id": "c" }]))])).await;
    let changes = reader.rows(&records_behind(last)).await;
    let named: Vec<_> = changes.iter().map(|row| (text(&row["id"]), text(&row["last_action"]))).collect();
    assert_eq!(named, [("a", "UPDATED"), ("c", "ADDED")]);

    let streams = "SELECT model, last_position, live_records, kept_records FROM syncline_views.streams
                   WHERE connection_id = 'customer-1' AND model = 'Item'";
    let last = changes[1]["position"].as_i64().unwrap();
    let stream = json!({ "model": "Item", "last_position": last, "live_records": 2, "kept_records": 3 });
    assert_eq!(reader.rows(streams).await, [stream]);
    let syncs = "SELECT environment, integration, connection_id, variant, is_paused, last_run_state,
                        last_run_error_code, last_success_at IS NOT NULL AS has_succeeded
                 FROM syncline_views.syncs WHERE sync = 'commit-raw'";
    stage.set_metadata(json!({ "steps": 0, "end": "fail" })).await;
    stage.run("commit-raw").await;
    let sync = json!({
        "environment": "dev", "integration": "hostile", "connection_id": "customer-1", "variant": "base",
        "is_paused": false, "last_run_state": "error", "last_run_error_code": "sync_script_failure",
        "has_succeeded": true,
    });
    assert_eq!(reader.rows(syncs).await, [sync]);

    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
    for view in ["connections", "streams", "records", "syncs"] {
        assert_eq!(
            reader.rows(&format!("SELECT * FROM syncline_views.{view}")).await,
            Vec::<Value>::new(),
            "{view}"
        );
    }
    reader.drop(&stage).await;
}

#[tokio::test]
async fn a_role_with_access_to_the_views_reads_nothing_else() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await;
    let key = json!({ "provider": "stripe-api-key", "unique_key": "stripe" });
    stage.host.post("/integrations", &key).await.expect(200);
    let credentials = json!({ "type": "BASIC", "username": "planted-user", "password": "planted-password" });
    let metadata = json!({ "token": "planted-metadata" });
    Connection::import(&stage.host, "stripe", "customer-2", credentials, metadata).await;
    stage.host.put("/environment-variables/NAME", &json!({ "value": "planted-variable" })).await.expect(204);
    let mut reader = ReadingRole::create(&stage).await;

    let tables = stage.db.texts("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'").await;
    assert!(tables.iter().any(|name| name == "connections"), "{tables:?}");
    for table in tables {
        assert!(reader.is_denied(format!("SELECT 1 FROM public.{table}")).await, "{table}");
    }
    let views =
        stage.db.texts("SELECT viewname::text FROM pg_views WHERE schemaname = 'syncline_views'").await;
    assert_eq!(views.len(), 4, "{views:?}");
    for view in views {
        let rows = eventually("the view has rows", async || {
            let rows = reader.rows(&format!("SELECT * FROM syncline_views.{view}")).await;
            (!rows.is_empty() || view == "records" || view == "streams").then_some(rows)
        })
        .await;
        let content = json!(rows).to_string();
        assert!(!content.contains("planted"), "{view}: {content}");
        // Postgres reports that a view of several tables is not updatable before it checks privileges.
        assert!(!reader.can(format!("DELETE FROM syncline_views.{view}")).await, "{view}");
        assert!(reader.is_denied(format!("CREATE TABLE syncline_views.{view}2 ()")).await, "{view}");
    }
    reader.drop(&stage).await;
}
