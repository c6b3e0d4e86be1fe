//! The history of an environment's deployments.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use uuid::Uuid;

use crate::deployments::Deployments;
pub use syncline_store::deployments::DeploymentState;
use syncline_store::deployments::{self, ListedDeployment};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{BundleName, DeploymentPk, EnvironmentPk, FunctionName, IntegrationKey};

/// A deployment that is or was active, is being prepared, or has failed.
#[derive(Debug, Clone)]
pub struct PastDeployment {
    /// Its position in the history.
    pub pk: DeploymentPk,
    pub id: Uuid,
    pub bundle: String,
    pub version: i32,
    /// SHA-256 of the bundle.
    pub digest: String,
    pub state: DeploymentState,
    pub changes: Vec<PastChange>,
    pub functions: Vec<DeployedName>,
    /// The name of the secret key, account or system user.
    pub deployed_by: String,
    /// The name of the key that signed the bundle.
    pub signed_by: Option<String>,
    /// The earlier version that it deployed again.
    pub restored_version: Option<i32>,
    pub created_at: DateTime<Utc>,
    /// `None` if it has not been active.
    pub activated_at: Option<DateTime<Utc>>,
}

/// A stored [`PlannedChange`](crate::PlannedChange).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PastChange {
    pub change: String,
    pub kind: String,
    pub integration: Option<String>,
    pub name: Option<String>,
}

/// The names of a deployed function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedName {
    pub integration: IntegrationKey,
    pub kind: FunctionKind,
    pub name: FunctionName,
}

impl Deployments {
    /// Returns up to `limit` deployments of an environment or of one bundle in it, newest first, before the deployment
    /// `before`.
    pub async fn history(
        &self,
        environment: EnvironmentPk,
        bundle: Option<&BundleName>,
        before: Option<DeploymentPk>,
        limit: i64,
    ) -> sqlx::Result<Vec<PastDeployment>> {
        let mut conn = self.store.connect().await?;
        let listed =
            deployments::list_history(&mut conn, environment, bundle.map(BundleName::as_str), before, limit)
                .await?;
        let mut history = listed.into_iter().map(describe).collect::<sqlx::Result<Vec<_>>>()?;
        let pks: Vec<DeploymentPk> = history.iter().map(|deployment| deployment.pk).collect();
        for function in deployments::list_function_names(&mut conn, &pks).await? {
            let deployment = history.iter_mut().find(|deployment| deployment.pk == function.deployment);
            if let Some(deployment) = deployment {
                let names = DeployedName {
                    integration: function.integration,
                    kind: function.kind,
                    name: function.name,
                };
                deployment.functions.push(names);
            }
        }
        Ok(history)
    }
}

fn describe(listed: ListedDeployment) -> sqlx::Result<PastDeployment> {
    Ok(PastDeployment {
        pk: listed.pk,
        id: listed.id,
        bundle: listed.bundle_name,
        version: listed.version,
        digest: listed.digest,
        state: listed.state,
        changes: serde_json::from_value(listed.changes).map_err(|error| sqlx::Error::Decode(error.into()))?,
        functions: Vec::new(),
        deployed_by: listed.deployed_by,
        signed_by: listed.signed_by,
        restored_version: listed.restored_version,
        created_at: listed.created_at,
        activated_at: listed.activated_at,
    })
}
