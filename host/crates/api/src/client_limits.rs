//! The limits that protect a host from its clients.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};

use super::error::ApiError;
use syncline_auth::Client;
use syncline_engine::BodyMemory;
use syncline_telemetry::metrics::metrics;
use syncline_types::ids::{EnvironmentPk, KeyPk};
use syncline_web::address_limit::AddressLimit;

/// Limits that an operator can change.
#[derive(Debug, Clone)]
pub struct ClientLimitSettings {
    /// Memory for bodies that are read and not processed yet, in bytes.
    pub body_memory_bytes: usize,
    pub max_websockets_per_address: usize,
    /// `None` for no limit.
    pub requests_per_minute_per_key: Option<NonZeroU32>,
    /// `None` for no limit.
    pub requests_per_minute_per_environment: Option<NonZeroU32>,
}

/// What the clients of this host use at the moment.
pub struct ClientLimits {
    pub(crate) body_memory: Arc<BodyMemory>,
    pub(crate) websockets: Arc<AddressLimit>,
    key_requests: Option<RequestLimit<KeyPk>>,
    environment_requests: Option<RequestLimit<EnvironmentPk>>,
}

impl ClientLimits {
    pub fn new(settings: &ClientLimitSettings) -> Self {
        Self {
            body_memory: BodyMemory::new(settings.body_memory_bytes),
            websockets: AddressLimit::new(settings.max_websockets_per_address),
            key_requests: settings.requests_per_minute_per_key.map(RequestLimit::new),
            environment_requests: settings.requests_per_minute_per_environment.map(RequestLimit::new),
        }
    }

    /// Counts a request of a client. Fails if the client has sent too many.
    pub(crate) fn count_request(&self, client: &Client) -> Result<(), ApiError> {
        // First the key, so that requests above its limit do not use up the limit of the environment.
        if let Some(limit) = &self.key_requests {
            limit.check("key", &client.key())?;
        }
        if let Some(limit) = &self.environment_requests {
            limit.check("environment", &client.environment.pk)?;
        }
        Ok(())
    }
}

/// A limit of requests per minute. A client that was idle for a minute can send all of them at once.
struct RequestLimit<K: Clone + Eq + Hash> {
    per_minute: NonZeroU32,
    limiter: DefaultKeyedRateLimiter<K>,
    clock: DefaultClock,
}

impl<K: Clone + Eq + Hash> RequestLimit<K> {
    fn new(per_minute: NonZeroU32) -> Self {
        let limiter = DefaultKeyedRateLimiter::keyed(Quota::per_minute(per_minute));
        Self { per_minute, limiter, clock: DefaultClock::default() }
    }

    fn check(&self, name: &'static str, key: &K) -> Result<(), ApiError> {
        self.limiter.check_key(key).map_err(|refused| {
            metrics().count_rate_limited_request(name);
            let retry_after = refused.wait_time_from(self.clock.now());
            ApiError::TooManyRequests { name, per_minute: self.per_minute.get(), retry_after }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_can_send_its_requests_per_minute() {
        let limit = RequestLimit::new(NonZeroU32::new(3).unwrap());
        for key in [KeyPk(1), KeyPk(2)] {
            assert!((0..3).all(|_| limit.check("key", &key).is_ok()));
            let Err(ApiError::TooManyRequests { retry_after, .. }) = limit.check("key", &key) else {
                panic!("accepted")
            };
            let seconds = retry_after.as_secs_f64();
            assert!((15.0..=20.0).contains(&seconds), "a third of a minute: {seconds}");
        }
    }
}
