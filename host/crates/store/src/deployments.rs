//! Deployed bundles, their functions and components.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::hosts::interval;
use crate::enums;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{
    DeploymentPk, EnvironmentPk, FunctionName, FunctionPk, IntegrationKey, IntegrationPk, ProviderSlug,
};

/// A bundle to stage.
#[derive(Debug)]
pub struct NewDeployment<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub bundle_name: &'a str,
    pub digest: &'a str,
    pub config: &'a Value,
    /// What the deployment changes: a list of objects.
    pub changes: &'a Value,
    pub deployed_by: &'a str,
    pub signature: Option<&'a str>,
    /// The name of the key that signed the bundle.
    pub signed_by: Option<&'a str>,
    /// The earlier version that is deployed again.
    pub restored_version: Option<i32>,
}

/// A function of a deployment to stage.
#[derive(Debug)]
pub struct NewFunction<'a> {
    pub integration: IntegrationPk,
    pub kind: FunctionKind,
    pub name: &'a FunctionName,
    pub spec: &'a Value,
    pub component_digest: &'a [u8; 32],
}

/// A function of an active deployment.
#[derive(Debug, Clone)]
pub struct ActiveFunction {
    pub pk: FunctionPk,
    pub deployment: DeploymentPk,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub kind: FunctionKind,
    pub name: FunctionName,
    /// The stored JSON text. It is parsed later, so that one unreadable function does not affect the others.
    pub spec: String,
    pub component_digest: Vec<u8>,
}

struct FunctionRow {
    pk: i64,
    deployment_pk: i64,
    environment_pk: i64,
    integration_pk: i64,
    unique_key: String,
    kind: String,
    name: String,
    spec: String,
    component_digest: Vec<u8>,
}

impl TryFrom<FunctionRow> for ActiveFunction {
    type Error = sqlx::Error;

    fn try_from(row: FunctionRow) -> sqlx::Result<Self> {
        Ok(Self {
            pk: FunctionPk(row.pk),
            deployment: DeploymentPk(row.deployment_pk),
            environment: EnvironmentPk(row.environment_pk),
            integration: IntegrationPk(row.integration_pk),
            integration_key: IntegrationKey::from_stored(row.unique_key),
            kind: enums::parse("kind", &row.kind)?,
            name: FunctionName::from_stored(row.name),
            spec: row.spec,
            component_digest: row.component_digest,
        })
    }
}

/// A deployment that is active, or is staged until all hosts are ready.
#[derive(Debug, Clone)]
pub struct LiveDeployment {
    pub pk: DeploymentPk,
    pub environment: EnvironmentPk,
    pub environment_name: String,
    pub bundle_name: String,
    pub version: i32,
    pub digest: String,
    /// The stored JSON text, which is parsed later for the same reason.
    pub config: String,
}

struct DeploymentRow {
    pk: i64,
    environment_pk: i64,
    environment_name: String,
    bundle_name: String,
    version: i32,
    digest: String,
    config: String,
}

impl From<DeploymentRow> for LiveDeployment {
    fn from(row: DeploymentRow) -> Self {
        Self {
            pk: DeploymentPk(row.pk),
            environment: EnvironmentPk(row.environment_pk),
            environment_name: row.environment_name,
            bundle_name: row.bundle_name,
            version: row.version,
            digest: row.digest,
            config: row.config,
        }
    }
}

/// Stores the bytes of a component, unless they are stored already.
pub async fn put_component(conn: &mut PgConnection, digest: &[u8; 32], wasm: &[u8]) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO components (digest, wasm) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        digest.as_slice(),
        wasm,
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub async fn load_component(conn: &mut PgConnection, digest: &[u8]) -> sqlx::Result<Option<Vec<u8>>> {
    sqlx::query_scalar!("SELECT wasm FROM components WHERE digest = $1", digest).fetch_optional(conn).await
}

/// Locks an environment, so that its deployments happen one after the other, until the transaction ends.
pub async fn lock(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<()> {
    sqlx::query!("SELECT pk FROM environments WHERE pk = $1 FOR NO KEY UPDATE", environment.0)
        .fetch_all(conn)
        .await?;
    Ok(())
}

/// Locks the set of active deployments until the transaction ends, for work that depends on it, such as creating the
/// schedules of a new connection. The lock is shared, and a switch waits for it.
pub async fn hold_active(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<()> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock_shared(hashtextextended('deployments', $1))::text AS "none?""#,
        environment.0,
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}

/// Locks the set of active deployments exclusively until the transaction ends. Waits for the holders of
/// [`hold_active`].
pub async fn begin_switch(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<()> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock(hashtextextended('deployments', $1))::text AS "none?""#,
        environment.0,
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}

/// Lists the stored specs of an integration's syncs and lifecycle functions, which new connections need.
pub async fn list_active_for_new_connections(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: IntegrationPk,
) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"
        SELECT f.spec::text AS "spec!"
        FROM deployments d CROSS JOIN LATERAL (
            -- By deployment: of those that were superseded, there may be thousands.
            SELECT name, spec FROM functions
            WHERE deployment_pk = d.pk AND integration_pk = $2 AND kind IN ('sync', 'lifecycle') OFFSET 0
        ) AS f
        WHERE d.environment_pk = $1 AND d.state = 'active'
        ORDER BY f.name
        "#,
        environment.0,
        integration.0,
    )
    .fetch_all(conn)
    .await
}

/// Stores a staged deployment. Returns its row number and version.
pub async fn stage(
    conn: &mut PgConnection,
    new: &NewDeployment<'_>,
    functions: &[NewFunction<'_>],
) -> sqlx::Result<(DeploymentPk, i32)> {
    let row = sqlx::query!(
        r#"
        INSERT INTO deployments (environment_pk, id, bundle_name, version, digest, state, config, changes, deployed_by,
                                 signature, signed_by, restored_version)
        SELECT $1, $2, $3, coalesce(max(version), 0) + 1, $4, 'staged', $5, $6, $7, $8, $9, $10
        FROM deployments WHERE environment_pk = $1 AND bundle_name = $3
        RETURNING pk, version
        "#,
        new.environment.0,
        new.id,
        new.bundle_name,
        new.digest,
        new.config,
        new.changes,
        new.deployed_by,
        new.signature,
        new.signed_by,
        new.restored_version,
    )
    .fetch_one(&mut *conn)
    .await?;
    for function in functions {
        sqlx::query!(
            r#"
            INSERT INTO functions (deployment_pk, integration_pk, kind, name, spec, component_digest)
            VALUES ($1, $2, $3, $4, $5, $6)
            "#,
            row.pk,
            function.integration.0,
            function.kind.as_str(),
            function.name.as_str(),
            function.spec,
            function.component_digest.as_slice(),
        )
        .execute(&mut *conn)
        .await?;
    }
    sqlx::query!("SELECT pg_notify('syncline', 'deployments')").fetch_one(conn).await?;
    Ok((DeploymentPk(row.pk), row.version))
}

/// Finds the active deployment with this bundle name.
pub async fn find_active(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    bundle_name: &str,
) -> sqlx::Result<Option<LiveDeployment>> {
    let row = sqlx::query_as!(
        DeploymentRow,
        r#"
        SELECT d.pk, environment_pk, e.name AS environment_name, bundle_name, version, digest, config::text AS "config!"
        FROM deployments d JOIN environments e ON e.pk = d.environment_pk
        WHERE environment_pk = $1 AND bundle_name = $2 AND state = 'active'
        "#,
        environment.0,
        bundle_name,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(LiveDeployment::from))
}

/// Lists the active deployments of all environments.
pub async fn list_active(conn: &mut PgConnection) -> sqlx::Result<Vec<LiveDeployment>> {
    let rows = sqlx::query_as!(
        DeploymentRow,
        r#"
        SELECT d.pk, environment_pk, e.name AS environment_name, bundle_name, version, digest, config::text AS "config!"
        FROM deployments d JOIN environments e ON e.pk = d.environment_pk
        WHERE state = 'active' ORDER BY d.pk
        "#
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(LiveDeployment::from).collect())
}

/// Like [`list_active`], for these environments.
pub async fn list_active_of(
    conn: &mut PgConnection,
    environments: &[EnvironmentPk],
) -> sqlx::Result<Vec<LiveDeployment>> {
    let environments: Vec<i64> = environments.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query_as!(
        DeploymentRow,
        r#"
        SELECT d.pk, environment_pk, e.name AS environment_name, bundle_name, version, digest, config::text AS "config!"
        FROM deployments d JOIN environments e ON e.pk = d.environment_pk
        WHERE environment_pk = ANY($1) AND state = 'active' ORDER BY d.pk
        "#,
        &environments,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(LiveDeployment::from).collect())
}

/// Lists the row numbers of the active deployments of these environments, in the order of [`list_active`].
pub async fn list_active_in(
    conn: &mut PgConnection,
    environments: &[EnvironmentPk],
) -> sqlx::Result<Vec<(EnvironmentPk, DeploymentPk)>> {
    let environments: Vec<i64> = environments.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT environment_pk, pk FROM deployments WHERE environment_pk = ANY($1) AND state = 'active' ORDER BY pk
        "#,
        &environments,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (EnvironmentPk(row.environment_pk), DeploymentPk(row.pk))).collect())
}

/// Lists the functions of all active deployments.
pub async fn list_active_functions(conn: &mut PgConnection) -> sqlx::Result<Vec<ActiveFunction>> {
    let rows = sqlx::query_as!(
        FunctionRow,
        r#"
        SELECT f.pk, f.deployment_pk, d.environment_pk, f.integration_pk, i.unique_key, f.kind, f.name,
               f.spec::text AS "spec!", f.component_digest
        FROM functions f
        JOIN deployments d ON d.pk = f.deployment_pk
        JOIN integrations i ON i.pk = f.integration_pk
        WHERE d.state = 'active'
        ORDER BY f.pk
        "#
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(ActiveFunction::try_from).collect()
}

/// Like [`list_active_functions`], for these environments.
pub async fn list_active_functions_of(
    conn: &mut PgConnection,
    environments: &[EnvironmentPk],
) -> sqlx::Result<Vec<ActiveFunction>> {
    let environments: Vec<i64> = environments.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query_as!(
        FunctionRow,
        r#"
        SELECT f.pk, d.pk AS deployment_pk, d.environment_pk, f.integration_pk, i.unique_key, f.kind, f.name,
               f.spec::text AS "spec!", f.component_digest
        FROM deployments d CROSS JOIN LATERAL (
            -- By deployment: of those that were superseded, there may be thousands.
            SELECT * FROM functions WHERE deployment_pk = d.pk OFFSET 0
        ) AS f
        JOIN integrations i ON i.pk = f.integration_pk
        WHERE d.environment_pk = ANY($1) AND d.state = 'active'
        ORDER BY f.pk
        "#,
        &environments,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(ActiveFunction::try_from).collect()
}

/// Lists the functions of one deployment.
pub async fn list_functions(
    conn: &mut PgConnection,
    deployment: DeploymentPk,
) -> sqlx::Result<Vec<ActiveFunction>> {
    let rows = sqlx::query_as!(
        FunctionRow,
        r#"
        SELECT f.pk, f.deployment_pk, i.environment_pk, f.integration_pk, i.unique_key, f.kind, f.name,
               f.spec::text AS "spec!", f.component_digest
        FROM (SELECT * FROM functions WHERE deployment_pk = $1 OFFSET 0) AS f
        JOIN integrations i ON i.pk = f.integration_pk
        ORDER BY f.pk
        "#,
        deployment.0,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(ActiveFunction::try_from).collect()
}

/// Lists the functions of these integrations in active deployments of other bundles, with the name of each bundle.
pub async fn list_functions_of_other_bundles(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    bundle_name: &str,
    integrations: &[IntegrationPk],
) -> sqlx::Result<Vec<(ActiveFunction, String)>> {
    let integrations: Vec<i64> = integrations.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT f.pk, d.pk AS deployment_pk, d.environment_pk, d.bundle_name, f.integration_pk, i.unique_key, f.kind,
               f.name, f.spec::text AS "spec!", f.component_digest
        FROM deployments d CROSS JOIN LATERAL (
            -- By deployment: of those that were superseded, there may be thousands.
            SELECT * FROM functions WHERE deployment_pk = d.pk AND integration_pk = ANY($3) OFFSET 0
        ) AS f
        JOIN integrations i ON i.pk = f.integration_pk
        WHERE d.environment_pk = $1 AND d.state = 'active' AND d.bundle_name <> $2
        ORDER BY f.pk
        "#,
        environment.0,
        bundle_name,
        &integrations,
    )
    .fetch_all(conn)
    .await?;
    let functions = rows.into_iter().map(|row| {
        let function = FunctionRow {
            pk: row.pk,
            deployment_pk: row.deployment_pk,
            environment_pk: row.environment_pk,
            integration_pk: row.integration_pk,
            unique_key: row.unique_key,
            kind: row.kind,
            name: row.name,
            spec: row.spec,
            component_digest: row.component_digest,
        };
        Ok((function.try_into()?, row.bundle_name))
    });
    functions.collect()
}

/// A lifecycle function of an active deployment.
#[derive(Debug, Clone)]
pub struct ActiveLifecycleFunction {
    pub integration: IntegrationPk,
    pub name: FunctionName,
    /// The stored JSON text.
    pub spec: String,
}

/// Lists the active lifecycle functions of an environment.
pub async fn list_active_lifecycle(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<ActiveLifecycleFunction>> {
    let rows = sqlx::query!(
        r#"
        SELECT f.integration_pk, f.name, f.spec::text AS "spec!"
        FROM deployments d CROSS JOIN LATERAL (
            -- As above.
            SELECT * FROM functions WHERE deployment_pk = d.pk AND kind = 'lifecycle' OFFSET 0
        ) AS f
        WHERE d.environment_pk = $1 AND d.state = 'active'
        ORDER BY f.pk
        "#,
        environment.0,
    )
    .fetch_all(conn)
    .await?;
    let functions = rows.into_iter().map(|row| ActiveLifecycleFunction {
        integration: IntegrationPk(row.integration_pk),
        name: FunctionName::from_stored(row.name),
        spec: row.spec,
    });
    Ok(functions.collect())
}

/// Lists staged deployments that this host has neither compiled nor rejected yet, with the digests of their
/// components.
pub async fn list_unconfirmed(
    conn: &mut PgConnection,
    host: Uuid,
) -> sqlx::Result<Vec<(DeploymentPk, Vec<Vec<u8>>)>> {
    let rows = sqlx::query!(
        r#"
        SELECT d.pk, array_remove(array_agg(DISTINCT f.component_digest), NULL) AS "digests!: Vec<Vec<u8>>"
        -- One without functions has nothing to compile, and is waited for all the same.
        FROM deployments d LEFT JOIN functions f ON f.deployment_pk = d.pk
        -- One whose host died before it was switched on stays staged, and is nobody's work any more.
        WHERE d.state = 'staged' AND d.created_at > now() - interval '15 minutes'
          AND NOT EXISTS (SELECT FROM deployment_hosts h WHERE h.deployment_pk = d.pk AND h.host_id = $1)
        GROUP BY d.pk
        "#,
        host,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (DeploymentPk(row.pk), row.digests)).collect())
}

/// Stores that a host has compiled the deployment's components, or why it could not.
pub async fn confirm(
    conn: &mut PgConnection,
    deployment: DeploymentPk,
    host: Uuid,
    problem: Option<&str>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO deployment_hosts (deployment_pk, host_id, problem) VALUES ($1, $2, $3)
        ON CONFLICT (deployment_pk, host_id) DO UPDATE SET problem = excluded.problem
        "#,
        deployment.0,
        host,
        problem,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The readiness of the hosts for a staged deployment.
#[derive(Debug)]
pub struct Readiness {
    /// The hosts with a heartbeat within `alive_within` that have not confirmed.
    pub waiting_for: Vec<Uuid>,
    pub problem: Option<String>,
}

pub async fn readiness(
    conn: &mut PgConnection,
    deployment: DeploymentPk,
    alive_within: Duration,
) -> sqlx::Result<Readiness> {
    let rows = sqlx::query!(
        r#"
        SELECT h.id, d.host_id IS NOT NULL AS "confirmed!", d.problem
        FROM hosts h LEFT JOIN deployment_hosts d ON d.host_id = h.id AND d.deployment_pk = $1
        WHERE h.last_heartbeat_at > now() - $2::interval
        "#,
        deployment.0,
        interval(alive_within),
    )
    .fetch_all(conn)
    .await?;
    Ok(Readiness {
        waiting_for: rows.iter().filter(|row| !row.confirmed).map(|row| row.id).collect(),
        problem: rows.into_iter().find_map(|row| row.problem),
    })
}

/// Activates a staged deployment in place of the active one with the same bundle name, and notifies all hosts.
pub async fn activate(conn: &mut PgConnection, deployment: DeploymentPk) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE deployments old SET state = 'superseded'
        FROM deployments new
        WHERE new.pk = $1 AND old.environment_pk = new.environment_pk AND old.bundle_name = new.bundle_name
          AND old.state = 'active'
        "#,
        deployment.0,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("UPDATE deployments SET state = 'active', activated_at = now() WHERE pk = $1", deployment.0)
        .execute(&mut *conn)
        .await?;
    sqlx::query!("SELECT pg_notify('syncline', 'deployments')").fetch_one(conn).await?;
    Ok(())
}

/// Marks a staged deployment as failed.
pub async fn fail(conn: &mut PgConnection, deployment: DeploymentPk) -> sqlx::Result<()> {
    sqlx::query!("UPDATE deployments SET state = 'failed' WHERE pk = $1 AND state = 'staged'", deployment.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// A function of an active deployment, with the names by which clients know its integration and provider.
#[derive(Debug, Clone)]
pub struct NamedFunction {
    pub pk: FunctionPk,
    pub deployment: DeploymentPk,
    pub integration: IntegrationKey,
    pub provider: ProviderSlug,
    pub name: FunctionName,
    /// The stored JSON text.
    pub spec: String,
    pub activated_at: DateTime<Utc>,
}

/// Lists the functions of an environment's active deployments, ordered by integration and name.
pub async fn list_named_functions(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<NamedFunction>> {
    let rows = sqlx::query!(
        r#"
        SELECT f.pk, f.deployment_pk, i.unique_key, i.provider, f.name, f.spec::text AS "spec!",
               coalesce(d.activated_at, d.created_at) AS "activated_at!"
        FROM functions f
        JOIN deployments d ON d.pk = f.deployment_pk
        JOIN integrations i ON i.pk = f.integration_pk
        WHERE d.environment_pk = $1 AND d.state = 'active'
        ORDER BY i.unique_key, f.name, f.kind, f.pk
        "#,
        environment.0,
    )
    .fetch_all(conn)
    .await?;
    let functions = rows.into_iter().map(|row| NamedFunction {
        pk: FunctionPk(row.pk),
        deployment: DeploymentPk(row.deployment_pk),
        integration: IntegrationKey::from_stored(row.unique_key),
        provider: ProviderSlug::from_stored(row.provider),
        name: FunctionName::from_stored(row.name),
        spec: row.spec,
        activated_at: row.activated_at,
    });
    Ok(functions.collect())
}

/// The state of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum DeploymentState {
    /// The hosts are compiling it.
    Staged,
    Active,
    /// A later version of the bundle is active.
    Superseded,
    /// It was never active.
    Failed,
}

/// A deployment in the history of an environment.
#[derive(Debug, Clone)]
pub struct ListedDeployment {
    pub pk: DeploymentPk,
    pub id: Uuid,
    pub bundle_name: String,
    pub version: i32,
    pub digest: String,
    pub state: DeploymentState,
    pub changes: Value,
    pub deployed_by: String,
    pub signed_by: Option<String>,
    pub restored_version: Option<i32>,
    pub created_at: DateTime<Utc>,
    pub activated_at: Option<DateTime<Utc>>,
}

/// Lists up to `limit` deployments of an environment or of one bundle in it, newest first, before the row `before`.
pub async fn list_history(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    bundle_name: Option<&str>,
    before: Option<DeploymentPk>,
    limit: i64,
) -> sqlx::Result<Vec<ListedDeployment>> {
    sqlx::query_as!(
        ListedDeployment,
        r#"
        SELECT pk AS "pk: DeploymentPk", id, bundle_name, version, digest, state AS "state: DeploymentState", changes,
               deployed_by, signed_by, restored_version, created_at, activated_at
        FROM deployments
        WHERE environment_pk = $1 AND pk < coalesce($2, 9223372036854775807)
          AND bundle_name = coalesce($3, bundle_name)
        ORDER BY pk DESC LIMIT $4
        "#,
        environment.0,
        before.map(|before| before.0),
        bundle_name,
        limit,
    )
    .fetch_all(conn)
    .await
}

/// A version of a bundle that can be deployed again.
#[derive(Debug, Clone)]
pub struct EarlierVersion {
    pub version: i32,
    pub digest: String,
    pub signature: Option<String>,
    pub activated_at: Option<DateTime<Utc>>,
}

/// Finds one version of a bundle, or with `None` the newest that was active before the active one.
pub async fn find_version(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    bundle_name: &str,
    version: Option<i32>,
) -> sqlx::Result<Option<EarlierVersion>> {
    sqlx::query_as!(
        EarlierVersion,
        r#"
        SELECT version, digest, signature, activated_at
        FROM deployments
        WHERE environment_pk = $1 AND bundle_name = $2
          AND CASE WHEN $3::integer IS NULL THEN state = 'superseded' ELSE version = $3 END
        ORDER BY version DESC LIMIT 1
        "#,
        environment.0,
        bundle_name,
        version,
    )
    .fetch_optional(conn)
    .await
}

/// A function of a deployment, by the names that clients use.
#[derive(Debug, Clone)]
pub struct ListedFunction {
    pub deployment: DeploymentPk,
    pub integration: IntegrationKey,
    pub kind: FunctionKind,
    pub name: FunctionName,
}

/// Lists the functions of these deployments, by deployment, integration and name. Functions of deleted integrations
/// are not included.
pub async fn list_function_names(
    conn: &mut PgConnection,
    deployments: &[DeploymentPk],
) -> sqlx::Result<Vec<ListedFunction>> {
    let deployments: Vec<i64> = deployments.iter().map(|deployment| deployment.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT f.deployment_pk, i.unique_key, f.kind AS "kind: FunctionKind", f.name
        FROM unnest($1::bigint[]) AS wanted (pk) CROSS JOIN LATERAL (
            SELECT deployment_pk, integration_pk, kind, name FROM functions WHERE deployment_pk = wanted.pk OFFSET 0
        ) AS f
        JOIN integrations i ON i.pk = f.integration_pk
        ORDER BY f.deployment_pk, i.unique_key, f.name
        "#,
        &deployments,
    )
    .fetch_all(conn)
    .await?;
    let functions = rows.into_iter().map(|row| ListedFunction {
        deployment: DeploymentPk(row.deployment_pk),
        integration: IntegrationKey::from_stored(row.unique_key),
        kind: row.kind,
        name: FunctionName::from_stored(row.name),
    });
    Ok(functions.collect())
}
