//! Clients that follow cursors all the time, through any host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::seq::IndexedRandom;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::site::Member;
use crate::support::{Api, Connection, METADATA_KEY, Page, cursor_of, query, text};

/// The hosts that can currently receive requests.
#[derive(Clone, Default)]
pub struct LiveHosts(Arc<Mutex<Vec<Api>>>);

impl LiveHosts {
    pub fn set(&self, hosts: &[Member]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            hosts.iter().map(|host| Api::clone(&**host)).collect();
    }

    pub fn any(&self) -> Option<Api> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).choose(&mut rand::rng()).cloned()
    }
}

/// What a reader that follows cursors has seen of a stream.
#[derive(Debug, Default)]
pub struct Progress {
    cursor: Option<String>,
    pub position: i64,
    /// The last state of each record: its content without metadata, or `None` if it was deleted.
    records: BTreeMap<String, Option<Value>>,
    /// How often each content was read.
    pub contents: BTreeMap<String, u32>,
}

impl Progress {
    fn read(&mut self, page: &Page) {
        for record in &page.records {
            let cursor = cursor_of(record);
            let position = position_of(cursor);
            assert!(position > self.position, "positions grow: {position} after {}", self.position);
            self.position = position;
            self.cursor = Some(cursor.to_owned());
            let mut content = record.clone();
            let metadata = content.as_object_mut().and_then(|members| members.remove(METADATA_KEY));
            let is_deleted = metadata.expect("the record has metadata")["deleted_at"].is_string();
            let id = text(&record["id"]).to_owned();
            if !is_deleted {
                *self.contents.entry(content.to_string()).or_default() += 1;
            }
            self.records.insert(id, (!is_deleted).then_some(content));
        }
    }

    pub fn live(&self) -> BTreeMap<&str, &Value> {
        self.records.iter().filter_map(|(id, content)| Some((id.as_str(), content.as_ref()?))).collect()
    }
}

/// The position in a cursor. Cursors are opaque to clients; this test checks that positions grow.
pub fn position_of(cursor: &str) -> i64 {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).expect("a cursor is base64");
    i64::from_be_bytes(bytes[13..21].try_into().expect("eight bytes"))
}

pub type Follower = Arc<Mutex<Progress>>;

/// Follows a stream through any live host until it is stopped.
pub async fn follow(
    live_hosts: LiveHosts,
    connection: Connection,
    model: &'static str,
    progress: Follower,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let Some(api) = live_hosts.any() else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let cursor = progress.lock().unwrap_or_else(PoisonError::into_inner).cursor.clone();
        let mut parameters = vec![("model", model), ("limit", "10")];
        parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let request =
            connection.through(&api).request("GET", &format!("/records?{}", query(&parameters))).try_send();
        // A frozen host responds much later, or never.
        if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(2), request).await
            && answer.status == 200
        {
            let page = Page::read(&answer);
            let is_end = page.next_cursor.is_none();
            progress.lock().unwrap_or_else(PoisonError::into_inner).read(&page);
            if !is_end {
                continue;
            }
        }
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}
