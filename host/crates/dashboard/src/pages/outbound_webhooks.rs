//! The webhooks that this host sends to the customer's backend, and their redelivery.

mod detail;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use uuid::Uuid;

use super::addresses::environment_route;
use super::choices::scope;
use crate::Dashboard;
use crate::components::{
    Look, Tone, badge, cut_to_page, empty, filter_field, filters, form, heading, integration_filter, pager,
    select, snippet, submit, table,
};
use crate::error::PageError;
use crate::form::{Fields, Form, done};
use crate::layout::{Section, page};
use crate::query::{AGES, Query};
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::NamedScope;
use syncline_outbound_webhooks::{Delivery, DeliveryFilter, DeliveryState, url_without_secrets};
use syncline_types::ids::{ConnectionId, IntegrationKey};

const DELIVERIES_PER_PAGE: usize = 50;

const KINDS: [(&str, &str); 5] = [
    ("", "all types"),
    ("auth", "auth"),
    ("sync", "sync"),
    ("forward", "forward"),
    ("async_action", "async_action"),
];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("outbound-webhooks"), get(deliveries))
        .route(environment_route!("outbound-webhooks/redeliver"), post(redeliver_failed))
        .route(environment_route!("outbound-webhooks/{id}"), get(detail::delivery))
        .route(environment_route!("outbound-webhooks/{id}/progress"), get(detail::progress))
        .route(environment_route!("outbound-webhooks/{id}/redeliver"), post(redeliver))
}

async fn deliveries(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::OutboundWebhooks.scope())?;
    let list = visit.url(Section::OutboundWebhooks.path());
    let kind = query.optional("type").map(parse_kind).transpose()?;
    let filter = DeliveryFilter {
        states: match query.optional("state") {
            None => DeliveryState::ALL.to_vec(),
            Some(text) => vec![parse_state(text)?],
        },
        kind,
        connection: connection(&query)?,
        since: query.since("since", "Created in")?,
        before: query.parse_optional("before", "Page")?,
    };
    let integrations = app.integrations.list(visit.environment.pk).await?;
    let mut found = app.deliveries.list(visit.environment.pk, filter, DELIVERIES_PER_PAGE as i64 + 1).await?;
    let next = cut_to_page(&mut found, DELIVERIES_PER_PAGE);
    let next = next.map(|last| query.address(&list, "before", Some(&last.pk.to_string())));
    let states: Vec<_> = [("", "all states")]
        .into_iter()
        .chain(DeliveryState::ALL.iter().map(|state| (state.as_str(), state.as_str())))
        .collect();
    let rows = html! { @for delivery in &found { (row(&visit, delivery)) } };
    let content = html! {
        (heading("Outbound webhooks", &html! {}))
        p { "The webhooks that this host sends to your backend, newest first." }
        (filters(&html! {
            (select("state", "State", &states, query.text("state")))
            (select("type", "Type", &KINDS, query.text("type")))
            (select("since", "Created in", &AGES, query.text("since")))
            (integration_filter(&integrations, query.text("integration")))
            (filter_field("connection", "Connection", "text", query.text("connection")))
        }))
        @if found.is_empty() {
            (empty("No delivery was found", &html! {
                p { "Change the filters, or set the URL of your backend in the settings or with the command line:" }
                (snippet(&format!(
                    "syncline env set --environment {} webhook_url=https://example.com/hooks",
                    visit.environment.name
                )))
            }))
        } @else {
            (table(
                "Outbound webhooks",
                &["Created", "Type", "State", "Connection", "URL", "Attempts", "Next attempt"],
                &rows,
            ))
        }
        (pager(query.first_page(&list, "before").as_deref(), next.as_deref()))
        @if visit.allows(Scope::WebhooksRedeliver) {
            section.card {
                h2 { "Redeliver failed webhooks" }
                p.muted {
                    "The host sends them again, with the same id and body, to the URL that is set now. It skips webhooks \
                     without a URL."
                }
                (form(&visit, &visit.url("outbound-webhooks/redeliver"), &html! {
                    (select("since", "Created in", &AGES[1..], "24h"))
                    (submit("Redeliver the failed webhooks", Look::Secondary))
                }))
            }
        }
    };
    Ok(page(&app, &visit, Section::OutboundWebhooks, "Outbound webhooks", &content))
}

fn row(visit: &Visit, delivery: &Delivery) -> Markup {
    html! {
        tr {
            td { a href=(visit.url(&format!("outbound-webhooks/{}", delivery.id))) { (ago(delivery.created_at)) } }
            td { (delivery.kind) }
            td { (state_badge(&delivery.state)) }
            td {
                @match &delivery.connection {
                    Some((integration, id)) => { (id) div.muted { (integration) } },
                    None => span.muted { "none" },
                }
            }
            td { span.clip { (shown_url(visit, delivery)) } }
            td.number { (number(delivery.attempts.into())) }
            td { @match delivery.next_attempt_at { Some(at) => (ago(at)), None => span.muted { "none" } } }
        }
    }
}

fn state_badge(state: &str) -> Markup {
    let tone = match state {
        "delivered" => Tone::Good,
        "failed" => Tone::Bad,
        "pending" => Tone::Busy,
        _ => Tone::Neutral,
    };
    badge(tone, state)
}

/// The URL of a delivery. Its path and query can contain secrets, which only people who can read the settings see.
fn shown_url(visit: &Visit, delivery: &Delivery) -> String {
    match visit.allows(Scope::SettingsRead) {
        true => delivery.url.clone(),
        false => url_without_secrets(&delivery.url),
    }
}

async fn redeliver(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::WebhooksRedeliver)?;
    app.deliveries.redeliver(visit.environment.pk, id, &visit.actor()).await?;
    let address = visit.url(&format!("outbound-webhooks/{id}"));
    Ok(done(&app, &visit, &address, "The webhook is sent again."))
}

async fn redeliver_failed(
    State(app): State<Dashboard>,
    visit: Visit,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::WebhooksRedeliver)?;
    let since = form.since("since", "Created in")?;
    let since = since.ok_or_else(|| PageError::invalid("Created in", "choose a time"))?;
    let count = app.deliveries.redeliver_failed(visit.environment.pk, since, &visit.actor()).await?;
    let notice = match count {
        0 => "No failed webhook was created in this time, so none is sent again.".to_owned(),
        1 => "1 webhook is sent again.".to_owned(),
        count => format!("{} webhooks are sent again.", number(count.cast_signed())),
    };
    Ok(done(&app, &visit, &visit.url(Section::OutboundWebhooks.path()), &notice))
}

/// The list covers one connection or all.
fn connection(query: &Fields) -> Result<Option<(IntegrationKey, ConnectionId)>, PageError> {
    match scope(query)? {
        NamedScope::Environment => Ok(None),
        NamedScope::Connection { integration, connection } => Ok(Some((integration, connection))),
        NamedScope::Integration(_) => {
            Err(PageError::invalid("Connection", "enter the id of a connection of this integration"))
        }
    }
}

fn parse_state(text: &str) -> Result<DeliveryState, PageError> {
    let found = DeliveryState::ALL.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| PageError::invalid("State", "choose one of the listed states"))
}

fn parse_kind(text: &str) -> Result<String, PageError> {
    match KINDS.iter().any(|(kind, _)| *kind == text) {
        true => Ok(text.to_owned()),
        false => Err(PageError::invalid("Type", "choose one of the listed types")),
    }
}
