//! Asynchronous actions: queued as jobs, which any host can run.

use uuid::Uuid;

use crate::actions::Actions;
use crate::actions::idempotency_key::IdempotencyKey;
use crate::actions::request::{self, ActionCall, Found, Mode, new_job};
use crate::invoker::error::ActionError;
use crate::jobs::result::ActionResult;
use syncline_auth::Environment;
use syncline_crypto::AssociatedData;
use syncline_store::function_jobs::{self, JobState, NewKey};
use syncline_telemetry::failpoints::{self, Step};

/// The state of an asynchronous action.
#[derive(Debug)]
pub enum ActionJob {
    /// `queued` or `running`.
    Unfinished(JobState),
    Finished(ActionResult),
}

impl Actions {
    /// Queues an action and returns the id of its job. A repeated request with the same key returns the same id.
    pub async fn enqueue(
        &self,
        call: &ActionCall,
        max_retries: u8,
        key: Option<&IdempotencyKey>,
    ) -> Result<Uuid, ActionError> {
        let function = self.find(&call.connection, &call.action, call.input.as_deref()).await?;
        let id = Uuid::now_v7();
        let sealed_request = key.map(|_| request::seal_request(call, Mode::Async, id)).transpose()?;
        let sealed_input = call.input.as_ref().map(|input| {
            let associated_data =
                AssociatedData { column: "function_jobs.sealed_input", row: &id.to_string() };
            call.environment.data_key.seal(associated_data, input.as_bytes())
        });
        let mut job = new_job(call, &function, id);
        job.max_retries = i32::from(max_retries);
        job.sealed_input = sealed_input.as_deref();
        job.key = key
            .zip(sealed_request.as_deref())
            .map(|(key, sealed_request)| NewKey { key: key.as_str(), sealed_request });
        loop {
            let mut tx = self.store.begin().await.map_err(ActionError::host)?;
            let is_new = function_jobs::enqueue(&mut tx, &job).await.map_err(ActionError::host)?;
            tx.commit().await.map_err(ActionError::host)?;
            failpoints::reach(Step::JobQueued);
            let Some(key) = key.filter(|_| !is_new) else { return Ok(id) };
            // The job may have expired in the meantime. Then the key can be used again.
            if let Found::Same(first) = self.find_keyed(call, Mode::Async, key).await? {
                return Ok(first.id);
            }
        }
    }

    /// Returns the state of an asynchronous action, or `None` if the environment has no such job.
    pub async fn find_job(&self, environment: &Environment, id: Uuid) -> anyhow::Result<Option<ActionJob>> {
        let mut conn = self.store.connect().await?;
        let Some(status) = function_jobs::find_action(&mut conn, environment.pk, id).await? else {
            return Ok(None);
        };
        Ok(Some(match status.sealed_result {
            Some(sealed) => ActionJob::Finished(ActionResult::open(environment, id, &sealed)?),
            None => ActionJob::Unfinished(status.state),
        }))
    }
}
