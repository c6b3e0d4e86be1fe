//! Schedules of variants.

use sqlx::PgConnection;
use uuid::Uuid;

use super::notify_cancel;
use crate::runs;
use syncline_types::ids::{ConnectionPk, FunctionName, IntegrationPk, SchedulePk, Variant};

/// A variant to create.
#[derive(Debug)]
pub struct NewVariant<'a> {
    pub connection: ConnectionPk,
    pub sync: &'a FunctionName,
    pub variant: &'a Variant,
    pub auto_start: bool,
    /// The maximum number of variants of the sync, including this one.
    pub most: i64,
}

/// Creates a variant's schedule and returns its id. Returns `None` if the name is taken or the maximum is reached.
pub async fn create_variant(conn: &mut PgConnection, new: &NewVariant<'_>) -> sqlx::Result<Option<Uuid>> {
    // The lock serializes creations. The count below is a separate statement, so that it sees all committed variants.
    sqlx::query!("SELECT pk FROM connections WHERE pk = $1 FOR NO KEY UPDATE", new.connection.0)
        .fetch_optional(&mut *conn)
        .await?;
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

/// Returns the id of a sync's schedule for one connection and variant.
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

/// A variant that is marked for deletion, so that no run of it can be requested.
#[derive(Debug)]
pub struct Retired {
    pub schedule: SchedulePk,
    pub integration: IntegrationPk,
    pub connection: ConnectionPk,
    pub sync: FunctionName,
    pub variant: Variant,
    /// A fencing token above those of all its runs, and below those of all runs of a later variant with the same name.
    pub fence: i64,
}

/// Marks a variant for deletion before its records are deleted, and cancels its run. A repeated call returns a higher
/// fencing token. Returns `None` if the variant does not exist.
pub async fn retire_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<Retired>> {
    let found = sqlx::query!(
        r#"
        SELECT pk, run_id FROM schedules WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 FOR UPDATE
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(found) = found else { return Ok(None) };
    let retired = sqlx::query!(
        r#"
        UPDATE schedules
        SET state = 'paused', due_at = NULL, next_run_at = NULL, run_id = NULL, run_owner = NULL,
            lease_expires_at = NULL, awaits_permit = false, retired_at = now()
        WHERE pk = $1
        RETURNING integration_pk, nextval('run_fences') AS "fence!"
        "#,
        found.pk,
    )
    .fetch_one(&mut *conn)
    .await?;
    if let Some(run) = found.run_id {
        runs::cancel(conn, &[run], "the variant was deleted").await?;
        notify_cancel(conn).await?;
    }
    Ok(Some(Retired {
        schedule: SchedulePk(found.pk),
        integration: IntegrationPk(retired.integration_pk),
        connection,
        sync: sync.clone(),
        variant: variant.clone(),
        fence: retired.fence,
    }))
}

/// Returns a fencing token above those of all runs so far, and below those of all future runs.
pub async fn next_fence(conn: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT nextval('run_fences') AS "fence!""#).fetch_one(conn).await
}

/// Claims a variant whose deletion was not finished within a minute. Other hosts do not claim it for another minute.
pub async fn take_over_retired(conn: &mut PgConnection) -> sqlx::Result<Option<Retired>> {
    let row = sqlx::query!(
        r#"
        UPDATE schedules SET retired_at = now()
        WHERE pk = (
            SELECT pk FROM schedules WHERE retired_at < now() - interval '1 minute'
            ORDER BY retired_at LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING pk, integration_pk, connection_pk, sync_name, variant, nextval('run_fences') AS "fence!"
        "#,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Retired {
        schedule: SchedulePk(row.pk),
        integration: IntegrationPk(row.integration_pk),
        connection: ConnectionPk(row.connection_pk),
        sync: FunctionName::from_stored(row.sync_name),
        variant: Variant::from_stored(row.variant),
        fence: row.fence,
    }))
}

/// Deletes the schedule of a variant whose records are gone.
pub async fn delete_retired(conn: &mut PgConnection, schedule: SchedulePk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM schedules WHERE pk = $1 AND retired_at IS NOT NULL", schedule.0)
        .execute(conn)
        .await?;
    Ok(())
}
