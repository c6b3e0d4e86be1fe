//! Invokes functions: their capabilities, the record of their runs, and their errors.

pub(crate) mod action;
pub(crate) mod capabilities;
pub(crate) mod connection_access;
pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod invocation;
pub(crate) mod live_runs;
pub(crate) mod recording;
pub(crate) mod run_tasks;
pub(crate) mod run_writer;

use std::sync::Arc;

use uuid::Uuid;

use crate::credentials::Credentials;
use crate::environment_variables::EnvironmentVariables;
use crate::invoker::live_runs::LiveRuns;
use crate::invoker::run_writer::RunWriter;
use crate::rate_limits::RateLimits;
use crate::records::Records;
use syncline_egress::EgressGateway;
use syncline_providers::Catalogue;
use syncline_sandbox::Sandbox;
use syncline_store::Store;
use syncline_telemetry::clock::Clock;

/// Runs functions in the sandbox, provides their capabilities and records their runs.
pub struct Invoker {
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) gateway: Arc<EgressGateway>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) variables: Arc<EnvironmentVariables>,
    pub(crate) records: Arc<Records>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) rate_limits: Arc<RateLimits>,
    pub(crate) live_runs: Arc<LiveRuns>,
    pub(crate) run_writer: Arc<RunWriter>,
    pub(crate) host_id: Uuid,
}

/// Dependencies of [`Invoker`].
pub struct InvokerParts {
    pub clock: Clock,
    pub store: Store,
    pub catalogue: Arc<Catalogue>,
    pub gateway: Arc<EgressGateway>,
    pub sandbox: Arc<Sandbox>,
    pub variables: Arc<EnvironmentVariables>,
    pub records: Arc<Records>,
    pub credentials: Arc<Credentials>,
    pub rate_limits: Arc<RateLimits>,
    pub live_runs: Arc<LiveRuns>,
    pub run_writer: Arc<RunWriter>,
    pub host_id: Uuid,
}

impl Invoker {
    pub fn new(parts: InvokerParts) -> Arc<Self> {
        let InvokerParts {
            clock,
            store,
            catalogue,
            gateway,
            sandbox,
            variables,
            records,
            credentials,
            rate_limits,
            live_runs,
            run_writer,
            host_id,
        } = parts;
        Arc::new(Self {
            clock,
            store,
            catalogue,
            gateway,
            sandbox,
            variables,
            records,
            credentials,
            rate_limits,
            live_runs,
            run_writer,
            host_id,
        })
    }
}
