//! Counts the memory that request bodies use, from their first byte until the handler has answered.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use syncline_engine::{BodyMemory, BodyOwner, HeldBody};

/// The memory of one request. Extractors consume the request, so the middleware keeps this value until the handler has
/// answered.
#[derive(Clone)]
pub struct RequestMemory {
    memory: Arc<BodyMemory>,
    held: Arc<Mutex<Option<HeldBody>>>,
}

/// The environment of an authenticated client.
#[derive(Debug, Clone, Copy)]
pub struct Owner(pub BodyOwner);

impl RequestMemory {
    /// The length of the longest body that fits into the memory, in bytes.
    pub fn longest_body(&self) -> usize {
        self.memory.longest_body()
    }

    /// Begins to count a body. A request has one body, so this is called once.
    pub fn begin(&self, request: &Extensions) {
        let owner = request.get::<Owner>().map(|owner| owner.0);
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.memory.hold(owner.as_slice()));
    }

    /// Takes memory for `bytes` more bytes of the body.
    pub fn grow(&self, bytes: usize) -> Result<(), ApiError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = held.as_mut().is_none_or(|held| held.grow(bytes));
        if fits { Ok(()) } else { Err(ApiError::TooManyBodies) }
    }
}

/// Adds [`RequestMemory`] to requests with a body, and releases the memory after the handler has answered.
pub async fn count_body(State(memory): State<Arc<BodyMemory>>, mut request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let memory = RequestMemory { memory, held: Arc::default() };
    request.extensions_mut().insert(memory.clone());
    let response = next.run(request).await;
    drop(memory);
    response
}
