//! Errors as pages.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::html;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use super::error::{Failed, PageError};
use super::session::is_from_script;
use super::{Dashboard, layout};
use syncline_web::request_source::RequestSource;
use syncline_web::status::status;

/// Turns errors into responses: JSON for the script, otherwise a page. A browser without a session goes to the
/// sign-in page, and comes back afterwards.
pub(crate) async fn render_errors(State(app): State<Dashboard>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let from_script = is_from_script(&parts.headers);
    let id = RequestSource::of(&parts).request_id();
    let target = parts.uri.path_and_query().map_or("/dashboard", |path| path.as_str()).to_owned();
    let is_page = parts.method == Method::GET;
    let mut response = next.run(Request::from_parts(parts, body)).await;
    let Some(Failed(error)) = response.extensions_mut().remove::<Failed>() else { return response };
    if let PageError::Internal(source) = &*error {
        tracing::error!(
            request.id = id,
            error = &**source as &dyn std::error::Error,
            "a page of the dashboard failed with an internal error"
        );
        if !app.health.reaches_databases().await {
            return without_database(from_script);
        }
    }
    if matches!(*error, PageError::SignInRequired) && !from_script && is_page {
        let return_to = utf8_percent_encode(&target, NON_ALPHANUMERIC);
        return Redirect::to(&format!("/dashboard/sign-in?return_to={return_to}")).into_response();
    }
    let (status, code) = (status(error.code()), error.code());
    let internal = matches!(*error, PageError::Internal(_));
    if from_script {
        let message = match id {
            Some(id) if internal => {
                format!("{error}. If it happens again, search the host's log for the request id {id}.")
            }
            _ => error.to_string(),
        };
        return (status, Json(json!({ "code": code.as_str(), "message": message }))).into_response();
    }
    let page = layout::plain(
        "Error",
        &html! {
            h1 { (heading(status)) }
            p.alert role="alert" { (error) }
            @if internal {
                p {
                    "If it happens again, search the host's log for the cause"
                    @if let Some(id) = id { ", with the request id " code { (id) } }
                    "."
                }
            } @else if !matches!(*error, PageError::NotFound(_)) {
                p { (code.remedy()) }
            }
            p.muted { "Code: " code { (code.as_str()) } }
            p { a.button href="/dashboard" { "Go to the dashboard" } }
        },
    );
    (status, Html(page.into_string())).into_response()
}

fn heading(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => "Not found",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::UNAUTHORIZED => "Sign in",
        StatusCode::TOO_MANY_REQUESTS => "Too many attempts",
        status if status.is_server_error() => "Something went wrong",
        _ => "This did not work",
    }
}

/// The page that is shown while the database does not respond. It reloads itself.
fn without_database(from_script: bool) -> Response {
    let message = "The database does not respond. The host continues when it is back; nothing is lost.";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    if from_script {
        return (status, Json(json!({ "code": "no_database", "message": message }))).into_response();
    }
    let page = layout::plain(
        "No database",
        &html! {
            h1 { "No database" }
            p.alert role="alert" { (message) }
            p { "This page reloads every five seconds." }
        },
    );
    (status, [(header::REFRESH, "5")], Html(page.into_string())).into_response()
}
