//! A fake host, so that functions are tested as the plain functions they are, without a sandbox.
//!
//! It exists on every target but WebAssembly. A [`Host`] answers its own thread, so tests run side by side.
//! It keeps records as the real one does, but does not know the models of `syncline.toml`.
//!
//! ```
//! use serde_json::json;
//! use syncline_sdk::testing::Host;
//! # use syncline_sdk::{Paging, Result, Writer, http};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Customer { id: String }
//! # fn customers() -> Result {
//! #     let mut customers = Writer::new("Customer");
//! #     let request = http::get("/v1/customers");
//! #     for page in request.pages::<Customer>(Paging::last_id("starting_after").items("/data").more("/has_more")) {
//! #         customers.save_all(page?)?;
//! #     }
//! #     customers.finish()?;
//! #     Ok(())
//! # }
//!
//! let host = Host::new();
//! host.answer("GET /v1/customers", 200, &json!({"data": [{"id": "cus_1"}], "has_more": true}));
//! host.answer("GET /v1/customers?starting_after=cus_1", 200, &json!({"data": [{"id": "cus_2"}], "has_more": false}));
//!
//! customers().unwrap();
//!
//! assert_eq!(host.records("Customer"), [json!({"id": "cus_1"}), json!({"id": "cus_2"})]);
//! ```

use std::marker::PhantomData;

use serde::Serialize;
use serde_json::Value;

use crate::bindings::syncline::integration::provider::Response;
pub use crate::log::Level;
use state::State;

pub(crate) mod imports;
mod state;

/// The host that functions on this thread meet, until it is dropped.
#[derive(Debug)]
pub struct Host {
    // It stands for a thread-local state, so it must stay where it was made.
    stays_on_thread: PhantomData<*const ()>,
}

/// A request that a function sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, URL and query without percent-encoding, as in `GET /v1/customers?limit=100`.
    pub line: String,
    /// Headers as the function gave them.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there was none.
    pub body: String,
}

/// A successful call of the host's `records.commit`, which is one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The records that were saved or updated, with their model, and `None` for the payload of deleted ones.
    pub changes: Vec<(String, String, Option<Value>)>,
    /// The checkpoint that was set with them.
    pub checkpoint: Option<Value>,
}

/// A line of the run's log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// How grave it is.
    pub level: Level,
    /// Its text.
    pub message: String,
    /// Its fields.
    pub fields: Option<Value>,
}

impl Host {
    /// A host without records, metadata, variables or answers.
    ///
    /// # Panics
    /// If the thread has one already.
    #[expect(clippy::new_without_default, reason = "it is no plain value: making one has an effect")]
    pub fn new() -> Self {
        State::install();
        Self { stays_on_thread: PhantomData }
    }

    /// Answers a request with JSON. `line` is method, URL and query without percent-encoding, as in
    /// `GET /v1/customers?limit=100`. Answers to one line are given in turn, and the last one again and again.
    pub fn answer(&self, line: &str, status: u16, body: &impl Serialize) -> &Self {
        let body = serde_json::to_vec(body).expect("the answer can be written as JSON");
        let headers = [("content-type", "application/json")];
        self.answer_with(line, status, &headers, &body)
    }

    /// As [`answer`](Self::answer), with headers and any body.
    pub fn answer_with(&self, line: &str, status: u16, headers: &[(&str, &str)], body: &[u8]) -> &Self {
        let headers =
            headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned())).collect();
        let response = Response { status, headers, body: body.to_vec() };
        State::with(|state| state.answers.entry(line.to_owned()).or_default().push_back(response));
        self
    }

    /// Sets the connection's metadata.
    pub fn set_metadata(&self, metadata: Value) -> &Self {
        State::with(|state| state.metadata = metadata);
        self
    }

    /// Grants credentials. Without them, asking is `not-allowed`.
    pub fn set_credentials(&self, credentials: Value) -> &Self {
        State::with(|state| state.credentials = Some(credentials));
        self
    }

    /// Sets what was asked when connecting.
    pub fn set_connection_config(&self, config: Value) -> &Self {
        State::with(|state| state.config = config);
        self
    }

    /// Sets a variable of the environment.
    pub fn set_variable(&self, name: &str, value: &str) -> &Self {
        State::with(|state| state.variables.insert(name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the checkpoint that the run finds.
    pub fn set_checkpoint(&self, checkpoint: Value) -> &Self {
        State::with(|state| state.checkpoint = Some(checkpoint));
        self
    }

    /// Keeps a record from before the run.
    pub fn keep(&self, model: &str, record: Value) -> &Self {
        State::with(|state| state.keep(model, record));
        self
    }

    /// Asks the function to come to its end.
    pub fn cancel(&self) -> &Self {
        State::with(|state| state.cancelled = true);
        self
    }

    /// The records of a model that are kept now, by id.
    pub fn records(&self, model: &str) -> Vec<Value> {
        State::with(|state| {
            state.records.get(model).into_iter().flat_map(|kept| kept.values().cloned()).collect()
        })
    }

    /// The checkpoint as it is now.
    pub fn checkpoint(&self) -> Option<Value> {
        State::with(|state| state.checkpoint.clone())
    }

    /// The connection's metadata as it is now.
    pub fn metadata(&self) -> Value {
        State::with(|state| state.metadata.clone())
    }

    /// The commits so far.
    pub fn commits(&self) -> Vec<Commit> {
        State::with(|state| state.commits.clone())
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        State::with(|state| state.requests.clone())
    }

    /// The log so far.
    pub fn log(&self) -> Vec<LogLine> {
        State::with(|state| state.log.clone())
    }

    /// How far the function last said it is.
    pub fn progress(&self) -> Option<(u64, Option<u64>)> {
        State::with(|state| state.progress)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        State::remove();
    }
}
