//! `limits = { cpu = "10s", memory = "128MB", requests = 500 }`: what a function may use, where it is not the
//! default of its kind.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Each limit that is set. The host's own maxima still apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitOverrides {
    /// Time on a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Time from start to end, waiting included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// The value that the function returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// One answer of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<u64>,
    /// One call of `records.commit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<u64>,
    /// One record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// Outgoing requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Of a sync: time without a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Records saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
}

/// Reads `500ms`, `10s`, `2m` or `1h`. Not zero.
pub fn milliseconds(text: &str) -> Option<u64> {
    measure(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)])
}

/// Reads what [`milliseconds`] does, and days: `30d`. Not zero, and not more than a hundred years.
pub fn period(text: &str) -> Option<Duration> {
    const DAY_MS: u64 = 86_400_000;
    let milliseconds = milliseconds(text).or_else(|| measure(text, &[("d", DAY_MS)]))?;
    (milliseconds <= 36_500 * DAY_MS).then(|| Duration::from_millis(milliseconds))
}

/// Reads `64KB`, `128MB` or `1GB`, whose units are 1024 of the one before. Not zero.
pub(super) fn bytes(text: &str) -> Option<u64> {
    measure(text, &[("KB", 1 << 10), ("MB", 1 << 20), ("GB", 1 << 30)])
}

fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let number_end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(number_end);
    let (_, factor) = units.iter().find(|(word, _)| *word == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor).filter(|product| *product > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_need_a_number_and_a_unit() {
        assert_eq!(milliseconds("500ms"), Some(500));
        assert_eq!(milliseconds("2 m"), Some(120_000));
        assert_eq!(bytes("128MB"), Some(128 << 20));
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "-1s",
            "0s",
            "10 seconds",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
        assert_eq!(bytes("1mb"), None);
    }
}
