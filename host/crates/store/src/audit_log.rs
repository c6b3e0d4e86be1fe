//! The audit log: an append-only list of changes, and of reads of credentials.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::hosts::interval;
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey};

/// An entry to write.
#[derive(Debug, Clone)]
pub struct NewEntry {
    environment: Option<EnvironmentPk>,
    action: AuditAction,
    target_kind: TargetKind,
    /// `None` for the environment itself.
    target: Option<String>,
    details: Value,
}

impl NewEntry {
    /// An entry about an object of an environment, without details.
    pub fn new(
        environment: EnvironmentPk,
        action: AuditAction,
        target_kind: TargetKind,
        target: impl Into<String>,
    ) -> Self {
        let target = Some(target.into());
        Self { environment: Some(environment), action, target_kind, target, details: json!({}) }
    }

    /// An entry about an environment itself, without details.
    pub fn of_environment(environment: EnvironmentPk, action: AuditAction) -> Self {
        Self {
            environment: Some(environment),
            action,
            target_kind: TargetKind::Environment,
            target: None,
            details: json!({}),
        }
    }

    /// An entry about a connection, without details.
    pub fn of_connection(
        environment: EnvironmentPk,
        action: AuditAction,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> Self {
        Self::new(environment, action, TargetKind::Connection, format!("{integration}/{connection}"))
    }

    /// An entry about an object that belongs to no environment, without details.
    pub fn of_installation(action: AuditAction, target_kind: TargetKind, target: impl Into<String>) -> Self {
        Self { environment: None, action, target_kind, target: Some(target.into()), details: json!({}) }
    }

    /// Sets the details: an object with names, numbers and flags, never with a secret value.
    pub fn with(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// An entry of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    pub position: Position,
    pub id: Uuid,
    /// `None` if the entry concerns the whole installation. The environment may have been deleted since.
    pub environment: Option<String>,
    pub actor_kind: String,
    pub actor_id: String,
    pub actor_name: Option<String>,
    pub action: String,
    pub target_kind: String,
    pub target: String,
    pub details: Value,
    pub address: Option<String>,
    pub request_id: Option<String>,
}

/// A position in the log, which is ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub at: DateTime<Utc>,
    pub pk: i64,
}

/// Which entries to list. Every condition that is set must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The environment's name.
    pub environment: Option<String>,
    /// The author's id.
    pub actor: Option<String>,
    pub action: Option<AuditAction>,
    pub target: Option<String>,
    /// Only entries of this time or later.
    pub after: Option<DateTime<Utc>>,
    /// Only entries before this time.
    pub before: Option<DateTime<Utc>>,
    /// Only entries older than the one at this position.
    pub behind: Option<Position>,
}

/// Adds an entry. Call it in the transaction of the change, so that neither exists without the other.
pub async fn write(conn: &mut PgConnection, actor: &Actor, entry: &NewEntry) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO audit_log
            (environment_pk, environment_name, actor_kind, actor_id, actor_name, action, target_kind, target, details,
             address, request_id)
        VALUES ($1, (SELECT name FROM environments WHERE pk = $1), $2, $3, $4, $5, $6,
                coalesce($7, (SELECT name FROM environments WHERE pk = $1)), $8, $9::text::inet, $10)
        "#,
        entry.environment.map(|environment| environment.0),
        actor.identity.kind(),
        actor.identity.id(),
        actor.identity.name(),
        entry.action.as_str(),
        entry.target_kind.as_str(),
        entry.target,
        entry.details,
        actor.address.map(|address| address.to_string()),
        actor.request_id,
    )
    .execute(conn)
    .await?;
    Ok(())
}

struct EntryRow {
    pk: i64,
    id: Uuid,
    at: DateTime<Utc>,
    environment_name: Option<String>,
    actor_kind: String,
    actor_id: String,
    actor_name: Option<String>,
    action: String,
    target_kind: String,
    target: String,
    details: Value,
    address: Option<String>,
    request_id: Option<String>,
}

impl From<EntryRow> for Entry {
    fn from(row: EntryRow) -> Self {
        Self {
            position: Position { at: row.at, pk: row.pk },
            id: row.id,
            environment: row.environment_name,
            actor_kind: row.actor_kind,
            actor_id: row.actor_id,
            actor_name: row.actor_name,
            action: row.action,
            target_kind: row.target_kind,
            target: row.target,
            details: row.details,
            address: row.address,
            request_id: row.request_id,
        }
    }
}

/// Lists one page. `$whose` compares the column whose index the statement reads; the other conditions only filter, and
/// no index can serve them, so that the planner has no other choice.
macro_rules! list_entries {
    ($whose:literal, $filter:expr, $limit:expr) => {
        sqlx::query_as!(
            EntryRow,
            r#"
        SELECT pk, id, at, environment_name, actor_kind, actor_id, actor_name, action, target_kind, target, details,
               host(address) AS address, request_id
        FROM audit_log
        WHERE "#
                + $whose
                + r#"
          AND (at, pk) < (coalesce($1, 'infinity'::timestamptz), coalesce($2, 9223372036854775807))
          AND at >= coalesce($3, '-infinity'::timestamptz) AND at < coalesce($4, 'infinity'::timestamptz)
          AND ($5::text IS NULL OR target = $5) AND ($6::text IS NULL OR actor_id = $6)
          AND ($7::text IS NULL OR action = $7) AND ($8::text IS NULL OR environment_name = $8)
        ORDER BY at DESC, pk DESC LIMIT $9
        "#,
            $filter.behind.map(|position| position.at),
            $filter.behind.map(|position| position.pk),
            $filter.after,
            $filter.before,
            $filter.target,
            $filter.actor,
            $filter.action.map(AuditAction::as_str),
            $filter.environment,
            $limit,
        )
    };
}

/// Lists one page, newest first. Reads the index of the most selective condition.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: i64) -> sqlx::Result<Vec<Entry>> {
    let rows = if filter.target.is_some() {
        list_entries!("target = $5", filter, limit).fetch_all(conn).await?
    } else if filter.actor.is_some() {
        list_entries!("actor_id = $6", filter, limit).fetch_all(conn).await?
    } else if filter.action.is_some() {
        list_entries!("action = $7", filter, limit).fetch_all(conn).await?
    } else if filter.environment.is_some() {
        list_entries!("environment_name = $8", filter, limit).fetch_all(conn).await?
    } else {
        list_entries!("true", filter, limit).fetch_all(conn).await?
    };
    Ok(rows.into_iter().map(Entry::from).collect())
}

/// Deletes up to `limit` entries that are older than `kept_for`, the oldest first. Returns how many were deleted.
/// Entries younger than a day cannot be deleted.
pub async fn delete_expired(conn: &mut PgConnection, kept_for: Duration, limit: i64) -> sqlx::Result<u64> {
    // A trigger refuses other deletions. The setting ends with the transaction.
    sqlx::query!("SELECT set_config('syncline.audit_log_retention', 'on', true)")
        .fetch_one(&mut *conn)
        .await?;
    let deleted = sqlx::query!(
        r#"
        DELETE FROM audit_log
        WHERE pk = ANY(ARRAY(SELECT pk FROM audit_log WHERE at < now() - $1::interval ORDER BY at, pk LIMIT $2))
        "#,
        interval(kept_for),
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
