//! Actions that nobody waits for, and actions that run once however often they are asked for.
//!
//! Both are rows of one table. An asynchronous action is queued, and any host runs it. A request with an
//! Idempotency-Key that waits is run by the host that it came to, and goes to its end even if the caller goes away, so
//! that a repeat finds what it came to. What a host holds it holds under a lease: when the host is lost, another one
//! runs a queued job again, and a repeat of its request runs the other kind. So both run at least once, under an id
//! that stays the same.

mod attempt;
mod held;
mod keyed;
mod result;
mod saved;
mod worker;

use std::sync::Arc;

use uuid::Uuid;

pub use self::keyed::{IdempotencyKey, InvalidIdempotencyKey, KeyedResult};
pub use self::result::{ActionFailure, ActionResult};

pub(crate) use self::held::Jobs;
pub(crate) use self::worker::run;

use self::keyed::{Found, Mode};
use crate::functions::DeployedFunction;
use crate::invoker::error::{ActionError, FunctionError};
use crate::{ConnectionRoute, Engine};
use syncline_auth::Environment;
use syncline_crypto::Place;
use syncline_store::function_jobs::{self, JobState, NewJob, NewKey};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::FunctionName;

/// What is asked of an action.
#[derive(Debug)]
pub struct ActionCall {
    pub environment: Arc<Environment>,
    pub connection: Arc<ConnectionRoute>,
    pub action: FunctionName,
    /// JSON text.
    pub input: Option<String>,
}

/// What became of an asynchronous action.
#[derive(Debug)]
pub enum ActionJob {
    /// `queued` or `running`.
    Unfinished(JobState),
    Finished(ActionResult),
}

impl Engine {
    /// Queues an action, and gives the job's id. A repeat of the same request under the same key gives the same one.
    pub async fn enqueue_action(
        &self,
        call: &ActionCall,
        max_retries: u8,
        key: Option<&IdempotencyKey>,
    ) -> Result<Uuid, ActionError> {
        let function = self.find_action(&call.connection, &call.action, call.input.as_deref()).await?;
        let id = Uuid::now_v7();
        let sealed_request = key.map(|_| keyed::seal_request(call, Mode::Async, id)).transpose()?;
        let sealed_input = call.input.as_ref().map(|input| {
            let place = Place { column: "function_jobs.sealed_input", row: &id.to_string() };
            call.environment.data_key.seal(place, input.as_bytes())
        });
        let mut job = new_job(call, &function, id);
        job.max_retries = i32::from(max_retries);
        job.sealed_input = sealed_input.as_deref();
        job.key = key
            .zip(sealed_request.as_deref())
            .map(|(key, sealed_request)| NewKey { key: key.as_str(), sealed_request });
        loop {
            let mut tx = self.store.begin().await.map_err(host_failure)?;
            let is_new = function_jobs::enqueue(&mut tx, &job).await.map_err(host_failure)?;
            tx.commit().await.map_err(host_failure)?;
            failpoints::reach(Step::JobQueued);
            let Some(key) = key.filter(|_| !is_new) else { return Ok(id) };
            // It may have been removed since, as too old: then the key is free.
            if let Found::Same(first) = self.find_keyed(call, Mode::Async, key).await? {
                return Ok(first.id);
            }
        }
    }

    /// What became of an asynchronous action. `None`: the environment has no such job.
    pub async fn find_action_job(
        &self,
        environment: &Environment,
        id: Uuid,
    ) -> anyhow::Result<Option<ActionJob>> {
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

fn new_job<'a>(call: &'a ActionCall, function: &DeployedFunction, id: Uuid) -> NewJob<'a> {
    NewJob {
        id,
        environment: call.environment.pk,
        integration: call.connection.integration,
        connection: call.connection.pk,
        integration_key: &call.connection.integration_key,
        connection_id: &call.connection.connection_id,
        kind: "action",
        function: &call.action,
        is_ordered: function.is_ordered(),
        max_retries: 0,
        sealed_input: None,
        key: None,
        webhook: None,
    }
}

fn host_failure(error: impl Into<anyhow::Error>) -> ActionError {
    ActionError::Function(FunctionError::Host(error.into()))
}
