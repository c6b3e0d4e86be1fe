//! Whether and when a request is sent again. Pure: time and chance are given.

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
    /// As many as the request asks for; if it does not say, the default for methods that are safe to repeat.
    pub fn new(settings: &EgressSettings, method: &Method, asked: Option<u8>) -> Self {
        let wanted = asked.unwrap_or(if method.is_idempotent() { settings.default_retries } else { 0 });
        Self {
            left: u32::from(wanted).min(settings.max_attempts.saturating_sub(1)),
            next_backoff: settings.first_backoff,
            max_wait: settings.max_wait,
        }
    }

    /// Takes a retry that has no wait of its own.
    pub fn spend(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        Some(Duration::ZERO)
    }

    /// How long to wait before the next attempt; `None` if there is none. `told` is what the provider asks
    /// for. If it asks for more than our maximum, coming back earlier would be of no use, so we do not.
    pub fn next_wait(&mut self, told: Option<Duration>, chance: f64) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let backoff = self.next_backoff.min(self.max_wait);
        self.next_backoff = self.next_backoff.saturating_mul(2);
        match told {
            Some(told) => (told <= self.max_wait).then_some(told),
            // Between half and all of it, so that clients that failed together do not return together.
            None => Some(backoff.mul_f64(0.5 + chance / 2.0)),
        }
    }
}

/// Whether an answer means "later" rather than "no".
pub(super) fn is_retryable(status: StatusCode, headers: &HeaderMap, hints: &RetryHints) -> bool {
    status.is_server_error() || is_rate_limit(status, headers, hints)
}

/// Whether an answer means that there were too many requests.
pub(super) fn is_rate_limit(status: StatusCode, headers: &HeaderMap, hints: &RetryHints) -> bool {
    let spent = || {
        let remaining = hints.remaining.as_ref().and_then(|key| headers.get(key.name()));
        status == StatusCode::FORBIDDEN && remaining.is_some_and(|value| value == "0")
    };
    status == StatusCode::TOO_MANY_REQUESTS || spent()
}

/// How long the provider asks us to stay away: the longest of what its headers say.
pub(super) fn requested_delay(headers: &HeaderMap, hints: &RetryHints, now: SystemTime) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let after = hints.after.iter().map(HeaderKey::name).chain([&header::RETRY_AFTER]);
    let after = after.filter_map(|name| wait_after(text(name)?, now));
    let at = hints.at.iter().filter_map(|key| wait_until(text(key.name())?, now));
    after.chain(at).max()
}

/// Seconds, with or without a fraction, or a date.
fn wait_after(value: &str, now: SystemTime) -> Option<Duration> {
    match value.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => wait_until_date(value, now),
    }
}

/// Seconds or milliseconds since 1970, or a date.
fn wait_until(value: &str, now: SystemTime) -> Option<Duration> {
    // In seconds this is the year 5138, in milliseconds it is 1973: no provider means either.
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

    fn told(pairs: &[(&'static str, &str)]) -> Option<u64> {
        let hints: RetryHints =
            serde_json::from_value(serde_json::json!({"after": ["x-wait"], "at": ["x-reset"]})).unwrap();
        let headers =
            pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        requested_delay(&headers.collect(), &hints, now).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_provider_tells_in_seconds_by_date_or_by_the_time_of_its_reset() {
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[("retry-after", "7")]), Some(7));
        assert_eq!(told(&[("retry-after", "Tue, 14 Nov 2023 22:13:30 GMT")]), Some(10));
        assert_eq!(told(&[("retry-after", "Tue, 14 Nov 2023 22:00:00 GMT")]), Some(0));
        assert_eq!(told(&[("x-reset", "1700000020")]), Some(20));
        assert_eq!(told(&[("x-reset", "1700000020000")]), Some(20));
        assert_eq!(told(&[("x-reset", "5")]), Some(0));
        assert_eq!(told(&[("retry-after", "7"), ("x-wait", "9.5"), ("x-reset", "1700000001")]), Some(9));
        for nonsense in ["soon", "-1", "nan", "inf", ""] {
            assert_eq!(told(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn too_many_requests_server_errors_and_a_spent_limit_mean_later() {
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
    fn methods_that_are_not_safe_to_repeat_are_sent_once_unless_asked() {
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
    fn a_wait_longer_than_the_maximum_ends_the_retries() {
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
