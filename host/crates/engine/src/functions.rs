//! The deployed functions, ready to run. Requests find them without a database query.

pub(crate) mod action_tools;
pub(crate) mod descriptions;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tokio::sync::OnceCell;
use url::Url;

use crate::functions::action_tools::ActionTool;
use syncline_config::{
    ActionSpec, Concurrency, DeletionHold, Frequency, FunctionKind, IntegrationSpec, LifecycleEvent,
    LifecycleSpec, LimitOverrides, SyncConfig, SyncSpec, WebhookSpec,
};
use syncline_egress::HostPattern;
use syncline_model::{Keeping, Models, Shape};
use syncline_sandbox::{ComponentDigest, Limits, PreparedComponent, Sandbox};
use syncline_store::Store;
use syncline_store::deployments::{self, ActiveFunction, LiveDeployment};
use syncline_types::ids::{
    DeploymentPk, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk, ModelName,
};

/// Upper bound of an action's wall time, whatever its limits say.
const MAX_ACTION_WALL: Duration = Duration::from_secs(15 * 60);
/// Maximum number of environments that are switched at the same time.
const SWITCHED_AT_ONCE: usize = 1_000;

/// A function with the settings of its integration, as it is stored with its deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredFunction {
    /// The integration's key in the `syncline.toml` of the bundle.
    pub(crate) integration_key: IntegrationKey,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) allow_hosts: Vec<String>,
    pub(crate) base_url: Option<String>,
    #[serde(default, skip_serializing_if = "Concurrency::is_default")]
    pub(crate) concurrency: Concurrency,
    pub(crate) spec: FunctionSpec,
}

impl StoredFunction {
    /// Returns `None` if the stored text cannot be parsed. Such a function does not run until it is deployed again;
    /// other functions are not affected. The code that loads the functions logs it.
    pub(crate) fn read(spec: &str) -> Option<Self> {
        serde_json::from_str(spec).ok()
    }
}

/// The functions of an integration that concern a new connection.
#[derive(Default)]
pub(crate) struct PostCreation {
    pub(crate) syncs: Vec<SyncSpec>,
    pub(crate) lifecycle: Vec<LifecycleSpec>,
}

/// Returns the functions that are deployed now, and keeps them deployed until the transaction ends. The in-memory copy
/// of this host may be older.
pub(crate) async fn hold_post_creation(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: IntegrationPk,
) -> sqlx::Result<PostCreation> {
    deployments::hold_active(conn, environment).await?;
    let mut functions = PostCreation::default();
    for spec in deployments::list_active_for_new_connections(conn, environment, integration).await? {
        let Some(stored) = StoredFunction::read(&spec) else { continue };
        match stored.spec {
            FunctionSpec::Sync(spec) => functions.syncs.push(spec),
            FunctionSpec::Lifecycle(spec) => functions.lifecycle.push(spec),
            FunctionSpec::Action(_) | FunctionSpec::Webhook(_) => {}
        }
    }
    Ok(functions)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum FunctionSpec {
    Sync(SyncSpec),
    Action(ActionSpec),
    Webhook(WebhookSpec),
    Lifecycle(LifecycleSpec),
}

/// A model that a function may write.
pub(crate) struct WritableModel {
    pub(crate) shape: Shape,
    pub(crate) keeping: Keeping,
}

pub(crate) type WritableModels = Arc<BTreeMap<ModelName, WritableModel>>;

/// A function that can be run.
pub struct DeployedFunction {
    pub name: FunctionName,
    pub integration: IntegrationPk,
    /// The integration's key in the bundle that deployed the function.
    pub(crate) integration_key: IntegrationKey,
    pub(crate) component: Arc<PreparedComponent>,
    pub(crate) limits: Limits,
    pub(crate) models: WritableModels,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) allow_hosts: Vec<HostPattern>,
    pub(crate) base_url: Option<Url>,
    concurrency: Concurrency,
    pub(crate) sees_credentials: bool,
    body: Body,
}

/// The properties that only one kind of function has.
enum Body {
    Sync(Box<SyncSpec>),
    Action { input: Option<Shape>, output: Option<Shape>, ordered: bool, tool: ActionTool },
    Lifecycle(LifecycleEvent),
    Webhook { subscriptions: Vec<String> },
}

impl DeployedFunction {
    /// Compiles the models of a function, and applies the limits of its kind.
    pub(crate) fn new(
        integration: IntegrationPk,
        name: FunctionName,
        component: Arc<PreparedComponent>,
        stored: StoredFunction,
        models: &Models,
        keeping: &BTreeMap<ModelName, Keeping>,
    ) -> anyhow::Result<(FunctionKind, Self)> {
        let (kind, overrides, written, sees_credentials, body) = match stored.spec {
            FunctionSpec::Sync(spec) => (
                FunctionKind::Sync,
                spec.limits,
                spec.models.clone(),
                spec.credentials,
                Body::Sync(Box::new(spec)),
            ),
            FunctionSpec::Action(spec) => {
                let tool = ActionTool::new(&spec, models);
                let compile = |ty: Option<_>| ty.map(|ty| Shape::compile(&ty, models)).transpose();
                let body = Body::Action {
                    input: compile(spec.input)?,
                    output: compile(spec.output)?,
                    ordered: spec.ordered,
                    tool,
                };
                (FunctionKind::Action, spec.limits, spec.models, spec.credentials, body)
            }
            FunctionSpec::Webhook(spec) => {
                let body = Body::Webhook { subscriptions: spec.subscriptions };
                (FunctionKind::Webhook, spec.limits, spec.models, spec.credentials, body)
            }
            FunctionSpec::Lifecycle(spec) => {
                let body = Body::Lifecycle(spec.event);
                (FunctionKind::Lifecycle, spec.limits, spec.models, spec.credentials, body)
            }
        };
        let written = written
            .into_iter()
            .map(|model| {
                let keeping = keeping.get(&model).copied().unwrap_or_default();
                Shape::of_model(&model, models).map(|shape| (model, WritableModel { shape, keeping }))
            })
            .collect::<Result<BTreeMap<_, _>, _>>()?;
        let function = Self {
            name,
            integration,
            integration_key: stored.integration_key,
            component,
            limits: limits(kind, &overrides),
            models: Arc::new(written),
            env: stored.env,
            allow_hosts: stored.allow_hosts.iter().map(|host| host.parse()).collect::<Result<_, _>>()?,
            base_url: stored.base_url.as_deref().map(Url::parse).transpose()?,
            concurrency: stored.concurrency,
            sees_credentials,
            body,
        };
        Ok((kind, function))
    }

    /// The sync's default frequency as text for clients. Empty for other functions.
    pub fn frequency_text(&self) -> String {
        self.frequency().map(ToString::to_string).unwrap_or_default()
    }

    /// The models that the function saves.
    pub fn models(&self) -> Vec<ModelName> {
        self.models.keys().cloned().collect()
    }

    /// The limits of one invocation.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The sync's default frequency. `None` for other functions.
    pub fn frequency(&self) -> Option<&Frequency> {
        match &self.body {
            Body::Sync(spec) => Some(&spec.frequency),
            _ => None,
        }
    }

    /// The time zone of a cron frequency.
    pub fn timezone(&self) -> Tz {
        match &self.body {
            Body::Sync(spec) => spec.timezone,
            _ => Tz::UTC,
        }
    }

    pub(crate) fn tracks_deletes(&self) -> bool {
        matches!(&self.body, Body::Sync(spec) if spec.track_deletes)
    }

    /// When the next full run is due after the last one, if not every run is full.
    pub(crate) fn next_full_run(&self, last: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match &self.body {
            Body::Sync(spec) => Some(spec.full_every.as_ref()?.next_after(last, spec.timezone)),
            _ => None,
        }
    }

    /// Whether only some runs are full. Such a sync always tracks deletions.
    pub(crate) fn has_incremental_runs(&self) -> bool {
        matches!(&self.body, Body::Sync(spec) if spec.full_every.is_some())
    }

    /// When deletions are held: the settings of the sync, or else the defaults of the host.
    pub(crate) fn deletion_hold(&self, default: &DeletionHold) -> DeletionHold {
        match &self.body {
            Body::Sync(spec) => DeletionHold {
                above: spec.hold_deletions_above.unwrap_or(default.above),
                from: spec.hold_deletions_from.unwrap_or(default.from),
            },
            _ => *default,
        }
    }

    pub(crate) fn input(&self) -> Option<&Shape> {
        match &self.body {
            Body::Action { input, .. } => input.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn output(&self) -> Option<&Shape> {
        match &self.body {
            Body::Action { output, .. } => output.as_ref(),
            _ => None,
        }
    }

    /// The description of an action as an AI tool. `None` for other functions.
    pub fn tool(&self) -> Option<&ActionTool> {
        match &self.body {
            Body::Action { tool, .. } => Some(tool),
            _ => None,
        }
    }

    /// Whether the asynchronous calls for one connection run one after another.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(self.body, Body::Action { ordered: true, .. })
    }

    /// The input of a lifecycle function, as JSON.
    pub(crate) fn event_input(&self) -> Option<String> {
        match self.body {
            Body::Lifecycle(event) => Some(serde_json::json!({ "event": event }).to_string()),
            _ => None,
        }
    }

    /// The event types that a webhook function handles. `*` stands for all.
    pub(crate) fn subscriptions(&self) -> &[String] {
        match &self.body {
            Body::Webhook { subscriptions } => subscriptions,
            _ => &[],
        }
    }

    /// Returns those variables of the environment that the integration's `env` allows.
    pub(crate) fn granted_variables(&self, all: Vec<(String, String)>) -> Vec<(String, String)> {
        match &self.env {
            None => all,
            Some(listed) => all.into_iter().filter(|(name, _)| listed.contains(name)).collect(),
        }
    }
}

type Key = (IntegrationPk, FunctionKind, FunctionName);
type FunctionsByKey = HashMap<Key, Arc<DeployedFunction>>;

/// The active functions of one environment.
struct Deployed {
    /// The number of the read that these functions come from.
    reading: u64,
    active: Vec<DeploymentPk>,
    functions: FunctionsByKey,
}

/// The active functions of all environments.
#[derive(Default)]
struct Known {
    /// Grows with every switch.
    version: u64,
    environments: HashMap<EnvironmentPk, Arc<Deployed>>,
    /// The functions of all environments together.
    functions: FunctionsByKey,
}

/// The rows that a read found for one environment.
#[derive(Default)]
struct Rows {
    deployments: Vec<LiveDeployment>,
    functions: Vec<ActiveFunction>,
}

/// A component, or its compilation in progress. It is compiled once, however many tasks need it.
type ComponentCell = Arc<OnceCell<Arc<PreparedComponent>>>;

/// All deployed functions of all environments.
///
/// Compiling may take minutes. It holds no lock, and an environment waits only for its own components.
pub struct Functions {
    pub(crate) store: Store,
    sandbox: Arc<Sandbox>,
    known: ArcSwap<Known>,
    components: Mutex<HashMap<ComponentDigest, ComponentCell>>,
    /// The number of the latest read.
    reading: tokio::sync::Mutex<u64>,
}

impl Functions {
    pub fn new(store: Store, sandbox: Arc<Sandbox>) -> Arc<Self> {
        Arc::new(Self {
            store,
            sandbox,
            known: ArcSwap::default(),
            components: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        })
    }

    pub fn find_sync(
        &self,
        integration: IntegrationPk,
        name: &FunctionName,
    ) -> Option<Arc<DeployedFunction>> {
        self.find(integration, FunctionKind::Sync, name)
    }

    pub(crate) fn find(
        &self,
        integration: IntegrationPk,
        kind: FunctionKind,
        name: &FunctionName,
    ) -> Option<Arc<DeployedFunction>> {
        self.known.load().functions.get(&(integration, kind, name.clone())).cloned()
    }

    pub fn find_action(
        &self,
        integration: IntegrationPk,
        name: &FunctionName,
    ) -> Option<Arc<DeployedFunction>> {
        self.find(integration, FunctionKind::Action, name)
    }

    /// Returns the function with this name. If this host does not know it, checks whether another host has just
    /// deployed it.
    pub async fn find_deployed(
        &self,
        environment: EnvironmentPk,
        integration: IntegrationPk,
        kind: FunctionKind,
        name: &FunctionName,
    ) -> anyhow::Result<Option<Arc<DeployedFunction>>> {
        if let Some(function) = self.find(integration, kind, name) {
            return Ok(Some(function));
        }
        self.catch_up(environment).await?;
        Ok(self.find(integration, kind, name))
    }

    /// Reads the deployments of an environment again if the in-memory copy is out of date. Another host may have
    /// switched to a new deployment a moment ago.
    pub async fn catch_up(&self, environment: EnvironmentPk) -> anyhow::Result<()> {
        let is_current = self.is_current(&mut *self.store.connect().await?, &[environment]).await?;
        if is_current { Ok(()) } else { self.reload_of(&[environment]).await }
    }

    /// Returns whether the in-memory copy of these environments matches the active deployments.
    pub(crate) async fn is_current(
        &self,
        conn: &mut PgConnection,
        environments: &[EnvironmentPk],
    ) -> sqlx::Result<bool> {
        let mut active: HashMap<EnvironmentPk, Vec<DeploymentPk>> = HashMap::new();
        for (environment, deployment) in deployments::list_active_in(conn, environments).await? {
            active.entry(environment).or_default().push(deployment);
        }
        let (known, none) = (self.known.load(), Vec::new());
        Ok(environments.iter().all(|environment| {
            let known = known.environments.get(environment).map_or(&none, |deployed| &deployed.active);
            known == active.get(environment).unwrap_or(&none)
        }))
    }

    /// The actions of one integration, sorted by name.
    pub fn actions_of(&self, integration: IntegrationPk) -> Vec<Arc<DeployedFunction>> {
        let kind = FunctionKind::Action;
        let wanted = |(key, _): &(&Key, _)| key.0 == integration && key.1 == kind;
        let mut actions: Vec<_> = self
            .known
            .load()
            .functions
            .iter()
            .filter(wanted)
            .map(|(_, function)| Arc::clone(function))
            .collect();
        actions.sort_by(|one, other| one.name.cmp(&other.name));
        actions
    }

    /// The base URL that a bundle sets for the integration, instead of the one in the catalogue. All bundles with a
    /// base URL have the same one, because a deployment with a different one is rejected.
    pub fn base_url_of(&self, integration: IntegrationPk) -> Option<Url> {
        let snapshot = self.known.load();
        let mut of_integration =
            snapshot.functions.values().filter(|function| function.integration == integration);
        of_integration.find_map(|function| function.base_url.clone())
    }

    /// The concurrency limits of syncs, for integrations whose bundles set them.
    pub(crate) fn concurrency(&self) -> HashMap<IntegrationPk, Concurrency> {
        let mut limits: HashMap<IntegrationPk, Concurrency> = HashMap::new();
        for function in
            self.known.load().functions.values().filter(|function| !function.concurrency.is_default())
        {
            // If several bundles have functions of one integration, the lowest limit applies.
            let limit = limits.entry(function.integration).or_default();
            let least = |one: Option<u32>, other: Option<u32>| one.into_iter().chain(other).min();
            limit.runs = least(limit.runs, function.concurrency.runs);
            limit.runs_per_connection =
                least(limit.runs_per_connection, function.concurrency.runs_per_connection);
        }
        limits
    }

    /// The integrations of all environments with a function for this event.
    pub(crate) fn integrations_with(&self, event: LifecycleEvent) -> Vec<IntegrationPk> {
        let snapshot = self.known.load();
        let functions = snapshot.functions.values();
        let of_event =
            functions.filter(|function| matches!(function.body, Body::Lifecycle(of) if of == event));
        of_event.map(|function| function.integration).collect()
    }

    /// The functions of one integration for this event, sorted by name.
    pub(crate) fn lifecycle_of(
        &self,
        integration: IntegrationPk,
        event: LifecycleEvent,
    ) -> Vec<Arc<DeployedFunction>> {
        let snapshot = self.known.load();
        let mut functions: Vec<_> = snapshot
            .functions
            .values()
            .filter(|function| function.integration == integration)
            .filter(|function| matches!(function.body, Body::Lifecycle(of) if of == event))
            .cloned()
            .collect();
        functions.sort_by(|one, other| one.name.cmp(&other.name));
        functions
    }

    /// The webhook functions of one integration, sorted by name.
    pub(crate) fn webhooks_of(&self, integration: IntegrationPk) -> Vec<Arc<DeployedFunction>> {
        let snapshot = self.known.load();
        let mut functions: Vec<_> = snapshot
            .functions
            .values()
            .filter(|function| function.integration == integration)
            .filter(|function| matches!(function.body, Body::Webhook { .. }))
            .cloned()
            .collect();
        functions.sort_by(|one, other| one.name.cmp(&other.name));
        functions
    }

    /// Returns whether any function of the integration saves this model, according to the latest deployments.
    pub async fn declares_model(
        &self,
        environment: EnvironmentPk,
        integration: IntegrationPk,
        model: &ModelName,
    ) -> anyhow::Result<bool> {
        if self.find_saving(integration, model).is_some() {
            return Ok(true);
        }
        self.catch_up(environment).await?;
        Ok(self.find_saving(integration, model).is_some())
    }

    /// The integration's sync that saves this model.
    pub(crate) fn find_sync_saving(
        &self,
        integration: IntegrationPk,
        model: &ModelName,
    ) -> Option<Arc<DeployedFunction>> {
        self.find_saving(integration, model).filter(|function| matches!(function.body, Body::Sync(_)))
    }

    /// A function of the integration that saves this model. A sync takes precedence.
    pub(crate) fn find_saving(
        &self,
        integration: IntegrationPk,
        model: &ModelName,
    ) -> Option<Arc<DeployedFunction>> {
        let snapshot = self.known.load();
        snapshot
            .functions
            .values()
            .filter(|function| function.integration == integration && function.models.contains_key(model))
            .min_by_key(|function| !matches!(function.body, Body::Sync(_)))
            .cloned()
    }

    /// Changes whenever the deployed functions may have changed.
    pub(crate) fn version(&self) -> u64 {
        self.known.load().version
    }

    /// The additional hosts that the functions of an integration may reach, combined.
    pub(crate) fn allow_hosts_of(&self, integration: IntegrationPk) -> Vec<HostPattern> {
        let snapshot = self.known.load();
        let of_integration =
            snapshot.functions.values().filter(|function| function.integration == integration);
        let mut hosts: Vec<HostPattern> = Vec::new();
        for host in of_integration.flat_map(|function| &function.allow_hosts) {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        hosts
    }

    /// Reads the active deployments and switches to them. Invocations in progress finish with their previous version.
    pub async fn reload(&self) -> anyhow::Result<()> {
        // An environment that no longer exists has no functions.
        let known = self.known.load().environments.keys().copied().collect();
        self.read_and_switch(known, None).await?;
        let known = self.known.load();
        let used: HashSet<_> = known.functions.values().map(|function| function.component.digest).collect();
        let mut components = self.components.lock().unwrap_or_else(PoisonError::into_inner);
        // A task that waits for a component has a reference to its cell.
        components.retain(|digest, cell| used.contains(digest) || Arc::strong_count(cell) > 1);
        Ok(())
    }

    /// Like [`reload`](Self::reload), for some environments only. Does not wait for components of other environments.
    pub(crate) async fn reload_of(&self, environments: &[EnvironmentPk]) -> anyhow::Result<()> {
        self.read_and_switch(environments.to_vec(), Some(environments)).await
    }

    /// Switches each environment as soon as its components are compiled.
    async fn read_and_switch(
        &self,
        expected: Vec<EnvironmentPk>,
        scope: Option<&[EnvironmentPk]>,
    ) -> anyhow::Result<()> {
        let (reading, mut found) = self.read(scope).await?;
        for environment in expected {
            found.entry(environment).or_default();
        }
        let prepared: FuturesUnordered<_> = found
            .into_iter()
            .map(async |(environment, rows)| (environment, Arc::new(self.prepare(reading, rows).await)))
            .collect();
        let mut ready = pin!(prepared.ready_chunks(SWITCHED_AT_ONCE));
        while let Some(ready) = ready.next().await {
            self.switch(&ready);
        }
        Ok(())
    }

    /// Reads the active deployments. The returned number grows with every read.
    async fn read(
        &self,
        scope: Option<&[EnvironmentPk]>,
    ) -> anyhow::Result<(u64, HashMap<EnvironmentPk, Rows>)> {
        // One read at a time, so that a read with a higher number is never older.
        let mut reading = self.reading.lock().await;
        let mut snapshot = self.store.begin_snapshot().await?;
        let (active, functions) = match scope {
            None => (
                deployments::list_active(&mut snapshot).await?,
                deployments::list_active_functions(&mut snapshot).await?,
            ),
            Some(environments) => (
                deployments::list_active_of(&mut snapshot, environments).await?,
                deployments::list_active_functions_of(&mut snapshot, environments).await?,
            ),
        };
        snapshot.commit().await?;
        *reading += 1;
        let mut found: HashMap<EnvironmentPk, Rows> = HashMap::new();
        for deployment in active {
            found.entry(deployment.environment).or_default().deployments.push(deployment);
        }
        for function in functions {
            found.entry(function.environment).or_default().functions.push(function);
        }
        Ok((*reading, found))
    }

    /// Prepares the functions of one environment, and compiles their components if necessary.
    async fn prepare(&self, reading: u64, rows: Rows) -> Deployed {
        let active = rows.deployments.iter().map(|deployment| deployment.pk).collect();
        let mut models = HashMap::with_capacity(rows.deployments.len());
        for deployment in rows.deployments {
            match serde_json::from_str::<SyncConfig>(&deployment.config) {
                Ok(config) => drop(models.insert(deployment.pk, (config.models, config.keeping))),
                // Records of this bundle stay, and other bundles keep running.
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "version {} of the bundle `{}` in environment `{}` cannot be parsed, so its functions do not run; \
                     deploy it again",
                    deployment.version,
                    deployment.bundle_name,
                    deployment.environment_name,
                ),
            }
        }
        let mut functions = FunctionsByKey::new();
        for function in rows.functions {
            let Some((models, keeping)) = models.get(&function.deployment) else { continue };
            let (kind, name) = (function.kind, function.name.clone());
            let integration = function.integration_key.clone();
            match self.build(function, models, keeping).await {
                Ok((key, deployed)) => {
                    functions.insert(key, Arc::new(deployed));
                }
                Err(error) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the deployed {kind} `{name}` of integration `{integration}` cannot run; deploy its bundle \
                         again"
                    );
                }
            }
        }
        Deployed { reading, active, functions }
    }

    fn switch(&self, ready: &[(EnvironmentPk, Arc<Deployed>)]) {
        self.known.rcu(|known| {
            let mut environments = known.environments.clone();
            for (environment, deployed) in ready {
                // A later read may have been prepared first.
                if environments.get(environment).is_none_or(|before| before.reading < deployed.reading) {
                    environments.insert(*environment, Arc::clone(deployed));
                }
            }
            let functions = environments.values().flat_map(|deployed| deployed.functions.clone()).collect();
            Known { version: known.version + 1, environments, functions }
        });
    }

    async fn build(
        &self,
        row: ActiveFunction,
        models: &Models,
        keeping: &BTreeMap<ModelName, Keeping>,
    ) -> anyhow::Result<(Key, DeployedFunction)> {
        let stored: StoredFunction = serde_json::from_str(&row.spec)?;
        let digest: [u8; 32] = row.component_digest.as_slice().try_into()?;
        let component = self.component(ComponentDigest(digest)).await?;
        let (kind, function) =
            DeployedFunction::new(row.integration, row.name.clone(), component, stored, models, keeping)?;
        Ok(((row.integration, kind, row.name), function))
    }

    /// Returns the component with this digest. Compiles it if necessary.
    pub(crate) async fn component(&self, digest: ComponentDigest) -> anyhow::Result<Arc<PreparedComponent>> {
        let cell = {
            let mut components = self.components.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(components.entry(digest).or_default())
        };
        let compile = async || {
            let wasm = async {
                let wasm = deployments::load_component(&mut *self.store.connect().await?, &digest.0).await?;
                wasm.ok_or_else(|| anyhow::anyhow!("component {digest} is not in the database"))
            };
            self.sandbox.prepare_stored(digest, wasm).await.map(Arc::new)
        };
        cell.get_or_try_init(compile).await.cloned()
    }
}

/// The limits of a kind of function, with the overrides of its author.
fn limits(kind: FunctionKind, overrides: &LimitOverrides) -> Limits {
    let default = match kind {
        FunctionKind::Sync => Limits::SYNC,
        FunctionKind::Action | FunctionKind::Webhook | FunctionKind::Lifecycle => Limits::ACTION,
    };
    let bytes = |set: Option<u64>, default: usize| {
        set.map_or(default, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    let time = |set: Option<u64>, default: Duration| set.map_or(default, Duration::from_millis);
    let wall = time(overrides.wall_ms, default.wall);
    Limits {
        cpu: time(overrides.cpu_ms, default.cpu),
        wall: if kind == FunctionKind::Sync { wall } else { wall.min(MAX_ACTION_WALL) },
        memory_bytes: bytes(overrides.memory_bytes, default.memory_bytes).min(Limits::MAX_MEMORY_BYTES),
        log_bytes: bytes(overrides.log_bytes, default.log_bytes),
        output_bytes: bytes(overrides.output_bytes, default.output_bytes),
        response_bytes: bytes(overrides.response_bytes, default.response_bytes),
        batch_bytes: bytes(overrides.batch_bytes, default.batch_bytes),
        record_bytes: bytes(overrides.record_bytes, default.record_bytes),
        requests: overrides.requests.unwrap_or(default.requests),
        records: overrides.records.unwrap_or(default.records),
        idle: time(overrides.idle_ms, default.idle),
    }
}

/// The stored form of each function of an integration.
pub(crate) fn stored_functions(
    integration: &IntegrationSpec,
) -> impl Iterator<Item = (FunctionKind, FunctionName, StoredFunction)> {
    let store = |kind, name: &FunctionName, spec| {
        let stored = StoredFunction {
            integration_key: integration.key.clone(),
            env: integration.env.clone(),
            allow_hosts: integration.allow_hosts.clone(),
            base_url: integration.base_url.clone(),
            concurrency: integration.concurrency,
            spec,
        };
        (kind, name.clone(), stored)
    };
    let syncs = integration
        .syncs
        .iter()
        .map(move |spec| store(FunctionKind::Sync, &spec.name, FunctionSpec::Sync(spec.clone())));
    let actions = integration
        .actions
        .iter()
        .map(move |spec| store(FunctionKind::Action, &spec.name, FunctionSpec::Action(spec.clone())));
    let webhooks = integration
        .webhooks
        .iter()
        .map(move |spec| store(FunctionKind::Webhook, &spec.name, FunctionSpec::Webhook(spec.clone())));
    let lifecycle = integration
        .lifecycle
        .iter()
        .map(move |spec| store(FunctionKind::Lifecycle, &spec.name, FunctionSpec::Lifecycle(spec.clone())));
    syncs.chain(actions).chain(webhooks).chain(lifecycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_a_waiting_caller_have_two_minutes_by_default_and_at_most_fifteen() {
        const HOUR: u64 = 3_600_000;
        let wall =
            |kind, wall_ms| limits(kind, &LimitOverrides { wall_ms, ..LimitOverrides::default() }).wall;
        for kind in [FunctionKind::Action, FunctionKind::Webhook, FunctionKind::Lifecycle] {
            assert_eq!(wall(kind, None), Duration::from_secs(120), "{kind:?}");
            assert_eq!(wall(kind, Some(1_500)), Duration::from_millis(1_500), "{kind:?}");
            // Deployments enforce this limit, but a stored function may be older than the check.
            assert_eq!(wall(kind, Some(HOUR)), Duration::from_secs(900), "{kind:?}");
        }
        assert_eq!(wall(FunctionKind::Sync, Some(HOUR)), Duration::from_secs(3_600));
    }
}
