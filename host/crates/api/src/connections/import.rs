//! `POST /connections`: imports credentials that a client already has.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::metadata::parse_metadata;
use super::{App, ConnectionBody, parse_name};
use crate::error::ApiError;
use crate::extract::{ApiJson, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery};
use crate::tags::{EndUser, Organization, checked_tags, generated_tags};
use crate::time::iso;
use syncline_auth::{CredentialsError, Scope, StoredCredentials, remove_refresh_tokens, rights};
use syncline_engine::{ImportResponse, ImportedConnection};
use syncline_providers::{Provider, check_credential};
use syncline_types::ids::{ConnectionId, IntegrationKey};
use syncline_types::sanitize::contains_nul;

/// Longer credentials are rejected by their length, with another message.
const MAX_CHECKED_CREDENTIAL: usize = 1024;

/// A connection to import.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportRequest {
    /// Your id for the connection, unique within the integration. Default: a generated UUID.
    connection_id: Option<String>,
    /// The unique key of the integration.
    provider_config_key: String,
    /// The credentials. `type` is the auth mode of the provider, and the other members depend on it: `{"type":
    /// "API_KEY", "apiKey": …}`, `{"type": "BASIC", "username": …, "password": …}`, `{"type": "OAUTH2",
    /// "access_token": …, "refresh_token": …, "expires_at": …}` or `{"type": "NONE"}`.
    #[schema(value_type = Object)]
    credentials: Map<String, Value>,
    /// JSON object that your backend and your functions share. At most 1 MB. Numbers keep all digits.
    #[serde(default = "no_metadata")]
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    /// Values that the provider needs, such as `{"subdomain": "acme"}`.
    #[serde(default)]
    #[schema(value_type = Object)]
    connection_config: Map<String, Value>,
    /// URL for this connection's webhooks. Default: the URLs of the environment.
    webhook_url_override: Option<String>,
    /// The end user who owns the account.
    end_user: Option<EndUser>,
    /// The organization of the end user.
    organization: Option<Organization>,
    /// Tags of the connection, at most 10. Keys are converted to lower case.
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// Import a connection
///
/// Creates a connection from credentials that you already have, without calling the provider. Lifecycle functions that
/// validate connections still run. The syncs of the connection start immediately. If the connection exists, its
/// credentials are replaced and its records stay.
///
/// Connections of the auth modes `JWT`, `TWO_STEP`, `BILL` and `SIGNATURE` cannot be imported. Needs the scope
/// `environment:connections:create`. The response includes the credentials if the key has the scope
/// `environment:connections:read_credentials`.
#[utoipa::path(
    post, path = "/connections", tag = "Connections",
    request_body(content = ImportRequest,
        example = json!({
            "connection_id": "user-1",
            "provider_config_key": "shop",
            "credentials": {"type": "API_KEY", "apiKey": "sk_test_1"},
            "metadata": {"region": "eu"},
            "end_user": {"id": "7", "email": "ada@example.com", "display_name": "Ada"},
            "tags": {"plan": "pro"}
        })),
    responses(
        (
            status = 201, description = "The connection was imported",
            body = ConnectionBody,
            example = json!({
                "id": 1,
                "connection_id": "user-1",
                "provider_config_key": "shop",
                "provider": "stripe-api-key",
                "errors": [],
                "end_user": {
                    "id": "7",
                    "display_name": "Ada",
                    "email": "ada@example.com",
                    "tags": null,
                    "organization": null
                },
                "tags": {"end_user_id": "7", "plan": "pro"},
                "metadata": {"region": "eu"},
                "connection_config": {},
                "webhook_url_override": null,
                "created_at": "2026-03-01T09:00:00.000Z",
                "updated_at": "2026-03-01T09:00:00.000Z",
                "last_fetched_at": "2026-03-01T09:00:00.000Z",
                "credentials": {"type": "API_KEY", "apiKey": "sk_test_1"}
            }),
        ),
    ),
)]
pub(crate) async fn import_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsCreate>,
    _: NoQuery,
    ApiJson(mut request): ApiJson<ImportRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<(StatusCode, Json<ConnectionBody>), ApiError> {
    let key =
        parse_name::<IntegrationKey>("provider_config_key", &request.provider_config_key, ApiError::body)?;
    let id = match &request.connection_id {
        Some(id) => parse_name::<ConnectionId>("connection_id", id, ApiError::body)?,
        None => parse_name::<ConnectionId>("connection_id", &Uuid::new_v4().to_string(), ApiError::body)?,
    };
    let metadata = parse_metadata(&request.metadata)?;
    check_members("connection_config", &request.connection_config)?;
    check_scopes_override(&request.connection_config)?;
    if let Some(url) = request.webhook_url_override.as_deref().filter(|url| !url.is_empty()) {
        check_webhook_url(url)?;
    }
    let user = UserAndTags::check(request.end_user, request.organization, Some(request.tags))?;
    let (integration, provider) = app.integrations.get_with_provider(client.environment.pk, &key).await?;
    check_forms(&provider, &request.credentials)?;
    let credentials =
        StoredCredentials::import(provider.auth_mode, request.credentials).map_err(credentials_error)?;
    note_installation(&provider, &credentials, &mut request.connection_config)?;
    provider.check_config(&request.connection_config).map_err(|problem| {
        let path: Vec<&str> = std::iter::once("connection_config").chain(problem.name()).collect();
        ApiError::body("invalid_value", &path, problem.to_string())
    })?;
    let shown = credentials.to_wire(false);
    let imported = ImportedConnection {
        connection_id: id,
        credentials,
        connection_config: Value::Object(request.connection_config),
        metadata,
        tags: user.tags,
        end_user: user.end_user,
        webhook_url_override: request.webhook_url_override.filter(|url| !url.is_empty()),
    };
    let shows_credentials = client.allows(Scope::ConnectionsReadCredentials);
    let response =
        if shows_credentials { ImportResponse::WithCredentials } else { ImportResponse::WithoutCredentials };
    let actor = client.actor();
    let mut described =
        app.connections.import(&client.environment, &integration, imported, response, &actor).await?;
    remove_refresh_tokens(&mut described.connection.connection_config);
    let credentials = shows_credentials.then_some(shown);
    // Clients of this route expect times with `Z`, and clients of the others with an offset.
    Ok((StatusCode::CREATED, Json(ConnectionBody::new(described, credentials, iso))))
}

fn no_metadata() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("an empty object is JSON")
}

/// The end user of a connection and its tags, as they are stored.
pub(super) struct UserAndTags {
    pub end_user: Option<Value>,
    pub tags: Value,
}

impl UserAndTags {
    /// Tags of the request take precedence over tags that are derived from the end user.
    pub fn check(
        end_user: Option<EndUser>,
        organization: Option<Organization>,
        tags: Option<BTreeMap<String, String>>,
    ) -> Result<Self, ApiError> {
        if let Some(user) = &end_user {
            user.check()?;
        }
        if let Some(organization) = &organization {
            organization.check()?;
        }
        let mut all = generated_tags(end_user.as_ref(), organization.as_ref());
        all.extend(checked_tags(tags.unwrap_or_default())?);
        let end_user = end_user.map(|user| user.stored(organization.as_ref()));
        Ok(Self { end_user, tags: Value::Object(all) })
    }
}

/// Rejects NUL characters, which Postgres cannot store.
fn check_members(field: &'static str, members: &Map<String, Value>) -> Result<(), ApiError> {
    if members.iter().any(|(key, value)| key.contains('\0') || contains_nul(value)) {
        return Err(ApiError::body("invalid_format", &[field], "must not contain a NUL character"));
    }
    Ok(())
}

pub(crate) fn check_webhook_url(text: &str) -> Result<(), ApiError> {
    let valid =
        url::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if valid && !text.contains('\0') {
        return Ok(());
    }
    Err(ApiError::body("invalid_format", &["webhook_url_override"], "must be an http or https URL"))
}

/// Checks credentials against the forms that the catalogue requires, such as the prefix of an API key.
fn check_forms(provider: &Provider, credentials: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, question) in &provider.credentials {
        let Some(value) = credentials.get(name).and_then(Value::as_str) else { continue };
        // Whether a value is required, and its length, depends on the auth mode alone.
        if value.is_empty() || value.len() > MAX_CHECKED_CREDENTIAL {
            continue;
        }
        check_credential(question, value)
            .map_err(|problem| ApiError::body("invalid_value", &["credentials", name], problem))?;
    }
    Ok(())
}

fn check_scopes_override(config: &Map<String, Value>) -> Result<(), ApiError> {
    const NAME: &str = "oauth_scopes_override";
    let is_list_of_text =
        |value: &Value| value.as_array().is_some_and(|scopes| scopes.iter().all(Value::is_string));
    match config.get(NAME) {
        Some(value) if !is_list_of_text(value) => {
            Err(ApiError::body("invalid_type", &["connection_config", NAME], "must be a list of strings"))
        }
        _ => Ok(()),
    }
}

/// Copies the installation id of an app into the connection configuration, where webhooks look it up. The
/// authorization flow does the same.
fn note_installation(
    provider: &Provider,
    credentials: &StoredCredentials,
    config: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    const NAME: &str = "installation_id";
    let Some(token) = credentials.installation() else { return Ok(()) };
    let id = token.installation_id.as_str();
    let is_other = match config.get(NAME) {
        None | Some(Value::Null) => false,
        Some(Value::String(given)) => given != id,
        Some(Value::Number(given)) => given.to_string() != id,
        Some(_) => true,
    };
    if is_other {
        let message = format!("must be `{id}`, as in the credentials, or be omitted");
        return Err(ApiError::body("invalid_value", &["connection_config", NAME], message));
    }
    config.insert(NAME.to_owned(), id.into());
    provider
        .answer(config, NAME)
        .map_err(|problem| ApiError::body("invalid_value", &["credentials", NAME], problem.to_string()))?;
    Ok(())
}

fn credentials_error(error: CredentialsError) -> ApiError {
    let path: Vec<&str> = std::iter::once("credentials").chain(error.field()).collect();
    ApiError::body("invalid_value", &path, error.to_string())
}
