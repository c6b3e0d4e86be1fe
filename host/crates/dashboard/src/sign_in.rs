//! Signing in and out, and the pages of one-time links.

use axum::Router;
use axum::extract::{FromRequest, Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use serde::Deserialize;

use super::components::{Look, TextField, submit};
use super::error::PageError;
use super::form::{Fields, Form, go};
use super::session::{
    Visitor, ended_session_cookie, is_from_script, notice_cookie, session_cookie, session_token,
};
use super::{Dashboard, LINK_PATH, layout};
use syncline_auth::{Account, Email, LinkPurpose, Password};
use syncline_web::request_source::RequestSource;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route("/dashboard/sign-in", get(sign_in_page).post(sign_in))
        .route("/dashboard/sign-out", post(sign_out))
        .route(LINK_PATH, get(link_page).post(use_link))
}

#[derive(Deserialize)]
struct SignInQuery {
    /// The page that the person wanted to see.
    #[serde(default)]
    return_to: String,
}

async fn sign_in_page(
    State(app): State<Dashboard>,
    Query(query): Query<SignInQuery>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    if let Some(token) = session_token(&headers)
        && app.accounts.find_session(token).await?.is_some()
    {
        return Ok(go(false, local_path(&query.return_to)));
    }
    let content = html! {
        h1 { "Sign in" }
        form.stacked method="post" action="/dashboard/sign-in" {
            input type="hidden" name="return_to" value=(local_path(&query.return_to));
            (TextField { name: "email", label: "Email address", kind: "email", autocomplete: "username", is_required: true, ..TextField::default() }.render())
            (TextField { name: "password", label: "Password", kind: "password", autocomplete: "current-password", is_required: true, ..TextField::default() }.render())
            (submit("Sign in", Look::Primary))
            p.form-error role="alert" hidden {}
        }
        p.muted {
            "No account yet? An administrator can invite you. The first account is created with the link that the host \
             prints when it starts, or with " code { "syncline admin create" } "."
        }
    };
    Ok(Html(layout::plain("Sign in", &content).into_string()).into_response())
}

async fn sign_in(State(app): State<Dashboard>, request: Request) -> Result<Response, PageError> {
    let (browser, form) = read(request, &app).await?;
    // A malformed address has no account. The message is the same, so that it discloses nothing.
    let email: Email = form.text("email").parse().map_err(|_| syncline_auth::SignInError::Wrong)?;
    let account = app.accounts.sign_in(&email, form.raw("password")).await?;
    start_session(&app, &account, &browser, local_path(form.text("return_to"))).await
}

async fn sign_out(State(app): State<Dashboard>, visitor: Visitor, _: Form) -> Result<Response, PageError> {
    app.accounts.end_session(&visitor.person, visitor.person.session, &visitor.actor()).await?;
    let cookie = [(header::SET_COOKIE, ended_session_cookie(&app))];
    Ok((cookie, go(visitor.from_script, "/dashboard/sign-in")).into_response())
}

#[derive(Deserialize)]
struct LinkQuery {
    #[serde(default)]
    token: String,
}

async fn link_page(
    State(app): State<Dashboard>,
    Query(query): Query<LinkQuery>,
) -> Result<Response, PageError> {
    let purpose = app.accounts.link_purpose(&query.token).await?;
    let (title, introduction, fields) = match &purpose {
        LinkPurpose::FirstAccount => (
            "Create the first account",
            "This account is an administrator: it can invite colleagues, and manage environments and secret keys.",
            html! {
                (TextField { name: "name", label: "Your name", autocomplete: "name", is_required: true, ..TextField::default() }.render())
                (TextField { name: "email", label: "Email address", kind: "email", autocomplete: "username", is_required: true, ..TextField::default() }.render())
            },
        ),
        LinkPurpose::Password { email } => (
            "Choose a password",
            "You are signed in afterwards, and signed out in other browsers.",
            html! {
                (TextField { name: "email", label: "Email address", kind: "email", autocomplete: "username", value: email, ..TextField::default() }.render_fixed())
            },
        ),
    };
    let content = html! {
        h1 { (title) }
        p { (introduction) }
        form.stacked method="post" action=(LINK_PATH) {
            input type="hidden" name="token" value=(query.token);
            (fields)
            (new_password_field())
            (submit(title, Look::Primary))
            p.form-error role="alert" hidden {}
        }
    };
    Ok(Html(layout::plain(title, &content).into_string()).into_response())
}

async fn use_link(State(app): State<Dashboard>, request: Request) -> Result<Response, PageError> {
    let (browser, form) = read(request, &app).await?;
    let source = |identity| browser.source.actor(identity);
    let token = form.text("token");
    let password = new_password(&form)?;
    let account = match app.accounts.link_purpose(token).await? {
        LinkPurpose::FirstAccount => {
            let email: Email = form.parse("email", "Email address")?;
            app.accounts.create_first(token, &email, form.text("name"), &password, source).await?
        }
        LinkPurpose::Password { .. } => app.accounts.set_password(token, &password, source).await?,
    };
    start_session(&app, &account, &browser, "/dashboard").await
}

/// The field for a new password.
pub(crate) fn new_password_field() -> Markup {
    TextField {
        name: "new_password",
        label: "New password",
        kind: "password",
        autocomplete: "new-password",
        hint: "At least 12 characters.",
        is_required: true,
        ..TextField::default()
    }
    .render()
}

pub(crate) fn new_password(form: &Fields) -> Result<Password, PageError> {
    Password::new(form.raw("new_password").to_owned())
        .map_err(|problem| PageError::invalid("New password", problem))
}

/// The browser that sends a form without a session.
struct Browser {
    from_script: bool,
    user_agent: Option<String>,
    source: RequestSource,
}

async fn read(request: Request, app: &Dashboard) -> Result<(Browser, Fields), PageError> {
    let (parts, body) = request.into_parts();
    let user_agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let browser = Browser {
        from_script: is_from_script(&parts.headers),
        user_agent: user_agent.map(str::to_owned),
        source: RequestSource::of(&parts),
    };
    let fields = Fields::from_request(Request::from_parts(parts, body), app).await?;
    Ok((browser, fields))
}

async fn start_session(
    app: &Dashboard,
    account: &Account,
    browser: &Browser,
    page: &str,
) -> Result<Response, PageError> {
    let source = |identity| browser.source.actor(identity);
    let session = app.accounts.start_session(account, browser.user_agent.as_deref(), source).await?;
    let mut response = go(browser.from_script, page);
    response.headers_mut().append(header::SET_COOKIE, session_cookie(app, &session));
    response
        .headers_mut()
        .append(header::SET_COOKIE, notice_cookie(app, &format!("You are signed in as {}.", account.email)));
    Ok(response)
}

/// A path of the dashboard. Anything else, such as an address of another site, becomes the first page.
fn local_path(path: &str) -> &str {
    let is_local = path == "/dashboard" || path.starts_with("/dashboard/");
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_local && is_plain && !path.starts_with("/dashboard/sign-") { path } else { "/dashboard" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_leads_only_to_pages_of_the_dashboard() {
        for path in ["/dashboard", "/dashboard/environments/dev/runs?status=failed"] {
            assert_eq!(local_path(path), path);
        }
        for path in [
            "",
            "//evil.example",
            "https://evil.example/dashboard",
            "/dashboard\\evil",
            "/dashboards",
            "/dashboard/\r\nset-cookie: a=b",
            "/dashboard/sign-out",
        ] {
            assert_eq!(local_path(path), "/dashboard", "{path:?}");
        }
    }
}
