//! Deploys an earlier version of a bundle again.

use crate::deployments::{DeployError, DeployMode, Deployment, Deployments, Submission};
use syncline_auth::Environment;
use syncline_config::bundle::Bundle;
use syncline_store::bundles;
use syncline_store::deployments;
use syncline_types::actor::Actor;
use syncline_types::ids::BundleName;

impl Deployments {
    /// Deploys a version of a bundle again, as a new version. `None` selects the version that was active before the
    /// active one.
    pub async fn roll_back(
        &self,
        environment: &Environment,
        bundle: &BundleName,
        version: Option<i32>,
        mode: DeployMode,
        actor: &Actor,
    ) -> Result<Deployment, DeployError> {
        let mut conn = self.store.connect().await?;
        let found = deployments::find_version(&mut conn, environment.pk, bundle.as_str(), version).await?;
        let Some(earlier) = found else {
            return Err(DeployError::UnknownVersion { bundle: bundle.clone(), version });
        };
        if earlier.activated_at.is_none() {
            let version = earlier.version;
            return Err(DeployError::NeverActive { bundle: bundle.clone(), version });
        }
        let Some(stored) = bundles::find(&mut conn, &earlier.digest).await? else {
            let version = earlier.version;
            return Err(DeployError::NotStored { bundle: bundle.clone(), version });
        };
        let components = bundles::load_components(&mut conn, &earlier.digest).await?;
        if components.len() != stored.components.len() {
            return Err(DeployError::Host(anyhow::anyhow!("the database lacks components of the bundle")));
        }
        drop(conn);
        let content = Bundle { config: stored.config, schemas: stored.schemas, components };
        let bytes = tokio::task::block_in_place(|| content.write());
        let bytes = bytes.map_err(|error| DeployError::Host(error.into()))?;
        let submission = Submission {
            bundle: &bytes,
            signature: earlier.signature.as_deref(),
            restored_version: Some(earlier.version),
        };
        self.deploy(environment, submission, mode, actor).await
    }
}
