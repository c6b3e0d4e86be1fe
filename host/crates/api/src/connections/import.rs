//! `POST /connections`: takes over what a client has already.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{App, ConnectionBody, parse_name};
use crate::error::{ApiError, ErrorBody};
use crate::extract::{ApiJson, EnvironmentAuth, NoQuery};
use crate::tags::{EndUser, Organization, checked_tags, generated_tags};
use syncline_auth::{CredentialsError, Scope, StoredCredentials, remove_refresh_tokens, rights};
use syncline_engine::ImportedConnection;
use syncline_providers::Provider;
use syncline_types::ids::{ConnectionId, IntegrationKey};
use syncline_types::sanitize::contains_nul;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportRequest {
    /// Generated if left out.
    connection_id: Option<String>,
    provider_config_key: String,
    /// `{"type": "API_KEY", "apiKey": …}`, `{"type": "BASIC", "username": …, "password": …}` or
    /// `{"type": "NONE"}`, as the provider's auth mode asks for.
    #[schema(value_type = Object)]
    credentials: Map<String, Value>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    #[serde(default)]
    #[schema(value_type = Object)]
    connection_config: Map<String, Value>,
    webhook_url_override: Option<String>,
    end_user: Option<EndUser>,
    /// The end user's.
    organization: Option<Organization>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// `POST /connections`: takes over credentials that are there already, without calling the provider.
#[utoipa::path(
    post, path = "/connections", tag = "Connections", request_body = ImportRequest,
    responses((status = 201, body = ConnectionBody), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn import_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsCreate>,
    _: NoQuery,
    ApiJson(mut request): ApiJson<ImportRequest>,
) -> Result<(StatusCode, Json<ConnectionBody>), ApiError> {
    let key =
        parse_name::<IntegrationKey>("provider_config_key", &request.provider_config_key, ApiError::body)?;
    let id = match &request.connection_id {
        Some(id) => parse_name::<ConnectionId>("connection_id", id, ApiError::body)?,
        None => parse_name::<ConnectionId>("connection_id", &Uuid::new_v4().to_string(), ApiError::body)?,
    };
    for (field, members) in
        [("metadata", &request.metadata), ("connection_config", &request.connection_config)]
    {
        check_members(field, members)?;
    }
    check_scopes_override(&request.connection_config)?;
    if let Some(url) = request.webhook_url_override.as_deref().filter(|url| !url.is_empty()) {
        check_webhook_url(url)?;
    }
    let user = UserAndTags::check(request.end_user, request.organization, Some(request.tags))?;
    let (integration, provider) = app.integrations.get_with_provider(client.environment.pk, &key).await?;
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
        metadata: Value::Object(request.metadata),
        tags: user.tags,
        end_user: user.end_user,
        webhook_url_override: request.webhook_url_override.filter(|url| !url.is_empty()),
    };
    let mut described = app.connections.import(&client.environment, &integration, imported).await?;
    remove_refresh_tokens(&mut described.connection.connection_config);
    let credentials = client.allows(Scope::ConnectionsReadCredentials).then_some(shown);
    Ok((StatusCode::CREATED, Json(ConnectionBody::new(described, credentials))))
}

/// Whose account a connection is, and the tags that follow, as they are stored.
pub(super) struct UserAndTags {
    pub end_user: Option<Value>,
    pub tags: Value,
}

impl UserAndTags {
    /// The tags that a request names stand above those that follow from its end user.
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

/// Refuses what the database cannot keep.
pub(super) fn check_members(field: &'static str, members: &Map<String, Value>) -> Result<(), ApiError> {
    if members.iter().any(|(key, value)| key.contains('\0') || contains_nul(value)) {
        return Err(ApiError::body("invalid_format", &[field], "must not hold a NUL character"));
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

fn check_scopes_override(config: &Map<String, Value>) -> Result<(), ApiError> {
    const NAME: &str = "oauth_scopes_override";
    let is_list_of_text =
        |value: &Value| value.as_array().is_some_and(|scopes| scopes.iter().all(Value::is_string));
    match config.get(NAME) {
        Some(value) if !is_list_of_text(value) => {
            Err(ApiError::body("invalid_type", &["connection_config", NAME], "must be a list of scopes"))
        }
        _ => Ok(()),
    }
}

/// Writes which installation of an app it is to where webhooks look for it, as its end user's way does.
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
        let message = format!("must be `{id}`, as in the credentials, or be left out");
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
