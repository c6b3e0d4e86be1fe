//! The records: choosing a connection, and then one of its models.

mod model;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};
use serde_json::json;

use super::addresses::{environment_route, records_address};
use super::connections::position::{parse_position, position_text};
use crate::Dashboard;
use crate::commands::api_call;
use crate::components::{
    Tone, badge, cut_to_page, empty, filter_field, filters, heading, integration_filter, pager, snippet,
    table,
};
use crate::error::PageError;
use crate::form::Fields;
use crate::layout::{Section, page};
use crate::query::{Query, address};
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{ConnectionFilter, ConnectionPage, ConnectionRoute, StreamSummary};
use syncline_types::ids::{ConnectionId, IntegrationKey};

const CONNECTIONS_PER_PAGE: usize = 50;
const MAX_STREAMS: i64 = 200;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("records"), get(connections))
        .route(environment_route!("records/connection"), get(streams))
        .merge(model::routes())
}

/// The list of connections to choose from.
async fn connections(
    State(app): State<Dashboard>,
    visit: Visit,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::Records.scope())?;
    visit.require(Scope::ConnectionsList)?;
    let list = visit.url(Section::Records.path());
    let filter = ConnectionFilter {
        search: query.optional("search").map(str::to_owned),
        integrations: query.optional("integration").map(|key| vec![key.to_owned()]),
        behind: query.optional("behind").map(parse_position).transpose()?,
        ..ConnectionFilter::default()
    };
    let wanted = ConnectionPage { limit: CONNECTIONS_PER_PAGE as i64 + 1, offset: 0 };
    let mut found = app.connections.list(visit.environment.pk, &filter, wanted).await?;
    let next = cut_to_page(&mut found, CONNECTIONS_PER_PAGE);
    let next = next.map(|last| query.address(&list, "behind", Some(&position_text(&last.connection))));
    let integrations = app.integrations.list(visit.environment.pk).await?;
    let rows = html! {
        @for described in &found {
            @let connection = &described.connection;
            tr {
                td {
                    a href=(records_address(&visit, &connection.integration_key, &connection.connection_id)) {
                        (connection.connection_id)
                    }
                }
                td { (connection.integration_key) }
                td { (ago(connection.created_at)) }
            }
        }
    };
    let content = html! {
        (heading("Records", &html! {}))
        p { "Choose a connection to see the records that its syncs have saved." }
        (filters(&html! {
            (integration_filter(&integrations, query.text("integration")))
            (filter_field("search", "Connection or end user", "search", query.text("search")))
        }))
        @if found.is_empty() {
            (empty("No connection was found", &html! {
                p { "Records belong to connections. Change the filters, or connect an account first." }
                p { a.button href=(visit.url(Section::Connections.path())) { "Go to the connections" } }
            }))
        } @else {
            (table("Connections", &["Connection", "Integration", "Created"], &rows))
        }
        (pager(query.first_page(&list, "behind").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::Records, "Records", &content))
}

/// The models of a connection.
async fn streams(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Records.scope())?;
    let (integration, id) = connection_name(&query)?;
    let connection = app.connection_cache.get(visit.environment.pk, &integration, &id).await?;
    let streams = app.records.streams(&connection, MAX_STREAMS).await?;
    let rows = html! { @for stream in &streams { (stream_row(&visit, &connection, stream)) } };
    let content = html! {
        (breadcrumb(&visit, &connection, None))
        (heading(&format!("Records of {id}"), &html! {}))
        @if streams.is_empty() {
            (empty("No record has been saved for this connection yet", &html! {
                p { "A sync saves records when it runs. Trigger its syncs, or look at their last runs:" }
                p { a.button href=(visit.url(Section::Syncs.path())) { "Go to the syncs" } }
                (snippet(&trigger_command(&app, &integration, &id)))
            }))
        } @else {
            (table(
                "Models",
                &["Model", "Variant", "Sync", "Records", "Deleted", "Dead letters", "Last change"],
                &rows,
            ))
            @if streams.len() as i64 == MAX_STREAMS {
                p.muted { "Only the first " (MAX_STREAMS) " models and variants are shown." }
            }
        }
    };
    Ok(page(&app, &visit, Section::Records, "Records", &content))
}

fn stream_row(visit: &Visit, connection: &ConnectionRoute, stream: &StreamSummary) -> Markup {
    let fields = [
        ("integration", connection.integration_key.as_str()),
        ("connection", connection.connection_id.as_str()),
        ("model", stream.model.as_str()),
        ("variant", stream.variant.as_str()),
    ];
    let dead_letters = address(&visit.url(Section::DeadLetters.path()), fields.into_iter().take(3));
    html! {
        tr {
            td { a href=(address(&visit.url("records/model"), fields)) { (stream.model) } }
            td { (stream.variant) }
            td { @match &stream.sync { Some(sync) => (sync), None => span.muted { "none" } } }
            td.number { (number(stream.live)) }
            td.number { (number(stream.deleted)) }
            td.number {
                @if stream.dead_letters > 0 {
                    a href=(dead_letters) { (badge(Tone::Warning, &number(stream.dead_letters))) }
                } @else { "0" }
            }
            td { @match stream.last_modified_at { Some(at) => (ago(at)), None => span.muted { "never" } } }
        }
    }
}

fn trigger_command(app: &Dashboard, integration: &IntegrationKey, connection: &ConnectionId) -> String {
    let body = json!({ "provider_config_key": integration, "connection_id": connection, "syncs": [] });
    api_call(&app.public_url, "/sync/trigger", &[], &[("--json", body.to_string())])
}

fn connection_name(query: &Fields) -> Result<(IntegrationKey, ConnectionId), PageError> {
    Ok((query.parse("integration", "Integration")?, query.parse("connection", "Connection")?))
}

/// Links back to the connections and to the connection's models.
fn breadcrumb(visit: &Visit, connection: &ConnectionRoute, model: Option<&str>) -> Markup {
    html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::Records.path())) { "Records" } " / "
            @if let Some(model) = model {
                a href=(records_address(visit, &connection.integration_key, &connection.connection_id)) {
                    (connection.connection_id)
                }
                " / " (model)
            } @else {
                (connection.integration_key) " / " (connection.connection_id)
            }
        }
    }
}
