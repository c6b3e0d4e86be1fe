//! Extractors: authenticate the client, and parse the headers, path, query and body of a request. Handlers get only
//! valid values.

use std::marker::PhantomData;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::BytesMut;
use futures_util::StreamExt;
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};

use super::App;
use super::body_memory::{self, Owner};
use super::error::{ApiError, FieldError};
use super::strict::Strict;
use syncline_auth::{Client, Environment, Right, Scope, SessionToken};
use syncline_engine::{BodyOwner, ConnectSession, RequestMemory};
use syncline_types::actor::Actor;
use syncline_types::ids::{ConnectionId, IntegrationKey, InvalidName};
use syncline_types::json;
use syncline_web::request_source::RequestSource;

/// Longest JSON body with the input of an action, in bytes.
pub const MAX_BODY_BYTES: usize = 75 << 20;
/// Longest JSON body with metadata, settings or a list of names, in bytes.
pub const MAX_MEDIUM_BODY_BYTES: usize = 4 << 20;
/// Longest JSON body of the other routes, in bytes.
pub const MAX_SMALL_BODY_BYTES: usize = 64 << 10;
/// The rate at which a body must arrive on average, in bytes per second.
const MIN_BYTES_PER_SECOND: usize = 256 << 10;
/// Time limit for a whole body that is read before the client is authenticated. The limit on pauses is not enough
/// there: a client that sends a byte now and then could occupy memory for hours.
pub const UNAUTHENTICATED_BODY_TIME: Duration = Duration::from_secs(10);
/// Longest JSON body that is read before the client is authenticated, in bytes.
const MAX_UNAUTHENTICATED_BODY_BYTES: usize = 4 << 10;

/// Members whose values are secrets, so that errors do not repeat them.
const SECRET_MEMBERS: [&str; 2] = ["credentials", "value"];

/// Scheme of the `Authorization` header, in lower case.
const SCHEME: &str = "bearer ";

/// Longest pause of a client within a body.
#[derive(Debug, Clone, Copy)]
pub struct Patience(pub Duration);

/// A client with a valid secret key that has the scope `R`. It is checked before the body is read.
pub struct EnvironmentAuth<R: Right> {
    client: Arc<Client>,
    source: RequestSource,
    right: PhantomData<R>,
}

impl<R: Right> EnvironmentAuth<R> {
    pub fn into_client(self) -> Arc<Client> {
        self.client
    }

    /// The author of changes that this request makes.
    pub fn actor(&self) -> Actor {
        self.source.actor(self.client.identity())
    }
}

impl<R: Right> Deref for EnvironmentAuth<R> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl<R: Right> FromRequestParts<App> for EnvironmentAuth<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let client = app.authenticator.authenticate(bearer(&parts.headers)?).await?;
        app.limits.count_request(&client, &parts.extensions)?;
        client.require(R::SCOPE)?;
        parts.extensions.insert(Owner(BodyOwner::Environment(client.environment.pk)));
        Ok(Self { client, source: RequestSource::of(parts), right: PhantomData })
    }
}

/// A client with a connect session token in the `Authorization` header.
pub struct SessionAuth(pub ConnectSession);

impl FromRequestParts<App> for SessionAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        Ok(Self(app.connect_sessions.find(bearer(&parts.headers)?).await?))
    }
}

/// A client with a connect session token in the query parameter `connect_session_token`. Used by routes that a browser
/// opens, and by routes that connect accounts.
pub struct SessionQueryAuth(pub ConnectSession);

impl FromRequestParts<App> for SessionQueryAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        let find = |wanted: &str| url::form_urlencoded::parse(query).find(|(name, _)| name == wanted);
        match find("connect_session_token") {
            Some((_, token)) => Ok(Self(app.connect_sessions.find(&token).await?)),
            None if find("public_key").is_some() => Err(ApiError::PublicKey),
            None => Err(ApiError::MissingSessionToken),
        }
    }
}

/// A client that can list integrations: with a secret key that has the scope, or with a connect session token.
pub enum Caller {
    Client(Arc<Client>),
    Session(Box<ConnectSession>),
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let token = bearer(&parts.headers)?;
        if SessionToken::is_meant_by(token) {
            return Ok(Self::Session(Box::new(app.connect_sessions.find(token).await?)));
        }
        let client = app.authenticator.authenticate(token).await?;
        app.limits.count_request(&client, &parts.extensions)?;
        client.require(Scope::IntegrationsList)?;
        Ok(Self::Client(client))
    }
}

impl Caller {
    pub fn environment(&self) -> &Environment {
        match self {
            Self::Client(client) => &client.environment,
            Self::Session(session) => &session.environment,
        }
    }

    /// Whether the caller can see the integration.
    pub fn sees(&self, integration: &IntegrationKey) -> bool {
        match self {
            Self::Client(_) => true,
            Self::Session(session) => session.allows(integration),
        }
    }
}

/// Returns the part of the `Authorization` header after the scheme.
fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let header = headers.get(header::AUTHORIZATION).ok_or(ApiError::MissingAuthorization)?;
    let text = header.to_str().map_err(|_| ApiError::MalformedAuthorization)?;
    // The scheme is case-insensitive. A bare key without a scheme is accepted, because existing clients send it.
    let is_scheme = |part: &[u8]| part.eq_ignore_ascii_case(SCHEME.as_bytes());
    let key = match text.as_bytes().windows(SCHEME.len()).rposition(is_scheme) {
        Some(at) => &text[at + SCHEME.len()..],
        None if text.contains(' ') => return Err(ApiError::MalformedAuthorization),
        None => text,
    };
    let key = key.trim();
    if key.is_empty() || key.eq_ignore_ascii_case(SCHEME.trim()) {
        return Err(ApiError::MalformedAuthorization);
    }
    Ok(key)
}

/// The headers `Connection-Id` and `Provider-Config-Key`.
#[derive(Debug, Clone)]
pub struct ConnectionHeaders {
    pub connection: ConnectionId,
    pub integration: IntegrationKey,
}

impl<S: Sync> FromRequestParts<S> for ConnectionHeaders {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let connection = required_header::<ConnectionId>(&parts.headers, "connection-id");
        let integration = required_header::<IntegrationKey>(&parts.headers, "provider-config-key");
        match (connection, integration) {
            (Ok(connection), Ok(integration)) => Ok(Self { connection, integration }),
            (connection, integration) => Err(ApiError::Headers {
                errors: connection.err().into_iter().chain(integration.err()).collect(),
            }),
        }
    }
}

fn required_header<T: FromStr<Err = InvalidName>>(headers: &HeaderMap, name: &str) -> Result<T, FieldError> {
    let value = headers
        .get(name)
        .ok_or_else(|| FieldError::new("invalid_type", &[name], "the header is required"))?
        .to_str()
        .map_err(|_| FieldError::new("invalid_format", &[name], "the header must be printable ASCII"))?;
    value
        .parse()
        .map_err(|problem: InvalidName| FieldError::new("invalid_format", &[name], problem.to_string()))
}

/// An optional header. An invalid value is an error and does not count as absent.
pub fn optional_header<T: FromStr<Err = InvalidName>>(
    headers: &HeaderMap,
    name: &str,
) -> Result<Option<T>, ApiError> {
    if !headers.contains_key(name) {
        return Ok(None);
    }
    required_header(headers, name).map(Some).map_err(|error| ApiError::Headers { errors: vec![error] })
}

/// A boolean header in any of the usual spellings; `false` if it is absent.
pub fn flag_header(headers: &HeaderMap, name: &'static str) -> Result<bool, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(false) };
    value
        .to_str()
        .ok()
        .and_then(parse_flag)
        .ok_or_else(|| ApiError::headers("invalid_value", &[name], "the header must be `true` or `false`"))
}

/// `true` and `false` in the spellings that clients use.
pub fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" | "enabled" => Some(true),
        "false" | "0" | "no" | "off" | "n" | "disabled" => Some(false),
        _ => None,
    }
}

/// A parameter of the path, or several as a tuple. On a route without parameters, the last segment of the path.
pub struct ApiPath<T = String>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        if let Some((_, word)) =
            route.filter(|route| !route.contains('{')).and_then(|route| route.rsplit_once('/'))
            && let Ok(part) =
                T::deserialize(IntoDeserializer::<ValueError>::into_deserializer(word.to_owned()))
        {
            return Ok(Self(part));
        }
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(part)) => Ok(Self(part)),
            Err(rejection) => {
                let error = FieldError::new("invalid_format", &[], rejection.body_text());
                Err(ApiError::Path { errors: vec![error] })
            }
        }
    }
}

/// A query string. Supports repeated (`ids=a&ids=b`) and bracketed (`tags[k]=v`, `include[]=x`) parameters. `T` decides
/// whether unknown parameters are rejected.
pub struct ApiQuery<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// For routes without query parameters.
pub struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match parts.uri.query().map(without_empty_pairs) {
            Some(query) if !query.is_empty() => {
                Err(ApiError::query("unrecognized_keys", &[], "this route has no query parameters"))
            }
            _ => Ok(Self),
        }
    }
}

fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    if query.contains("%00") {
        return Err(ApiError::query("invalid_format", &[], "the query must not contain a NUL character"));
    }
    let config = serde_qs::Config::new()
        .use_form_encoding(true)
        .duplicate_key_behavior(serde_qs::DuplicateKeyBehavior::Error);
    let query = without_empty_pairs(query);
    let deserializer = serde_qs::Deserializer::with_config(config, query.as_bytes())
        .map_err(|error| ApiError::query("custom", &[], error.to_string()))?;
    serde_path_to_error::deserialize(Strict(deserializer))
        .map_err(|error| ApiError::Query { errors: vec![field_error(error)] })
}

/// Removes empty pairs: some clients leave an `&` at the start or end of a query.
fn without_empty_pairs(query: &str) -> String {
    let pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.join("&")
}

/// A JSON body of at most `MAX_BYTES`. It is read after all other parts of the request have been checked.
pub struct ApiJson<T, const MAX_BYTES: usize = MAX_SMALL_BODY_BYTES>(pub T);

impl<T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<App> for ApiJson<T, MAX_BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        check_content_type(request.headers(), "application/json")?;
        let bytes = read_body(request, MAX_BYTES).await?;
        parse_json(&bytes).map(Self)
    }
}

/// A JSON body that contains the client's token, for clients that cannot send headers. It is read before
/// authentication, so its size and time are limited strictly.
pub struct UnauthenticatedJson<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for UnauthenticatedJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        check_content_type(request.headers(), "application/json")?;
        let read = read_body(request, MAX_UNAUTHENTICATED_BODY_BYTES);
        let read = tokio::time::timeout(UNAUTHENTICATED_BODY_TIME, read).await;
        let bytes = read.map_err(|_| ApiError::BodyStalled { limit: UNAUTHENTICATED_BODY_TIME })??;
        parse_json(&bytes).map(Self)
    }
}

/// Reads a whole body of at most `limit_bytes`. A client that sends too slowly gets 408. Compressed bodies are rejected,
/// so there are no decompression bombs.
pub async fn read_body(request: Request, limit_bytes: usize) -> Result<Bytes, ApiError> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        let given = String::from_utf8_lossy(encoding.as_bytes()).chars().take(100).collect();
        return Err(ApiError::ContentEncoding { given });
    }
    let memory = request.extensions().get::<RequestMemory>().cloned();
    let limit_bytes = memory.as_ref().map_or(limit_bytes, |memory| limit_bytes.min(memory.longest_body()));
    let announced =
        request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| length > limit_bytes) {
        return Err(ApiError::TooLarge { limit_bytes });
    }
    if let Some(memory) = &memory {
        memory.begin(body_memory::owner(request.extensions()));
    }
    let max_pause = request.extensions().get::<Patience>().map_or(Duration::MAX, |patience| patience.0);
    let max_time = max_pause.saturating_add(Duration::from_secs((limit_bytes / MIN_BYTES_PER_SECOND) as u64));
    let began = Instant::now();
    let mut parts = request.into_body().into_data_stream();
    let mut body = BytesMut::new();
    loop {
        let time_left = max_time.saturating_sub(began.elapsed());
        match tokio::time::timeout(max_pause.min(time_left), parts.next()).await {
            Err(_) if time_left < max_pause => return Err(ApiError::BodyStalled { limit: max_time }),
            Err(_) => return Err(ApiError::BodySilent { max_pause }),
            Ok(None) => return Ok(body.freeze()),
            Ok(Some(Err(_))) => return Err(ApiError::BodyCut),
            Ok(Some(Ok(part))) if body.len() + part.len() > limit_bytes => {
                return Err(ApiError::TooLarge { limit_bytes });
            }
            Ok(Some(Ok(part))) => {
                if memory.as_ref().is_some_and(|memory| !memory.grow(part.len())) {
                    return Err(ApiError::TooManyBodies);
                }
                body.extend_from_slice(&part);
            }
        }
    }
}

/// Rejects a body with another content type. A missing content type is accepted.
pub fn check_content_type(headers: &HeaderMap, expected: &'static str) -> Result<(), ApiError> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let given = String::from_utf8_lossy(given.as_bytes());
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(ApiError::ContentType { given: essence.chars().take(100).collect(), expected })
}

/// Rejects a body with a member that serde would interpret.
pub fn check_names(body: &[u8]) -> Result<(), ApiError> {
    json::check_names(body).map_err(|reserved| ApiError::body("invalid_key", &[], reserved.to_string()))
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    check_names(bytes)?;
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let malformed = |error: &serde_json::Error| ApiError::Json { problem: error.to_string() };
    match serde_path_to_error::deserialize(Strict(&mut deserializer)) {
        Ok(body) => deserializer.end().map(|()| body).map_err(|error| malformed(&error)),
        Err(error) if error.inner().is_data() => Err(ApiError::Body { errors: vec![field_error(error)] }),
        Err(error) => Err(malformed(error.inner())),
    }
}

/// Converts an error of serde into a field error.
fn field_error<E: std::error::Error>(error: serde_path_to_error::Error<E>) -> FieldError {
    use serde_path_to_error::Segment;
    let mut path: Vec<String> = error
        .path()
        .iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        })
        .collect();
    let message = error.inner().to_string();
    // Line and column are less useful than the path.
    let message = message.split(" at line ").next().unwrap_or_default();
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        path.push(name.to_owned());
        return FieldError { code: "invalid_type", message: "is required".to_owned(), path };
    }
    // The text of `serde_qs`.
    if message == "multiple values provided for non-sequence field" {
        let message = "must be given only once".to_owned();
        return FieldError { code: "invalid_type", message, path };
    }
    let is_secret = path.iter().any(|name| SECRET_MEMBERS.contains(&name.as_str()));
    let message = if is_secret && message.starts_with("invalid") {
        in_json_terms(&without_value(message))
    } else {
        in_json_terms(message)
    };
    let code = if message.starts_with("unknown field") {
        "unrecognized_keys"
    } else if message.starts_with("invalid type") {
        "invalid_type"
    } else if message.starts_with("unknown value") || message.starts_with("invalid value") {
        "invalid_value"
    } else {
        "custom"
    };
    FieldError { code, message, path }
}

/// Removes the value from a message such as `invalid type: string "sk_1", expected an object`.
fn without_value(message: &str) -> String {
    let kind = message.split(['"', '`']).next().unwrap_or_default().trim_end();
    match message.rsplit_once(", expected ") {
        Some((_, expected)) => format!("{kind}, expected {expected}"),
        None => kind.to_owned(),
    }
}

/// Replaces the names of Rust types with JSON terms.
fn in_json_terms(message: &str) -> String {
    // A variant is something else in the API: a second configuration of a sync.
    let message = &message
        .replacen("unknown variant", "unknown value", 1)
        .replacen("invalid type: sequence", "invalid type: list", 1)
        .replacen("invalid type: map", "invalid type: object", 1);
    match message.split_once(", expected ") {
        Some((found, "a sequence")) => format!("{found}, expected a list"),
        Some((found, "a map")) => format!("{found}, expected an object"),
        Some((found, kind)) if kind.starts_with("struct ") => format!("{found}, expected an object"),
        Some((found, "i8" | "i16" | "i32" | "i64" | "isize")) => format!("{found}, expected a whole number"),
        Some((found, "u8" | "u16" | "u32" | "u64" | "usize")) => {
            format!("{found}, expected a whole number, 0 or more")
        }
        Some((found, "f32" | "f64")) => format!("{found}, expected a number"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::one_or_many::OneOrMany;
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Query {
        model: String,
        #[serde(default)]
        ids: OneOrMany,
    }

    fn query(text: &str) -> Result<Query, ApiError> {
        parse_query(text)
    }

    #[test]
    fn repeated_and_bracketed_parameters_parse() {
        for text in ["model=A&ids=x&ids=y", "model=A&ids[]=x&ids[]=y", "ids[0]=x&model=A&ids[1]=y"] {
            assert_eq!(query(text).unwrap().ids.into_vec(), ["x", "y"], "{text}");
        }
        assert_eq!(query("model=A&ids=a%2Cb+c").unwrap().ids.into_vec(), ["a,b c"]);
        assert!(query("model=A").unwrap().ids.into_vec().is_empty());
    }

    #[test]
    fn a_repeated_parameter_with_one_value_is_rejected() {
        for text in ["model=A&model=B", "model=A&model=A", "model[]=A&model[]=B"] {
            let Err(ApiError::Query { errors }) = query(text) else { panic!("{text} was accepted") };
            assert_eq!(errors[0].path, ["model"], "{text}");
        }
        let Err(ApiError::Query { errors }) = query("model=A&model=B") else { panic!("accepted") };
        assert_eq!((errors[0].code, &*errors[0].message), ("invalid_type", "must be given only once"));
    }

    #[test]
    fn empty_pairs_are_ignored() {
        for text in ["&model=A", "model=A&", "&&model=A&&"] {
            assert_eq!(query(text).unwrap().model, "A", "{text}");
        }
        let Err(ApiError::Query { errors }) = query("&") else { panic!("accepted") };
        assert_eq!(
            (errors[0].path.as_slice(), errors[0].message.as_str()),
            (&["model".to_owned()][..], "is required")
        );
    }

    #[test]
    fn an_unknown_parameter_is_named() {
        let Err(ApiError::Query { errors }) = query("model=A&modle=B") else { panic!("accepted") };
        assert_eq!(errors[0].code, "unrecognized_keys");
        assert!(errors[0].message.contains("`modle`"), "{}", errors[0].message);
    }

    #[test]
    fn a_missing_member_or_parameter_is_named_in_the_path() {
        let Err(ApiError::Query { errors }) = query("ids=a") else { panic!("accepted") };
        assert_eq!(errors[0].path, ["model"]);
        assert_eq!((errors[0].code, &*errors[0].message), ("invalid_type", "is required"));
    }

    #[test]
    fn an_expected_type_is_named_in_json_terms() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[expect(dead_code, reason = "only read by serde")]
            syncs: Vec<String>,
        }
        let Err(ApiError::Body { errors }) = parse_json::<Body>(br#"{"syncs":"buyers"}"#) else {
            panic!("accepted")
        };
        assert_eq!(errors[0].message, "invalid type: string \"buyers\", expected a list");
        assert_eq!(
            in_json_terms("invalid type: string \"1\", expected i64"),
            "invalid type: string \"1\", expected a whole number"
        );
        assert_eq!(
            in_json_terms("invalid type: null, expected struct Opts"),
            "invalid type: null, expected an object"
        );
    }

    #[test]
    fn an_error_does_not_repeat_a_secret() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[expect(dead_code, reason = "only read by serde")]
            credentials: std::collections::BTreeMap<String, String>,
        }
        for (body, path, message) in [
            (
                r#"{"credentials":"planted, expected \"x\", expected y"}"#,
                "credentials",
                "invalid type: string, expected an object",
            ),
            (
                r#"{"credentials":{"apiKey":7}}"#,
                "credentials/apiKey",
                "invalid type: integer, expected a string",
            ),
        ] {
            let Err(ApiError::Body { errors }) = parse_json::<Body>(body.as_bytes()) else {
                panic!("accepted")
            };
            assert_eq!((errors[0].path.join("/"), &*errors[0].message), (path.to_owned(), message));
        }
    }

    #[test]
    fn an_invalid_body_is_reported_with_its_path() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[expect(dead_code, reason = "only read by serde")]
            opts: Opts,
        }
        #[derive(Debug, Deserialize)]
        struct Opts {
            #[expect(dead_code, reason = "only read by serde")]
            reset: bool,
        }
        let Err(ApiError::Body { errors }) = parse_json::<Body>(br#"{"opts":{"reset":"yes"}}"#) else {
            panic!("accepted")
        };
        assert_eq!(errors[0].path, ["opts", "reset"]);
        assert_eq!(errors[0].code, "invalid_type");
        assert!(matches!(parse_json::<Body>(b"{\"opts\":"), Err(ApiError::Json { .. })));
        assert!(matches!(parse_json::<Body>(br#"{"opts":{"reset":true}} x"#), Err(ApiError::Json { .. })));
    }
}
