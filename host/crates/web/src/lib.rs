//! What the REST API and the dashboard share.

pub mod address_limit;
pub mod addresses;
pub mod client_address;
pub mod request_source;
pub mod static_files;
pub mod status;
