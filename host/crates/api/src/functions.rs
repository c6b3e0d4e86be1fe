//! `/integrations/{unique_key}/functions` and `/scripts/config`: deployed functions.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiPath, ApiQuery, EnvironmentAuth};
use super::integrations::parse_path_key;
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_config::{FunctionKind, LifecycleEvent};
use syncline_engine::FunctionDescription;
use syncline_types::ids::{FunctionName, IntegrationKey, InvalidName};

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// A deployed function. Some members depend on `type`: syncs have `returns`, `json_schema`, `runs`, `auto_start` and
/// `track_deletes`; actions have `input`, `returns` and `json_schema`; lifecycle functions have `event`; webhook
/// functions have `webhookSubscriptions`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FunctionBody {
    /// Internal number of the function.
    id: i64,
    /// Name of the function.
    name: String,
    /// `sync`, `action`, `on-event` (lifecycle function) or `webhook`.
    r#type: &'static str,
    /// Description in `syncline.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Always `true`.
    enabled: bool,
    /// When the function was last deployed.
    last_deployed: String,
    /// Always `repo`: functions are deployed from a project.
    source: &'static str,
    /// Name of the action's input model.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    /// Names of the models that the function returns or saves.
    #[serde(skip_serializing_if = "Option::is_none")]
    returns: Option<Vec<String>>,
    /// JSON schemas of the models.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    json_schema: Option<Value>,
    /// Frequency of the sync, such as `every 5 minutes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<String>,
    /// Whether the sync starts when a connection is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_start: Option<bool>,
    /// Whether full runs mark missing records as deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    track_deletes: Option<bool>,
    /// `post-connection-creation`, `pre-connection-deletion` or `validate-connection`.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    /// Types of events that the webhook function handles.
    #[serde(skip_serializing_if = "Option::is_none", rename = "webhookSubscriptions")]
    webhook_subscriptions: Option<Vec<String>>,
}

/// A page of functions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FunctionsResponse {
    /// The functions.
    data: Vec<FunctionBody>,
    /// Position of the page.
    pagination: Pagination,
}

/// Position of a page.
#[derive(Debug, Serialize, ToSchema)]
struct Pagination {
    /// Number of all functions that match.
    total: usize,
    /// Number of the page, from 0.
    page: usize,
    /// Page size.
    limit: usize,
}

/// One function.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FunctionResponse {
    /// The function.
    data: FunctionBody,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionsQuery {
    r#type: Option<String>,
    search: Option<String>,
    page: Option<String>,
    limit: Option<String>,
}

/// List functions
///
/// Returns the functions that are deployed for an integration, sorted by name. Needs the scope
/// `environment:integrations:list_functions`.
#[utoipa::path(
    get, path = "/integrations/{unique_key}/functions", tag = "Functions",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("type" = Option<String>, Query, description = "`sync`, `action`, `on-event` or `webhook`."),
        ("search" = Option<String>, Query, description = "Returns only functions whose name contains this text, ignoring case. 1 to 255 characters."),
        ("page" = Option<u64>, Query, description = "Number of the page, from 0. Default: 0."),
        ("limit" = Option<u64>, Query, description = "Page size, 1 to 100. Default: 20."),
    ),
    responses(
        (
            status = 200, description = "A page of functions",
            body = FunctionsResponse,
            example = json!({
                "data": [
                    {
                        "id": 1,
                        "name": "buyers",
                        "type": "sync",
                        "description": "Syncs buyers.",
                        "enabled": true,
                        "last_deployed": "2026-03-01T09:00:00.000Z",
                        "source": "repo",
                        "returns": ["Buyer"],
                        "json_schema": {"definitions": {"Buyer": {"type": "object"}}},
                        "runs": "every 5 minutes",
                        "auto_start": true,
                        "track_deletes": true
                    }
                ],
                "pagination": {"total": 1, "page": 0, "limit": 20}
            }),
        ),
    ),
)]
pub(super) async fn list_functions(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsListFunctions>,
    ApiPath(key): ApiPath,
    ApiQuery(query): ApiQuery<FunctionsQuery>,
) -> Result<Json<FunctionsResponse>, ApiError> {
    let key = parse_path_key(&key)?;
    let kind = query.r#type.as_deref().map(parse_kind).transpose()?;
    let search = query.search.as_deref().map(parse_search).transpose()?.unwrap_or_default();
    let page = query.page.map_or(Ok(0), |text| parse_number("page", &text, 0, i32::MAX as usize))?;
    let limit = query.limit.map_or(Ok(DEFAULT_LIMIT), |text| parse_number("limit", &text, 1, MAX_LIMIT))?;
    let mut functions = app.functions_of(&client, &key).await?;
    functions.retain(|function| {
        kind.is_none_or(|kind| function.kind == kind)
            && function.name.as_str().to_lowercase().contains(&search)
    });
    let pagination = Pagination { total: functions.len(), page, limit };
    let shown = functions.into_iter().skip(page.saturating_mul(limit)).take(limit);
    Ok(Json(FunctionsResponse { data: shown.map(FunctionBody::from).collect(), pagination }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionQuery {
    r#type: Option<String>,
}

/// Get a function
///
/// Returns one deployed function. If functions of several types have this name, returns the first unless `type`
/// selects another. Needs the scope `environment:functions:read`.
#[utoipa::path(
    get, path = "/integrations/{unique_key}/functions/{name}", tag = "Functions",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("name" = String, Path, description = "Name of the function."),
        ("type" = Option<String>, Query, description = "`sync`, `action`, `on-event` or `webhook`."),
    ),
    responses(
        (
            status = 200, description = "The function",
            body = FunctionResponse,
            example = json!({
                "data": {
                    "id": 1,
                    "name": "buyers",
                    "type": "sync",
                    "description": "Syncs buyers.",
                    "enabled": true,
                    "last_deployed": "2026-03-01T09:00:00.000Z",
                    "source": "repo",
                    "returns": ["Buyer"],
                    "json_schema": {"definitions": {"Buyer": {"type": "object"}}},
                    "runs": "every 5 minutes",
                    "auto_start": true,
                    "track_deletes": true
                }
            }),
        ),
    ),
)]
pub(super) async fn get_function(
    State(app): State<App>,
    client: EnvironmentAuth<rights::FunctionsRead>,
    ApiPath((key, name)): ApiPath<(String, String)>,
    ApiQuery(query): ApiQuery<FunctionQuery>,
) -> Result<Json<FunctionResponse>, ApiError> {
    let key = parse_path_key(&key)?;
    let name: FunctionName = name.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["name"], problem.to_string())],
    })?;
    let kind = query.r#type.as_deref().map(parse_kind).transpose()?;
    let functions = app.functions_of(&client, &key).await?;
    let found = functions
        .into_iter()
        .find(|function| function.name == name && kind.is_none_or(|kind| function.kind == kind));
    let function = found.ok_or(ApiError::UnknownFunction { function: name.to_string(), integration: key })?;
    Ok(Json(FunctionResponse { data: function.into() }))
}

/// Get the code of a function
///
/// Not supported: always fails with 501 `not_implemented`, because a component does not contain its source code. The
/// route exists for existing clients. Needs the scope `environment:functions:read`.
#[utoipa::path(
    get, path = "/integrations/{unique_key}/functions/{name}/code", tag = "Functions",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("name" = String, Path, description = "Name of the function."),
    ),
    responses(),
)]
pub(super) async fn get_function_code(_: EnvironmentAuth<rights::FunctionsRead>) -> Result<(), ApiError> {
    Err(ApiError::NotOffered(
        "the source code of functions is not stored here; see the project from which the bundle was built",
    ))
}

/// Delete a function
///
/// Not supported: always fails with 501 `not_implemented`, because only deployments add and remove functions. The route
/// exists for existing clients. Needs the scope `environment:deploy`.
#[utoipa::path(
    delete, path = "/integrations/{unique_key}/functions/{name}", tag = "Functions",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("name" = String, Path, description = "Name of the function."),
    ),
    responses(),
)]
pub(super) async fn delete_function(_: EnvironmentAuth<rights::Deploy>) -> Result<(), ApiError> {
    Err(ApiError::NotOffered(
        "functions cannot be deleted one by one; deploy the bundle without this function",
    ))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptsQuery {
    format: Option<String>,
}

/// All deployed functions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ScriptsResponse {
    /// The integrations with their functions.
    Integrations(Vec<ScriptsOfIntegration>),
    /// With `format=openai`.
    Tools(ToolsBody),
}

/// The functions of an integration: `providerConfigKey`, `provider`, `syncs`, `actions` and `on-events`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object)]
pub(super) struct ScriptsOfIntegration(Value);

/// The actions as tools for a language model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ToolsBody {
    /// The tools: `name`, `description` and `parameters`.
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
}

/// List all deployed functions
///
/// Returns all deployed functions of the environment, grouped by integration. With `format=openai`, returns the
/// actions as tools for a language model instead: `{"data": [{"name", "description", "parameters"}]}`. Needs the scope
/// `environment:integrations:list_functions`.
#[utoipa::path(
    get, path = "/scripts/config", tag = "Functions",
    params(
        ("format" = Option<String>, Query, description = "`nango` (by integration, the default) or `openai` (actions as tools)."),
    ),
    responses(
        (
            status = 200, description = "A list of integrations with their functions; an object with `format=openai`",
            body = ScriptsResponse,
            example = json!([
                {
                    "providerConfigKey": "shop",
                    "provider": "stripe-api-key",
                    "syncs": [
                        {
                            "id": 1,
                            "name": "buyers",
                            "type": "sync",
                            "description": "Syncs buyers.",
                            "enabled": true,
                            "last_deployed": "2026-03-01T09:00:00.000Z",
                            "source": "repo",
                            "returns": ["Buyer"],
                            "json_schema": {"definitions": {"Buyer": {"type": "object"}}},
                            "runs": "every 5 minutes",
                            "auto_start": true,
                            "track_deletes": true,
                            "endpoints": [],
                            "features": [],
                            "sdk_version": null
                        }
                    ],
                    "actions": [],
                    "on-events": []
                }
            ]),
        ),
    ),
)]
pub(super) async fn scripts_config(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsListFunctions>,
    ApiQuery(query): ApiQuery<ScriptsQuery>,
) -> Result<Json<ScriptsResponse>, ApiError> {
    let functions = app.functions.describe(client.environment.pk).await.map_err(ApiError::internal)?;
    match query.format.as_deref() {
        None | Some("nango") => Ok(Json(ScriptsResponse::Integrations(by_integration(functions)))),
        Some("openai") => {
            let actions = functions.into_iter().filter(|function| function.kind == FunctionKind::Action);
            let tool = |action: FunctionDescription| {
                json!({
                    "name": action.name,
                    "description": action.description.unwrap_or_default(),
                    "parameters": action.parameters,
                })
            };
            Ok(Json(ScriptsResponse::Tools(ToolsBody { data: actions.map(tool).collect() })))
        }
        Some(other) => {
            let message = format!("must be `nango` or `openai` (got `{other}`)");
            Err(ApiError::query("invalid_value", &["format"], message))
        }
    }
}

fn by_integration(functions: Vec<FunctionDescription>) -> Vec<ScriptsOfIntegration> {
    let mut integrations: BTreeMap<IntegrationKey, Vec<FunctionDescription>> = BTreeMap::new();
    for function in functions {
        integrations.entry(function.integration.clone()).or_default().push(function);
    }
    let scripts = |functions: &[FunctionDescription], kind| {
        let of_kind = functions.iter().filter(|function| function.kind == kind);
        of_kind.map(|function| script(function.clone())).collect::<Vec<_>>()
    };
    let listed = integrations.into_iter().map(|(key, functions)| {
        ScriptsOfIntegration(json!({
            "providerConfigKey": key,
            "provider": functions.first().map(|function| &function.provider),
            "syncs": scripts(&functions, FunctionKind::Sync),
            "actions": scripts(&functions, FunctionKind::Action),
            "on-events": scripts(&functions, FunctionKind::Lifecycle),
        }))
    });
    listed.collect()
}

/// A function with the additional members of this list.
fn script(function: FunctionDescription) -> Value {
    let mut script = json!(FunctionBody::from(function));
    for (name, value) in [
        ("returns", json!([])),
        ("endpoints", json!([])),
        ("features", json!([])),
        ("json_schema", Value::Null),
    ] {
        if script.get(name).is_none() {
            script[name] = value;
        }
    }
    script["sdk_version"] = Value::Null;
    script
}

impl App {
    async fn functions_of(
        &self,
        client: &Client,
        key: &IntegrationKey,
    ) -> Result<Vec<FunctionDescription>, ApiError> {
        self.integrations.get(client.environment.pk, key).await?;
        let functions = self.functions.describe(client.environment.pk).await;
        let functions = functions.map_err(ApiError::internal)?;
        Ok(functions.into_iter().filter(|function| function.integration == *key).collect())
    }
}

impl From<FunctionDescription> for FunctionBody {
    fn from(function: FunctionDescription) -> Self {
        let is_sync = function.kind == FunctionKind::Sync;
        let has_types = is_sync || function.kind == FunctionKind::Action;
        let is_webhook = function.kind == FunctionKind::Webhook;
        Self {
            id: function.id.0,
            name: function.name.to_string(),
            r#type: kind_name(function.kind),
            description: function.description,
            enabled: true,
            last_deployed: iso(function.deployed_at),
            source: "repo",
            input: function.input,
            returns: has_types.then_some(function.returns),
            json_schema: has_types.then_some(function.schema),
            runs: function.frequency,
            auto_start: is_sync.then_some(function.auto_start),
            track_deletes: is_sync.then_some(function.track_deletes),
            event: function.event.map(event_name),
            webhook_subscriptions: is_webhook.then_some(function.subscriptions),
        }
    }
}

/// The name of a kind in this API.
fn kind_name(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Sync => "sync",
        FunctionKind::Action => "action",
        FunctionKind::Webhook => "webhook",
        FunctionKind::Lifecycle => "on-event",
    }
}

/// The name of an event in this API.
fn event_name(event: LifecycleEvent) -> &'static str {
    match event {
        LifecycleEvent::ConnectionCreated => "post-connection-creation",
        LifecycleEvent::ConnectionDeleting => "pre-connection-deletion",
        LifecycleEvent::ConnectionValidating => "validate-connection",
    }
}

fn parse_kind(text: &str) -> Result<FunctionKind, ApiError> {
    FunctionKind::ALL.iter().copied().find(|kind| kind_name(*kind) == text).ok_or_else(|| {
        let message = format!("must be `sync`, `action`, `on-event` or `webhook` (got `{text}`)");
        ApiError::query("invalid_value", &["type"], message)
    })
}

fn parse_search(text: &str) -> Result<String, ApiError> {
    if (1..=255).contains(&text.chars().count()) {
        return Ok(text.to_lowercase());
    }
    Err(ApiError::query("invalid_value", &["search"], "must be 1 to 255 characters long"))
}

fn parse_number(name: &'static str, text: &str, least: usize, most: usize) -> Result<usize, ApiError> {
    match text.parse::<usize>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => {
            let message = format!("must be a whole number from {least} to {most} (got `{text}`)");
            Err(ApiError::query("invalid_value", &[name], message))
        }
    }
}
