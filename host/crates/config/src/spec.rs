//! What a sync configuration file says. Functions are kept with their deployment as JSON of these types, so
//! a field that is added later needs a default.

use std::collections::BTreeMap;

use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use super::frequency::Frequency;
use super::limits::LimitOverrides;
use syncline_model::{Keeping, Models, Type};
use syncline_types::environment_settings::SettingsChange;
pub use syncline_types::functions::FunctionKind;
use syncline_types::ids::{BundleName, FunctionName, IntegrationKey, ModelName, ProviderSlug};

/// A whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncConfig {
    pub name: BundleName,
    /// `[environment]`: what a deployment sets in its environment.
    #[serde(default, skip_serializing_if = "SettingsChange::is_empty")]
    pub environment: SettingsChange,
    /// In the order of the file, as are the functions below.
    pub integrations: Vec<IntegrationSpec>,
    pub models: Models,
    /// How records of a model are kept, where that is not the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keeping: BTreeMap<ModelName, Keeping>,
}

/// `[integrations.KEY]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IntegrationSpec {
    pub key: IntegrationKey,
    pub provider: ProviderSlug,
    /// Path of the component's source folder or `.wasm`, from the file's folder.
    pub component: String,
    /// Environment variables that its functions see. None is all of the environment's through the import;
    /// only listed ones are in WASI's environment.
    pub env: Option<Vec<String>>,
    /// Hosts beside the provider's own that its functions may call, without credentials.
    pub allow_hosts: Vec<String>,
    /// Where the provider is, if not where the catalogue says.
    pub base_url: Option<String>,
    #[serde(default, skip_serializing_if = "Concurrency::is_default")]
    pub concurrency: Concurrency,
    pub syncs: Vec<SyncSpec>,
    pub actions: Vec<ActionSpec>,
    pub webhooks: Vec<WebhookSpec>,
    pub lifecycle: Vec<LifecycleSpec>,
}

/// How many syncs of an integration run at once over all hosts, where it is not the operator's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    pub runs: Option<u32>,
    /// Of one connection.
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
    /// The zone that a cron frequency is in.
    pub timezone: Tz,
    /// The models it saves. No other sync of the integration saves them.
    pub models: Vec<ModelName>,
    /// Whether records that a full run did not save are deleted after it.
    pub track_deletes: bool,
    /// In place of what the host says: of the live records, the share that may be deleted unasked …
    #[serde(default)]
    pub hold_deletions_above: Option<f64>,
    /// … if there are at least so many.
    #[serde(default)]
    pub hold_deletions_from: Option<u64>,
    /// Whether the schedule begins when a connection is made.
    pub auto_start: bool,
    /// Whether the function may read the connection's credentials.
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// When a full sync that has not seen records again is held instead of deleting them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeletionHold {
    /// If it has not seen more than this share of the live records.
    pub above: f64,
    /// Fewer live records are never held back.
    pub from: u64,
}

impl DeletionHold {
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits than a double has")]
    pub fn lets_pass(&self, unseen: u64, live: u64) -> bool {
        live < self.from || unseen as f64 <= live as f64 * self.above
    }
}

/// `[integrations.KEY.actions.NAME]`: runs when a client asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    /// None is any value, unchecked.
    pub input: Option<Type>,
    /// Likewise.
    pub output: Option<Type>,
    /// Whether a connection's asynchronous calls run one after another, in the order in which they were accepted.
    #[serde(default)]
    pub ordered: bool,
    /// The models it saves, if any.
    pub models: Vec<ModelName>,
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// `[integrations.KEY.webhooks.NAME]`: runs when the provider reports an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookSpec {
    pub name: FunctionName,
    pub description: Option<String>,
    /// The event types it handles; `*` is all.
    pub subscriptions: Vec<String>,
    pub models: Vec<ModelName>,
    pub credentials: bool,
    pub limits: LimitOverrides,
}

/// `[integrations.KEY.lifecycle.NAME]`: runs when something happens to a connection.
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
    /// Kind and name of every function.
    pub fn functions(&self) -> impl Iterator<Item = (FunctionKind, &FunctionName)> {
        let syncs = self.syncs.iter().map(|sync| (FunctionKind::Sync, &sync.name));
        let actions = self.actions.iter().map(|action| (FunctionKind::Action, &action.name));
        let webhooks = self.webhooks.iter().map(|webhook| (FunctionKind::Webhook, &webhook.name));
        let lifecycle = self.lifecycle.iter().map(|handler| (FunctionKind::Lifecycle, &handler.name));
        syncs.chain(actions).chain(webhooks).chain(lifecycle)
    }
}

/// The table of an integration in `syncline.toml` that holds its functions of this kind.
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
