//! Write syncs and actions for Syncline in Rust.
//!
//! A function is a plain Rust function with an attribute, and [`export!`] builds a component from functions. The
//! host runs each function in a sandbox for one connection. It sends the function's requests to the provider with
//! the connection's credentials, and stores the records that the function saves.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use syncline_sdk::{Paging, Result, Writer, action, http, sync};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Customer {
//!     id: String,
//!     email: Option<String>,
//! }
//!
//! /// All customers.
//! #[sync]
//! fn customers() -> Result {
//!     let paging = Paging::last_id("starting_after").items("/data").more("/has_more");
//!     let mut customers = Writer::new("Customer");
//!     for page in http::get("/v1/customers").query("limit", 100).pages::<Customer>(paging) {
//!         customers.save_all(page?)?;
//!     }
//!     customers.finish()?;
//!     Ok(())
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct NewCustomer {
//!     email: String,
//! }
//!
//! /// Adds a customer.
//! #[action]
//! fn create_customer(new: NewCustomer) -> Result<Customer> {
//!     http::post("/v1/customers").form(&new).send_ok()?.json()
//! }
//!
//! syncline_sdk::export!(customers, create_customer);
//! # fn main() {}
//! ```
//!
//! `syncline.toml` lists the same functions in kebab-case (`create-customer`), with their schedules and models. On
//! targets other than WebAssembly, the functions run against a fake host for unit tests: see [`testing`].

#![warn(missing_docs)]

#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod function;

pub mod checkpoint;
pub mod connection;
pub mod env;
pub mod http;
pub mod log;
pub mod records;
pub mod run;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

mod error;
mod host;
mod macros;
mod pages;
mod webhook;

pub use error::{Error, Result};
pub use pages::{Page, Pages, Paging};
pub use records::Writer;
pub use serde_json;
pub use syncline_sdk_macros::{action, lifecycle, sync, webhook};
pub use webhook::Webhook;

/// Compiles the example in the project's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;
