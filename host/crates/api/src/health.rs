//! Whether the host is alive, and whether it can serve.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use syncline_telemetry::supervisor::{FailedTask, Importance};

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HealthBody {
    result: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyBody {
    result: &'static str,
    /// Background tasks that have failed and are started again in a moment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<&'static str>,
}

/// `GET /health`: the host is alive. Touches no database.
#[utoipa::path(get, path = "/health", tag = "Operation", security(()), responses((status = 200, body = HealthBody)))]
pub(super) async fn health() -> Json<HealthBody> {
    Json(HealthBody { result: "ok" })
}

/// `GET /ready`: the host reaches its database, is not shutting down, and runs what serving requests needs.
#[utoipa::path(
    get, path = "/ready", tag = "Operation", security(()),
    responses((status = 200, body = ReadyBody), (status = 503, body = ReadyBody)),
)]
pub(super) async fn ready(State(app): State<App>) -> (StatusCode, Json<ReadyBody>) {
    let failed = app.supervisor.failed();
    let is_needed = |task: &FailedTask| task.importance == Importance::Serving;
    let refusal = if app.stopping.is_cancelled() {
        Some("shutting down")
    } else if !app.health.reaches_databases().await {
        Some("no database")
    } else if failed.iter().any(is_needed) {
        Some("a task failed that serving requests needs")
    } else {
        None
    };
    let degraded = failed.iter().map(|task| task.name).collect();
    match refusal {
        None => (StatusCode::OK, Json(ReadyBody { result: "ok", degraded })),
        Some(result) => (StatusCode::SERVICE_UNAVAILABLE, Json(ReadyBody { result, degraded })),
    }
}
