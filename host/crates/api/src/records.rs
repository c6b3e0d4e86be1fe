//! `/records`: what syncs have saved, for readers that follow a cursor.

pub mod writer;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::writer::PageWriter;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiQuery, ConnectionHeaders, EnvironmentAuth, NoQuery};
use super::one_or_many::OneOrMany;
use super::{App, cursor};
use syncline_auth::rights;
use syncline_engine::{self as engine, ConnectionRoute};
use syncline_store::records::{ActionSet, Filter, Span};
use syncline_store::streams::StreamKey;
use syncline_store::{records, streams};
use syncline_types::ids::{ModelName, Variant};

pub(super) const DEFAULT_LIMIT: i64 = 100;
/// A larger limit is served as this one: the cursor keeps paging correct.
pub(super) const MAX_LIMIT: i64 = 500;
const MAX_IDS: usize = 100;
const MAX_CURSOR_BYTES: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordsQuery {
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
    ApiQuery(query): ApiQuery<RecordsQuery>,
    target: ConnectionHeaders,
) -> Result<Response, ApiError> {
    let wanted = WantedRecords::check(query)?;
    let connection = app.find_connection(&client, &target).await?;
    let stream = app.find_stream(&connection, &wanted.model, &wanted.variant).await?;
    let after = decode_cursor(wanted.cursor.as_deref(), stream)?;
    let Some(stream) = stream else {
        return Ok(PageWriter::new(&app.record_metadata_key).finish(None));
    };
    let filter = Filter { after, modified_since: wanted.modified_since, actions: wanted.actions };

    // One more than is wanted tells whether there is a next page.
    let one_more =
        engine::WantedRecords { stream, filter: &filter, ids: &wanted.ids, limit: wanted.limit + 1 };
    let page = app.records.read_records(client.environment.pk, &one_more).await;
    let mut page = page.map_err(ApiError::internal)?;
    let has_more = page.len() as i64 > wanted.limit;
    page.truncate(wanted.limit as usize);

    let mut writer = PageWriter::new(&app.record_metadata_key);
    for record in &page {
        writer.push(stream, record);
    }
    let next = page.last().filter(|_| has_more).map(|last| (stream, last.position));
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
    /// So many at a time, so that no transaction grows with what there is to prune.
    const STEP: i64 = 1000;

    let (model, variant) = check_names(&request.model, request.variant.as_deref(), ApiError::body)?;
    if request.limit.is_some_and(|limit| limit < 1) {
        return Err(ApiError::body("too_small", &["limit"], "must be 1 or more"));
    }
    let connection = app.find_connection(&client, &target).await?;
    let stream = app.find_stream(&connection, &model, &variant).await?;
    let until = decode_cursor(Some(&request.until_cursor), stream).map_err(|error| match error {
        ApiError::Cursor { problem } => ApiError::UntilCursor { problem },
        other => other,
    })?;
    let Some(stream) = stream else { return Ok(Json(PruneResponse { count: 0, has_more: false })) };

    let mut left = request.limit.unwrap_or(i64::MAX);
    let mut count = 0;
    let mut after = 0;
    while left > 0 {
        let step = left.min(STEP);
        let mut tx = app.store.begin_records().await?;
        // Writers lock the stream before its records too, so nobody waits in a circle.
        after = streams::lock_for_pruning(&mut tx, stream).await?.max(after);
        let pruned = records::prune(&mut tx, stream, Span { after, until }, step).await?;
        if let Some(last) = pruned.last {
            streams::note_pruned(&mut tx, stream, last).await?;
            after = last;
        }
        tx.commit().await?;
        count += pruned.count;
        left -= pruned.count.cast_signed();
        if pruned.count.cast_signed() < step {
            return Ok(Json(PruneResponse { count, has_more: false }));
        }
    }
    let mut conn = app.store.connect_records().await?;
    let has_more = records::has_payload(&mut conn, stream, Span { after, until }).await?;
    Ok(Json(PruneResponse { count, has_more }))
}

/// A query whose parameters were found good.
struct WantedRecords {
    model: ModelName,
    variant: Variant,
    modified_since: Option<DateTime<Utc>>,
    limit: i64,
    actions: ActionSet,
    cursor: Option<String>,
    ids: Vec<String>,
}

impl WantedRecords {
    fn check(query: RecordsQuery) -> Result<Self, ApiError> {
        let (model, variant) = check_names(&query.model, query.variant.as_deref(), ApiError::query)?;
        let since = query
            .delta
            .map(|text| ("delta", text))
            .or(query.modified_after.map(|text| ("modified_after", text)));
        let modified_since = since.map(|(name, text)| parse_time(name, &text)).transpose()?;
        let limit = query.limit.as_deref().map(parse_limit).transpose()?.unwrap_or(DEFAULT_LIMIT);
        let actions = query.filter.as_deref().map(parse_filter).transpose()?.unwrap_or_default();
        check_cursor_text(query.cursor.as_deref())?;
        let ids = query.ids.into_vec();
        if ids.len() > MAX_IDS {
            return Err(ApiError::query(
                "too_big",
                &["ids"],
                format!("at most {MAX_IDS} ids can be asked for at once"),
            ));
        }
        Ok(Self {
            model,
            variant,
            modified_since,
            limit: limit.min(MAX_LIMIT),
            actions,
            cursor: query.cursor,
            ids,
        })
    }
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

/// The position that a cursor names; 0, before all, without one.
pub(super) fn decode_cursor(text: Option<&str>, stream: Option<StreamKey>) -> Result<i64, ApiError> {
    let Some(text) = text else { return Ok(0) };
    let Some(stream) = stream else {
        return Err(ApiError::Cursor { problem: "belongs to a model of which nothing is kept" });
    };
    cursor::decode(text, stream).map_err(|invalid| ApiError::Cursor { problem: invalid.problem() })
}

impl App {
    /// The stream of a model; `None` if nothing was saved to it yet. A model that nobody knows is an error.
    pub(super) async fn find_stream(
        &self,
        connection: &ConnectionRoute,
        model: &ModelName,
        variant: &Variant,
    ) -> Result<Option<StreamKey>, ApiError> {
        if let Some(stream) = self.streams.find(connection.pk, model, variant).await? {
            return Ok(Some(stream));
        }
        let (environment, integration) = (connection.environment, connection.integration);
        let declares = self.functions.declares_model(environment, integration, model).await;
        if declares.map_err(ApiError::Internal)? {
            return Ok(None);
        }
        let mut conn = self.store.connect_records().await?;
        if streams::has_model(&mut conn, connection.pk, model).await? {
            return Ok(None);
        }
        let integration = connection.integration_key.clone();
        Err(ApiError::UnknownModel { model: model.to_string(), integration })
    }
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
