//! The routes that connect accounts with credentials that an end user types in. The token of a connect session in the
//! query authenticates them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{
    ApiPath, ApiQuery, MAX_SMALL_BODY_BYTES, SessionQueryAuth, check_content_type, check_names, read_body,
};
use syncline_auth::ClientOverride;
use syncline_engine::{ConnectSession, TypedCredentials};
use syncline_providers::{AuthMode, Provider, WrongAnswer, WrongAnswerKind, check_answers};
use syncline_types::actor::Actor;
use syncline_types::ids::{IntegrationKey, InvalidName};
use syncline_types::secret::Secret;
use syncline_web::request_source::RequestSource;

/// Longest key, user name and password, in bytes.
const MAX_PLAIN: usize = 1024;
const ASSERTION_OPTION: &str = "assertionOption";

/// The connection that was created or renewed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectedResponse {
    /// The connection id.
    connection_id: String,
    /// The unique key of the integration.
    provider_config_key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectQuery {
    #[serde(rename = "connect_session_token")]
    _token: String,
    /// Answers to the provider's `connection_config` questions.
    #[serde(default)]
    params: BTreeMap<String, String>,
    connection_id: Option<String>,
    /// Used by other auth modes only. Clients send it to all of them.
    #[serde(rename = "user_scope")]
    _user_scope: Option<String>,
    #[serde(rename = "hmac")]
    _hmac: Option<String>,
    #[serde(default, rename = "authorization_params")]
    _authorization_params: BTreeMap<String, String>,
}

/// A JSON object. A missing body counts as an empty object.
pub(super) struct TypedBody(Map<String, Value>);

impl FromRequest<App> for TypedBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        check_content_type(request.headers(), "application/json")?;
        let bytes = read_body(request, MAX_SMALL_BODY_BYTES).await?;
        if bytes.is_empty() {
            return Ok(Self(Map::new()));
        }
        check_names(&bytes)?;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(_) => Err(ApiError::body("invalid_type", &[], "must be an object")),
            Err(error) => Err(ApiError::Json { problem: error.to_string() }),
        }
    }
}

/// Defines one route. The routes differ in path, auth mode and credentials.
macro_rules! route {
    ($(#[doc = $doc:literal])+ $name:ident, $path:literal, $mode:expr, $body:literal, $example:tt) => {
        $(#[doc = $doc])+
        #[utoipa::path(
            post, path = $path, tag = "Connect",
            params(
                ("key" = String, Path, description = "The unique key of the integration."),
                ("connect_session_token" = String, Query, description = "Token of a connect session."),
                ("params" = Option<Object>, Query, style = DeepObject, explode,
                    description = "Values that the provider's URLs need, such as `params[subdomain]=acme`."),
            ),
            request_body(content = Object, description = $body, example = json!($example)),
            responses(
                (
                    status = 200, description = "The account is connected", body = ConnectedResponse,
                    example = json!({ "connectionId": "user-1", "providerConfigKey": "shop" }),
                ),
            ),
            security(())
        )]
        pub(super) async fn $name(
            State(app): State<App>,
            ApiPath(key): ApiPath,
            SessionQueryAuth(session): SessionQueryAuth,
            source: RequestSource,
            ApiQuery(query): ApiQuery<ConnectQuery>,
            TypedBody(body): TypedBody,
        ) -> Result<Json<ConnectedResponse>, ApiError> {
            let actor = source.actor(session.identity());
            connect(&app, &session, $mode, &key, query, body, &actor).await.map(Json)
        }
    };
}

route!(
    /// Connect with an API key
    ///
    /// Connects an account of a provider with the auth mode `API_KEY`. The end user authenticates the request with the
    /// session token in the query; the host then tests the credentials with the provider, if the catalogue says how,
    /// and creates the connection or renews it. Fails with 400 `connection_test_failed` if the provider rejects the
    /// credentials.
    connect_api_key, "/api-auth/api-key/{key}", AuthMode::ApiKey,
    "`{apiKey}`, at most 1,024 bytes",
    { "apiKey": "sk_test_1" }
);
route!(
    /// Connect with a user name and a password
    ///
    /// Connects an account of a provider with the auth mode `BASIC`. The end user authenticates the request with the
    /// session token in the query; the host then tests the credentials with the provider, if the catalogue says how,
    /// and creates the connection or renews it. Fails with 400 `connection_test_failed` if the provider rejects the
    /// credentials.
    connect_basic, "/api-auth/basic/{key}", AuthMode::Basic,
    "`{username, password}`, each at most 1,024 bytes",
    { "username": "ada", "password": "correct horse" }
);
route!(
    /// Connect without credentials
    ///
    /// Connects to a provider with the auth mode `NONE`, which needs no credentials. The end user authenticates the
    /// request with the session token in the query; the host then tests the credentials with the provider, if the
    /// catalogue says how, and creates the connection or renews it. Fails with 400 `connection_test_failed` if the
    /// provider rejects the credentials.
    connect_unauthenticated, "/auth/unauthenticated/{key}", AuthMode::None,
    "Empty, or an empty object",
    {}
);
route!(
    /// Connect with token-based authentication
    ///
    /// Connects an account of a provider with the auth mode `TBA`, whose requests are signed with a token. The end
    /// user authenticates the request with the session token in the query; the host then tests the credentials with
    /// the provider, if the catalogue says how, and creates the connection or renews it. Fails with 400
    /// `connection_test_failed` if the provider rejects the credentials.
    connect_token_based, "/auth/tba/{key}", AuthMode::TokenBased,
    "`{token_id, token_secret, oauth_client_id_override?, oauth_client_secret_override?}`",
    { "token_id": "t-1", "token_secret": "s-1" }
);
route!(
    /// Connect with a two-step login
    ///
    /// Connects an account of a provider with the auth mode `TWO_STEP`. The host exchanges the credentials for a
    /// token. The end user authenticates the request with the session token in the query; the host then tests the
    /// credentials with the provider, if the catalogue says how, and creates the connection or renews it. Fails with
    /// 400 `connection_test_failed` if the provider rejects the credentials.
    connect_two_step, "/auth/two-step/{key}", AuthMode::TwoStep,
    "Answers to the provider's `credentials` questions; their names depend on the provider",
    { "username": "ada", "password": "correct horse" }
);
route!(
    /// Connect with a JWT signing key
    ///
    /// Connects an account of a provider with the auth mode `JWT`. The host signs tokens with the key. The end user
    /// authenticates the request with the session token in the query; the host then tests the credentials with the
    /// provider, if the catalogue says how, and creates the connection or renews it. Fails with 400
    /// `connection_test_failed` if the provider rejects the credentials.
    connect_jwt, "/auth/jwt/{key}", AuthMode::Jwt,
    "Answers to the provider's `credentials` questions; their names depend on the provider",
    { "privateKey": "-----BEGIN PRIVATE KEY-----…" }
);
route!(
    /// Connect with a BILL login
    ///
    /// Connects an account of BILL (auth mode `BILL`). The end user authenticates the request with the session token
    /// in the query; the host then tests the credentials with the provider, if the catalogue says how, and creates the
    /// connection or renews it. Fails with 400 `connection_test_failed` if the provider rejects the credentials.
    connect_bill, "/auth/bill/{key}", AuthMode::Bill,
    "`{username, password, organization_id, dev_key}`",
    { "username": "ada", "password": "correct horse", "organization_id": "o-1", "dev_key": "d-1" }
);
route!(
    /// Connect with signed requests
    ///
    /// Connects an account of a provider with the auth mode `SIGNATURE`, whose requests are signed with a user name
    /// and a password. The end user authenticates the request with the session token in the query; the host then tests
    /// the credentials with the provider, if the catalogue says how, and creates the connection or renews it. Fails
    /// with 400 `connection_test_failed` if the provider rejects the credentials.
    connect_signature, "/auth/signature/{key}", AuthMode::Signature,
    "`{username, password}`",
    { "username": "ada", "password": "correct horse" }
);
route!(
    /// Connect with OAuth 2 client credentials
    ///
    /// Connects an account of a provider with the auth mode `OAUTH2_CC`, with an OAuth client of the end user. The end
    /// user authenticates the request with the session token in the query; the host then tests the credentials with
    /// the provider, if the catalogue says how, and creates the connection or renews it. Fails with 400
    /// `connection_test_failed` if the provider rejects the credentials.
    connect_client_credentials, "/oauth2/auth/{key}", AuthMode::OAuth2ClientCredentials,
    "`{client_id, client_secret}`",
    { "client_id": "c-1", "client_secret": "s-1" }
);

async fn connect(
    app: &App,
    session: &ConnectSession,
    mode: AuthMode,
    key: &str,
    query: ConnectQuery,
    body: Map<String, Value>,
    actor: &Actor,
) -> Result<ConnectedResponse, ApiError> {
    if query.connection_id.is_some() {
        let message = "is not allowed: the host generates the id of a new connection, and a renewed connection keeps its id";
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
    let connection = app.typed_connections.connect(session, &target, typed, actor).await?;
    Ok(ConnectedResponse {
        connection_id: connection.connection_id.to_string(),
        provider_config_key: key.to_string(),
    })
}

/// Builds the connection configuration. Values that the backend preset take precedence over the end user's answers,
/// and these over earlier answers.
fn configuration(
    session: &ConnectSession,
    key: &IntegrationKey,
    provider: &Provider,
    mut params: BTreeMap<String, String>,
    mut before: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    // Existing clients send it. A browser must not be able to choose where webhooks go.
    params.remove("webhook_url");
    let preset = session.defaults(key).map(|defaults| &defaults.connection_config);
    for (name, question) in &provider.connection_config {
        let answered = preset
            .and_then(|preset| preset.get(name))
            .or_else(|| if params.contains_key(name) { None } else { before.get(name) });
        if let Some(text) = answered.and_then(Value::as_str)
            && !question.automated
        {
            params.insert(name.clone(), text.to_owned());
        }
    }
    let answers = check_answers(&provider.connection_config, params).map_err(|wrong| ApiError::Query {
        errors: wrong.iter().map(|wrong| field_error(&["params", &wrong.name], wrong)).collect(),
    })?;
    before.extend(answers.into_iter().map(|(name, answer)| (name, Value::String(answer))));
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
        return Err(ApiError::body("invalid_value", &["type"], format!("must be `{mode}` or be omitted")));
    }
    // Existing clients send it even if the provider does not ask for it.
    if mode == AuthMode::TwoStep && !provider.credentials.contains_key(ASSERTION_OPTION) {
        body.remove(ASSERTION_OPTION);
    }
    let mut given = BTreeMap::new();
    let mut errors = Vec::new();
    for (name, value) in body {
        match value {
            Value::String(text) => drop(given.insert(name, text)),
            Value::Null => {}
            _ => errors.push(FieldError::new("invalid_type", &[&name], "must be a string")),
        }
    }
    let own_client = if mode == AuthMode::TokenBased { take_own_client(&mut given)? } else { None };
    if matches!(mode, AuthMode::ApiKey | AuthMode::Basic) {
        let long = given.iter().filter(|(_, text)| text.len() > MAX_PLAIN);
        let message = format!("must be at most {MAX_PLAIN} bytes long");
        errors.extend(long.map(|(name, _)| FieldError::new("too_big", &[name], message.clone())));
    }
    match check_answers(&provider.credentials, given) {
        Ok(answers) if errors.is_empty() => {
            let fields = answers.into_iter().map(|(name, answer)| (name, Secret::new(answer))).collect();
            Ok(TypedCredentials { fields, own_client, connection_config })
        }
        outcome => {
            let wrong = outcome.err().unwrap_or_default();
            errors.extend(wrong.iter().map(|wrong| field_error(&[&wrong.name], wrong)));
            Err(ApiError::Body { errors })
        }
    }
}

/// Takes the end user's own consumer key and secret, which must be sent together.
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
            Err(ApiError::body("invalid_type", &[missing], format!("is required together with `{other}`")))
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
