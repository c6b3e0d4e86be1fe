//! Every way on which an end user's browser leaves for a provider and comes back, and how its opener learns what
//! came of it.

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
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiPath, ApiQuery, NoQuery, SessionAuth, SessionQueryAuth};
use syncline_auth::ClientOverride;
use syncline_engine::{
    AUTHORIZATION_SECONDS, Callback, Outcome, ReturnPath, StartRequest, StartedAuthorization,
};
use syncline_types::ids::InvalidName;
use syncline_types::secret::Secret;

const CALLBACK: &str = "/oauth/callback";
const APP_SETUP: &str = "/app-auth/connect";
const COOKIE_PREFIX: &str = "syncline_oauth_";
/// Below what proxies allow a request to take.
const LONG_POLL: Duration = Duration::from_secs(20);

/// What a browser is sent to the provider with.
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

/// `GET /oauth/connect/{unique_key}`: sends a browser to the provider.
#[utoipa::path(
    get, path = "/oauth/connect/{unique_key}", tag = "Connect", security(()),
    params(
        ("unique_key" = String, Path, description = "The integration's"),
        ("connect_session_token" = String, Query),
        ("params" = Option<Object>, Query, style = DeepObject, explode, description = "Answers to the provider's questions"),
        ("user_scope" = Option<String>, Query, description = "Scopes of the user's own, separated by commas"),
        ("authorization_params" = Option<Object>, Query, style = DeepObject, explode, description = "For the provider's page"),
        ("credentials" = Option<Object>, Query, style = DeepObject, explode, description = "`oauth_client_id_override` and `oauth_client_secret_override`: the end user's own client; `oauth_refresh_token_override`: to be kept in place of the provider's"),
        ("ws_client_id" = Option<String>, Query, description = "Who is told the outcome: the UUID that the web socket gave, or a random one of your own for `GET /connect/authorizations/{id}`"),
    ),
    responses(
        (status = 302, description = "To the provider"),
        (status = "4XX", description = "A page for those who accept HTML, else JSON", body = ErrorBody),
    ),
)]
pub(super) async fn start_oauth(
    State(app): State<App>,
    headers: HeaderMap,
    key: Result<ApiPath, ApiError>,
    session: Result<SessionQueryAuth, ApiError>,
    query: Result<ApiQuery<ConnectQuery>, ApiError>,
) -> Response {
    let departed = async {
        let (ApiPath(key), SessionQueryAuth(session), ApiQuery(query)) = (key?, session?, query?);
        let request = app.departure_request(&key, query)?;
        Ok(app.authorizations.start(&session, request).await?)
    };
    match departed.await {
        Ok(start) => app.send_away(&start),
        Err(error) if accepts_html(&headers) => failure_page(error),
        Err(error) => error.into_response(),
    }
}

/// `GET /oauth/callback`: where providers send browsers back to.
#[utoipa::path(
    get, path = "/oauth/callback", tag = "Connect", security(()),
    params(("state" = String, Query, description = "As it was given to the provider")),
    responses((status = 200, description = "A page that says so"), (status = "4XX", description = "A page that says why not")),
)]
pub(super) async fn finish_oauth(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    app.take_back(query, &headers).await
}

/// `GET /app-auth/connect`: where a provider sends browsers back to that have installed an app.
#[utoipa::path(
    get, path = "/app-auth/connect", tag = "Connect", security(()),
    params(
        ("state" = String, Query, description = "As it was given to the provider"),
        ("installation_id" = Option<String>, Query),
    ),
    responses((status = 200, description = "A page that says so"), (status = "4XX", description = "A page that says why not")),
)]
pub(super) async fn finish_installation(
    State(app): State<App>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    app.take_back(query, &headers).await
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuthorizationResponse {
    data: AuthorizationBody,
}

/// What came of an end user's way to the provider and back.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
enum AuthorizationBody {
    /// Nothing yet: ask again.
    Pending,
    Connected {
        provider_config_key: String,
        connection_id: String,
    },
    Failed {
        provider_config_key: String,
        error: AuthorizationFailure,
    },
}

/// Why there is no connection. The message may hold what the provider said.
#[derive(Debug, Serialize, ToSchema)]
struct AuthorizationFailure {
    code: String,
    message: String,
}

/// `GET /connect/authorizations/{id}`: what came of the authorization that was begun with this `ws_client_id`. Waits
/// for it up to 20 seconds.
#[utoipa::path(
    get, path = "/connect/authorizations/{id}", tag = "Connect", security(("session_token" = [])),
    params(("id" = String, Path, description = "A UUID")),
    responses((status = 200, body = AuthorizationResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_authorization(
    State(app): State<App>,
    SessionAuth(session): SessionAuth,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<AuthorizationResponse>, ApiError> {
    let listener = id.parse::<Uuid>().map_err(|_| path_error("id", "must be a UUID"))?;
    let told = app.authorizations.wait_for_outcome(listener, LONG_POLL).await.map_err(ApiError::internal)?;
    let data = match told {
        Some((told_in, outcome)) if told_in == session.pk => match outcome {
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
    fn departure_request(&self, key: &str, query: ConnectQuery) -> Result<StartRequest, ApiError> {
        if query.connection_id.is_some() {
            let message = "cannot be chosen: a session's connection is given its id";
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
            callback_url: format!("{}{CALLBACK}", self.public_url),
        })
    }

    fn send_away(&self, start: &StartedAuthorization) -> Response {
        let headers = AppendHeaders([
            (header::SET_COOKIE, self.cookie(start)),
            (header::LOCATION, start.url.to_string()),
            (header::CACHE_CONTROL, "no-store".to_owned()),
            // The address that is left has the session's token in it.
            (header::REFERRER_POLICY, "no-referrer".to_owned()),
        ]);
        (StatusCode::FOUND, headers).into_response()
    }

    /// Goes back to the one route that needs it, and to no script. `Lax`, since the way back is a navigation
    /// that another site begins.
    fn cookie(&self, start: &StartedAuthorization) -> String {
        let public_url = Url::parse(&self.public_url).ok();
        let prefix = public_url.as_ref().map_or("", |url| url.path().trim_end_matches('/'));
        let is_secure = public_url.as_ref().is_some_and(|url| url.scheme() == "https");
        let path = match start.returns_to {
            ReturnPath::OAuthCallback => CALLBACK,
            ReturnPath::AppSetup => APP_SETUP,
        };
        format!(
            "{}={}; Path={prefix}{path}; Max-Age={AUTHORIZATION_SECONDS}; HttpOnly; SameSite=Lax{}",
            start.cookie_name,
            start.cookie_value.expose(),
            if is_secure { "; Secure" } else { "" },
        )
    }

    async fn take_back(&self, query: Option<String>, headers: &HeaderMap) -> Response {
        let callback = Callback { query: query.unwrap_or_default(), cookies: cookies(headers) };
        match self.authorizations.complete(callback).await {
            Ok(_) => success_page(),
            Err(error) => failure_page(error.into()),
        }
    }
}

/// Those of ours.
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
