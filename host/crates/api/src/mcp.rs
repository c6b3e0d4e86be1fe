//! `POST /mcp`: the actions of a connection as tools, for clients that speak the Model Context Protocol.
//!
//! Headers name the connection, so there are no sessions: each request is independent and any host can answer it.
//! `rmcp` implements the protocol. Keys, headers and bodies are checked as for all other routes.

mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ProtocolVersion};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use url::{Host, Url};

use self::tools::{ConnectionTools, Structured};
use super::App;
use super::error::ApiError;
use super::extract::{
    ConnectionHeaders, EnvironmentAuth, MAX_BODY_BYTES, NoQuery, check_content_type, read_body,
};
use super::strict::Strict;
use syncline_auth::{Scope, rights};
use syncline_types::json::check_names;

/// `rmcp` requires clients to accept both types. This host always answers with JSON, because it streams nothing.
const BOTH_FORMS: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The method that runs an action.
const CALL: &str = "tools/call";

/// Send an MCP message
///
/// Handles one JSON-RPC message of the Model Context Protocol. The tools are the actions of the connection's
/// integration. There are no sessions, so each request is independent and any host can answer it; responses are always
/// JSON.
///
/// Errors of the protocol are JSON-RPC errors; errors of the key, the headers or the body are ordinary errors of this
/// API. Needs the scope `environment:mcp`; calling a tool also needs `environment:actions:execute`.
#[utoipa::path(
    post, path = "/mcp", tag = "MCP",
    request_body(content = Object, description = "A JSON-RPC message",
        example = json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "add-buyer", "arguments": {"name": "Ada"}}
        })),
    params(
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The JSON-RPC response",
            body = Object,
            example = json!({
                "jsonrpc": "2.0",
                "id": 1,
                "result": {
                    "content": [{"type": "text", "text": "{\"id\":\"b-8\",\"name\":\"Ada\"}"}],
                    "isError": false
                }
            }),
        ),
        (status = 202, description = "The notification was accepted"),
        (status = 400, description = "a JSON-RPC error, if the message is not valid", body = Object),
    ),
)]
pub(super) async fn post_message(
    State(app): State<App>,
    client: EnvironmentAuth<rights::Mcp>,
    _: NoQuery,
    target: ConnectionHeaders,
    request: Request,
) -> Result<Response, ApiError> {
    check_origin(request.headers(), &app.public_url)?;
    check_content_type(request.headers(), "application/json")?;
    let connection = app.find_connection(&client, &target).await?;
    let (mut head, body) = request.into_parts();
    let body = read_body(Request::from_parts(head.clone(), body), MAX_BODY_BYTES).await?;
    let Message { call, stripped } = match read_message(&body) {
        Ok(message) => message,
        Err((code, message)) => return Ok(refusal(code, &message)),
    };
    let body = stripped.map_or(body, Bytes::from);
    if call.method == CALL {
        client.require(Scope::ActionsExecute)?;
    }
    let arguments = call.params.and_then(|params| params.arguments);
    let structured = Structured::default();
    let environment = Arc::clone(&client.environment);
    let tools = ConnectionTools::new(app, environment, connection, arguments, structured.clone());

    head.headers.insert(header::ACCEPT, BOTH_FORMS);
    head.headers.insert(header::CONTENT_TYPE, JSON);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY_BYTES)
        // The origin was checked above, which also protects against DNS rebinding.
        .disable_allowed_hosts();
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(tools.clone()), sessions, config);
    let response = service.handle(Request::from_parts(head, Body::from(body))).await;
    // `rmcp` returns JSON for all errors except an unknown protocol version.
    if response.status() == StatusCode::BAD_REQUEST && !response.headers().contains_key(header::CONTENT_TYPE)
    {
        return Err(unknown_version());
    }
    if !structured.is_needed() {
        return Ok(response.map(Body::new));
    }
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.map_err(anyhow::Error::from);
    let text = String::from_utf8(body.map_err(ApiError::Internal)?.into());
    let text = text.map_err(anyhow::Error::from).map_err(ApiError::Internal)?;
    let whole = structured.put_into(&text).unwrap_or(text);
    Ok(Response::from_parts(head, Body::from(whole)))
}

fn unknown_version() -> ApiError {
    let known: Vec<&str> = ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
    let message = format!("the header must be a supported version of the protocol: {}", known.join(", "));
    ApiError::headers("invalid_value", &["mcp-protocol-version"], message)
}

/// Rejects requests that a browser sends for a page of another origin. Other programs send no `Origin`. Pages on the
/// user's own machine are allowed.
fn check_origin(headers: &HeaderMap, public_url: &str) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = String::from_utf8_lossy(origin.as_bytes());
    let parsed = Url::parse(&origin).ok();
    let is_ours = parsed.as_ref().is_some_and(|origin| {
        let is_loopback = match origin.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        is_loopback || Url::parse(public_url).is_ok_and(|public| public.origin() == origin.origin())
    });
    if is_ours { Ok(()) } else { Err(ApiError::Origin(origin.chars().take(200).collect())) }
}

/// The parts of a message that this host needs. Arguments stay as text, because a number can exceed a double.
#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    method: String,
    params: Option<CallParams>,
}

#[derive(Deserialize)]
struct CallParams {
    arguments: Option<Box<RawValue>>,
}

struct Message {
    call: Call,
    /// The message without arguments, for `rmcp`, if it cannot parse the arguments.
    stripped: Option<String>,
}

/// Parses a message, or returns the code and the text of a JSON-RPC error.
///
/// The message is parsed twice: `rmcp` decides what it does, and this function which scope it needs. Both must succeed.
/// Duplicate members, which the parsers could interpret differently, are rejected here.
fn read_message(body: &[u8]) -> Result<Message, (ErrorCode, String)> {
    check_names(body).map_err(|reserved| (ErrorCode::INVALID_REQUEST, reserved.to_string()))?;
    let json: &RawValue = serde_json::from_slice(body)
        .map_err(|error| (ErrorCode::PARSE_ERROR, format!("the body is not JSON: {error}")))?;
    let no_message = || {
        let message = "the body must be one JSON-RPC 2.0 message: `jsonrpc` is \"2.0\", `method` a name, `params` \
                       an object, and a request has an `id`";
        (ErrorCode::INVALID_REQUEST, message.to_owned())
    };
    let unreadable =
        |error: serde_json::Error| (ErrorCode::INVALID_REQUEST, format!("invalid JSON-RPC message: {error}"));
    let is_message = |text: &str| serde_json::from_str::<ClientJsonRpcMessage>(text).is_ok();
    if !json.get().starts_with('{') {
        return Err(no_message());
    }
    let call = Call::deserialize(Strict(&mut serde_json::Deserializer::from_str(json.get())));
    let is_list = |error: &serde_json::Error| error.to_string().starts_with("invalid type: sequence");
    let call = call.map_err(|error| if is_list(&error) { no_message() } else { unreadable(error) })?;
    if is_message(json.get()) {
        return Ok(Message { call, stripped: None });
    }
    let stripped = without_arguments(json.get()).map_err(unreadable)?;
    // Reports what a `Value` cannot represent: a number beyond a double, an unpaired surrogate, or too many levels.
    serde_json::from_str::<Value>(&stripped).map_err(unreadable)?;
    if is_message(&stripped) { Ok(Message { call, stripped: Some(stripped) }) } else { Err(no_message()) }
}

/// Replaces the arguments of a call with an empty object, if they are an object. The action gets the original text.
fn without_arguments(json: &str) -> serde_json::Result<String> {
    let mut message: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json)?;
    let is_call = message.get("method").is_some_and(|method| {
        serde_json::from_str::<String>(method.get()).is_ok_and(|method| method == CALL)
    });
    if is_call && let Some(params) = message.get_mut("params").filter(|params| params.get().starts_with('{'))
    {
        let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(params.get())?;
        let arguments = members.get_mut("arguments").filter(|arguments| arguments.get().starts_with('{'));
        if let Some(arguments) = arguments {
            *arguments = RawValue::from_string("{}".to_owned())?;
        }
        *params = serde_json::value::to_raw_value(&members)?;
    }
    serde_json::to_string(&message)
}

fn refusal(code: ErrorCode, message: &str) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": code.0, "message": message } });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_and_local_origins_are_allowed() {
        let check = |origin: &'static str| {
            let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            check_origin(&headers, "https://syncline.example.com")
        };
        assert!(check_origin(&HeaderMap::new(), "https://syncline.example.com").is_ok());
        for good in [
            "https://syncline.example.com",
            "https://syncline.example.com:443",
            "http://localhost:6274",
            "http://127.0.0.1:8080",
            "http://[::1]:3000",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "https://evil.example.com",
            "http://syncline.example.com",
            "https://syncline.example.com:8443",
            "https://syncline.example.com.evil.com",
            "http://localhost.evil.com",
            "null",
            "",
            "nonsense",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
