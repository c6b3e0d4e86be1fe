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
use super::error::{ApiError, FieldError};
use super::extract::{ApiJson, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery, SessionAuth};
use super::tags::{EndUser, Organization, checked_tags, end_user_of_tags, generated_tags};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_engine::{ConfigDefaults, ConnectionRoute, Integration, NewConnectSession, UiOverrides};
use syncline_types::environment_settings::{DEFAULT_UI_COLOR, DEFAULT_UI_TITLE};
use syncline_types::ids::{ConnectionId, IntegrationKey};
use syncline_types::sanitize::contains_nul;

type PerIntegration<T> = BTreeMap<String, T>;

/// A connect session to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSessionRequest {
    /// The end user. Required unless `tags` is present.
    end_user: Option<EndUser>,
    /// The organization of the end user.
    organization: Option<Organization>,
    /// Unique keys of the integrations that the user can connect. Default, also for an empty list: all integrations of
    /// the environment.
    #[serde(default)]
    allowed_integrations: Vec<String>,
    /// Values for single integrations, by unique key: `{"connection_config": {…}, "authorization_params": {…},
    /// "user_scopes": "…"}`. The Connect UI does not ask for values that are set here.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, ConfigDefaults>)]
    integrations_config_defaults: PerIntegration<ConfigDefaults>,
    /// Changes of the Connect UI for single integrations, by unique key: `{"docs_connect": "https://…"}` is the help
    /// page to which it links.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, UiOverrides>)]
    overrides: PerIntegration<UiOverrides>,
    /// URL for the connection's webhooks. Default: the URLs of the environment.
    webhook_url_override: Option<String>,
    /// Tags, at most 10. They are copied to the connection and its webhooks. Keys are converted to lower case.
    tags: Option<BTreeMap<String, String>>,
}

/// A reconnect session to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReconnectSessionRequest {
    /// The id of the connection to renew.
    connection_id: String,
    /// The unique key of the integration.
    integration_id: String,
    /// The end user. Default: unchanged.
    end_user: Option<EndUser>,
    /// The organization of the end user.
    organization: Option<Organization>,
    /// Values for single integrations, by unique key: `{"connection_config": {…}, "authorization_params": {…},
    /// "user_scopes": "…"}`. The Connect UI does not ask for values that are set here.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, ConfigDefaults>)]
    integrations_config_defaults: PerIntegration<ConfigDefaults>,
    /// Changes of the Connect UI for single integrations, by unique key: `{"docs_connect": "https://…"}` is the help
    /// page to which it links.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, UiOverrides>)]
    overrides: PerIntegration<UiOverrides>,
    /// URL for the connection's webhooks.
    webhook_url_override: Option<String>,
    /// Tags to set on the connection when the user has reconnected. Its other tags stay.
    tags: Option<BTreeMap<String, String>>,
}

/// A new session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionResponse {
    /// The session.
    data: SessionBody,
}

/// A new session.
#[derive(Debug, Serialize, ToSchema)]
struct SessionBody {
    /// The session token, which is returned only once. Its holder can connect accounts in the name of the end user.
    token: String,
    /// URL of the Connect UI with this session.
    connect_link: String,
    /// When the session expires: 30 minutes after its creation.
    expires_at: String,
}

/// Create a connect session
///
/// Creates a session in which one end user can connect accounts for 30 minutes. Call this from your backend and pass
/// only the token, or the link, to the browser.
///
/// Name the end user in `end_user`, or in `tags`. Fails with 400 if `allowed_integrations` or another member names an
/// integration that does not exist. Needs the scope `environment:connect_sessions:write`.
#[utoipa::path(
    post, path = "/connect/sessions", tag = "Connect sessions",
    request_body(content = CreateSessionRequest,
        example = json!({
            "end_user": {"id": "7", "email": "ada@example.com", "display_name": "Ada"},
            "allowed_integrations": ["shop"],
            "tags": {"plan": "pro"}
        })),
    responses(
        (
            status = 201, description = "The session was created",
            body = SessionResponse,
            example = json!({
                "data": {
                    "token": "nango_connect_session_0123456789abcdef",
                    "connect_link": "https://syncline.example.com/connect/?session_token=nango_connect_session_0123456789abcdef",
                    "expires_at": "2026-03-01T09:30:00.000Z"
                }
            }),
        ),
    ),
)]
pub(super) async fn create_session(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectSessionsWrite>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateSessionRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
    if request.end_user.is_none() && request.tags.is_none() {
        let message = "is required unless `tags` identifies the end user";
        return Err(ApiError::body("invalid_type", &["end_user"], message));
    }
    let allowed = request.allowed_integrations.iter().enumerate();
    let allowed = allowed.map(|(index, key)| parse_key(&["allowed_integrations", &index.to_string()], key));
    let allowed = allowed.collect::<Result<Vec<_>, _>>()?;
    let requested = RequestedSession {
        end_user: request.end_user,
        organization: request.organization,
        allowed_integrations: (!allowed.is_empty()).then_some(allowed),
        defaults: request.integrations_config_defaults,
        overrides: request.overrides,
        webhook_url_override: request.webhook_url_override,
        tags: request.tags,
        reconnects: None,
    };
    app.open_session(&client, requested).await
}

/// Create a reconnect session
///
/// Creates a session of 30 minutes in which an end user can renew the credentials of an existing connection. The
/// connection keeps its id, its records and its schedules. Needs the scope `environment:connect_sessions:write`.
#[utoipa::path(
    post, path = "/connect/sessions/reconnect", tag = "Connect sessions",
    request_body(content = ReconnectSessionRequest,
        example = json!({"connection_id": "user-1", "integration_id": "shop"})),
    responses(
        (
            status = 201, description = "The session was created",
            body = SessionResponse,
            example = json!({
                "data": {
                    "token": "nango_connect_session_0123456789abcdef",
                    "connect_link": "https://syncline.example.com/connect/?session_token=nango_connect_session_0123456789abcdef",
                    "expires_at": "2026-03-01T09:30:00.000Z"
                }
            }),
        ),
    ),
)]
pub(super) async fn create_reconnect_session(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectSessionsWrite>,
    _: NoQuery,
    ApiJson(request): ApiJson<ReconnectSessionRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
    let integration = parse_key(&["integration_id"], &request.integration_id)?;
    let connection: ConnectionId = parse_name("connection_id", &request.connection_id, ApiError::body)?;
    let route = app.find_connection_by_name(&client, &integration, &connection).await?;
    let requested = RequestedSession {
        end_user: request.end_user,
        organization: request.organization,
        allowed_integrations: Some(vec![integration]),
        defaults: request.integrations_config_defaults,
        overrides: request.overrides,
        webhook_url_override: request.webhook_url_override,
        tags: request.tags,
        reconnects: Some(route),
    };
    app.open_session(&client, requested).await
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionDetailsResponse {
    /// The session.
    data: SessionDetails,
}

/// What the Connect UI needs to know about a session.
#[derive(Debug, Serialize, ToSchema)]
struct SessionDetails {
    /// Unique keys of the integrations that the user can connect, in the order of the request that created the session.
    allowed_integrations: Vec<String>,
    /// Preset values, by unique key.
    #[schema(value_type = Object)]
    integrations_config_defaults: Value,
    /// Changes of the Connect UI, by unique key.
    #[schema(value_type = Object)]
    overrides: Value,
    /// The end user, or `null`. For a reconnect session without one: the end user of the connection.
    #[serde(rename = "endUser")]
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    /// Whether the session renews an existing connection.
    #[serde(rename = "isReconnecting")]
    is_reconnecting: bool,
    /// How the Connect UI looks.
    #[serde(rename = "connectUISettings")]
    connect_ui_settings: ConnectUiSettings,
    /// Path of the WebSocket that reports the outcome of an authorization, relative to the host of the API.
    #[serde(rename = "websocketsPath")]
    websockets_path: String,
    /// When the session expires.
    expires_at: String,
}

/// How the Connect UI looks. `primaryColor` and `theme` contain the same color, for different clients.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ConnectUiSettings {
    /// Title of the page.
    title: String,
    /// Color of buttons and links, as `#rrggbb`.
    primary_color: String,
    /// Colors of the light and the dark theme.
    theme: Themes,
    /// `light`, `dark` or `system`.
    default_theme: &'static str,
    /// Always `false`.
    show_watermark: bool,
}

/// Colors of both themes.
#[derive(Debug, Serialize, ToSchema)]
struct Themes {
    /// Colors of the light theme.
    light: Theme,
    /// Colors of the dark theme.
    dark: Theme,
}

/// Colors of a theme.
#[derive(Debug, Serialize, ToSchema)]
struct Theme {
    /// Color of buttons and links, as `#rrggbb`.
    primary: String,
}

/// Get the connect session
///
/// Returns what the session allows and how the Connect UI looks. Authenticate with the session token. Fails with 401
/// `unknown_connect_session_token` after the session has expired.
#[utoipa::path(
    get, path = "/connect/session", tag = "Connect sessions", security(("session_token" = [])),
    responses(
        (
            status = 200, description = "The session",
            body = SessionDetailsResponse,
            example = json!({
                "data": {
                    "allowed_integrations": ["shop"],
                    "integrations_config_defaults": {},
                    "overrides": {},
                    "endUser": {
                        "id": "7",
                        "display_name": "Ada",
                        "email": "ada@example.com",
                        "tags": null,
                        "organization": null
                    },
                    "isReconnecting": false,
                    "connectUISettings": {
                        "title": "Connect your account",
                        "primaryColor": "#2f5bea",
                        "theme": {"light": {"primary": "#2f5bea"}, "dark": {"primary": "#2f5bea"}},
                        "defaultTheme": "system",
                        "showWatermark": false
                    },
                    "websocketsPath": "/",
                    "expires_at": "2026-03-01T09:30:00.000Z"
                }
            }),
        ),
    ),
)]
pub(super) async fn get_session(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    _: NoQuery,
) -> Result<Json<SessionDetailsResponse>, ApiError> {
    let all = app.integrations.list(session.environment.pk).await?;
    let mut allowed: Vec<_> =
        all.into_iter().map(|one| one.unique_key).filter(|key| session.allows(key)).collect();
    allowed.sort_by_key(|key| session.position(key));
    let settings = app.environments.settings(session.environment.pk).await?;
    let color =
        settings.connect_ui_primary_color.clone().map_or_else(|| DEFAULT_UI_COLOR.to_owned(), String::from);
    let theme = || Theme { primary: color.clone() };
    let api_path =
        url::Url::parse(&app.public_url).map_or_else(|_| "/".to_owned(), |url| url.path().to_owned());
    Ok(Json(SessionDetailsResponse {
        data: SessionDetails {
            allowed_integrations: allowed.into_iter().map(String::from).collect(),
            integrations_config_defaults: serde_json::to_value(session.all_defaults())
                .map_err(ApiError::internal)?,
            overrides: serde_json::to_value(session.overrides()).map_err(ApiError::internal)?,
            end_user: session.connecting_user().cloned(),
            is_reconnecting: session.reconnects.is_some(),
            connect_ui_settings: ConnectUiSettings {
                title: settings
                    .connect_ui_title
                    .clone()
                    .map_or_else(|| DEFAULT_UI_TITLE.to_owned(), String::from),
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

/// End the connect session
///
/// Ends the session, so that its token can no longer be used. Connected accounts stay connected. Authenticate with the
/// session token.
#[utoipa::path(
    delete, path = "/connect/session", tag = "Connect sessions", security(("session_token" = [])),
    responses(
        (status = 204, description = "The session was ended"),
    ),
)]
pub(super) async fn delete_session(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    app.connect_sessions.delete(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A requested session: a new one, or one that renews a connection.
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
        mut requested: RequestedSession,
    ) -> Result<(StatusCode, Json<SessionResponse>), ApiError> {
        if let Some(user) = &requested.end_user {
            user.check()?;
        }
        if let Some(organization) = &requested.organization {
            organization.check()?;
        }
        let (end_user, organization) = (requested.end_user.as_ref(), requested.organization.as_ref());
        let mut tags = generated_tags(end_user, organization);
        tags.extend(checked_tags(requested.tags.unwrap_or_default())?);
        let end_user = match end_user {
            Some(user) => Some(user.stored(organization)),
            None => end_user_of_tags(&tags),
        };
        // Older clients send the override among the defaults.
        for defaults in requested.defaults.values_mut() {
            if let Some(Value::String(url)) = defaults.connection_config.remove("webhook_url") {
                requested.webhook_url_override.get_or_insert(url);
            }
        }
        let webhook_url_override = requested.webhook_url_override.filter(|url| !url.is_empty());
        if let Some(url) = &webhook_url_override {
            check_webhook_url(url)?;
        }
        let known = self.integrations.list(client.environment.pk).await?;
        for (index, key) in requested.allowed_integrations.iter().flatten().enumerate() {
            find_known(&known, &["allowed_integrations", &index.to_string()], key)?;
        }
        let defaults =
            check_each("integrations_config_defaults", requested.defaults, &known, |path, found, one| {
                self.check_defaults(path, found, one)
            })?;
        let overrides =
            check_each("overrides", requested.overrides, &known, |path, _, one| check_overrides(path, one))?;
        let new = NewConnectSession {
            end_user,
            tags,
            allowed_integrations: requested.allowed_integrations,
            defaults,
            overrides,
            webhook_url_override,
            reconnects: requested.reconnects,
        };
        let created = self.connect_sessions.create(&client.environment, new).await?;
        let token = created.token.expose().to_owned();
        let connect_link = format!("{}/?session_token={token}", self.connect_url);
        let data = SessionBody { token, connect_link, expires_at: iso(created.expires_at) };
        Ok((StatusCode::CREATED, Json(SessionResponse { data })))
    }

    /// Checks preset values now, because an invalid one would make the connect attempts of all end users fail.
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
            return Err(ApiError::body("invalid_format", path, "must not contain a NUL character"));
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

/// Checks each entry of an object whose keys must be unique keys of integrations.
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
        let problem =
            format!("there is no integration `{key}` in this environment; `GET /integrations` lists them");
        ApiError::body("custom", path, problem)
    })
}

fn parse_key(path: &[&str], key: &str) -> Result<IntegrationKey, ApiError> {
    key.parse().map_err(|problem: syncline_types::ids::InvalidName| ApiError::Body {
        errors: vec![FieldError::new("invalid_format", path, problem.to_string())],
    })
}
