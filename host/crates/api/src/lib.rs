//! The REST API: one file per resource, in the order of the routes below.
//!
//! A handler checks the key, parses the request, calls a service and answers. Errors are
//! [`error::ApiError`]s throughout.

mod actions;
mod api_reference;
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
mod record_changes;
mod records;
#[cfg(test)]
mod reference;
mod runs;
pub mod server;
mod static_files;
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
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
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
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::metrics::metrics_routes;

use self::error::ApiError;
use self::extract::ConnectionHeaders;
use syncline_auth::{ApiKeys, Authenticator, Client, Environments};
use syncline_engine::{
    Actions, Authorizations, ConnectSessions, ConnectionCache, ConnectionRoute, Connections, DeadLetters,
    Deployments, EnvironmentVariables, Functions, Health, InboundWebhookLog, Integrations, Observation,
    Proxy, RecordChanges, Records, Runs, Syncs, TypedConnections, WebhookIngest,
};
use syncline_outbound_webhooks::DeliveryLog;
use syncline_providers::Catalogue;
use syncline_telemetry::clock::Clock;
use syncline_telemetry::supervisor::Supervisor;
use syncline_types::ids::{ConnectionId, IntegrationKey};

/// What every handler can reach.
#[derive(Clone)]
pub struct App(Arc<Services>);

/// The services that handlers call, and what the API says of this host.
pub struct Services {
    pub actions: Arc<Actions>,
    pub api_keys: ApiKeys,
    pub authenticator: Arc<Authenticator>,
    pub authorizations: Arc<Authorizations>,
    pub catalogue: Arc<Catalogue>,
    pub clock: Clock,
    pub connect_sessions: Arc<ConnectSessions>,
    pub connection_cache: Arc<ConnectionCache>,
    pub connections: Arc<Connections>,
    pub dead_letters: DeadLetters,
    pub deliveries: DeliveryLog,
    pub deployments: Arc<Deployments>,
    pub environments: Arc<Environments>,
    pub functions: Arc<Functions>,
    pub health: Health,
    pub inbound_webhook_log: InboundWebhookLog,
    pub inbound_webhooks: Arc<WebhookIngest>,
    pub integrations: Integrations,
    pub observation: Observation,
    pub proxy: Arc<Proxy>,
    pub record_changes: Arc<RecordChanges>,
    pub records: Arc<Records>,
    pub runs: Runs,
    pub supervisor: Arc<Supervisor>,
    pub syncs: Arc<Syncs>,
    pub typed_connections: Arc<TypedConnections>,
    pub variables: Arc<EnvironmentVariables>,
    /// Cancelled when the host begins to stop.
    pub stopping: CancellationToken,
    /// Where clients reach this service, without a slash at the end.
    pub public_url: Arc<str>,
    /// Where end users reach the Connect UI, without a slash at the end.
    pub connect_url: Arc<str>,
    /// The member of a record that holds its metadata.
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

/// Every route, and the pages for people, with everything around them.
pub fn router(app: App, pages: Router<App>) -> Router {
    let (routes, openapi) = routes().split_for_parts();
    let document: Arc<str> = document(openapi).to_json().expect("the document is plain data").into();
    let json = [(header::CONTENT_TYPE, "application/json")];
    let middleware = tower::ServiceBuilder::new()
        .set_x_request_id(MakeRequestUuid)
        // What fails is logged where it fails; a provider's own failures are passed on through `/proxy` as well.
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(request_span)
                .on_request(())
                .on_failure(())
                .on_response(|response: &Response<_>, latency: Duration, span: &Span| {
                    span.record("http.status", i64::from(response.status().as_u16()));
                    tracing::debug!(latency.us = latency.as_micros() as u64, "answered");
                }),
        )
        .propagate_x_request_id()
        .map_request(cors::set_options_aside)
        .layer(cors::layer())
        .map_request(cors::take_options_up)
        .layer(metrics::CountLayer)
        .map_request(unread_body::throw_away)
        .layer(CatchPanicLayer::custom(answer_panic));
    routes
        .route("/records/", get(records::list_records))
        .merge(pages)
        .merge(older_routes())
        .route("/images/template-logos/{file}", get(providers::get_logo))
        .route("/integrations/{unique_key}/functions/{name}/code", get(functions::get_function_code))
        .route("/integrations/{unique_key}/functions/{name}", delete(functions::delete_function))
        // These are names like any other, too: what no route of their own takes is about what has them.
        .route(
            "/integrations/quickstart",
            post(integrations::create_quickstart)
                .get(integrations::get_integration)
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

/// The description of the API, as `/openapi.json` gives it.
pub fn openapi() -> OpenApi {
    document(routes().split_for_parts().1)
}

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(records::list_records))
        .routes(routes!(record_changes::follow_records))
        .routes(routes!(records::prune_records))
        .routes(routes!(dead_letters::list_dead_letters))
        .routes(routes!(dead_letters::drop_dead_letter))
        .routes(routes!(dead_letters::replay_dead_letter))
        .routes(routes!(syncs::trigger_syncs))
        .routes(routes!(syncs::start_syncs))
        .routes(routes!(syncs::pause_syncs))
        .routes(routes!(syncs::sync_status))
        .routes(routes!(syncs::update_connection_frequency))
        .routes(routes!(sync_variants::create_variant, sync_variants::delete_variant))
        .routes(routes!(environment_variables::list_variables))
        .routes(routes!(environment_variables::put_variable, environment_variables::delete_variable))
        .routes(routes!(environment::get_environment, environment::patch_environment))
        .routes(routes!(environment::rotate_signing_key))
        .routes(routes!(environment::create_key, environment::delete_key))
        .routes(routes!(environments::create_environment))
        .routes(routes!(environments::delete_environment))
        .routes(routes!(integrations::list_integrations, integrations::create_integration))
        .routes(routes!(
            integrations::get_integration,
            integrations::update_integration,
            integrations::delete_integration
        ))
        .routes(routes!(connect_sessions::create_session))
        .routes(routes!(connect_sessions::create_reconnect_session))
        .routes(routes!(connect_sessions::get_session, connect_sessions::delete_session))
        .routes(routes!(connect_telemetry::note_telemetry))
        .routes(routes!(typed_connections::connect_api_key))
        .routes(routes!(typed_connections::connect_basic))
        .routes(routes!(typed_connections::connect_unauthenticated))
        .routes(routes!(typed_connections::connect_token_based))
        .routes(routes!(typed_connections::connect_two_step))
        .routes(routes!(typed_connections::connect_jwt))
        .routes(routes!(typed_connections::connect_bill))
        .routes(routes!(typed_connections::connect_signature))
        .routes(routes!(typed_connections::connect_client_credentials))
        .routes(routes!(oauth::get_authorization))
        .routes(routes!(oauth::start_oauth))
        .routes(routes!(oauth::finish_oauth))
        .routes(routes!(oauth::finish_installation))
        .routes(routes!(connections::list_connections, connections::import_connection))
        .routes(routes!(
            connections::get_connection,
            connections::update_connection,
            connections::delete_connection
        ))
        .routes(routes!(connections::set_metadata, connections::merge_metadata))
        .routes(routes!(providers::list_providers))
        .routes(routes!(providers::get_provider))
        .routes(routes!(providers::list_templates))
        .routes(routes!(functions::list_functions))
        .routes(routes!(functions::get_function))
        .routes(routes!(functions::scripts_config))
        .routes(routes!(actions::trigger_action))
        .routes(routes!(actions::get_action_result))
        .routes(routes!(runs::list_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(runs::list_run_logs))
        .routes(routes!(runs::approve_run))
        .routes(routes!(mcp::post_message))
        .routes(routes!(outbound_webhooks::list_deliveries))
        .routes(routes!(outbound_webhooks::redeliver_failed))
        .routes(routes!(outbound_webhooks::get_delivery))
        .routes(routes!(outbound_webhooks::redeliver))
        .routes(routes!(inbound_webhooks::ingest::ingest_webhook, inbound_webhooks::ingest::answer_handshake))
        .routes(routes!(inbound_webhooks::list_inbound_webhooks))
        .routes(routes!(inbound_webhooks::replay_many))
        .routes(routes!(inbound_webhooks::get_inbound_webhook))
        .routes(routes!(inbound_webhooks::replay))
        .routes(routes!(deployments::create_deployment))
        .merge(OpenApiRouter::with_openapi(proxy::openapi()))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
}

/// What older clients still call connections' routes.
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

fn document(routes: OpenApi) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Syncline")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Integrations, connections, synced records and actions."))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()));
    let mut openapi = OpenApiBuilder::from(routes)
        .info(info.build())
        .security(Some([SecurityRequirement::new::<_, [&str; 0], &str>("secret_key", [])]))
        .build();
    let components = openapi.components.get_or_insert_default();
    for (name, description) in [
        ("secret_key", "A secret key of the environment"),
        ("session_token", "The token of a connect session, which ends after 30 minutes"),
    ] {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description));
        components.add_security_scheme(name, SecurityScheme::Http(bearer.build()));
    }
    describe_responses(&mut openapi);
    openapi
}

/// A valid document has words for every response; most have nothing to say beyond their status.
fn describe_responses(openapi: &mut OpenApi) {
    for item in openapi.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        let responses =
            operations.into_iter().flatten().flat_map(|operation| &mut operation.responses.responses);
        for (status, response) in responses {
            if let RefOr::T(response) = response
                && response.description.is_empty()
            {
                let words = match status.as_bytes() {
                    [b'2', ..] => "Done",
                    [b'4', ..] => "Refused: the code says why",
                    _ => "It does not work at the moment",
                };
                words.clone_into(&mut response.description);
            }
        }
    }
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
        // Whoever asks may be tracing already. Where nobody collects traces there is nothing to be a part of.
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
        let _is_traced = span.set_parent(parent);
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

/// The router itself says in `Allow` what the path takes, if nobody else has.
async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

impl App {
    /// The connection that the headers name.
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
