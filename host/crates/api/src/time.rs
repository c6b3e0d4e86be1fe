//! Formats times: UTC with milliseconds.

use chrono::{DateTime, SecondsFormat, Utc};

/// `2026-03-01T09:00:00.000Z`.
pub(super) fn iso(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// `2026-03-01T09:00:00.000+00:00`: clients that get or list connections expect an offset instead of `Z`.
pub(super) fn iso_with_offset(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, false)
}
