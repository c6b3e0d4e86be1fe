//! The routes of the OpenAPI document, with the error codes of each operation.

use utoipa::OpenApi;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Paths;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ErrorBody;
use super::refusals::{self, BODY, codes_of};
use super::{
    App, actions, audit_log, connect_sessions, connect_telemetry, connections, dead_letters, deployments,
    environment, environment_variables, environments, functions, health, inbound_webhooks, integrations, mcp,
    oauth, outbound_webhooks, providers, proxy, record_changes, records, runs, sync_variants, syncs,
    typed_connections,
};
use syncline_types::error_code::ErrorCode;

/// The schemas of all error responses.
#[derive(OpenApi)]
#[openapi(components(schemas(ErrorBody)))]
struct Errors;

/// Codes of requests that name an integration, or a connection and its integration.
const LOOKUP: &[ErrorCode] = &[ErrorCode::UnknownIntegration, ErrorCode::UnknownConnection];
/// Codes of requests that select syncs.
const SYNCS: &[ErrorCode] = &[ErrorCode::UnknownSync, ErrorCode::UnknownVariant];
/// Codes of an action that ran and failed, synchronously or as a job.
const ACTION: &[ErrorCode] = &[
    ErrorCode::UnknownAction,
    ErrorCode::UnknownConnection,
    ErrorCode::InvalidActionInput,
    ErrorCode::InvalidActionOutput,
    ErrorCode::ActionScriptRuntimeError,
    ErrorCode::ScriptInternalError,
    ErrorCode::ScriptHttpError,
    ErrorCode::ScriptAborted,
    ErrorCode::ExecutionTimeout,
    ErrorCode::LimitExceeded,
    ErrorCode::RateLimited,
    ErrorCode::HostLost,
];
/// Codes of connecting an account with typed credentials.
const TYPED: &[ErrorCode] = &[
    ErrorCode::UnknownProvider,
    ErrorCode::IntegrationNotAllowed,
    ErrorCode::InvalidAuthMode,
    ErrorCode::ConnectionTestFailed,
    ErrorCode::RequestTokenExternalError,
    ErrorCode::MissingClientId,
    ErrorCode::InvalidConnection,
    ErrorCode::ConnectionValidationFailed,
    ErrorCode::ConnectionReplaced,
];
/// Codes of the start of an authorization.
const AUTHORIZATION: &[ErrorCode] = &[
    ErrorCode::UnknownIntegration,
    ErrorCode::UnknownProvider,
    ErrorCode::IntegrationNotAllowed,
    ErrorCode::InvalidAuthMode,
    ErrorCode::ProviderConfigErr,
    ErrorCode::InvalidConnectionConfig,
    ErrorCode::TokenErr,
    ErrorCode::ConnectionNotFound,
];
/// Codes of the end of an authorization.
const CALLBACK: &[ErrorCode] = &[
    ErrorCode::StateErr,
    ErrorCode::StateCookieErr,
    ErrorCode::UnknownConnectSessionToken,
    ErrorCode::AccessDenied,
    ErrorCode::CallbackErr,
    ErrorCode::ConnectionValidationFailed,
    ErrorCode::ConnectionReplaced,
];
/// Codes of webhooks of providers.
const WEBHOOK: &[ErrorCode] = &[
    ErrorCode::UnknownEnvironment,
    ErrorCode::UnknownIntegration,
    ErrorCode::WebhooksNotTaken,
    ErrorCode::MissingWebhookSignature,
    ErrorCode::InvalidWebhookSignature,
    ErrorCode::ExpiredWebhookSignature,
    ErrorCode::WebhookSecretMissing,
    ErrorCode::InvalidJson,
    ErrorCode::InvalidBody,
    ErrorCode::BodyTimeout,
    ErrorCode::PayloadTooLarge,
    ErrorCode::InvalidContentEncoding,
    ErrorCode::TooManyWebhooks,
    ErrorCode::IntakeBusy,
    ErrorCode::UnknownHandshake,
];

/// Codes of deploying a bundle.
const DEPLOYMENT: &[ErrorCode] = &[
    ErrorCode::InvalidSyncConfig,
    ErrorCode::ConflictingDeployment,
    ErrorCode::CapabilitiesNotAccepted,
    ErrorCode::BundleSignatureRequired,
    ErrorCode::InvalidBundleSignature,
    ErrorCode::HostsNotReady,
];

/// Routes of one path. After each handler come the codes that it and its services return; those of its extractors
/// follow from its arguments.
macro_rules! route {
    ($($($part:ident)::+ => $codes:expr),+ $(,)?) => {{
        let (schemas, mut paths, router) = routes!($($($part)::+),+);
        $({
            let (of_arguments, own): (_, &[ErrorCode]) = (codes_of($($part)::+), &$codes);
            refusals::describe(&mut paths, stringify!($($part)::+), &[&of_arguments, own].concat());
        })+
        (schemas, paths, router)
    }};
}

pub(super) fn routes() -> OpenApiRouter<App> {
    use ErrorCode as Code;
    let router = OpenApiRouter::with_openapi(Errors::openapi());
    let router = of_records(router);
    let router = of_setup(router);
    let router = of_connections(router);
    router
        .routes(route!(actions::trigger_action =>
            [ACTION, &[Code::IdempotencyKeyReused, Code::IdempotencyKeyInUse]].concat()))
        .routes(route!(actions::get_action_result =>
            [ACTION, &[Code::UnknownJob, Code::ActionNotFinished]].concat()))
        .routes(route!(runs::list_runs => [LOOKUP, &[Code::InvalidCursor]].concat()))
        .routes(route!(runs::get_run => [Code::UnknownRun]))
        .routes(route!(runs::get_run_recording => [Code::UnknownRun, Code::UnknownRecording]))
        .routes(route!(runs::list_run_logs => [Code::UnknownRun, Code::InvalidCursor]))
        .routes(route!(runs::approve_run =>
            [Code::UnknownRun, Code::RunNotHeld, Code::RunAlreadyApproved, Code::RunSuperseded]))
        .routes(route!(mcp::post_message => [&[Code::OriginNotAllowed], &BODY[..]].concat()))
        .routes(route!(outbound_webhooks::list_deliveries => [LOOKUP, &[Code::InvalidCursor]].concat()))
        .routes(route!(outbound_webhooks::redeliver_failed => []))
        .routes(route!(outbound_webhooks::get_delivery => [Code::UnknownWebhook]))
        .routes(route!(outbound_webhooks::redeliver =>
            [Code::UnknownWebhook, Code::WebhookInFlight, Code::NoWebhookUrl]))
        .routes(route!(
            inbound_webhooks::ingest::ingest_webhook => WEBHOOK,
            inbound_webhooks::ingest::answer_handshake => WEBHOOK,
        ))
        .routes(route!(inbound_webhooks::list_inbound_webhooks =>
            [Code::UnknownIntegration, Code::InvalidCursor]))
        .routes(route!(inbound_webhooks::replay_many => [Code::UnknownIntegration]))
        .routes(route!(inbound_webhooks::get_inbound_webhook => [Code::UnknownWebhook]))
        .routes(route!(inbound_webhooks::replay => [Code::UnknownWebhook, Code::WebhookInFlight]))
        .routes(route!(
            deployments::create_deployment => [DEPLOYMENT, &[Code::InvalidBundle, Code::InvalidHeaders], &BODY[..]].concat(),
            deployments::list_deployments => [Code::InvalidCursor],
        ))
        .routes(route!(deployments::roll_back =>
            [DEPLOYMENT, &[Code::UnknownDeployment, Code::DeploymentNotRestorable]].concat()))
        .merge(OpenApiRouter::with_openapi(proxy::openapi()))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
}

fn of_records(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    use ErrorCode as Code;
    let selection = [LOOKUP, SYNCS, &[Code::NoSyncsFound]].concat();
    router
        .routes(route!(records::list_records => [Code::UnknownModel, Code::InvalidCursor]))
        .routes(route!(record_changes::follow_records =>
            [Code::UnknownModel, Code::InvalidCursor, Code::TooManyReaders]))
        .routes(route!(records::prune_records => [Code::UnknownModel, Code::InvalidCursor]))
        .routes(route!(dead_letters::list_dead_letters => [LOOKUP, &[Code::InvalidCursor]].concat()))
        .routes(route!(dead_letters::drop_dead_letter => [Code::UnknownDeadLetter]))
        .routes(route!(dead_letters::replay_dead_letter => [
            Code::UnknownDeadLetter,
            Code::UnknownConnection,
            Code::UnknownModel,
            Code::DeadLetterRefused,
            Code::DeadLetterSuperseded,
            Code::LimitExceeded,
        ]))
        .routes(route!(syncs::trigger_syncs => [&selection[..], &[Code::InvalidHeaders]].concat()))
        .routes(route!(syncs::start_syncs => selection))
        .routes(route!(syncs::pause_syncs => selection))
        .routes(route!(syncs::sync_status => [&selection[..], &[Code::InvalidCursor]].concat()))
        .routes(route!(syncs::update_connection_frequency => [LOOKUP, SYNCS].concat()))
        .routes(route!(syncs::set_recording => [LOOKUP, SYNCS].concat()))
        .routes(route!(
            sync_variants::create_variant => [
                LOOKUP,
                &[
                    Code::UnknownSync,
                    Code::InvalidVariant,
                    Code::SyncVariantAlreadyExists,
                    Code::ResourceCapped,
                ],
            ]
            .concat(),
            sync_variants::delete_variant => [LOOKUP, SYNCS, &[Code::InvalidVariant]].concat(),
        ))
}

fn of_setup(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    use ErrorCode as Code;
    router
        .routes(route!(environment_variables::list_variables => []))
        .routes(
            route!(environment_variables::put_variable => [], environment_variables::delete_variable => []),
        )
        .routes(route!(environment::get_environment => [], environment::patch_environment => []))
        .routes(route!(environment::rotate_signing_key => [Code::MultipleWebhookSigningKeys]))
        .routes(route!(
            environment::create_key => [Code::UnknownEnvironment, Code::DuplicateApiKey],
            environment::delete_key => [Code::UnknownEnvironment, Code::UnknownApiKey],
        ))
        .routes(route!(environments::create_environment => [Code::DuplicateEnvironment]))
        .routes(route!(environments::delete_environment =>
            [Code::UnknownEnvironment, Code::CannotDeleteDefaultEnvironment]))
        .routes(route!(audit_log::list_entries => [Code::InvalidCursor]))
        .routes(route!(audit_log::export_entries => []))
        .routes(route!(
            integrations::list_integrations => [],
            integrations::create_integration => [Code::UnknownProvider, Code::DuplicateIntegration],
        ))
        .routes(route!(
            integrations::get_integration => [Code::UnknownIntegration, Code::UnknownProvider],
            integrations::update_integration =>
                [Code::UnknownIntegration, Code::UnknownProvider, Code::DuplicateIntegration],
            integrations::delete_integration => [Code::UnknownIntegration],
        ))
        .routes(route!(integrations::create_quickstart => [Code::NotImplemented]))
        .routes(route!(providers::list_providers => []))
        .routes(route!(providers::get_provider => [Code::UnknownProvider]))
        .routes(route!(providers::list_templates => [Code::UnknownProvider]))
        .routes(route!(functions::list_functions => [Code::UnknownIntegration]))
        .routes(route!(
            functions::get_function => [Code::UnknownIntegration, Code::UnknownFunction],
            functions::delete_function => [Code::NotImplemented],
        ))
        .routes(route!(functions::get_function_code => [Code::NotImplemented]))
        .routes(route!(functions::scripts_config => []))
}

fn of_connections(router: OpenApiRouter<App>) -> OpenApiRouter<App> {
    use ErrorCode as Code;
    let typed = [LOOKUP, TYPED].concat();
    router
        .routes(route!(connect_sessions::create_session => []))
        .routes(route!(connect_sessions::create_reconnect_session => LOOKUP))
        .routes(route!(connect_sessions::get_session => [], connect_sessions::delete_session => []))
        .routes(route!(connect_telemetry::note_telemetry =>
            [Code::InvalidConnectSessionTokenFormat, Code::UnknownConnectSessionToken]))
        .routes(route!(typed_connections::connect_api_key => typed))
        .routes(route!(typed_connections::connect_basic => typed))
        .routes(route!(typed_connections::connect_unauthenticated => typed))
        .routes(route!(typed_connections::connect_token_based => typed))
        .routes(route!(typed_connections::connect_two_step => typed))
        .routes(route!(typed_connections::connect_jwt => typed))
        .routes(route!(typed_connections::connect_bill => typed))
        .routes(route!(typed_connections::connect_signature => typed))
        .routes(route!(typed_connections::connect_client_credentials => typed))
        .routes(route!(oauth::get_authorization => []))
        .routes(route!(oauth::start_oauth => AUTHORIZATION))
        .routes(route!(oauth::finish_oauth => [AUTHORIZATION, CALLBACK].concat()))
        .routes(route!(oauth::finish_installation => [AUTHORIZATION, CALLBACK].concat()))
        .routes(route!(
            connections::list_connections => [],
            connections::import_connection => [
                Code::UnknownIntegration,
                Code::UnknownProvider,
                Code::ConnectionValidationFailed,
                Code::ConnectionReplaced,
            ],
        ))
        .routes(route!(
            connections::get_connection => [LOOKUP, &[Code::InvalidCredentials]].concat(),
            connections::update_connection => LOOKUP,
            connections::delete_connection => LOOKUP,
        ))
        .routes(route!(connections::set_metadata => LOOKUP, connections::merge_metadata => LOOKUP))
}

/// Describes the operations of an object whose name is also a special path: an integration can be called `quickstart`,
/// and a connection `metadata`. Methods that the special path does not use apply to these objects.
pub(super) fn describe_special_names(paths: &mut Paths) {
    for (general, special, parameter) in [
        ("/integrations/{unique_key}", "/integrations/quickstart", "unique_key"),
        ("/connections/{connection_id}", "/connections/metadata", "connection_id"),
    ] {
        let name = special.rsplit('/').next().unwrap_or_default();
        let Some(mut item) = paths.paths.get(general).cloned() else { continue };
        let own = paths.paths.entry(special.to_owned()).or_default();
        item.post = None;
        if own.patch.is_some() {
            item.patch = None;
        }
        for operation in refusals::operations(&mut item) {
            let id = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{id}_{name}"));
            let description = operation.description.take().unwrap_or_default();
            operation.description = Some(format!("For the object with the name `{name}`. {description}"));
            if let Some(parameters) = &mut operation.parameters {
                parameters.retain(|one| !matches!(one, RefOr::T(one) if one.name == parameter));
            }
        }
        own.merge_operations(item);
    }
}
