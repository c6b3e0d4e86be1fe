//! Types that every crate uses: ids and names, error codes, secrets, the settings of an environment, and the authors
//! of changes.

pub mod accounts;
pub mod actor;
pub mod audit_log;
pub mod environment_settings;
pub mod error_code;
pub mod failure_code;
pub mod functions;
pub mod ids;
pub mod json;
pub mod metadata;
pub mod sanitize;
pub mod secret;
pub mod units;
