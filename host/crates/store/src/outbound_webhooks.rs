//! The outbox of outbound webhooks. Messages are stored in the transaction that they report.

pub mod log;
pub mod sending;

use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

/// The webhook URLs of an environment, and the kinds of messages it wants.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    pub primary: Option<String>,
    pub secondary: Option<String>,
    pub on_auth_creation: bool,
    pub on_auth_refresh_error: bool,
    pub on_sync_completion_always: bool,
    pub on_sync_error: bool,
    pub on_async_action_completion: bool,
}

/// A connection's names in webhooks, and the settings that decide where they are sent.
#[derive(Debug, Clone)]
pub struct Subject {
    pub connection_id: ConnectionId,
    pub integration_key: IntegrationKey,
    /// The connection's own URL, which replaces the environment's URLs.
    pub webhook_url_override: Option<String>,
    pub settings: WebhookSettings,
}

/// The setting that a URL comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Primary,
    Secondary,
    Override,
}

impl Target {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Override => "override",
        }
    }
}

/// A message to send. Its body is exactly what is signed and sent.
#[derive(Debug)]
pub struct Message<'a> {
    pub environment: EnvironmentPk,
    pub connection: Option<ConnectionPk>,
    pub kind: &'static str,
    pub body: &'a str,
    /// The provider's headers of a forwarded webhook, as an object of strings.
    pub headers: Option<&'a serde_json::Value>,
}

impl WebhookSettings {
    /// Returns the distinct URLs for a message about a connection whose own URL is `own`.
    pub fn targets<'a>(&'a self, own: Option<&'a str>) -> Vec<(Target, &'a str)> {
        if let Some(url) = own.filter(|url| !url.is_empty()) {
            return vec![(Target::Override, url)];
        }
        let set = [(Target::Primary, &self.primary), (Target::Secondary, &self.secondary)];
        let mut targets: Vec<(Target, &str)> = Vec::with_capacity(set.len());
        for (target, url) in set {
            if let Some(url) = url.as_deref()
                && !url.is_empty()
                && !targets.iter().any(|(_, known)| *known == url)
            {
                targets.push((target, url));
            }
        }
        targets
    }
}

pub async fn find_settings(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Option<WebhookSettings>> {
    sqlx::query_as!(
        WebhookSettings,
        r#"
        SELECT webhook_url AS "primary", webhook_url_secondary AS "secondary", on_auth_creation,
               on_auth_refresh_error, on_sync_completion_always, on_sync_error, on_async_action_completion
        FROM environments WHERE pk = $1
        "#,
        environment.0,
    )
    .fetch_optional(conn)
    .await
}

/// Returns `None` if the connection was deleted.
pub async fn find_subject(
    conn: &mut PgConnection,
    connection: ConnectionPk,
) -> sqlx::Result<Option<Subject>> {
    let row = sqlx::query!(
        r#"
        SELECT c.connection_id, i.unique_key, c.webhook_url_override, e.webhook_url, e.webhook_url_secondary,
               e.on_auth_creation, e.on_auth_refresh_error, e.on_sync_completion_always, e.on_sync_error,
               e.on_async_action_completion
        FROM connections c
        JOIN integrations i ON i.pk = c.integration_pk
        JOIN environments e ON e.pk = c.environment_pk
        WHERE c.pk = $1
        "#,
        connection.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Subject {
        connection_id: ConnectionId::from_stored(row.connection_id),
        integration_key: IntegrationKey::from_stored(row.unique_key),
        webhook_url_override: row.webhook_url_override,
        settings: WebhookSettings {
            primary: row.webhook_url,
            secondary: row.webhook_url_secondary,
            on_auth_creation: row.on_auth_creation,
            on_auth_refresh_error: row.on_auth_refresh_error,
            on_sync_completion_always: row.on_sync_completion_always,
            on_sync_error: row.on_sync_error,
            on_async_action_completion: row.on_async_action_completion,
        },
    }))
}

/// Stores one delivery for each target, except for URLs that have answered 410. Returns their number.
pub async fn enqueue(
    conn: &mut PgConnection,
    message: &Message<'_>,
    targets: &[(Target, &str)],
) -> sqlx::Result<u64> {
    let names: Vec<String> = targets.iter().map(|(target, _)| target.as_str().to_owned()).collect();
    let urls: Vec<String> = targets.iter().map(|(_, url)| (*url).to_owned()).collect();
    let inserted = sqlx::query!(
        r#"
        INSERT INTO outbound_webhook_deliveries
            (message_id, id, environment_pk, connection_pk, type, target, url, body, headers, state, next_attempt_at)
        SELECT $1, gen_random_uuid(), $2, $3, $4, t.target, t.url, $7, coalesce($8, '{}'::jsonb), 'pending', now()
        FROM unnest($5::text[], $6::text[]) AS t (target, url)
        WHERE NOT EXISTS (SELECT FROM outbound_webhook_gone_urls g WHERE g.environment_pk = $2 AND g.url = t.url)
        "#,
        Uuid::now_v7(),
        message.environment.0,
        message.connection.map(|connection| connection.0),
        message.kind,
        &names,
        &urls,
        message.body,
        message.headers,
    )
    .execute(conn)
    .await?;
    Ok(inserted.rows_affected())
}

/// Allows deliveries to a URL again that had answered 410, because a client has set it again.
pub async fn use_again(conn: &mut PgConnection, environment: EnvironmentPk, url: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM outbound_webhook_gone_urls WHERE environment_pk = $1 AND url = $2",
        environment.0,
        url,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notifies all hosts to check for due deliveries at once.
pub async fn notify(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'webhooks')").fetch_one(conn).await?;
    Ok(())
}
