//! The environment variables that functions can read.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::html;

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{
    Look, TextField, action_button, empty, form, heading, snippet, submit, table, text_area,
};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::session::{Visit, segment};
use syncline_auth::Scope;
use syncline_engine::VariableValue;
use syncline_types::ids::VariableName;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("variables"), get(variables).post(set))
        .route(environment_route!("variables/show"), post(show))
        .route(environment_route!("variables/{name}/delete"), post(delete))
}

async fn variables(State(app): State<Dashboard>, visit: Visit) -> Result<Response, PageError> {
    visit.require(Section::Variables.scope())?;
    let names = app.variables.names(&visit.environment).await?;
    Ok(variables_page(&app, &visit, names.into_iter().map(|name| (name, None)).collect()))
}

/// Shows the values, which the audit log records.
async fn show(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Section::Variables.scope())?;
    let variables = app.variables.reveal(&visit.environment, &visit.actor()).await?;
    Ok(variables_page(&app, &visit, variables.into_iter().map(|(name, value)| (name, Some(value))).collect()))
}

/// The page with the names of variables, and with their values if they are shown.
fn variables_page(app: &Dashboard, visit: &Visit, variables: Vec<(String, Option<String>)>) -> Response {
    let can_write = visit.allows(Scope::VariablesWrite);
    let rows = html! {
        @for (name, value) in &variables {
            tr {
                td { code { (name) } }
                td { @match value { Some(value) => pre { (value) }, None => span.muted { "hidden" } } }
                td.right {
                    @if can_write {
                        (action_button(
                            visit,
                            &visit.url(&format!("variables/{}/delete", segment(name))),
                            "Delete",
                            Look::Danger,
                            Some(&format!("Delete the variable {name}? Functions that read it get no value.")),
                        ))
                    }
                }
            }
        }
    };
    let content = html! {
        (heading("Variables", &html! {
            @if variables.iter().any(|(_, value)| value.is_none()) {
                (action_button(visit, &visit.url("variables/show"), "Show values", Look::Secondary, None))
            }
        }))
        p {
            "A function can read a variable if " code { "syncline.toml" } " lists its name under " code { "env" }
            ". Values are stored encrypted."
        }
        @if variables.is_empty() {
            (empty("There is no variable yet", &html! {
                p { "Set one below, or with the command line:" }
                (snippet(&format!("printf 'eu' | syncline env vars set --environment {} REGION", visit.environment.name)))
            }))
        } @else {
            (table("Variables", &["Name", "Value", ""], &rows))
        }
        @if can_write {
            section.card {
                h2 { "Set a variable" }
                (form(visit, &visit.url("variables"), &html! {
                    (TextField { name: "name", label: "Name", hint: "Capital letters, digits and _, such as SHOP_REGION.", is_required: true, ..TextField::default() }.render())
                    (text_area("value", "Value", "", 2))
                    (submit("Set the variable", Look::Primary))
                }))
            }
        }
    };
    page(app, visit, Section::Variables, "Variables", &content)
}

async fn set(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::VariablesWrite)?;
    let name: VariableName = form.parse("name", "Name")?;
    // Browsers send CR LF for a line break.
    let value = VariableValue::new(form.raw("value").replace("\r\n", "\n"))
        .map_err(|problem| PageError::invalid("Value", problem))?;
    app.variables.set(&visit.environment, &name, &value, &visit.actor()).await?;
    Ok(done(&app, &visit, &visit.url("variables"), &format!("The variable {name} was set.")))
}

async fn delete(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, name)): Path<(String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::VariablesWrite)?;
    let name: VariableName = name.parse().map_err(|problem| PageError::invalid("Name", problem))?;
    if !app.variables.delete(&visit.environment, &name, &visit.actor()).await? {
        return Err(PageError::NotFound(format!("there is no variable `{name}`; it may have been deleted")));
    }
    Ok(done(&app, &visit, &visit.url("variables"), &format!("The variable {name} was deleted.")))
}
