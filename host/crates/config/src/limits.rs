//! `limits = { cpu = "10s", memory = "128MB", requests = 500 }`: the limits of a function that differ from the
//! default of its kind.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The limits that are set. The host's own maxima still apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitOverrides {
    /// CPU time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Time from start to end, including waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// Size of the function's return value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Size of one response of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<u64>,
    /// Size of one call of `records.commit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<u64>,
    /// Size of one record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// Number of outgoing requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Syncs only: time without a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Number of saved records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
}

/// Parses `500ms`, `10s`, `2m` or `1h`. Zero is not accepted.
pub fn milliseconds(text: &str) -> Option<u64> {
    measure(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)])
}

/// Parses the same texts as [`milliseconds`], and days: `30d`. Accepts up to a hundred years, but not zero.
pub fn period(text: &str) -> Option<Duration> {
    const DAY_MS: u64 = 86_400_000;
    let milliseconds = milliseconds(text).or_else(|| measure(text, &[("d", DAY_MS)]))?;
    (milliseconds <= 36_500 * DAY_MS).then(|| Duration::from_millis(milliseconds))
}

/// Parses `64KB`, `128MB` or `1GB`; each unit is 1024 times the previous one. Zero is not accepted.
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
    fn limits_need_a_number_and_a_unit() {
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
