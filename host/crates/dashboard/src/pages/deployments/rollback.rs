//! The plan of a rollback to an earlier version of a bundle, and the rollback.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::change_line;
use crate::Dashboard;
use crate::components::{Look, action_button, heading};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::pages::addresses::environment_route;
use crate::session::{Visit, segment};
use syncline_auth::Scope;
use syncline_config::{Capability, CapabilityKind};
use syncline_engine::{DeployMode, Deployment};
use syncline_types::ids::BundleName;

pub(super) fn routes() -> Router<Dashboard> {
    let route = environment_route!("deployments/{bundle}/{version}/restore");
    Router::new().route(route, get(plan).post(restore))
}

/// The address of the page about a rollback to this version.
pub(super) fn address(visit: &Visit, bundle: &str, version: i32) -> String {
    visit.url(&format!("deployments/{}/{version}/restore", segment(bundle)))
}

type VersionPath = Path<(String, String, String)>;

async fn plan(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, bundle, version)): VersionPath,
) -> Result<Response, PageError> {
    visit.require(Scope::Deploy)?;
    let (bundle, version) = parse(&bundle, &version)?;
    let planned = app
        .deployments
        .roll_back(&visit.environment, &bundle, Some(version), DeployMode::Plan, &visit.actor())
        .await?;
    let title = format!("Restore version {version} of {bundle}");
    let content = html! {
        p.breadcrumb { a href=(visit.url(Section::Deployments.path())) { "Deployments" } }
        (heading(&title, &html! {}))
        (describe(&planned))
        div.actions {
            (action_button(
                &visit,
                &address(&visit, bundle.as_str(), version),
                &format!("Restore version {version}"),
                Look::Primary,
                None,
            ))
            a.button href=(visit.url(Section::Deployments.path())) { "Cancel" }
        }
    };
    Ok(page(&app, &visit, Section::Deployments, &title, &content))
}

async fn restore(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, bundle, version)): VersionPath,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::Deploy)?;
    let (bundle, version) = parse(&bundle, &version)?;
    // The page before this request listed the new capabilities.
    let mode = DeployMode::Deploy { accept_capabilities: true };
    let deployed =
        app.deployments.roll_back(&visit.environment, &bundle, Some(version), mode, &visit.actor()).await?;
    let notice = match (&deployed.id, deployed.version) {
        (Some(_), Some(new)) => format!("Version {version} of {bundle} is active again, as version {new}."),
        _ => format!("Version {version} of {bundle} is active. Nothing has changed."),
    };
    Ok(done(&app, &visit, &visit.url(Section::Deployments.path()), &notice))
}

fn parse(bundle: &str, version: &str) -> Result<(BundleName, i32), PageError> {
    let unknown = || {
        PageError::NotFound(format!(
            "there is no version `{version}` of a bundle `{bundle}`; choose one in the list of deployments"
        ))
    };
    Ok((bundle.parse().map_err(|_| unknown())?, version.parse().map_err(|_| unknown())?))
}

fn describe(planned: &Deployment) -> Markup {
    html! {
        section.card {
            h2 { "Changes" }
            @if planned.changes.is_empty() {
                p { "The definition does not change. The code of the functions may change." }
            } @else {
                ul {
                    @for change in &planned.changes {
                        li {
                            (change_line(change.change, &change.kind, change.integration.as_deref(), change.name.as_deref()))
                        }
                    }
                }
            }
            @if !planned.warnings.is_empty() {
                h3 { "Warnings" }
                ul { @for warning in &planned.warnings { li { (warning) } } }
            }
            @if !planned.new_capabilities.is_empty() {
                h3 { "New capabilities" }
                p.muted { "The active version does not have them." }
                ul { @for capability in &planned.new_capabilities { li { (capability_text(capability)) } } }
            }
        }
    }
}

fn capability_text(capability: &Capability) -> Markup {
    let Capability { integration, kind, name } = capability;
    html! {
        (integration) ": "
        @match kind {
            CapabilityKind::BaseUrl => { "send requests with credentials to " code { (name) } },
            CapabilityKind::Credentials => { "read the connection's credentials in " code { (name) } },
            CapabilityKind::Host => { "send requests to " code { (name) } },
            CapabilityKind::Model => { "save records of " code { (name) } },
            CapabilityKind::Variable if name == "*" => "read all environment variables",
            CapabilityKind::Variable => { "read the environment variable " code { (name) } },
        }
    }
}
