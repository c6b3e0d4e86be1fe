//! The limits that protect a host from its clients.

use std::sync::Arc;

use syncline_web::address_limit::AddressLimit;

/// Limits that an operator can change.
#[derive(Debug, Clone)]
pub struct ClientLimitSettings {
    pub max_websockets_per_address: usize,
}

/// What the clients of this host use at the moment.
pub struct ClientLimits {
    pub(crate) websockets: Arc<AddressLimit>,
}

impl ClientLimits {
    pub fn new(settings: &ClientLimitSettings) -> Self {
        Self { websockets: AddressLimit::new(settings.max_websockets_per_address) }
    }
}
