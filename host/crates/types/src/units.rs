//! Sizes and times for people.

use std::fmt;
use std::time::Duration;

/// A number of bytes, in the largest unit that represents it exactly: `25 MiB`, `1500 bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((size, name)) => write!(f, "{} {name}", self.0 / size),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// A time, in the largest unit that represents it exactly: `1 hour`, `90 seconds`, `0.3 s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(24 * 3600, "day"), (3600, "hour"), (60, "minute")];
        if self.0.subsec_nanos() > 0 {
            return write!(f, "{} s", self.0.as_secs_f64());
        }
        let seconds = self.0.as_secs();
        let unit =
            UNITS.into_iter().find(|(length, _)| seconds >= *length && seconds.is_multiple_of(*length));
        let (length, name) = unit.unwrap_or((1, "second"));
        let amount = seconds / length;
        write!(f, "{amount} {name}{}", if amount == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_exact_in_the_largest_unit() {
        for (bytes, text) in [(0, "0 bytes"), (1000, "1000 bytes"), (75 << 20, "75 MiB"), (3 << 30, "3 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_time_is_exact_in_the_largest_unit() {
        let times = [
            (0, "0 seconds"),
            (300, "0.3 s"),
            (1_000, "1 second"),
            (90_000, "90 seconds"),
            (120_000, "2 minutes"),
            (3_600_000, "1 hour"),
            (172_800_000, "2 days"),
        ];
        for (milliseconds, text) in times {
            assert_eq!(TimeSpan(Duration::from_millis(milliseconds)).to_string(), text);
        }
    }
}
