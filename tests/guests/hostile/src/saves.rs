//! Functions that save records exactly as a test wrote them, without the checks of the SDK.

use std::hint::black_box;
use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::json;
use syncline_sdk::bindings::syncline::integration::records::{self as boundary, Batch, Change, Deletion};
use syncline_sdk::records::Counts;
use syncline_sdk::{Error, Result, Writer, action, checkpoint, connection, http, log, run, sync};

use crate::clock::wait;
use crate::floods::spin;

#[derive(Deserialize)]
pub struct RawCommit {
    changes: Vec<RawChange>,
    /// Text, so that it can be invalid JSON.
    checkpoint: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawChange {
    Save(RawBatch),
    Update(RawBatch),
    Delete(RawDeletion),
}

#[derive(Deserialize)]
pub struct RawBatch {
    model: String,
    /// Text, so that it can be invalid JSON.
    items: String,
    variant: Option<String>,
    checkpoint: Option<String>,
}

#[derive(Deserialize)]
struct RawDeletion {
    model: String,
    ids: Vec<String>,
    variant: Option<String>,
}

#[derive(Serialize)]
pub struct Saved {
    added: u64,
    updated: u64,
    deleted: u64,
    unchanged: u64,
}

/// Saves one batch and returns the counts.
#[action]
pub fn save_raw(batch: RawBatch) -> Result<Saved> {
    let checkpoint = batch.checkpoint.clone();
    let counts = commit(RawCommit { changes: vec![RawChange::Save(batch)], checkpoint })?;
    Ok(Saved {
        added: counts.added,
        updated: counts.updated,
        deleted: counts.deleted,
        unchanged: counts.unchanged,
    })
}

/// Makes one commit in an action, outside of all syncs.
#[action]
pub fn change_raw(raw: RawCommit) -> Result {
    commit(raw)?;
    Ok(())
}

/// A provider item whose `share` the guest reads as a number.
#[derive(Serialize, Deserialize)]
struct Measured {
    id: String,
    share: f64,
}

/// Saves the items that the provider lists at this URL.
#[action]
pub fn save_measured(url: String) -> Result {
    let measured: Vec<Measured> = http::get(url).send_ok()?.json()?;
    let mut items = Writer::new("Item");
    items.save_all(measured)?;
    items.finish()?;
    Ok(())
}

#[derive(Deserialize)]
pub struct RawFind {
    model: String,
    ids: Vec<String>,
}

/// Returns the stored payloads as the host returns them.
#[action]
pub fn find_raw(find: RawFind) -> Result<Vec<Option<String>>> {
    boundary::get(&find.model, &find.ids).map_err(|failure| Error::new(failure.code, failure.message))
}

#[derive(Deserialize)]
#[serde(default)]
struct CommitRaw {
    fetches: Vec<String>,
    commits: Vec<RawCommit>,
    /// Pause after each commit.
    pause_ms: u64,
    /// Adds to the log whether the run is full and from where it continues.
    tells_start: bool,
    end: End,
}

impl Default for CommitRaw {
    fn default() -> Self {
        Self { fetches: Vec::new(), commits: Vec::new(), pause_ms: 0, tells_start: false, end: End::Return }
    }
}

/// What a sync does after its last commit.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum End {
    Return,
    Fail,
    Panic,
    WaitUntilCancelled,
    Spin,
    GoOn,
}

/// Sends the requests and makes the commits that the connection's metadata lists, then ends as the metadata says. A
/// variant can have its own list, such as `commits-second`.
#[sync]
pub fn commit_raw() -> Result {
    run_commits(&format!("commits-{}", run::info().variant))
}

/// Like `commit_raw`, with its own list.
#[sync]
pub fn commit_other() -> Result {
    run_commits("commits-other")
}

fn run_commits(own_list: &str) -> Result {
    let metadata: serde_json::Value = connection::metadata()?;
    let own: Option<Vec<RawCommit>> =
        metadata.get(own_list).map(|list| serde_json::from_value(list.clone())).transpose()?;
    let settings: CommitRaw = serde_json::from_value(metadata)?;
    if settings.tells_start {
        let checkpoint: Option<serde_json::Value> = checkpoint::get()?;
        log::info!("full: {}, checkpoint: {checkpoint:?}", run::is_full());
    }
    for url in settings.fetches {
        http::get(url).send_ok()?;
    }
    for raw in own.unwrap_or(settings.commits) {
        commit(raw)?;
        wait(settings.pause_ms);
    }
    match settings.end {
        End::Return => Ok(()),
        End::Fail => Err(Error::new("failed-on-purpose", "the metadata asks for a failure")),
        End::Panic => panic!("the metadata asks for a panic"),
        End::Spin => spin(),
        End::WaitUntilCancelled => {
            while !run::cancelled() {
                wait(5);
            }
            Ok(())
        }
        End::GoOn => go_on(),
    }
}

/// Prints half a line to standard output. Then sends requests and saves records forever, and ignores cancellation.
fn go_on() -> Result {
    print!("never done");
    std::io::stdout().flush()?;
    for number in 0_u64.. {
        black_box(run::cancelled());
        http::get(format!("/go-on/{number}")).send_ok()?;
        let items = json!([{ "id": number.to_string(), "name": run::info().id }]).to_string();
        let batch = RawBatch { model: "Item".to_owned(), items, variant: None, checkpoint: None };
        commit(RawCommit { changes: vec![RawChange::Save(batch)], checkpoint: None })?;
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(default)]
struct Steps {
    steps: u64,
    pause_ms: u64,
}

impl Default for Steps {
    fn default() -> Self {
        Self { steps: 100, pause_ms: 10 }
    }
}

#[derive(Serialize)]
struct Step {
    id: String,
    /// The run that saved the step. It shows a test that no step was saved twice.
    run: String,
}

/// Saves one record at a time, each with a checkpoint, and pauses in between. Tests interrupt it.
#[sync]
pub fn steps() -> Result {
    let settings: Steps = connection::metadata()?;
    let done: u64 = checkpoint::cursor()?.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let mut steps = Writer::new("Step");
    for step in done..settings.steps {
        if run::cancelled() {
            break;
        }
        steps.save(&Step { id: format!("step-{step}"), run: run::info().id })?;
        steps.cursor(&(step + 1).to_string());
        steps.flush()?;
        run::progress(step + 1, Some(settings.steps));
        wait(settings.pause_ms);
    }
    steps.finish()?;
    Ok(())
}

fn commit(raw: RawCommit) -> Result<Counts> {
    let batch = |raw: RawBatch| Batch { model: raw.model, items: raw.items, variant: raw.variant };
    let changes: Vec<Change> = raw
        .changes
        .into_iter()
        .map(|change| match change {
            RawChange::Save(raw) => Change::Save(batch(raw)),
            RawChange::Update(raw) => Change::Update(batch(raw)),
            RawChange::Delete(raw) => {
                Change::Delete(Deletion { model: raw.model, ids: raw.ids, variant: raw.variant })
            }
        })
        .collect();
    boundary::commit(&changes, raw.checkpoint.as_deref()).map_err(|failure| {
        let details = failure.details.and_then(|json| serde_json::from_str::<serde_json::Value>(&json).ok());
        let error = Error::new(failure.code, failure.message);
        match &details {
            Some(details) => error.with_details(details),
            None => error,
        }
    })
}
