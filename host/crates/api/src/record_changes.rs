//! `GET /records/changes`: follows changes of records, as server-sent events or by long polling.
//!
//! The cursor contains the whole state of a reader, so a reader can continue on any host. A waiting reader holds no
//! database connection, and the host buffers at most one page for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::App;
use super::error::ApiError;
use super::extract::{ApiQuery, ConnectionHeaders, EnvironmentAuth};
use super::lists::parse_limit;
use super::records::writer::{PageWriter, RecordJson};
use super::records::{DEFAULT_LIMIT, MAX_LIMIT, RecordsPage, check_cursor_text, check_names, parse_filter};
use syncline_auth::{Client, rights};
use syncline_engine::{
    ActionSet, ConnectionRoute, FollowedConnection, LookupError, PageLimit, RecordsError, StoredRecord,
    StreamKey, cursor,
};
use syncline_types::ids::{ModelName, Variant};

/// Approximate size of one read of an event stream, in bytes. A client that stops reading holds this much memory.
const BYTES_AT_ONCE: usize = 256 << 10;
/// The size at which such a read ends, because its records are larger than the previous ones.
const MAX_BYTES_AT_ONCE: usize = 1 << 20;
/// Number of records in the first read, before the host knows how large they are.
const FIRST_RECORDS: i64 = 4;
const MAX_RECORDS: i64 = 100;
/// Proxies close connections on which nothing is sent.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const MAX_WAIT_SECONDS: u64 = 60;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesQuery {
    model: String,
    variant: Option<String>,
    filter: Option<String>,
    cursor: Option<String>,
    wait: Option<String>,
    limit: Option<String>,
}

/// The changes that a reader follows.
struct Followed {
    model: ModelName,
    variant: Variant,
    actions: ActionSet,
    cursor: Option<String>,
}

/// The form of the response.
enum Form {
    Events,
    Page { wait: Duration, limit: i64 },
}

/// Follow record changes
///
/// Returns the changes of one model and connection from a cursor on, either as server-sent events or one page at a
/// time.
///
/// By default the response is an event stream. The data of each event is a record, and its id is the cursor of that
/// record. The event `caught-up` says that no more changes are available at the moment; then the stream stays open.
/// The stream ends when the host stops, the secret key is revoked or the connection is deleted.
///
/// With `wait` or `Accept: application/json` the response is one page: the request waits until there is a change or
/// the time is over. Pass `next_cursor` as `cursor` in the next request. Fails with 429 `too_many_readers` when the
/// host has reached its limit of concurrent readers (default: 1,000). Needs the scope `environment:records:read`.
#[utoipa::path(
    get, path = "/records/changes", tag = "Records",
    params(
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
        ("Last-Event-ID" = Option<String>, Header, description = "Cursor of the last event that the client received. Takes precedence over `cursor`. Browsers send it when they reconnect."),
        ("model" = String, Query, description = "Name of the model, such as `Buyer`."),
        ("variant" = Option<String>, Query, description = "Variant of the sync. Default: the base variant."),
        ("filter" = Option<String>, Query, description = "Returns only records whose last change is one of these: `added`, `updated`, `deleted`. Separate several values with commas."),
        ("cursor" = Option<String>, Query, description = "Where to begin: `next_cursor` of a page, or a record's own `cursor`. Omit it to start at the first record."),
        ("wait" = Option<u64>, Query, description = "Requests one page as JSON, and the number of seconds to wait for it: 0 to 60. Default with `Accept: application/json`: 30."),
        ("limit" = Option<i64>, Query, description = "Size of such a page, at least 1. Default: 100. Values above 500 are treated as 500."),
    ),
    responses(
        (
            status = 200,
            description = "A stream of events, or a page with `wait` or `Accept: application/json`",
            content((
                String = "text/event-stream",
                example = json!("id: AQAAAAAAAAABAAAAAQAAAAAAAAABB25j\ndata: {\"id\":\"b-1\",\"name\":\"Ada\"}\n\n")
            ), (
                RecordsPage = "application/json",
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
                })
            )),
        ),
    ),
)]
pub(super) async fn follow_records(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsRead>,
    ApiQuery(query): ApiQuery<ChangesQuery>,
    target: ConnectionHeaders,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (followed, form) = check(query, &headers)?;
    let reader = Reader::open(app, client.into_client(), target, followed).await?;
    match form {
        Form::Events => Ok(Sse::new(Events::of(reader)).into_response()),
        Form::Page { wait, limit } => page(reader, wait, limit).await,
    }
}

fn check(query: ChangesQuery, headers: &HeaderMap) -> Result<(Followed, Form), ApiError> {
    let (model, variant) = check_names(&query.model, query.variant.as_deref(), ApiError::query)?;
    let actions = query.filter.as_deref().map(parse_filter).transpose()?.unwrap_or_default();
    let last_event = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().to_owned());
    let cursor = last_event.or(query.cursor);
    check_cursor_text(cursor.as_deref())?;
    let wait = query.wait.as_deref().map(parse_wait).transpose()?;
    let limit = query.limit.as_deref();
    let accepted =
        headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let form = if accepts(accepted, "text/event-stream")
        || (wait.is_none() && !accepts(accepted, "application/json"))
    {
        for (name, is_given) in [("wait", wait.is_some()), ("limit", limit.is_some())] {
            if is_given {
                let message = "applies to JSON pages only; remove it, or send `Accept: application/json`";
                return Err(ApiError::query("unrecognized_keys", &[name], message));
            }
        }
        Form::Events
    } else {
        let limit = parse_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
        Form::Page { wait: wait.unwrap_or(DEFAULT_WAIT), limit }
    };
    Ok((Followed { model, variant, actions, cursor }, form))
}

fn accepts(accepted: &str, wanted: &str) -> bool {
    accepted.split(',').any(|range| {
        range.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(wanted))
    })
}

fn parse_wait(text: &str) -> Result<Duration, ApiError> {
    match text.parse() {
        Ok(seconds) if seconds <= MAX_WAIT_SECONDS => Ok(Duration::from_secs(seconds)),
        _ => {
            let message =
                format!("must be a whole number of seconds from 0 to {MAX_WAIT_SECONDS} (got `{text}`)");
            Err(ApiError::query("invalid_value", &["wait"], message))
        }
    }
}

/// Returns one page as soon as it has a record, or when the wait is over.
async fn page(mut reader: Reader, wait: Duration, limit: i64) -> Result<Response, ApiError> {
    let limit = PageLimit { rows: limit, bytes: usize::MAX };
    let next = reader.next(limit, Instant::now() + wait).await?;
    let mut writer = PageWriter::new(&reader.app.record_metadata_key);
    if let Next::Records(stream, records) = next {
        for record in &records {
            writer.push(stream, record);
        }
    }
    Ok(writer.finish(reader.stream.map(|stream| (stream, reader.after))))
}

/// An event stream. It ends when the host stops, the key is revoked or the connection is deleted; a client that
/// reconnects gets an error that names the reason.
struct Events {
    reader: Reader,
    pending: VecDeque<Event>,
    /// Position of the last event that was sent with an id.
    sent: i64,
    is_caught_up: bool,
    /// Number of records of the next read, computed from the size of the previous records.
    records_at_once: i64,
}

impl Events {
    fn of(reader: Reader) -> impl Stream<Item = Result<Event, Infallible>> + Send {
        let events = Self {
            sent: reader.after,
            reader,
            pending: VecDeque::new(),
            is_caught_up: false,
            records_at_once: FIRST_RECORDS,
        };
        stream::unfold(events, async |mut events| events.next().await.map(|event| (Ok(event), events)))
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            // The first read that finds nothing is reported at once.
            let max_wait = if self.is_caught_up { HEARTBEAT_EVERY } else { Duration::ZERO };
            let limit = PageLimit { rows: self.records_at_once, bytes: MAX_BYTES_AT_ONCE };
            match self.reader.next(limit, Instant::now() + max_wait).await {
                Ok(Next::Records(stream, records)) => self.take(stream, &records),
                Ok(Next::Nothing) => return Some(self.quiet_event()),
                Ok(Next::Stopped) => return None,
                Err(error) => {
                    // Logs internal errors. The stream has begun, so the client cannot get an error response.
                    let _logged = error.into_client_error();
                    return None;
                }
            }
        }
    }

    fn take(&mut self, stream: StreamKey, records: &[StoredRecord]) {
        let mut json = RecordJson::new(&self.reader.app.record_metadata_key);
        let mut bytes = 0;
        for record in records {
            let mut data = Vec::with_capacity(1 << 10);
            json.write(stream, record, &mut data);
            // JSON contains line breaks only between tokens, where a space is equivalent. The data must be a single line.
            data.iter_mut().filter(|byte| matches!(**byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
            let data = String::from_utf8(data).expect("payloads and metadata are UTF-8");
            bytes += data.len();
            let id = cursor::to_text(stream, record.position);
            self.pending.push_back(Event::default().id(id).data(data));
            self.sent = record.position;
        }
        let fitting = BYTES_AT_ONCE * records.len() / bytes.max(1);
        self.records_at_once = i64::try_from(fitting).unwrap_or(MAX_RECORDS).clamp(1, MAX_RECORDS);
    }

    /// Returns the event for a read without records: `caught-up` the first time, and again when the position moved
    /// past records that the filter hides, so that a reconnecting client skips them. Otherwise a comment.
    fn quiet_event(&mut self) -> Event {
        if self.is_caught_up && self.sent == self.reader.after {
            return Event::default().comment("no changes");
        }
        self.is_caught_up = true;
        self.sent = self.reader.after;
        let cursor = self.reader.stream.map(|stream| cursor::to_text(stream, self.reader.after));
        let event = Event::default().event("caught-up").data(json!({ "cursor": cursor }).to_string());
        match cursor {
            Some(cursor) => event.id(cursor),
            None => event,
        }
    }
}

/// The result of waiting for changes.
enum Next {
    Records(StreamKey, Vec<StoredRecord>),
    /// No records until the deadline.
    Nothing,
    /// The host is stopping.
    Stopped,
}

/// A position in a stream, with the client that reads it.
struct Reader {
    app: App,
    client: Arc<Client>,
    target: ConnectionHeaders,
    connection: Arc<ConnectionRoute>,
    followed: Followed,
    /// `None` until the first record is saved.
    stream: Option<StreamKey>,
    after: i64,
    changes: FollowedConnection,
    revocations: watch::Receiver<()>,
}

impl Reader {
    async fn open(
        app: App,
        client: Arc<Client>,
        target: ConnectionHeaders,
        followed: Followed,
    ) -> Result<Self, ApiError> {
        let connection = app.find_connection(&client, &target).await?;
        let revocations = app.authenticator.subscribe();
        // Subscribed before the first read, so that no change between the two is missed.
        let changes = app.record_changes.follow(connection.pk).ok_or(ApiError::TooManyReaders)?;
        let stream = app.records.find_stream(&connection, &followed.model, &followed.variant).await?;
        let after = cursor::start(followed.cursor.as_deref(), stream).map_err(RecordsError::Cursor)?;
        Ok(Self { app, client, target, connection, followed, stream, after, changes, revocations })
    }

    /// Waits for the next records until the deadline `until`. Reads at least once.
    async fn next(&mut self, limit: PageLimit, until: Instant) -> Result<Next, ApiError> {
        loop {
            self.check_again().await?;
            if let Some(stream) = self.stream().await? {
                let records = self.read(stream, limit).await?;
                if !records.is_empty() {
                    return Ok(Next::Records(stream, records));
                }
            }
            tokio::select! {
                () = self.app.stopping.cancelled() => return Ok(Next::Stopped),
                () = tokio::time::sleep_until(until) => return Ok(Next::Nothing),
                () = self.changes.woken() => {}
                // The sender lives as long as the host, so this never fails.
                _ = self.revocations.changed() => {}
            }
        }
    }

    /// Fails if the key was revoked or the connection deleted.
    async fn check_again(&mut self) -> Result<(), ApiError> {
        self.client = self.app.authenticator.authenticate_again(&self.client).await?;
        let connection = self.app.find_connection(&self.client, &self.target).await?;
        if connection.pk == self.connection.pk {
            return Ok(());
        }
        // The connection was deleted and created again. The cursors of this reader are not valid for the new one.
        let (integration, connection) = (self.target.integration.clone(), self.target.connection.clone());
        Err(LookupError::UnknownConnection { integration, connection }.into())
    }

    async fn stream(&mut self) -> Result<Option<StreamKey>, ApiError> {
        if self.stream.is_none() {
            let Followed { model, variant, .. } = &self.followed;
            self.stream = self.app.records.find_stream(&self.connection, model, variant).await?;
        }
        Ok(self.stream)
    }

    /// Reads the next records and advances the position. When no records remain, the position also moves past those
    /// that the filter hides.
    async fn read(&mut self, stream: StreamKey, limit: PageLimit) -> Result<Vec<StoredRecord>, ApiError> {
        let environment = self.client.environment.pk;
        let actions = self.followed.actions;
        let page = self.app.records.read_changes(environment, stream, self.after, actions, limit).await?;
        self.after = page.position;
        Ok(page.records)
    }
}
