//! The services of a host. Each owns its state and receives only what it uses.
//!
//! The binary creates them in the order of their dependencies, and registers their tasks with the supervisor.

mod actions;
mod audit_log;
mod authorizations;
mod body_memory;
mod connect_sessions;
mod connections;
mod credentials;
mod dead_letters;
mod deployments;
mod dry_runs;
mod environment_variables;
mod functions;
mod health;
mod host_registration;
mod inbound_webhooks;
mod integrations;
mod invoker;
mod jobs;
mod lifecycle;
mod lookup;
mod observation;
pub mod outbound_webhooks;
mod provider_files;
mod proxy;
mod rate_limits;
mod records;
mod retention;
mod retry;
mod run_upkeep;
mod runs;
mod statistics;
mod sweep;
mod syncs;
mod takeover;

pub use self::actions::idempotency_key::{IdempotencyKey, InvalidIdempotencyKey};
pub use self::actions::keyed::KeyedResult;
pub use self::actions::queued::ActionJob;
pub use self::actions::request::ActionCall;
pub use self::actions::{ActionRun, Actions};
pub use self::audit_log::{AuditEntry, AuditFilter, AuditLog, AuditLogError, AuditPosition};
pub use self::authorizations::{
    AUTHORIZATION_SECONDS, AuthorizationError, AuthorizationParts, Authorizations, Callback, Outcome,
    ReturnPath, StartRequest, StartedAuthorization,
};
pub use self::body_memory::{BodyMemory, BodyOwner, HeldBody, RequestMemory};
pub use self::connect_sessions::{
    ConfigDefaults, ConnectSession, ConnectSessions, CreatedSession, NewConnectSession, SessionError,
    UiOverrides,
};
pub use self::connections::cache::ConnectionCache;
pub use self::connections::deletion::DeletionError;
pub use self::connections::metadata::{MetadataChange, MetadataError};
pub use self::connections::reading::{
    Connection, ConnectionCounts, ConnectionError, ConnectionErrorFilter, ConnectionFilter, ConnectionPage,
    ConnectionPosition, ConnectionsPart, CredentialOptions, DescribedConnection, FetchError,
    FetchedConnection,
};
pub use self::connections::route::ConnectionRoute;
pub use self::connections::typed::{TypedConnectionError, TypedConnections, TypedCredentials, TypedTarget};
pub use self::connections::updating::ConnectionUpdate;
pub use self::connections::{
    AuthenticatedConnection, ConnectError, ConnectionParts, ConnectionSettings, Connections, ImportResponse,
    ImportedConnection,
};
pub use self::credentials::sealed::OpenCredentialsError;
pub use self::credentials::{Credentials, Freshness, LiveCredentials, RefreshError};
pub use self::dead_letters::{
    DeadLetter, DeadLetterError, DeadLetterFilter, DeadLetterPage, DeadLetters, ListedLetter, Replayed,
};
pub use self::deployments::checks::{CheckedComponents, check_components, check_settings};
pub use self::deployments::history::{DeployedName, DeploymentState, PastChange, PastDeployment};
pub use self::deployments::planned_change::PlannedChange;
pub use self::deployments::signatures::{
    BundleKey, BundleKeyError, add_bundle_key, list_bundle_keys, remove_bundle_key,
};
pub use self::deployments::{DeployError, DeployMode, Deployment, DeploymentParts, Deployments, Submission};
pub use self::dry_runs::kept::{KeptRecords, NoKeptRecords};
pub use self::dry_runs::report::{Replay, Report, SentRequest};
pub use self::dry_runs::{DryRuns, ProjectFunction, RunData};
pub use self::environment_variables::{
    EnvironmentVariableError, EnvironmentVariables, InvalidVariableValue, VariableValue,
};
pub use self::functions::action_tools::ActionTool;
pub use self::functions::descriptions::FunctionDescription;
pub use self::functions::{DeployedFunction, Functions};
pub use self::health::Health;
pub use self::host_registration::{HostRegistration, JoinError};
pub use self::inbound_webhooks::dispatch::{DispatchSettings, WebhookDispatch};
pub use self::inbound_webhooks::ingest::{
    IngestError, IngestSettings, Ingested, WebhookEndpoint, WebhookIngest, WebhookRequest,
};
pub use self::inbound_webhooks::log::{
    InboundWebhook, InboundWebhookDetail, InboundWebhookError, InboundWebhookFilter, InboundWebhookLog,
    InboundWebhookState, WebhookJob,
};
pub use self::inbound_webhooks::payload::stored_headers;
pub use self::integrations::{
    Integration, IntegrationChange, IntegrationError, Integrations, MAX_SETTINGS, NewIntegration,
};
pub use self::invoker::error::ActionError;
pub use self::invoker::live_runs::LiveRuns;
pub use self::invoker::run_writer::RunWriter;
pub use self::invoker::{Invoker, InvokerParts};
pub use self::jobs::result::{ActionFailure, ActionResult};
pub use self::jobs::{JobParts, JobSettings, Jobs};
pub use self::lifecycle::{Lifecycle, PreDeletion, run_pre_deletion_through_hosts};
pub use self::lookup::{LookupError, NamedScope};
pub use self::observation::Observation;
pub use self::provider_files::ProviderFiles;
pub use self::proxy::{Proxy, ProxyError, ProxyParts, ProxyRoutes};
pub use self::rate_limits::RateLimits;
pub use self::records::changes::{FollowedConnection, RecordChanges};
pub use self::records::prune::{PruneRequest, PruneResult};
pub use self::records::read::{
    ActionSet, ChangePage, Content, LastAction, PageLimit, RecordPage, RecordQuery, RecordsError,
    StoredRecord, StreamKey, StreamSummary,
};
pub use self::records::{RecordSettings, Records, cursor};
pub use self::retention::{Age, Retention, RetentionSettings};
pub use self::run_upkeep::RunUpkeep;
pub use self::runs::{
    LastLines, LineFilter, LoggedLine, LoggedRun, RunFilter, RunLog, RunPlace, Runs, RunsError,
};
pub use self::statistics::{
    Attention, IntegrationFigures, MAX_ATTENTION, Overview, RunFigures, Statistics, StatisticsPoint,
    StatisticsRange,
};
pub use self::syncs::approvals::ApprovalError;
pub use self::syncs::commands::{RecordingOrder, SyncCommand, TriggerOptions};
pub use self::syncs::list::{ListedState, ListedSync, SyncFilter, SyncPosition};
pub use self::syncs::selection::{SyncError, SyncSelection};
pub use self::syncs::status::{LatestRun, SyncRunError, SyncState, SyncStatus};
pub use self::syncs::{SyncParts, SyncSettings, Syncs};
