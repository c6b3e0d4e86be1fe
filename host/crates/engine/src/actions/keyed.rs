//! Runs an action once per Idempotency-Key. A repeated request receives the result of the first.

use std::sync::Arc;

use uuid::Uuid;

use crate::actions::Actions;
use crate::actions::idempotency_key::IdempotencyKey;
use crate::actions::request::{ActionCall, Found, Mode, new_job, seal_request};
use crate::invoker::control::RunControl;
use crate::invoker::error::ActionError;
use crate::jobs::attempt::{Attempt, Ended};
use crate::jobs::result::ActionResult;
use syncline_store::function_jobs::{self, JobLease, NewKey};
use syncline_types::functions::FunctionKind;

/// The result of an action that was called with an Idempotency-Key.
#[derive(Debug)]
pub struct KeyedResult {
    pub result: ActionResult,
    /// Whether this is the result of an earlier request.
    pub is_replay: bool,
}

impl Actions {
    /// Runs an action for a waiting client, unless the same request was already made with this key. The action
    /// continues if the client disconnects.
    pub async fn run_keyed(
        &self,
        call: ActionCall,
        key: &IdempotencyKey,
    ) -> Result<KeyedResult, ActionError> {
        let function = self.find(&call.connection, &call.action, call.input.as_deref()).await?;
        let id = Uuid::now_v7();
        let sealed_request = seal_request(&call, Mode::Waiting, id)?;
        let (lease, kept_for) = (self.jobs.settings.lease, self.jobs.settings.results_kept_for);
        let (job, hold, number) = loop {
            let mut new = new_job(&call, &function, id);
            new.key = Some(NewKey { key: key.as_str(), sealed_request: &sealed_request });
            let started = async {
                let mut conn = self.store.connect().await?;
                function_jobs::begin(&mut conn, &new, self.jobs.host_id, lease, kept_for).await
            };
            if let Some(hold) = started.await.map_err(ActionError::host)? {
                break (id, hold, 1);
            }
            let Found::Same(first) = self.find_keyed(&call, Mode::Waiting, key).await? else { continue };
            if let Some(sealed) = &first.sealed_result {
                let result =
                    ActionResult::open(&call.environment, first.id, sealed).map_err(ActionError::host)?;
                return Ok(KeyedResult { result, is_replay: true });
            }
            if !first.is_abandoned {
                return Err(ActionError::KeyInUse(key.clone()));
            }
            let taken_over = async {
                let mut conn = self.store.connect().await?;
                let abandoned = JobLease { pk: first.pk, fence: first.fence };
                function_jobs::take_over(&mut conn, abandoned, self.jobs.host_id, lease).await
            };
            if let Some(hold) = taken_over.await.map_err(ActionError::host)? {
                break (first.id, hold, 2);
            }
        };
        let attempt = Attempt {
            hold,
            job,
            kind: FunctionKind::Action,
            webhook: None,
            due_at: None,
            lost_since: None,
            is_async: false,
            number,
            failures: 0,
            max_retries: 0,
            environment: call.environment,
            connection: call.connection,
            function,
            input: call.input,
        };
        let control = RunControl::default();
        let lease_guard = self.jobs.leased.hold(hold, None, control.clone());
        let jobs = Arc::clone(&self.jobs);
        let task = self.jobs.leased.waited_for.spawn(async move {
            let ended = attempt.run(&jobs, &control).await;
            drop(lease_guard);
            ended
        });
        match task.await.map_err(ActionError::host)? {
            Ended::Done(result) => {
                let result = ActionResult::new(&result, self.invoker.clock.now());
                Ok(KeyedResult { result, is_replay: false })
            }
            Ended::HandedBack | Ended::Lost => {
                Err(ActionError::host(anyhow::anyhow!("the host shut down before the action ended")))
            }
        }
    }
}
