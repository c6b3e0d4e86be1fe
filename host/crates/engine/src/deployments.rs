//! Deploys bundles: checks a bundle, stages it, waits until every host has compiled it, and then activates it.

pub(crate) mod checks;
pub(crate) mod history;
mod model_changes;
pub(crate) mod planned_change;
mod rollback;
pub(crate) mod signatures;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::deployments::checks::check_components;
use crate::deployments::model_changes::model_changes;
use crate::deployments::planned_change::PlannedChange;
use crate::deployments::signatures::{SignatureError, check_signature};
use crate::deployments::state::DeployedState;
use crate::functions::{FunctionSpec, Functions, StoredFunction, stored_functions};
use crate::syncs::schedule::jitter;
use syncline_auth::{Environment, Environments};
use syncline_config::bundle::{Bundle, BundleDigest, BundleError};
use syncline_config::{Capability, Diagnostics, FunctionKind, SyncConfig};
use syncline_providers::Catalogue;
use syncline_sandbox::{ComponentDigest, Sandbox};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::bundles::{self, StoredBundle};
use syncline_store::deployments::{self, NewDeployment, NewFunction};
use syncline_store::events::{Event, Events};
use syncline_store::hosts::ALIVE_WITHIN;
use syncline_store::integrations::{self, NewIntegration};
use syncline_store::{DEADLOCK_TRIES, connection_errors, environments, is_deadlock, schedules};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{
    BundleName, DeploymentPk, FunctionName, IntegrationKey, IntegrationPk, ModelName, ProviderSlug,
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
    /// What the bundle's functions can do beyond sending requests to their provider.
    pub capabilities: Vec<Capability>,
    /// The capabilities that the active version does not have. Empty for the first version of a bundle.
    pub new_capabilities: Vec<Capability>,
    /// The SDK and version of each component, by its path in `syncline.toml`. Components without an SDK are omitted.
    pub sdks: BTreeMap<String, String>,
    /// The name of the key that signed the bundle. `None` if the environment requires no signature.
    pub signed_by: Option<String>,
}

/// A bundle to deploy.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The bytes of the bundle's file.
    pub bundle: &'a [u8],
    /// The content of its `.minisig` file.
    pub signature: Option<&'a str>,
    /// The earlier version that is deployed again.
    pub restored_version: Option<i32>,
}

/// Whether to deploy, or only to plan a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployMode {
    Plan,
    Deploy {
        /// Accepts capabilities that the active version does not have.
        accept_capabilities: bool,
    },
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
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(
        "the bundle asks for capabilities that the active version does not have: {}; check them, then deploy with \
         `accept_capabilities=true` (`syncline deploy --accept-capabilities`)",
        list_capabilities(added)
    )]
    NewCapabilities { added: Vec<Capability> },
    #[error("{}", unknown_version(bundle, *version))]
    UnknownVersion { bundle: BundleName, version: Option<i32> },
    #[error("version {version} of the bundle `{bundle}` was never active; deploy its bundle file instead")]
    NeverActive { bundle: BundleName, version: i32 },
    #[error(
        "version {version} of the bundle `{bundle}` was deployed by a host that did not store bundles; deploy its bundle \
         file instead"
    )]
    NotStored { bundle: BundleName, version: i32 },
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
            Self::Signature(SignatureError::Missing) => ErrorCode::BundleSignatureRequired,
            Self::Signature(_) => ErrorCode::InvalidBundleSignature,
            Self::NewCapabilities { .. } => ErrorCode::CapabilitiesNotAccepted,
            Self::UnknownVersion { .. } => ErrorCode::UnknownDeployment,
            Self::NeverActive { .. } | Self::NotStored { .. } => ErrorCode::DeploymentNotRestorable,
            Self::NotReady { .. } | Self::HostsSilent { .. } => ErrorCode::HostsNotReady,
            Self::Store(_) | Self::Host(_) => ErrorCode::InternalServerError,
        }
    }

    /// The errors in `syncline.toml`, each with its location, or the new capabilities.
    pub fn payload(&self) -> Option<Value> {
        match self {
            Self::Config(diagnostics) => Some(json!({ "mistakes": diagnostics })),
            Self::NewCapabilities { added } => Some(json!({ "new_capabilities": added })),
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

    /// Deploys a bundle, or returns what it would change.
    pub async fn deploy(
        &self,
        environment: &Environment,
        submission: Submission<'_>,
        mode: DeployMode,
        actor: &Actor,
    ) -> Result<Deployment, DeployError> {
        let bytes = submission.bundle;
        let bundle = tokio::task::block_in_place(|| Bundle::read(bytes))?;
        let digest = BundleDigest::of(bytes);
        let trusted = bundles::list_keys(&mut *self.store.connect().await?, environment.pk).await?;
        let signed_by =
            tokio::task::block_in_place(|| check_signature(bytes, submission.signature, &trusted))?;
        let file = tokio::task::block_in_place(|| bundle.parse_config()).map_err(DeployError::Config)?;
        let minimum = self.minimum_interval;
        let checked =
            check_components(&file, &bundle.components, minimum, &self.catalogue, &self.sandbox).await;
        checked.mistakes.into_result().map_err(DeployError::Config)?;

        let mut tx = self.store.begin().await?;
        deployments::lock(&mut tx, environment.pk).await?;
        let state = DeployedState::read(&mut tx, environment, &file.config).await?;
        let mut plan = state.plan(&file.config)?;
        let (of_models, warnings) = model_changes(state.active.as_ref(), &file.config);
        plan.extend(of_models);
        let capabilities = file.config.capabilities();
        let deployment = Deployment {
            id: None,
            bundle: file.config.name.to_string(),
            version: state.active.as_ref().map(|active| active.version),
            digest: digest.to_string(),
            changes: plan,
            warnings,
            new_capabilities: state.new_capabilities(&capabilities),
            capabilities,
            sdks: checked.sdks,
            signed_by,
        };
        let is_active = state.active.as_ref().is_some_and(|active| active.digest == digest.as_str());
        // An active bundle is deployed again if one of its integrations was deleted.
        let DeployMode::Deploy { accept_capabilities } = mode else { return Ok(deployment) };
        if is_active && deployment.changes.is_empty() {
            return Ok(deployment);
        }
        if !accept_capabilities && !deployment.new_capabilities.is_empty() {
            return Err(DeployError::NewCapabilities { added: deployment.new_capabilities });
        }
        let bundle = CheckedBundle { bundle: &bundle, config: &file.config, submission, plan: &deployment };
        let staged = stage(&mut tx, environment, &bundle, &state, actor).await?;
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

/// A deployment that is stored and not active yet.
struct Staged {
    id: Uuid,
    pk: DeploymentPk,
    version: i32,
}

/// A bundle that can be staged.
struct CheckedBundle<'a> {
    bundle: &'a Bundle,
    config: &'a SyncConfig,
    submission: Submission<'a>,
    plan: &'a Deployment,
}

async fn stage(
    conn: &mut PgConnection,
    environment: &Environment,
    checked: &CheckedBundle<'_>,
    state: &DeployedState,
    actor: &Actor,
) -> Result<Staged, DeployError> {
    let CheckedBundle { bundle, config, submission, plan } = checked;
    let mut digests = BTreeMap::new();
    for (path, wasm) in &bundle.components {
        let digest = ComponentDigest::of(wasm);
        deployments::put_component(conn, &digest.0, wasm).await?;
        digests.insert(path.as_str(), digest);
    }
    let hex = |(path, digest): (&&str, &ComponentDigest)| ((*path).to_owned(), digest.to_string());
    let content = StoredBundle {
        config: bundle.config.clone(),
        schemas: bundle.schemas.clone(),
        components: digests.iter().map(hex).collect(),
    };
    bundles::put(conn, &plan.digest, &content).await?;
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
        // Kept for a rollback, which checks it again.
        signature: submission.signature,
        signed_by: plan.signed_by.as_deref(),
        restored_version: submission.restored_version,
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

fn list_capabilities(capabilities: &[Capability]) -> String {
    let text = |one: &Capability| {
        format!("{} `{}` of integration `{}`", one.kind.describe(), one.name, one.integration)
    };
    capabilities.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn unknown_version(bundle: &BundleName, version: Option<i32>) -> String {
    let help = "`syncline versions` lists the versions";
    match version {
        Some(version) => {
            format!("the bundle `{bundle}` has no version {version} in this environment; {help}")
        }
        None => format!("the bundle `{bundle}` has no earlier version in this environment; {help}"),
    }
}
