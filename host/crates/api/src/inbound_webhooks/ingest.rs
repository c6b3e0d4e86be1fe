//! `/webhook/{environment_uuid}/{unique_key}`: receives webhooks of providers.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::App;
use crate::error::{ApiError, FieldError};
use crate::extract::{ApiPath, UNAUTHENTICATED_BODY_TIME};
use crate::integrations::parse_path_key;
use syncline_auth::Answered;
use syncline_engine::{HeldBody, IngestError, Ingested, WebhookEndpoint, WebhookIngest, WebhookRequest};
use syncline_telemetry::metrics::metrics;
use syncline_types::ids::IntegrationKey;

/// Response header with the id of the stored webhook.
const ID_HEADER: &str = "x-syncline-webhook-id";

/// Receive a provider webhook
///
/// The URL to which a provider sends its webhooks; `GET /integrations/{unique_key}?include=webhook` returns it. The
/// host verifies the signature and stores the webhook before it answers. Functions and your backend get it afterwards.
/// A webhook that is stored already is acknowledged and not processed again.
///
/// Needs no secret key: the provider's signature authenticates the request. The body can have 25 MB by default. Fails
/// with 401 if the signature is missing or wrong, and with 429 or 503 if the host is busy.
#[utoipa::path(
    post, path = "/webhook/{environment_uuid}/{unique_key}", tag = "Webhooks", security(()),
    params(
        ("environment_uuid" = Uuid, Path, description = "Id of the environment."),
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("connection_id" = Option<String>, Query, description = "The connection that the webhook is about, for providers whose webhooks do not identify it."),
    ),
    request_body(content = String, description = "The body in the format of the provider", content_type = "application/json",
        example = json!("{\"id\":\"evt_1\",\"type\":\"customer.updated\"}")),
    responses(
        (status = 200, description = "The webhook is stored, or the response to a handshake"),
    ),
)]
pub async fn ingest_webhook(
    State(app): State<App>,
    ApiPath(path): ApiPath<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    take(&app, path, request).await
}

/// Answer a webhook handshake
///
/// Answers the request with which some providers test a webhook URL before they use it. The format depends on the
/// provider. Needs no secret key.
#[utoipa::path(
    get, path = "/webhook/{environment_uuid}/{unique_key}", tag = "Webhooks", security(()),
    params(
        ("environment_uuid" = Uuid, Path, description = "Id of the environment."),
        ("unique_key" = String, Path, description = "The unique key of the integration."),
    ),
    responses(
        (status = 200, description = "The response that the provider expects"),
    ),
)]
pub async fn answer_handshake(
    State(app): State<App>,
    ApiPath(path): ApiPath<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    take(&app, path, request).await
}

async fn take(app: &App, path: (String, String), request: Request) -> Result<Response, ApiError> {
    let endpoint = find(app, &path).await.inspect_err(|error| {
        metrics().count_refused_webhook(None, error.code().as_str());
    })?;
    if request.method() == Method::HEAD {
        // Some providers only check that the URL exists.
        return Ok(StatusCode::OK.into_response());
    }
    let provider = endpoint.provider().as_str();
    let ingested = take_from(app, &endpoint, request).await.inspect_err(|error| {
        metrics().count_refused_webhook(Some(provider), error.code().as_str());
    })?;
    let (result, response) = match ingested {
        Ingested::Stored(id) => ("stored", ([(ID_HEADER, id.to_string())], StatusCode::OK).into_response()),
        Ingested::Duplicate => ("duplicate", StatusCode::OK.into_response()),
        Ingested::Handshake(answered) => ("handshake", answer(answered)),
    };
    metrics().count_received_webhook(provider, result);
    Ok(response)
}

async fn find(app: &App, path: &(String, String)) -> Result<Arc<WebhookEndpoint>, ApiError> {
    let (environment, key) = parse_path(path)?;
    Ok(app.inbound_webhooks.find(environment, &key).await?)
}

async fn take_from(app: &App, endpoint: &WebhookEndpoint, request: Request) -> Result<Ingested, ApiError> {
    let _permit = endpoint.acquire_permit()?;
    let (parts, body) = request.into_parts();
    check_encoding(&parts.headers)?;
    let read = read_body(&app.inbound_webhooks, endpoint, &parts.headers, body);
    let read = tokio::time::timeout(UNAUTHENTICATED_BODY_TIME, read).await;
    let body = read.map_err(|_| ApiError::BodyStalled { limit: UNAUTHENTICATED_BODY_TIME })??;
    let path_and_query = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let request = WebhookRequest {
        method: &parts.method,
        url: &format!("{}{path_and_query}", app.public_url),
        query: parts.uri.query().unwrap_or_default(),
        headers: &parts.headers,
        body: &body.bytes,
    };
    Ok(app.inbound_webhooks.take(endpoint, request).await?)
}

fn parse_path((environment, key): &(String, String)) -> Result<(Uuid, IntegrationKey), ApiError> {
    let environment = environment.parse().map_err(|_| {
        let message = "must be the UUID of an environment, as in the integration's `webhook_url`";
        ApiError::Path { errors: vec![FieldError::new("invalid_format", &["environment_uuid"], message)] }
    })?;
    Ok((environment, parse_path_key(key)?))
}

/// Rejects compressed bodies: providers sign uncompressed ones.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(()),
        Some(_) => Err(IngestError::Compressed.into()),
    }
}

/// A body with the memory that it holds.
struct ReadBody {
    bytes: Vec<u8>,
    /// Released together with the body.
    memory: HeldBody,
}

/// Reads a body and holds memory as it grows, so that a client that announces a length and sends nothing holds no
/// memory.
async fn read_body(
    ingest: &WebhookIngest,
    endpoint: &WebhookEndpoint,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReadBody, ApiError> {
    let limit_bytes = ingest.max_body_bytes();
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit_bytes) {
        return Err(ApiError::TooLarge { limit_bytes });
    }
    let mut read = ReadBody { bytes: Vec::new(), memory: ingest.hold(endpoint) };
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk: Bytes = chunk.map_err(|_| ApiError::BodyCut)?;
        if read.bytes.len() + chunk.len() > limit_bytes {
            return Err(ApiError::TooLarge { limit_bytes });
        }
        if !read.memory.grow(chunk.len()) {
            return Err(IngestError::Busy.into());
        }
        read.bytes.extend_from_slice(&chunk);
    }
    Ok(read)
}

fn answer(answered: Answered) -> Response {
    match answered {
        // The text comes from the request, so browsers must not interpret it as a page.
        Answered::Text(text) => (
            [
                (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ],
            text,
        )
            .into_response(),
        Answered::Json(value) => axum::Json(value).into_response(),
        Answered::Header(name, value) => ([(name, value)], StatusCode::OK).into_response(),
        Answered::Kept => StatusCode::OK.into_response(),
    }
}
