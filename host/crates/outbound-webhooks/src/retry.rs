//! Decides whether and when a webhook is sent again. Pure: the caller provides time and chance.

use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;

use syncline_config::milliseconds;
use syncline_egress::EgressError;
use syncline_store::outbound_webhooks::sending::Verdict;

/// The longest delay that a receiver can request.
const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The delays between attempts. There is one more attempt than delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delays(Vec<Duration>);

/// Why a text is not a list of delays. The message shows valid delays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` must be a duration such as `500ms`, `30s`, `5m` or `2h`")]
pub struct InvalidDelays {
    given: String,
}

impl Delays {
    /// The delays that Standard Webhooks recommends: ten attempts over three days and four hours.
    pub const DEFAULT: &'static str = "5s,5m,30m,2h,5h,10h,14h,20h,24h";
}

impl FromStr for Delays {
    type Err = InvalidDelays;

    fn from_str(text: &str) -> Result<Self, InvalidDelays> {
        let parse = |entry: &str| {
            let invalid = || InvalidDelays { given: entry.to_owned() };
            milliseconds(entry).map(Duration::from_millis).ok_or_else(invalid)
        };
        text.split(',').map(str::trim).map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// The outcome of one attempt.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The receiver responded, and may have requested a delay.
    Answered {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    NoAnswer(EgressError),
}

impl Outcome {
    pub fn status(&self) -> Option<i32> {
        match self {
            Self::Answered { status, .. } => Some(status.as_u16().into()),
            Self::NoAnswer(_) => None,
        }
    }

    /// Returns why the attempt failed, as text for the log.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Answered { status, .. } if status.is_success() => None,
            Self::Answered { status, .. } if status.is_redirection() => Some(format!(
                "the receiver answered {status}; redirects are not followed, so configure the redirect's target as \
                 webhook URL"
            )),
            Self::Answered { status, .. } => Some(format!("the receiver answered {status}")),
            Self::NoAnswer(error) => Some(error.to_string()),
        }
    }

    /// Whether the receiver accepts no more deliveries at this URL.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Answered { status: StatusCode::GONE, .. })
    }

    /// Whether the receiver or its network has a problem, rather than this message.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Answered { status, .. } => status.is_server_error(),
            Self::NoAnswer(error) => error.is_retryable(),
        }
    }

    /// The delay that the receiver requested.
    pub fn requested_delay(&self) -> Option<Duration> {
        match self {
            Self::Answered {
                status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
                retry_after: Some(wait),
            } => Some((*wait).min(MAX_REQUESTED_DELAY)),
            _ => None,
        }
    }
}

/// Decides what follows attempt `number`, which counts from the start or the latest redelivery. Every response except a
/// success is retried, including 4xx: a receiver that is being deployed, or whose signing key was rotated too early,
/// may answer 404 or 401 and recover later. `chance` is from 0 to 1.
pub(super) fn decide(
    outcome: &Outcome,
    number: i32,
    left: Duration,
    delays: &Delays,
    chance: f64,
) -> Verdict {
    match outcome {
        Outcome::Answered { status, .. } if status.is_success() => return Verdict::Delivered,
        Outcome::Answered { status: StatusCode::GONE, .. } => return Verdict::Failed,
        // Rejected by this host's own rules, so only a change of settings would help.
        Outcome::NoAnswer(error) if !error.is_retryable() => return Verdict::Failed,
        _ => {}
    }
    let index = usize::try_from(number - 1).unwrap_or_default();
    let Some(delay) = delays.0.get(index) else { return Verdict::Failed };
    // Jitter of 20 %, so that deliveries that failed together are not retried together.
    let wait = delay.mul_f64(0.8 + 0.4 * chance).max(outcome.requested_delay().unwrap_or_default());
    if wait > left { Verdict::Failed } else { Verdict::Retry(wait) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn answered(status: u16, retry_after: Option<u64>) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        Outcome::Answered { status, retry_after: retry_after.map(Duration::from_secs) }
    }

    fn delays() -> Delays {
        Delays::DEFAULT.parse().unwrap()
    }

    #[test]
    fn ten_attempts_are_spread_over_about_three_days() {
        let mut total = Duration::ZERO;
        for number in 1..=9 {
            let verdict = decide(&answered(500, None), number, 4 * DAY, &delays(), 0.5);
            let Verdict::Retry(wait) = verdict else { panic!("attempt {number}: {verdict:?}") };
            total += wait;
        }
        assert!(total > 3 * DAY && total < 4 * DAY, "{total:?}");
        assert_eq!(decide(&answered(500, None), 10, 4 * DAY, &delays(), 0.5), Verdict::Failed);
    }

    #[test]
    fn delays_vary_by_at_most_a_fifth() {
        let wait = |chance| decide(&answered(500, None), 2, 4 * DAY, &delays(), chance);
        assert_eq!(wait(0.0), Verdict::Retry(Duration::from_secs(240)));
        assert_eq!(wait(1.0), Verdict::Retry(Duration::from_secs(360)));
    }

    #[test]
    fn the_response_decides_whether_a_delivery_is_retried() {
        let verdict = |outcome: &Outcome| decide(outcome, 1, 4 * DAY, &delays(), 0.5);
        let retry = |seconds| Verdict::Retry(Duration::from_secs(seconds));
        for status in [200, 201, 204, 299] {
            assert_eq!(verdict(&answered(status, None)), Verdict::Delivered, "{status}");
        }
        for status in [301, 400, 401, 404, 408, 429, 500, 503] {
            assert_eq!(verdict(&answered(status, None)), retry(5), "{status}");
        }
        assert_eq!(verdict(&answered(410, None)), Verdict::Failed);
        assert_eq!(verdict(&answered(429, Some(90))), retry(90));
        assert_eq!(verdict(&answered(503, Some(90))), retry(90));
        assert_eq!(verdict(&answered(503, Some(1))), retry(5), "not earlier than the configured delay");
        assert_eq!(verdict(&answered(500, Some(90))), retry(5));
        assert_eq!(verdict(&answered(429, Some(900_000))), retry(24 * 60 * 60), "at most one day");
        let refused = EgressError::AddressNotAllowed { host: "intranet".to_owned() };
        assert_eq!(verdict(&Outcome::NoAnswer(refused)), Verdict::Failed);
        let cut = EgressError::Network { host: "example.com".to_owned(), cause: "reset".to_owned() };
        assert_eq!(verdict(&Outcome::NoAnswer(cut)), retry(5));
    }

    #[test]
    fn an_outcome_states_the_error_and_whether_the_receiver_has_a_problem() {
        let summary =
            |outcome: &Outcome| (outcome.status(), outcome.error(), outcome.is_gone(), outcome.is_trouble());
        let error = |text: &str| Some(format!("the receiver answered {text}"));
        assert_eq!(summary(&answered(204, None)), (Some(204), None, false, false));
        let redirect =
            error("302 Found; redirects are not followed, so configure the redirect's target as webhook URL");
        assert_eq!(summary(&answered(302, None)), (Some(302), redirect, false, false));
        assert_eq!(summary(&answered(410, None)), (Some(410), error("410 Gone"), true, false));
        assert_eq!(summary(&answered(503, None)), (Some(503), error("503 Service Unavailable"), false, true));
        let cut = EgressError::Network { host: "example.com".to_owned(), cause: "reset".to_owned() };
        let cause = Some("the request to `example.com` failed: reset".to_owned());
        assert_eq!(summary(&Outcome::NoAnswer(cut)), (None, cause, false, true));
        let refused = EgressError::AddressNotAllowed { host: "intranet".to_owned() };
        assert!(!summary(&Outcome::NoAnswer(refused)).3, "the host itself rejects the request");
    }

    #[test]
    fn a_retry_after_the_end_of_the_delivery_is_given_up() {
        let verdict = |left| decide(&answered(500, None), 3, Duration::from_secs(left), &delays(), 0.5);
        assert_eq!(verdict(1_799), Verdict::Failed);
        assert_eq!(verdict(1_800), Verdict::Retry(Duration::from_secs(1_800)));
    }

    #[test]
    fn an_invalid_list_of_delays_is_rejected() {
        assert_eq!(
            "200ms, 1m".parse(),
            Ok(Delays(vec![Duration::from_millis(200), Duration::from_secs(60)]))
        );
        for text in ["", "5", "5s,", "soon", "0s", "-1s"] {
            assert!(text.parse::<Delays>().is_err(), "{text}");
        }
    }
}
