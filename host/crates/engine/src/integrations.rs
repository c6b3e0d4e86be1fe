//! Integrations: providers set up in an environment.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::connections::Connections;
use crate::connections::cache::ConnectionCache;
use crate::connections::deletion::DeletionError;
use crate::credentials::sealed::open_app_credentials;
use crate::inbound_webhooks::ingest::WebhookIngest;
use crate::lookup::{LookupError, find_integration};
use syncline_auth::{AppCredentials, AppCredentialsError, Environment, IntegrationSettings, SettingsError};
use syncline_providers::{AuthMode, Catalogue, Provider};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
pub use syncline_store::integrations::Integration;
use syncline_store::integrations::{self, IntegrationUpdate};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{EnvironmentPk, IntegrationKey, ProviderSlug};

/// Maximum number of members of `integration_config` and of `custom`.
pub const MAX_SETTINGS: usize = 100;

/// An integration to create.
#[derive(Debug)]
pub struct NewIntegration {
    pub unique_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub display_name: Option<String>,
    pub forward_webhooks: bool,
    /// The app's credentials, as a client sends them.
    pub credentials: Option<Map<String, Value>>,
    pub settings: IntegrationSettings,
}

/// Changes to an integration. Fields that are `None` stay as they are.
#[derive(Debug)]
pub struct IntegrationChange {
    pub unique_key: Option<IntegrationKey>,
    pub display_name: Option<String>,
    pub forward_webhooks: Option<bool>,
    /// Changes of the app's credentials, as a client sends them. Members that are omitted stay as they are.
    pub credentials: Option<Map<String, Value>>,
    /// Merged into the settings, key by key.
    pub settings: IntegrationSettings,
}

impl IntegrationChange {
    /// The names of the members that the change sets.
    fn changed_members(&self) -> Vec<&'static str> {
        let members = [
            ("unique_key", self.unique_key.is_some()),
            ("display_name", self.display_name.is_some()),
            ("forward_webhooks", self.forward_webhooks.is_some()),
            ("credentials", self.credentials.is_some()),
            ("integration_config", !self.settings.integration_config.is_empty()),
            ("custom", !self.settings.custom.is_empty()),
        ];
        members.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }
}

/// Why an integration was not created, returned, changed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum IntegrationError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("there is no provider `{0}` in the catalogue; `GET /providers` lists all providers")]
    UnknownProvider(ProviderSlug),
    #[error("integration `{0}` already exists; choose another `unique_key`")]
    Duplicate(IntegrationKey),
    #[error("`{provider}` uses auth mode {mode}, which needs the credentials of your app: set `credentials`")]
    MissingCredentials { provider: ProviderSlug, mode: AuthMode },
    #[error(transparent)]
    InvalidCredentials(AppCredentialsError),
    #[error("must have at most {MAX_SETTINGS} members (got {count})")]
    TooManySettings { name: &'static str, count: usize },
    #[error("the credentials of the integration's app cannot be decrypted")]
    Credentials(#[source] AppCredentialsError),
    #[error("the settings of the integration cannot be decrypted")]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Deletion(DeletionError),
    #[error("integrations could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl IntegrationError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::Deletion(error) => error.code(),
            Self::UnknownProvider(_) => ErrorCode::UnknownProvider,
            Self::Duplicate(_) => ErrorCode::DuplicateIntegration,
            Self::MissingCredentials { .. } | Self::InvalidCredentials(_) | Self::TooManySettings { .. } => {
                ErrorCode::InvalidBody
            }
            Self::Credentials(_) | Self::Settings(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Creates, returns, changes and deletes integrations.
pub struct Integrations {
    store: Store,
    catalogue: Arc<Catalogue>,
    connections: Arc<Connections>,
    connection_cache: Arc<ConnectionCache>,
    inbound_webhooks: Arc<WebhookIngest>,
}

impl Integrations {
    pub fn new(
        store: Store,
        catalogue: Arc<Catalogue>,
        connections: Arc<Connections>,
        connection_cache: Arc<ConnectionCache>,
        inbound_webhooks: Arc<WebhookIngest>,
    ) -> Self {
        Self { store, catalogue, connections, connection_cache, inbound_webhooks }
    }

    /// Returns all integrations of an environment, in the order of their creation.
    pub async fn list(&self, environment: EnvironmentPk) -> Result<Vec<Integration>, IntegrationError> {
        Ok(integrations::list(&mut *self.store.connect().await?, environment).await?)
    }

    /// Returns the integration with this key.
    pub async fn get(
        &self,
        environment: EnvironmentPk,
        key: &IntegrationKey,
    ) -> Result<Integration, LookupError> {
        find_integration(&mut *self.store.connect().await?, environment, key).await
    }

    /// Returns the integration with this key and its provider. Fails if the provider is no longer in the catalogue.
    pub async fn get_with_provider(
        &self,
        environment: EnvironmentPk,
        key: &IntegrationKey,
    ) -> Result<(Integration, Arc<Provider>), IntegrationError> {
        let integration = self.get(environment, key).await?;
        let provider = Arc::clone(&self.provider(&integration.provider)?);
        Ok((integration, provider))
    }

    /// Decrypts the credentials of the integration's app for a client, if it has any, and records that the client has
    /// read them.
    pub async fn reveal_app_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
        actor: &Actor,
    ) -> Result<Option<AppCredentials>, IntegrationError> {
        let credentials = self.app_credentials(environment, integration)?;
        if credentials.is_some() {
            let key = integration.unique_key.as_str();
            let entry =
                NewEntry::new(environment.pk, AuditAction::CredentialsRead, TargetKind::Integration, key);
            audit_log::write(&mut *self.store.connect().await?, actor, &entry).await?;
        }
        Ok(credentials)
    }

    /// Decrypts the credentials of the integration's app, if it has any. Clients must not see more than their public
    /// part; see [`Self::reveal_app_credentials`].
    pub fn app_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<Option<AppCredentials>, IntegrationError> {
        open_app_credentials(environment, integration).map_err(IntegrationError::Credentials)
    }

    /// Creates an integration.
    pub async fn create(
        &self,
        environment: &Environment,
        new: NewIntegration,
        actor: &Actor,
    ) -> Result<Integration, IntegrationError> {
        let mode = self.provider(&new.provider)?.auth_mode;
        let credentials = match new.credentials {
            Some(members) => {
                let parsed = AppCredentials::parse(mode, members);
                Some(parsed.map_err(IntegrationError::InvalidCredentials)?)
            }
            None if AppCredentials::are_required(mode) => {
                return Err(IntegrationError::MissingCredentials { provider: new.provider, mode });
            }
            None => None,
        };
        let id = Uuid::new_v4();
        let key = &environment.data_key;
        let sealed_credentials = credentials.map(|credentials| credentials.seal(key, id));
        let sealed_settings = (!new.settings.is_empty()).then(|| new.settings.seal(key, id));
        let row = integrations::NewIntegration {
            id,
            environment: environment.pk,
            unique_key: &new.unique_key,
            provider: &new.provider,
            display_name: new.display_name.as_deref(),
            forward_webhooks: new.forward_webhooks,
            sealed_credentials: sealed_credentials.as_deref(),
            sealed_settings: sealed_settings.as_deref(),
        };
        let mut tx = self.store.begin().await?;
        let created = integrations::create(&mut tx, &row).await?;
        let created = created.ok_or_else(|| IntegrationError::Duplicate(new.unique_key.clone()))?;
        let key = created.unique_key.as_str();
        let entry =
            NewEntry::new(environment.pk, AuditAction::IntegrationCreated, TargetKind::Integration, key)
                .with(json!({ "provider": created.provider.as_str() }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Changes the fields that are set. The connections, syncs and records of an integration stay, even under a new
    /// key.
    pub async fn update(
        &self,
        environment: &Environment,
        key: &IntegrationKey,
        change: IntegrationChange,
        actor: &Actor,
    ) -> Result<Integration, IntegrationError> {
        let mut tx = self.store.begin().await?;
        let before = integrations::lock(&mut tx, environment.pk, key).await?;
        let before = before.ok_or_else(|| LookupError::UnknownIntegration(key.clone()))?;
        let data_key = &environment.data_key;
        let changed = change.changed_members();
        let credentials = match change.credentials {
            Some(members) => {
                let mode = self.provider(&before.provider)?.auth_mode;
                let previous = before.sealed_credentials.as_deref();
                // Credentials that cannot be decrypted any more can be replaced completely.
                let previous =
                    previous.and_then(|sealed| AppCredentials::open(data_key, before.id, sealed).ok());
                let changed = AppCredentials::parse_change(mode, members, previous.as_ref());
                let changed = changed.map_err(IntegrationError::InvalidCredentials)?;
                Some(changed.seal(data_key, before.id))
            }
            None => before.sealed_credentials,
        };
        let settings = if change.settings.is_empty() {
            before.sealed_settings
        } else {
            let opened = before.sealed_settings.as_deref();
            let opened = opened.map(|sealed| IntegrationSettings::open(data_key, before.id, sealed));
            let mut settings = opened.transpose()?.unwrap_or_default();
            settings.merge(change.settings);
            check_count("integration_config", settings.integration_config.len())?;
            check_count("custom", settings.custom.len())?;
            Some(settings.seal(data_key, before.id))
        };
        let unique_key = change.unique_key.unwrap_or(before.unique_key);
        let update = IntegrationUpdate {
            unique_key: &unique_key,
            display_name: change.display_name.as_deref().or(before.display_name.as_deref()),
            forward_webhooks: change.forward_webhooks.unwrap_or(before.forward_webhooks),
            sealed_credentials: credentials.as_deref(),
            sealed_settings: settings.as_deref(),
        };
        let updated = integrations::update(&mut tx, before.pk, &update).await?;
        let updated = updated.ok_or(IntegrationError::Duplicate(unique_key))?;
        let entry = NewEntry::new(
            environment.pk,
            AuditAction::IntegrationUpdated,
            TargetKind::Integration,
            updated.unique_key.as_str(),
        )
        .with(json!({ "changed": changed, "previous_key": key.as_str() }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        self.connection_cache.forget_all();
        self.inbound_webhooks.forget();
        Ok(updated)
    }

    /// Deletes an integration with its connections and their records.
    pub async fn delete(
        &self,
        environment: EnvironmentPk,
        key: &IntegrationKey,
        actor: &Actor,
    ) -> Result<(), IntegrationError> {
        let deleted = self.connections.delete_integration(environment, key, actor).await;
        deleted.map_err(IntegrationError::Deletion)?;
        self.inbound_webhooks.forget();
        Ok(())
    }

    fn provider(&self, slug: &ProviderSlug) -> Result<Arc<Provider>, IntegrationError> {
        self.catalogue.find(slug).ok_or_else(|| IntegrationError::UnknownProvider(slug.clone()))
    }
}

fn check_count(name: &'static str, count: usize) -> Result<(), IntegrationError> {
    if count <= MAX_SETTINGS { Ok(()) } else { Err(IntegrationError::TooManySettings { name, count }) }
}
