//! Implements the capabilities of a function for one connection.

use std::sync::Arc;

use async_trait::async_trait;

use crate::connections::metadata::{MetadataChange, MetadataError, write_metadata};
use crate::credentials::source::unavailable;
use crate::credentials::{Freshness, LiveCredentials, RefreshError};
use crate::functions::DeployedFunction;
use crate::invoker::connection_access::ConnectionAccess;
use crate::invoker::control::RunSignals;
use crate::records::commit::{Committed, RecordWriter};
use syncline_sandbox::{
    Capabilities, Change, ConnectionInfo, Counts, Failure, GuestError, Interrupt, ProviderClient, RunInfo,
};
use syncline_types::failure_code::FailureCode;
use syncline_types::metadata::Metadata;

/// The capabilities of one invocation.
pub(crate) struct FunctionCapabilities {
    pub(crate) access: Arc<ConnectionAccess>,
    pub(crate) run: RunInfo,
    pub(crate) signals: Arc<RunSignals>,
    pub(crate) writer: RecordWriter,
    pub(crate) checkpoint: Option<String>,
}

#[async_trait]
impl Capabilities for FunctionCapabilities {
    fn provider(&self) -> Arc<dyn ProviderClient> {
        Arc::clone(&self.access) as Arc<dyn ProviderClient>
    }

    async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Counts, GuestError> {
        let set = checkpoint.clone();
        let committed = self.writer.commit(changes, checkpoint).await;
        self.access.meter.note_changes(self.writer.take_unconfirmed());
        let Committed { counts, changed, makes_progress } = committed?;
        self.access.meter.count_records(counts.added + counts.updated + counts.deleted + counts.unchanged);
        self.access.meter.note_changes(changed);
        let former = self.checkpoint.clone();
        if let Some(text) = set {
            self.checkpoint = (text.trim() != "null").then_some(text);
        }
        if makes_progress || self.checkpoint != former {
            self.signals.note_progress();
        }
        Ok(counts)
    }

    async fn find_records(
        &mut self,
        model: String,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        self.writer.find(&model, &ids).await
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        Ok(self.checkpoint.clone())
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        Ok(self.access.row().await?.metadata.clone().unwrap_or_default().as_str().to_owned())
    }

    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Result<(), GuestError> {
        let metadata = parse_metadata(&metadata)?;
        let change = if merge { MetadataChange::Merge } else { MetadataChange::Replace };
        let mut tx = self.access.invoker.store.begin().await.map_err(host_failure)?;
        match write_metadata(&mut tx, &[self.access.connection.pk], &metadata, change).await {
            Ok(()) => tx.commit().await.map_err(host_failure)?,
            Err(problem @ MetadataError::Merged(_)) => return Err(invalid_metadata(problem).into()),
            Err(MetadataError::Lookup(error)) => return Err(Interrupt::Host(error.into()).into()),
        }
        self.access.replace_row(None).await;
        Ok(())
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        check_credentials_access(&self.access.function)?;
        let (credentials, connection) = (&self.access.invoker.credentials, self.access.connection.pk);
        match credentials.live(&self.access.environment, connection, Freshness::AsNeeded).await {
            Ok(LiveCredentials { connection, credentials }) => {
                self.access.replace_row(Some(connection)).await;
                self.access.log.hide_credentials(credentials.secrets());
                let credentials = credentials.to_wire(false);
                self.access.log.hide_all(&credentials);
                Ok(credentials.to_string())
            }
            // The connection was deleted during the run.
            Err(RefreshError::Gone) => Err(Interrupt::Superseded.into()),
            Err(error) => Err(Failure::new(FailureCode::CredentialsUnavailable, unavailable(&error)).into()),
        }
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        let variables = self.access.invoker.variables.list(&self.access.environment).await;
        let variables = variables.map_err(|error| Interrupt::Host(error.into()))?;
        let granted = self.access.function.granted_variables(variables);
        granted.iter().for_each(|(_, value)| self.access.log.hide(value));
        Ok(granted)
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        let row = self.access.row().await?;
        let (config, tags) = (row.connection_config.to_string(), row.tags.to_string());
        Ok(ConnectionInfo {
            connection_id: self.access.connection.connection_id.to_string(),
            integration: self.access.connection.integration_key.to_string(),
            provider: self.access.connection.provider.to_string(),
            environment: self.access.environment.name.to_string(),
            config,
            tags,
        })
    }

    fn run(&self) -> RunInfo {
        self.run.clone()
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.access.meter.set_progress(done, total);
    }

    fn cancelled(&self) -> bool {
        self.signals.acknowledge_stop()
    }
}

/// Fails unless `syncline.toml` grants the function access to the credentials of its connection.
pub(crate) fn check_credentials_access(function: &DeployedFunction) -> Result<(), Failure> {
    if function.sees_credentials {
        return Ok(());
    }
    let message = format!(
        "`{}` may not read credentials; set `credentials = true` for it in syncline.toml to allow it",
        function.name
    );
    Err(Failure::new(FailureCode::NotAllowed, message))
}

/// Parses metadata that a function sets.
pub(crate) fn parse_metadata(text: &str) -> Result<Metadata, Failure> {
    Metadata::parse(text)
        .map_err(|problem| invalid_metadata(format!("the metadata of a connection {problem}")))
}

pub(crate) fn invalid_metadata(problem: impl ToString) -> Failure {
    Failure::new(FailureCode::InvalidMetadata, problem.to_string())
}

fn host_failure(error: sqlx::Error) -> Interrupt {
    Interrupt::Host(error.into())
}
