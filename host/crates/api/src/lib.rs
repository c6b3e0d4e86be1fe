//! The REST API: one file per resource, in the order of the routes below.
//!
//! A handler authenticates the client, parses the request, calls a service and returns the response. All errors are
//! [`error::ApiError`]s.

mod actions;
mod api_reference;
mod audit_log;
mod body_memory;
mod client_limits;
mod connect_sessions;
mod connect_telemetry;
pub mod connect_ui;
mod connections;
mod cors;
mod dead_letters;
mod deployments;
mod environment;
mod environment_variables;
mod environments;
mod error;
mod examples;
mod extract;
mod functions;
mod health;
mod inbound_webhooks;
mod integrations;
mod lists;
mod mcp;
mod metrics;
mod oauth;
mod one_or_many;
mod outbound_webhooks;
mod providers;
mod proxy;
mod rate_limit_headers;
mod record_changes;
mod records;
#[cfg(test)]
mod reference;
mod refusals;
mod routes;
mod runs;
mod schemas;
pub mod server;
mod strict;
mod sync_variants;
mod syncs;
mod tags;
mod time;
mod typed_connections;
mod unread_body;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{Response, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tokio_util::sync::CancellationToken;
use tower_http::ServiceBuilderExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, RequestId};
use tower_http::trace::TraceLayer;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder};

pub use self::client_limits::{ClientLimitSettings, ClientLimits};
pub use self::metrics::metrics_routes;

use self::error::ApiError;
use self::extract::ConnectionHeaders;
use syncline_auth::{ApiKeys, Authenticator, Client, Environments};
use syncline_engine::{
    Actions, AuditLog, Authorizations, ConnectSessions, ConnectionCache, ConnectionRoute, Connections,
    DeadLetters, Deployments, EnvironmentVariables, Functions, Health, InboundWebhookLog, Integrations,
    Observation, Proxy, RecordChanges, Records, Runs, Syncs, TypedConnections, WebhookIngest,
};
use syncline_outbound_webhooks::DeliveryLog;
use syncline_providers::Catalogue;
use syncline_telemetry::clock::Clock;
use syncline_telemetry::supervisor::Supervisor;
use syncline_types::ids::{ConnectionId, IntegrationKey};

/// The state that every handler can access.
#[derive(Clone)]
pub struct App(Arc<Services>);

/// The services that handlers call, and the addresses of this host.
pub struct Services {
    pub actions: Arc<Actions>,
    pub api_keys: Arc<ApiKeys>,
    pub audit_log: Arc<AuditLog>,
    pub authenticator: Arc<Authenticator>,
    pub authorizations: Arc<Authorizations>,
    pub catalogue: Arc<Catalogue>,
    pub clock: Clock,
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
    pub inbound_webhooks: Arc<WebhookIngest>,
    pub integrations: Arc<Integrations>,
    pub limits: ClientLimits,
    pub observation: Observation,
    pub proxy: Arc<Proxy>,
    pub record_changes: Arc<RecordChanges>,
    pub records: Arc<Records>,
    pub runs: Arc<Runs>,
    pub supervisor: Arc<Supervisor>,
    pub syncs: Arc<Syncs>,
    pub typed_connections: Arc<TypedConnections>,
    pub variables: Arc<EnvironmentVariables>,
    /// Cancelled when the host begins to stop.
    pub stopping: CancellationToken,
    /// The base URL of the API, without a trailing slash.
    pub public_url: Arc<str>,
    /// The base URL of the Connect UI, without a trailing slash.
    pub connect_url: Arc<str>,
    /// Name of the record member that contains the metadata.
    pub record_metadata_key: Arc<str>,
}

impl App {
    pub fn new(services: Services) -> Self {
        Self(Arc::new(services))
    }
}

impl Deref for App {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.0
    }
}

/// All routes and pages, with the middleware.
pub fn router(app: App, pages: Router<App>) -> Router {
    let (routes, openapi) = routes::routes().split_for_parts();
    let document: Arc<str> = document(openapi).to_json().expect("the document is plain data").into();
    let json = [(header::CONTENT_TYPE, "application/json")];
    let middleware = tower::ServiceBuilder::new()
        .set_x_request_id(MakeRequestUuid)
        // Errors are logged where they occur. A 5xx status is not always one: `/proxy` passes on those of providers.
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(request_span)
                .on_request(())
                .on_failure(())
                .on_response(|response: &Response<_>, latency: Duration, span: &Span| {
                    span.record("http.status", i64::from(response.status().as_u16()));
                    error::log_cause(response);
                    tracing::debug!(latency.us = latency.as_micros() as u64, "request answered");
                }),
        )
        .propagate_x_request_id()
        .map_request(cors::set_options_aside)
        .layer(cors::layer())
        .map_request(cors::take_options_up)
        .layer(metrics::CountLayer)
        .map_request(unread_body::discard_unread)
        .layer(from_fn_with_state(Arc::clone(&app.limits.body_memory), body_memory::count_body))
        .layer(from_fn_with_state(app.clone(), rate_limit_headers::add_headers))
        .layer(CatchPanicLayer::custom(answer_panic));
    routes
        .route("/records/", get(records::list_records))
        .merge(pages)
        .merge(older_routes())
        .route("/images/template-logos/{file}", get(providers::get_logo))
        // An integration can be called `quickstart` and a connection `metadata`: methods that the special routes do not
        // use apply to these resources.
        .route(
            "/integrations/quickstart",
            get(integrations::get_integration)
                .patch(integrations::update_integration)
                .delete(integrations::delete_integration),
        )
        .route(
            "/connections/metadata",
            get(connections::get_connection).delete(connections::delete_connection),
        )
        .route("/", get(oauth::open_socket))
        .merge(proxy::routes())
        .route("/openapi.json", get(move || async move { (json, document.to_string()) }))
        .merge(api_reference::router())
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
        .layer(middleware)
}

/// The OpenAPI document that `/openapi.json` returns.
pub fn openapi() -> OpenApi {
    document(routes::routes().into_openapi())
}

/// The paths of the connection routes that older clients use.
fn older_routes() -> Router<App> {
    Router::new()
        .route("/connection", get(connections::list_connections).post(connections::import_connection))
        .route(
            "/connection/metadata",
            post(connections::set_metadata)
                .patch(connections::merge_metadata)
                .get(connections::get_connection)
                .delete(connections::delete_connection),
        )
        .route(
            "/connection/{connection_id}",
            get(connections::get_connection)
                .patch(connections::update_connection)
                .delete(connections::delete_connection),
        )
        .route(
            "/connection/{connection_id}/metadata",
            post(connections::set_metadata_of_one).patch(connections::merge_metadata_of_one),
        )
}

/// The introduction of the API reference.
const INTRODUCTION: &str = "\
    Syncline connects your product to the APIs of other services. Use this API to set up integrations, \
    connect the accounts of your users, read synced records, run actions and send requests to providers.\n\n\
    **Authentication.** Send `Authorization: Bearer <secret key>`. A secret key belongs to one \
    environment and has scopes; each operation names the scope that it needs. Keep secret keys on your \
    server. Operations for browsers use the token of a connect session instead.\n\n\
    **Connections.** Operations for one connection read the headers `Connection-Id` and \
    `Provider-Config-Key`, the unique key of the integration.\n\n\
    **Errors.** An error has the form `{\"error\": {\"code\": \"…\", \"message\": \"…\"}}`. Codes are stable. For \
    an invalid request, `errors` lists each problem with its path. Unknown members and query parameters \
    are rejected with 400. Every response has an `X-Request-Id`, which the audit log also contains.\n\n\
    **Pagination.** Lists return a page. If `next_cursor` is not `null`, pass it as `cursor` to get the \
    next page. Cursors are opaque strings.\n\n\
    **Rate limits.** By default, the API has no fixed request rate; operators can limit the requests per \
    minute of each secret key and environment. A host answers with 429 or 503 when a limit is reached, and \
    with 429 `rate_limited` when a provider limits a connection. If the response has `Retry-After`, wait \
    for that number of seconds.\n\n\
    **Times** are UTC in RFC 3339 format, such as `2026-03-01T09:00:00.000Z`.";

/// The groups of operations and their descriptions, in the order of the API reference.
const TAGS: [(&str, &str); 20] = [
    ("Records", "Read, follow and prune the records that syncs have saved, and handle dead letters."),
    ("Syncs", "Trigger, start and pause syncs, read their status and override their frequency."),
    (
        "Sync variants",
        "Further instances of a sync for one connection, each with its own schedule and records.",
    ),
    ("Actions", "Run actions and get the results of asynchronous ones."),
    ("MCP", "Offer actions as tools through the Model Context Protocol."),
    ("Proxy", "Send your own requests to a provider with the credentials of a connection."),
    ("Connect sessions", "Create the sessions in which end users connect their accounts."),
    ("Connect", "Connect accounts. The Connect UI uses these operations."),
    ("Connections", "List, import, change and delete connections, and read their credentials."),
    ("Integrations", "Set up providers in the environment."),
    ("Providers", "The provider catalogue."),
    ("Functions", "The deployed functions."),
    ("Deployments", "Deploy bundles of functions and models."),
    ("Runs", "Executions of functions with their logs."),
    ("Webhooks", "Webhooks from providers, and webhooks to your backend."),
    ("Environment", "Settings and signing keys of the environment."),
    ("Environment variables", "Values that functions can read."),
    ("Environments", "Manage environments and their secret keys. Needs scopes of the account."),
    ("Audit log", "Who changed what, and who read credentials. Needs a scope of the account."),
    ("Operation", "Health checks."),
];

fn document(routes: OpenApi) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Syncline API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(INTRODUCTION))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()));
    let tags =
        TAGS.map(|(name, description)| TagBuilder::new().name(name).description(Some(description)).build());
    let mut openapi = OpenApiBuilder::from(routes)
        .info(info.build())
        .tags(Some(tags))
        .security(Some([SecurityRequirement::new::<_, [&str; 0], &str>("secret_key", [])]))
        .build();
    let components = openapi.components.get_or_insert_default();
    for (name, description) in [
        ("secret_key", "A secret key of the environment, such as `sk_syncline_…`. For servers only."),
        ("session_token", "The token of a connect session. It expires after 30 minutes."),
    ] {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description));
        components.add_security_scheme(name, SecurityScheme::Http(bearer.build()));
    }
    schemas::describe(&mut openapi);
    examples::describe(&mut openapi);
    routes::describe_special_names(&mut openapi.paths);
    refusals::share(&mut openapi);
    openapi
}

fn request_span(request: &Request<Body>) -> Span {
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let span = tracing::debug_span!(
        "request",
        otel.kind = "server",
        otel.name = %format_args!("{} {}", request.method(), route.unwrap_or("unknown")),
        request.id = id,
        http.method = %request.method(),
        http.route = route,
        http.status = tracing::field::Empty,
    );
    if !span.is_disabled() && request.headers().contains_key("traceparent") {
        // The client may already have a trace. Without a trace collector there is no span to attach to it.
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
        let _result = span.set_parent(parent);
    }
    span
}

fn answer_panic(panic: Box<dyn Any + Send>) -> Response<Body> {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    ApiError::internal(anyhow::anyhow!("a handler panicked: {}", text.unwrap_or("no message")))
        .into_response()
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::UnknownRoute { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

/// The router adds the header `Allow` to this response.
async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

impl App {
    /// Finds the connection that the headers name.
    async fn find_connection(
        &self,
        client: &Client,
        target: &ConnectionHeaders,
    ) -> Result<Arc<ConnectionRoute>, ApiError> {
        self.find_connection_by_name(client, &target.integration, &target.connection).await
    }

    async fn find_connection_by_name(
        &self,
        client: &Client,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> Result<Arc<ConnectionRoute>, ApiError> {
        Ok(self.connection_cache.get(client.environment.pk, integration, connection).await?)
    }
}
