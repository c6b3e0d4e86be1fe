//! Implements the capabilities of a function in memory.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::dry_runs::RunData;
use crate::dry_runs::state::DryRunState;
use crate::functions::DeployedFunction;
use crate::invoker::capabilities::check_credentials_access;
use crate::records::commit::checks::ChangeChecks;
use syncline_sandbox::{
    Capabilities, Change, ConnectionInfo, Counts, Failure, GuestError, Interrupt, ProviderClient, RunInfo,
};
use syncline_types::failure_code::FailureCode;

pub(crate) struct DryRunCapabilities {
    pub(crate) provider: Arc<dyn ProviderClient>,
    pub(crate) function: Arc<DeployedFunction>,
    pub(crate) data: Arc<RunData>,
    pub(crate) checks: ChangeChecks,
    pub(crate) state: Arc<Mutex<DryRunState>>,
}

#[async_trait]
impl Capabilities for DryRunCapabilities {
    fn provider(&self) -> Arc<dyn ProviderClient> {
        Arc::clone(&self.provider)
    }

    async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Counts, GuestError> {
        let mut state = self.state.lock().await;
        let staged = state.stage(&self.checks, &changes, checkpoint).await?;
        Ok(staged.accept(&mut self.checks))
    }

    async fn find_records(
        &mut self,
        model: String,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        self.state.lock().await.find(&self.checks, &model, ids).await
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        Ok(self.state.lock().await.checkpoint.clone())
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        Ok(self.state.lock().await.metadata.as_str().to_owned())
    }

    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Result<(), GuestError> {
        self.state.lock().await.set_metadata(&metadata, merge)
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        check_credentials_access(&self.function)?;
        let missing = || {
            let message = "the recording contains no credentials; record the run again";
            Failure::new(FailureCode::CredentialsUnavailable, message)
        };
        Ok(self.data.credentials.clone().ok_or_else(missing)?)
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        Ok(self.function.granted_variables(self.data.variables.clone()))
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        Ok(self.data.connection.clone())
    }

    fn run(&self) -> RunInfo {
        self.data.run.clone()
    }

    fn progress(&mut self, _done: u64, _total: Option<u64>) {}

    fn cancelled(&self) -> bool {
        false
    }
}
