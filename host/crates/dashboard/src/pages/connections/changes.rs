//! Shows and refreshes the credentials of a connection, replaces its metadata, and deletes it.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};

use crate::Dashboard;
use crate::components::{Look, action_button, form, heading, json_text, long_text, submit, text_area};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::pages::addresses::{connection_url, environment_route, parse_names};
use crate::session::Visit;
use syncline_auth::Scope;
use syncline_engine::{CredentialOptions, Freshness, MetadataChange};
use syncline_types::json;
use syncline_types::metadata::{InvalidMetadata, Metadata};

/// Longest metadata that can be edited on the page, in bytes.
const MAX_EDITABLE_BYTES: usize = 16 << 10;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("connections/{integration}/{id}/credentials"), post(show_credentials))
        .route(environment_route!("connections/{integration}/{id}/refresh"), post(refresh))
        .route(environment_route!("connections/{integration}/{id}/metadata"), post(replace_metadata))
        .route(environment_route!("connections/{integration}/{id}/delete"), post(delete))
}

/// The metadata, with a form that replaces it.
pub(super) fn metadata(visit: &Visit, url: &str, metadata: Option<&Metadata>) -> Markup {
    let text = metadata.map_or_else(|| "{}".to_owned(), |stored| json::indented(stored.as_str()));
    let is_short = text.len() <= MAX_EDITABLE_BYTES;
    html! {
        section.card {
            h2 { "Metadata" }
            p.muted { "A JSON object that your backend and your functions share." }
            @if visit.allows(Scope::ConnectionsUpdate) && is_short {
                (form(visit, &format!("{url}/metadata"), &html! {
                    input type="hidden" name="edited" value=(fingerprint(metadata));
                    (text_area("metadata", "Metadata", &text, 8))
                    (submit("Replace the metadata", Look::Primary))
                }))
            } @else {
                (long_text(&text))
                @if !is_short { p.muted { "It is too long to edit here. Use " code { "PATCH /connections/metadata" } "." } }
            }
        }
    }
}

/// The button that deletes a connection.
pub(super) fn deletion(visit: &Visit, url: &str) -> Markup {
    html! {
        @if visit.allows(Scope::ConnectionsDelete) {
            section.card {
                h2 { "Delete the connection" }
                p { "Its syncs and records are deleted too. The account at the provider stays." }
                (action_button(
                    visit,
                    &format!("{url}/delete"),
                    "Delete the connection",
                    Look::Danger,
                    Some("Delete this connection with its records? This cannot be undone."),
                ))
            }
        }
    }
}

/// Distinguishes versions of the metadata, so that the form does not overwrite a change that the person has not seen.
fn fingerprint(metadata: Option<&Metadata>) -> String {
    let mut hasher = DefaultHasher::new();
    metadata.map(Metadata::as_str).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

async fn show_credentials(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsRead)?;
    visit.require(Scope::ConnectionsReadCredentials)?;
    let (key, id) = parse_names(&key, &id)?;
    let options = CredentialOptions { freshness: Freshness::AsNeeded, with_app_token: false };
    let fetched = app.connections.fetch(&visit.environment, &key, &id, Some(options), &visit.actor()).await?;
    let credentials = fetched.credentials.map(|credentials| credentials.to_wire(false)).unwrap_or_default();
    let url = connection_url(&visit, &key, &id);
    let content = html! {
        p.breadcrumb { a href=(url) { (id) } }
        (heading("Credentials", &html! {}))
        p { "The live credentials of the connection, refreshed if they had expired. Refresh tokens are not shown." }
        (json_text(&credentials))
        p { a.button href=(url) { "Back to the connection" } }
    };
    Ok(page(&app, &visit, Section::Connections, "Credentials", &content))
}

async fn refresh(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsRead)?;
    visit.require(Scope::ConnectionsReadCredentials)?;
    let (key, id) = parse_names(&key, &id)?;
    let before = app.connections.get(visit.environment.pk, &key, &id).await?.connection.refresh.version;
    let options = CredentialOptions { freshness: Freshness::Forced, with_app_token: false };
    let fetched = app.connections.fetch(&visit.environment, &key, &id, Some(options), &visit.actor()).await?;
    let notice = if fetched.described.connection.refresh.version == before {
        "These credentials cannot be refreshed: they do not expire, or there is no refresh token."
    } else {
        "The credentials were refreshed."
    };
    Ok(done(&app, &visit, &connection_url(&visit, &key, &id), notice))
}

async fn replace_metadata(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsUpdate)?;
    let (key, id) = parse_names(&key, &id)?;
    let metadata = Metadata::parse(form.raw("metadata")).map_err(|problem| match problem {
        InvalidMetadata::NotAnObject => {
            PageError::invalid("Metadata", "it must be a JSON object, such as {\"region\": \"eu\"}")
        }
        problem => PageError::invalid("Metadata", format!("it {problem}")),
    })?;
    let present = app.connections.get(visit.environment.pk, &key, &id).await?.connection.metadata;
    if fingerprint(present.as_ref()) != form.text("edited") {
        return Err(PageError::invalid(
            "Metadata",
            "it was changed since you opened this page; copy your text, reload the page and edit it again",
        ));
    }
    let ids = [id];
    let change = MetadataChange::Replace;
    app.connections.set_metadata(visit.environment.pk, &key, &ids, &metadata, change, &visit.actor()).await?;
    Ok(done(&app, &visit, &connection_url(&visit, &key, &ids[0]), "The metadata was replaced."))
}

async fn delete(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsDelete)?;
    let (key, id) = parse_names(&key, &id)?;
    app.connections.delete(visit.environment.pk, &key, &id, &visit.actor()).await?;
    Ok(done(&app, &visit, &visit.url("connections"), &format!("The connection {id} was deleted.")))
}
