//! Environments, and the named facts of the installation.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::environment_settings::{EnvironmentSettings, HttpUrl, SettingsChange, UiColor, UiTitle};
use syncline_types::ids::{ConnectionPk, EnvironmentName, EnvironmentPk};

/// A row of `environments`.
#[derive(Debug, Clone)]
pub struct StoredEnvironment {
    pub pk: EnvironmentPk,
    pub id: Uuid,
    pub name: EnvironmentName,
    pub created_at: DateTime<Utc>,
}

pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<StoredEnvironment>> {
    let rows =
        sqlx::query!("SELECT pk, id, name, created_at FROM environments ORDER BY pk").fetch_all(conn).await?;
    let environments = rows.into_iter().map(|row| StoredEnvironment {
        pk: EnvironmentPk(row.pk),
        id: row.id,
        name: EnvironmentName::from_stored(row.name),
        created_at: row.created_at,
    });
    Ok(environments.collect())
}

/// Creates an environment and notifies all hosts. Returns `None` if the name is taken.
pub async fn create(
    conn: &mut PgConnection,
    id: Uuid,
    name: &EnvironmentName,
) -> sqlx::Result<Option<EnvironmentPk>> {
    let pk = sqlx::query_scalar!(
        "INSERT INTO environments (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING pk",
        id,
        name.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    sqlx::query!("SELECT pg_notify('syncline', 'environments')").fetch_one(conn).await?;
    Ok(pk.map(EnvironmentPk))
}

/// Deletes an environment with everything that belongs to it, and notifies all hosts. Returns its connections, whose
/// records are removed in the background like those of other deleted connections.
pub async fn delete(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Vec<ConnectionPk>> {
    let connections = sqlx::query_scalar!(
        r#"
        INSERT INTO deleted_connections (connection_pk) SELECT pk FROM connections WHERE environment_pk = $1
        RETURNING connection_pk
        "#,
        environment.0,
    )
    .fetch_all(&mut *conn)
    .await?;
    // Encrypted values are deleted before the data key that they refer to.
    for delete in [
        sqlx::query!("DELETE FROM integrations WHERE environment_pk = $1", environment.0),
        sqlx::query!("DELETE FROM environment_variables WHERE environment_pk = $1", environment.0),
        sqlx::query!("DELETE FROM outbound_webhook_signing_keys WHERE environment_pk = $1", environment.0),
        sqlx::query!("DELETE FROM outbound_webhook_deliveries WHERE environment_pk = $1", environment.0),
        sqlx::query!("DELETE FROM environments WHERE pk = $1", environment.0),
    ] {
        delete.execute(&mut *conn).await?;
    }
    for event in ["keys", "environments", "deployments", "deletions", "cancel"] {
        sqlx::query!("SELECT pg_notify('syncline', $1)", event).fetch_one(&mut *conn).await?;
    }
    Ok(connections.into_iter().map(ConnectionPk).collect())
}

/// Locks an environment until the transaction ends, so that changes of the whole environment happen one after the
/// other. Returns `false` if it does not exist.
pub async fn lock(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<bool> {
    let locked = sqlx::query!("SELECT pk FROM environments WHERE pk = $1 FOR NO KEY UPDATE", environment.0)
        .fetch_optional(conn)
        .await?;
    Ok(locked.is_some())
}

pub async fn settings(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Option<EnvironmentSettings>> {
    let row = sqlx::query!(
        r#"
        SELECT webhook_url, webhook_url_secondary, callback_url, on_auth_creation, on_auth_refresh_error,
               on_sync_completion_always, on_sync_error, on_async_action_completion, connect_ui_title,
               connect_ui_primary_color
        FROM environments WHERE pk = $1
        "#,
        environment.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| EnvironmentSettings {
        webhook_url: row.webhook_url.map(HttpUrl::from_stored),
        webhook_url_secondary: row.webhook_url_secondary.map(HttpUrl::from_stored),
        callback_url: row.callback_url.map(HttpUrl::from_stored),
        on_auth_creation: row.on_auth_creation,
        on_auth_refresh_error: row.on_auth_refresh_error,
        on_sync_completion_always: row.on_sync_completion_always,
        on_sync_error: row.on_sync_error,
        on_async_action_completion: row.on_async_action_completion,
        connect_ui_title: row.connect_ui_title.map(UiTitle::from_stored),
        connect_ui_primary_color: row.connect_ui_primary_color.map(UiColor::from_stored),
    }))
}

/// Changes settings and notifies all hosts.
pub async fn change_settings(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    change: &SettingsChange,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH changed AS (
            UPDATE environments SET
                webhook_url = CASE WHEN $2 THEN $3 ELSE webhook_url END,
                webhook_url_secondary = CASE WHEN $4 THEN $5 ELSE webhook_url_secondary END,
                callback_url = CASE WHEN $6 THEN $7 ELSE callback_url END,
                connect_ui_title = CASE WHEN $8 THEN $9 ELSE connect_ui_title END,
                connect_ui_primary_color = CASE WHEN $10 THEN $11 ELSE connect_ui_primary_color END,
                on_auth_creation = coalesce($12, on_auth_creation),
                on_auth_refresh_error = coalesce($13, on_auth_refresh_error),
                on_sync_completion_always = coalesce($14, on_sync_completion_always),
                on_sync_error = coalesce($15, on_sync_error),
                on_async_action_completion = coalesce($16, on_async_action_completion),
                updated_at = now()
            WHERE pk = $1
            RETURNING pk
        )
        SELECT pg_notify('syncline', 'environments') FROM changed
        "#,
        environment.0,
        change.webhook_url.is_some(),
        change.webhook_url.as_ref().and_then(|url| Some(url.as_ref()?.as_str())),
        change.webhook_url_secondary.is_some(),
        change.webhook_url_secondary.as_ref().and_then(|url| Some(url.as_ref()?.as_str())),
        change.callback_url.is_some(),
        change.callback_url.as_ref().and_then(|url| Some(url.as_ref()?.as_str())),
        change.connect_ui_title.is_some(),
        change.connect_ui_title.as_ref().and_then(|title| Some(title.as_ref()?.as_str())),
        change.connect_ui_primary_color.is_some(),
        change.connect_ui_primary_color.as_ref().and_then(|color| Some(color.as_ref()?.as_str())),
        change.on_auth_creation,
        change.on_auth_refresh_error,
        change.on_sync_completion_always,
        change.on_sync_error,
        change.on_async_action_completion,
    )
    .fetch_all(&mut *conn)
    .await?;
    // A URL that had answered 410 is used again once a client sets it.
    let new_urls: Vec<String> = [&change.webhook_url, &change.webhook_url_secondary]
        .into_iter()
        .filter_map(|url| Some(url.as_ref()?.as_ref()?.as_str().to_owned()))
        .collect();
    sqlx::query!(
        "DELETE FROM outbound_webhook_gone_urls WHERE environment_pk = $1 AND url = ANY($2)",
        environment.0,
        &new_urls,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the fact of the installation with this name.
pub async fn find_fact(conn: &mut PgConnection, name: &str) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("SELECT value FROM installation WHERE name = $1", name).fetch_optional(conn).await
}

/// Stores a fact of the installation unless it exists. Returns the stored value.
pub async fn remember_fact(conn: &mut PgConnection, name: &str, value: &str) -> sqlx::Result<String> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO installation (name, value) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET value = installation.value
        RETURNING value
        "#,
        name,
        value,
    )
    .fetch_one(conn)
    .await
}
