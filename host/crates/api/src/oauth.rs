//! Authorizations that redirect the browser of an end user to a provider and back, and their outcome.

mod page;
mod socket;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

pub(super) use self::socket::open_socket;

use self::page::{failure_page, success_page};
use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiPath, ApiQuery, NoQuery, SessionAuth, SessionQueryAuth};
use syncline_auth::ClientOverride;
use syncline_engine::{
    AUTHORIZATION_SECONDS, Callback, Outcome, ReturnPath, StartRequest, StartedAuthorization,
};
use syncline_types::ids::InvalidName;
use syncline_types::secret::Secret;
use syncline_web::addresses::{APP_SETUP, OAUTH_CALLBACK};
use syncline_web::request_source::RequestSource;

const COOKIE_PREFIX: &str = "syncline_oauth_";
/// Shorter than the request timeouts of common proxies.
const LONG_POLL: Duration = Duration::from_secs(20);

/// The query of `GET /oauth/connect/{unique_key}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectQuery {
    #[serde(rename = "connect_session_token")]
    _session: String,
    connection_id: Option<String>,
    #[serde(default)]
    params: BTreeMap<String, String>,
    user_scope: Option<String>,
    #[serde(default)]
    authorization_params: BTreeMap<String, String>,
    #[serde(default)]
    credentials: OwnCredentials,
    ws_client_id: Option<Uuid>,
    /// Existing clients send it to every route.
    #[serde(rename = "hmac")]
    _hmac: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnCredentials {
    oauth_client_id_override: Option<String>,
    oauth_client_secret_override: Option<Secret<String>>,
    oauth_refresh_token_override: Option<Secret<String>>,
}

/// Start an authorization
///
/// Redirects the browser of an end user to the authorization page of the provider. Open it in a window; the session
/// token in the query authenticates it. An authorization must be completed within one hour.
///
/// To learn the outcome, send a random UUID as `ws_client_id` and poll `GET /connect/authorizations/{id}`. Errors are
/// a page for browsers, and JSON otherwise.
#[utoipa::path(
    get, path = "/oauth/connect/{unique_key}", tag = "Connect", security(()),
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("connect_session_token" = String, Query, description = "Token of a connect session."),
        ("params" = Option<Object>, Query, style = DeepObject, explode, description = "Values that the provider's URLs need, such as `params[subdomain]=acme`."),
        ("user_scope" = Option<String>, Query, description = "Scopes of the user, separated by commas, for providers that distinguish them from scopes of the app."),
        ("authorization_params" = Option<Object>, Query, style = DeepObject, explode, description = "Further parameters of the provider's authorization page."),
        ("credentials" = Option<Object>, Query, style = DeepObject, explode, description = "`oauth_client_id_override` and `oauth_client_secret_override`: an OAuth client of the end user. `oauth_refresh_token_override`: a refresh token to store instead of the provider's."),
        ("ws_client_id" = Option<String>, Query, description = "Id for the outcome: the one that the WebSocket sent, or a random UUID for `GET /connect/authorizations/{id}`."),
    ),
    responses(
        (status = 302, description = "Redirects to the provider"),
    ),
)]
pub(super) async fn start_oauth(
    State(app): State<App>,
    headers: HeaderMap,
    key: Result<ApiPath, ApiError>,
    session: Result<SessionQueryAuth, ApiError>,
    query: Result<ApiQuery<ConnectQuery>, ApiError>,
) -> Response {
    let started = async {
        let (ApiPath(key), SessionQueryAuth(session), ApiQuery(query)) = (key?, session?, query?);
        let request = app.start_request(&key, query)?;
        Ok(app.authorizations.start(&session, request).await?)
    };
    match started.await {
        Ok(start) => app.redirect_to_provider(&start),
        Err(error) if accepts_html(&headers) => failure_page(error),
        Err(error) => error.into_response(),
    }
}

/// Complete an authorization
///
/// The URL to which OAuth providers redirect the end user. Register it with the provider as the redirect URL. The host
/// exchanges the code for tokens and creates the connection. The response is a page that reports the outcome to the
/// window that opened it.
#[utoipa::path(
    get, path = "/oauth/callback", tag = "Connect", security(()),
    params(
        ("state" = String, Query, description = "The state that the host sent to the provider."),
    ),
    responses(
        (status = 200, description = "A page that confirms the connection"),
    ),
)]
pub(super) async fn finish_oauth(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    source: RequestSource,
) -> Response {
    app.complete(query, &headers, &source).await
}

/// Complete an app installation
///
/// The URL to which a provider redirects the end user after the installation of an app. Register it with the provider
/// as the setup URL of the app. The host verifies the installation and creates the connection. The response is a page
/// that reports the outcome.
#[utoipa::path(
    get, path = "/app-auth/connect", tag = "Connect", security(()),
    params(
        ("state" = String, Query, description = "The state that the host sent to the provider."),
        ("installation_id" = Option<String>, Query, description = "Id of the installation, which the provider adds."),
    ),
    responses(
        (status = 200, description = "A page that confirms the connection"),
    ),
)]
pub(super) async fn finish_installation(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    source: RequestSource,
) -> Response {
    app.complete(query, &headers, &source).await
}

/// The outcome of an authorization.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuthorizationResponse {
    /// The outcome.
    data: AuthorizationBody,
}

/// The outcome of an authorization.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
enum AuthorizationBody {
    /// There is no outcome yet. Repeat the request.
    Pending,
    /// The account is connected.
    Connected { provider_config_key: String, connection_id: String },
    /// The account was not connected.
    Failed { provider_config_key: String, error: AuthorizationFailure },
}

/// Why an account was not connected.
#[derive(Debug, Serialize, ToSchema)]
struct AuthorizationFailure {
    /// Stable code of the error.
    code: String,
    /// Message for people. It can contain text of the provider.
    message: String,
}

/// Get the outcome of an authorization
///
/// Returns the outcome of the authorization that was started with this `ws_client_id`. Waits for it up to 20 seconds;
/// if `status` is still `pending`, repeat the request. Authenticate with the session token.
#[utoipa::path(
    get, path = "/connect/authorizations/{id}", tag = "Connect", security(("session_token" = [])),
    params(
        ("id" = String, Path, description = "The UUID that was sent as `ws_client_id`."),
    ),
    responses(
        (
            status = 200, description = "The outcome",
            body = AuthorizationResponse,
            example = json!({
                "data": {
                    "status": "connected",
                    "provider_config_key": "shop",
                    "connection_id": "user-1"
                }
            }),
        ),
    ),
)]
pub(super) async fn get_authorization(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<AuthorizationResponse>, ApiError> {
    let listener = id.parse::<Uuid>().map_err(|_| path_error("id", "must be a UUID"))?;
    let outcome = app.authorizations.wait_for_outcome(listener, LONG_POLL).await;
    let data = match outcome {
        Some((session_pk, outcome)) if session_pk == session.pk => match outcome {
            Outcome::Connected { integration, connection_id } => AuthorizationBody::Connected {
                provider_config_key: integration.to_string(),
                connection_id: connection_id.to_string(),
            },
            Outcome::Failed { integration, code, message } => AuthorizationBody::Failed {
                provider_config_key: integration.to_string(),
                error: AuthorizationFailure { code, message },
            },
        },
        _ => AuthorizationBody::Pending,
    };
    Ok(Json(AuthorizationResponse { data }))
}

impl App {
    fn start_request(&self, key: &str, query: ConnectQuery) -> Result<StartRequest, ApiError> {
        if query.connection_id.is_some() {
            let message = "is not allowed: the host generates the id of a new connection";
            return Err(ApiError::query("custom", &["connection_id"], message));
        }
        let integration =
            key.parse().map_err(|problem: InvalidName| path_error("unique_key", problem.to_string()))?;
        let OwnCredentials {
            oauth_client_id_override: id,
            oauth_client_secret_override: secret,
            oauth_refresh_token_override: own_refresh_token,
        } = query.credentials;
        if secret.is_some() && id.is_none() {
            let message = "is required with `oauth_client_secret_override`";
            let path = ["credentials", "oauth_client_id_override"];
            return Err(ApiError::query("invalid_type", &path, message));
        }
        Ok(StartRequest {
            integration,
            answers: query.params.into_iter().map(|(name, value)| (name, Value::String(value))).collect(),
            user_scopes: query.user_scope,
            authorization_params: query.authorization_params,
            own_refresh_token: own_refresh_token.filter(|token| !token.expose().is_empty()),
            own_client: id.map(|id| ClientOverride { client_id: Some(id), client_secret: secret }),
            listener: query.ws_client_id,
            callback_url: format!("{}{OAUTH_CALLBACK}", self.public_url),
        })
    }

    fn redirect_to_provider(&self, start: &StartedAuthorization) -> Response {
        let headers = AppendHeaders([
            (header::SET_COOKIE, self.cookie(start)),
            (header::LOCATION, start.url.to_string()),
            (header::CACHE_CONTROL, "no-store".to_owned()),
            // The URL of this request contains the session token.
            (header::REFERRER_POLICY, "no-referrer".to_owned()),
        ]);
        (StatusCode::FOUND, headers).into_response()
    }

    /// The cookie that binds the authorization to this browser. Scripts cannot read it, and only the callback route
    /// receives it. `Lax`, because another site starts the navigation back.
    fn cookie(&self, start: &StartedAuthorization) -> String {
        let public_url = Url::parse(&self.public_url).ok();
        let prefix = public_url.as_ref().map_or("", |url| url.path().trim_end_matches('/'));
        let is_secure = public_url.as_ref().is_some_and(|url| url.scheme() == "https");
        let path = match start.returns_to {
            ReturnPath::OAuthCallback => OAUTH_CALLBACK,
            ReturnPath::AppSetup => APP_SETUP,
        };
        format!(
            "{}={}; Path={prefix}{path}; Max-Age={AUTHORIZATION_SECONDS}; HttpOnly; SameSite=Lax{}",
            start.cookie_name,
            start.cookie_value.expose(),
            if is_secure { "; Secure" } else { "" },
        )
    }

    async fn complete(&self, query: Option<String>, headers: &HeaderMap, source: &RequestSource) -> Response {
        let callback = Callback {
            query: query.unwrap_or_default(),
            cookies: cookies(headers),
            address: source.address(),
            request_id: source.request_id(),
        };
        match self.authorizations.complete(callback).await {
            Ok(_) => success_page(),
            Err(error) => failure_page(error.into()),
        }
    }
}

/// The authorization cookies of a request.
fn cookies(headers: &HeaderMap) -> Vec<(String, String)> {
    let sent = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = sent.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs
        .filter(|(name, _)| name.starts_with(COOKIE_PREFIX))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn path_error(name: &str, message: impl Into<String>) -> ApiError {
    ApiError::Path { errors: vec![FieldError::new("invalid_format", &[name], message)] }
}
