//! `POST /connect/telemetry`: usage events of the Connect UI. They are logged, so that an operator can find out where
//! end users give up, and not stored.

use axum::extract::State;
use axum::http::StatusCode;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::error::ApiError;
use super::extract::{NoQuery, UnauthenticatedJson};
use syncline_types::ids::IntegrationKey;

/// Maximum deviation of the browser's clock.
const TOLERANCE: TimeDelta = TimeDelta::hours(2);

/// A step in the Connect UI.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryRequest {
    /// The session token. It is part of the body because browser beacons cannot send headers.
    token: String,
    /// The step.
    event: Event,
    /// When the step happened, by the browser's clock. At most two hours off.
    #[schema(value_type = String)]
    timestamp: DateTime<Utc>,
    /// What the step is about.
    dimensions: Option<Dimensions>,
}

/// What a step is about.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Dimensions {
    /// The unique key of the integration.
    #[schema(value_type = Option<String>)]
    integration: Option<IntegrationKey>,
}

/// A step in the Connect UI.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
enum Event {
    #[serde(rename = "open")]
    Open,
    #[serde(rename = "view:list")]
    ViewList,
    #[serde(rename = "view:integration")]
    ViewIntegration,
    #[serde(rename = "view:unknown_error")]
    ViewUnknownError,
    #[serde(rename = "view:credentials_error")]
    ViewCredentialsError,
    #[serde(rename = "view:success")]
    ViewSuccess,
    #[serde(rename = "click:integration")]
    ClickIntegration,
    #[serde(rename = "click:doc")]
    ClickDoc,
    #[serde(rename = "click:doc_section")]
    ClickDocSection,
    #[serde(rename = "click:connect")]
    ClickConnect,
    #[serde(rename = "click:close")]
    ClickClose,
    #[serde(rename = "click:finish")]
    ClickFinish,
    #[serde(rename = "click:outside")]
    ClickOutside,
    #[serde(rename = "popup:blocked_by_browser")]
    PopupBlocked,
    #[serde(rename = "popup:closed_early")]
    PopupClosed,
}

/// Record a Connect UI event
///
/// Records a step of an end user in the Connect UI. The host writes it to its log and does not store it. The token in
/// the body authenticates the request. Fails with 400 if `timestamp` is more than two hours off.
#[utoipa::path(
    post, path = "/connect/telemetry", tag = "Connect sessions",
    request_body(content = TelemetryRequest,
        example = json!({
            "token": "nango_connect_session_0123456789abcdef",
            "event": "click:connect",
            "timestamp": "2026-03-01T09:00:00.000Z",
            "dimensions": {"integration": "shop"}
        })),
    security(()),
    responses(
        (status = 204, description = "The event was logged"),
    ),
)]
pub(super) async fn note_telemetry(
    State(app): State<App>,
    _: NoQuery,
    UnauthenticatedJson(request): UnauthenticatedJson<TelemetryRequest>,
) -> Result<StatusCode, ApiError> {
    if !is_plausible(request.timestamp, app.clock.now()) {
        let message = "must be the time of the event and at most two hours off";
        return Err(ApiError::body("invalid_value", &["timestamp"], message));
    }
    let session = app.connect_sessions.find(&request.token).await?;
    let integration = request.dimensions.and_then(|dimensions| dimensions.integration);
    tracing::debug!(
        environment = %session.environment.name,
        integration = integration.as_ref().map(tracing::field::display),
        event = ?request.event,
        "Connect UI event",
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a browser's time is close enough to the host's time.
fn is_plausible(timestamp: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    (now - timestamp).abs() <= TOLERANCE
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use syncline_telemetry::clock::Clock;

    use super::*;

    #[test]
    fn the_clock_of_a_browser_may_be_off_by_two_hours() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let (event, later) = (clock.now(), clock.now() + TOLERANCE);
        assert!(is_plausible(event, clock.now()) && is_plausible(later, clock.now()));
        time.advance(Duration::from_secs(2 * 3600));
        assert!(is_plausible(event, clock.now()));
        time.advance(Duration::from_secs(1));
        assert!(!is_plausible(event, clock.now()));
    }
}
