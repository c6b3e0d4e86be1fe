//! A fake host, with which functions are tested as plain functions, without a sandbox.
//!
//! It exists on all targets except WebAssembly. A [`Host`] serves only its own thread, so tests can run in
//! parallel. It stores records like the real host. With the feature `models`, a host that is created with
//! `Host::for_project` also validates records, inputs and outputs against the models of `syncline.toml`.
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
use crate::bindings::syncline::integration::types::Failure;
use crate::function::{self, Function};
pub use crate::log::Level;
use crate::{Error, Result};
use models::Models;
use state::State;

pub(crate) mod imports;
#[cfg(feature = "models")]
mod models;
#[cfg(not(feature = "models"))]
#[path = "testing/no_models.rs"]
mod models;
mod state;

/// The host of the functions on this thread, until it is dropped.
#[derive(Debug)]
pub struct Host {
    // It represents a thread-local state, so it must stay on its thread.
    stays_on_thread: PhantomData<*const ()>,
}

/// A request that a function has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, URL and query without percent-encoding, such as `GET /v1/customers?limit=100`.
    pub line: String,
    /// The headers that the function has set.
    pub headers: Vec<(String, String)>,
    /// The body. Empty if there was none.
    pub body: String,
}

/// A successful call of the host's `records.commit`, which is one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// Model, id and payload of each changed record. The payload is `None` for deleted records.
    pub changes: Vec<(String, String, Option<Value>)>,
    /// The checkpoint that was set in the same transaction.
    pub checkpoint: Option<Value>,
}

/// A line of the run's log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// The level.
    pub level: Level,
    /// The message.
    pub message: String,
    /// The fields.
    pub fields: Option<Value>,
}

impl Host {
    /// Creates a host without records, metadata, variables or responses. It validates nothing.
    ///
    /// # Panics
    /// If the thread already has a host.
    #[expect(clippy::new_without_default, reason = "creating a host has a side effect")]
    pub fn new() -> Self {
        Self::with_models(None)
    }

    /// Creates a host that validates records, inputs and outputs against the models of the project's `syncline.toml`.
    /// It is in the folder of `Cargo.toml` or a folder above it. A record that the real host would set aside is refused.
    ///
    /// # Panics
    /// If the thread already has a host, or the file cannot be read.
    #[cfg(feature = "models")]
    pub fn for_project() -> Self {
        Self::with_models(Some(Models::of_project().unwrap_or_else(|problem| panic!("{problem}"))))
    }

    /// Like [`for_project`](Self::for_project), with the path of `syncline.toml`.
    ///
    /// # Panics
    /// If the thread already has a host, or the file cannot be read.
    #[cfg(feature = "models")]
    pub fn for_config(path: impl AsRef<std::path::Path>) -> Self {
        Self::with_models(Some(Models::read(path.as_ref()).unwrap_or_else(|problem| panic!("{problem}"))))
    }

    fn with_models(models: Option<Models>) -> Self {
        State::install(models);
        Self { stays_on_thread: PhantomData }
    }

    /// Calls a function as the real host does, such as `host.call(create_customer::FUNCTION, &new)`, and returns its
    /// output. `()` is no input. A host with models checks the input and the output, and refuses models that the
    /// function does not declare.
    ///
    /// # Panics
    /// If `syncline.toml` does not contain the function.
    pub fn call(&self, function: Function, input: impl Serialize) -> Result<Option<Value>> {
        let input = serde_json::to_value(input)?;
        State::with(|state| {
            if let Some(models) = &mut state.models {
                models.begin(function.kind, function.name).unwrap_or_else(|problem| panic!("{problem}"));
            }
        });
        let called = run(function, &input);
        State::with(|state| state.models.iter_mut().for_each(Models::end));
        called
    }

    /// Sets a JSON response. `line` is method, URL and query without percent-encoding, such as `GET
    /// /v1/customers?limit=100`. Several responses for one line are returned in turn, and the last one is repeated.
    pub fn answer(&self, line: &str, status: u16, body: &impl Serialize) -> &Self {
        let body = serde_json::to_vec(body).expect("the response can be serialized as JSON");
        let headers = [("content-type", "application/json")];
        self.answer_with(line, status, &headers, &body)
    }

    /// Like [`answer`](Self::answer), with headers and any body.
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

    /// Sets the credentials. Without them, reading the credentials fails with `not-allowed`.
    pub fn set_credentials(&self, credentials: Value) -> &Self {
        State::with(|state| state.credentials = Some(credentials));
        self
    }

    /// Sets the connection configuration.
    pub fn set_connection_config(&self, config: Value) -> &Self {
        State::with(|state| state.config = config);
        self
    }

    /// Sets a variable of the environment.
    pub fn set_variable(&self, name: &str, value: &str) -> &Self {
        State::with(|state| state.variables.insert(name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the checkpoint that the run starts with.
    pub fn set_checkpoint(&self, checkpoint: Value) -> &Self {
        State::with(|state| state.checkpoint = Some(checkpoint));
        self
    }

    /// Stores a record as if an earlier run had saved it.
    pub fn keep(&self, model: &str, record: Value) -> &Self {
        State::with(|state| state.keep(model, record));
        self
    }

    /// Asks the function to stop.
    pub fn cancel(&self) -> &Self {
        State::with(|state| state.cancelled = true);
        self
    }

    /// Makes the run full: the host deletes the records that it does not save.
    pub fn run_fully(&self) -> &Self {
        State::with(|state| state.is_full = true);
        self
    }

    /// Returns the current records of a model, sorted by id.
    pub fn records(&self, model: &str) -> Vec<Value> {
        State::with(|state| {
            state.records.get(model).into_iter().flat_map(|kept| kept.values().cloned()).collect()
        })
    }

    /// Returns the current checkpoint.
    pub fn checkpoint(&self) -> Option<Value> {
        State::with(|state| state.checkpoint.clone())
    }

    /// Returns the connection's current metadata.
    pub fn metadata(&self) -> Value {
        State::with(|state| state.metadata.clone())
    }

    /// Returns the commits so far.
    pub fn commits(&self) -> Vec<Commit> {
        State::with(|state| state.commits.clone())
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        State::with(|state| state.requests.clone())
    }

    /// Returns the log so far.
    pub fn log(&self) -> Vec<LogLine> {
        State::with(|state| state.log.clone())
    }

    /// Returns the progress that the function last reported.
    pub fn progress(&self) -> Option<(u64, Option<u64>)> {
        State::with(|state| state.progress)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        State::remove();
    }
}

/// Calls a function between the checks of its input and its output.
fn run(function: Function, input: &Value) -> Result<Option<Value>> {
    let checked = |check: &dyn Fn(&Models) -> Result<(), Failure>| {
        State::with(|state| state.models.as_ref().map_or(Ok(()), check)).map_err(Error::from_failure)
    };
    checked(&|models| models.check_input(input))?;
    let (kind, name) = (function.kind, function.name);
    let text = (!input.is_null()).then(|| input.to_string());
    let output = function::invoke(&[function], kind, name, text).map_err(Error::from_failure)?;
    let output: Option<Value> = output.as_deref().map(serde_json::from_str).transpose()?;
    checked(&|models| models.check_output(output.as_ref().unwrap_or(&Value::Null)))?;
    Ok(output)
}
