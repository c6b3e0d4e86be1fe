//! `/records`: what syncs have saved, for readers that follow a cursor.

pub mod writer;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::writer::PageWriter;
use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiQuery, ConnectionHeaders, EnvironmentAuth, NoQuery};
use super::one_or_many::OneOrMany;
use syncline_auth::rights;
use syncline_engine::{self as engine, ActionSet, RecordQuery};
use syncline_types::ids::{ModelName, Variant};

pub(super) const DEFAULT_LIMIT: i64 = 100;
/// A larger limit is served as this one: the cursor keeps paging correct.
pub(super) const MAX_LIMIT: i64 = 500;
const MAX_IDS: usize = 100;
const MAX_CURSOR_BYTES: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    model: String,
    variant: Option<String>,
    modified_after: Option<String>,
    /// The older name of `modified_after`.
    delta: Option<String>,
    limit: Option<String>,
    filter: Option<String>,
    cursor: Option<String>,
    #[serde(default)]
    ids: OneOrMany,
}

/// A page of records, in the order of their modification.
#[derive(Serialize, ToSchema)]
pub(super) struct RecordsPage {
    /// Each has the fields of its model, and the metadata.
    records: Vec<RecordBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct RecordBody {
    id: String,
    #[serde(rename = "_service_metadata")]
    metadata: RecordMetadata,
}

#[derive(Serialize, ToSchema)]
struct RecordMetadata {
    first_seen_at: DateTime<Utc>,
    last_modified_at: DateTime<Utc>,
    /// `ADDED`, `UPDATED` or `DELETED`.
    last_action: String,
    deleted_at: Option<DateTime<Utc>>,
    pruned_at: Option<DateTime<Utc>>,
    cursor: String,
}

/// `GET /records`: the records of one model, after a cursor.
#[utoipa::path(
    get, path = "/records", tag = "Records",
    params(
        ("Connection-Id" = String, Header, description = "The connection"),
        ("Provider-Config-Key" = String, Header, description = "The integration's unique key"),
        ("model" = String, Query, description = "Name of the model"),
        ("variant" = Option<String>, Query, description = "Sync variant; left out for the base variant"),
        ("modified_after" = Option<String>, Query, description = "Only records modified at this time (RFC 3339) or later"),
        ("limit" = Option<i64>, Query, description = "Default 100, maximum 500"),
        ("filter" = Option<String>, Query, description = "Any of added, updated, deleted, separated by commas"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before, or a record's own cursor"),
        ("ids" = Option<Vec<String>>, Query, description = "Only these records; repeatable, at most 100"),
    ),
    responses((status = 200, body = RecordsPage), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_records(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsRead>,
    ApiQuery(query): ApiQuery<ListQuery>,
    target: ConnectionHeaders,
) -> Result<Response, ApiError> {
    let query = check(query)?;
    let connection = app.find_connection(&client, &target).await?;
    let page = app.records.read(&connection, &query).await?;
    let mut writer = PageWriter::new(&app.record_metadata_key);
    let Some(stream) = page.stream else { return Ok(writer.finish(None)) };
    for record in &page.records {
        writer.push(stream, record);
    }
    let next = page.records.last().filter(|_| page.has_more).map(|last| (stream, last.position));
    Ok(writer.finish(next))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PruneRequest {
    model: String,
    variant: Option<String>,
    /// A record's cursor: everything up to and including it is pruned.
    until_cursor: String,
    /// How many records at most; left out, all of them.
    limit: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PruneResponse {
    count: u64,
    /// Whether to call again with the same cursor.
    has_more: bool,
}

/// `PATCH /records/prune`: empties payloads up to a cursor, keeps their metadata.
#[utoipa::path(
    patch, path = "/records/prune", tag = "Records", request_body = PruneRequest,
    params(
        ("Connection-Id" = String, Header, description = "The connection"),
        ("Provider-Config-Key" = String, Header, description = "The integration's unique key"),
    ),
    responses((status = 200, body = PruneResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn prune_records(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsWrite>,
    _: NoQuery,
    target: ConnectionHeaders,
    ApiJson(request): ApiJson<PruneRequest>,
) -> Result<Json<PruneResponse>, ApiError> {
    let (model, variant) = check_names(&request.model, request.variant.as_deref(), ApiError::body)?;
    if request.limit.is_some_and(|limit| limit < 1) {
        return Err(ApiError::body("too_small", &["limit"], "must be 1 or more"));
    }
    let connection = app.find_connection(&client, &target).await?;
    let PruneRequest { until_cursor, limit, .. } = request;
    let wanted = engine::PruneRequest { model, variant, until_cursor, limit };
    let pruned = app.records.prune(&connection, &wanted).await?;
    Ok(Json(PruneResponse { count: pruned.count, has_more: pruned.has_more }))
}

fn check(query: ListQuery) -> Result<RecordQuery, ApiError> {
    let (model, variant) = check_names(&query.model, query.variant.as_deref(), ApiError::query)?;
    let since =
        query.delta.map(|text| ("delta", text)).or(query.modified_after.map(|text| ("modified_after", text)));
    let modified_since = since.map(|(name, text)| parse_time(name, &text)).transpose()?;
    let limit = query.limit.as_deref().map(parse_limit).transpose()?.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let actions = query.filter.as_deref().map(parse_filter).transpose()?.unwrap_or_default();
    check_cursor_text(query.cursor.as_deref())?;
    let ids = query.ids.into_vec();
    if ids.len() > MAX_IDS {
        let message = format!("at most {MAX_IDS} ids can be asked for at once");
        return Err(ApiError::query("too_big", &["ids"], message));
    }
    Ok(RecordQuery { model, variant, cursor: query.cursor, modified_since, actions, ids, limit })
}

pub(super) type Refuse = fn(&'static str, &[&str], String) -> ApiError;

pub(super) fn check_names(
    model: &str,
    variant: Option<&str>,
    refuse: Refuse,
) -> Result<(ModelName, Variant), ApiError> {
    let model = model.parse().map_err(|problem: syncline_types::ids::InvalidName| {
        refuse("invalid_format", &["model"], problem.to_string())
    })?;
    let variant = match variant {
        None => Variant::base(),
        Some(variant) => variant.parse().map_err(|problem: syncline_types::ids::InvalidName| {
            refuse("invalid_format", &["variant"], problem.to_string())
        })?,
    };
    Ok((model, variant))
}

fn parse_time(name: &str, text: &str) -> Result<DateTime<Utc>, ApiError> {
    // A `+` that a client did not escape arrives as a space.
    let text = text.replace(' ', "+");
    DateTime::parse_from_rfc3339(&text).map(|time| time.to_utc()).map_err(|_| {
        let message = format!("is `{text}`; it must be a time such as 2026-03-01T09:00:00Z");
        ApiError::query("invalid_format", &[name], message)
    })
}

pub(super) fn parse_limit(text: &str) -> Result<i64, ApiError> {
    match text.parse::<u64>() {
        Ok(limit) if limit >= 1 => Ok(i64::try_from(limit).unwrap_or(i64::MAX)),
        Ok(_) => Err(ApiError::query("too_small", &["limit"], "must be 1 or more")),
        Err(_) => Err(ApiError::query(
            "invalid_type",
            &["limit"],
            format!("is `{text}`; it must be a whole number from 1 to 500"),
        )),
    }
}

pub(super) fn parse_filter(text: &str) -> Result<ActionSet, ApiError> {
    let mut actions = ActionSet::default();
    for word in text.split(',').map(str::trim) {
        match word.to_ascii_lowercase().as_str() {
            "added" => actions.added = true,
            "updated" => actions.updated = true,
            "deleted" => actions.deleted = true,
            _ => {
                let message = format!(
                    "has `{word}`; it must be any of added, updated and deleted, separated by commas"
                );
                return Err(ApiError::query("invalid_value", &["filter"], message));
            }
        }
    }
    Ok(actions)
}

/// What no stream's cursor can be is refused whether there is a stream or not.
pub(super) fn check_cursor_text(text: Option<&str>) -> Result<(), ApiError> {
    if text.is_some_and(|cursor| cursor.is_empty() || cursor.len() > MAX_CURSOR_BYTES) {
        return Err(ApiError::Cursor { problem: "is empty or too long" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_union_of_its_words() {
        let set = parse_filter("added,DELETED, added").unwrap();
        assert_eq!(set, ActionSet { added: true, updated: false, deleted: true });
        assert!(parse_filter("changed").is_err());
        assert!(parse_filter("").is_err());
    }

    #[test]
    fn a_limit_is_a_whole_number_from_one() {
        assert_eq!(parse_limit("1").unwrap(), 1);
        assert_eq!(parse_limit("99999999999999999999").ok(), None);
        for bad in ["0", "-1", "ten", "1.5", ""] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_may_have_any_offset() {
        let utc = parse_time("modified_after", "2026-03-01T09:00:00Z").unwrap();
        assert_eq!(parse_time("modified_after", "2026-03-01T10:00:00+01:00").unwrap(), utc);
        assert_eq!(parse_time("modified_after", "2026-03-01T10:00:00 01:00").unwrap(), utc);
        assert!(parse_time("modified_after", "yesterday").is_err());
    }
}
