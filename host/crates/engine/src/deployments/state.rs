//! The deployed bundles of an environment, and the plan of changing them.

use std::collections::BTreeSet;

use sqlx::PgConnection;
use url::Url;

use crate::deployments::DeployError;
use crate::deployments::planned_change::PlannedChange;
use crate::functions::{FunctionSpec, StoredFunction, stored_functions};
use syncline_auth::{Environment, EnvironmentSettings};
use syncline_config::{Capability, FunctionKind, IntegrationSpec, SyncConfig, added_capabilities};
use syncline_store::deployments::{self, ActiveFunction, LiveDeployment};
use syncline_store::environments;
use syncline_store::integrations::{self, Integration};
use syncline_types::ids::{FunctionName, IntegrationKey, IntegrationPk};

/// The state of an environment before a deployment.
pub(super) struct DeployedState {
    pub(super) active: Option<LiveDeployment>,
    /// The functions of the bundle's active version. `None` if the stored definition cannot be parsed.
    pub(super) own: Vec<(ActiveFunction, Option<StoredFunction>)>,
    /// The functions of other bundles for the same integrations, each with the name of its bundle.
    others: Vec<(ActiveFunction, Option<StoredFunction>, String)>,
    integrations: Vec<Integration>,
    pub(super) settings: EnvironmentSettings,
}

impl DeployedState {
    pub(super) async fn read(
        conn: &mut PgConnection,
        environment: &Environment,
        config: &SyncConfig,
    ) -> sqlx::Result<Self> {
        let bundle = config.name.as_str();
        let active = deployments::find_active(conn, environment.pk, bundle).await?;
        let integrations = integrations::list(conn, environment.pk).await?;
        let is_wanted = |existing: &&Integration| {
            config.integrations.iter().any(|wanted| wanted.key == existing.unique_key)
        };
        let wanted: Vec<_> =
            integrations.iter().filter(is_wanted).map(|integration| integration.pk).collect();
        let own = match &active {
            Some(active) => deployments::list_functions(conn, active.pk).await?,
            None => Vec::new(),
        };
        let others =
            deployments::list_functions_of_other_bundles(conn, environment.pk, bundle, &wanted).await?;
        let with_stored = |function: ActiveFunction| {
            let stored = StoredFunction::read(&function.spec);
            (function, stored)
        };
        let of_bundle = |(function, bundle): (ActiveFunction, String)| {
            let (function, stored) = with_stored(function);
            (function, stored, bundle)
        };
        Ok(Self {
            own: own.into_iter().map(with_stored).collect(),
            others: others.into_iter().map(of_bundle).collect(),
            settings: environments::settings(conn, environment.pk).await?.ok_or(sqlx::Error::RowNotFound)?,
            active,
            integrations,
        })
    }

    pub(super) fn integration(&self, key: &IntegrationKey) -> Option<&Integration> {
        self.integrations.iter().find(|integration| integration.unique_key == *key)
    }

    /// Returns what the deployment changes, or why it is rejected.
    pub(super) fn plan(&self, config: &SyncConfig) -> Result<Vec<PlannedChange>, DeployError> {
        let settings = self.settings.changed_by(&config.environment).into_iter();
        let mut changes: Vec<PlannedChange> = settings
            .map(|name| PlannedChange {
                change: "update",
                kind: "environment".to_owned(),
                integration: None,
                name: Some(name),
            })
            .collect();
        let mut remaining = BTreeSet::new();
        for wanted in &config.integrations {
            let existing = self.integration(&wanted.key);
            match existing {
                None => {
                    self.check_not_renamed(&wanted.key)?;
                    changes.push(PlannedChange {
                        change: "add",
                        kind: "integration".to_owned(),
                        integration: Some(wanted.key.to_string()),
                        name: None,
                    });
                }
                Some(existing) if existing.provider != wanted.provider => {
                    return Err(DeployError::OtherProvider {
                        key: wanted.key.clone(),
                        existing: existing.provider.clone(),
                        wanted: wanted.provider.clone(),
                    });
                }
                Some(_) => {}
            }
            if let Some(existing) = existing {
                self.check_base_url(existing, wanted, config)?;
            }
            for (kind, name, stored) in stored_functions(wanted) {
                if let Some(existing) = existing {
                    self.check_owner(existing, kind, &name)?;
                    self.check_model_owners(existing, &stored)?;
                }
                let before = existing.and_then(|integration| self.own_function(integration.pk, kind, &name));
                match before {
                    None => changes.push(function_change("add", kind, &wanted.key, &name)),
                    Some((row, before)) => {
                        remaining.insert(row.pk);
                        if before.as_ref() != Some(&stored) {
                            changes.push(function_change("update", kind, &wanted.key, &name));
                        }
                    }
                }
            }
        }
        for (row, before) in self.own.iter().filter(|(row, _)| !remaining.contains(&row.pk)) {
            let key = before.as_ref().map_or(&row.integration_key, |before| &before.integration_key);
            changes.push(function_change("remove", row.kind, key, &row.name));
        }
        Ok(changes)
    }

    /// Returns the capabilities that the active version does not have. The first version of a bundle has no new ones. If
    /// the active version cannot be parsed, all capabilities are new.
    pub(super) fn new_capabilities(&self, wanted: &[Capability]) -> Vec<Capability> {
        let Some(active) = &self.active else { return Vec::new() };
        let before: Option<SyncConfig> = serde_json::from_str(&active.config).ok();
        added_capabilities(&before.map(|before| before.capabilities()).unwrap_or_default(), wanted)
    }

    pub(super) fn own_function(
        &self,
        integration: IntegrationPk,
        kind: FunctionKind,
        name: &FunctionName,
    ) -> Option<&(ActiveFunction, Option<StoredFunction>)> {
        self.own
            .iter()
            .find(|(row, _)| row.integration == integration && row.kind == kind && row.name == *name)
    }

    fn check_not_renamed(&self, key: &IntegrationKey) -> Result<(), DeployError> {
        let has_key = |stored: &StoredFunction| stored.integration_key == *key;
        let Some((row, _)) = self.own.iter().find(|(_, stored)| stored.as_ref().is_some_and(has_key)) else {
            return Ok(());
        };
        match self.integrations.iter().find(|integration| integration.pk == row.integration) {
            Some(renamed) => Err(DeployError::Renamed { old: key.clone(), new: renamed.unique_key.clone() }),
            None => Ok(()),
        }
    }

    fn check_owner(
        &self,
        integration: &Integration,
        kind: FunctionKind,
        name: &FunctionName,
    ) -> Result<(), DeployError> {
        let same =
            |row: &ActiveFunction| row.integration == integration.pk && row.kind == kind && row.name == *name;
        match self.others.iter().find(|(row, ..)| same(row)) {
            None => Ok(()),
            Some((_, _, bundle)) => Err(DeployError::OfOtherBundle {
                kind,
                name: name.clone(),
                integration: integration.unique_key.clone(),
                bundle: bundle.clone(),
            }),
        }
    }

    /// Rejects a second base URL: all bundles must use the same one for an integration. A bundle without one is not
    /// checked.
    fn check_base_url(
        &self,
        integration: &Integration,
        wanted: &IntegrationSpec,
        config: &SyncConfig,
    ) -> Result<(), DeployError> {
        let Some(base_url) = &wanted.base_url else { return Ok(()) };
        for (row, stored, bundle) in &self.others {
            let Some(existing) = stored.as_ref().and_then(|stored| stored.base_url.as_ref()) else {
                continue;
            };
            if row.integration == integration.pk && !is_same_base(base_url, existing) {
                return Err(DeployError::OtherBaseUrl {
                    integration: integration.unique_key.clone(),
                    bundle: config.name.to_string(),
                    wanted: base_url.clone(),
                    other: bundle.clone(),
                    existing: existing.clone(),
                });
            }
        }
        Ok(())
    }

    /// Rejects a model that a sync of another bundle saves. The two syncs would overwrite each other's records, and
    /// delete them with `track_deletes`.
    fn check_model_owners(
        &self,
        integration: &Integration,
        stored: &StoredFunction,
    ) -> Result<(), DeployError> {
        let FunctionSpec::Sync(wanted) = &stored.spec else { return Ok(()) };
        for (row, stored, bundle) in &self.others {
            let Some(StoredFunction { spec: FunctionSpec::Sync(other), .. }) = stored else { continue };
            if row.integration != integration.pk {
                continue;
            }
            if let Some(model) = wanted.models.iter().find(|model| other.models.contains(model)) {
                return Err(DeployError::ModelOfOtherBundle {
                    model: model.clone(),
                    sync: row.name.clone(),
                    integration: integration.unique_key.clone(),
                    bundle: bundle.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Returns whether two base URLs are equivalent.
fn is_same_base(one: &str, other: &str) -> bool {
    let parse = |url: &str| Url::parse(url.trim_end_matches('/'));
    one == other || matches!((parse(one), parse(other)), (Ok(one), Ok(other)) if one == other)
}

fn function_change(
    change: &'static str,
    kind: FunctionKind,
    integration: &IntegrationKey,
    name: &FunctionName,
) -> PlannedChange {
    PlannedChange {
        change,
        kind: kind.to_string(),
        integration: Some(integration.to_string()),
        name: Some(name.to_string()),
    }
}
