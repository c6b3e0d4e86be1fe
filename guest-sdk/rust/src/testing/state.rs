//! The state of the fake host.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::models::Models;
use super::{Commit, LogLine, Request};
use crate::bindings::syncline::integration::provider::Response;
use crate::bindings::syncline::integration::records::{Change, Counts};
use crate::bindings::syncline::integration::types::Failure;

pub struct State {
    /// The models of `syncline.toml`. Without them, nothing is validated.
    pub models: Option<Models>,
    pub answers: BTreeMap<String, VecDeque<Response>>,
    pub metadata: Value,
    pub credentials: Option<Value>,
    pub config: Value,
    pub variables: BTreeMap<String, String>,
    pub checkpoint: Option<Value>,
    pub records: BTreeMap<String, BTreeMap<String, Value>>,
    pub cancelled: bool,
    pub is_full: bool,
    pub progress: Option<(u64, Option<u64>)>,
    pub commits: Vec<Commit>,
    pub requests: Vec<Request>,
    pub log: Vec<LogLine>,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

impl State {
    pub fn install(models: Option<Models>) {
        let state = Self {
            models,
            answers: BTreeMap::new(),
            metadata: json!({}),
            credentials: None,
            config: json!({}),
            variables: BTreeMap::new(),
            checkpoint: None,
            records: BTreeMap::new(),
            cancelled: false,
            is_full: false,
            progress: None,
            commits: Vec::new(),
            requests: Vec::new(),
            log: Vec::new(),
        };
        let previous = STATE.replace(Some(state));
        assert!(previous.is_none(), "this thread already has a `syncline_sdk::testing::Host`; drop it first");
    }

    pub fn remove() {
        STATE.set(None);
    }

    /// # Panics
    /// If the thread has no host.
    pub fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        STATE.with_borrow_mut(|state| {
            work(
                state
                    .as_mut()
                    .expect("a function needs a host; create a `syncline_sdk::testing::Host` first"),
            )
        })
    }

    /// Fails if the function may not use the model.
    pub fn check_model(&self, model: &str) -> Result<(), Failure> {
        self.models.as_ref().map_or(Ok(()), |models| models.check_model(model))
    }

    /// # Panics
    /// If the record has no `id`, or does not match its model.
    pub fn keep(&mut self, model: &str, record: Value) {
        let id = id_of(&record).unwrap_or_else(|| panic!("a record of `{model}` has no `id`: {record}"));
        if let Some(models) = &self.models {
            let record = [(0, id.clone(), record.clone())];
            let checked = models.check_model(model).and_then(|()| models.check_records(model, &record));
            checked.unwrap_or_else(|failure| panic!("{}", failure.message));
        }
        self.records.entry(model.to_owned()).or_default().insert(id, record);
    }

    /// Like the real host, applies either all changes or none.
    pub fn commit(&mut self, changes: &[Change], checkpoint: Option<&str>) -> Result<Counts, Failure> {
        let mut records = self.records.clone();
        let mut commit = Commit { changes: Vec::new(), checkpoint: None };
        let mut counts = Counts { added: 0, updated: 0, deleted: 0, unchanged: 0 };
        for change in changes {
            let (model, changed) = match change {
                Change::Save(batch) | Change::Update(batch) => (&batch.model, objects(&batch.items)?),
                Change::Delete(deletion) => {
                    self.check_model(&deletion.model)?;
                    let kept = records.entry(deletion.model.clone()).or_default();
                    for id in &deletion.ids {
                        counts.deleted += u64::from(kept.remove(id).is_some());
                        commit.changes.push((deletion.model.clone(), id.clone(), None));
                    }
                    continue;
                }
            };
            self.check_model(model)?;
            let kept = records.entry(model.clone()).or_default();
            let mut saved = Vec::new();
            for (index, (id, mut record)) in changed.into_iter().enumerate() {
                if let Change::Update(_) = change {
                    let Some(mut merged) = kept.get(&id).cloned() else { continue };
                    merge(&mut merged, record);
                    record = merged;
                }
                saved.push((index, id.clone(), record.clone()));
                commit.changes.push((model.clone(), id.clone(), Some(record.clone())));
                match kept.insert(id, record.clone()) {
                    None => counts.added += 1,
                    Some(before) if before == record => counts.unchanged += 1,
                    Some(_) => counts.updated += 1,
                }
            }
            if let Some(models) = &self.models {
                models.check_records(model, &saved)?;
            }
        }
        if let Some(json) = checkpoint {
            let checkpoint: Value = serde_json::from_str(json)
                .ok()
                .filter(|checkpoint: &Value| checkpoint.is_object() || checkpoint.is_null())
                .ok_or_else(|| failure("invalid-checkpoint", &format!("not a JSON object: {json}")))?;
            commit.checkpoint = Some(checkpoint.clone());
            self.checkpoint = Some(checkpoint).filter(Value::is_object);
        }
        self.records = records;
        self.commits.push(commit);
        Ok(counts)
    }

    /// # Panics
    /// If the test has not set a response.
    pub fn send(&mut self, request: Request) -> Response {
        let line = request.line.clone();
        self.requests.push(request);
        match self.answers.get_mut(&line).map(|answers| (answers.len(), answers)) {
            Some((2.., answers)) => answers.pop_front(),
            Some((_, answers)) => answers.front().cloned(),
            None => None,
        }
        .unwrap_or_else(|| {
            let known: Vec<_> = self.answers.keys().collect();
            panic!("no response is set for `{line}`; responses are set for {known:?}")
        })
    }
}

pub fn failure(code: &str, message: &str) -> Failure {
    Failure { code: code.to_owned(), message: message.to_owned(), details: None }
}

fn objects(items: &str) -> Result<Vec<(String, Value)>, Failure> {
    let refuse = |problem: String| failure("invalid-records", &problem);
    let objects: Vec<Map<String, Value>> = serde_json::from_str(items)
        .map_err(|error| refuse(format!("not a JSON array of objects: {error}")))?;
    objects
        .into_iter()
        .map(Value::Object)
        .enumerate()
        .map(|(index, object)| {
            let id = id_of(&object).ok_or_else(|| {
                refuse(format!("the record at {index} has no `id` that is a string or an integer: {object}"))
            })?;
            Ok((id, object))
        })
        .collect()
}

fn id_of(record: &Value) -> Option<String> {
    match record.get("id")? {
        Value::String(text) if (1..=255).contains(&text.len()) && !text.contains('\0') => Some(text.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

fn merge(kept: &mut Value, changes: Value) {
    match (kept, changes) {
        (Value::Object(kept), Value::Object(changes)) => {
            for (key, value) in changes {
                merge(kept.entry(key).or_insert(Value::Null), value);
            }
        }
        (kept, changes) => *kept = changes,
    }
}
