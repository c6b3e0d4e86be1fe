//! How often a sync runs, and when it runs next. Pure: no clock, no database.
//!
//! The configuration file and the API accept the same grammar:
//!
//! | Text | Meaning |
//! |---|---|
//! | `every 5 minutes`, `5m`, `every hour` | a number (default 1) of `s`, `sec`, `second`, `m`, `min`, `minute`, `h`, `hr`, `hour`, `d`, `day`, also in the plural; `every` is optional if there is a number |
//! | `every half hour`, `every quarter hour`, `every half day`, `every week`, `every month` | 30 minutes, 15 minutes, 12 hours, 7 days, 30 days |
//! | `0 6 * * MON-FRI`, `@daily` | cron: minute, hour, day of month, month, day of week |

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde::{Deserialize, Serialize};

use syncline_types::units::TimeSpan;

/// How often a sync runs. Displayed as `every 5 minutes`, or as the given cron text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Frequency {
    Every { amount: u32, unit: Unit },
    Cron(CronText),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
}

/// A cron text of five fields that is due at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronText {
    text: String,
    cron: Box<Cron>,
}

/// The reason why a text is not a valid frequency, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrequencyError {
    #[error(
        "`{given}` is not a frequency; use `every 5 minutes`, `every half hour`, `every day`, or cron such as `0 6 * * *`"
    )]
    Unknown { given: String },
    #[error("`{given}` is not a valid cron expression: {problem}")]
    Cron { given: String, problem: String },
    #[error("`{given}` is never due; use a date that exists")]
    NeverDue { given: String },
    #[error("`{given}` is too frequent; the interval between two runs must be at least {}", TimeSpan(*.minimum))]
    TooOften { given: String, minimum: Duration },
    #[error("the interval `{given}` is too long; use at most 31 days, or a cron expression")]
    TooSeldom { given: String },
}

/// Shortest interval between two runs, unless the operator sets another one.
pub const MINIMUM_INTERVAL: Duration = Duration::from_secs(30);

const MAXIMUM_INTERVAL: Duration = Duration::from_secs(31 * 24 * 3_600);

impl Frequency {
    /// Parses a text and checks that it respects the minimum.
    pub fn parse(text: &str, minimum: Duration) -> Result<Self, FrequencyError> {
        let frequency: Self = text.parse().map_err(|error| match error {
            FrequencyError::TooOften { given, .. } => FrequencyError::TooOften { given, minimum },
            other => other,
        })?;
        frequency.check_minimum(minimum)?;
        Ok(frequency)
    }

    /// Returns an error if two runs can be closer together than the minimum.
    pub fn check_minimum(&self, minimum: Duration) -> Result<(), FrequencyError> {
        if self.shortest_interval() < minimum {
            return Err(FrequencyError::TooOften { given: self.to_string(), minimum });
        }
        Ok(())
    }

    /// Returns the interval between runs, or none for cron, whose runs are not evenly spaced.
    pub fn interval(&self) -> Option<Duration> {
        match self {
            Self::Every { amount, unit } => Some(unit.duration() * *amount),
            Self::Cron(_) => None,
        }
    }

    /// Returns the next due time after `now`. The time zone matters only for cron. A time in an hour that the
    /// clocks skip is due once, directly after the gap. A time of day that occurs twice is due the first time. An
    /// hourly cron continues through both changes.
    pub fn next_after(&self, now: DateTime<Utc>, zone: Tz) -> DateTime<Utc> {
        match self {
            Self::Every { amount, unit } => now + unit.duration() * *amount,
            Self::Cron(cron) => cron.next_after(now, zone),
        }
    }

    fn shortest_interval(&self) -> Duration {
        match self {
            Self::Every { amount, unit } => unit.duration() * *amount,
            Self::Cron(cron) => cron.shortest_interval(),
        }
    }
}

impl Unit {
    fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 24 * 3_600,
        })
    }

    fn word(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "s" | "sec" | "secs" | "second" | "seconds" => Self::Second,
            "m" | "min" | "mins" | "minute" | "minutes" => Self::Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => Self::Hour,
            "d" | "day" | "days" => Self::Day,
            _ => return None,
        })
    }
}

impl CronText {
    fn parse(text: &str) -> Result<Self, FrequencyError> {
        let given = || text.to_owned();
        // croner accepts a list without items, and then searches for a due time until the year 5000, for seconds.
        if text.split_whitespace().flat_map(|field| field.split(',')).any(str::is_empty) {
            let problem = "a list has an empty item; remove the extra comma".to_owned();
            return Err(FrequencyError::Cron { given: given(), problem });
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser
            .parse(text)
            .map_err(|error| FrequencyError::Cron { given: given(), problem: error.to_string() })?;
        if cron.find_next_occurrence(&DateTime::UNIX_EPOCH, true).is_err() {
            return Err(FrequencyError::NeverDue { given: given() });
        }
        Ok(Self { text: given(), cron: Box::new(cron) })
    }

    fn next_after(&self, now: DateTime<Utc>, zone: Tz) -> DateTime<Utc> {
        // croner searches until the year 5000. Before that, every valid cron text is due again.
        let never = DateTime::<Utc>::MAX_UTC;
        if (0..24).all(|hour| matches!(self.cron.pattern.hour_match(hour), Ok(true))) {
            let due = self.cron.find_next_occurrence(&now.with_timezone(&zone), false);
            return due.map_or(never, |due| due.to_utc());
        }
        // Search on a clock without gaps and repetitions, and convert each result to the zone afterwards.
        let mut on_the_clock = now.with_timezone(&zone).naive_local().and_utc();
        while let Ok(next) = self.cron.find_next_occurrence(&on_the_clock, false) {
            let due = first_instant(next.naive_utc(), zone);
            if due > now {
                return due;
            }
            on_the_clock = next;
        }
        never
    }

    /// Examines the first runs, which show all short intervals of a pattern.
    fn shortest_interval(&self) -> Duration {
        let runs: Vec<DateTime<Utc>> = self.cron.iter_after(DateTime::UNIX_EPOCH).take(200).collect();
        let gaps = runs.windows(2).filter_map(|pair| (pair[1] - pair[0]).to_std().ok());
        gaps.min().unwrap_or(Duration::MAX)
    }
}

fn amount_of(amount: u64, unit: Unit) -> String {
    format!("{amount} {}{}", unit.word(), if amount == 1 { "" } else { "s" })
}

/// Returns the first instant at which a clock in the zone shows this time, or the end of the gap if it skips it.
fn first_instant(local: NaiveDateTime, zone: Tz) -> DateTime<Utc> {
    let mut shown = local;
    loop {
        if let Some(instant) = zone.from_local_datetime(&shown).earliest() {
            return instant.to_utc();
        }
        shown += TimeDelta::minutes(1);
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every { amount, unit } => write!(f, "every {}", amount_of((*amount).into(), *unit)),
            Self::Cron(cron) => f.write_str(&cron.text),
        }
    }
}

impl FromStr for Frequency {
    type Err = FrequencyError;

    fn from_str(text: &str) -> Result<Self, FrequencyError> {
        let trimmed = text.trim();
        if trimmed.starts_with('@') || trimmed.split_whitespace().count() == 5 {
            return CronText::parse(trimmed).map(Self::Cron);
        }
        let unknown = || FrequencyError::Unknown { given: text.to_owned() };
        let (has_every, rest) = match trimmed.strip_prefix("every ") {
            Some(rest) => (true, rest.trim_start()),
            None => (false, trimmed),
        };
        let number_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, word) = rest.split_at(number_end);
        let (amount, unit) = match (number, word.trim_start()) {
            ("", _) if !has_every => return Err(unknown()),
            ("", "half hour") => (30, Unit::Minute),
            ("", "quarter hour") => (15, Unit::Minute),
            ("", "half day") => (12, Unit::Hour),
            ("", "week") => (7, Unit::Day),
            ("", "month") => (30, Unit::Day),
            ("", word) => (1, Unit::of_word(word).ok_or_else(unknown)?),
            (number, word) => {
                let unit = Unit::of_word(word).ok_or_else(unknown)?;
                let too_seldom = |_| FrequencyError::TooSeldom { given: text.to_owned() };
                (number.parse().map_err(too_seldom)?, unit)
            }
        };
        if unit.duration().checked_mul(amount).is_none_or(|interval| interval > MAXIMUM_INTERVAL) {
            return Err(FrequencyError::TooSeldom { given: text.to_owned() });
        }
        if amount == 0 {
            return Err(FrequencyError::TooOften { given: text.to_owned(), minimum: MINIMUM_INTERVAL });
        }
        Ok(Self::Every { amount, unit })
    }
}

impl TryFrom<String> for Frequency {
    type Error = FrequencyError;

    fn try_from(text: String) -> Result<Self, FrequencyError> {
        text.parse()
    }
}

impl From<Frequency> for String {
    fn from(frequency: Frequency) -> String {
        frequency.to_string()
    }
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, Days, NaiveDate, Timelike};
    use proptest::prelude::*;

    use super::*;

    fn read_back(text: &str) -> String {
        Frequency::parse(text, MINIMUM_INTERVAL).unwrap().to_string()
    }

    fn refusal(text: &str) -> String {
        Frequency::parse(text, MINIMUM_INTERVAL).unwrap_err().to_string()
    }

    /// Returns the next `count` runs of a cron text after a time, as local times.
    fn runs(cron: &str, zone: Tz, after: &str, count: usize) -> Vec<String> {
        let frequency: Frequency = cron.parse().unwrap();
        let mut now: DateTime<Utc> = after.parse().unwrap();
        let mut next = || {
            now = frequency.next_after(now, zone);
            now.with_timezone(&zone).to_rfc3339()
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_parsed_frequency_is_displayed_as_number_and_unit() {
        for (text, expected) in [
            ("every 5 minutes", "every 5 minutes"),
            ("5m", "every 5 minutes"),
            (" every 5min ", "every 5 minutes"),
            ("every 30s", "every 30 seconds"),
            ("90 secs", "every 90 seconds"),
            ("every 1 hr", "every 1 hour"),
            ("every half hour", "every 30 minutes"),
            ("every quarter hour", "every 15 minutes"),
            ("every half day", "every 12 hours"),
            ("every day", "every 1 day"),
            ("every d", "every 1 day"),
            ("every week", "every 7 days"),
            ("every month", "every 30 days"),
            ("31d", "every 31 days"),
            ("0 6 * * mon-fri", "0 6 * * mon-fri"),
            ("@daily", "@daily"),
        ] {
            assert_eq!(read_back(text), expected);
        }
    }

    #[test]
    fn mistakes_are_reported_with_a_correction() {
        assert_eq!(
            refusal("hourly"),
            "`hourly` is not a frequency; use `every 5 minutes`, `every half hour`, `every day`, or cron such as `0 6 * * *`"
        );
        assert!(refusal("day").contains("is not a frequency"));
        assert!(refusal("every 1.5 hours").contains("is not a frequency"));
        assert_eq!(
            refusal("every 29s"),
            "`every 29 seconds` is too frequent; the interval between two runs must be at least 30 seconds"
        );
        assert_eq!(
            refusal("every 0 m"),
            "`every 0 m` is too frequent; the interval between two runs must be at least 30 seconds"
        );
        let hourly = Frequency::parse("every 0 m", Duration::from_secs(3_600)).unwrap_err();
        assert!(hourly.to_string().contains("at least 1 hour"), "{hourly}");
        assert!(refusal("every 32 days").contains("is too long; use"));
        assert!(refusal("every 99999999999 days").contains("is too long; use"));
        assert!(refusal("61 * * * *").starts_with("`61 * * * *` is not a valid cron expression: "));
        for empty in [", * * * *", "0,,30 * * * *", "0 6, * * *"] {
            assert_eq!(
                refusal(empty),
                format!(
                    "`{empty}` is not a valid cron expression: a list has an empty item; remove the extra comma"
                )
            );
        }
        assert_eq!(refusal("0 0 30 2 *"), "`0 0 30 2 *` is never due; use a date that exists");
        let hour = Duration::from_secs(3_600);
        assert_eq!(
            Frequency::parse("0,59 3 * * *", hour).unwrap_err().to_string(),
            "`0,59 3 * * *` is too frequent; the interval between two runs must be at least 1 hour"
        );
        assert!(Frequency::parse("0 3 * * *", hour).is_ok());
    }

    #[test]
    fn a_frequency_is_stored_as_text() {
        let frequency: Frequency = "every half hour".parse().unwrap();
        let json = serde_json::to_string(&frequency).unwrap();
        assert_eq!(json, "\"every 30 minutes\"");
        assert_eq!(serde_json::from_str::<Frequency>(&json).unwrap(), frequency);
    }

    #[test]
    fn a_time_in_a_skipped_hour_is_due_once_after_it() {
        assert_eq!(
            runs("30 2 * * *", Tz::Europe__Berlin, "2026-03-27T12:00:00Z", 3),
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
        );
        assert_eq!(
            runs("0,30 2 * * *", Tz::Europe__Berlin, "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]
        );
    }

    #[test]
    fn a_time_that_occurs_twice_is_due_once() {
        assert_eq!(
            runs("30 2 * * *", Tz::Europe__Berlin, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
        // Between the two occurrences, the second one is not due.
        assert_eq!(
            runs("30 2,14 * * *", Tz::Europe__Berlin, "2026-10-25T01:00:00Z", 1),
            ["2026-10-25T14:30:00+01:00"]
        );
    }

    #[test]
    fn an_hourly_cron_continues_when_the_clocks_change() {
        assert_eq!(
            runs("0 * * * *", Tz::Europe__Berlin, "2026-10-24T23:30:00Z", 3),
            ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"]
        );
        assert_eq!(
            runs("0 * * * *", Tz::Europe__Berlin, "2026-03-28T23:30:00Z", 2),
            ["2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"]
        );
    }

    proptest! {
        #[test]
        fn every_displayed_interval_can_be_parsed_and_is_due_after_now(
            amount in 1_u32..=31, unit in "s|m|h|d|second|mins|hours|days", seconds in 0_i64..4_000_000_000,
        ) {
            let frequency: Frequency = format!("every {amount} {unit}").parse().unwrap();
            prop_assert_eq!(&frequency.to_string().parse::<Frequency>().unwrap(), &frequency);
            let now = Utc.timestamp_opt(seconds, 0).unwrap();
            let passed = frequency.next_after(now, Tz::UTC) - now;
            prop_assert_eq!(passed.to_std().ok(), frequency.interval());
        }

        #[test]
        fn arbitrary_texts_do_not_panic(text in "(every )?[0-9 @*,/a-z-]{0,16}") {
            drop(Frequency::parse(&text, MINIMUM_INTERVAL));
        }

        #[test]
        fn a_daily_cron_runs_once_on_every_local_day(
            minute in 0_u32..60, hour in 0_u32..24, start in 0_u64..20_000,
            zone in proptest::sample::select(vec![
                Tz::UTC, Tz::Europe__Berlin, Tz::America__New_York, Tz::Australia__Lord_Howe, Tz::Africa__Casablanca,
            ]),
        ) {
            let frequency: Frequency = format!("{minute} {hour} * * *").parse().unwrap();
            let first = NaiveDate::from_ymd_opt(1995, 1, 1).unwrap() + Days::new(start);
            let mut now = first.and_hms_opt(0, 0, 0).unwrap().and_utc();
            now = frequency.next_after(now, zone);
            for _ in 0..400 {
                let next = frequency.next_after(now, zone);
                let (day, next_day) = (now.with_timezone(&zone), next.with_timezone(&zone));
                prop_assert_eq!(next_day.num_days_from_ce(), day.num_days_from_ce() + 1, "{} then {}", day, next_day);
                prop_assert_eq!(next_day.second(), 0);
                now = next;
            }
        }
    }
}
