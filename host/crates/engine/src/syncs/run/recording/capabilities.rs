//! Passes calls on to the capabilities of a run, and notes what a recording needs.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::Observed;
use crate::invoker::capabilities::FunctionCapabilities;
use crate::records::commit::checks::change_bytes;
use syncline_recording::Recorder;
use syncline_sandbox::{
    Capabilities, Change, ConnectionInfo, Counts, GuestError, Interrupt, ProviderClient, RunInfo,
};

pub(super) struct RecordingCapabilities {
    pub(super) inner: FunctionCapabilities,
    pub(super) client: Arc<dyn ProviderClient>,
    pub(super) recorder: Recorder,
    pub(super) observed: Arc<Mutex<Observed>>,
}

#[async_trait]
impl Capabilities for RecordingCapabilities {
    fn provider(&self) -> Arc<dyn ProviderClient> {
        Arc::clone(&self.client)
    }

    async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Counts, GuestError> {
        self.recorder.count(changes.iter().map(change_bytes).sum());
        let mut observed = self.observed.lock().await;
        let Observed { state, checks, .. } = &mut *observed;
        if self.recorder.is_too_long() {
            state.records.clear();
            return self.inner.commit(changes, checkpoint).await;
        }
        // The changes are staged first, because this reads the records that existed before.
        let staged = state.stage(checks, &changes, checkpoint.clone()).await;
        let counts = self.inner.commit(changes, checkpoint).await?;
        if let Ok(staged) = staged {
            staged.accept(checks);
        }
        Ok(counts)
    }

    async fn find_records(
        &mut self,
        model: String,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        if !self.recorder.is_too_long() {
            let mut observed = self.observed.lock().await;
            let Observed { state, checks, .. } = &mut *observed;
            // A failure is the same as the one of the call below.
            let _noted = state.find(checks, &model, ids.clone()).await;
        }
        self.inner.find_records(model, ids).await
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        self.inner.checkpoint().await
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        self.inner.metadata().await
    }

    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Result<(), GuestError> {
        self.inner.set_metadata(metadata.clone(), merge).await?;
        self.observed.lock().await.state.set_metadata(&metadata, merge)
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        let credentials = self.inner.credentials().await?;
        self.observed.lock().await.credentials = Some(credentials.clone());
        Ok(credentials)
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        self.inner.variables().await
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        self.inner.connection().await
    }

    fn run(&self) -> RunInfo {
        self.inner.run()
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.inner.progress(done, total);
    }

    fn cancelled(&self) -> bool {
        self.inner.cancelled()
    }
}
