//! The state of a connection.

use maud::{Markup, html};

use crate::components::{Tone, badge};
use syncline_engine::ConnectionError;

/// The state of a connection, as its errors define it.
pub(super) fn state(errors: &[ConnectionError]) -> Markup {
    let failed_syncs = errors.iter().filter(|error| error.sync.is_some()).count();
    html! {
        @if errors.is_empty() { (badge(Tone::Good, "no errors")) }
        @if errors.iter().any(|error| error.sync.is_none()) { (badge(Tone::Bad, "credentials do not work")) " " }
        @match failed_syncs {
            0 => {},
            1 => (badge(Tone::Bad, "a sync failed")),
            many => (badge(Tone::Bad, &format!("{many} syncs failed"))),
        }
    }
}
