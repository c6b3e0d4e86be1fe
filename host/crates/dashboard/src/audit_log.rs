//! The audit log: who changed what, and who read credentials.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, SecondsFormat};
use futures_util::{StreamExt, TryStreamExt, stream};
use maud::{Markup, html};
use serde_json::json;

use super::Dashboard;
use super::components::{
    Tone, badge, cut_to_page, empty, filter_field, filters, heading, pager, select, table,
};
use super::error::PageError;
use super::layout::{GlobalSection, global_page};
use super::query::{Query, address};
use super::session::Visitor;
use super::time::{ago, exact};
use super::tree::shorten;
use syncline_auth::Scope;
use syncline_engine::{AuditEntry, AuditFilter, AuditLogError, AuditPosition};
use syncline_types::audit_log::AuditAction;

const ENTRIES_PER_PAGE: usize = 50;
const EXPORT_PATH: &str = "/dashboard/audit-log/export";

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new().route("/dashboard/audit-log", get(audit_log)).route(EXPORT_PATH, get(export))
}

async fn audit_log(
    State(app): State<Dashboard>,
    visitor: Visitor,
    query: Query,
) -> Result<Response, PageError> {
    visitor.require(Scope::AuditLogRead)?;
    let behind = query.optional("behind").map(read_position).transpose()?;
    let filter = AuditFilter { behind, ..filter(&query)? };
    let mut found = app.audit_log.list(&filter, ENTRIES_PER_PAGE as i64 + 1).await?;
    let next = cut_to_page(&mut found, ENTRIES_PER_PAGE);
    let next = next.map(|last| {
        query.address(GlobalSection::AuditLog.url(), "behind", Some(&write_position(last.position)))
    });
    let environments: Vec<_> = [("", "all environments")]
        .into_iter()
        .chain(visitor.environments.iter().map(|known| (known.name.as_str(), known.name.as_str())))
        .collect();
    let actions: Vec<_> = [("", "all actions")]
        .into_iter()
        .chain(AuditAction::ALL.iter().map(|action| (action.as_str(), action.as_str())))
        .collect();
    let rows = html! { @for entry in &found { (row(&query, entry)) } };
    let export = html! { a.button href=(query.address(EXPORT_PATH, "behind", None)) download { "Export" } };
    let content = html! {
        (heading("Audit log", &export))
        p {
            "Who changed what, and who read credentials, newest first. Nobody can change an entry. The export has all \
             entries that match the filters, one JSON object per line."
        }
        (filters(&html! {
            (select("environment", "Environment", &environments, query.text("environment")))
            (select("action", "Action", &actions, query.text("action")))
            (filter_field("actor", "Id of the author", "text", query.text("actor")))
            (filter_field("target", "Target", "text", query.text("target")))
            (filter_field("after", "From (UTC)", "datetime-local", query.text("after")))
            (filter_field("before", "Until (UTC)", "datetime-local", query.text("before")))
        }))
        @if found.is_empty() {
            (empty("No entry matches", &html! {
                p { "Change the filters. Old entries are deleted after the time that the host's settings state." }
                p { a.button href=(GlobalSection::AuditLog.url()) { "Show all entries" } }
            }))
        } @else {
            (table("Audit log", &["Time", "Author", "Action", "Target", "Environment", "Address", "Details"], &rows))
        }
        (pager(query.first_page(GlobalSection::AuditLog.url(), "behind").as_deref(), next.as_deref()))
    };
    Ok(global_page(&app, &visitor, GlobalSection::AuditLog, "Audit log", &content))
}

fn row(query: &Query, entry: &AuditEntry) -> Markup {
    let of = |name: &str, value: &str| {
        // A new filter begins with the newest entries.
        let others =
            query.pairs().filter(|(key, value)| *key != name && *key != "behind" && !value.is_empty());
        address(GlobalSection::AuditLog.url(), others.chain([(name, value)]))
    };
    html! {
        tr {
            td { (exact(entry.position.at)) div.muted { (ago(entry.position.at)) } }
            td {
                a href=(of("actor", &entry.actor_id)) { (entry.actor_name.as_deref().unwrap_or(&entry.actor_id)) }
                div { (badge(Tone::Neutral, &entry.actor_kind.replace('_', " "))) }
            }
            td { code { (entry.action) } }
            td {
                a href=(of("target", &entry.target)) { (entry.target) }
                div.muted { (entry.target_kind.replace('_', " ")) }
            }
            td {
                @match &entry.environment { Some(name) => (name), None => span.muted { "installation" } }
            }
            td { @if let Some(from) = &entry.address { (from) } }
            td {
                details {
                    summary { "Show" }
                    @if let Some(id) = &entry.request_id { div { "Request " code { (id) } } }
                    div { code { (shorten(&entry.details.to_string(), 400)) } }
                }
            }
        }
    }
}

/// Streams all entries that match, one JSON object per line, in the form of `GET /audit-log/export`.
async fn export(State(app): State<Dashboard>, visitor: Visitor, query: Query) -> Result<Response, PageError> {
    visitor.require(Scope::AuditLogRead)?;
    let mut pages = Box::pin(Arc::clone(&app.audit_log).export(filter(&query)?));
    // Read before the response begins, so that a failure is shown as a page.
    let first = pages.try_next().await?.unwrap_or_default();
    let lines = stream::once(async { Ok(first) }).chain(pages).map(|page| {
        let page = page.inspect_err(note_interrupted)?;
        Ok::<_, AuditLogError>(page.iter().map(line).collect::<String>())
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"audit-log.jsonl\""),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

fn line(entry: &AuditEntry) -> String {
    let body = json!({
        "id": entry.id,
        "at": entry.position.at.to_rfc3339_opts(SecondsFormat::Millis, true),
        "environment": entry.environment,
        "actor": { "kind": entry.actor_kind, "id": entry.actor_id, "name": entry.actor_name },
        "action": entry.action,
        "target": { "kind": entry.target_kind, "name": entry.target },
        "details": entry.details,
        "address": entry.address,
        "request_id": entry.request_id,
    });
    format!("{body}\n")
}

/// Logs an error that the response cannot report, because it has begun.
fn note_interrupted(error: &AuditLogError) {
    tracing::error!(error = error as &dyn std::error::Error, "an export of the audit log was interrupted");
}

fn filter(query: &Query) -> Result<AuditFilter, PageError> {
    let text = |name: &str| query.optional(name).map(str::to_owned);
    let action = query.optional("action").map(|text| {
        let found = AuditAction::ALL.iter().find(|action| action.as_str() == text);
        found.copied().ok_or_else(|| PageError::invalid("Action", "choose one of the listed actions"))
    });
    Ok(AuditFilter {
        environment: text("environment"),
        actor: text("actor"),
        action: action.transpose()?,
        target: text("target"),
        after: query.time("after", "From")?,
        before: query.time("before", "Until")?,
        behind: None,
    })
}

fn write_position(position: AuditPosition) -> String {
    format!("{}-{}", position.at.timestamp_micros(), position.pk)
}

fn read_position(text: &str) -> Result<AuditPosition, PageError> {
    let read = || {
        let (micros, pk) = text.split_once('-')?;
        let at = DateTime::from_timestamp_micros(micros.parse().ok()?)?;
        Some(AuditPosition { at, pk: pk.parse().ok()? })
    };
    read().ok_or_else(|| PageError::invalid("Page", "open the list again"))
}
