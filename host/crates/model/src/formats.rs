//! Recognizes dates, times and integers by their text alone.

/// Whether a text is a day of the Gregorian calendar, such as `2026-03-01`.
pub(super) fn is_date(text: &str) -> bool {
    split_date(text.as_bytes()).is_some_and(<[u8]>::is_empty)
}

/// Whether a text is a time such as `2026-03-01T09:00:00.25Z`, or with an offset such as `+01:00` (RFC 3339).
pub(super) fn is_datetime(text: &str) -> bool {
    is_datetime_bytes(text.as_bytes()).is_some()
}

/// Whether a number literal has an integer as its value: `5`, `5.0` and `5e3`, but not `5.5` or `5e-1`.
pub(super) fn is_integer(literal: &str) -> bool {
    let (mantissa, exponent) = match literal.find(['e', 'E']) {
        Some(at) => (&literal[..at], &literal[at + 1..]),
        None => (literal, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let whole = whole.trim_start_matches('-');
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() && whole == "0" {
        return true;
    }
    // Beyond the range of i64, the exponent outweighs any number of digits that fits into a text.
    let exponent =
        exponent.parse::<i64>().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
    if !fraction.is_empty() {
        return exponent >= fraction.len() as i64;
    }
    let trailing_zeros = whole.len() - whole.trim_end_matches('0').len();
    exponent >= -(trailing_zeros as i64)
}

/// Whether a text is a JSON number without a fraction and an exponent.
pub(super) fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    match digits {
        [] | [b'0', _, ..] => false,
        digits => digits.iter().all(u8::is_ascii_digit),
    }
}

fn is_datetime_bytes(text: &[u8]) -> Option<()> {
    let rest = split_date(text)?;
    let [b'T' | b't', rest @ ..] = rest else { return None };
    let (hour, rest) = two_digits(rest)?;
    let (minute, rest) = two_digits(rest.strip_prefix(b":")?)?;
    let (second, mut rest) = two_digits(rest.strip_prefix(b":")?)?;
    // 60 is a leap second.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        rest = &fraction[digits..];
    }
    match rest {
        [b'Z' | b'z'] => Some(()),
        [b'+' | b'-', offset @ ..] => {
            let (hour, rest) = two_digits(offset)?;
            let (minute, rest) = two_digits(rest.strip_prefix(b":")?)?;
            (hour < 24 && minute < 60 && rest.is_empty()).then_some(())
        }
        _ => None,
    }
}

/// Checks the date at the start and returns what follows it.
fn split_date(text: &[u8]) -> Option<&[u8]> {
    let (century, rest) = two_digits(text)?;
    let (year, rest) = two_digits(rest)?;
    let (month, rest) = two_digits(rest.strip_prefix(b"-")?)?;
    let (day, rest) = two_digits(rest.strip_prefix(b"-")?)?;
    let is_leap = year % 4 == 0 && (year != 0 || century % 4 == 0);
    let last_day = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    (1..=last_day).contains(&day).then_some(rest)
}

fn two_digits(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', rest @ ..] => Some(((tens - b'0') * 10 + ones - b'0', rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_recognized_by_their_value() {
        for literal in [
            "0",
            "-0",
            "5",
            "5.0",
            "-5.00",
            "5e3",
            "5.25E2",
            "50e-1",
            "0e-99",
            "0.0",
            "1e99999999999999999999",
        ] {
            assert!(is_integer(literal), "{literal}");
        }
        for literal in ["0.5", "5e-1", "5.25e1", "-0.001", "1e-99999999999999999999"] {
            assert!(!is_integer(literal), "{literal}");
        }
    }

    #[test]
    fn times_need_an_offset() {
        assert!(is_datetime("2026-03-01T09:00:00Z"));
        assert!(is_datetime("2026-03-01t09:00:60.123456789+05:30"));
        for text in [
            "2026-03-01T09:00:00",
            "2026-03-01 09:00:00Z",
            "2026-03-01T9:00:00Z",
            "2026-03-01T09:00:00.Z",
            "",
        ] {
            assert!(!is_datetime(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn dates_are_those_of_the_calendar(text in "(19|20|00)[0-9]{2}-[0-3][0-9]-[0-3][0-9]x?") {
            prop_assert_eq!(is_date(&text), text.len() == 10 && text.parse::<chrono::NaiveDate>().is_ok());
        }

        #[test]
        fn times_are_those_of_rfc_3339(
            text in "2024-0[0-3]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-6][0-9])",
        ) {
            prop_assert_eq!(is_datetime(&text), chrono::DateTime::parse_from_rfc3339(&text).is_ok());
        }
    }
}
