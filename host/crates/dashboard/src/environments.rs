//! The list of environments, and the first page.

use axum::Router;
use axum::extract::State;
use axum::response::{Redirect, Response};
use axum::routing::{get, post};
use maud::html;

use super::Dashboard;
use super::components::{Look, TextField, action_button, form, heading, submit, table};
use super::error::PageError;
use super::form::{Form, done};
use super::layout::{GlobalSection, Section, global_page};
use super::session::{Visit, Visitor};
use super::time::ago;
use syncline_auth::{DEFAULT_ENVIRONMENT, Scope};
use syncline_types::ids::EnvironmentName;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route("/dashboard", get(first_page))
        .route("/dashboard/environments", get(environments).post(create))
        .route("/dashboard/environments/{environment}", get(environment))
        .route("/dashboard/environments/{environment}/delete", post(delete))
}

async fn first_page(visitor: Visitor) -> Redirect {
    let name = visitor.environments.first().map_or(DEFAULT_ENVIRONMENT, |first| first.name.as_str());
    Redirect::to(&format!("/dashboard/environments/{name}/{}", Section::Overview.path()))
}

async fn environment(visit: Visit) -> Redirect {
    Redirect::to(&visit.url(Section::Overview.path()))
}

async fn environments(State(app): State<Dashboard>, visitor: Visitor) -> Response {
    let rows = html! {
        @for environment in &visitor.environments {
            tr {
                td { a href={ "/dashboard/environments/" (environment.name) "/overview" } { (environment.name) } }
                td { code { (environment.id) } }
                td { (ago(environment.created_at)) }
                td.right {
                    @if environment.name.as_str() == DEFAULT_ENVIRONMENT {
                        span.muted { "default" }
                    } @else if visitor.allows(Scope::EnvironmentsDelete) {
                        (action_button(
                            &visitor,
                            &format!("/dashboard/environments/{}/delete", environment.name),
                            "Delete",
                            Look::Danger,
                            Some(&format!(
                                "Delete the environment {} with its integrations, connections, records and keys? This cannot be undone.",
                                environment.name
                            )),
                        ))
                    }
                }
            }
        }
    };
    let content = html! {
        (heading("Environments", &html! {}))
        p {
            "An environment separates data: integrations, connections, records and secret keys belong to exactly one. \
             Use one for production and others for development and tests."
        }
        (table("Environments", &["Name", "Id", "Created", ""], &rows))
        @if visitor.allows(Scope::EnvironmentsCreate) {
            section.card {
                h2 { "Create an environment" }
                (form(&visitor, GlobalSection::Environments.url(), &html! {
                    (TextField { name: "name", label: "Name", hint: "Letters, digits, - and _, such as staging.", is_required: true, ..TextField::default() }.render())
                    (submit("Create the environment", Look::Primary))
                }))
            }
        }
    };
    global_page(&app, &visitor, GlobalSection::Environments, "Environments", &content)
}

async fn create(State(app): State<Dashboard>, visitor: Visitor, form: Form) -> Result<Response, PageError> {
    visitor.require(Scope::EnvironmentsCreate)?;
    let name: EnvironmentName = form.parse("name", "Name")?;
    app.environments.create(&name, &visitor.actor()).await?;
    let page = format!("/dashboard/environments/{name}/{}", Section::Keys.path());
    Ok(done(&app, &visitor, &page, &format!("The environment {name} was created. It has no secret key yet.")))
}

async fn delete(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Scope::EnvironmentsDelete)?;
    app.connections.delete_environment(visit.environment.id, &visit.actor()).await?;
    let notice = format!("The environment {} was deleted.", visit.environment.name);
    Ok(done(&app, &visit, GlobalSection::Environments.url(), &notice))
}
