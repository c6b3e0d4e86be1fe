//! Tables of runs, and the texts that describe a run.

use std::fmt::Write;

use maud::{Markup, html};

use crate::components::{Tone, badge, table};
use crate::pages::addresses::{connection_url, run_url};
use crate::session::Visit;
use crate::time::{ago, milliseconds, number};
use syncline_engine::LoggedRun;
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::{FunctionKind, RunState};

/// The bytes of an error message that a list shows.
const MESSAGE_BYTES: usize = 200;

/// A table of runs. `names` adds the columns that are the same for all runs of one sync.
pub(crate) fn runs_table(visit: &Visit, runs: &[LoggedRun], names: bool) -> Markup {
    let columns: &[&str] = if names {
        &["Started", "State", "Function", "Connection", "Trigger", "Changes", "Duration"]
    } else {
        &["Started", "State", "Trigger", "Changes", "Duration"]
    };
    let rows = html! {
        @for run in runs {
            tr {
                td { a href=(run_url(visit, run.id)) { (ago(run.started_at)) } }
                td {
                    (state_badge(run))
                    @if let Some(message) = &run.error_message {
                        div.muted { span.clip { (&message[..message.floor_char_boundary(MESSAGE_BYTES)]) } }
                    }
                }
                @if names {
                    td { (run.function) div.muted { (run.kind.as_str()) @if run.variant != "base" { " · " (run.variant) } } }
                    td { (connection(visit, run)) }
                }
                td { (run.trigger.as_str()) @if run.attempt > 1 { " " span.muted { "(attempt " (run.attempt) ")" } } }
                td { (changes_text(run)) }
                td { (duration_text(run)) }
            }
        }
    };
    table("Runs", columns, &rows)
}

/// The connection of a run with its integration, if they still exist.
pub(super) fn connection(visit: &Visit, run: &LoggedRun) -> Markup {
    html! {
        @match (&run.integration, &run.connection) {
            (Some(integration), Some(connection)) => {
                div { a href=(connection_url(visit, integration, connection)) { (connection) } }
                div.muted { (integration) }
            }
            (Some(integration), None) => { div.muted { "deleted" } div.muted { (integration) } }
            (None, _) => span.muted { "deleted" },
        }
    }
}

/// Whether the deletions of this run wait for an approval.
pub(crate) fn is_held(run: &LoggedRun) -> bool {
    run.error_code == Some(ErrorCode::MassDeletionHeld) && run.approved_at.is_none()
}

pub(crate) fn state_tone(run: &LoggedRun) -> Tone {
    match run.state {
        RunState::Running => Tone::Busy,
        RunState::Success => Tone::Good,
        RunState::Error if is_held(run) => Tone::Warning,
        RunState::Error => Tone::Bad,
        RunState::Lost => Tone::Warning,
        RunState::Cancelled => Tone::Neutral,
    }
}

pub(crate) fn state_text(run: &LoggedRun) -> &'static str {
    match run.state {
        RunState::Running => "running",
        RunState::Success => "succeeded",
        RunState::Error if is_held(run) => "deletions held",
        RunState::Error => "failed",
        RunState::Lost => "lost",
        RunState::Cancelled => "cancelled",
    }
}

pub(crate) fn state_badge(run: &LoggedRun) -> Markup {
    badge(state_tone(run), state_text(run))
}

/// The sums of the changes to records of all models.
pub(crate) fn changes_text(run: &LoggedRun) -> String {
    let models = run.counts.as_ref().and_then(serde_json::Value::as_object);
    let sum = |change: &str| -> i64 {
        models
            .into_iter()
            .flat_map(|models| models.values())
            .filter_map(|counts| counts.get(change)?.as_i64())
            .sum()
    };
    let mut text = String::new();
    for (change, words) in
        [("added", "added"), ("updated", "updated"), ("deleted", "deleted"), ("set_aside", "set aside")]
    {
        let count = sum(change);
        if count > 0 {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}{} {words}", number(count));
        }
    }
    match (text.is_empty(), run.kind) {
        (false, _) => text,
        (true, FunctionKind::Sync) => "no changes".to_owned(),
        (true, _) => "–".to_owned(),
    }
}

pub(super) fn duration_text(run: &LoggedRun) -> String {
    match run.finished_at {
        Some(finished_at) => {
            let duration = (finished_at - run.started_at).num_milliseconds();
            milliseconds(duration.max(0).unsigned_abs())
        }
        None => "in progress".to_owned(),
    }
}
