//! The list of connections: accounts that end users have connected.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::position::{parse_position, position_text};
use super::state::state;
use super::test_account;
use crate::Dashboard;
use crate::components::{cut_to_page, empty, filters, heading, logo, pager, select, snippet, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::addresses::{connection_url, environment_route, integration_url};
use crate::pages::integrations::first_steps::no_integrations;
use crate::query::Query;
use crate::session::Visit;
use crate::time::ago;
use syncline_engine::{
    ConnectionErrorFilter, ConnectionFilter, ConnectionPage, DescribedConnection, Integration,
};

const PAGE_SIZE: usize = 50;
/// The number of integrations that the filter offers.
const MAX_CHOICES: usize = 100;
/// Longest text that is searched for, in characters.
const MAX_SEARCH_CHARACTERS: usize = 255;
const ERRORS: [(&str, &str); 4] = [
    ("", "all connections"),
    ("any", "with an error"),
    ("auth", "credentials do not work"),
    ("sync", "a sync failed"),
];

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("connections"), get(connections))
}

async fn connections(
    State(app): State<Dashboard>,
    visit: Visit,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::Connections.scope())?;
    let environment = visit.environment.pk;
    let filter = read_filter(&query)?;
    let limit = ConnectionPage { limit: PAGE_SIZE as i64 + 1, offset: 0 };
    let mut found = app.connections.list(environment, &filter, limit).await?;
    let address = visit.url("connections");
    let first = filter.behind.map(|_| query.address(&address, "behind", None));
    let next = cut_to_page(&mut found, PAGE_SIZE);
    let next = next.map(|last| query.address(&address, "behind", Some(&position_text(&last.connection))));
    let is_filtered =
        ["search", "integration", "errors", "tag", "behind"].iter().any(|name| !query.text(name).is_empty());
    let integrations = app.integrations.list(environment).await?;
    let rows = html! { @for described in &found { (row(&visit, described)) } };
    let content = html! {
        (heading("Connections", &html! { @if !integrations.is_empty() { (test_account::button(&visit, None)) } }))
        @if found.is_empty() && !is_filtered {
            @if integrations.is_empty() { (no_integrations(&app, &visit)) } @else { (no_connections(&app)) }
        } @else {
            (filter_form(&query, &integrations))
            @if found.is_empty() {
                (empty("No connection matches", &html! { p { a href=(address) { "Show all connections" } } }))
            } @else {
                (table("Connections", &["Connection", "Integration", "State", "End user", "Tags", "Created"], &rows))
                (pager(first.as_deref(), next.as_deref()))
            }
        }
    };
    Ok(page(&app, &visit, Section::Connections, "Connections", &content))
}

fn filter_form(query: &Query, integrations: &[Integration]) -> Markup {
    let chosen = query.text("integration");
    let mut keys: Vec<&str> =
        integrations.iter().take(MAX_CHOICES).map(|integration| integration.unique_key.as_str()).collect();
    if !chosen.is_empty() && !keys.contains(&chosen) {
        keys.push(chosen);
    }
    let choices: Vec<_> =
        std::iter::once(("", "all")).chain(keys.into_iter().map(|key| (key, key))).collect();
    filters(&html! {
        label.field {
            span.label { "Search" }
            input type="search" name="search" value=(query.text("search")) placeholder="Id, name or email address";
        }
        (select("integration", "Integration", &choices, chosen))
        (select("errors", "State", &ERRORS, query.text("errors")))
        label.field {
            span.label { "Tag" }
            input type="text" name="tag" value=(query.text("tag")) placeholder="plan=pro" autocomplete="off";
        }
    })
}

fn read_filter(query: &Query) -> Result<ConnectionFilter, PageError> {
    let search = query.optional("search").map(|text| text.chars().take(MAX_SEARCH_CHARACTERS).collect());
    let errors = match query.text("errors") {
        "any" => Some(ConnectionErrorFilter::Any),
        "auth" => Some(ConnectionErrorFilter::Auth),
        "sync" => Some(ConnectionErrorFilter::Sync),
        _ => None,
    };
    Ok(ConnectionFilter {
        search,
        integrations: query.optional("integration").map(|key| vec![key.to_owned()]),
        tags: query.optional("tag").map(parse_tag).transpose()?,
        errors,
        behind: query.optional("behind").map(parse_position).transpose()?,
        ..ConnectionFilter::default()
    })
}

fn parse_tag(text: &str) -> Result<Value, PageError> {
    let invalid = || PageError::invalid("Tag", "write it as name=value, such as plan=pro");
    let (name, value) = text.split_once('=').ok_or_else(invalid)?;
    let tag = (name.trim().to_lowercase(), Value::from(value.trim()));
    Ok(Value::Object(Map::from_iter([tag])))
}

fn row(visit: &Visit, described: &DescribedConnection) -> Markup {
    let connection = &described.connection;
    html! {
        tr {
            td {
                a.clip href=(connection_url(visit, &connection.integration_key, &connection.connection_id)) {
                    (connection.connection_id)
                }
            }
            td {
                span.named {
                    (logo(&connection.provider))
                    a href=(integration_url(visit, &connection.integration_key)) { (connection.integration_key) }
                }
            }
            td { (state(&described.errors)) }
            td { (end_user_name(connection.end_user.as_ref())) }
            td { (tags(&connection.tags)) }
            td { (ago(connection.created_at)) }
        }
    }
}

/// The name of an end user, or the best replacement for it.
fn end_user_name(end_user: Option<&Value>) -> Markup {
    let text = |name| end_user.and_then(|user| user[name].as_str()).filter(|text: &&str| !text.is_empty());
    html! {
        @match ["display_name", "email", "id"].into_iter().find_map(text) {
            Some(name) => span.clip { (name) },
            None => span.muted { "unknown" },
        }
    }
}

/// The tags that were not derived from the end user.
fn tags(tags: &Value) -> Markup {
    let own = tags.as_object().into_iter().flatten();
    let own = own.filter(|(name, _)| !name.starts_with("end_user_") && !name.starts_with("organization_"));
    html! { @for (name, value) in own { div { (name) "=" (value.as_str().unwrap_or_default()) } } }
}

fn no_connections(app: &Dashboard) -> Markup {
    let command = format!(
        "curl {}/connect/sessions \\\n  --header 'Authorization: Bearer <secret key>' \\\n  \
         --json '{{\"end_user\": {{\"id\": \"user-1\"}}}}'",
        app.public_url
    );
    empty(
        "There is no connection yet",
        &html! {
            p { "A connection is an account that an end user has connected. Connect a test account with the button above." }
            p { "In your product, your backend creates a connect session for each end user, and passes the link on:" }
            (snippet(&command))
        },
    )
}
