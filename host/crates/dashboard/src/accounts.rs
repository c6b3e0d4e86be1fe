//! The accounts of the dashboard: inviting people, changing their roles and removing them.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use uuid::Uuid;

use super::components::{
    Look, TextField, Tone, action_button, badge, copyable, form, heading, select, submit, table,
};
use super::error::PageError;
use super::form::{Form, done, token_field};
use super::layout::{GlobalSection, global_page};
use super::session::Visitor;
use super::time::ago;
use super::{Dashboard, link_url};
use syncline_auth::{Account, AccountLink, Email, Role, Scope};

const ROLES: [(&str, &str); 3] = [
    ("viewer", "Viewer: sees everything except secrets and settings"),
    ("developer", "Developer: changes everything within environments"),
    ("administrator", "Administrator: also manages environments, secret keys and accounts"),
];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route("/dashboard/accounts", get(accounts).post(invite))
        .route("/dashboard/accounts/{id}/role", post(set_role))
        .route("/dashboard/accounts/{id}/link", post(create_link))
        .route("/dashboard/accounts/{id}/delete", post(delete))
}

async fn accounts(State(app): State<Dashboard>, visitor: Visitor) -> Result<Response, PageError> {
    visitor.require(Scope::AccountsManage)?;
    let all = app.accounts.list().await?;
    let rows = html! { @for account in &all { (row(&visitor, account)) } };
    let content = html! {
        (heading("Accounts", &html! {}))
        (table("Accounts", &["Person", "Role", "Last sign-in", ""], &rows))
        section.card {
            h2 { "Invite a colleague" }
            (form(&visitor, GlobalSection::Accounts.url(), &html! {
                (TextField { name: "name", label: "Name", is_required: true, ..TextField::default() }.render())
                (TextField { name: "email", label: "Email address", kind: "email", is_required: true, ..TextField::default() }.render())
                (select("role", "Role", &ROLES, "viewer"))
                (submit("Create the invitation", Look::Primary))
            }))
        }
    };
    Ok(global_page(&app, &visitor, GlobalSection::Accounts, "Accounts", &content))
}

fn row(visitor: &Visitor, account: &Account) -> Markup {
    let base = format!("/dashboard/accounts/{}", account.id);
    let is_own = account.id == visitor.person.account.id;
    html! {
        tr {
            td { div { (account.name) @if is_own { " " span.muted { "(you)" } } } div.muted { (account.email) } }
            td {
                form.inline method="post" action={ (base) "/role" } {
                    (token_field(visitor))
                    select name="role" aria-label={ "Role of " (account.email) } {
                        @for role in Role::ALL {
                            option value=(role.as_str()) selected[*role == account.role] { (role.as_str()) }
                        }
                    }
                    button.button type="submit" { "Change" }
                    p.form-error role="alert" hidden {}
                }
            }
            td {
                @match (account.last_sign_in_at, &account.password_hash) {
                    (Some(at), _) => (ago(at)),
                    (None, Some(_)) => span.muted { "never" },
                    (None, None) => (badge(Tone::Warning, "invited")),
                }
            }
            td.right {
                (action_button(visitor, &format!("{base}/link"), "New password link", Look::Secondary, None))
                (action_button(
                    visitor,
                    &format!("{base}/delete"),
                    "Delete",
                    Look::Danger,
                    Some(&format!("Delete the account {}? The person is signed out at once.", account.email)),
                ))
            }
        }
    }
}

async fn invite(State(app): State<Dashboard>, visitor: Visitor, form: Form) -> Result<Response, PageError> {
    visitor.require(Scope::AccountsManage)?;
    let email: Email = form.parse("email", "Email address")?;
    let role = parse_role(&form)?;
    let (account, link) = app.accounts.invite(&email, form.text("name"), role, &visitor.actor()).await?;
    Ok(link_page(&app, &visitor, &account, &link))
}

async fn set_role(
    State(app): State<Dashboard>,
    visitor: Visitor,
    Path(id): Path<Uuid>,
    form: Form,
) -> Result<Response, PageError> {
    visitor.require(Scope::AccountsManage)?;
    app.accounts.set_role(id, parse_role(&form)?, &visitor.actor()).await?;
    Ok(done(&app, &visitor, GlobalSection::Accounts.url(), "The role was changed."))
}

async fn create_link(
    State(app): State<Dashboard>,
    visitor: Visitor,
    Path(id): Path<Uuid>,
    _: Form,
) -> Result<Response, PageError> {
    visitor.require(Scope::AccountsManage)?;
    let (account, link) = app.accounts.new_password_link(id, &visitor.actor()).await?;
    Ok(link_page(&app, &visitor, &account, &link))
}

async fn delete(
    State(app): State<Dashboard>,
    visitor: Visitor,
    Path(id): Path<Uuid>,
    _: Form,
) -> Result<Response, PageError> {
    visitor.require(Scope::AccountsManage)?;
    app.accounts.delete(id, &visitor.actor()).await?;
    Ok(done(&app, &visitor, GlobalSection::Accounts.url(), "The account was deleted."))
}

/// Shows a one-time link once.
fn link_page(app: &Dashboard, visitor: &Visitor, account: &Account, link: &AccountLink) -> Response {
    let address = link_url(&app.public_url, link);
    let content = html! {
        (heading("One-time link", &html! {}))
        section.card {
            p { "Send this link to " strong { (account.email) } ". With it, this person chooses a password." }
            p { (copyable(&address)) }
            p.muted { "It is shown only now, works once, and expires in three days. Earlier links of this account no longer work." }
        }
        p { a.button href=(GlobalSection::Accounts.url()) { "Back to the accounts" } }
    };
    global_page(app, visitor, GlobalSection::Accounts, "One-time link", &content)
}

fn parse_role(form: &Form) -> Result<Role, PageError> {
    form.text("role")
        .parse()
        .map_err(|_| PageError::invalid("Role", "choose viewer, developer or administrator"))
}
