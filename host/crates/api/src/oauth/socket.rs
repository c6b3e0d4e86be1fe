//! The WebSocket that reports the outcome of an authorization to published clients, whichever host completed it.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::super::App;
use super::super::error::ApiError;
use super::super::extract::Patience;
use syncline_engine::{AUTHORIZATION_SECONDS, Outcome};
use syncline_telemetry::metrics::metrics;
use syncline_web::client_address::ClientAddress;

/// Maximum number of open WebSockets. Opening one needs no key.
static PERMITS: Semaphore = Semaphore::const_new(5_000);
/// Keeps proxies from closing the idle connection.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Longest message of a client, in bytes. Clients have no reason to send messages, and opening a socket needs no key.
/// Frames are limited as well, because each could otherwise occupy 16 MB before its message is rejected.
const MAX_MESSAGE_BYTES: usize = 4096;

/// `GET /` with an upgrade: sends an id for an authorization and then its outcome. Closes the WebSocket if no
/// authorization with this id begins within the client timeout.
pub async fn open_socket(
    State(app): State<App>,
    Extension(Patience(begins_within)): Extension<Patience>,
    Extension(ClientAddress(client)): Extension<ClientAddress>,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade
        .map_err(|_| ApiError::UnknownRoute { method: "GET".to_owned(), path: uri.path().to_owned() })?;
    let of_client = app.limits.websockets.try_acquire(client).ok_or(ApiError::TooManySockets)?;
    let permit = PERMITS.try_acquire().map_err(|_| ApiError::TooManySockets)?;
    let permits = (of_client, permit, metrics().count_websocket());
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.read_buffer_size(MAX_MESSAGE_BYTES).on_upgrade(async move |socket| {
        // An error means that the client has disconnected.
        let _result = serve(&app, socket, begins_within).await;
        drop(permits);
    }))
}

async fn serve(app: &App, mut socket: WebSocket, begins_within: Duration) -> Result<(), axum::Error> {
    let listener = Uuid::new_v4();
    socket.send(text(&json!({ "message_type": "connection_ack", "ws_client_id": listener }))).await?;
    let time_limit = Duration::from_secs(AUTHORIZATION_SECONDS.unsigned_abs().into());
    let outcome = app.authorizations.wait_for_begun_outcome(listener, begins_within, time_limit);
    tokio::pin!(outcome);
    let mut pings = tokio::time::interval(PING_EVERY);
    loop {
        tokio::select! {
            ended = &mut outcome => {
                if let Some((_, outcome)) = ended {
                    socket.send(text(&outcome_message(outcome))).await?;
                }
                return socket.send(Message::Close(None)).await;
            }
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                Some(Ok(_)) => {}
            },
            _ = pings.tick() => socket.send(Message::Ping(Vec::new().into())).await?,
        }
    }
}

fn outcome_message(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Connected { integration, connection_id } => json!({
            "message_type": "success",
            "provider_config_key": integration,
            "connection_id": connection_id,
            "is_pending": false,
        }),
        Outcome::Failed { integration, code, message } => json!({
            "message_type": "error",
            "provider_config_key": integration,
            "error_type": code,
            "error_desc": message,
        }),
    }
}

fn text(message: &Value) -> Message {
    Message::Text(message.to_string().into())
}
