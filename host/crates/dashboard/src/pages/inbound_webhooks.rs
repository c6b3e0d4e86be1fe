//! The webhooks that providers have sent, and their replay.

mod detail;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use uuid::Uuid;

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{
    Look, Tone, badge, cut_to_page, empty, filter_field, filters, form, heading, integration_filter, pager,
    select, submit, table,
};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::query::{AGES, Query};
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{InboundWebhook, InboundWebhookFilter, InboundWebhookState, Integration};

const WEBHOOKS_PER_PAGE: usize = 50;

/// What can be replayed at once: the value of the field, and what the page calls it.
const REPLAYS: [(&str, &str); 4] = [
    ("failed", "failed"),
    ("unmatched", "matched no connection"),
    ("both", "failed, or matched no connection"),
    ("processed", "were processed"),
];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("inbound-webhooks"), get(webhooks))
        .route(environment_route!("inbound-webhooks/replay"), post(replay_many))
        .route(environment_route!("inbound-webhooks/{id}"), get(detail::webhook))
        .route(environment_route!("inbound-webhooks/{id}/progress"), get(detail::progress))
        .route(environment_route!("inbound-webhooks/{id}/replay"), post(replay))
}

async fn webhooks(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::InboundWebhooks.scope())?;
    let list = visit.url(Section::InboundWebhooks.path());
    let filter = InboundWebhookFilter {
        states: match query.optional("state") {
            None => InboundWebhookState::ALL.to_vec(),
            Some(text) => vec![parse_state(text)?],
        },
        event_type: query.optional("type").map(str::to_owned),
        since: query.since("since", "Received in")?,
        before: query.parse_optional("before", "Page")?,
        integration: query.parse_optional("integration", "Integration")?,
    };
    let integrations = app.integrations.list(visit.environment.pk).await?;
    let mut found =
        app.inbound_webhook_log.list(visit.environment.pk, filter, WEBHOOKS_PER_PAGE as i64 + 1).await?;
    let next = cut_to_page(&mut found, WEBHOOKS_PER_PAGE);
    let next = next.map(|last| query.address(&list, "before", Some(&last.id.to_string())));
    let states: Vec<_> = [("", "all states")]
        .into_iter()
        .chain(InboundWebhookState::ALL.iter().map(|state| (state.as_str(), state.as_str())))
        .collect();
    let rows = html! { @for webhook in &found { (row(&visit, webhook)) } };
    let content = html! {
        (heading("Inbound webhooks", &html! {}))
        p { "The webhooks that providers have sent, newest first." }
        (filters(&html! {
            (select("state", "State", &states, query.text("state")))
            (integration_filter(&integrations, query.text("integration")))
            (filter_field("type", "Type", "text", query.text("type")))
            (select("since", "Received in", &AGES, query.text("since")))
        }))
        @if found.is_empty() {
            (empty("No webhook was found", &html! {
                p {
                    "Change the filters, or let a provider send webhooks: open an integration, copy its webhook URL, and \
                     enter it in the provider's settings."
                }
                p { a.button href=(visit.url(Section::Integrations.path())) { "Go to the integrations" } }
            }))
        } @else {
            (table(
                "Inbound webhooks",
                &["Received", "Type", "Integration", "State", "Connections", "Functions", "Replays"],
                &rows,
            ))
        }
        (pager(query.first_page(&list, "before").as_deref(), next.as_deref()))
        @if visit.allows(Scope::WebhooksRedeliver) { (replay_form(&visit, &integrations)) }
    };
    Ok(page(&app, &visit, Section::InboundWebhooks, "Inbound webhooks", &content))
}

fn row(visit: &Visit, webhook: &InboundWebhook) -> Markup {
    html! {
        tr {
            td { a href=(visit.url(&format!("inbound-webhooks/{}", webhook.id))) { (ago(webhook.received_at)) } }
            td { @match &webhook.event_type { Some(kind) => code { (kind) }, None => span.muted { "none" } } }
            td { (webhook.integration_key) }
            td { (state_badge(&webhook.state)) }
            td.number { (number(webhook.connections.into())) }
            td { (functions(webhook)) }
            td.number { (number(webhook.replays.into())) }
        }
    }
}

fn state_badge(state: &str) -> Markup {
    let tone = match state {
        "processed" => Tone::Good,
        "failed" => Tone::Bad,
        "unmatched" => Tone::Warning,
        "received" | "processing" => Tone::Busy,
        _ => Tone::Neutral,
    };
    badge(tone, state)
}

/// How many function calls have not finished or have failed.
fn functions(webhook: &InboundWebhook) -> Markup {
    html! {
        @if webhook.jobs_left > 0 { (badge(Tone::Busy, &format!("{} left", webhook.jobs_left))) " " }
        @if webhook.jobs_failed > 0 { (badge(Tone::Bad, &format!("{} failed", webhook.jobs_failed))) }
        @if webhook.jobs_left == 0 && webhook.jobs_failed == 0 { span.muted { "finished" } }
    }
}

fn replay_form(visit: &Visit, integrations: &[Integration]) -> Markup {
    html! {
        section.card {
            h2 { "Replay several webhooks" }
            p.muted { "The host calls their functions again, and forwards them to your backend again." }
            (form(visit, &visit.url("inbound-webhooks/replay"), &html! {
                (select("state", "Webhooks that", &REPLAYS, "failed"))
                (select("since", "Received in", &AGES[1..], "24h"))
                (integration_filter(integrations, ""))
                (submit("Replay the webhooks", Look::Secondary))
            }))
        }
    }
}

async fn replay(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::WebhooksRedeliver)?;
    app.inbound_webhook_log.replay(visit.environment.pk, id, &visit.actor()).await?;
    let address = visit.url(&format!("inbound-webhooks/{id}"));
    Ok(done(&app, &visit, &address, "The webhook is processed again."))
}

async fn replay_many(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::WebhooksRedeliver)?;
    let since = form.since("since", "Received in")?;
    let filter = InboundWebhookFilter {
        states: match form.text("state") {
            "failed" => vec![InboundWebhookState::Failed],
            "unmatched" => vec![InboundWebhookState::Unmatched],
            "both" => vec![InboundWebhookState::Failed, InboundWebhookState::Unmatched],
            "processed" => vec![InboundWebhookState::Processed],
            _ => return Err(PageError::invalid("Webhooks that", "choose one of the listed states")),
        },
        event_type: None,
        since: Some(since.ok_or_else(|| PageError::invalid("Received in", "choose a time"))?),
        before: None,
        integration: form.parse_optional("integration", "Integration")?,
    };
    let count = app.inbound_webhook_log.replay_many(visit.environment.pk, filter, &visit.actor()).await?;
    let notice = match count {
        0 => "No webhook matches, so none is replayed.".to_owned(),
        1 => "1 webhook is processed again.".to_owned(),
        count => format!("{} webhooks are processed again.", number(count.cast_signed())),
    };
    Ok(done(&app, &visit, &visit.url(Section::InboundWebhooks.path()), &notice))
}

fn parse_state(text: &str) -> Result<InboundWebhookState, PageError> {
    let found = InboundWebhookState::ALL.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| PageError::invalid("State", "choose one of the listed states"))
}
