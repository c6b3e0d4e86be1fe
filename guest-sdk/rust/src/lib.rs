//! Write syncs and actions for Syncline in Rust.
//!
//! A function is a plain Rust function with an attribute; [`export!`] makes a component of them. The host
//! runs each in a sandbox for one connection of an end user, sends its requests to the provider with the
//! connection's credentials, and keeps what it saves.
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
//! `syncline.toml` names the same functions in kebab-case (`create-customer`), with their schedules and
//! models. On a target that is not WebAssembly the functions meet a fake host instead, which tests script:
//! see [`testing`].

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

/// Tries what the project's README shows.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;
