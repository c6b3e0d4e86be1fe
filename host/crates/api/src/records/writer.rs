//! Writes records as JSON. Payloads are copied as they are stored and never parsed.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};

use super::super::time::iso;
use syncline_engine::{Content, LastAction, StoredRecord, StreamKey, cursor};
use syncline_model::records::splice_metadata;

/// Writes a page of records.
pub struct PageWriter<'a> {
    records: RecordJson<'a>,
    body: Vec<u8>,
}

impl<'a> PageWriter<'a> {
    pub fn new(metadata_key: &'a str) -> Self {
        let mut body = Vec::with_capacity(16 << 10);
        body.extend_from_slice(b"{\"records\":[");
        Self { records: RecordJson::new(metadata_key), body }
    }

    pub fn push(&mut self, stream: StreamKey, record: &StoredRecord) {
        if !self.body.ends_with(b"[") {
            self.body.push(b',');
        }
        self.records.write(stream, record, &mut self.body);
    }

    /// Ends the page. `next` is the position of the next page.
    pub fn finish(mut self, next: Option<(StreamKey, i64)>) -> Response {
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        self.body.extend_from_slice(b"],\"next_cursor\":");
        match next {
            None => self.body.extend_from_slice(b"null"),
            Some((stream, position)) => {
                self.body.push(b'"');
                cursor::encode(stream, position, &mut self.body);
                self.body.push(b'"');
            }
        }
        self.body.push(b'}');
        ([(header::CONTENT_TYPE, JSON)], Body::from(self.body)).into_response()
    }
}

/// Writes single records.
pub struct RecordJson<'a> {
    metadata_key: &'a str,
    metadata: String,
    times: TimeText,
}

impl<'a> RecordJson<'a> {
    pub fn new(metadata_key: &'a str) -> Self {
        Self { metadata_key, metadata: String::with_capacity(256), times: TimeText::default() }
    }

    /// Appends a record with its metadata.
    pub fn write(&mut self, stream: StreamKey, record: &StoredRecord, out: &mut Vec<u8>) {
        let metadata = &mut self.metadata;
        metadata.clear();
        metadata.push_str("{\"first_seen_at\":");
        self.times.write(Some(record.first_seen_at), metadata);
        metadata.push_str(",\"last_modified_at\":");
        self.times.write(Some(record.last_modified_at), metadata);
        metadata.push_str(match record.last_action {
            LastAction::Added => ",\"last_action\":\"ADDED\",\"deleted_at\":",
            LastAction::Updated => ",\"last_action\":\"UPDATED\",\"deleted_at\":",
            LastAction::Deleted => ",\"last_action\":\"DELETED\",\"deleted_at\":",
        });
        self.times.write(record.deleted_at, metadata);
        metadata.push_str(",\"pruned_at\":");
        self.times.write(record.pruned_at, metadata);
        metadata.push_str(",\"cursor\":\"");
        let mut bytes = std::mem::take(metadata).into_bytes();
        cursor::encode(stream, record.position, &mut bytes);
        bytes.extend_from_slice(b"\"}");
        *metadata = String::from_utf8(bytes).expect("a cursor is ASCII");
        match &record.content {
            Content::Payload(payload) => {
                splice_metadata(payload, self.metadata_key, metadata, out);
            }
            Content::Pruned { external_id } => {
                let id = serde_json::json!({ "id": external_id }).to_string();
                splice_metadata(&id, self.metadata_key, metadata, out);
            }
        }
    }
}

/// Writes times and caches the last text, because the records of a batch have the same times.
#[derive(Default)]
struct TimeText {
    last: Option<(DateTime<Utc>, String)>,
}

impl TimeText {
    fn write(&mut self, time: Option<DateTime<Utc>>, out: &mut String) {
        let Some(time) = time else {
            out.push_str("null");
            return;
        };
        let text = match &self.last {
            Some((last, text)) if *last == time => text,
            _ => {
                let text = format!("\"{}\"", iso(time));
                &self.last.insert((time, text)).1
            }
        };
        out.push_str(text);
    }
}
