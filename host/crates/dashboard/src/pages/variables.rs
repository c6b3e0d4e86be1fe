//! The environment variables that functions can read.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::html;

use super::environment_route;
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
        .route(environment_route!("variables/{name}/delete"), post(delete))
}

async fn variables(State(app): State<Dashboard>, visit: Visit) -> Result<Response, PageError> {
    visit.require(Section::Variables.scope())?;
    let variables = app.variables.list(&visit.environment).await?;
    let can_write = visit.allows(Scope::VariablesWrite);
    let rows = html! {
        @for (index, (name, value)) in variables.iter().enumerate() {
            tr {
                td { code { (name) } }
                td { details id={ "variable-" (index) } { summary { "Show" } code { (value) } } }
                td.right {
                    @if can_write {
                        (action_button(
                            &visit,
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
        (heading("Variables", &html! {}))
        p {
            "A function can read a variable if " code { "syncline.toml" } " lists its name under " code { "env" }
            ". Values are stored encrypted."
        }
        @if variables.is_empty() {
            (empty("There is no variable yet", &html! {
                p { "Set one below, or with the command line:" }
                (snippet(&format!("syncline variables set --environment {} NAME VALUE", visit.environment.name)))
            }))
        } @else {
            (table("Variables", &["Name", "Value", ""], &rows))
        }
        @if can_write {
            section.card {
                h2 { "Set a variable" }
                (form(&visit, &visit.url("variables"), &html! {
                    (TextField { name: "name", label: "Name", hint: "Capital letters, digits and _, such as SHOP_REGION.", is_required: true, ..TextField::default() }.render())
                    (text_area("value", "Value", "", 2))
                    (submit("Set the variable", Look::Primary))
                }))
            }
        }
    };
    Ok(page(&app, &visit, Section::Variables, "Variables", &content))
}

async fn set(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::VariablesWrite)?;
    let name: VariableName = form.parse("name", "Name")?;
    // Browsers send CR LF for a line break.
    let value = VariableValue::new(form.raw("value").replace("\r\n", "\n"))
        .map_err(|problem| PageError::invalid("Value", problem))?;
    app.variables.set(&visit.environment, &name, &value).await?;
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
    if !app.variables.delete(&visit.environment, &name).await? {
        return Err(PageError::NotFound(format!("there is no variable `{name}`; it may have been deleted")));
    }
    Ok(done(&app, &visit, &visit.url("variables"), &format!("The variable {name} was deleted.")))
}
