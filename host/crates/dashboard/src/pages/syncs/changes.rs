//! Commands for one sync of a connection: start, pause, trigger, frequency and variants.

use std::collections::BTreeSet;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;

use crate::Dashboard;
use crate::error::PageError;
use crate::form::{Form, done};
use crate::pages::addresses::{SyncAddress, environment_route};
use crate::session::Visit;
use syncline_auth::Scope;
use syncline_config::Frequency;
use syncline_engine::{SyncCommand, SyncSelection, TriggerOptions};
use syncline_types::ids::Variant;

pub(super) fn routes() -> Router<Dashboard> {
    let route = |command: &str| {
        let sync = environment_route!("syncs/{integration}/{connection}/{sync}/{variant}");
        format!("{sync}/{command}")
    };
    Router::new()
        .route(&route("start"), post(start))
        .route(&route("pause"), post(pause))
        .route(&route("run"), post(run))
        .route(&route("run-in-full"), post(run_in_full))
        .route(&route("empty-and-run"), post(empty_and_run))
        .route(&route("frequency"), post(set_frequency))
        .route(&route("reset-frequency"), post(reset_frequency))
        .route(&route("create-variant"), post(create_variant))
        .route(&route("delete-variant"), post(delete_variant))
}

impl SyncAddress {
    /// Selects this sync.
    fn selection(&self) -> SyncSelection {
        SyncSelection {
            integration: self.integration.clone(),
            connection: Some(self.connection.clone()),
            syncs: BTreeSet::from([(self.sync.clone(), self.variant.clone())]),
        }
    }
}

async fn start(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    command(&app, &visit, &address, SyncCommand::Start, "The sync was started.").await
}

async fn pause(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    let notice = "The sync was paused. A run in progress continues to its end.";
    command(&app, &visit, &address, SyncCommand::Pause, notice).await
}

async fn run(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    let options = TriggerOptions::default();
    command(&app, &visit, &address, SyncCommand::Trigger(options), "A run was requested.").await
}

async fn run_in_full(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    let options = TriggerOptions { reset: true, empty_cache: false };
    let notice = "A full run was requested. The checkpoint is cleared when it begins.";
    command(&app, &visit, &address, SyncCommand::Trigger(options), notice).await
}

async fn empty_and_run(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    let options = TriggerOptions { reset: true, empty_cache: true };
    let notice = "A full run was requested. The stored records are deleted when it begins.";
    command(&app, &visit, &address, SyncCommand::Trigger(options), notice).await
}

async fn command(
    app: &Dashboard,
    visit: &Visit,
    address: &SyncAddress,
    command: SyncCommand,
    notice: &str,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsExecute)?;
    app.syncs.command(visit.environment.pk, &address.selection(), command, &visit.actor()).await?;
    Ok(done(app, visit, &address.url(visit), notice))
}

async fn set_frequency(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsUpdate)?;
    let frequency = Frequency::parse(form.text("frequency"), app.deployments.minimum_interval())
        .map_err(|problem| PageError::invalid("Frequency", problem))?;
    change_frequency(&app, &visit, &address, Some(frequency)).await
}

async fn reset_frequency(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsUpdate)?;
    change_frequency(&app, &visit, &address, None).await
}

async fn change_frequency(
    app: &Dashboard,
    visit: &Visit,
    address: &SyncAddress,
    frequency: Option<Frequency>,
) -> Result<Response, PageError> {
    let SyncAddress { integration, connection, sync, variant } = address;
    let connection = app.connection_cache.get(visit.environment.pk, integration, connection).await?;
    let active = app.syncs.set_frequency(&connection, sync, variant, frequency, &visit.actor()).await?;
    let notice = format!("The sync now runs at the frequency “{active}”.");
    Ok(done(app, visit, &address.url(visit), &notice))
}

async fn create_variant(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::VariantsCreate)?;
    let variant: Variant = form.parse("variant", "Name")?;
    if variant.as_str().eq_ignore_ascii_case(Variant::BASE) {
        return Err(PageError::invalid(
            "Name",
            "`base` is the name of the default variant; choose another name",
        ));
    }
    let SyncAddress { integration, connection, sync, .. } = &address;
    let connection = app.connection_cache.get(visit.environment.pk, integration, connection).await?;
    app.syncs.create_variant(&connection, sync, &variant, &visit.actor()).await?;
    let notice = format!("The variant {variant} was created.");
    let created = SyncAddress { variant, ..address };
    Ok(done(&app, &visit, &created.url(&visit), &notice))
}

async fn delete_variant(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::VariantsDelete)?;
    let SyncAddress { integration, connection, sync, variant } = &address;
    if variant.is_base() {
        return Err(PageError::invalid(
            "Variant",
            "the default variant cannot be deleted; pause the sync instead",
        ));
    }
    let connection = app.connection_cache.get(visit.environment.pk, integration, connection).await?;
    app.syncs.delete_variant(&connection, sync, variant, &visit.actor()).await?;
    let notice = format!("The variant {variant} and its records were deleted.");
    let base = SyncAddress { variant: Variant::base(), ..address };
    Ok(done(&app, &visit, &base.url(&visit), &notice))
}
