//! One delivery of an outbound webhook, with its attempts.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use uuid::Uuid;

use super::super::addresses::connection_url;
use super::{shown_url, state_badge};
use crate::Dashboard;
use crate::components::{Look, Tone, action_button, badge, facts, heading, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::session::Visit;
use crate::time::{ago, bytes, exact, milliseconds, number};
use crate::tree::tree;
use syncline_auth::Scope;
use syncline_outbound_webhooks::{DeliveryDetail, LoggedAttempt};

pub(super) async fn delivery(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::OutboundWebhooks.scope())?;
    let detail = app.deliveries.get(visit.environment.pk, id).await?;
    let title = format!("Webhook of type {}", detail.delivery.kind);
    let redeliver = html! {
        @if visit.allows(Scope::WebhooksRedeliver) {
            (action_button(
                &visit,
                &visit.url(&format!("outbound-webhooks/{id}/redeliver")),
                "Redeliver",
                Look::Secondary,
                None,
            ))
        }
    };
    let content = html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::OutboundWebhooks.path())) { "Outbound webhooks" } " / " (id)
        }
        (heading(&title, &redeliver))
        (live::part(&visit.url(&format!("outbound-webhooks/{id}/progress")), &state(&visit, &detail)))
        h2 { "Body" }
        p.muted { (bytes(detail.body.len())) }
        section.card { (tree(&detail.body)) }
    };
    Ok(page(&app, &visit, Section::OutboundWebhooks, &title, &content))
}

/// Streams the state of a delivery while it is sent.
pub(super) async fn progress(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::OutboundWebhooks.scope())?;
    let (services, visit) = (app.clone(), Arc::new(visit));
    let person = visit.person.clone();
    Ok(live::stream_part(&app, &person, move || {
        let (app, visit) = (services.clone(), Arc::clone(&visit));
        async move { Ok(state(&visit, &app.deliveries.get(visit.environment.pk, id).await?)) }
    }))
}

fn state(visit: &Visit, detail: &DeliveryDetail) -> Markup {
    let delivery = &detail.delivery;
    let rows = html! { @for attempt in &detail.attempts { (attempt_row(attempt)) } };
    html! {
        (facts(&[
            ("State", state_badge(&delivery.state)),
            ("URL", html! { code { (shown_url(visit, delivery)) } }),
            ("Connection", html! {
                @match &delivery.connection {
                    Some((integration, id)) => {
                        a href=(connection_url(visit, integration, id)) { (id) } " of " (integration)
                    },
                    None => span.muted { "none, or it was deleted" },
                }
            }),
            ("Created", html! { (exact(delivery.created_at)) " UTC" }),
            ("Next attempt", html! {
                @match delivery.next_attempt_at { Some(at) => (ago(at)), None => span.muted { "none" } }
            }),
            ("Finished", html! {
                @match delivery.finished_at { Some(at) => { (exact(at)) " UTC" }, None => span.muted { "not yet" } }
            }),
            ("webhook-id", html! { code { (delivery.message_id) } }),
        ]))
        h2 { "Attempts" }
        @if detail.attempts.is_empty() {
            p.muted { "The webhook has not been sent yet." }
        } @else {
            (table("Attempts", &["Attempt", "Time (UTC)", "Result", "Duration"], &rows))
        }
    }
}

fn attempt_row(attempt: &LoggedAttempt) -> Markup {
    let tone = match attempt.status {
        Some(200..=299) => Tone::Good,
        _ => Tone::Bad,
    };
    let status = attempt.status.map_or("no response".to_owned(), |status| format!("status {status}"));
    html! {
        tr {
            td.number { (number(attempt.number.into())) }
            td { (exact(attempt.at)) }
            td { (badge(tone, &status)) @if let Some(error) = &attempt.error { div { (error) } } }
            td.number { (milliseconds(attempt.duration_ms.unsigned_abs().into())) }
        }
    }
}
