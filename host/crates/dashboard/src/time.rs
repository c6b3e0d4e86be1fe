//! Times and numbers for people.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

/// A time relative to now, with the exact time in UTC as its tooltip.
pub(crate) fn ago(at: DateTime<Utc>) -> Markup {
    let exact = at.format("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.to_rfc3339()) title=(exact) { (relative(at, Utc::now())) } }
}

/// The exact time in UTC.
pub(crate) fn exact(at: DateTime<Utc>) -> Markup {
    html! { time datetime=(at.to_rfc3339()) { (at.format("%Y-%m-%d %H:%M:%S").to_string()) } }
}

pub(crate) fn relative(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = (now - at).num_seconds();
    let text = span(seconds.unsigned_abs());
    match seconds {
        -4..=4 => "now".to_owned(),
        5.. => format!("{text} ago"),
        _ => format!("in {text}"),
    }
}

/// A duration in its largest unit.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A duration in milliseconds, with a unit that people read at a glance.
pub(crate) fn milliseconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        _ => span(ms / 1_000),
    }
}

/// A number of bytes in a unit that people read at a glance.
pub(crate) fn bytes(value: usize) -> String {
    let size = value as f64;
    match value {
        ..1_024 => format!("{value} B"),
        1_024..1_048_576 => format!("{:.1} KiB", size / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", size / 1_048_576.0),
        _ => format!("{:.1} GiB", size / 1_073_741_824.0),
    }
}

/// A whole number with a comma between groups of three digits.
pub(crate) fn number(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn times_are_relative_in_the_largest_unit() {
        let now = Utc::now();
        for (seconds, text) in
            [(0, "now"), (5, "5 s ago"), (119, "1 min ago"), (7_200, "2 h ago"), (-90, "in 1 min")]
        {
            assert_eq!(relative(now - TimeDelta::seconds(seconds), now), text);
        }
        assert_eq!(milliseconds(1_234), "1.2 s");
    }

    #[test]
    fn bytes_are_rounded_in_the_largest_unit() {
        for (value, text) in [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (256 << 20, "256.0 MiB")] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn numbers_have_groups_of_three_digits() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(number(value), text);
        }
    }
}
