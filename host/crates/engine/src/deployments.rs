//! Deploys bundles: checks a bundle, stages it, waits until every host has compiled it, and then activates it.

pub(crate) mod history;
mod model_changes;
pub(crate) mod planned_change;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::deployments::model_changes::model_changes;
use crate::deployments::planned_change::PlannedChange;
use crate::functions::{FunctionSpec, Functions, StoredFunction, stored_functions};
use crate::syncs::schedule::jitter;
use syncline_auth::{Environment, EnvironmentSettings, Environments};
use syncline_config::bundle::{Bundle, BundleDigest, BundleError};
use syncline_config::{
    ConfigFile, Diagnostics, FunctionKind, IntegrationSpec, SyncConfig, did_you_mean, table_of,
};
use syncline_egress::HostPattern;
use syncline_providers::Catalogue;
use syncline_sandbox::{ComponentDigest, InvalidComponent, Sandbox};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::deployments::{self, ActiveFunction, LiveDeployment, NewDeployment, NewFunction};
use syncline_store::events::{Event, Events};
use syncline_store::hosts::ALIVE_WITHIN;
use syncline_store::integrations::{self, Integration, NewIntegration};
use syncline_store::{DEADLOCK_TRIES, connection_errors, environments, is_deadlock, schedules};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{
    DeploymentPk, FunctionName, IntegrationKey, IntegrationPk, ModelName, ProviderSlug,
};

/// How long a deployment waits for other hosts. Longer than compiling a component may take.
const WAIT_FOR_HOSTS: Duration = Duration::from_secs(300);
/// Longest wait between two checks for deployments, because a notification can be lost.
const RELOAD_EVERY: Duration = Duration::from_secs(30);
const HOST_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a deployment changed or, for a plan, would change.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Deployment {
    /// `None` for a plan, and for a bundle that is already active.
    pub id: Option<Uuid>,
    pub bundle: String,
    /// The active version of this bundle after the deployment. `None` for the plan of a first deployment.
    pub version: Option<i32>,
    /// SHA-256 of the bundle.
    pub digest: String,
    pub changes: Vec<PlannedChange>,
    /// Changes that may break clients, such as a field with a new type.
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("syncline.toml has errors:\n{0}")]
    Config(Diagnostics),
    #[error(
        "integration `{key}` uses provider `{existing}` in this environment and `{wanted}` in the \
         bundle; rename the integration in the bundle, or delete it with its connections in the environment first"
    )]
    OtherProvider { key: IntegrationKey, existing: ProviderSlug, wanted: ProviderSlug },
    #[error(
        "integration `{old}` was renamed to `{new}` in this environment; rename its table in syncline.toml to \
         [integrations.{new}]"
    )]
    Renamed { old: IntegrationKey, new: IntegrationKey },
    #[error(
        "{kind} `{name}` of integration `{integration}` belongs to the bundle `{bundle}`; use another integration, or \
         remove it from that bundle first"
    )]
    OfOtherBundle { kind: FunctionKind, name: FunctionName, integration: IntegrationKey, bundle: String },
    #[error(
        "model `{model}` of integration `{integration}` is saved by sync `{sync}` of the bundle `{bundle}`, and the \
         copies would overwrite each other; use a different model in this sync"
    )]
    ModelOfOtherBundle { model: ModelName, sync: FunctionName, integration: IntegrationKey, bundle: String },
    #[error(
        "integration `{integration}` has the base_url `{wanted}` in the bundle `{bundle}` and `{existing}` in the \
         deployed bundle `{other}`; use the same base_url in both. To change it in both, deploy `{other}` without a \
         base_url first"
    )]
    OtherBaseUrl {
        integration: IntegrationKey,
        bundle: String,
        wanted: String,
        other: String,
        existing: String,
    },
    #[error("a host could not compile the bundle: {problem}; the previous version stays active")]
    NotReady { problem: String },
    #[error(
        "hosts that did not compile the bundle within {} s: {hosts}; check their logs, then deploy again",
        WAIT_FOR_HOSTS.as_secs()
    )]
    HostsSilent { hosts: usize },
    #[error("the deployment could not be stored")]
    Store(#[from] sqlx::Error),
    #[error("an internal error interrupted the deployment")]
    Host(#[source] anyhow::Error),
}

impl DeployError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Bundle(BundleError::TooLarge { .. }) => ErrorCode::PayloadTooLarge,
            Self::Bundle(_) => ErrorCode::InvalidBundle,
            Self::Config(_) => ErrorCode::InvalidSyncConfig,
            Self::OtherProvider { .. }
            | Self::Renamed { .. }
            | Self::OfOtherBundle { .. }
            | Self::ModelOfOtherBundle { .. }
            | Self::OtherBaseUrl { .. } => ErrorCode::ConflictingDeployment,
            Self::NotReady { .. } | Self::HostsSilent { .. } => ErrorCode::HostsNotReady,
            Self::Store(_) | Self::Host(_) => ErrorCode::InternalServerError,
        }
    }

    /// The errors in `syncline.toml`, each with its location.
    pub fn payload(&self) -> Option<Value> {
        match self {
            Self::Config(diagnostics) => Some(json!({ "mistakes": diagnostics })),
            _ => None,
        }
    }
}

/// Deploys bundles, and applies the deployments of other hosts.
pub struct Deployments {
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    sandbox: Arc<Sandbox>,
    functions: Arc<Functions>,
    host_id: Uuid,
    /// The shortest interval between two runs of a sync that a bundle or a client may request.
    minimum_interval: Duration,
}

/// Dependencies of [`Deployments`].
pub struct DeploymentParts {
    pub store: Store,
    pub events: Arc<Events>,
    pub environments: Arc<Environments>,
    pub catalogue: Arc<Catalogue>,
    pub sandbox: Arc<Sandbox>,
    pub functions: Arc<Functions>,
    pub host_id: Uuid,
}

impl Deployments {
    pub fn new(parts: DeploymentParts, minimum_interval: Duration) -> Arc<Self> {
        let DeploymentParts { store, events, environments, catalogue, sandbox, functions, host_id } = parts;
        Arc::new(Self {
            store,
            events,
            environments,
            catalogue,
            sandbox,
            functions,
            host_id,
            minimum_interval,
        })
    }

    /// The shortest interval between two runs of a sync that a bundle or a client may request.
    pub fn minimum_interval(&self) -> Duration {
        self.minimum_interval
    }

    /// Compiles deployments that other hosts stage, until `shutdown`.
    pub async fn prepare(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let wait = events.wait_within(RELOAD_EVERY, Event::Deployments);
            if shutdown.run_until_cancelled(wait).await.is_none() {
                return;
            }
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.prepare_staged()).await {
                tracing::warn!(error = format!("{error:#}"), "could not compile the staged deployments");
            }
        }
    }

    /// Switches to deployments that become active, until `shutdown`. Does not wait for compilations in progress.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let wait = events.wait_within(RELOAD_EVERY, Event::Deployments);
            if shutdown.run_until_cancelled(wait).await.is_none() {
                return;
            }
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.functions.reload()).await {
                tracing::warn!(error = format!("{error:#}"), "could not switch to the active deployments");
            }
        }
    }

    /// Compiles staged deployments and confirms that this host is ready.
    async fn prepare_staged(&self) -> anyhow::Result<()> {
        let waiting = deployments::list_unconfirmed(&mut *self.store.connect().await?, self.host_id).await?;
        for (deployment, digests) in waiting {
            let mut problem = None;
            for digest in digests {
                let prepared = match <[u8; 32]>::try_from(digest.as_slice()) {
                    Ok(digest) => self.functions.component(ComponentDigest(digest)).await,
                    Err(_) => Err(anyhow::anyhow!("a stored digest is not 32 bytes long")),
                };
                problem = problem.or(prepared.err().map(|error| format!("{error:#}")));
            }
            let mut conn = self.store.connect().await?;
            deployments::confirm(&mut conn, deployment, self.host_id, problem.as_deref()).await?;
        }
        Ok(())
    }

    /// Deploys a bundle or, with `dry_run`, returns what it would change.
    pub async fn deploy(
        &self,
        environment: &Environment,
        bytes: &[u8],
        dry_run: bool,
        actor: &Actor,
    ) -> Result<Deployment, DeployError> {
        let bundle = tokio::task::block_in_place(|| Bundle::read(bytes))?;
        let digest = BundleDigest::of(bytes);
        let file = tokio::task::block_in_place(|| bundle.parse_config()).map_err(DeployError::Config)?;
        let minimum = self.minimum_interval;
        check_components(&file, &bundle.components, minimum, &self.catalogue, &self.sandbox)
            .await
            .mistakes
            .into_result()
            .map_err(DeployError::Config)?;

        let mut tx = self.store.begin().await?;
        deployments::lock(&mut tx, environment.pk).await?;
        let state = DeployedState::read(&mut tx, environment, &file.config).await?;
        let mut plan = state.plan(&file.config)?;
        let (of_models, warnings) = model_changes(state.active.as_ref(), &file.config);
        plan.extend(of_models);
        let deployment = Deployment {
            id: None,
            bundle: file.config.name.to_string(),
            version: state.active.as_ref().map(|active| active.version),
            digest: digest.to_string(),
            changes: plan,
            warnings,
        };
        let is_active = state.active.as_ref().is_some_and(|active| active.digest == digest.as_str());
        // An active bundle is deployed again if one of its integrations was deleted.
        if dry_run || (is_active && deployment.changes.is_empty()) {
            return Ok(deployment);
        }
        let staged = stage(&mut tx, environment, &bundle, &file.config, &state, &deployment, actor).await?;
        tx.commit().await?;
        failpoints::reach(Step::DeploymentStaged);
        if let Err(error) = self.switch(environment, &file.config, &staged, actor).await {
            deployments::fail(&mut *self.store.connect().await?, staged.pk).await?;
            return Err(error);
        }
        Ok(Deployment { id: Some(staged.id), version: Some(staged.version), ..deployment })
    }

    /// Waits until every host is ready, then activates the deployment.
    async fn switch(
        &self,
        environment: &Environment,
        config: &SyncConfig,
        staged: &Staged,
        actor: &Actor,
    ) -> Result<(), DeployError> {
        self.prepare_staged().await.map_err(DeployError::Host)?;
        let deadline = Instant::now() + WAIT_FOR_HOSTS;
        loop {
            let readiness =
                deployments::readiness(&mut *self.store.connect().await?, staged.pk, ALIVE_WITHIN).await?;
            if let Some(problem) = readiness.problem {
                return Err(DeployError::NotReady { problem });
            }
            if readiness.waiting_for.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(DeployError::HostsSilent { hosts: readiness.waiting_for.len() });
            }
            tokio::time::sleep(HOST_POLL_INTERVAL).await;
        }
        let mut tries = 1;
        while let Err(error) = self.activate(environment, config, staged, actor).await {
            match error {
                DeployError::Store(error) if is_deadlock(&error) && tries < DEADLOCK_TRIES => tries += 1,
                error => return Err(error),
            }
        }
        self.environments.forget();
        self.functions.reload_of(&[environment.pk]).await.map_err(DeployError::Host)?;
        self.events.publish(Event::Due);
        Ok(())
    }

    async fn activate(
        &self,
        environment: &Environment,
        config: &SyncConfig,
        staged: &Staged,
        actor: &Actor,
    ) -> Result<(), DeployError> {
        let mut tx = self.store.begin().await?;
        deployments::lock(&mut tx, environment.pk).await?;
        deployments::begin_switch(&mut tx, environment.pk).await?;
        // Another deployment may have been activated while the hosts compiled this one.
        let before = DeployedState::read(&mut tx, environment, config).await?;
        let changes = before.plan(config)?;
        deployments::activate(&mut tx, staged.pk).await?;
        update_schedules(&mut tx, environment, config, &before).await?;
        self.set_environment(&mut tx, environment, config).await?;
        let action = AuditAction::DeploymentActivated;
        let details = json!({
            "version": staged.version,
            "changes": changes.len(),
            "settings": before.settings.changed_by(&config.environment),
        });
        let entry = NewEntry::new(environment.pk, action, TargetKind::Deployment, config.name.as_str());
        audit_log::write(&mut tx, actor, &entry.with(details)).await?;
        failpoints::reach(Step::DeploymentSwitching);
        tx.commit().await?;
        failpoints::reach(Step::DeploymentSwitched);
        Ok(())
    }

    async fn set_environment(
        &self,
        conn: &mut PgConnection,
        environment: &Environment,
        config: &SyncConfig,
    ) -> sqlx::Result<()> {
        if config.environment.is_empty() {
            return Ok(());
        }
        environments::change_settings(conn, environment.pk, &config.environment).await
    }
}

/// Checks everything that needs no component: frequencies, providers and hosts.
pub fn check_settings(file: &ConfigFile, minimum_interval: Duration, catalogue: &Catalogue) -> Diagnostics {
    let mut found = file.diagnostics();
    file.check_frequencies(minimum_interval, &mut found);
    for integration in &file.config.integrations {
        let key = integration.key.as_str();
        if catalogue.find(&integration.provider).is_none() {
            let known = catalogue.iter().map(|provider| provider.name.as_str());
            let help = match did_you_mean(integration.provider.as_str(), known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`syncline providers list` lists all. A host reads provider files of its operator from the folder \
                         SYNCLINE_PROVIDERS_DIR when it starts"
                    .to_owned(),
            };
            let place = file.value(&["integrations", key, "provider"]);
            found.add(
                place,
                format!("there is no provider `{}` in the catalogue", integration.provider),
                Some(help),
            );
        }
        for (index, host) in integration.allow_hosts.iter().enumerate() {
            if let Err(problem) = host.parse::<HostPattern>() {
                let place = file.value(&["integrations", key, "allow_hosts", &index.to_string()]);
                found.add(place, problem.to_string(), None);
            }
        }
    }
    found
}

/// The result of [`check_components`].
pub struct CheckedComponents {
    pub mistakes: Diagnostics,
    /// Functions that no integration with their component lists, such as "action `echo` of the component `.`".
    pub unlisted: Vec<String>,
}

/// Checks the settings, and whether the components contain the functions that the file names.
pub async fn check_components(
    file: &ConfigFile,
    components: &BTreeMap<String, Vec<u8>>,
    minimum_interval: Duration,
    catalogue: &Catalogue,
    sandbox: &Sandbox,
) -> CheckedComponents {
    let mut found = check_settings(file, minimum_interval, catalogue);
    let mut described: BTreeMap<&str, Result<Vec<KindAndName>, InvalidComponent>> = BTreeMap::new();
    for integration in &file.config.integrations {
        let key = integration.key.as_str();
        let at = |name: &'static str| file.value(&["integrations", key, name]);
        let component = integration.component.as_str();
        let Some(wasm) = components.get(component) else {
            let help = Some("run `syncline build`".to_owned());
            found.add(at("component"), format!("the component `{component}` is not built"), help);
            continue;
        };
        if !described.contains_key(component) {
            let functions = describe(sandbox, wasm).await;
            if let Err(problem) = &functions {
                found.add(
                    at("component"),
                    format!("the component `{component}` is not valid: {problem}"),
                    None,
                );
            }
            described.insert(component, functions);
        }
        let Some(Ok(functions)) = described.get(component) else { continue };
        for (kind, name) in integration.functions() {
            let of_kind = || functions.iter().filter(|(of, _)| *of == kind).map(|(_, name)| name.as_str());
            if of_kind().any(|existing| existing == name.as_str()) {
                continue;
            }
            let place = file.key(&["integrations", key, table_of(kind), name.as_str()]);
            let existing: Vec<_> = of_kind().map(|name| format!("`{name}`")).collect();
            let other_kind = functions.iter().find(|(_, existing)| existing == name.as_str());
            let near = did_you_mean(name.as_str(), of_kind());
            let export = "export the function: in Rust, name it in `export!`";
            let help = match (other_kind, near, existing.as_slice()) {
                (Some((other, _)), ..) => format!(
                    "the component has the {other} `{name}`; list it under `{}`, or declare it as a {kind} in the code",
                    table_of(*other)
                ),
                (None, Some(near), _) => format!("the component has `{near}`"),
                (None, None, []) => format!("the component has no function of kind {kind}; {export}"),
                (None, None, _) => format!("the component has {}; {export}", existing.join(", ")),
            };
            found.add(place, format!("the component has no {kind} `{name}`"), Some(help));
        }
    }
    let is_listed = |component: &str, kind: FunctionKind, name: &str| {
        let mut integrations = file.config.integrations.iter();
        integrations.any(|integration| {
            integration.component == component
                && integration.functions().any(|(of, listed)| of == kind && listed.as_str() == name)
        })
    };
    let unlisted = described.iter().flat_map(|(component, functions)| {
        let functions = functions.as_ref().map_or(&[][..], |functions| functions);
        let functions = functions.iter().filter(|(kind, name)| !is_listed(component, *kind, name));
        functions.map(move |(kind, name)| format!("{kind} `{name}` of the component `{component}`"))
    });
    CheckedComponents { unlisted: unlisted.collect(), mistakes: found }
}

type KindAndName = (FunctionKind, String);

/// Returns the functions of a component. Ignores functions of unknown kinds, because no integration can name them.
async fn describe(sandbox: &Sandbox, wasm: &[u8]) -> Result<Vec<KindAndName>, InvalidComponent> {
    let component = sandbox.prepare(wasm).await?;
    let description = sandbox.describe(&component).await?;
    let functions = description.functions.into_iter();
    Ok(functions.filter_map(|function| Some((function.kind.parse().ok()?, function.name))).collect())
}

/// What is deployed in an environment before a deployment.
struct DeployedState {
    active: Option<LiveDeployment>,
    /// The functions of the bundle's active version. `None` if the stored definition cannot be parsed.
    own: Vec<(ActiveFunction, Option<StoredFunction>)>,
    /// The functions of other bundles for the same integrations, each with the name of its bundle.
    others: Vec<(ActiveFunction, Option<StoredFunction>, String)>,
    integrations: Vec<Integration>,
    settings: EnvironmentSettings,
}

impl DeployedState {
    async fn read(
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

    fn integration(&self, key: &IntegrationKey) -> Option<&Integration> {
        self.integrations.iter().find(|integration| integration.unique_key == *key)
    }

    /// Returns what the deployment changes, or why it is rejected.
    fn plan(&self, config: &SyncConfig) -> Result<Vec<PlannedChange>, DeployError> {
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

    fn own_function(
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

/// A deployment that is stored and not active yet.
struct Staged {
    id: Uuid,
    pk: DeploymentPk,
    version: i32,
}

async fn stage(
    conn: &mut PgConnection,
    environment: &Environment,
    bundle: &Bundle,
    config: &SyncConfig,
    state: &DeployedState,
    plan: &Deployment,
    actor: &Actor,
) -> Result<Staged, DeployError> {
    let mut digests = BTreeMap::new();
    for (path, wasm) in &bundle.components {
        let digest = ComponentDigest::of(wasm);
        deployments::put_component(conn, &digest.0, wasm).await?;
        digests.insert(path.as_str(), digest);
    }
    let mut functions = Vec::new();
    for wanted in &config.integrations {
        let integration = match state.integration(&wanted.key) {
            Some(integration) => integration.pk,
            None => create_integration(conn, environment, &wanted.key, &wanted.provider, actor).await?,
        };
        for (kind, name, stored) in stored_functions(wanted) {
            let spec = serde_json::to_value(stored).map_err(|error| DeployError::Host(error.into()))?;
            functions.push((integration, kind, name, spec, digests[wanted.component.as_str()]));
        }
    }
    let rows: Vec<_> = functions
        .iter()
        .map(|(integration, kind, name, spec, digest)| NewFunction {
            integration: *integration,
            kind: *kind,
            name,
            spec,
            component_digest: &digest.0,
        })
        .collect();
    let id = Uuid::new_v4();
    let new = NewDeployment {
        id,
        environment: environment.pk,
        bundle_name: config.name.as_str(),
        digest: &plan.digest,
        config: &serde_json::to_value(config).map_err(|error| DeployError::Host(error.into()))?,
        changes: &serde_json::to_value(&plan.changes).map_err(|error| DeployError::Host(error.into()))?,
        deployed_by: &actor.identity.display_name(),
    };
    let (pk, version) = deployments::stage(conn, &new, &rows).await?;
    Ok(Staged { id, pk, version })
}

async fn create_integration(
    conn: &mut PgConnection,
    environment: &Environment,
    key: &IntegrationKey,
    provider: &ProviderSlug,
    actor: &Actor,
) -> sqlx::Result<IntegrationPk> {
    let new = NewIntegration {
        id: Uuid::new_v4(),
        environment: environment.pk,
        unique_key: key,
        provider,
        display_name: None,
        forward_webhooks: true,
        sealed_credentials: None,
        sealed_settings: None,
    };
    match integrations::create(conn, &new).await? {
        Some(integration) => {
            let action = AuditAction::IntegrationCreated;
            let entry = NewEntry::new(environment.pk, action, TargetKind::Integration, key.as_str())
                .with(json!({ "provider": provider.as_str() }));
            audit_log::write(conn, actor, &entry).await?;
            Ok(integration.pk)
        }
        // Another request has created it meanwhile.
        None => integrations::find(conn, environment.pk, key)
            .await?
            .map(|integration| integration.pk)
            .ok_or(sqlx::Error::RowNotFound),
    }
}

/// Creates schedules of new syncs, removes schedules of removed syncs, and plans syncs again whose default frequency
/// changed. All other schedules keep their state, overrides and checkpoints.
async fn update_schedules(
    conn: &mut PgConnection,
    environment: &Environment,
    config: &SyncConfig,
    before: &DeployedState,
) -> sqlx::Result<()> {
    let mut remaining = BTreeSet::new();
    for wanted in &config.integrations {
        let Some(integration) = integrations::find(conn, environment.pk, &wanted.key).await? else {
            continue;
        };
        for sync in &wanted.syncs {
            remaining.insert((integration.pk, sync.name.clone()));
            schedules::create_missing(conn, integration.pk, &sync.name, sync.auto_start).await?;
            let old = before.own_function(integration.pk, FunctionKind::Sync, &sync.name);
            if let Some((_, Some(StoredFunction { spec: FunctionSpec::Sync(old), .. }))) = old
                && (&old.frequency, old.timezone) != (&sync.frequency, sync.timezone)
            {
                let next = sync.frequency.next_after(schedules::now(conn).await?, sync.timezone);
                let jitter = jitter(&sync.frequency);
                schedules::replan(conn, integration.pk, &sync.name, next, jitter).await?;
            }
        }
    }
    for (row, _) in before.own.iter().filter(|(row, _)| row.kind == FunctionKind::Sync) {
        if !remaining.contains(&(row.integration, row.name.clone())) {
            connection_errors::clear_sync(conn, row.integration, &row.name).await?;
            schedules::remove_sync(conn, row.integration, &row.name).await?;
        }
    }
    Ok(())
}
