//! Idempotency-Keys: a request that is repeated under one is run once, and answered as it was the first time.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

use crate::Engine;
use crate::actions::malformed_input;
use crate::invoker::error::ActionError;
use crate::jobs::attempt::{Attempt, Ended};
use crate::jobs::result::ActionResult;
use crate::jobs::{ActionCall, host_failure, new_job};
use crate::syncs::run::RunControl;
use syncline_crypto::Place;
use syncline_model::canonical_hash;
use syncline_store::function_jobs::{self, Hold, KeyedJob, NewKey};
use syncline_types::ids::MAX_NAME_BYTES;

/// What a client calls one request by, however often it sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {MAX_NAME_BYTES} printable ASCII characters")]
pub struct InvalidIdempotencyKey;

impl FromStr for IdempotencyKey {
    type Err = InvalidIdempotencyKey;

    fn from_str(text: &str) -> Result<Self, InvalidIdempotencyKey> {
        let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !is_printable {
            return Err(InvalidIdempotencyKey);
        }
        Ok(Self(text.to_owned()))
    }
}

impl IdempotencyKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the caller waits for the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Waiting,
    Async,
}

/// What an action came to under a key.
#[derive(Debug)]
pub struct KeyedResult {
    pub result: ActionResult,
    /// It did not run for this request, but for an earlier one.
    pub is_replay: bool,
}

/// What is known of a key.
pub(super) enum Found {
    Nothing,
    Same(KeyedJob),
}

impl Engine {
    /// Runs an action for a caller that waits, unless the same request was made under this key before. It goes to its
    /// end even if the caller goes away.
    pub async fn run_keyed_action(
        self: &Arc<Self>,
        call: ActionCall,
        key: &IdempotencyKey,
    ) -> Result<KeyedResult, ActionError> {
        let function = self.find_action(&call.connection, &call.action, call.input.as_deref()).await?;
        let id = Uuid::now_v7();
        let sealed_request = seal_request(&call, Mode::Waiting, id)?;
        let (lease, kept_for) = (self.settings.lease, self.settings.results_kept_for);
        let (job, hold, number) = loop {
            let mut new = new_job(&call, &function, id);
            new.key = Some(NewKey { key: key.as_str(), sealed_request: &sealed_request });
            let begun = async {
                let mut conn = self.store.connect().await?;
                function_jobs::begin(&mut conn, &new, self.host_id, lease, kept_for).await
            };
            if let Some(hold) = begun.await.map_err(host_failure)? {
                break (id, hold, 1);
            }
            let Found::Same(first) = self.find_keyed(&call, Mode::Waiting, key).await? else { continue };
            if let Some(sealed) = &first.sealed_result {
                let result = ActionResult::open(&call.environment, first.id, sealed).map_err(host_failure)?;
                return Ok(KeyedResult { result, is_replay: true });
            }
            if !first.is_abandoned {
                return Err(ActionError::KeyInUse(key.clone()));
            }
            let taken = async {
                let mut conn = self.store.connect().await?;
                let abandoned = Hold { pk: first.pk, fence: first.fence };
                function_jobs::take_over(&mut conn, abandoned, self.host_id, lease).await
            };
            if let Some(hold) = taken.await.map_err(host_failure)? {
                break (first.id, hold, 2);
            }
        };
        let attempt = Attempt {
            hold,
            job,
            kind: "action",
            webhook: None,
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
        let held = self.jobs.hold(hold, None, control.clone());
        let engine = Arc::clone(self);
        let task = self.jobs.waited_for.spawn(async move {
            let ended = attempt.run(&engine, &control).await;
            drop(held);
            ended
        });
        match task.await.map_err(host_failure)? {
            Ended::Done(result) => Ok(KeyedResult { result: ActionResult::from(&result), is_replay: false }),
            Ended::HandedBack | Ended::Lost => {
                Err(host_failure(anyhow::anyhow!("the host stopped before the action had ended")))
            }
        }
    }

    /// The job under this key, if it is of the same request.
    pub(super) async fn find_keyed(
        &self,
        call: &ActionCall,
        mode: Mode,
        key: &IdempotencyKey,
    ) -> Result<Found, ActionError> {
        let found = async {
            let mut conn = self.store.connect().await?;
            function_jobs::find_keyed(&mut conn, call.connection.pk, &call.action, key.as_str()).await
        };
        let Some(job) = found.await.map_err(host_failure)? else { return Ok(Found::Nothing) };
        let place = Place { column: "function_jobs.sealed_request", row: &job.id.to_string() };
        let sealed = job.sealed_request.as_deref().unwrap_or_default();
        let first = call.environment.data_key.open(place, sealed).map_err(host_failure)?;
        if first.as_slice() != request(call, mode)? {
            return Err(ActionError::KeyReused(key.clone()));
        }
        Ok(Found::Same(job))
    }
}

/// What tells a request from another one under the same key, sealed for the job's row.
pub(super) fn seal_request(call: &ActionCall, mode: Mode, job: Uuid) -> Result<Vec<u8>, ActionError> {
    let place = Place { column: "function_jobs.sealed_request", row: &job.to_string() };
    Ok(call.environment.data_key.seal(place, &request(call, mode)?))
}

/// Inputs that differ in the order of keys or in spaces are the same.
fn request(call: &ActionCall, mode: Mode) -> Result<Vec<u8>, ActionError> {
    let input = call.input.as_deref().unwrap_or("null");
    let hash = canonical_hash(input).map_err(|problem| malformed_input(&problem))?;
    Ok([&[u8::from(mode == Mode::Async)], hash.0.as_slice()].concat())
}
