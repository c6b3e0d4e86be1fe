//! The limits that protect a host from its clients.

use std::sync::Arc;

use syncline_engine::BodyMemory;
use syncline_web::address_limit::AddressLimit;

/// Limits that an operator can change.
#[derive(Debug, Clone)]
pub struct ClientLimitSettings {
    /// Memory for bodies that are read and not processed yet, in bytes.
    pub body_memory_bytes: usize,
    pub max_websockets_per_address: usize,
}

/// What the clients of this host use at the moment.
pub struct ClientLimits {
    pub(crate) body_memory: Arc<BodyMemory>,
    pub(crate) websockets: Arc<AddressLimit>,
}

impl ClientLimits {
    pub fn new(settings: &ClientLimitSettings) -> Self {
        Self {
            body_memory: BodyMemory::new(settings.body_memory_bytes),
            websockets: AddressLimit::new(settings.max_websockets_per_address),
        }
    }
}
