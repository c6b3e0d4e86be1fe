//! The dashboard: pages for operators and their colleagues, served by the host at `/dashboard`.
//!
//! Pages are HTML that the host renders with `maud`. A page calls the same services as the API and checks the same
//! scopes. One small script adds what HTML lacks: forms that keep the typed text when the host rejects it, copy
//! buttons, and parts of pages that follow changes through server-sent events. Everything else works without it.

mod accounts;
mod assets;
mod audit_log;
mod charts;
mod commands;
mod components;
mod environments;
mod error;
mod error_pages;
mod form;
mod layout;
mod live;
mod pages;
mod profile;
mod query;
mod security;
mod session;
mod sign_in;
mod time;
mod tree;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;
use axum::routing::{any, get};
use tokio_util::sync::CancellationToken;

use syncline_auth::{AccountLink, Accounts, ApiKeys, Environments};
use syncline_engine::{
    Actions, AuditLog, ConnectSessions, ConnectionCache, Connections, DeadLetters, Deployments,
    EnvironmentVariables, Functions, Health, InboundWebhookLog, Integrations, Records, Runs, Statistics,
    Syncs,
};
use syncline_outbound_webhooks::DeliveryLog;
use syncline_providers::Catalogue;

/// The state that every page can access.
#[derive(Clone)]
pub struct Dashboard(Arc<Services>);

/// The services that pages call, and the addresses of this host.
pub struct Services {
    pub accounts: Arc<Accounts>,
    pub actions: Arc<Actions>,
    pub api_keys: Arc<ApiKeys>,
    pub audit_log: Arc<AuditLog>,
    pub catalogue: Arc<Catalogue>,
    pub connect_sessions: Arc<ConnectSessions>,
    pub connection_cache: Arc<ConnectionCache>,
    pub connections: Arc<Connections>,
    pub dead_letters: Arc<DeadLetters>,
    pub deliveries: Arc<DeliveryLog>,
    pub deployments: Arc<Deployments>,
    pub environments: Arc<Environments>,
    pub functions: Arc<Functions>,
    pub health: Arc<Health>,
    pub inbound_webhook_log: Arc<InboundWebhookLog>,
    pub integrations: Arc<Integrations>,
    pub records: Arc<Records>,
    pub runs: Arc<Runs>,
    pub statistics: Arc<Statistics>,
    pub syncs: Arc<Syncs>,
    pub variables: Arc<EnvironmentVariables>,
    /// Cancelled when the host begins to stop.
    pub stopping: CancellationToken,
    /// The base URL of the API, without a trailing slash.
    pub public_url: Arc<str>,
    /// The base URL of the Connect UI, without a trailing slash.
    pub connect_url: Arc<str>,
}

impl Dashboard {
    pub fn new(services: Services) -> Self {
        Self(Arc::new(services))
    }
}

impl Deref for Dashboard {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.0
    }
}

/// The path of the page on which the first account is created, or a password is chosen, with a one-time link.
const LINK_PATH: &str = "/dashboard/link";

/// The address of the page of a one-time link.
pub fn link_url(public_url: &str, link: &AccountLink) -> String {
    format!("{public_url}{LINK_PATH}?token={}", link.expose())
}

/// The routes of the dashboard.
pub fn router<S: Clone + Send + Sync + 'static>(dashboard: Dashboard) -> Router<S> {
    Router::new()
        .route("/dashboard/", get(|| async { Redirect::permanent("/dashboard") }))
        .route("/dashboard/assets/{file}", get(assets::asset))
        .merge(sign_in::routes())
        .merge(environments::routes())
        .merge(accounts::routes())
        .merge(audit_log::routes())
        .merge(profile::routes())
        .merge(pages::routes())
        .route("/dashboard/{*path}", any(error::unknown_page))
        .layer(from_fn(security::reject_cross_site_requests))
        .layer(from_fn_with_state(dashboard.clone(), error_pages::render_errors))
        .layer(from_fn_with_state(dashboard.clone(), security::set_headers))
        .with_state(dashboard)
}
