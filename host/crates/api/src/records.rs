//! `/records`: reads saved records by cursor, and prunes their payloads.

pub mod writer;

use std::fmt;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use self::writer::PageWriter;
use super::App;
use super::error::ApiError;
use super::extract::{ApiJson, ApiQuery, ConnectionHeaders, EnvironmentAuth, NoQuery};
use super::lists::parse_limit;
use super::one_or_many::OneOrMany;
use syncline_auth::rights;
use syncline_engine::{self as engine, ActionSet, RecordQuery};
use syncline_types::ids::{ModelName, Variant};

pub(super) const DEFAULT_LIMIT: i64 = 100;
/// A larger limit is lowered to this value instead of rejected: the cursor keeps paging correct.
pub(super) const MAX_LIMIT: i64 = 500;
const MAX_IDS: usize = 100;
const MAX_ID_CHARS: usize = 256;
const MAX_CURSOR_BYTES: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    model: String,
    variant: Option<String>,
    modified_after: Option<String>,
    /// Older name of `modified_after`.
    delta: Option<String>,
    limit: Option<String>,
    filter: Option<String>,
    cursor: Option<String>,
    #[serde(default)]
    ids: OneOrMany,
}

/// A page of records, ordered by their last change.
#[derive(Serialize, ToSchema)]
pub(super) struct RecordsPage {
    /// The records. Each has the fields of its model and its metadata.
    records: Vec<RecordBody>,
    /// Cursor of the next page, or `null` if there are no more records.
    next_cursor: Option<String>,
}

/// A record: the fields of its model, exactly as the sync saved them, and its metadata.
#[derive(Serialize, ToSchema)]
pub(super) struct RecordBody {
    /// Id of the record, unique within its model, connection and variant. 1 to 255 bytes.
    id: String,
    /// Metadata of the record.
    #[serde(rename = "_service_metadata")]
    metadata: RecordMetadata,
}

/// Metadata of a record. All times are UTC with milliseconds.
#[derive(Serialize, ToSchema)]
struct RecordMetadata {
    /// When the record was first saved. A deleted record that returns keeps this time.
    first_seen_at: DateTime<Utc>,
    /// When the record last changed.
    last_modified_at: DateTime<Utc>,
    /// The last change: `ADDED`, `UPDATED` or `DELETED`.
    last_action: String,
    /// When the record was deleted, or `null`.
    deleted_at: Option<DateTime<Utc>>,
    /// When the payload was emptied, or `null`. A pruned record has only its `id` and metadata.
    pruned_at: Option<DateTime<Utc>>,
    /// Position of the record. Reading with this cursor returns all records after it.
    cursor: String,
}

/// List records
///
/// Returns the records of one model and connection, ordered by their last change, oldest first. Pass `next_cursor` of
/// each page as `cursor` to get the next page; `null` means that there are no more records at the moment. A page can have
/// fewer records than `limit`: it ends when its payloads reach 16 MiB (configurable by the operator).
///
/// A record has the fields that the sync saved, and a member with its metadata. The name of that member is
/// `_service_metadata` unless the operator has configured another one. Deleted records stay in the list as tombstones
/// with `last_action` `DELETED`.
///
/// Fails with 404 `unknown_model` if no deployed function declares the model and no record of it is stored. Needs the
/// scope `environment:records:read`.
#[utoipa::path(
    get, path = "/records", tag = "Records",
    params(
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
        ("model" = String, Query, description = "Name of the model, such as `Buyer`."),
        ("variant" = Option<String>, Query, description = "Variant of the sync. Default: the base variant."),
        ("modified_after" = Option<String>, Query, description = "Returns only records that were modified at this time or later. RFC 3339, such as `2026-03-01T09:00:00Z`."),
        ("limit" = Option<i64>, Query, description = "Page size, at least 1. Default: 100. Values above 500 are treated as 500."),
        ("filter" = Option<String>, Query, description = "Returns only records whose last change is one of these: `added`, `updated`, `deleted`. Separate several values with commas."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page, or a record's own `cursor`. Omit it to start at the first record."),
        ("ids" = Option<Vec<String>>, Query, description = "Returns only the records with these ids, at most 100 of 1 to 256 characters. Repeat the parameter for several ids: `ids=a&ids=b`."),
    ),
    responses(
        (
            status = 200, description = "A page of records",
            body = RecordsPage,
            example = json!({
                "records": [
                    {
                        "id": "b-1",
                        "name": "Ada",
                        "email": "ada@example.com",
                        "_service_metadata": {
                            "first_seen_at": "2026-03-01T09:00:00.000Z",
                            "last_modified_at": "2026-03-02T10:00:00.000Z",
                            "last_action": "UPDATED",
                            "deleted_at": null,
                            "pruned_at": null,
                            "cursor": "AQAAAAAAAAABAAAAAQAAAAAAAAABB25j"
                        }
                    }
                ],
                "next_cursor": "AQAAAAAAAAABAAAAAQAAAAAAAAABB25j"
            }),
        ),
    ),
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

/// The records to prune.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PruneRequest {
    /// Name of the model.
    model: String,
    /// Variant of the sync. Default: the base variant.
    variant: Option<String>,
    /// A record's `cursor`. This record and all records before it are pruned.
    until_cursor: String,
    /// Maximum number of records to prune in this request, at least 1. Default: all up to the cursor.
    #[serde(default, deserialize_with = "number_of_any_size")]
    limit: Option<i64>,
}

/// The result of pruning.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PruneResponse {
    /// Number of records whose payload was emptied by this request.
    count: u64,
    /// Whether more records remain. If true, repeat the request with the same cursor.
    has_more: bool,
}

/// Prune records
///
/// Empties the payloads of all records up to and including a cursor. The ids, metadata and cursors of the records
/// stay, so readers do not lose their position.
///
/// Returns the number of pruned records. If `has_more` is true, send the same request again. Pruning does not change
/// anything at the provider; the next change or a full sync restores the payload. Needs the scope
/// `environment:records:write`.
#[utoipa::path(
    patch, path = "/records/prune", tag = "Records",
    request_body(content = PruneRequest,
        example = json!({"model": "Buyer", "until_cursor": "AQAAAAAAAAABAAAAAQAAAAAAAAABB25j", "limit": 1000})),
    params(
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The number of pruned records",
            body = PruneResponse,
            example = json!({"count": 120, "has_more": false}),
        ),
    ),
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
    let prune = engine::PruneRequest { model, variant, until_cursor, limit };
    let pruned = app.records.prune(&connection, &prune).await?;
    Ok(Json(PruneResponse { count: pruned.count, has_more: pruned.has_more }))
}

/// Reads a whole number, or `null`. A number that exceeds the type becomes its largest value.
fn number_of_any_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct Number;

    impl Visitor<'_> for Number {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
            Ok(number)
        }

        fn visit_u64<E>(self, number: u64) -> Result<i64, E> {
            Ok(i64::try_from(number).unwrap_or(i64::MAX))
        }

        // `serde_json` reads a whole number above 2^64 as a float.
        fn visit_f64<E: de::Error>(self, number: f64) -> Result<i64, E> {
            if number >= u64::MAX as f64 {
                Ok(i64::MAX)
            } else {
                Err(E::invalid_type(Unexpected::Float(number), &self))
            }
        }
    }

    struct Wanted(i64);

    impl<'de> Deserialize<'de> for Wanted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(Number).map(Self)
        }
    }

    Ok(Option::<Wanted>::deserialize(deserializer)?.map(|number| number.0))
}

fn check(query: ListQuery) -> Result<RecordQuery, ApiError> {
    let (model, variant) = check_names(&query.model, query.variant.as_deref(), ApiError::query)?;
    let modified_after =
        query.delta.map(|text| ("delta", text)).or(query.modified_after.map(|text| ("modified_after", text)));
    let modified_since = modified_after.map(|(name, text)| parse_time(name, &text)).transpose()?;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let actions = query.filter.as_deref().map(parse_filter).transpose()?.unwrap_or_default();
    check_cursor_text(query.cursor.as_deref())?;
    let ids = query.ids.into_vec();
    if ids.len() > MAX_IDS {
        let message = format!("at most {MAX_IDS} ids are allowed in one request");
        return Err(ApiError::query("too_big", &["ids"], message));
    }
    for id in &ids {
        let length = id.chars().count();
        if !(1..=MAX_ID_CHARS).contains(&length) {
            let code = if length == 0 { "too_small" } else { "too_big" };
            let message = format!("each id must have 1 to {MAX_ID_CHARS} characters (got {length})");
            return Err(ApiError::query(code, &["ids"], message));
        }
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
    // A `+` that the client did not percent-encode arrives as a space.
    let text = text.replace(' ', "+");
    DateTime::parse_from_rfc3339(&text).map(|time| time.to_utc()).map_err(|_| {
        let message = format!("must be an RFC 3339 time such as 2026-03-01T09:00:00Z (got `{text}`)");
        ApiError::query("invalid_format", &[name], message)
    })
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
                    "must contain only `added`, `updated` and `deleted`, separated by commas (got `{word}`)"
                );
                return Err(ApiError::query("invalid_value", &["filter"], message));
            }
        }
    }
    Ok(actions)
}

/// Rejects texts that cannot be a cursor, even if the stream does not exist yet.
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
    fn a_limit_of_pruning_is_a_whole_number_of_any_size() {
        let limit = |text: &str| {
            let body = format!(r#"{{"model":"A1","until_cursor":"c","limit":{text}}}"#);
            serde_json::from_str::<PruneRequest>(&body).map(|request| request.limit)
        };
        assert_eq!(limit("7").unwrap(), Some(7));
        assert_eq!(limit("null").unwrap(), None);
        for large in ["9223372036854775808", "18446744073709551615", "18446744073709551616", "1e300"] {
            assert_eq!(limit(large).unwrap(), Some(i64::MAX), "{large}");
        }
        for bad in ["1.5", "\"7\"", "[7]", "-1e300"] {
            assert!(limit(bad).is_err(), "{bad}");
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
