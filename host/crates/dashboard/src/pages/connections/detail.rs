//! The page of one connection.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};
use serde_json::Value;

use super::state::state;
use super::{activity, changes, test_account};
use crate::Dashboard;
use crate::components::{Look, Tone, action_button, badge, copyable, facts, heading, json_text, logo, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::pages::addresses::{connection_url, environment_route, integration_url, parse_names};
use crate::session::Visit;
use crate::time::ago;
use syncline_auth::{Scope, remove_refresh_tokens};
use syncline_engine::{Connection, ConnectionError, DescribedConnection};
use syncline_types::error_code::ErrorCode;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("connections/{integration}/{id}"), get(connection))
}

async fn connection(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsRead)?;
    let (key, id) = parse_names(&key, &id)?;
    let DescribedConnection { mut connection, errors } =
        app.connections.get(visit.environment.pk, &key, &id).await?;
    remove_refresh_tokens(&mut connection.connection_config);
    let url = connection_url(&visit, &key, &id);
    let content = html! {
        p.breadcrumb { a href=(visit.url("connections")) { "Connections" } }
        (heading(id.as_str(), &html! { (test_account::reconnect_button(&visit, &url)) }))
        (facts(&[
            ("State", state(&errors)),
            ("Connection id", copyable(id.as_str())),
            ("Integration", html! {
                span.named { (logo(&connection.provider)) a href=(integration_url(&visit, &key)) { (key) } }
            }),
            ("Created", ago(connection.created_at)),
            ("Changed", ago(connection.updated_at)),
            ("Credentials last read", html! {
                @match connection.last_fetched_at { Some(at) => (ago(at)), None => "never" }
            }),
        ]))
        (error_table(&visit, &errors))
        h2 { "Credentials" }
        (refresh_state(&connection))
        (credential_actions(&visit, &url))
        (live::part(&format!("{url}/activity"), &activity::render(&app, &visit, &key, &id).await?))
        h2 { "End user" }
        (end_user(connection.end_user.as_ref()))
        (tag_facts(&connection.tags))
        @if let Some(address) = &connection.webhook_url_override {
            p { "Webhooks of this connection go to " code { (address) } "." }
        }
        h2 { "Connection configuration" }
        p.muted { "Values about the account that were collected while connecting." }
        (json_text(&connection.connection_config))
        (changes::metadata(&visit, &url, connection.metadata.as_ref()))
        (changes::deletion(&visit, &url))
    };
    Ok(page(&app, &visit, Section::Connections, id.as_str(), &content))
}

fn error_table(visit: &Visit, errors: &[ConnectionError]) -> Markup {
    let rows = html! {
        @for error in errors {
            tr {
                td {
                    @match &error.sync {
                        None => "credentials",
                        Some((sync, variant)) if variant.is_base() => { "sync " code { (sync) } },
                        Some((sync, variant)) => { "sync " code { (sync) } ", variant " code { (variant) } },
                    }
                }
                td {
                    div { (error.message) }
                    @if let Ok(code) = error.code.parse::<ErrorCode>() { div.muted { (code.remedy()) } }
                    div.muted { "Code: " code { (error.code) } }
                }
                td { (ago(error.since)) }
                td.right {
                    // The log of a failed sync or of rejected credentials is that of the run.
                    @let has_run = error.sync.is_some() || error.code == ErrorCode::CredentialsRejected.as_str();
                    @if has_run && visit.allows(Scope::LogsRead) {
                        a.button href=(visit.url(&format!("runs/{}", error.log_id))) { "Run" }
                    }
                }
            }
        }
    };
    html! {
        @if !errors.is_empty() {
            h2 { "Errors" }
            (table("Errors", &["Of", "Problem", "Since", ""], &rows))
        }
    }
}

/// When the credentials were obtained, and how their refreshes went.
fn refresh_state(connection: &Connection) -> Markup {
    let refresh = &connection.refresh;
    let failures = html! {
        @match refresh.failed_at {
            None => (badge(Tone::Good, "none")),
            Some(at) => {
                (badge(Tone::Bad, "failing")) " last " (ago(at))
                @if refresh.failing_days > 1 { ", on " (refresh.failing_days) " days" }
            },
        }
    };
    facts(&[
        ("Obtained or refreshed", ago(refresh.changed_at)),
        ("Expire", html! { @match refresh.expire_at { Some(at) => (ago(at)), None => "never, or unknown" } }),
        (
            "Next refresh",
            html! {
                @if refresh.is_exhausted {
                    (badge(Tone::Bad, "given up")) " The end user must reconnect."
                } @else {
                    @match refresh.due_at { Some(at) => (ago(at)), None => "not needed" }
                }
            },
        ),
        ("Failed refreshes", failures),
    ])
}

fn credential_actions(visit: &Visit, url: &str) -> Markup {
    html! {
        @if visit.allows(Scope::ConnectionsReadCredentials) {
            div.actions {
                (action_button(visit, &format!("{url}/credentials"), "Show the credentials", Look::Secondary, None))
                (action_button(visit, &format!("{url}/refresh"), "Refresh now", Look::Secondary, None))
            }
        } @else {
            p.muted { "Your role does not allow you to see the credentials." }
        }
    }
}

fn end_user(user: Option<&Value>) -> Markup {
    let Some(user) = user else { return html! { p.muted { "This connection names no end user." } } };
    let text = |value: &Value| -> Markup {
        match value.as_str().filter(|text| !text.is_empty()) {
            Some(text) => html! { (text) },
            None => html! { span.muted { "unknown" } },
        }
    };
    facts(&[
        ("Id", text(&user["id"])),
        ("Name", text(&user["display_name"])),
        ("Email address", text(&user["email"])),
        (
            "Organization",
            html! {
                (text(&user["organization"]["id"]))
                @if let Some(name) = user["organization"]["display_name"].as_str() { " (" (name) ")" }
            },
        ),
    ])
}

fn tag_facts(tags: &Value) -> Markup {
    let tags = tags.as_object().filter(|tags| !tags.is_empty());
    let Some(tags) = tags else { return html! { p.muted { "This connection has no tags." } } };
    let pairs: Vec<_> = tags
        .iter()
        .map(|(name, value)| (name.as_str(), html! { (value.as_str().unwrap_or_default()) }))
        .collect();
    html! { h3 { "Tags" } (facts(&pairs)) }
}
