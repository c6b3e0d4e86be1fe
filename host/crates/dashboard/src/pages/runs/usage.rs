//! What a run used, compared with the limits of its function.

use maud::{Markup, html};

use crate::Dashboard;
use crate::components::table;
use crate::error::PageError;
use crate::session::Visit;
use crate::time::{bytes, milliseconds, number};
use syncline_engine::{DeployedFunction, LoggedRun};

/// A resource that a run used.
struct Resource {
    name: &'static str,
    used: Option<i64>,
    /// `None` if it is not limited.
    limit: Option<i64>,
    /// Writes an amount with its unit.
    text: fn(i64) -> String,
}

/// A table with a meter for each resource.
pub(super) async fn usage(app: &Dashboard, visit: &Visit, run: &LoggedRun) -> Result<Markup, PageError> {
    let function = find_function(app, visit, run).await?;
    let limits = function.as_ref().map(|function| function.limits());
    let limit = |value: u128| i64::try_from(value).ok();
    let duration = run.finished_at.map(|finished_at| (finished_at - run.started_at).num_milliseconds());
    let resources = [
        Resource {
            name: "CPU time",
            used: run.cpu_us.map(|cpu_us| cpu_us / 1_000),
            limit: limits.and_then(|limits| limit(limits.cpu.as_millis())),
            text: duration_text,
        },
        Resource {
            name: "Duration",
            used: duration,
            limit: limits.and_then(|limits| limit(limits.wall.as_millis())),
            text: duration_text,
        },
        Resource {
            name: "Memory, at most",
            used: run.peak_memory_bytes,
            limit: limits.and_then(|limits| limit(limits.memory_bytes as u128)),
            text: size_text,
        },
        Resource {
            name: "Requests to the provider",
            used: run.requests,
            limit: limits.and_then(|limits| limit(limits.requests.into())),
            text: number,
        },
        Resource {
            name: "Records passed to save and delete",
            used: run.records,
            limit: limits.and_then(|limits| limit(limits.records.into())),
            text: number,
        },
        Resource { name: "Sent to the provider", used: run.sent_bytes, limit: None, text: size_text },
        Resource {
            name: "Received from the provider",
            used: run.received_bytes,
            limit: None,
            text: size_text,
        },
    ];
    Ok(html! {
        h2 { "Usage" }
        (table("Usage", &["Resource", "Used", "Limit", "Share"], &html! { @for resource in &resources { (row(resource)) } }))
        @if function.is_some() {
            p.hint { "The limits are those of the function that is deployed now." }
        } @else {
            p.hint { "The function is no longer deployed, so its limits are unknown." }
        }
    })
}

fn row(resource: &Resource) -> Markup {
    let Resource { name, used, limit, text } = resource;
    html! {
        tr {
            td { (name) }
            td.number { @match used { Some(used) => (text(*used)), None => span.muted { "not measured yet" } } }
            td.number { @match limit { Some(limit) => (text(*limit)), None => span.muted { "none" } } }
            td {
                @if let (Some(used), Some(limit)) = (*used, *limit) {
                    meter min="0" max=(limit) high=(limit - limit / 5) value=(used) aria-label=(name) {}
                    " " (percent(used, limit))
                }
            }
        }
    }
}

/// The function of the run, if it is still deployed.
async fn find_function(
    app: &Dashboard,
    visit: &Visit,
    run: &LoggedRun,
) -> Result<Option<std::sync::Arc<DeployedFunction>>, PageError> {
    let (Some(key), Ok(name)) = (&run.integration, run.function.parse()) else { return Ok(None) };
    let environment = visit.environment.pk;
    // The integration can be deleted at any time.
    let Ok(integration) = app.integrations.get(environment, key).await else { return Ok(None) };
    let found = app.functions.find_deployed(environment, integration.pk, run.kind, &name).await;
    found.map_err(PageError::internal)
}

fn size_text(size: i64) -> String {
    bytes(usize::try_from(size).unwrap_or_default())
}

fn duration_text(ms: i64) -> String {
    milliseconds(ms.max(0).unsigned_abs())
}

fn percent(used: i64, limit: i64) -> String {
    match (used, limit) {
        (0, _) => "0 %".to_owned(),
        (_, ..=0) => "over 100 %".to_owned(),
        (used, limit) => {
            let share = used as f64 * 100.0 / limit as f64;
            if share < 1.0 { "under 1 %".to_owned() } else { format!("{share:.0} %") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_to_whole_percents() {
        for (used, limit, text) in
            [(0, 10, "0 %"), (1, 1_000, "under 1 %"), (1, 3, "33 %"), (30, 20, "150 %"), (1, 0, "over 100 %")]
        {
            assert_eq!(percent(used, limit), text);
        }
    }
}
