//! OAuth authorizations in progress, and their outcomes.

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{AuthorizationPk, ConnectSessionPk, EnvironmentPk, IntegrationPk};

const INTEGRATION_EXISTS: &str = "authorizations_integration_pk_fkey";

/// An end user who is redirected to a provider. The secrets are encrypted for the row `id`.
#[derive(Debug)]
pub struct NewAuthorization<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub session: ConnectSessionPk,
    pub state_hash: [u8; 32],
    pub browser_hash: [u8; 32],
    pub connection_config: &'a Value,
    pub sealed_secrets: &'a [u8],
    pub listener: Option<Uuid>,
    pub lifetime_seconds: i32,
}

/// The stored authorization of an end user who returns from a provider.
#[derive(Debug)]
pub struct Authorization {
    pub pk: AuthorizationPk,
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub session: ConnectSessionPk,
    /// The hash of the session's token, by which the session is found.
    pub session_token_hash: Vec<u8>,
    pub browser_hash: Vec<u8>,
    pub connection_config: Value,
    pub sealed_secrets: Vec<u8>,
    pub listener: Option<Uuid>,
}

/// Stores an authorization. Returns `false` if the integration was deleted.
pub async fn create(conn: &mut PgConnection, new: &NewAuthorization<'_>) -> sqlx::Result<bool> {
    let created = sqlx::query!(
        r#"
        INSERT INTO authorizations
            (id, environment_pk, integration_pk, connect_session_pk, state_hash, browser_hash, connection_config,
             sealed_secrets, listener, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now() + make_interval(secs => $10))
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.session.0,
        new.state_hash.as_slice(),
        new.browser_hash.as_slice(),
        new.connection_config,
        new.sealed_secrets,
        new.listener,
        f64::from(new.lifetime_seconds),
    )
    .execute(conn)
    .await;
    match created {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.constraint() == Some(INTEGRATION_EXISTS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Finds the authorization with this state, unless it was used or has expired.
pub async fn find(conn: &mut PgConnection, state_hash: &[u8; 32]) -> sqlx::Result<Option<Authorization>> {
    let row = sqlx::query!(
        r#"
        SELECT a.pk, a.id, a.environment_pk, a.integration_pk, a.connect_session_pk, a.browser_hash,
               a.connection_config, a.sealed_secrets, a.listener, s.token_hash
        FROM authorizations a JOIN connect_sessions s ON s.pk = a.connect_session_pk
        WHERE a.state_hash = $1 AND a.used_at IS NULL AND a.expires_at > now()
        "#,
        state_hash.as_slice(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Authorization {
        pk: AuthorizationPk(row.pk),
        id: row.id,
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk),
        session: ConnectSessionPk(row.connect_session_pk),
        session_token_hash: row.token_hash,
        browser_hash: row.browser_hash,
        connection_config: row.connection_config,
        sealed_secrets: row.sealed_secrets,
        listener: row.listener,
    }))
}

/// Marks an authorization as used. Returns `false` if it was used already or has expired.
pub async fn take(conn: &mut PgConnection, authorization: AuthorizationPk) -> sqlx::Result<bool> {
    let used = sqlx::query!(
        "UPDATE authorizations SET used_at = now() WHERE pk = $1 AND used_at IS NULL AND expires_at > now()",
        authorization.0,
    )
    .execute(conn)
    .await?;
    Ok(used.rows_affected() == 1)
}

/// Stores the outcome for its listener and notifies all hosts. An existing outcome is kept.
pub async fn publish_outcome(
    conn: &mut PgConnection,
    session: ConnectSessionPk,
    listener: Uuid,
    outcome: &Value,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH told AS (
            INSERT INTO authorization_outcomes (listener, connect_session_pk, outcome)
            VALUES ($1, $2, $3)
            ON CONFLICT (listener) DO NOTHING
            RETURNING listener
        )
        SELECT pg_notify('syncline', 'outcome:' || listener) FROM told
        "#,
        listener,
        session.0,
        outcome,
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// The state of the authorization that a listener waits for.
#[derive(Debug)]
pub struct ListenerState {
    pub listener: Uuid,
    /// The outcome with its session. `None` while the authorization is in progress.
    pub outcome: Option<(ConnectSessionPk, Value)>,
}

/// Returns the states of these listeners, except those for which no authorization has begun.
pub async fn listener_states(
    conn: &mut PgConnection,
    listeners: &[Uuid],
) -> sqlx::Result<Vec<ListenerState>> {
    let rows = sqlx::query!(
        r#"
        SELECT wanted.listener AS "listener!", ended.connect_session_pk AS "connect_session_pk?",
               ended.outcome AS "outcome?"
        FROM unnest($1::uuid[]) AS wanted (listener)
        LEFT JOIN authorization_outcomes ended ON ended.listener = wanted.listener
        LEFT JOIN LATERAL (
            SELECT pk FROM authorizations WHERE listener >= wanted.listener AND listener <= wanted.listener
            ORDER BY listener LIMIT 1
        ) AS begun ON true
        WHERE ended.listener IS NOT NULL OR begun.pk IS NOT NULL
        "#,
        listeners,
    )
    .fetch_all(conn)
    .await?;
    let states = rows.into_iter().map(|row| ListenerState {
        listener: row.listener,
        outcome: row.connect_session_pk.map(ConnectSessionPk).zip(row.outcome),
    });
    Ok(states.collect())
}
