//! `POST /connect/telemetry`: what the Connect UI tells of its use. It is logged for whoever looks for the place
//! where end users give up, and kept nowhere.

use axum::extract::State;
use axum::http::StatusCode;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{NoQuery, UnauthenticatedJson};
use syncline_types::ids::IntegrationKey;

/// How far the browser's clock may be off.
const TOLERANCE: TimeDelta = TimeDelta::hours(2);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryRequest {
    /// The session's: a beacon has no headers.
    token: String,
    event: Event,
    /// By the browser's clock, which may be off by two hours.
    #[schema(value_type = String)]
    timestamp: DateTime<Utc>,
    dimensions: Option<Dimensions>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Dimensions {
    /// The unique key of the integration that it is about.
    #[schema(value_type = Option<String>)]
    integration: Option<IntegrationKey>,
}

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

/// `POST /connect/telemetry`: notes a step of an end user in the Connect UI.
#[utoipa::path(
    post, path = "/connect/telemetry", tag = "Connect sessions", request_body = TelemetryRequest,
    security(()),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn note_telemetry(
    State(app): State<App>,
    _: NoQuery,
    UnauthenticatedJson(request): UnauthenticatedJson<TelemetryRequest>,
) -> Result<StatusCode, ApiError> {
    if !is_plausible(request.timestamp, app.clock.now()) {
        let message = "must be the time of the event, to within two hours";
        return Err(ApiError::body("invalid_value", &["timestamp"], message));
    }
    let session = app.connect_sessions.find(&request.token).await?;
    let integration = request.dimensions.and_then(|dimensions| dimensions.integration);
    tracing::debug!(
        environment = %session.environment.name,
        integration = integration.as_ref().map(tracing::field::display),
        event = ?request.event,
        "a step in the Connect UI",
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a browser's time is close enough to the host's.
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
