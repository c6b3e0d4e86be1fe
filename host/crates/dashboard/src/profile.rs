//! The person's own account: the password and the browsers that are signed in.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::html;
use uuid::Uuid;

use super::Dashboard;
use super::components::{Look, TextField, Tone, action_button, badge, facts, form, heading, submit, table};
use super::error::PageError;
use super::form::{Form, done};
use super::layout::{GlobalSection, global_page};
use super::session::Visitor;
use super::sign_in::{new_password, new_password_field};
use super::time::ago;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route("/dashboard/profile", get(profile))
        .route("/dashboard/profile/password", post(change_password))
        .route("/dashboard/profile/sessions/{id}/end", post(end_session))
}

async fn profile(State(app): State<Dashboard>, visitor: Visitor) -> Result<Response, PageError> {
    let account = &visitor.person.account;
    let sessions = app.accounts.sessions(&visitor.person).await?;
    let rows = html! {
        @for session in &sessions {
            @let is_current = session.id == visitor.person.session;
            tr {
                td { (session.user_agent.as_deref().unwrap_or("unknown browser")) }
                td { (session.address.as_deref().unwrap_or("unknown")) }
                td { (ago(session.created_at)) }
                td { @if is_current { (badge(Tone::Good, "this browser")) } @else { (ago(session.last_used_at)) } }
                td.right {
                    @if !is_current {
                        (action_button(
                            &visitor,
                            &format!("/dashboard/profile/sessions/{}/end", session.id),
                            "Sign out",
                            Look::Secondary,
                            None,
                        ))
                    }
                }
            }
        }
    };
    let content = html! {
        (heading("Your account", &html! {}))
        (facts(&[
            ("Name", html! { (account.name) }),
            ("Email address", html! { (account.email) }),
            ("Role", html! { (account.role.as_str()) }),
        ]))
        section.card {
            h2 { "Change the password" }
            (form(&visitor, "/dashboard/profile/password", &html! {
                (TextField { name: "current_password", label: "Current password", kind: "password", autocomplete: "current-password", is_required: true, ..TextField::default() }.render())
                (new_password_field())
                (submit("Change the password", Look::Primary))
            }))
            p.muted { "Other browsers are signed out." }
        }
        h2 { "Signed-in browsers" }
        (table("Signed-in browsers", &["Browser", "Address", "Signed in", "Last used", ""], &rows))
    };
    Ok(global_page(&app, &visitor, GlobalSection::Profile, "Your account", &content))
}

async fn change_password(
    State(app): State<Dashboard>,
    visitor: Visitor,
    form: Form,
) -> Result<Response, PageError> {
    let password = new_password(&form)?;
    app.accounts
        .change_password(&visitor.person, form.raw("current_password"), &password, &visitor.actor())
        .await?;
    let notice = "The password was changed, and other browsers were signed out.";
    Ok(done(&app, &visitor, GlobalSection::Profile.url(), notice))
}

async fn end_session(
    State(app): State<Dashboard>,
    visitor: Visitor,
    Path(id): Path<Uuid>,
    _: Form,
) -> Result<Response, PageError> {
    app.accounts.end_session(&visitor.person, id, &visitor.actor()).await?;
    Ok(done(&app, &visitor, GlobalSection::Profile.url(), "The browser was signed out."))
}
