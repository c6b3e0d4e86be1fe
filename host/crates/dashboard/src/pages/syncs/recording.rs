//! Which runs of one sync are recorded.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};

use crate::Dashboard;
use crate::components::{Look, form, select, submit};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::pages::addresses::{SyncAddress, environment_route};
use crate::session::Visit;
use syncline_auth::Scope;
use syncline_engine::RecordingOrder;
use syncline_types::functions::RecordedRuns;

const CHOICES: [(&str, &str); 3] =
    [("", "No runs"), ("next_failed_run", "The next run that fails"), ("every_run", "Every run")];

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(
        environment_route!("syncs/{integration}/{connection}/{sync}/{variant}/recording"),
        post(set_recording),
    )
}

/// The form that chooses the recorded runs.
pub(super) async fn recording(
    app: &Dashboard,
    visit: &Visit,
    address: &SyncAddress,
) -> Result<Markup, PageError> {
    let SyncAddress { integration, connection, sync, variant } = address;
    let connection = app.connection_cache.get(visit.environment.pk, integration, connection).await?;
    let order = app.syncs.recording(&connection, sync, variant).await?;
    let chosen = order.map_or("", |order| order.runs.as_str());
    Ok(html! {
        section.card {
            h2 { "Recording" }
            p.muted {
                "The page of a recorded run offers its recording, with which the author of the sync replays the run on \
                 another machine. Recordings contain records and responses of the provider, but no credentials. They are \
                 deleted after " (order.map_or(RecordingOrder::DEFAULT_DAYS, |order| order.days)) " days."
            }
            (form(visit, &format!("{}/recording", address.url(visit)), &html! {
                (select("runs", "Record", &CHOICES, chosen))
                (submit("Save", Look::Secondary))
            }))
        }
    })
}

async fn set_recording(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsUpdate)?;
    let runs: Option<RecordedRuns> = form.parse_optional("runs", "Record")?;
    let SyncAddress { integration, connection, sync, variant } = &address;
    let connection = app.connection_cache.get(visit.environment.pk, integration, connection).await?;
    let order = runs.map(|runs| RecordingOrder { runs, days: RecordingOrder::DEFAULT_DAYS });
    app.syncs.set_recording(&connection, sync, variant, order, &visit.actor()).await?;
    let notice = match runs {
        None => "No further runs are recorded.",
        Some(RecordedRuns::NextFailedRun) => "The next run that fails is recorded.",
        Some(RecordedRuns::EveryRun) => "Every run is recorded.",
    };
    Ok(done(&app, &visit, &address.url(&visit), notice))
}
