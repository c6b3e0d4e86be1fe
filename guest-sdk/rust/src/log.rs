//! The run's log.
//!
//! ```
//! # let _host = syncline_sdk::testing::Host::new();
//! use syncline_sdk::log;
//!
//! let pages = 3;
//! log::info!("read {pages} pages");
//! log::write(log::Level::Warn, "the account has no email", &serde_json::json!({ "account": "acct_1" }));
//! ```

use serde::Serialize;

pub use crate::bindings::syncline::integration::log::Level;
#[doc(inline)]
pub use crate::{__log_debug as debug, __log_error as error, __log_info as info, __log_warn as warn};

/// Adds a line. `fields` is serialized as a JSON object, such as a struct, a map or `json!({…})`.
pub fn write(level: Level, message: &str, fields: &impl Serialize) {
    let json = serde_json::to_string(fields).ok();
    crate::host::log::write(level, message, json.as_deref());
}

#[doc(hidden)]
pub fn write_plain(level: Level, message: &str) {
    crate::host::log::write(level, message, None);
}
