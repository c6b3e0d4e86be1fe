//! Requests for actions, and how a repeated request is recognized.

use std::sync::Arc;

use uuid::Uuid;

use crate::actions::Actions;
use crate::actions::idempotency_key::IdempotencyKey;
use crate::connections::route::ConnectionRoute;
use crate::functions::DeployedFunction;
use crate::invoker::action::malformed_input;
use crate::invoker::error::ActionError;
use syncline_auth::Environment;
use syncline_crypto::AssociatedData;
use syncline_model::canonical_hash;
use syncline_store::function_jobs::{self, KeyedJob, NewJob};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::FunctionName;

/// A request to run an action.
#[derive(Debug)]
pub struct ActionCall {
    pub environment: Arc<Environment>,
    pub connection: Arc<ConnectionRoute>,
    pub action: FunctionName,
    /// JSON text.
    pub input: Option<String>,
}

/// Whether the caller waits for the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Waiting,
    Async,
}

/// The result of a lookup of an Idempotency-Key.
pub(super) enum Found {
    Nothing,
    Same(KeyedJob),
}

impl Actions {
    /// Finds the job that was created with this key. Fails if the key was used for another request.
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
        let Some(job) = found.await.map_err(ActionError::host)? else { return Ok(Found::Nothing) };
        let associated_data =
            AssociatedData { column: "function_jobs.sealed_request", row: &job.id.to_string() };
        let sealed = job.sealed_request.as_deref().unwrap_or_default();
        let first = call.environment.data_key.open(associated_data, sealed).map_err(ActionError::host)?;
        if first.as_slice() != request(call, mode)? {
            return Err(ActionError::KeyReused(key.clone()));
        }
        Ok(Found::Same(job))
    }
}

/// Encrypts the identity of a request for the row of its job, to recognize a repeated request.
pub(super) fn seal_request(call: &ActionCall, mode: Mode, job: Uuid) -> Result<Vec<u8>, ActionError> {
    let associated_data = AssociatedData { column: "function_jobs.sealed_request", row: &job.to_string() };
    Ok(call.environment.data_key.seal(associated_data, &request(call, mode)?))
}

/// The identity of a request. Inputs that differ only in the order of keys or in white space are equal.
fn request(call: &ActionCall, mode: Mode) -> Result<Vec<u8>, ActionError> {
    let input = call.input.as_deref().unwrap_or("null");
    let hash = canonical_hash(input).map_err(|problem| malformed_input(&problem))?;
    Ok([&[u8::from(mode == Mode::Async)], hash.0.as_slice()].concat())
}

pub(super) fn new_job<'a>(call: &'a ActionCall, function: &DeployedFunction, id: Uuid) -> NewJob<'a> {
    NewJob {
        id,
        environment: call.environment.pk,
        integration: call.connection.integration,
        connection: call.connection.pk,
        integration_key: &call.connection.integration_key,
        connection_id: &call.connection.connection_id,
        kind: FunctionKind::Action,
        function: &call.action,
        is_ordered: function.is_ordered(),
        max_retries: 0,
        sealed_input: None,
        key: None,
        webhook: None,
    }
}
