//! Where a request comes from, for the audit log.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::HeaderValue;
use axum::http::request::Parts;
use tower_http::request_id::RequestId;

use crate::client_address::ClientAddress;
use syncline_types::actor::{Actor, Identity};

/// Longest request id in the audit log, in characters. A client can choose the id.
const MAX_REQUEST_ID_CHARS: usize = 200;

/// Where a request comes from, for the audit log.
#[derive(Debug, Clone)]
pub struct RequestSource {
    address: Option<IpAddr>,
    request_id: Option<HeaderValue>,
}

impl RequestSource {
    pub fn of(parts: &Parts) -> Self {
        Self {
            address: parts.extensions.get::<ClientAddress>().map(|client| client.0),
            request_id: parts.extensions.get::<RequestId>().map(|id| id.header_value().clone()),
        }
    }

    /// The author of changes that this request makes.
    pub fn actor(&self, identity: Identity) -> Actor {
        Actor { identity, address: self.address(), request_id: self.request_id() }
    }

    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub fn request_id(&self) -> Option<String> {
        let id = self.request_id.as_ref()?.to_str().ok()?;
        Some(id.chars().take(MAX_REQUEST_ID_CHARS).collect())
    }
}

impl<S: Sync> FromRequestParts<S> for RequestSource {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}
