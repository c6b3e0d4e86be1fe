//! `/deployments`: deploys bundles, or plans a deployment.

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;

use super::App;
use super::error::ApiError;
use super::extract::{ApiQuery, EnvironmentAuth, check_content_type, parse_flag, read_body};
use syncline_auth::rights;
use syncline_config::bundle::MAX_BUNDLE_BYTES;
use syncline_engine::Deployment;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeployQuery {
    dry_run: Option<String>,
}

/// Deploy a bundle
///
/// Deploys a bundle, which `syncline build` writes and `syncline deploy` sends. The deployment is atomic: either
/// everything in the bundle becomes active or nothing. With `dry_run=true` the host checks the bundle and returns the
/// planned changes only.
///
/// A bundle can have 256 MB. Fails with 400 `invalid_sync_config` or `invalid_bundle` if the bundle has errors, with 409
/// `conflicting_deployment` if it contains a function or model of another bundle, and with 409 `hosts_not_ready` if a
/// host could not compile it within five minutes. Needs the scope `environment:deploy`.
#[utoipa::path(
    post, path = "/deployments", tag = "Deployments",
    params(
        ("dry_run" = Option<bool>, Query, description = "Returns the planned changes without applying them. Default: `false`."),
    ),
    request_body(content = String, content_type = "application/x-tar", description = "The bundle, a tar archive"),
    responses(
        (
            status = 200, description = "The deployment, or the plan",
            body = Deployment,
            example = json!({
                "id": "01978a3e-7777-7c21-9d4e-2b6a1f0c8e11",
                "bundle": "shop",
                "version": 3,
                "digest": "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
                "changes": [{"change": "add", "kind": "sync", "integration": "shop", "name": "buyers"}],
                "warnings": []
            }),
        ),
    ),
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
    let deployment = app.deployments.deploy(&client.environment, &bytes, dry_run, &client.actor()).await?;
    Ok(Json(deployment))
}
