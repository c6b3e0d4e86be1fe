//! Whether and when a webhook is sent again. Pure: time and chance are given.

use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;

use syncline_config::milliseconds;
use syncline_egress::EgressError;
use syncline_store::outbound_webhooks::sending::Verdict;

/// The longest that a receiver can ask us to stay away.
const MAX_TOLD_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The waits between attempts, which is one more than there are waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delays(Vec<Duration>);

/// Why a text is no list of waits. Says what would be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` must be a duration such as `500ms`, `30s`, `5m` or `2h`")]
pub struct InvalidDelays {
    given: String,
}

impl Delays {
    /// The waits that Standard Webhooks proposes: ten attempts over three days and four hours.
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

/// What became of one attempt.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The receiver answered, and may have asked us to stay away for a while.
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

    /// Why the delivery was not taken, in words for the log.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Answered { status, .. } if status.is_success() => None,
            Self::Answered { status, .. } if status.is_redirection() => Some(format!(
                "the receiver answered {status}; redirects are not followed, so set the URL that it leads to"
            )),
            Self::Answered { status, .. } => Some(format!("the receiver answered {status}")),
            Self::NoAnswer(error) => Some(error.to_string()),
        }
    }

    /// The receiver wants nothing more at this URL.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Answered { status: StatusCode::GONE, .. })
    }

    /// It is the receiver that is in trouble, or its network, and not this message.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Answered { status, .. } => status.is_server_error(),
            Self::NoAnswer(error) => error.is_retryable(),
        }
    }

    /// How long the receiver wants to be left alone.
    pub fn requested_delay(&self) -> Option<Duration> {
        match self {
            Self::Answered {
                status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
                retry_after: Some(wait),
            } => Some((*wait).min(MAX_TOLD_WAIT)),
            _ => None,
        }
    }
}

/// What follows from an attempt, the `number`th since the delivery was asked for. Every answer but a success is tried
/// again, a 4xx too: receivers that are being deployed, or whose signing key was rotated a moment too early, answer 404
/// or 401 and recover. `chance` is from 0 to 1.
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
        // Refused by our own rules: only another setting would help.
        Outcome::NoAnswer(error) if !error.is_retryable() => return Verdict::Failed,
        _ => {}
    }
    let index = usize::try_from(number - 1).unwrap_or_default();
    let Some(delay) = delays.0.get(index) else { return Verdict::Failed };
    // A fifth more or less, so that what failed together does not come back together.
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
    fn waits_differ_by_a_fifth_at_most() {
        let wait = |chance| decide(&answered(500, None), 2, 4 * DAY, &delays(), chance);
        assert_eq!(wait(0.0), Verdict::Retry(Duration::from_secs(240)));
        assert_eq!(wait(1.0), Verdict::Retry(Duration::from_secs(360)));
    }

    #[test]
    fn an_answer_decides_what_follows() {
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
        assert_eq!(verdict(&answered(503, Some(1))), retry(5), "not earlier than the table says");
        assert_eq!(verdict(&answered(500, Some(90))), retry(5));
        assert_eq!(verdict(&answered(429, Some(900_000))), retry(24 * 60 * 60), "a day at most");
        let refused = EgressError::AddressNotAllowed { host: "intranet".to_owned() };
        assert_eq!(verdict(&Outcome::NoAnswer(refused)), Verdict::Failed);
        let cut = EgressError::Network { host: "example.com".to_owned(), cause: "reset".to_owned() };
        assert_eq!(verdict(&Outcome::NoAnswer(cut)), retry(5));
    }

    #[test]
    fn an_outcome_says_what_was_wrong_and_whose_trouble_it_is() {
        let told =
            |outcome: &Outcome| (outcome.status(), outcome.error(), outcome.is_gone(), outcome.is_trouble());
        let error = |text: &str| Some(format!("the receiver answered {text}"));
        assert_eq!(told(&answered(204, None)), (Some(204), None, false, false));
        let redirect = error("302 Found; redirects are not followed, so set the URL that it leads to");
        assert_eq!(told(&answered(302, None)), (Some(302), redirect, false, false));
        assert_eq!(told(&answered(410, None)), (Some(410), error("410 Gone"), true, false));
        assert_eq!(told(&answered(503, None)), (Some(503), error("503 Service Unavailable"), false, true));
        let cut = EgressError::Network { host: "example.com".to_owned(), cause: "reset".to_owned() };
        let cause = Some("the exchange with `example.com` failed: reset".to_owned());
        assert_eq!(told(&Outcome::NoAnswer(cut)), (None, cause, false, true));
        let refused = EgressError::AddressNotAllowed { host: "intranet".to_owned() };
        assert!(!told(&Outcome::NoAnswer(refused)).3, "it is ours to refuse");
    }

    #[test]
    fn what_would_come_after_the_end_is_given_up() {
        let verdict = |left| decide(&answered(500, None), 3, Duration::from_secs(left), &delays(), 0.5);
        assert_eq!(verdict(1_799), Verdict::Failed);
        assert_eq!(verdict(1_800), Verdict::Retry(Duration::from_secs(1_800)));
    }

    #[test]
    fn a_list_of_waits_says_what_is_wrong() {
        assert_eq!(
            "200ms, 1m".parse(),
            Ok(Delays(vec![Duration::from_millis(200), Duration::from_secs(60)]))
        );
        for text in ["", "5", "5s,", "soon", "0s", "-1s"] {
            assert!(text.parse::<Delays>().is_err(), "{text}");
        }
    }
}
