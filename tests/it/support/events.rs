//! Readers that follow records: a published client of server-sent events, and one that checks every byte.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::{Api, Connection, METADATA_KEY, SECRET_KEY, query, repository, text};

const PATIENCE: Duration = Duration::from_secs(30);

/// A published client that runs in its own process.
pub struct Follower {
    child: Child,
    events: mpsc::UnboundedReceiver<Value>,
}

impl Follower {
    /// Follows the model `Item` of a connection at a host.
    pub fn start(api: &Api, connection: &Connection) -> Self {
        let mut child = Command::new("node")
            .arg("follow_records.mjs")
            .current_dir(repository("tests/node"))
            .env("FOLLOW_URL", format!("{}/records/changes?model=Item", api.base_url()))
            .env("FOLLOW_KEY", SECRET_KEY)
            .env("FOLLOW_CONNECTION", &connection.id)
            .env("FOLLOW_INTEGRATION", &connection.integration)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Node.js is not installed; `scripts/setup` says how to get it");
        let lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
        let (sender, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).expect("the script prints JSON");
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Self { child, events }
    }

    /// Makes the client use another host the next time it connects.
    pub fn move_to(&mut self, api: &Api) {
        let input = self.child.stdin.as_mut().expect("standard input is piped");
        writeln!(input, "{}", api.base_url()).expect("the process reads its input");
    }

    /// The next event.
    pub async fn next(&mut self) -> Value {
        let next = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        next.expect("an event arrives within 30 seconds").expect("the client is running")
    }

    /// The next event of a type. Skips other events, but fails on a record.
    pub async fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next().await;
            if event["type"] == kind {
                return event;
            }
            assert_ne!(event["type"], "message", "before `{kind}` came {event}");
        }
    }

    /// Expects records with these ids in this order. Returns when each arrived, in milliseconds since 1970.
    pub async fn expect_records(&mut self, ids: &[&str]) -> Vec<i64> {
        let mut times = Vec::new();
        for id in ids {
            let event = loop {
                let event = self.next().await;
                if event["type"] == "message" {
                    break event;
                }
            };
            assert_eq!(text(&event["data"]["id"]), *id);
            assert_eq!(
                event["id"], event["data"][METADATA_KEY]["cursor"],
                "an event's id is its record's cursor"
            );
            times.push(event["at"].as_i64().expect("a time"));
        }
        times
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _was_waited_for = self.child.wait();
    }
}

/// A stream of events, read block by block.
pub struct EventStream {
    response: reqwest::Response,
    read: String,
}

impl EventStream {
    /// Opens a stream with these parameters, which must succeed.
    pub async fn open(connection: &Connection, parameters: &[(&str, &str)]) -> Self {
        let path = format!("/records/changes?{}", query(parameters));
        let (name, response) = connection.request("GET", &path).open().await;
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{name}");
        Self { response, read: String::new() }
    }

    /// The next block of lines, or `None` after the regular end of the stream.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.read.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.read = rest;
                return Some(block);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk =
                chunk.expect("data arrives within 30 seconds").expect("the stream is not interrupted");
            self.read += &String::from_utf8_lossy(&chunk?);
        }
    }

    /// Reads until the reader has caught up. Returns the ids of the records before that.
    pub async fn catch_up(&mut self) -> Vec<String> {
        let mut ids = Vec::new();
        loop {
            let block = self.next().await.expect("the stream continues");
            if block.starts_with("event: caught-up") {
                return ids;
            }
            ids.extend(record_of(&block).map(|record| text(&record["id"]).to_owned()));
        }
    }

    /// The next record.
    pub async fn next_record(&mut self) -> Value {
        loop {
            let block = self.next().await.expect("the stream continues");
            if let Some(record) = record_of(&block) {
                return record;
            }
        }
    }

    /// Reads to the end of the stream, and fails on a record.
    pub async fn wait_for_end(mut self) {
        while let Some(block) = self.next().await {
            assert!(record_of(&block).is_none(), "before the end came {block}");
        }
    }
}

fn record_of(block: &str) -> Option<Value> {
    let (_, data) = block.strip_prefix("id: ")?.split_once("\ndata: ")?;
    Some(serde_json::from_str(data).expect("the data of a record is a line of JSON"))
}
