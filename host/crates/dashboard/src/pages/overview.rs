//! The first page of an environment: what needs attention, and the statistics of its runs.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::addresses::environment_route;
use crate::Dashboard;
use crate::charts::{Bar, LinePoint, bars, lines};
use crate::components::{empty, filters, heading, integration_filter, select, snippet, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::query::Query;
use crate::session::{Visit, segment};
use crate::time::{milliseconds, number};
use syncline_auth::Scope;
use syncline_engine::{
    Attention, IntegrationFigures, MAX_ATTENTION, Overview, RunFigures, StatisticsPoint, StatisticsRange,
};
use syncline_types::ids::IntegrationKey;

const RANGES: [(&str, &str); 3] =
    [("day", "Last 24 hours"), ("week", "Last 7 days"), ("month", "Last 30 days")];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("overview"), get(overview))
}

async fn overview(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Overview.scope())?;
    let environment = visit.environment.pk;
    let integration: Option<IntegrationKey> = query.parse_optional("integration", "Integration")?;
    let (range_name, range) = match query.text("range") {
        "week" => ("week", StatisticsRange::Week),
        "month" => ("month", StatisticsRange::Month),
        _ => ("day", StatisticsRange::Day),
    };
    let integrations = app.integrations.list(environment).await?;
    let overview = app.statistics.overview(environment, integration.as_ref(), range).await?;
    let attention = app.statistics.attention(environment).await.map_err(PageError::internal)?;
    let content = html! {
        (heading("Overview", &html! {}))
        @if integrations.is_empty() {
            (first_steps(&app, &visit))
        } @else {
            (attention_cards(&visit, &attention))
            (filters(&html! {
                (select("range", "Time", &RANGES, range_name))
                (integration_filter(&integrations, query.text("integration")))
            }))
            @if overview.totals.runs() == 0 {
                (empty("No run has ended in this time", &html! {
                    p { "A run counts when it ends. " a href=(visit.url("runs")) { "Show the runs" } " that are in progress." }
                }))
            } @else {
                (statistics(&visit, &overview, range))
            }
        }
    };
    Ok(page(&app, &visit, Section::Overview, "Overview", &content))
}

/// What to do in an environment without integrations.
fn first_steps(app: &Dashboard, visit: &Visit) -> Markup {
    let public_url = &app.public_url;
    let session = format!(
        "curl {public_url}/connect/sessions \\\n  --header \"Authorization: Bearer $SYNCLINE_SECRET_KEY\" \\\n  \
         --header 'Content-Type: application/json' \\\n  --data '{{\"end_user\": {{\"id\": \"user-1\"}}}}'"
    );
    html! {
        p { "This environment is new. Three steps lead to the first synced records." }
        section.card {
            h2 { "1. Create a secret key" }
            p {
                "A client needs a key of this environment. "
                @if visit.allows(Scope::ApiKeysCreate) {
                    a href=(visit.url(Section::Keys.path())) { "Create one" } ", and set it in your terminal:"
                } @else {
                    "Ask an administrator for one, and set it in your terminal:"
                }
            }
            (snippet(&format!("export SYNCLINE_URL={public_url}\nexport SYNCLINE_SECRET_KEY=sk_syncline_…")))
        }
        section.card {
            h2 { "2. Deploy a function" }
            p { "In the folder of a project with a " code { "syncline.toml" } ". The deployment also creates its integrations." }
            (snippet("syncline deploy"))
        }
        section.card {
            h2 { "3. Connect an account" }
            p {
                "Open the link of a connect session as an end user would, or "
                a href=(visit.url(Section::Connections.path())) { "connect a test account" } " here."
            }
            (snippet(&session))
        }
    }
}

fn attention_cards(visit: &Visit, attention: &Attention) -> Markup {
    let cards = [
        (
            attention.failing_connections,
            "connections with errors",
            "connections?errors=any",
            Section::Connections,
        ),
        (attention.failing_syncs, "failing syncs", "syncs?state=failing", Section::Syncs),
        (attention.held_deletions, "syncs with held deletions", "syncs?state=held", Section::Syncs),
        (attention.dead_letters, "dead letters", "dead-letters", Section::DeadLetters),
        (
            attention.failed_deliveries,
            "failed webhook deliveries",
            "outbound-webhooks?state=failed",
            Section::OutboundWebhooks,
        ),
    ];
    let shown: Vec<_> = cards
        .into_iter()
        .filter(|(count, _, _, section)| *count > 0 && visit.allows(section.scope()))
        .collect();
    html! {
        h2 { "Needs attention" }
        @if shown.is_empty() {
            p.muted { "Nothing: no failing connections or syncs, no held deletions, no dead letters and no failed deliveries." }
        } @else {
            div.cards {
                @for (count, text, path, _) in shown {
                    a.card href=(visit.url(path)) {
                        div.figure { (number(count)) @if count >= MAX_ATTENTION { "+" } }
                        (text)
                    }
                }
            }
        }
    }
}

fn statistics(visit: &Visit, overview: &Overview, range: StatisticsRange) -> Markup {
    let totals = &overview.totals;
    let points = &overview.points;
    let label = |point: &StatisticsPoint| point_label(point, range);
    let runs: Vec<_> = points
        .iter()
        .map(|point| Bar {
            label: label(point),
            total: point.figures.runs() as f64,
            bad: point.figures.failures() as f64,
        })
        .collect();
    let backoff: Vec<_> = points
        .iter()
        .map(|point| Bar { label: label(point), total: in_ms(point.figures.backoff), bad: 0.0 })
        .collect();
    let series = |first: fn(&RunFigures) -> Option<Duration>, second: fn(&RunFigures) -> Option<Duration>| {
        let line = |point: &StatisticsPoint| LinePoint {
            label: label(point),
            first: first(&point.figures).map(in_ms),
            second: second(&point.figures).map(in_ms),
        };
        points.iter().map(line).collect::<Vec<_>>()
    };
    let durations = series(|figures| figures.duration_p50, |figures| figures.duration_p95);
    let delays = series(|figures| figures.queue_delay_p50, |figures| figures.queue_delay_p95);
    let (duration, delay) = (duration_text(totals.duration_p95), duration_text(totals.queue_delay_p95));
    let ended = number(totals.runs());
    let failed = number(totals.failures());
    html! {
        (figures(totals))
        (chart(
            "Runs",
            "Bars show all runs that ended; the lower part shows those that failed.",
            &bars(&format!("Runs over time: {ended} ended, {failed} failed"), &runs, count_text),
        ))
        (chart(
            "Duration of runs",
            "Solid line: half of the runs were faster. Dashed line: 95 % were faster.",
            &lines(&format!("Duration over time; 95 % of all runs took less than {duration}"), &durations, ms_text),
        ))
        (chart(
            "Queue delay",
            "The time between due and start. Solid line: half of the runs waited less. Dashed line: 95 % waited less.",
            &lines(&format!("Queue delay over time; 95 % of all runs waited less than {delay}"), &delays, ms_text),
        ))
        (chart(
            "Waiting for rate limits",
            "The time that requests of runs waited because a provider limits them, in total.",
            &bars(&format!("Waiting for rate limits over time: {} in total", ms_text(in_ms(totals.backoff))), &backoff, ms_text),
        ))
        details {
            summary { "The figures as a table" }
            (point_table(points, range))
        }
        h2 { "By integration" }
        (integration_table(visit, &overview.integrations))
    }
}

fn chart(title: &str, legend: &str, chart: &Markup) -> Markup {
    html! { section.card { h2 { (title) } p.hint { (legend) } (chart) } }
}

fn figures(totals: &RunFigures) -> Markup {
    let share = totals.failures() as f64 * 100.0 / totals.runs().max(1) as f64;
    let cards = [
        ("runs ended", number(totals.runs())),
        ("runs failed", format!("{} ({share:.1} %)", number(totals.failures()))),
        ("records changed", number(totals.records_changed)),
        ("duration, 95th percentile", duration_text(totals.duration_p95)),
        ("queue delay, 95th percentile", duration_text(totals.queue_delay_p95)),
        ("waiting for rate limits", ms_text(in_ms(totals.backoff))),
    ];
    html! { div.cards { @for (text, value) in cards { div.card { div.figure { (value) } (text) } } } }
}

fn point_table(points: &[StatisticsPoint], range: StatisticsRange) -> Markup {
    let columns = [
        "From (UTC)",
        "Runs",
        "Failed",
        "Duration, median",
        "95 %",
        "Queue delay, median",
        "95 %",
        "Rate limits",
    ];
    table(
        "Figures over time",
        &columns,
        &html! {
            @for point in points {
                tr {
                    td { (point_label(point, range)) }
                    td.number { (number(point.figures.runs())) }
                    td.number { (number(point.figures.failures())) }
                    td.number { (duration_text(point.figures.duration_p50)) }
                    td.number { (duration_text(point.figures.duration_p95)) }
                    td.number { (duration_text(point.figures.queue_delay_p50)) }
                    td.number { (duration_text(point.figures.queue_delay_p95)) }
                    td.number { (ms_text(in_ms(point.figures.backoff))) }
                }
            }
        },
    )
}

fn integration_table(visit: &Visit, integrations: &[IntegrationFigures]) -> Markup {
    let columns = ["Integration", "Runs", "Failed", "Records changed", "Duration, 95 %", "Queue delay, 95 %"];
    table(
        "Integrations",
        &columns,
        &html! {
            @for IntegrationFigures { integration, figures } in integrations {
                tr {
                    td {
                        @match integration {
                            Some(key) => a href=(visit.url(&format!("runs?integration={}", segment(key.as_str())))) { (key) },
                            None => span.muted { "deleted" },
                        }
                    }
                    td.number { (number(figures.runs())) }
                    td.number {
                        @match integration {
                            Some(key) if figures.failures() > 0 => {
                                a href=(visit.url(&format!("runs?state=error&integration={}", segment(key.as_str())))) { (number(figures.failures())) }
                            }
                            _ => (number(figures.failures())),
                        }
                    }
                    td.number { (number(figures.records_changed)) }
                    td.number { (duration_text(figures.duration_p95)) }
                    td.number { (duration_text(figures.queue_delay_p95)) }
                }
            }
        },
    )
}

fn point_label(point: &StatisticsPoint, range: StatisticsRange) -> String {
    let format = match range {
        StatisticsRange::Day => "%H:%M",
        StatisticsRange::Week => "%b %-d, %H:%M",
        StatisticsRange::Month => "%b %-d",
    };
    point.starts_at.format(format).to_string()
}

fn in_ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

fn ms_text(ms: f64) -> String {
    milliseconds(ms.round().max(0.0) as u64)
}

fn count_text(count: f64) -> String {
    number(count.round() as i64)
}

fn duration_text(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "–".to_owned(), |duration| ms_text(in_ms(duration)))
}
