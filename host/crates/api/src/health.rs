//! `/health` and `/ready`: health checks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use syncline_telemetry::supervisor::{FailedTask, Importance};

/// Result of the health check.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HealthBody {
    /// Always `ok`.
    result: &'static str,
}

/// Result of the readiness check.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyBody {
    /// `ok`, or why the host is not ready.
    result: &'static str,
    /// Background tasks that have failed and are being restarted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<&'static str>,
}

/// Check that the host is alive
///
/// Returns 200 while the host process works. Does not use the database. Needs no secret key.
#[utoipa::path(get, path = "/health", tag = "Operation", security(()),
    responses(
        (
            status = 200, description = "The host is alive",
            body = HealthBody,
            example = json!({"result": "ok"}),
        )))]
pub(super) async fn health() -> Json<HealthBody> {
    Json(HealthBody { result: "ok" })
}

/// Check that the host is ready
///
/// Returns 200 if the host can serve requests: it reaches its databases, is not shutting down, and all background
/// tasks that requests need are running. Otherwise returns 503, and `result` states the reason. Needs no secret key.
#[utoipa::path(
    get, path = "/ready", tag = "Operation", security(()),
    responses(
        (
            status = 200, description = "The host can serve requests",
            body = ReadyBody,
            example = json!({"result": "ok"}),
        ), (
            status = 503, description = "The host cannot serve requests",
            body = ReadyBody,
            example = json!({"result": "no database"}),
        ),
    ),
)]
pub(super) async fn ready(State(app): State<App>) -> (StatusCode, Json<ReadyBody>) {
    let failed = app.supervisor.failed();
    let is_needed = |task: &FailedTask| task.importance == Importance::Serving;
    let refusal = if app.stopping.is_cancelled() {
        Some("shutting down")
    } else if !app.health.reaches_databases().await {
        Some("no database")
    } else if failed.iter().any(is_needed) {
        Some("a required background task has failed")
    } else {
        None
    };
    let degraded = failed.iter().map(|task| task.name).collect();
    match refusal {
        None => (StatusCode::OK, Json(ReadyBody { result: "ok", degraded })),
        Some(result) => (StatusCode::SERVICE_UNAVAILABLE, Json(ReadyBody { result, degraded })),
    }
}
