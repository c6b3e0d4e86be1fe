//! One inbound webhook, with the functions that process it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use super::super::addresses::connection_url;
use super::state_badge;
use crate::Dashboard;
use crate::components::{Look, Tone, action_button, badge, facts, heading, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::query::address;
use crate::session::Visit;
use crate::time::{bytes, exact, number};
use crate::tree::{shorten, tree};
use syncline_auth::Scope;
use syncline_engine::{InboundWebhookDetail, WebhookJob};
use syncline_types::functions::JobState;

/// Most functions that the page lists. A webhook about many connections has more.
const MAX_FUNCTIONS: usize = 100;
const MAX_HEADERS: usize = 60;

pub(super) async fn webhook(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::InboundWebhooks.scope())?;
    let detail = app.inbound_webhook_log.get(visit.environment.pk, id).await?;
    let title = detail.webhook.event_type.as_deref().unwrap_or("Webhook without a type");
    let replay = html! {
        @if visit.allows(Scope::WebhooksRedeliver) {
            (action_button(
                &visit,
                &visit.url(&format!("inbound-webhooks/{id}/replay")),
                "Replay",
                Look::Secondary,
                None,
            ))
        }
    };
    let content = html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::InboundWebhooks.path())) { "Inbound webhooks" } " / " (id)
        }
        (heading(title, &replay))
        (live::part(&visit.url(&format!("inbound-webhooks/{id}/progress")), &state(&visit, &detail)))
        h2 { "Body" }
        p.muted { (bytes(detail.body.len())) }
        section.card { (tree(&detail.body)) }
        h2 { "Headers" }
        p.muted { "Headers that can contain secrets are not stored." }
        (table("Headers", &["Name", "Value"], &headers(&detail.headers)))
    };
    Ok(page(&app, &visit, Section::InboundWebhooks, title, &content))
}

/// Streams the state of a webhook while it is processed.
pub(super) async fn progress(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::InboundWebhooks.scope())?;
    let (services, visit) = (app.clone(), Arc::new(visit));
    let person = visit.person.clone();
    Ok(live::stream_part(&app, &person, move || {
        let (app, visit) = (services.clone(), Arc::clone(&visit));
        async move { Ok(state(&visit, &app.inbound_webhook_log.get(visit.environment.pk, id).await?)) }
    }))
}

fn state(visit: &Visit, detail: &InboundWebhookDetail) -> Markup {
    let webhook = &detail.webhook;
    let rows =
        html! { @for job in detail.functions.iter().take(MAX_FUNCTIONS) { (job_row(visit, detail, job)) } };
    html! {
        (facts(&[
            ("State", state_badge(&webhook.state)),
            ("Integration", html! { (webhook.integration_key) }),
            ("Received", html! { (exact(webhook.received_at)) " UTC" }),
            ("Finished", html! {
                @match webhook.finished_at { Some(at) => { (exact(at)) " UTC" }, None => span.muted { "not yet" } }
            }),
            ("Delivery id", html! {
                @match &webhook.delivery_id { Some(id) => code { (id) }, None => span.muted { "none" } }
            }),
            ("Connections", html! { (number(webhook.connections.into())) }),
            ("Replays", html! { (number(webhook.replays.into())) }),
        ]))
        @if let Some(error) = &webhook.error { p.alert { (error) } }
        @if webhook.state == "unmatched" {
            p {
                "No connection of this integration matches the webhook. Connect the account that it is about, and \
                 replay the webhook."
            }
        }
        h2 { "Functions" }
        @if detail.functions.is_empty() {
            p.muted { "No function has processed this webhook, or their jobs have been deleted." }
        } @else {
            (table("Functions", &["Function", "Connection", "State", "Failed attempts", "Runs"], &rows))
            @if detail.functions.len() > MAX_FUNCTIONS {
                p.muted { "Only the first " (MAX_FUNCTIONS) " of " (detail.functions.len()) " functions are shown." }
            }
        }
    }
}

fn job_row(visit: &Visit, detail: &InboundWebhookDetail, job: &WebhookJob) -> Markup {
    let integration = &detail.webhook.integration_key;
    let runs = [
        ("integration", integration.as_str()),
        ("connection", job.connection_id.as_str()),
        ("function", job.function.as_str()),
    ];
    html! {
        tr {
            td { (job.function) }
            td { a href=(connection_url(visit, integration, &job.connection_id)) { (job.connection_id) } }
            td { (job_badge(job.state)) }
            td.number { (number(job.failures.into())) }
            td { a href=(address(&visit.url(Section::Runs.path()), runs)) { "Runs" } }
        }
    }
}

fn job_badge(state: JobState) -> Markup {
    let tone = match state {
        JobState::Queued => Tone::Neutral,
        JobState::Running => Tone::Busy,
        JobState::Success => Tone::Good,
        JobState::Error => Tone::Bad,
    };
    badge(tone, state.as_str())
}

fn headers(stored: &Value) -> Markup {
    html! {
        @for (name, value) in stored.as_object().into_iter().flatten().take(MAX_HEADERS) {
            tr { td { code { (name) } } td { code { (shorten(value.as_str().unwrap_or_default(), 300)) } } }
        }
    }
}
