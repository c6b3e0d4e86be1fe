//! Runs with held deletions, and their approval.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::enums;
use syncline_types::actor::Actor;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, Variant};

/// The values of a run that its approval needs.
#[derive(Debug, Clone)]
pub struct HeldRun {
    pub connection: ConnectionPk,
    pub sync: FunctionName,
    pub variant: Variant,
    /// `None` if the run is not of a sync.
    pub fence: Option<i64>,
    pub error_code: Option<ErrorCode>,
    pub counts: Option<Value>,
    pub approved_at: Option<DateTime<Utc>>,
    /// The last success of the sync. Also `None` if its schedule was deleted.
    pub last_success_at: Option<DateTime<Utc>>,
}

/// Finds a run. Returns `None` if the environment has no run with this id.
pub async fn find_held(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<HeldRun>> {
    let row = sqlx::query!(
        r#"
        SELECT r.connection_pk, r.function_name, r.variant, r.fence, r.error_code, r.counts, r.approved_at,
               s.last_success_at AS "last_success_at?"
        FROM runs r LEFT JOIN schedules s ON s.pk = r.schedule_pk
        WHERE r.id = $2 AND r.environment_pk = $1
        "#,
        environment.0,
        id,
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let error_code = row.error_code.as_deref().map(|code| enums::parse("error_code", code)).transpose()?;
    Ok(Some(HeldRun {
        connection: ConnectionPk(row.connection_pk),
        sync: FunctionName::from_stored(row.function_name),
        variant: Variant::from_stored(row.variant),
        fence: row.fence,
        error_code,
        counts: row.counts,
        approved_at: row.approved_at,
        last_success_at: row.last_success_at,
    }))
}

/// Stores that a client has approved a run, before the approval is applied.
pub async fn begin_approval(conn: &mut PgConnection, id: Uuid, actor: &Actor) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO approvals_in_progress (run_id, approved_by) VALUES ($1, $2)
        ON CONFLICT (run_id) DO UPDATE SET claimed_at = now()
        "#,
        id,
        Json(actor) as _,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes an approval that was applied completely.
pub async fn end_approval(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM approvals_in_progress WHERE run_id = $1", id).execute(conn).await?;
    Ok(())
}

/// Claims a run whose approval was not finished within a minute. Other hosts do not claim it for another minute. Also
/// returns who approved the run.
pub async fn take_over_approval(
    conn: &mut PgConnection,
) -> sqlx::Result<Option<(EnvironmentPk, Uuid, Actor)>> {
    let row = sqlx::query!(
        r#"
        UPDATE approvals_in_progress a SET claimed_at = now()
        FROM runs r
        WHERE r.id = a.run_id AND a.run_id = (
            SELECT run_id FROM approvals_in_progress WHERE claimed_at < now() - interval '1 minute'
            ORDER BY claimed_at LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING r.environment_pk, r.id, a.approved_by AS "approved_by!: Json<Actor>"
        "#,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (EnvironmentPk(row.environment_pk), row.id, row.approved_by.0)))
}

/// Marks a held run as approved and successful, after its deletions were applied. Returns `false` if it was approved
/// already.
pub async fn approve(conn: &mut PgConnection, id: Uuid, counts: &Value, message: &str) -> sqlx::Result<bool> {
    let approved = sqlx::query!(
        r#"
        UPDATE runs
        SET state = 'success', approved_at = now(), counts = $2, error_code = NULL, error_message = NULL,
            error_details = NULL
        WHERE id = $1 AND approved_at IS NULL
        "#,
        id,
        counts,
    )
    .execute(&mut *conn)
    .await?;
    if approved.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        r#"
        INSERT INTO run_logs (run_id, line, at, level, message)
        SELECT $1, coalesce(max(line), -1) + 1, now(), 'info', $2 FROM run_logs WHERE run_id = $1
        "#,
        id,
        message,
    )
    .execute(conn)
    .await?;
    Ok(true)
}
