//! The content of `syncline.toml`. Functions are stored with their deployment as JSON of these types, so a field
//! that is added later needs a default.

use std::collections::BTreeMap;

use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use super::frequency::Frequency;
use super::limits::LimitOverrides;
use syncline_model::{Keeping, Models, Type};
use syncline_types::environment_settings::SettingsChange;
pub use syncline_types::functions::FunctionKind;
use syncline_types::ids::{BundleName, FunctionName, IntegrationKey, ModelName, ProviderSlug};

/// A complete file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncConfig {
    pub name: BundleName,
    /// `[environment]`: settings that a deployment changes in its environment.
    #[serde(default, skip_serializing_if = "SettingsChange::is_empty")]
    pub environment: SettingsChange,
    /// In the order of the file, like the functions below.
    pub integrations: Vec<IntegrationSpec>,
    pub models: Models,
    /// How records of a model are stored, for models that differ from the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keeping: BTreeMap<ModelName, Keeping>,
}

/// `[integrations.KEY]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IntegrationSpec {
    pub key: IntegrationKey,
    pub provider: ProviderSlug,
    /// Path of the component's source folder or `.wasm` file, relative to the file's folder.
    pub component: String,
    /// Environment variables that the functions can read. None grants all of them through the import. Only listed
    /// variables appear in WASI's environment.
    pub env: Option<Vec<String>>,
    /// Hosts in addition to the provider's own that the functions can call, without credentials.
    pub allow_hosts: Vec<String>,
    /// Address of the provider, if it differs from the catalogue.
    pub base_url: Option<String>,
    #[serde(default, skip_serializing_if = "Concurrency::is_default")]
    pub concurrency: Concurrency,
    pub syncs: Vec<SyncSpec>,
    pub actions: Vec<ActionSpec>,
    pub webhooks: Vec<WebhookSpec>,
    pub lifecycle: Vec<LifecycleSpec>,
}

/// The number of concurrent syncs of an integration on all hosts, where it differs from the operator's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    pub runs: Option<u32>,
    /// Limit for one connection.
    pub runs_per_connection: Option<u32>,
}

impl Concurrency {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[integrations.KEY.syncs.NAME]`: runs on a schedule and saves records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    pub frequency: Frequency,
    /// Time zone of a cron frequency.
    pub timezone: Tz,
    /// The models that the sync saves. No other sync of the integration saves them.
    pub models: Vec<ModelName>,
    /// Whether records that a full run did not save are deleted after it.
    pub track_deletes: bool,
    /// With `track_deletes`: how often a run is full. Other runs are incremental. None makes every run full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_every: Option<Frequency>,
    /// Overrides the host's setting: the share of live records above which deletions are held for approval.
    #[serde(default)]
    pub hold_deletions_above: Option<f64>,
    /// Overrides the host's setting: fewer live records than this are never held.
    #[serde(default)]
    pub hold_deletions_from: Option<u64>,
    /// Whether the schedule starts when a connection is created.
    pub auto_start: bool,
    /// Whether the function may read the connection's credentials.
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// When deletions of a full sync are held for approval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeletionHold {
    /// Deletions are held if the run did not find more than this share of the live records, from 0 to 1.
    pub above: f64,
    /// Deletions are never held if there are fewer live records than this.
    pub from: u64,
}

impl DeletionHold {
    #[expect(clippy::cast_precision_loss, reason = "an f64 is precise enough for a share")]
    pub fn lets_pass(&self, unseen: u64, live: u64) -> bool {
        live < self.from || unseen as f64 <= live as f64 * self.above
    }
}

/// `[integrations.KEY.actions.NAME]`: runs on request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    /// None accepts any value without validation.
    pub input: Option<Type>,
    /// None allows any value without validation.
    pub output: Option<Type>,
    /// Whether a connection's asynchronous calls run one after another, in the order in which they were accepted.
    #[serde(default)]
    pub ordered: bool,
    /// The models that the action saves, if any.
    pub models: Vec<ModelName>,
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// `[integrations.KEY.webhooks.NAME]`: runs when the provider reports an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    /// The event types that it handles; `*` matches all.
    pub subscriptions: Vec<String>,
    pub models: Vec<ModelName>,
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// `[integrations.KEY.lifecycle.NAME]`: runs on an event of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LifecycleSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    pub event: LifecycleEvent,
    pub models: Vec<ModelName>,
    pub credentials: bool,
    pub limits: LimitOverrides,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LifecycleEvent {
    ConnectionCreated,
    ConnectionDeleting,
    ConnectionValidating,
}

impl IntegrationSpec {
    /// Returns kind and name of every function.
    pub fn functions(&self) -> impl Iterator<Item = (FunctionKind, &FunctionName)> {
        let syncs = self.syncs.iter().map(|sync| (FunctionKind::Sync, &sync.name));
        let actions = self.actions.iter().map(|action| (FunctionKind::Action, &action.name));
        let webhooks = self.webhooks.iter().map(|webhook| (FunctionKind::Webhook, &webhook.name));
        let lifecycle = self.lifecycle.iter().map(|handler| (FunctionKind::Lifecycle, &handler.name));
        syncs.chain(actions).chain(webhooks).chain(lifecycle)
    }
}

/// Returns the table of an integration in `syncline.toml` that contains its functions of this kind.
pub fn table_of(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Sync => "syncs",
        FunctionKind::Action => "actions",
        FunctionKind::Webhook => "webhooks",
        FunctionKind::Lifecycle => "lifecycle",
    }
}

impl LifecycleEvent {
    pub const ALL: [Self; 3] =
        [Self::ConnectionCreated, Self::ConnectionDeleting, Self::ConnectionValidating];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionCreated => "connection-created",
            Self::ConnectionDeleting => "connection-deleting",
            Self::ConnectionValidating => "connection-validating",
        }
    }
}
