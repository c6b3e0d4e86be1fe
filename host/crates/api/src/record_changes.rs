//! `GET /records/changes`: records as they change, as a stream of events or by waiting for the next page.
//!
//! A reader's place is in its cursor alone, so it may go on at any host. Between looks it waits without a database
//! connection; what it has not taken yet is one page at most.

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
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiQuery, ConnectionHeaders, EnvironmentAuth};
use super::records::writer::{PageWriter, RecordJson};
use super::records::{
    DEFAULT_LIMIT, MAX_LIMIT, RecordsPage, check_cursor_text, check_names, parse_filter, parse_limit,
};
use syncline_auth::{Client, rights};
use syncline_engine::{
    ActionSet, ConnectionRoute, FollowedConnection, LookupError, RecordsError, StoredRecord, StreamKey,
    cursor,
};
use syncline_types::ids::{ModelName, Variant};

/// About what a stream of events reads at once, and a reader that does not go on holds in memory.
const BYTES_AT_ONCE: usize = 256 << 10;
/// So many records are read first, when nobody knows how long they are.
const FIRST_RECORDS: i64 = 4;
const MAX_RECORDS: i64 = 100;
/// Proxies take a connection for dead on which nothing comes.
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

/// What a reader follows.
struct Followed {
    model: ModelName,
    variant: Variant,
    actions: ActionSet,
    cursor: Option<String>,
}

/// How a reader takes it.
enum Form {
    Events,
    Page { wait: Duration, limit: i64 },
}

/// `GET /records/changes`: records of one model as they change, from a cursor on.
#[utoipa::path(
    get, path = "/records/changes", tag = "Records",
    params(
        ("Connection-Id" = String, Header, description = "The connection"),
        ("Provider-Config-Key" = String, Header, description = "The integration's unique key"),
        ("Last-Event-ID" = Option<String>, Header, description = "The cursor of the last event that was seen; stands above `cursor`"),
        ("model" = String, Query, description = "Name of the model"),
        ("variant" = Option<String>, Query, description = "Sync variant; left out for the base variant"),
        ("filter" = Option<String>, Query, description = "Any of added, updated, deleted, separated by commas"),
        ("cursor" = Option<String>, Query, description = "Where to begin: a next_cursor or a record's own; left out, at the first record"),
        ("wait" = Option<u64>, Query, description = "Asks for one page as JSON, for which the host waits this many seconds at most: 0 to 60"),
        ("limit" = Option<i64>, Query, description = "Records of such a page: default 100, maximum 500"),
    ),
    responses(
        (
            status = 200,
            description = "Events whose data is a record and whose id is its cursor; with `wait` or `Accept: application/json` a page, whose `next_cursor` is where to go on",
            content((String = "text/event-stream"), (RecordsPage = "application/json")),
        ),
        (status = 429, description = "As many readers follow records on this host as may", body = ErrorBody),
        (status = "4XX", body = ErrorBody),
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
    let limit = query.limit.as_deref().map(parse_limit).transpose()?;
    let accepted =
        headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let form = if accepts(accepted, "text/event-stream")
        || (wait.is_none() && !accepts(accepted, "application/json"))
    {
        for (name, is_given) in [("wait", wait.is_some()), ("limit", limit.is_some())] {
            if is_given {
                let message = "is for pages of JSON; leave it out, or ask with `Accept: application/json`";
                return Err(ApiError::query("unrecognized_keys", &[name], message));
            }
        }
        Form::Events
    } else {
        let limit = limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
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
                format!("is `{text}`; it must be a whole number of seconds from 0 to {MAX_WAIT_SECONDS}");
            Err(ApiError::query("invalid_value", &["wait"], message))
        }
    }
}

/// One page, as soon as there is something on it or the wait is over.
async fn page(mut reader: Reader, wait: Duration, limit: i64) -> Result<Response, ApiError> {
    let next = reader.next(limit, Instant::now() + wait).await?;
    let mut writer = PageWriter::new(&reader.app.record_metadata_key);
    if let Next::Records(stream, records) = next {
        for record in &records {
            writer.push(stream, record);
        }
    }
    Ok(writer.finish(reader.stream.map(|stream| (stream, reader.after))))
}

/// Events until the host stops, the key is revoked or the connection deleted: whoever connects again is told why.
struct Events {
    reader: Reader,
    pending: VecDeque<Event>,
    /// The place that the last event with an id told of.
    told: i64,
    is_caught_up: bool,
    /// Of such a length as they had last, so many are read next.
    records_at_once: i64,
}

impl Events {
    fn of(reader: Reader) -> impl Stream<Item = Result<Event, Infallible>> + Send {
        let events = Self {
            told: reader.after,
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
            // The first look that finds nothing is told at once.
            let patience = if self.is_caught_up { HEARTBEAT_EVERY } else { Duration::ZERO };
            match self.reader.next(self.records_at_once, Instant::now() + patience).await {
                Ok(Next::Records(stream, records)) => self.take(stream, &records),
                Ok(Next::Nothing) => return Some(self.quiet_event()),
                Ok(Next::Stopped) => return None,
                Err(error) => {
                    // What is our fault is logged there; nobody is left to hear it.
                    let _told = error.into_client_error();
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
            // Between tokens, the only place where JSON has them, a space says the same, and a record stays on a line.
            data.iter_mut().filter(|byte| matches!(**byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
            let data = String::from_utf8(data).expect("payloads are text, and so is what is added");
            bytes += data.len();
            let id = cursor::to_text(stream, record.position);
            self.pending.push_back(Event::default().id(id).data(data));
            self.told = record.position;
        }
        let fitting = BYTES_AT_ONCE * records.len() / bytes.max(1);
        self.records_at_once = i64::try_from(fitting).unwrap_or(MAX_RECORDS).clamp(1, MAX_RECORDS);
    }

    /// Says that nothing is left; again when a filter has hidden what came since, so that it need not be read again.
    fn quiet_event(&mut self) -> Event {
        if self.is_caught_up && self.told == self.reader.after {
            return Event::default().comment("nothing new");
        }
        self.is_caught_up = true;
        self.told = self.reader.after;
        let cursor = self.reader.stream.map(|stream| cursor::to_text(stream, self.reader.after));
        let event = Event::default().event("caught-up").data(json!({ "cursor": cursor }).to_string());
        match cursor {
            Some(cursor) => event.id(cursor),
            None => event,
        }
    }
}

/// What a look has found.
enum Next {
    Records(StreamKey, Vec<StoredRecord>),
    /// Nothing, for as long as there was patience.
    Nothing,
    /// The host stops.
    Stopped,
}

/// A place in a stream, and who reads there.
struct Reader {
    app: App,
    client: Arc<Client>,
    target: ConnectionHeaders,
    connection: Arc<ConnectionRoute>,
    followed: Followed,
    /// None until something was saved.
    stream: Option<StreamKey>,
    after: i64,
    ear: FollowedConnection,
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
        // What is written from here on wakes it; what was written before is found by its first look.
        let ear = app.record_changes.follow(connection.pk).ok_or(ApiError::TooManyReaders)?;
        let stream = app.records.find_stream(&connection, &followed.model, &followed.variant).await?;
        let after = cursor::start(followed.cursor.as_deref(), stream).map_err(RecordsError::Cursor)?;
        Ok(Self { app, client, target, connection, followed, stream, after, ear, revocations })
    }

    /// The next records, at the latest by `until`, but not without having looked.
    async fn next(&mut self, limit: i64, until: Instant) -> Result<Next, ApiError> {
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
                () = self.ear.woken() => {}
                // The sender is there for as long as the host.
                _ = self.revocations.changed() => {}
            }
        }
    }

    /// Whether the key still is one, and the connection still there.
    async fn check_again(&mut self) -> Result<(), ApiError> {
        self.client = self.app.authenticator.authenticate_again(&self.client).await?;
        let connection = self.app.find_connection(&self.client, &self.target).await?;
        if connection.pk == self.connection.pk {
            return Ok(());
        }
        // Another one has its name now, of which the reader's cursors say nothing.
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

    /// The next records, and the place behind them: where nothing is left, behind what the filter hides as well.
    async fn read(&mut self, stream: StreamKey, limit: i64) -> Result<Vec<StoredRecord>, ApiError> {
        let environment = self.client.environment.pk;
        let actions = self.followed.actions;
        let page = self.app.records.read_changes(environment, stream, self.after, actions, limit).await?;
        self.after = page.position;
        Ok(page.records)
    }
}
