//! Random writers and readers against a host: no reader misses a record or reads one twice.
//!
//! The test prints its seed, and `SYNCLINE_TEST_SEED` repeats it. The interleaving of writers can differ, but each
//! writer makes the same commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::support::{Bundle, Connection, METADATA_KEY, Page, Stage, cursor_of, query, text};

const ROUNDS: usize = 25;
/// Every writer has its own ids, and all writers share some.
const OWN_IDS: usize = 12;
const SHARED_IDS: usize = 6;

/// The expected state of a record, known to its only writer.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    payload: Value,
    action: &'static str,
}

#[derive(Default)]
struct Model(BTreeMap<String, Known>);

impl Model {
    fn save(&mut self, item: &Value) {
        let id = text(&item["id"]).to_owned();
        match self.0.get_mut(&id) {
            None => {
                self.0.insert(id, Known { payload: item.clone(), action: "ADDED" });
            }
            Some(known) if known.action == "DELETED" => {
                *known = Known { payload: item.clone(), action: "ADDED" }
            }
            Some(known) if known.payload != *item => {
                *known = Known { payload: item.clone(), action: "UPDATED" }
            }
            Some(_) => {}
        }
    }

    fn delete(&mut self, id: &str) {
        if let Some(known) = self.0.get_mut(id) {
            known.action = "DELETED";
        }
    }
}

/// A model and a variant.
type Stream = (&'static str, &'static str);

const BASE: Stream = ("Item", "base");
const EXTRA: Stream = ("Item", "extra");
/// The stream of the sync's own variant.
const OWN: Stream = ("Item", "own");
/// The stream of another sync.
const OTHER: Stream = ("Other", "base");
const STREAMS: [Stream; 4] = [BASE, EXTRA, OWN, OTHER];

/// How a writer commits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CommitMethod {
    /// A run of this sync, which reads the commits from this key of the connection's metadata.
    Sync(&'static str, &'static str),
    Action,
}

struct Writer {
    name: String,
    method: CommitMethod,
    stream: Stream,
    rng: StdRng,
    model: Model,
}

impl Writer {
    /// A random commit in the guest's format.
    fn commit(&mut self) -> Value {
        let (model, variant) = self.stream;
        let mut changes = Vec::new();
        for _ in 0..self.rng.random_range(1..=2) {
            let ids: Vec<String> = (0..self.rng.random_range(1..6)).map(|_| self.id()).collect();
            let named = |mut change: Value| {
                if self.method == CommitMethod::Action {
                    change["variant"] = json!(variant);
                }
                change
            };
            if self.rng.random_bool(0.25) {
                ids.iter().for_each(|id| self.model.delete(id));
                changes.push(json!({ "delete": named(json!({ "model": model, "ids": ids })) }));
            } else {
                let mut items: BTreeMap<&str, Value> = BTreeMap::new();
                for id in &ids {
                    items.insert(id, json!({ "id": id, "count": self.rng.random_range(0..4) }));
                }
                let items: Vec<Value> = items.into_values().collect();
                items.iter().for_each(|item| self.model.save(item));
                let items = json!(items).to_string();
                changes.push(json!({ "save": named(json!({ "model": model, "items": items })) }));
            }
        }
        json!({ "changes": changes })
    }

    fn id(&mut self) -> String {
        if self.rng.random_bool(0.2) {
            format!("shared-{}", self.rng.random_range(0..SHARED_IDS))
        } else {
            format!("{}-{}", self.name, self.rng.random_range(0..OWN_IDS))
        }
    }

    async fn write(mut self, connection: &Connection) -> Self {
        match self.method {
            CommitMethod::Action => {
                for _ in 0..ROUNDS {
                    let commit = self.commit();
                    connection.action("change-raw", &commit).await.expect(200);
                }
            }
            CommitMethod::Sync(sync, key) => {
                for _ in 0..ROUNDS / 5 {
                    let commits: Vec<Value> = (0..5).map(|_| self.commit()).collect();
                    connection.merge_metadata(json!({ key: commits })).await;
                    let status = connection.run(sync).await;
                    assert_eq!(status["status"], "SUCCESS", "{status}");
                }
            }
        }
        self
    }
}

/// How a reader reads, and what it has seen.
struct Reader {
    stream: Stream,
    filter: Option<String>,
    limit: usize,
    uses_changes: bool,
    /// The record after which it started, unless it started at the beginning.
    started_after: Option<Value>,
    cursor: Option<String>,
    modified_after: Option<String>,
    seen: Vec<Value>,
}

impl Reader {
    fn random(rng: &mut StdRng, known: &[Value]) -> Self {
        let words: Vec<&str> =
            ["added", "updated", "deleted"].into_iter().filter(|_| rng.random_bool(0.6)).collect();
        let started_after = known.choose(rng).filter(|_| rng.random_bool(0.5)).cloned();
        Self {
            stream: if rng.random_bool(0.5) {
                BASE
            } else {
                *STREAMS[1..].choose(rng).expect("there are some")
            },
            filter: (!words.is_empty() && rng.random_bool(0.6)).then(|| words.join(",")),
            limit: *[1, 3, 10, 100].choose(rng).expect("there are some"),
            uses_changes: rng.random_bool(0.4),
            cursor: None,
            modified_after: None,
            started_after,
            seen: Vec::new(),
        }
        .with_start(rng)
    }

    fn with_start(mut self, rng: &mut StdRng) -> Self {
        // The known records are of the base stream.
        if self.stream != BASE {
            self.started_after = None;
        }
        if let Some(record) = &self.started_after {
            if self.uses_changes || rng.random_bool(0.5) {
                self.cursor = Some(cursor_of(record).to_owned());
            } else {
                self.modified_after = Some(text(&record[METADATA_KEY]["last_modified_at"]).to_owned());
            }
        }
        self
    }

    /// Reads until the writers have finished and nothing is left.
    async fn read(mut self, connection: &Connection, writers_ended: &AtomicBool) -> Self {
        loop {
            // Checked before reading the page: everything written until then is on it.
            let ended = writers_ended.load(Ordering::SeqCst);
            let limit = self.limit.to_string();
            let (model, variant) = self.stream;
            let mut parameters = vec![("model", model), ("variant", variant), ("limit", &limit)];
            parameters.extend(self.filter.as_deref().map(|filter| ("filter", filter)));
            parameters.extend(self.cursor.as_deref().map(|cursor| ("cursor", cursor)));
            parameters.extend(self.modified_after.as_deref().map(|time| ("modified_after", time)));
            let path = if self.uses_changes {
                parameters.push(("wait", if ended { "0" } else { "1" }));
                "/records/changes"
            } else {
                "/records"
            };
            let answer = connection.request("GET", &format!("{path}?{}", query(&parameters))).send().await;
            let page = Page::read(&answer.expect(200));
            let is_empty = page.records.is_empty();
            let last = page.records.last().map(|record| cursor_of(record).to_owned());
            let next = if self.uses_changes { page.next_cursor } else { last };
            self.cursor = next.or(self.cursor);
            self.seen.extend(page.records);
            if is_empty && ended {
                return self;
            }
            if is_empty && !self.uses_changes {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }

    fn check(&self, final_records: &[Value], who: &str) {
        let metadata = |record: &Value| record[METADATA_KEY].clone();
        let times: Vec<String> =
            self.seen.iter().map(|record| text(&metadata(record)["last_modified_at"]).to_owned()).collect();
        assert!(times.is_sorted(), "{who} reads in the order of changes: {times:?}");
        let mut cursors: Vec<&str> = self.seen.iter().map(cursor_of).collect();
        cursors.sort_unstable();
        let count = cursors.len();
        cursors.dedup();
        assert_eq!(cursors.len(), count, "{who} received an unchanged record twice");

        let last_seen: BTreeMap<&str, &Value> =
            self.seen.iter().map(|record| (text(&record["id"]), record)).collect();
        let wants = |record: &Value| {
            let action = text(&metadata(record)["last_action"]).to_lowercase();
            self.filter.as_ref().is_none_or(|filter| filter.split(',').any(|word| word == action))
        };
        let begin =
            self.started_after.as_ref().map(|record| text(&metadata(record)["last_modified_at"]).to_owned());
        for record in final_records.iter().filter(|record| wants(record)) {
            let metadata = metadata(record);
            if begin.as_deref().is_some_and(|begin| text(&metadata["last_modified_at"]) <= begin) {
                continue;
            }
            let id = text(&record["id"]);
            let seen = last_seen.get(id).unwrap_or_else(|| panic!("{who} missed {record}"));
            assert_eq!(
                cursor_of(seen),
                cursor_of(record),
                "{who} missed the last state of {record}: saw {seen}"
            );
            assert_eq!(seen[METADATA_KEY]["last_action"], metadata["last_action"], "{who}: {record}");
            if metadata["pruned_at"].is_null() {
                assert_eq!(**seen, *record, "{who}");
            }
        }
    }
}

/// Prunes random payloads while readers read.
async fn prune_repeatedly(connection: &Connection, mut rng: StdRng, ended: &AtomicBool) {
    while !ended.load(Ordering::SeqCst) {
        let page = connection.page(&[("model", "Item"), ("limit", "50")]).await;
        if let Some(record) = page.records.choose(&mut rng) {
            let body = json!({ "model": "Item", "until_cursor": cursor_of(record), "limit": 3 });
            connection.prune(&body).await.expect(200);
        }
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reader_ends_with_the_last_state_of_every_record() {
    let seed = std::env::var("SYNCLINE_TEST_SEED").ok().map(|text| text.parse().expect("a seed is a number"));
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random());
    eprintln!("SYNCLINE_TEST_SEED={seed}");
    let rng = &mut StdRng::seed_from_u64(seed);

    let table = "[integrations.hostile.syncs.steps]";
    let other = "[integrations.hostile.syncs.commit-other]\nruns = \"every 1 hour\"\nmodel = \"Other\"\n";
    let bundle = Bundle::guest("hostile")
        .replace("[models.Step]", "[models.Other]\nid = \"string\"\ncount = \"integer\"\n\n[models.Step]")
        .replace(table, &format!("{other}\n{table}"));
    let stage = Arc::new(Stage::of(&bundle, json!({ "steps": 0 })).await);
    let body = json!({ "provider_config_key": "hostile", "connection_id": stage.id });
    stage.host.post("/sync/commit-raw/variant/own", &body).await.expect(200);
    stage.wait_until_idle().await;
    let methods = [
        (CommitMethod::Sync("commit-raw", "commits-base"), BASE),
        (CommitMethod::Action, BASE),
        (CommitMethod::Action, BASE),
        (CommitMethod::Action, EXTRA),
        (CommitMethod::Sync("commit-raw::own", "commits-own"), OWN),
        (CommitMethod::Sync("commit-other", "commits-other"), OTHER),
    ];
    let ended = Arc::new(AtomicBool::new(false));
    let writers: Vec<Writer> = (0..)
        .zip(methods)
        .map(|(number, (method, stream))| Writer {
            name: format!("writer{number}"),
            method,
            stream,
            rng: StdRng::seed_from_u64(rng.random()),
            model: Model::default(),
        })
        .collect();

    let known = Arc::new(Mutex::new(Vec::new()));
    let mut reading = Vec::new();
    for number in 0..14 {
        let (stage, ended, known) = (Arc::clone(&stage), Arc::clone(&ended), Arc::clone(&known));
        let mut rng = StdRng::seed_from_u64(rng.random());
        reading.push(tokio::spawn(async move {
            // Some readers start later, from a record that exists by then.
            if number >= 6 {
                tokio::time::sleep(std::time::Duration::from_millis(rng.random_range(0..1500))).await;
                *known.lock().await = stage.all(&[("model", "Item")]).await;
            }
            let reader = Reader::random(&mut rng, &known.lock().await);
            reader.read(&stage, &ended).await
        }));
    }
    let pruning = tokio::spawn({
        let (stage, ended, rng) =
            (Arc::clone(&stage), Arc::clone(&ended), StdRng::seed_from_u64(rng.random()));
        async move { prune_repeatedly(&stage, rng, &ended).await }
    });
    let writers =
        futures_util::future::join_all(writers.into_iter().map(|writer| writer.write(&stage))).await;
    ended.store(true, Ordering::SeqCst);
    pruning.await.expect("pruning succeeds");

    let mut final_records = BTreeMap::new();
    for (model, variant) in STREAMS {
        final_records.insert((model, variant), stage.all(&[("model", model), ("variant", variant)]).await);
    }
    for writer in &writers {
        let final_records = &final_records[&writer.stream];
        for (id, known) in writer.model.0.iter().filter(|(id, _)| id.starts_with(&writer.name)) {
            let found = final_records.iter().find(|record| record["id"] == **id);
            let record = found.unwrap_or_else(|| panic!("`{id}` was saved, but does not exist"));
            assert_eq!(record[METADATA_KEY]["last_action"], known.action, "{record}");
            if record[METADATA_KEY]["pruned_at"].is_null() {
                assert_eq!(record["count"], known.payload["count"], "{record}");
            }
        }
    }
    let mut seen = 0;
    for (number, reader) in reading.into_iter().enumerate() {
        let reader = reader.await.expect("the reader finishes");
        let who = format!(
            "reader {number} (of {:?}, filter {:?}, limit {}, fed: {})",
            reader.stream, reader.filter, reader.limit, reader.uses_changes
        );
        reader.check(&final_records[&reader.stream], &who);
        seen += reader.seen.len();
    }
    let stored: Vec<usize> = final_records.values().map(Vec::len).collect();
    eprintln!("{stored:?} records at the end; 14 readers received {seen}");
}
