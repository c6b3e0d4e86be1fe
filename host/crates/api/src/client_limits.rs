//! The limits that protect a host from its clients.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Extensions;
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{DefaultKeyedRateLimiter, Quota};

use super::error::ApiError;
use super::rate_limit_headers::RateLimitState;
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

    pub(crate) fn limits_requests(&self) -> bool {
        self.key_requests.is_some() || self.environment_requests.is_some()
    }

    /// Counts a request of a client. Fails if the client has sent too many. Reports the limit that has fewer requests
    /// left for the headers of the response.
    pub(crate) fn count_request(&self, client: &Client, request: &Extensions) -> Result<(), ApiError> {
        let refuse = |refused: OverLimit| {
            RateLimitState { per_minute: refused.per_minute, remaining: 0 }.report(request);
            let OverLimit { name, per_minute, retry_after } = refused;
            ApiError::TooManyRequests { name, per_minute, retry_after }
        };
        // First the key, so that requests above its limit do not use up the limit of the environment.
        let of_key = self.key_requests.as_ref().map(|limit| limit.check("key", &client.key()));
        let of_key = of_key.transpose().map_err(refuse)?;
        let of_environment = self.environment_requests.as_ref();
        let of_environment = of_environment.map(|limit| limit.check("environment", &client.environment.pk));
        let of_environment = of_environment.transpose().map_err(refuse)?;
        let states = of_key.into_iter().chain(of_environment);
        if let Some(state) = states.min_by_key(|state| state.remaining) {
            state.report(request);
        }
        Ok(())
    }
}

/// A limit of requests per minute. A client that was idle for a minute can send all of them at once.
struct RequestLimit<K: Clone + Eq + Hash> {
    per_minute: NonZeroU32,
    limiter: DefaultKeyedRateLimiter<K, StateInformationMiddleware>,
    clock: DefaultClock,
}

/// A request above a limit.
#[derive(Debug)]
struct OverLimit {
    name: &'static str,
    per_minute: u32,
    retry_after: Duration,
}

impl<K: Clone + Eq + Hash> RequestLimit<K> {
    fn new(per_minute: NonZeroU32) -> Self {
        let limiter = DefaultKeyedRateLimiter::keyed(Quota::per_minute(per_minute)).with_middleware();
        Self { per_minute, limiter, clock: DefaultClock::default() }
    }

    fn check(&self, name: &'static str, key: &K) -> Result<RateLimitState, OverLimit> {
        let per_minute = self.per_minute.get();
        match self.limiter.check_key(key) {
            Ok(state) => Ok(RateLimitState { per_minute, remaining: state.remaining_burst_capacity() }),
            Err(refused) => {
                metrics().count_rate_limited_request(name);
                let retry_after = refused.wait_time_from(self.clock.now());
                Err(OverLimit { name, per_minute, retry_after })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_can_send_its_requests_per_minute() {
        let limit = RequestLimit::new(NonZeroU32::new(3).unwrap());
        for key in [KeyPk(1), KeyPk(2)] {
            let left = [0; 3].map(|_| limit.check("key", &key).expect("it is accepted").remaining);
            assert_eq!(left, [2, 1, 0]);
            let refused = limit.check("key", &key).expect_err("it is the fourth request");
            let seconds = refused.retry_after.as_secs_f64();
            assert!((15.0..=20.0).contains(&seconds), "a third of a minute: {seconds}");
        }
    }
}
