//! Whether the host is alive, and whether it can serve.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HealthBody {
    result: &'static str,
}

/// `GET /health`: the host is alive. Touches no database.
#[utoipa::path(get, path = "/health", tag = "Operation", security(()), responses((status = 200, body = HealthBody)))]
pub(super) async fn health() -> Json<HealthBody> {
    Json(HealthBody { result: "ok" })
}

/// `GET /ready`: the host reaches its database and is not shutting down.
#[utoipa::path(
    get, path = "/ready", tag = "Operation", security(()),
    responses((status = 200, body = HealthBody), (status = 503, body = HealthBody)),
)]
pub(super) async fn ready(State(app): State<App>) -> (StatusCode, Json<HealthBody>) {
    let reaches = async {
        sqlx::Connection::ping(&mut *app.engine.store.connect().await?).await?;
        sqlx::Connection::ping(&mut *app.engine.store.connect_records().await?).await
    };
    if app.engine.is_shutting_down() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(HealthBody { result: "shutting down" }));
    }
    match tokio::time::timeout(std::time::Duration::from_secs(2), reaches).await {
        Ok(Ok(())) => (StatusCode::OK, Json(HealthBody { result: "ok" })),
        _ => (StatusCode::SERVICE_UNAVAILABLE, Json(HealthBody { result: "no database" })),
    }
}
