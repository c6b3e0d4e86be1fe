//! `/connect/sessions` and `/connect/session`: short-lived tokens with which end users connect their accounts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::connections::{check_webhook_url, parse_name};
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, EnvironmentAuth, NoQuery, SessionAuth};
use super::tags::{EndUser, Organization, checked_tags, end_user_of_tags, generated_tags};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_engine::{ConfigDefaults, ConnectionRoute, Integration, NewConnectSession, UiOverrides};
use syncline_types::ids::{ConnectionId, IntegrationKey};
use syncline_types::sanitize::contains_nul;

/// What an environment shows that has set nothing. The Connect UI knows this title, and translates it.
const DEFAULT_TITLE: &str = "Connect your account";
const DEFAULT_COLOR: &str = "#2f5bea";

type PerIntegration<T> = BTreeMap<String, T>;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSessionRequest {
    /// Required unless `tags` is given.
    end_user: Option<EndUser>,
    organization: Option<Organization>,
    /// Unique keys. Left out or empty: all integrations of the environment.
    #[serde(default)]
    allowed_integrations: Vec<String>,
    /// By unique key: `{"connection_config": {…}, "authorization_params": {…}, "user_scopes": "…"}`. Questions
    /// that are answered here are not asked.
    #[serde(default)]
    #[schema(value_type = Object)]
    integrations_config_defaults: PerIntegration<ConfigDefaults>,
    /// By unique key: `{"docs_connect": "https://…"}`, the manual that the Connect UI links to.
    #[serde(default)]
    #[schema(value_type = Object)]
    overrides: PerIntegration<UiOverrides>,
    /// Where the webhooks of the connection go, in place of the environment's URLs.
    webhook_url_override: Option<String>,
    /// Copied onto the connection and into its webhooks: at most 10, keys are kept in lower case.
    tags: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReconnectSessionRequest {
    connection_id: String,
    /// The integration's unique key.
    integration_id: String,
    end_user: Option<EndUser>,
    organization: Option<Organization>,
    /// As for a new session, for this integration.
    #[serde(default)]
    #[schema(value_type = Object)]
    integrations_config_defaults: PerIntegration<ConfigDefaults>,
    #[serde(default)]
    #[schema(value_type = Object)]
    overrides: PerIntegration<UiOverrides>,
    webhook_url_override: Option<String>,
    /// Set on the connection when it is connected; its other tags stay.
    tags: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionResponse {
    data: SessionBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct SessionBody {
    /// Shown this once. Whoever has it can connect accounts in the end user's name.
    token: String,
    /// The Connect UI with this session, as a page to send the end user to.
    connect_link: String,
    expires_at: String,
}

/// `POST /connect/sessions`: opens a session of 30 minutes, in which an end user may connect accounts.
#[utoipa::path(
    post, path = "/connect/sessions", tag = "Connect sessions", request_body = CreateSessionRequest,
    responses((status = 201, body = SessionResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_session(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectSessionsWrite>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateSessionRequest>,
) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
    if request.end_user.is_none() && request.tags.is_none() {
        let message = "is required: `end_user` says whose account it will be, or `tags` do";
        return Err(ApiError::body("invalid_type", &["end_user"], message));
    }
    let allowed = request.allowed_integrations.iter().enumerate();
    let allowed = allowed.map(|(index, key)| parse_key(&["allowed_integrations", &index.to_string()], key));
    let allowed = allowed.collect::<Result<Vec<_>, _>>()?;
    let wanted = RequestedSession {
        end_user: request.end_user,
        organization: request.organization,
        allowed_integrations: (!allowed.is_empty()).then_some(allowed),
        defaults: request.integrations_config_defaults,
        overrides: request.overrides,
        webhook_url_override: request.webhook_url_override,
        tags: request.tags,
        reconnects: None,
    };
    app.open_session(&client, wanted).await
}

/// `POST /connect/sessions/reconnect`: opens a session in which one connection is connected anew.
#[utoipa::path(
    post, path = "/connect/sessions/reconnect", tag = "Connect sessions", request_body = ReconnectSessionRequest,
    responses((status = 201, body = SessionResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_reconnect_session(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectSessionsWrite>,
    _: NoQuery,
    ApiJson(request): ApiJson<ReconnectSessionRequest>,
) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
    let integration = parse_key(&["integration_id"], &request.integration_id)?;
    let connection: ConnectionId = parse_name("connection_id", &request.connection_id, ApiError::body)?;
    let route = app.find_connection_by_name(&client, &integration, &connection).await?;
    let wanted = RequestedSession {
        end_user: request.end_user,
        organization: request.organization,
        allowed_integrations: Some(vec![integration]),
        defaults: request.integrations_config_defaults,
        overrides: request.overrides,
        webhook_url_override: request.webhook_url_override,
        tags: request.tags,
        reconnects: Some(route),
    };
    app.open_session(&client, wanted).await
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionDetailsResponse {
    data: SessionDetails,
}

/// What the Connect UI has to know.
#[derive(Debug, Serialize, ToSchema)]
struct SessionDetails {
    allowed_integrations: Vec<String>,
    /// By unique key.
    #[schema(value_type = Object)]
    integrations_config_defaults: Value,
    #[schema(value_type = Object)]
    overrides: Value,
    #[serde(rename = "endUser")]
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    #[serde(rename = "isReconnecting")]
    is_reconnecting: bool,
    #[serde(rename = "connectUISettings")]
    connect_ui_settings: ConnectUiSettings,
    /// Where the web socket is that tells of an authorization in another window, on the API's host.
    #[serde(rename = "websocketsPath")]
    websockets_path: String,
    expires_at: String,
}

/// How the Connect UI looks. `primaryColor` and `theme` say the same in the words of different clients.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ConnectUiSettings {
    title: String,
    primary_color: String,
    theme: Themes,
    /// `light`, `dark` or `system`.
    default_theme: &'static str,
    show_watermark: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct Themes {
    light: Theme,
    dark: Theme,
}

#[derive(Debug, Serialize, ToSchema)]
struct Theme {
    primary: String,
}

/// `GET /connect/session`: what the session of the token allows, and how the Connect UI shall look.
#[utoipa::path(
    get, path = "/connect/session", tag = "Connect sessions", security(("session_token" = [])),
    responses((status = 200, body = SessionDetailsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_session(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    _: NoQuery,
) -> Result<Json<SessionDetailsResponse>, ApiError> {
    let all = app.integrations.list(session.environment.pk).await?;
    let allowed = all.into_iter().map(|one| one.unique_key).filter(|key| session.allows(key));
    let settings = app.environments.settings(session.environment.pk).await?;
    let color =
        settings.connect_ui_primary_color.clone().map_or_else(|| DEFAULT_COLOR.to_owned(), String::from);
    let theme = || Theme { primary: color.clone() };
    let api_path =
        url::Url::parse(&app.public_url).map_or_else(|_| "/".to_owned(), |url| url.path().to_owned());
    Ok(Json(SessionDetailsResponse {
        data: SessionDetails {
            allowed_integrations: allowed.map(String::from).collect(),
            integrations_config_defaults: serde_json::to_value(session.all_defaults())
                .map_err(ApiError::internal)?,
            overrides: serde_json::to_value(session.overrides()).map_err(ApiError::internal)?,
            end_user: session.end_user.clone(),
            is_reconnecting: session.reconnects.is_some(),
            connect_ui_settings: ConnectUiSettings {
                title: settings
                    .connect_ui_title
                    .clone()
                    .map_or_else(|| DEFAULT_TITLE.to_owned(), String::from),
                primary_color: color.clone(),
                theme: Themes { light: theme(), dark: theme() },
                default_theme: "system",
                show_watermark: false,
            },
            websockets_path: format!("{}/", api_path.trim_end_matches('/')),
            expires_at: iso(session.expires_at),
        },
    }))
}

/// `DELETE /connect/session`: ends the session of the token.
#[utoipa::path(
    delete, path = "/connect/session", tag = "Connect sessions", security(("session_token" = [])),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_session(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    app.connect_sessions.delete(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A session that a request asks for, of either kind.
struct RequestedSession {
    end_user: Option<EndUser>,
    organization: Option<Organization>,
    allowed_integrations: Option<Vec<IntegrationKey>>,
    defaults: PerIntegration<ConfigDefaults>,
    overrides: PerIntegration<UiOverrides>,
    webhook_url_override: Option<String>,
    tags: Option<BTreeMap<String, String>>,
    reconnects: Option<Arc<ConnectionRoute>>,
}

impl App {
    async fn open_session(
        &self,
        client: &Client,
        mut wanted: RequestedSession,
    ) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
        if let Some(user) = &wanted.end_user {
            user.check()?;
        }
        if let Some(organization) = &wanted.organization {
            organization.check()?;
        }
        let (end_user, organization) = (wanted.end_user.as_ref(), wanted.organization.as_ref());
        let mut tags = generated_tags(end_user, organization);
        tags.extend(checked_tags(wanted.tags.unwrap_or_default())?);
        let end_user = match end_user {
            Some(user) => Some(user.stored(organization)),
            None => end_user_of_tags(&tags),
        };
        // Clients of old name the override among the defaults.
        for defaults in wanted.defaults.values_mut() {
            if let Some(Value::String(url)) = defaults.connection_config.remove("webhook_url") {
                wanted.webhook_url_override.get_or_insert(url);
            }
        }
        let webhook_url_override = wanted.webhook_url_override.filter(|url| !url.is_empty());
        if let Some(url) = &webhook_url_override {
            check_webhook_url(url)?;
        }
        let known = self.integrations.list(client.environment.pk).await?;
        for (index, key) in wanted.allowed_integrations.iter().flatten().enumerate() {
            find_known(&known, &["allowed_integrations", &index.to_string()], key)?;
        }
        let defaults =
            check_each("integrations_config_defaults", wanted.defaults, &known, |path, found, one| {
                self.check_defaults(path, found, one)
            })?;
        let overrides =
            check_each("overrides", wanted.overrides, &known, |path, _, one| check_overrides(path, one))?;
        let new = NewConnectSession {
            end_user,
            tags,
            allowed_integrations: wanted.allowed_integrations,
            defaults,
            overrides,
            webhook_url_override,
            reconnects: wanted.reconnects,
        };
        let created = self.connect_sessions.create(&client.environment, new).await?;
        let token = created.token.expose().to_owned();
        let connect_link = format!("{}/?session_token={token}", self.connect_url);
        let data = SessionBody { token, connect_link, expires_at: iso(created.expires_at) };
        Ok((StatusCode::CREATED, Json(SessionResponse { data })))
    }

    /// An answer that the provider's pattern refuses would fail every end user later.
    fn check_defaults(
        &self,
        path: &[&str],
        integration: &Integration,
        defaults: &ConfigDefaults,
    ) -> Result<(), ApiError> {
        let texts = defaults.authorization_params.iter().flat_map(|(name, value)| [name, value]);
        let contains_nul = texts.chain(&defaults.user_scopes).any(|text| text.contains('\0'))
            || defaults
                .connection_config
                .iter()
                .any(|(name, value)| name.contains('\0') || contains_nul(value));
        if contains_nul {
            return Err(ApiError::body("invalid_format", path, "must not hold a NUL character"));
        }
        let Some(provider) = self.catalogue.find(&integration.provider) else { return Ok(()) };
        for name in defaults.connection_config.keys() {
            provider.answer(&defaults.connection_config, name).map_err(|problem| {
                let path = [path, &["connection_config", name]].concat();
                ApiError::body("invalid_value", &path, problem.to_string())
            })?;
        }
        Ok(())
    }
}

fn check_overrides(path: &[&str], overrides: &UiOverrides) -> Result<(), ApiError> {
    let Some(docs) = &overrides.docs_connect else { return Ok(()) };
    let is_web = url::Url::parse(docs).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    if is_web && !docs.contains('\0') {
        return Ok(());
    }
    Err(ApiError::body("invalid_format", &[path, &["docs_connect"]].concat(), "must be an http or https URL"))
}

/// Takes an object by unique key apart; each key must be that of an integration.
fn check_each<T>(
    field: &str,
    given: PerIntegration<T>,
    known: &[Integration],
    check: impl Fn(&[&str], &Integration, &T) -> Result<(), ApiError>,
) -> Result<BTreeMap<IntegrationKey, T>, ApiError> {
    let checked = given.into_iter().map(|(key, one)| {
        let path = [field, &key];
        let parsed = parse_key(&path, &key)?;
        check(&path, find_known(known, &path, &parsed)?, &one)?;
        Ok((parsed, one))
    });
    checked.collect()
}

fn find_known<'a>(
    known: &'a [Integration],
    path: &[&str],
    key: &IntegrationKey,
) -> Result<&'a Integration, ApiError> {
    known.iter().find(|one| one.unique_key == *key).ok_or_else(|| {
        ApiError::body("custom", path, format!("there is no integration `{key}` in this environment"))
    })
}

fn parse_key(path: &[&str], key: &str) -> Result<IntegrationKey, ApiError> {
    key.parse().map_err(|problem: syncline_types::ids::InvalidName| ApiError::Body {
        errors: vec![FieldError::new("invalid_format", path, problem.to_string())],
    })
}
