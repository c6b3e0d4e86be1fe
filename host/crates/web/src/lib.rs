//! What the REST API and the dashboard share.

pub mod addresses;
pub mod request_source;
pub mod static_files;
pub mod status;
