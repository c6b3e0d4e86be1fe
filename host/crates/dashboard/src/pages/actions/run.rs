//! Runs an action with an input that is typed into a form.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::value::RawValue;

use super::super::addresses::run_url;
use super::super::choices::connection_field;
use super::input::{InputField, input_fields, read_fields, read_json};
use super::{action_address, outcome};
use crate::Dashboard;
use crate::components::{Look, Tone, badge, checkbox, facts, form, heading, submit, text_area};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::query::{Query, address};
use crate::session::Visit;
use syncline_engine::{ActionCall, ActionRun, ActionTool, DeployedFunction};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey};

/// Longest input that the page of the outcome offers for another run.
const MAX_REPEATED_INPUT_BYTES: usize = 5_000;

/// A deployed action with the names in the page's address.
struct Action {
    integration: IntegrationKey,
    name: FunctionName,
    function: Arc<DeployedFunction>,
}

impl Action {
    async fn find(app: &Dashboard, visit: &Visit, integration: &str, name: &str) -> Result<Self, PageError> {
        let integration =
            integration.parse().map_err(|problem| PageError::invalid("Integration", problem))?;
        let name: FunctionName = name.parse().map_err(|problem| PageError::invalid("Action", problem))?;
        let environment = visit.environment.pk;
        let row = app.integrations.get(environment, &integration).await?;
        let found = app.functions.find_deployed(environment, row.pk, FunctionKind::Action, &name).await;
        let function = found.map_err(PageError::internal)?.ok_or_else(|| {
            PageError::NotFound(format!(
                "no action `{name}` is deployed for the integration `{integration}`; a later deployment may have \
                 removed it"
            ))
        })?;
        Ok(Self { integration, name, function })
    }

    fn tool(&self) -> Option<&ActionTool> {
        self.function.tool()
    }

    /// The fields of the input, or `None` if it can only be typed as JSON.
    fn fields(&self) -> Option<Vec<InputField>> {
        input_fields(&self.tool()?.input)
    }
}

pub(super) async fn form_page(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, integration, name)): Path<(String, String, String)>,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::Actions.scope())?;
    let action = Action::find(&app, &visit, &integration, &name).await?;
    let connection = query.text("connection");
    let fields = action.fields();
    let is_json = fields.is_none() || query.text("mode") == "json";
    let own_address = action_address(&visit, &action.integration, &action.name);
    let tab = |mode: &str| address(&own_address, [("mode", mode), ("connection", connection)]);
    let input = match &fields {
        Some(fields) if !is_json => html! {
            @if fields.is_empty() { p.muted { "This action needs no input." } }
            @for field in fields { (field.render()) }
        },
        _ => html! {
            input type="hidden" name="mode" value="json";
            (text_area("json", "Input as JSON; leave it empty for no input", "", 10))
        },
    };
    let run_form = run_form(&app, &visit, &action, connection, &input).await?;
    let content = html! {
        (breadcrumb(&visit, &action))
        (heading(action.name.as_str(), &html! {}))
        @if let Some(description) = action.tool().and_then(|tool| tool.description.as_deref()) {
            p { (description) }
        }
        @if fields.is_some() {
            nav.tabs aria-label="How to type the input" {
                a href=(tab("form")) aria-current=[(!is_json).then_some("page")] { "Form" }
                a href=(tab("json")) aria-current=[is_json.then_some("page")] { "JSON" }
            }
        }
        (run_form)
    };
    Ok(page(&app, &visit, Section::Actions, action.name.as_str(), &content))
}

async fn run_form(
    app: &Dashboard,
    visit: &Visit,
    action: &Action,
    connection: &str,
    input: &Markup,
) -> Result<Markup, PageError> {
    let connection = connection_field(app, visit, &action.integration, connection).await?;
    let target = format!("{}/run", action_address(visit, &action.integration, &action.name));
    Ok(form(
        visit,
        &target,
        &html! {
            (connection)
            (input)
            (checkbox("background", "true", "Run in the background, as a job", false))
            p.muted { "The action runs with the credentials of the connection, and can change data at the provider." }
            (submit("Run the action", Look::Primary))
        },
    ))
}

pub(super) async fn run(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, integration, name)): Path<(String, String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Section::Actions.scope())?;
    let action = Action::find(&app, &visit, &integration, &name).await?;
    let id: ConnectionId = form.parse("connection", "Connection")?;
    let connection = app.connection_cache.get(visit.environment.pk, &action.integration, &id).await?;
    let input = read_input(&action, &form)?;
    if form.is_checked("background") {
        let environment = Arc::clone(&visit.environment);
        let call = ActionCall { environment, connection, action: action.name, input };
        let job = app.actions.enqueue(&call, 0, None).await?;
        let address = visit.url(&format!("action-jobs/{job}"));
        return Ok(done(&app, &visit, &address, "The action is queued."));
    }
    let run = app.actions.run_recorded(&visit.environment, &connection, &action.name, input.clone()).await?;
    let run = match run.result {
        // The host itself failed. Its log has the cause, which pages do not show.
        Err(error) if error.host_failure().is_some() => return Err(error.into()),
        result => ActionRun { result, ..run },
    };
    let again = match input.filter(|input| input.len() <= MAX_REPEATED_INPUT_BYTES) {
        None => html! {},
        Some(input) => {
            let input = html! {
                input type="hidden" name="mode" value="json";
                (text_area("json", "Input as JSON", &input, 10))
            };
            let form = run_form(&app, &visit, &action, id.as_str(), &input).await?;
            html! { h2 { "Run it again" } (form) }
        }
    };
    let content = html! {
        (breadcrumb(&visit, &action))
        (outcome_of(&app, &visit, &action, &id, &run))
        (again)
        p {
            a.button href=(address(
                &action_address(&visit, &action.integration, &action.name),
                [("connection", id.as_str())],
            )) { "Back to the form" }
        }
    };
    Ok(page(&app, &visit, Section::Actions, action.name.as_str(), &content))
}

fn outcome_of(
    app: &Dashboard,
    visit: &Visit,
    action: &Action,
    connection: &ConnectionId,
    run: &ActionRun,
) -> Markup {
    let state = match &run.result {
        Ok(_) => badge(Tone::Good, "success"),
        Err(_) => badge(Tone::Bad, "error"),
    };
    html! {
        (heading(action.name.as_str(), &html! {}))
        (facts(&[
            ("Outcome", state),
            ("Connection", html! { (connection) }),
            ("Run", html! { a href=(run_url(visit, run.id)) { (run.id) } }),
        ]))
        @match &run.result {
            Ok(json) => (outcome::output(json.as_deref())),
            Err(error) => (outcome::failure(&app.actions.describe(error))),
        }
    }
}

/// The input that was typed, as JSON text.
fn read_input(action: &Action, form: &Form) -> Result<Option<String>, PageError> {
    let fields = action.fields().filter(|_| form.text("mode") != "json");
    let (Some(fields), Some(tool)) = (fields, action.tool()) else {
        let json = form.optional("json").map(read_json).transpose();
        return json.map_err(|problem| PageError::invalid("Input", problem));
    };
    let members = RawValue::from_string(read_fields(&fields, form)?).map_err(PageError::internal)?;
    tool.input_of(Some(&members)).map_err(PageError::internal)
}

fn breadcrumb(visit: &Visit, action: &Action) -> Markup {
    html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::Actions.path())) { "Actions" } " / " (action.integration)
        }
    }
}
