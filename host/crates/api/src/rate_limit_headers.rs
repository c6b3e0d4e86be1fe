//! The headers that state how many requests a client has left: `X-RateLimit-Limit`, `X-RateLimit-Remaining` and
//! `X-RateLimit-Reset`. Responses have them only if the operator limits requests.

use std::sync::{Arc, OnceLock};

use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderName};
use axum::middleware::Next;
use axum::response::Response;

use super::{App, proxy};

pub(super) const HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// The state of a rate limit after a request was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimitState {
    pub(crate) per_minute: u32,
    pub(crate) remaining: u32,
}

/// Receives the state when the client of a request is known.
#[derive(Clone, Default)]
struct Slot(Arc<OnceLock<RateLimitState>>);

impl RateLimitState {
    /// Keeps the state for the headers of the response.
    pub(crate) fn report(self, request: &Extensions) {
        if let Some(slot) = request.get::<Slot>() {
            // A request is counted once.
            let _reported_before = slot.0.set(self);
        }
    }

    /// The time until the client can send all requests of a minute again, in seconds.
    fn seconds_until_reset(self) -> u64 {
        let used = u64::from(self.per_minute.saturating_sub(self.remaining));
        (used * 60).div_ceil(u64::from(self.per_minute.max(1)))
    }

    fn values(self, now_seconds: u64) -> [u64; 3] {
        [self.per_minute.into(), self.remaining.into(), now_seconds + self.seconds_until_reset()]
    }
}

/// Adds the headers to responses of the host. Responses of a provider keep those of the provider.
pub(super) async fn add_headers(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if !app.limits.limits_requests() {
        return next.run(request).await;
    }
    let slot = Slot::default();
    request.extensions_mut().insert(slot.clone());
    let mut response = next.run(request).await;
    if let Some(state) = slot.0.get()
        && !response.headers().contains_key(proxy::FROM_PROVIDER)
    {
        let values = state.values(app.clock.now().timestamp().unsigned_abs());
        response.headers_mut().extend(HEADERS.into_iter().zip(values.map(Into::into)));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_is_the_time_at_which_all_requests_are_available_again() {
        let state = |remaining| RateLimitState { per_minute: 40, remaining };
        assert_eq!(state(40).values(1_000), [40, 40, 1_000]);
        assert_eq!(state(39).values(1_000), [40, 39, 1_002], "1.5 s, rounded up");
        assert_eq!(state(0).values(1_000), [40, 0, 1_060]);
    }
}
