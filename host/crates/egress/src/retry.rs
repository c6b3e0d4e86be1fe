//! Decides whether and when a request is retried. Pure: time and randomness are parameters.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, Method, StatusCode, header};

use super::settings::EgressSettings;
use syncline_providers::{HeaderKey, RetryHints};

/// Counts the retries of one request.
pub(super) struct Retries {
    left: u32,
    next_backoff: Duration,
    max_wait: Duration,
}

impl Retries {
    /// The number that the request asks for. The default is the host's setting for methods that are safe to repeat,
    /// and 0 for others.
    pub fn new(settings: &EgressSettings, method: &Method, asked: Option<u8>) -> Self {
        let wanted = asked.unwrap_or(if method.is_idempotent() { settings.default_retries } else { 0 });
        Self {
            left: u32::from(wanted).min(settings.max_attempts.saturating_sub(1)),
            next_backoff: settings.first_backoff,
            max_wait: settings.max_wait,
        }
    }

    /// Uses up a retry without a wait of its own.
    pub fn spend(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        Some(Duration::ZERO)
    }

    /// Returns the time to wait before the next attempt, or `None` if there is none. `requested` is the delay that the
    /// provider asked for. If it exceeds the maximum wait, the request is not retried, because an earlier attempt
    /// would fail.
    pub fn next_wait(&mut self, requested: Option<Duration>, chance: f64) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let backoff = self.next_backoff.min(self.max_wait);
        self.next_backoff = self.next_backoff.saturating_mul(2);
        match requested {
            Some(requested) => (requested <= self.max_wait).then_some(requested),
            // Half to all of the backoff, so that clients that failed together do not retry together.
            None => Some(backoff.mul_f64(0.5 + chance / 2.0)),
        }
    }
}

/// Whether an answer means that a later attempt may succeed.
pub(super) fn is_retryable(status: StatusCode, headers: &HeaderMap, hints: &RetryHints) -> bool {
    status.is_server_error() || is_rate_limit(status, headers, hints)
}

/// Whether an answer reports a rate limit.
pub(super) fn is_rate_limit(status: StatusCode, headers: &HeaderMap, hints: &RetryHints) -> bool {
    let spent = || {
        let remaining = hints.remaining.as_ref().and_then(|key| headers.get(key.name()));
        status == StatusCode::FORBIDDEN && remaining.is_some_and(|value| value == "0")
    };
    status == StatusCode::TOO_MANY_REQUESTS || spent()
}

/// Returns the longest delay that the provider's headers ask for.
pub(super) fn requested_delay(headers: &HeaderMap, hints: &RetryHints, now: SystemTime) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let after = hints.after.iter().map(HeaderKey::name).chain([&header::RETRY_AFTER]);
    let after = after.filter_map(|name| wait_after(text(name)?, now));
    let at = hints.at.iter().filter_map(|key| wait_until(text(key.name())?, now));
    after.chain(at).max()
}

/// Parses a number of seconds, with or without a fraction, or a date.
fn wait_after(value: &str, now: SystemTime) -> Option<Duration> {
    match value.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => wait_until_date(value, now),
    }
}

/// Parses a time in seconds or milliseconds since 1970, or a date.
fn wait_until(value: &str, now: SystemTime) -> Option<Duration> {
    // As seconds, this number is in the year 5138. As milliseconds, it is in 1973. No provider means either.
    const FIRST_MILLIS: u64 = 100_000_000_000;
    match value.parse::<u64>() {
        Ok(number) => {
            let since_epoch = if number < FIRST_MILLIS {
                Duration::from_secs(number)
            } else {
                Duration::from_millis(number)
            };
            Some(UNIX_EPOCH.checked_add(since_epoch)?.duration_since(now).unwrap_or_default())
        }
        Err(_) => wait_until_date(value, now),
    }
}

fn wait_until_date(value: &str, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_700_000_000; // Tue, 14 Nov 2023 22:13:20 GMT

    fn settings() -> EgressSettings {
        EgressSettings {
            first_backoff: Duration::from_secs(1),
            max_wait: Duration::from_secs(60),
            ..Default::default()
        }
    }

    fn requested(pairs: &[(&'static str, &str)]) -> Option<u64> {
        let hints: RetryHints =
            serde_json::from_value(serde_json::json!({"after": ["x-wait"], "at": ["x-reset"]})).unwrap();
        let headers =
            pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        requested_delay(&headers.collect(), &hints, now).map(|wait| wait.as_secs())
    }

    #[test]
    fn requested_delays_are_read_as_seconds_dates_and_reset_times() {
        assert_eq!(requested(&[]), None);
        assert_eq!(requested(&[("retry-after", "7")]), Some(7));
        assert_eq!(requested(&[("retry-after", "Tue, 14 Nov 2023 22:13:30 GMT")]), Some(10));
        assert_eq!(requested(&[("retry-after", "Tue, 14 Nov 2023 22:00:00 GMT")]), Some(0));
        assert_eq!(requested(&[("x-reset", "1700000020")]), Some(20));
        assert_eq!(requested(&[("x-reset", "1700000020000")]), Some(20));
        assert_eq!(requested(&[("x-reset", "5")]), Some(0));
        assert_eq!(requested(&[("retry-after", "7"), ("x-wait", "9.5"), ("x-reset", "1700000001")]), Some(9));
        for nonsense in ["soon", "-1", "nan", "inf", ""] {
            assert_eq!(requested(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn rate_limits_and_server_errors_are_retryable() {
        let hints: RetryHints = serde_json::from_value(serde_json::json!({"remaining": "x-left"})).unwrap();
        let later = |status, left: &'static str| {
            let headers = HeaderMap::from_iter([(HeaderName::from_static("x-left"), left.parse().unwrap())]);
            is_retryable(StatusCode::from_u16(status).unwrap(), &headers, &hints)
        };
        for status in [429, 500, 503, 599] {
            assert!(later(status, "3"), "{status}");
        }
        for status in [200, 302, 400, 401, 403, 404, 408] {
            assert!(!later(status, "3"), "{status}");
        }
        assert!(later(403, "0"));
        assert!(!later(404, "0"));
    }

    #[test]
    fn unsafe_methods_are_retried_only_on_request() {
        let left = |method: &Method, asked| Retries::new(&settings(), method, asked).left;
        assert_eq!(left(&Method::GET, None), 2);
        assert_eq!(left(&Method::DELETE, None), 2);
        assert_eq!(left(&Method::POST, None), 0);
        assert_eq!(left(&Method::PATCH, None), 0);
        assert_eq!(left(&Method::POST, Some(1)), 1);
        assert_eq!(left(&Method::GET, Some(0)), 0);
        assert_eq!(left(&Method::GET, Some(255)), settings().max_attempts - 1);
    }

    #[test]
    fn a_delay_over_the_maximum_ends_the_retries() {
        let mut retries = Retries::new(&settings(), &Method::GET, Some(5));
        assert_eq!(retries.next_wait(Some(Duration::from_secs(60)), 0.5), Some(Duration::from_secs(60)));
        assert_eq!(retries.next_wait(Some(Duration::from_secs(61)), 0.5), None);
    }

    proptest! {
        #[test]
        fn waits_grow_and_stay_below_the_maximum(chance in 0.0..1.0f64) {
            let mut retries = Retries::new(&EgressSettings { max_attempts: 12, ..settings() }, &Method::GET, Some(11));
            let waits: Vec<Duration> = std::iter::from_fn(|| retries.next_wait(None, chance)).collect();
            prop_assert_eq!(waits.len(), 11);
            prop_assert!(waits.is_sorted());
            prop_assert!(waits[0] >= Duration::from_millis(500) && waits[0] <= Duration::from_secs(1));
            prop_assert!(waits[10] >= Duration::from_secs(30) && waits[10] <= Duration::from_secs(60));
        }
    }
}
