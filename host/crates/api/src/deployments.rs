//! `/deployments`: deploys bundles, plans deployments, lists versions and rolls back.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::connections::parse_name;
use super::error::ApiError;
use super::extract::{ApiJson, ApiQuery, EnvironmentAuth, check_content_type, parse_flag, read_body};
use super::lists::{Cursors, cut_to_page, parse_limit};
use super::time::iso;
use syncline_auth::rights;
use syncline_config::bundle::MAX_BUNDLE_BYTES;
use syncline_engine::{
    DeployError, DeployMode, Deployment, DeploymentState, PastChange, PastDeployment, Submission,
};
use syncline_types::ids::{BundleName, DeploymentPk};

const SIGNATURE: &str = "Bundle-Signature";
const DEFAULT_LIMIT: i64 = 20;
const MAX_LIMIT: i64 = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeployQuery {
    dry_run: Option<String>,
    accept_capabilities: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentsQuery {
    bundle: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// The version to deploy again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackRequest {
    /// The `name` of the bundle in `syncline.toml`.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9_-]+$")]
    bundle: String,
    /// The version to restore. Default: the version that was active before the active one.
    #[schema(minimum = 1)]
    version: Option<i32>,
}

/// A page of deployments.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeploymentsResponse {
    /// The deployments, newest first.
    deployments: Vec<DeploymentBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// A version of a bundle.
#[derive(Debug, Serialize, ToSchema)]
struct DeploymentBody {
    id: Uuid,
    bundle: String,
    version: i32,
    /// SHA-256 of the bundle.
    digest: String,
    /// `staged` (hosts are compiling it), `active`, `superseded` (a later version is active) or `failed` (it was never
    /// active).
    state: &'static str,
    /// Name of the secret key, account or system user.
    deployed_by: String,
    /// Name of the key that signed the bundle, or `null`.
    signed_by: Option<String>,
    /// The earlier version that this one restored, or `null`.
    restored_version: Option<i32>,
    created_at: String,
    /// When it became active, or `null`.
    activated_at: Option<String>,
    /// What it changed.
    changes: Vec<ChangeBody>,
}

/// One change of a deployment.
#[derive(Debug, Serialize, ToSchema)]
struct ChangeBody {
    /// `add`, `update` or `remove`.
    change: String,
    /// `environment`, `integration`, `sync`, `action`, `webhook`, `lifecycle` or `model`.
    kind: String,
    integration: Option<String>,
    name: Option<String>,
}

impl DeployQuery {
    fn mode(&self) -> Result<DeployMode, ApiError> {
        if flag("dry_run", self.dry_run.as_deref())? {
            return Ok(DeployMode::Plan);
        }
        let accept_capabilities = flag("accept_capabilities", self.accept_capabilities.as_deref())?;
        Ok(DeployMode::Deploy { accept_capabilities })
    }
}

fn flag(name: &'static str, text: Option<&str>) -> Result<bool, ApiError> {
    let Some(text) = text else { return Ok(false) };
    parse_flag(text).ok_or_else(|| ApiError::query("invalid_value", &[name], "must be `true` or `false`"))
}

/// Deploy a bundle
///
/// Deploys a bundle, which `syncline build` writes and `syncline deploy` sends. The deployment is atomic: either
/// everything in the bundle becomes active or nothing. With `dry_run=true` the host checks the bundle and returns the
/// planned changes only.
///
/// A bundle can have 256 MB. Fails with 400 `invalid_sync_config` or `invalid_bundle` if the bundle has errors, with 409
/// `conflicting_deployment` if it contains a function or model of another bundle, with 409
/// `capabilities_not_accepted` if it asks for more than the active version, and with 409 `hosts_not_ready` if a
/// host could not compile it within five minutes. If the environment requires signatures, a bundle without a valid one
/// is rejected with 403. Needs the scope `environment:deploy`.
#[utoipa::path(
    post, path = "/deployments", tag = "Deployments",
    params(
        ("dry_run" = Option<bool>, Query, description = "Returns the planned changes without applying them. Default: `false`."),
        ("accept_capabilities" = Option<bool>, Query, description = "Accepts the capabilities that the active version does not have, which the plan lists as `new_capabilities`. Default: `false`."),
        ("Bundle-Signature" = Option<String>, Header, description = "The content of the bundle's `.minisig` file, as base64."),
    ),
    request_body(content = String, content_type = "application/x-tar", description = "The bundle, a tar archive",
        example = json!("The bytes of build/bundle.tar")),
    // The body is a file, which the API reference cannot derive from the schema.
    extensions(("x-codeSamples" = json!([{
        "lang": "shell",
        "label": "curl",
        "source": "curl \"$SYNCLINE_URL/deployments\" -H \"Authorization: Bearer $SYNCLINE_SECRET_KEY\" \\\n    -H \"Content-Type: application/x-tar\" --data-binary @build/bundle.tar",
    }]))),
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
                "warnings": [],
                "capabilities": [{"integration": "shop", "kind": "model", "name": "Buyer"}],
                "new_capabilities": [{"integration": "shop", "kind": "model", "name": "Buyer"}],
                "sdks": {"shop": "syncline-sdk 0.1.0"},
                "signed_by": null
            }),
        ),
    ),
)]
pub(super) async fn create_deployment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::Deploy>,
    ApiQuery(query): ApiQuery<DeployQuery>,
    headers: HeaderMap,
    request: Request,
) -> Result<Json<Deployment>, ApiError> {
    let mode = query.mode()?;
    let signature = signature(&headers)?;
    check_content_type(request.headers(), "application/x-tar")?;
    let bytes = read_body(request, MAX_BUNDLE_BYTES).await?;
    let submission = Submission { bundle: &bytes, signature: signature.as_deref(), restored_version: None };
    let deployment = app.deployments.deploy(&client.environment, submission, mode, &client.actor()).await?;
    Ok(Json(deployment))
}

fn signature(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(SIGNATURE) else { return Ok(None) };
    let decoded = STANDARD.decode(value.as_bytes());
    // Other bytes than text are no signature, which the check of the signature reports.
    decoded.map(|bytes| Some(String::from_utf8_lossy(&bytes).into_owned())).map_err(|_| {
        let message = "the header must be the content of the bundle's `.minisig` file, as base64";
        ApiError::headers("invalid_format", &[SIGNATURE], message)
    })
}

/// List deployments
///
/// Returns the versions of the environment's bundles, newest first, with who deployed them and when. Needs the scope
/// `environment:functions:read`.
#[utoipa::path(
    get, path = "/deployments", tag = "Deployments",
    params(
        ("bundle" = Option<String>, Query, description = "Returns only versions of this bundle."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 100. Default: 20. Larger values are treated as 100."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of deployments",
            body = DeploymentsResponse,
            example = json!({
                "deployments": [{
                    "id": "01978a3e-7777-7c21-9d4e-2b6a1f0c8e11",
                    "bundle": "shop",
                    "version": 3,
                    "digest": "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
                    "state": "active",
                    "deployed_by": "ci",
                    "signed_by": null,
                    "restored_version": null,
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "activated_at": "2026-03-01T09:00:01.000Z",
                    "changes": [{"change": "add", "kind": "sync", "integration": "shop", "name": "buyers"}]
                }],
                "next_cursor": null
            }),
        ),
    ),
)]
pub(super) async fn list_deployments(
    State(app): State<App>,
    client: EnvironmentAuth<rights::FunctionsRead>,
    ApiQuery(query): ApiQuery<DeploymentsQuery>,
) -> Result<Json<DeploymentsResponse>, ApiError> {
    let environment = client.environment.pk;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let bundle = query.bundle.map(|text| parse_name::<BundleName>("bundle", &text, ApiError::query));
    let bundle = bundle.transpose()?;
    let cursors = Cursors { list: "deployments", environment };
    let before = query.cursor.map(|cursor| cursors.decode_number(&cursor).map(DeploymentPk)).transpose()?;
    let found = app.deployments.history(environment, bundle.as_ref(), before, limit + 1).await;
    let mut found = found.map_err(DeployError::Store)?;
    let next_cursor = cut_to_page(&mut found, limit).map(|last| cursors.encode_number(last.pk.0));
    Ok(Json(DeploymentsResponse {
        deployments: found.into_iter().map(DeploymentBody::from).collect(),
        next_cursor,
    }))
}

/// Roll back
///
/// Deploys an earlier version of a bundle again, as a new version, with the same plan and checks as a deployment. Fails
/// with 404 `unknown_deployment` if there is no such version. Needs the scope `environment:deploy`.
#[utoipa::path(
    post, path = "/deployments/rollback", tag = "Deployments",
    params(
        ("dry_run" = Option<bool>, Query, description = "Returns the planned changes without applying them. Default: `false`."),
        ("accept_capabilities" = Option<bool>, Query, description = "Accepts the capabilities that the active version does not have, which the plan lists as `new_capabilities`. Default: `false`."),
    ),
    request_body(content = RollbackRequest, example = json!({"bundle": "shop", "version": 2})),
    responses(
        (
            status = 200, description = "The deployment, or the plan",
            body = Deployment,
            example = json!({
                "id": "01978a3e-7777-7c21-9d4e-2b6a1f0c8e12",
                "bundle": "shop",
                "version": 4,
                "digest": "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
                "changes": [{"change": "remove", "kind": "sync", "integration": "shop", "name": "buyers"}],
                "warnings": [],
                "capabilities": [],
                "new_capabilities": [],
                "sdks": {"shop": "syncline-sdk 0.1.0"},
                "signed_by": null
            }),
        ),
    ),
)]
pub(super) async fn roll_back(
    State(app): State<App>,
    client: EnvironmentAuth<rights::Deploy>,
    ApiQuery(query): ApiQuery<DeployQuery>,
    ApiJson(request): ApiJson<RollbackRequest>,
) -> Result<Json<Deployment>, ApiError> {
    let mode = query.mode()?;
    let bundle: BundleName = parse_name("bundle", &request.bundle, ApiError::body)?;
    let environment = &client.environment;
    let actor = client.actor();
    let rolled_back = app.deployments.roll_back(environment, &bundle, request.version, mode, &actor);
    Ok(Json(rolled_back.await?))
}

impl From<PastDeployment> for DeploymentBody {
    fn from(past: PastDeployment) -> Self {
        Self {
            id: past.id,
            bundle: past.bundle,
            version: past.version,
            digest: past.digest,
            state: match past.state {
                DeploymentState::Staged => "staged",
                DeploymentState::Active => "active",
                DeploymentState::Superseded => "superseded",
                DeploymentState::Failed => "failed",
            },
            deployed_by: past.deployed_by,
            signed_by: past.signed_by,
            restored_version: past.restored_version,
            created_at: iso(past.created_at),
            activated_at: past.activated_at.map(iso),
            changes: past.changes.into_iter().map(ChangeBody::from).collect(),
        }
    }
}

impl From<PastChange> for ChangeBody {
    fn from(PastChange { change, kind, integration, name }: PastChange) -> Self {
        Self { change, kind, integration, name }
    }
}
