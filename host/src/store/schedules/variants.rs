//! Schedules of further instances of a sync.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::ids::{ConnectionPk, FunctionName, Variant};

/// A further instance of a sync.
#[derive(Debug)]
pub struct NewVariant<'a> {
    pub connection: ConnectionPk,
    pub sync: &'a FunctionName,
    pub variant: &'a Variant,
    pub auto_start: bool,
    /// How many instances there may be with it.
    pub most: i64,
}

/// Makes a variant's schedule and gives its id. `None`: there is one of that name, or there are too many.
pub async fn create_variant(conn: &mut PgConnection, new: &NewVariant<'_>) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO schedules
            (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at, due_reason)
        SELECT environment_pk, integration_pk, pk, $2, $3,
               CASE WHEN $4 THEN 'running' ELSE 'paused' END, CASE WHEN $4 THEN now() END, 'schedule'
        FROM connections
        WHERE pk = $1 AND $5 > (SELECT count(*) FROM schedules WHERE connection_pk = $1 AND sync_name = $2)
        ON CONFLICT ON CONSTRAINT schedules_sync DO NOTHING
        RETURNING id
        "#,
        new.connection.0,
        new.sync.as_str(),
        new.variant.as_str(),
        new.auto_start,
        new.most,
    )
    .fetch_optional(conn)
    .await
}

/// The id of a sync's schedule for one connection and variant.
pub async fn find_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "SELECT id FROM schedules WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await
}

/// Ends a variant's schedule and cancels its run, before its records go. `false`: there is none.
pub async fn retire_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<bool> {
    let retired = sqlx::query!(
        r#"
        WITH found AS (
            SELECT pk, run_id FROM schedules
            WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 FOR UPDATE
        ), retired AS (
            UPDATE schedules s
            SET state = 'paused', due_at = NULL, next_run_at = NULL, run_id = NULL, run_owner = NULL,
                lease_expires_at = NULL, is_parked = false
            FROM found WHERE s.pk = found.pk
        ), cancelled AS (
            UPDATE runs SET state = 'cancelled', finished_at = now()
            FROM found WHERE runs.id = found.run_id AND runs.state = 'running'
        )
        SELECT pg_notify('syncline', 'cancel') FROM found
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_all(conn)
    .await?;
    Ok(!retired.is_empty())
}

/// A fence above those of all claims so far.
pub async fn next_fence(conn: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT nextval('run_fences') AS "fence!""#).fetch_one(conn).await
}

pub async fn delete_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM schedules WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}
