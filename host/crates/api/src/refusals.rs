//! The error responses of operations in the OpenAPI document, with the codes of each status.
//!
//! Most errors come from the extractors of a handler, so the document takes them from the types of its arguments. The
//! list of routes names the codes that the handler's services add.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use serde_json::json;
use utoipa::openapi::path::{Operation, PathItem, Paths};
use utoipa::openapi::schema::{AllOfBuilder, AnyOfBuilder, ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

use super::App;
use super::actions::ActionHeaders;
use super::error::ApiError;
use super::extract::{
    ApiJson, ApiPath, ApiQuery, Caller, ConnectionHeaders, EnvironmentAuth, NoQuery, SessionAuth,
    SessionQueryAuth, UnauthenticatedJson,
};
use super::typed_connections::TypedBody;
use syncline_auth::Right;
use syncline_types::error_code::ErrorCode;
use syncline_web::request_source::RequestSource;
use syncline_web::status::statuses;

/// The codes of a connect session's token.
const TOKEN: [ErrorCode; 2] =
    [ErrorCode::InvalidConnectSessionTokenFormat, ErrorCode::UnknownConnectSessionToken];
/// The codes of the `Authorization` header.
const HEADER: [ErrorCode; 2] = [ErrorCode::MissingAuthHeader, ErrorCode::MalformedAuthHeader];
const SECRET_KEY: [ErrorCode; 4] = [
    ErrorCode::InvalidSecretKeyFormat,
    ErrorCode::UnknownAccount,
    ErrorCode::Forbidden,
    ErrorCode::TooManyRequest,
];
/// The codes of every body that the host reads as a whole.
pub(super) const BODY: [ErrorCode; 6] = [
    ErrorCode::InvalidBody,
    ErrorCode::BodyTimeout,
    ErrorCode::PayloadTooLarge,
    ErrorCode::TooManyBodies,
    ErrorCode::InvalidContentType,
    ErrorCode::InvalidContentEncoding,
];

/// An argument of a handler, with the codes of the errors that its extraction can return.
pub(super) trait Refuses {
    fn codes() -> Vec<ErrorCode> {
        Vec::new()
    }
}

impl Refuses for State<App> {}
impl Refuses for HeaderMap {}
impl Refuses for RawQuery {}
impl Refuses for Request {}
impl Refuses for RequestSource {}

impl<R: Right> Refuses for EnvironmentAuth<R> {
    fn codes() -> Vec<ErrorCode> {
        [&HEADER[..], &SECRET_KEY].concat()
    }
}

impl Refuses for SessionAuth {
    fn codes() -> Vec<ErrorCode> {
        [HEADER, TOKEN].concat()
    }
}

impl Refuses for SessionQueryAuth {
    fn codes() -> Vec<ErrorCode> {
        [[ErrorCode::MissingPublicKey, ErrorCode::DeprecatedAuthentication], TOKEN].concat()
    }
}

impl Refuses for Caller {
    fn codes() -> Vec<ErrorCode> {
        [&HEADER[..], &SECRET_KEY, &TOKEN].concat()
    }
}

impl<T> Refuses for ApiPath<T> {
    fn codes() -> Vec<ErrorCode> {
        vec![ErrorCode::InvalidUriParams]
    }
}

impl<T> Refuses for ApiQuery<T> {
    fn codes() -> Vec<ErrorCode> {
        vec![ErrorCode::InvalidQueryParams]
    }
}

impl Refuses for NoQuery {
    fn codes() -> Vec<ErrorCode> {
        vec![ErrorCode::InvalidQueryParams]
    }
}

/// Every handler with these headers looks the connection up.
impl Refuses for ConnectionHeaders {
    fn codes() -> Vec<ErrorCode> {
        vec![ErrorCode::InvalidHeaders, ErrorCode::UnknownIntegration, ErrorCode::UnknownConnection]
    }
}

impl Refuses for ActionHeaders {
    fn codes() -> Vec<ErrorCode> {
        vec![ErrorCode::InvalidHeaders]
    }
}

impl<T, const MAX_BYTES: usize> Refuses for ApiJson<T, MAX_BYTES> {
    fn codes() -> Vec<ErrorCode> {
        [&[ErrorCode::InvalidJson], &BODY[..]].concat()
    }
}

impl<T> Refuses for UnauthenticatedJson<T> {
    fn codes() -> Vec<ErrorCode> {
        ApiJson::<T>::codes()
    }
}

impl Refuses for TypedBody {
    fn codes() -> Vec<ErrorCode> {
        ApiJson::<()>::codes()
    }
}

impl<T: Refuses> Refuses for Result<T, ApiError> {
    fn codes() -> Vec<ErrorCode> {
        T::codes()
    }
}

/// A function whose arguments are extractors. `Arguments` is the tuple of their types.
pub(super) trait Handler<Arguments> {
    fn codes() -> Vec<ErrorCode>;
}

macro_rules! handler {
    ($($argument:ident)*) => {
        impl<F, R, $($argument: Refuses),*> Handler<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> R,
        {
            fn codes() -> Vec<ErrorCode> {
                let codes: Vec<Vec<ErrorCode>> = vec![$($argument::codes()),*];
                codes.concat()
            }
        }
    };
}

handler!();
handler!(A);
handler!(A B);
handler!(A B C);
handler!(A B C D);
handler!(A B C D E);
handler!(A B C D E G);
handler!(A B C D E G H);

/// The codes that the arguments of a handler can cause.
pub(super) fn codes_of<H: Handler<Arguments>, Arguments>(_: H) -> Vec<ErrorCode> {
    H::codes()
}

/// The form of an operation's error responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    /// A page for browsers.
    Page,
    /// A page for clients that accept HTML, and JSON for others.
    Either,
}

impl Form {
    fn of(operation: &str) -> Self {
        match operation {
            "finish_oauth" | "finish_installation" => Self::Page,
            "start_oauth" => Self::Either,
            _ => Self::Json,
        }
    }
}

/// Adds error responses to the operation of the handler `name`.
pub(super) fn describe(paths: &mut Paths, name: &str, codes: &[ErrorCode]) {
    let id = name.rsplit(':').next().unwrap_or(name).trim();
    for operation in paths.paths.values_mut().flat_map(operations) {
        if operation.operation_id.as_deref() == Some(id) {
            add(operation, codes);
        }
    }
}

/// The operations of a path.
pub(super) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

/// Adds error responses to an operation: one for each status of the codes, and 500.
pub(super) fn add(operation: &mut Operation, codes: &[ErrorCode]) {
    let form = Form::of(operation.operation_id.as_deref().unwrap_or_default());
    let mut by_status: BTreeMap<StatusCode, Vec<ErrorCode>> = BTreeMap::new();
    for code in codes.iter().chain(&[ErrorCode::InternalServerError]) {
        for status in statuses(*code) {
            let codes = by_status.entry(*status).or_default();
            if !codes.contains(code) {
                codes.push(*code);
            }
        }
    }
    for (status, codes) in by_status {
        let mut response = response(&codes, form);
        let own = operation.responses.responses.get(status.as_str());
        if let Some(RefOr::T(own)) = own {
            join(&mut response, own);
        }
        operation.responses.responses.insert(status.as_str().to_owned(), RefOr::T(response));
    }
}

/// Adds the form in which an operation itself answers with this status.
fn join(response: &mut Response, own: &Response) {
    response.description = format!("{}\n- {}", response.description, own.description);
    for (kind, content) in &own.content {
        let RefOr::T(content) = content else { continue };
        if let (Some(RefOr::T(general)), Some(special)) = (response.content.get_mut(kind), &content.schema) {
            let general_schema = general.schema.take();
            let either = general_schema
                .into_iter()
                .fold(AnyOfBuilder::new().item(special.clone()), AnyOfBuilder::item);
            general.schema = Some(either.into());
        }
    }
}

/// Moves the error responses that several operations have to the components of the document.
pub(super) fn share(openapi: &mut OpenApi) {
    let mut uses: BTreeMap<String, (usize, RefOr<Response>)> = BTreeMap::new();
    for operation in openapi.paths.paths.values_mut().flat_map(operations) {
        for (status, response) in errors(operation) {
            if let Some(name) = shared_name(status, response) {
                uses.entry(name).or_insert_with(|| (0, response.clone())).0 += 1;
            }
        }
    }
    uses.retain(|_, (count, _)| *count > 1);
    for operation in openapi.paths.paths.values_mut().flat_map(operations) {
        for (status, response) in errors(operation) {
            if let Some(name) = shared_name(status, response).filter(|name| uses.contains_key(name)) {
                *response = RefOr::Ref(Ref::from_response_name(name));
            }
        }
    }
    let shared = uses.into_iter().map(|(name, (_, response))| (name, response));
    openapi.components.get_or_insert_default().responses.extend(shared);
}

fn errors(operation: &mut Operation) -> impl Iterator<Item = (&String, &mut RefOr<Response>)> {
    let responses = operation.responses.responses.iter_mut();
    responses.filter(|(status, _)| status.starts_with(['4', '5']))
}

/// A name that consists of the status and the codes. `None` if the response also has another form.
fn shared_name(status: &str, response: &RefOr<Response>) -> Option<String> {
    let RefOr::T(response) = response else { return None };
    let is_json = response.content.keys().eq(["application/json"]);
    let mut name = status.to_owned();
    for line in response.description.lines().filter(|_| is_json) {
        let (code, _) = line.strip_prefix("- `")?.split_once('`')?;
        name = format!("{name}.{code}");
    }
    is_json.then_some(name)
}

fn response(codes: &[ErrorCode], form: Form) -> Response {
    let mut description = String::new();
    for code in codes {
        let separator = if description.is_empty() { "" } else { "\n" };
        let _infallible = write!(description, "{separator}- `{code}`: {}", code.meaning());
    }
    let mut response = ResponseBuilder::new().description(description);
    if form != Form::Json {
        let page = ObjectBuilder::new().schema_type(Type::String);
        response = response.content("text/html", ContentBuilder::new().schema(Some(page)).build());
    }
    if form != Form::Page {
        let code = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(codes.iter().map(|code| json!(code))));
        let detail = ObjectBuilder::new().property("code", code);
        let body = ObjectBuilder::new().property("error", detail);
        let schema = AllOfBuilder::new().item(Ref::from_schema_name("ErrorBody")).item(body);
        response = response.content("application/json", ContentBuilder::new().schema(Some(schema)).build());
    }
    response.build()
}
