//! Counts the memory that request bodies use, from their first byte until the handler has answered.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use syncline_engine::{BodyMemory, BodyOwner, RequestMemory};

/// The environment of an authenticated client.
#[derive(Debug, Clone, Copy)]
pub struct Owner(pub BodyOwner);

/// The owner of a request's body, if the client has authenticated.
pub fn owner(request: &Extensions) -> Option<BodyOwner> {
    request.get::<Owner>().map(|owner| owner.0)
}

/// Adds [`RequestMemory`] to requests with a body, and releases the memory after the handler has answered.
pub async fn count_body(State(memory): State<Arc<BodyMemory>>, mut request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let memory = RequestMemory::new(memory);
    request.extensions_mut().insert(memory.clone());
    let response = next.run(request).await;
    drop(memory);
    response
}
