//! `/deployments`: takes a bundle, shows what it would change, and switches it on.

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiQuery, EnvironmentAuth, check_content_type, parse_flag, read_body};
use syncline_auth::rights;
use syncline_config::bundle::MAX_BUNDLE_BYTES;
use syncline_engine::Deployment;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeployQuery {
    dry_run: Option<String>,
}

/// `POST /deployments`: deploys a bundle, as `syncline build` writes it. With `dry_run=true` only the plan is made.
#[utoipa::path(
    post, path = "/deployments", tag = "Deployments",
    params(("dry_run" = Option<bool>, Query, description = "Only say what would change")),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Deployment), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_deployment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::Deploy>,
    ApiQuery(query): ApiQuery<DeployQuery>,
    request: Request,
) -> Result<Json<Deployment>, ApiError> {
    let dry_run = match query.dry_run.as_deref() {
        None => false,
        Some(text) => parse_flag(text)
            .ok_or_else(|| ApiError::query("invalid_value", &["dry_run"], "must be `true` or `false`"))?,
    };
    check_content_type(request.headers(), "application/x-tar")?;
    let bytes = read_body(request, MAX_BUNDLE_BYTES).await?;
    let deployment = app.deployments.deploy(&client.environment, &bytes, dry_run).await?;
    Ok(Json(deployment))
}
