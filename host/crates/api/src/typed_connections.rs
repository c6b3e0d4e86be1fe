//! The routes by which an end user connects with what is typed in: a key, a password, a client of one's own. They
//! are authorised by a connect session's token in the query.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiPath, ApiQuery, MAX_BODY_BYTES, SessionQueryAuth, check_content_type, read_body};
use syncline_auth::ClientOverride;
use syncline_engine::{ConnectSession, TypedCredentials};
use syncline_providers::{AuthMode, Provider, WrongAnswer, WrongAnswerKind, check_answers};
use syncline_types::ids::{IntegrationKey, InvalidName};
use syncline_types::secret::Secret;

/// Longest key, user name and password, in bytes.
const MAX_PLAIN: usize = 1024;
const ASSERTION_OPTION: &str = "assertionOption";

/// The connection that was made, or connected anew.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectedResponse {
    connection_id: String,
    /// The integration's unique key.
    provider_config_key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectQuery {
    #[serde(rename = "connect_session_token")]
    _token: String,
    /// Answers to the questions of `connection_config`.
    #[serde(default)]
    params: BTreeMap<String, String>,
    connection_id: Option<String>,
    /// Of use to other auth modes; clients send them to all.
    #[serde(rename = "user_scope")]
    _user_scope: Option<String>,
    #[serde(rename = "hmac")]
    _hmac: Option<String>,
    #[serde(default, rename = "authorization_params")]
    _authorization_params: BTreeMap<String, String>,
}

/// A JSON object; no body at all is an empty one.
pub(super) struct TypedBody(Map<String, Value>);

impl FromRequest<App> for TypedBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        check_content_type(request.headers(), "application/json")?;
        let bytes = read_body(request, MAX_BODY_BYTES).await?;
        if bytes.is_empty() {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Err(ApiError::body("invalid_type", &[], "must be an object")),
            Err(error) => Err(ApiError::Json { problem: error.to_string() }),
        }
    }
}

/// One route, which differs from the others in its path, its auth mode and what it wants to be told.
macro_rules! route {
    ($(#[doc = $doc:literal])+ $name:ident, $path:literal, $mode:expr, $body:literal) => {
        $(#[doc = $doc])+
        #[utoipa::path(
            post, path = $path, tag = "Connect",
            params(
                ("key" = String, Path, description = "The integration's unique key"),
                ("connect_session_token" = String, Query, description = "The token of a connect session"),
                ("params" = Option<Object>, Query, style = DeepObject, explode,
                    description = "Answers to the provider's further questions"),
            ),
            request_body(content = Object, description = $body),
            responses((status = 200, body = ConnectedResponse), (status = "4XX", body = ErrorBody)),
            security(())
        )]
        pub(super) async fn $name(
            State(app): State<App>,
            ApiPath(key): ApiPath,
            SessionQueryAuth(session): SessionQueryAuth,
            ApiQuery(query): ApiQuery<ConnectQuery>,
            TypedBody(body): TypedBody,
        ) -> Result<Json<ConnectedResponse>, ApiError> {
            connect(&app, &session, $mode, &key, query, body).await.map(Json)
        }
    };
}

route!(
    /// `POST /api-auth/api-key/{key}`: connects with an API key.
    connect_api_key, "/api-auth/api-key/{key}", AuthMode::ApiKey, "`{apiKey}`"
);
route!(
    /// `POST /api-auth/basic/{key}`: connects with a user name and a password.
    connect_basic, "/api-auth/basic/{key}", AuthMode::Basic, "`{username, password}`"
);
route!(
    /// `POST /auth/unauthenticated/{key}`: connects to a provider that asks nobody who they are.
    connect_unauthenticated, "/auth/unauthenticated/{key}", AuthMode::None, "Nothing"
);
route!(
    /// `POST /auth/tba/{key}`: connects with a token that signs requests.
    connect_token_based, "/auth/tba/{key}", AuthMode::TokenBased,
    "`{token_id, token_secret, oauth_client_id_override?, oauth_client_secret_override?}`"
);
route!(
    /// `POST /auth/two-step/{key}`: connects with credentials that are exchanged for a token.
    connect_two_step, "/auth/two-step/{key}", AuthMode::TwoStep, "The answers to the provider's `credentials`"
);
route!(
    /// `POST /auth/jwt/{key}`: connects with a key that signs tokens.
    connect_jwt, "/auth/jwt/{key}", AuthMode::Jwt, "The answers to the provider's `credentials`"
);
route!(
    /// `POST /auth/bill/{key}`: connects with a login to BILL.
    connect_bill, "/auth/bill/{key}", AuthMode::Bill, "`{username, password, organization_id, dev_key}`"
);
route!(
    /// `POST /auth/signature/{key}`: connects with a user name and a password that sign requests.
    connect_signature, "/auth/signature/{key}", AuthMode::Signature, "`{username, password}`"
);
route!(
    /// `POST /oauth2/auth/{key}`: connects with an OAuth 2 client of the end user's own.
    connect_client_credentials, "/oauth2/auth/{key}", AuthMode::OAuth2ClientCredentials,
    "`{client_id, client_secret}`"
);

async fn connect(
    app: &App,
    session: &ConnectSession,
    mode: AuthMode,
    key: &str,
    query: ConnectQuery,
    body: Map<String, Value>,
) -> Result<ConnectedResponse, ApiError> {
    if query.connection_id.is_some() {
        let message =
            "cannot be chosen: a new connection is given one, and one that is connected anew keeps its own";
        return Err(ApiError::query("unrecognized_keys", &["connection_id"], message));
    }
    let key: IntegrationKey = key.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["key"], problem.to_string())],
    })?;
    let target = app.typed_connections.target(session, &key, mode).await?;
    let provider = &target.provider;
    let connection_config =
        configuration(session, &key, provider, query.params, target.earlier_config.clone())?;
    let typed = credentials(provider, body, connection_config)?;
    let connection = app.typed_connections.connect(session, &target, typed).await?;
    Ok(ConnectedResponse {
        connection_id: connection.connection_id.to_string(),
        provider_config_key: key.to_string(),
    })
}

/// The connection's configuration: what the backend has settled, else what the end user answered now, else what was
/// answered before.
fn configuration(
    session: &ConnectSession,
    key: &IntegrationKey,
    provider: &Provider,
    mut params: BTreeMap<String, String>,
    mut before: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    // Existing clients send it; where webhooks go is not for a browser to say.
    params.remove("webhook_url");
    let settled = session.defaults(key).map(|defaults| &defaults.connection_config);
    for (name, question) in &provider.connection_config {
        let answered = settled
            .and_then(|settled| settled.get(name))
            .or_else(|| if params.contains_key(name) { None } else { before.get(name) });
        if let Some(text) = answered.and_then(Value::as_str)
            && !question.automated
        {
            params.insert(name.clone(), text.to_owned());
        }
    }
    let kept = check_answers(&provider.connection_config, params).map_err(|wrong| ApiError::Query {
        errors: wrong.iter().map(|wrong| field_error(&["params", &wrong.name], wrong)).collect(),
    })?;
    before.extend(kept.into_iter().map(|(name, answer)| (name, Value::String(answer))));
    let config = session.connection_config(key, before);
    provider.check_config(&config).map_err(|problem| {
        let path: Vec<&str> = std::iter::once("params").chain(problem.name()).collect();
        ApiError::query("invalid_value", &path, problem.to_string())
    })?;
    Ok(config)
}

/// The credentials of a body, checked against the provider's questions.
fn credentials(
    provider: &Provider,
    mut body: Map<String, Value>,
    connection_config: Map<String, Value>,
) -> Result<TypedCredentials, ApiError> {
    let mode = provider.auth_mode;
    if !provider.credentials.contains_key("type")
        && body.remove("type").is_some_and(|given| given != mode.as_str())
    {
        return Err(ApiError::body("invalid_value", &["type"], format!("must be `{mode}` or be left out")));
    }
    // Existing clients send it along, whether or not the provider leaves a choice.
    if mode == AuthMode::TwoStep && !provider.credentials.contains_key(ASSERTION_OPTION) {
        body.remove(ASSERTION_OPTION);
    }
    let mut given = BTreeMap::new();
    let mut errors = Vec::new();
    for (name, value) in body {
        match value {
            Value::String(text) => drop(given.insert(name, text)),
            Value::Null => {}
            _ => errors.push(FieldError::new("invalid_type", &[&name], "must be text")),
        }
    }
    let own_client = if mode == AuthMode::TokenBased { take_own_client(&mut given)? } else { None };
    if matches!(mode, AuthMode::ApiKey | AuthMode::Basic) {
        let long = given.iter().filter(|(_, text)| text.len() > MAX_PLAIN);
        let message = format!("must be at most {MAX_PLAIN} bytes long");
        errors.extend(long.map(|(name, _)| FieldError::new("too_big", &[name], message.clone())));
    }
    match check_answers(&provider.credentials, given) {
        Ok(kept) if errors.is_empty() => {
            let fields = kept.into_iter().map(|(name, answer)| (name, Secret::new(answer))).collect();
            Ok(TypedCredentials { fields, own_client, connection_config })
        }
        outcome => {
            let wrong = outcome.err().unwrap_or_default();
            errors.extend(wrong.iter().map(|wrong| field_error(&[&wrong.name], wrong)));
            Err(ApiError::Body { errors })
        }
    }
}

/// The consumer key and secret of an end user's own, which come together or not at all.
fn take_own_client(given: &mut BTreeMap<String, String>) -> Result<Option<ClientOverride>, ApiError> {
    const ID: &str = "oauth_client_id_override";
    const SECRET: &str = "oauth_client_secret_override";
    let mut take = |name| given.remove(name).filter(|text| !text.is_empty());
    match (take(ID), take(SECRET)) {
        (None, None) => Ok(None),
        (Some(id), Some(secret)) => {
            Ok(Some(ClientOverride { client_id: Some(id), client_secret: Some(secret.into()) }))
        }
        (id, _) => {
            let (missing, other) = if id.is_some() { (SECRET, ID) } else { (ID, SECRET) };
            Err(ApiError::body("invalid_type", &[missing], format!("is required where `{other}` is given")))
        }
    }
}

fn field_error(path: &[&str], wrong: &WrongAnswer) -> FieldError {
    let code = match wrong.kind {
        WrongAnswerKind::Missing => "invalid_type",
        WrongAnswerKind::TooLong => "too_big",
        WrongAnswerKind::Form => "invalid_format",
        WrongAnswerKind::Choice => "invalid_value",
        WrongAnswerKind::NotAsked => "unrecognized_keys",
    };
    FieldError::new(code, path, wrong.problem.clone())
}
