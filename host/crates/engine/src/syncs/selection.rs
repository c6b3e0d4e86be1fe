//! Resolves the schedules that a client selects.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::functions::DeployedFunction;
use crate::lookup::{LookupError, find_integration};
use crate::syncs::Syncs;
use syncline_store::schedules::{self, ScheduleScope, Target};
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{
    ConnectionId, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk, Variant,
};

/// A selection of schedules: of one connection, or of all connections of an integration.
#[derive(Debug)]
pub struct SyncSelection {
    pub integration: IntegrationKey,
    /// `None` for every connection of the integration.
    pub connection: Option<ConnectionId>,
    /// Empty for every sync and variant.
    pub syncs: BTreeSet<(FunctionName, Variant)>,
}

/// Why a request about syncs or variants failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("no sync `{sync}` is deployed for integration `{integration}`; correct the name, or deploy it")]
    UnknownSync { sync: FunctionName, integration: IntegrationKey },
    #[error(
        "sync `{sync}` has no variant `{variant}` for the selected connections; `GET /sync/status` lists its variants"
    )]
    UnknownVariant { sync: FunctionName, variant: Variant },
    #[error(
        "the connection has none of the selected syncs of integration `{0}`; `GET /sync/status` lists its syncs"
    )]
    NoSyncs(IntegrationKey),
    #[error("the sync already has this variant; choose another name")]
    VariantExists,
    #[error("the sync already has the maximum of {most} variants; delete one first")]
    TooManyVariants { most: i64 },
    #[error("the deployed functions could not be read")]
    Functions(#[source] anyhow::Error),
    #[error("schedules could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl SyncError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::UnknownSync { .. } => ErrorCode::UnknownSync,
            Self::UnknownVariant { .. } => ErrorCode::UnknownVariant,
            Self::NoSyncs(_) => ErrorCode::NoSyncsFound,
            Self::VariantExists => ErrorCode::SyncVariantAlreadyExists,
            Self::TooManyVariants { .. } => ErrorCode::ResourceCapped,
            Self::Functions(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// The row numbers of a selection.
pub(super) struct Selected {
    pub(super) integration: IntegrationPk,
    pub(super) target: Target,
}

impl Syncs {
    /// Resolves a selection. Every sync must be deployed, and every variant must exist.
    pub(super) async fn select(
        &self,
        environment: EnvironmentPk,
        selection: &SyncSelection,
    ) -> Result<Selected, SyncError> {
        let key = &selection.integration;
        let integration = find_integration(&mut *self.store.connect().await?, environment, key).await?.pk;
        let whose = match &selection.connection {
            None => ScheduleScope::Integration(integration),
            Some(id) => ScheduleScope::Connection(self.connections.get(environment, key, id).await?.pk),
        };
        for (sync, _) in &selection.syncs {
            self.find_deployed(environment, integration, key, sync).await?;
        }
        let syncs = (!selection.syncs.is_empty()).then(|| selection.syncs.iter().cloned().collect());
        let target = Target { whose, syncs };
        self.require_variants(&target).await?;
        Ok(Selected { integration, target })
    }

    /// Returns the sync with this name, even if another host has just deployed it.
    pub(super) async fn find_deployed(
        &self,
        environment: EnvironmentPk,
        integration: IntegrationPk,
        key: &IntegrationKey,
        sync: &FunctionName,
    ) -> Result<Arc<DeployedFunction>, SyncError> {
        let found = self.functions.find_deployed(environment, integration, FunctionKind::Sync, sync).await;
        let unknown = || SyncError::UnknownSync { sync: sync.clone(), integration: key.clone() };
        found.map_err(SyncError::Functions)?.ok_or_else(unknown)
    }

    /// Rejects variants that no connection has, because they are probably misspelled. Every sync has the base variant.
    async fn require_variants(&self, target: &Target) -> Result<(), SyncError> {
        let named = target.syncs.iter().flatten().filter(|(_, variant)| !variant.is_base());
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return Ok(());
        }
        let existing = schedules::list_variants(&mut *self.store.connect().await?, target).await?;
        match named.into_iter().find(|wanted| !existing.contains(wanted)) {
            None => Ok(()),
            Some((sync, variant)) => {
                Err(SyncError::UnknownVariant { sync: sync.clone(), variant: variant.clone() })
            }
        }
    }
}
