//! The state of a sync, and the times of its runs.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use crate::components::{Tone, badge};
use crate::time::ago;
use syncline_engine::{SyncState, SyncStatus};

pub(super) fn finished_at(status: &SyncStatus) -> Option<DateTime<Utc>> {
    status.latest.as_ref().and_then(|run| run.finished_at)
}

/// When the sync runs next: at its retry or at its regular time. `otherwise` says that no run is planned.
pub(crate) fn next_run(status: &SyncStatus, otherwise: &str) -> Markup {
    html! {
        @match (status.retry_at, status.next_run_at) {
            (Some(at), _) => { (ago(at)) " " span.muted { "(retry)" } }
            (None, Some(at)) => (ago(at)),
            (None, None) => span.muted { (otherwise) },
        }
    }
}

/// The state of a sync.
pub(crate) fn state_badge(status: &SyncStatus) -> Markup {
    match status.state {
        SyncState::Running => badge(Tone::Busy, "running"),
        SyncState::Paused => badge(Tone::Neutral, "paused"),
        SyncState::Stopped => badge(Tone::Warning, "not deployed"),
        SyncState::Error => badge(Tone::Bad, "failed"),
        SyncState::Success if status.latest.is_none() => badge(Tone::Neutral, "not run yet"),
        SyncState::Success => badge(Tone::Good, "succeeded"),
    }
}
