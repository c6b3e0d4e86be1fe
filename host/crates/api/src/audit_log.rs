//! `/audit-log`: who changed what, and who read credentials. Needs a scope of the account, because entries concern all
//! environments.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::ApiError;
use super::extract::{ApiQuery, EnvironmentAuth};
use super::lists::{Cursors, cut_to_page, parse_limit, parse_time, parse_word, words};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_engine::{AuditEntry, AuditFilter, AuditLogError, AuditPosition};
use syncline_types::audit_log::AuditAction;

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;

/// Which entries to return. The list has these and the parameters of its pages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    environment: Option<String>,
    actor: Option<String>,
    action: Option<String>,
    target: Option<String>,
    after: Option<String>,
    before: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    environment: Option<String>,
    actor: Option<String>,
    action: Option<String>,
    target: Option<String>,
    after: Option<String>,
    before: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditLogResponse {
    /// The entries, newest first.
    entries: Vec<AuditEntryBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// A change, or a read of credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditEntryBody {
    /// Id of the entry.
    id: Uuid,
    /// When the change was made.
    at: String,
    /// Name of the environment, or `null` if the entry concerns the whole installation. The environment may have been
    /// deleted since.
    environment: Option<String>,
    /// Who made the change.
    actor: AuditActorBody,
    /// What was done, such as `connection.deleted`.
    action: String,
    /// What it was done to.
    target: AuditTargetBody,
    /// Names, numbers and flags that depend on the action. Never a secret value.
    #[schema(value_type = Object)]
    details: Value,
    /// IP address of the client, or `null` if the change was not made through the API. Behind a proxy that the operator
    /// does not trust, it is the address of the proxy.
    address: Option<String>,
    /// The `X-Request-Id` of the request, or `null`.
    request_id: Option<String>,
}

/// Who made a change.
#[derive(Debug, Serialize, ToSchema)]
struct AuditActorBody {
    /// `account`, `api_key`, `connect_session`, `command_line` or `host`.
    kind: String,
    /// Id of the account, secret key or connect session; for `command_line`, the name of the operating system's user;
    /// for `host`, `host`.
    id: String,
    /// Email address of the account, name of the key, id of the end user, or name of the operating system's user.
    name: Option<String>,
}

/// What a change was made to.
#[derive(Debug, Serialize, ToSchema)]
struct AuditTargetBody {
    /// `environment`, `api_key`, `environment_variable`, `integration`, `connection`, `deployment`, `run`,
    /// `dead_letter`, `inbound_webhook` or `outbound_webhook`.
    kind: String,
    /// Name or id of the object. For a connection, the unique key of the integration, `/` and the connection id.
    name: String,
}

/// List the audit log
///
/// Returns who changed what, and who read credentials, in all environments, newest first. An entry is written in the
/// transaction of its change. Entries cannot be changed, and are deleted after 365 days by default. Needs the scope
/// `account:audit_log:read`.
#[utoipa::path(
    get, path = "/audit-log", tag = "Audit log",
    params(
        ("environment" = Option<String>, Query, description = "Returns only entries of the environment with this name."),
        ("actor" = Option<String>, Query, description = "Returns only entries of this author: `actor.id` of an entry."),
        ("action" = Option<String>, Query, description = "Returns only entries with this action, such as `credentials.read`."),
        ("target" = Option<String>, Query, description = "Returns only entries about this object: `target.name` of an entry, such as `shop/user-1`."),
        ("after" = Option<String>, Query, description = "Returns only entries of this time or later. RFC 3339."),
        ("before" = Option<String>, Query, description = "Returns only entries before this time. RFC 3339."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 500. Default: 100. Larger values are treated as 500."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of the audit log",
            body = AuditLogResponse,
            example = json!({
                "entries": [
                    {
                        "id": "01978a3e-7777-7c21-9d4e-2b6a1f0c8e11",
                        "at": "2026-03-01T09:00:00.000Z",
                        "environment": "prod",
                        "actor": {
                            "kind": "api_key",
                            "id": "01978a3e-0003-7c21-9d4e-2b6a1f0c8e11",
                            "name": "backend"
                        },
                        "action": "connection.deleted",
                        "target": {"kind": "connection", "name": "shop/user-1"},
                        "details": {},
                        "address": "203.0.113.7",
                        "request_id": "0d5c9a3e-8b1f-4a53-9f0e-1f2c5d1c7a11"
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
)]
pub(super) async fn list_entries(
    State(app): State<App>,
    client: EnvironmentAuth<rights::AuditLogRead>,
    ApiQuery(query): ApiQuery<ListQuery>,
) -> Result<Json<AuditLogResponse>, ApiError> {
    let ListQuery { environment, actor, action, target, after, before, limit, cursor } = query;
    let limit = parse_limit(limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let cursors = cursors(&client);
    let behind = cursor.map(|cursor| cursors.decode(&cursor, read_position)).transpose()?;
    let query = ExportQuery { environment, actor, action, target, after, before };
    let filter = AuditFilter { behind, ..query.filter()? };
    let mut found = app.audit_log.list(&filter, limit + 1).await?;
    let last = cut_to_page(&mut found, limit).map(|entry| entry.position);
    Ok(Json(AuditLogResponse {
        entries: found.into_iter().map(AuditEntryBody::from).collect(),
        next_cursor: last.map(|last| cursors.encode(&write_position(last))),
    }))
}

/// Export the audit log
///
/// Returns all entries that match, newest first, as JSON lines: one entry per line, in the form of the list. The
/// response is streamed. If it ends early, the connection is closed without the end of the body. Needs the scope
/// `account:audit_log:read`.
#[utoipa::path(
    get, path = "/audit-log/export", tag = "Audit log",
    params(
        ("environment" = Option<String>, Query, description = "Returns only entries of the environment with this name."),
        ("actor" = Option<String>, Query, description = "Returns only entries of this author: `actor.id` of an entry."),
        ("action" = Option<String>, Query, description = "Returns only entries with this action, such as `credentials.read`."),
        ("target" = Option<String>, Query, description = "Returns only entries about this object: `target.name` of an entry, such as `shop/user-1`."),
        ("after" = Option<String>, Query, description = "Returns only entries of this time or later. RFC 3339."),
        ("before" = Option<String>, Query, description = "Returns only entries before this time. RFC 3339."),
    ),
    responses(
        (
            status = 200, description = "The entries, one JSON object per line",
            content((
                String = "application/x-ndjson",
                example = json!("{\"id\":\"01978a3e-7777-7c21-9d4e-2b6a1f0c8e11\",\"action\":\"connection.deleted\"}\n")
            )),
        ),
    ),
)]
pub(super) async fn export_entries(
    State(app): State<App>,
    _: EnvironmentAuth<rights::AuditLogRead>,
    ApiQuery(query): ApiQuery<ExportQuery>,
) -> Result<Response, ApiError> {
    let mut pages = Box::pin(Arc::clone(&app.audit_log).export(query.filter()?));
    // Read before the response begins, so that a failure has a status.
    let first = pages.try_next().await?.unwrap_or_default();
    let lines = stream::once(async { Ok(first) }).chain(pages).map(|page| {
        let page = page.inspect_err(note_interrupted)?;
        let bodies = page.into_iter().map(AuditEntryBody::from);
        Ok::<_, AuditLogError>(bodies.flat_map(|body| body.to_line()).collect::<Bytes>())
    });
    let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((content_type, Body::from_stream(lines)).into_response())
}

/// Logs an error that no response can report, because the response has begun.
fn note_interrupted(error: &AuditLogError) {
    tracing::error!(error = error as &dyn std::error::Error, "an export of the audit log was interrupted");
}

impl ExportQuery {
    fn filter(self) -> Result<AuditFilter, ApiError> {
        let action = self.action.map(|text| parse_word("action", &text, words(AuditAction::ALL)));
        let time = |name, text: Option<String>| {
            text.map(|text| parse_time(name, &text, ApiError::query)).transpose()
        };
        Ok(AuditFilter {
            environment: self.environment,
            actor: self.actor,
            action: action.transpose()?,
            target: self.target,
            after: time("after", self.after)?,
            before: time("before", self.before)?,
            behind: None,
        })
    }
}

impl AuditEntryBody {
    /// The entry as a line of JSON.
    fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("an entry can be represented as JSON");
        line.push(b'\n');
        line
    }
}

impl From<AuditEntry> for AuditEntryBody {
    fn from(entry: AuditEntry) -> Self {
        Self {
            id: entry.id,
            at: iso(entry.position.at),
            environment: entry.environment,
            actor: AuditActorBody { kind: entry.actor_kind, id: entry.actor_id, name: entry.actor_name },
            action: entry.action,
            target: AuditTargetBody { kind: entry.target_kind, name: entry.target },
            details: entry.details,
            address: entry.address,
            request_id: entry.request_id,
        }
    }
}

fn cursors(client: &Client) -> Cursors {
    Cursors { list: "audit log", environment: client.environment.pk }
}

fn write_position(position: AuditPosition) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&position.at.timestamp_micros().to_be_bytes());
    bytes[8..].copy_from_slice(&position.pk.to_be_bytes());
    bytes
}

fn read_position(bytes: [u8; 16]) -> Option<AuditPosition> {
    let (at, pk) = bytes.split_first_chunk()?;
    let at = DateTime::from_timestamp_micros(i64::from_be_bytes(*at))?;
    Some(AuditPosition { at, pk: i64::from_be_bytes(pk.try_into().ok()?) })
}
