//! Provider webhooks: verified and stored first, then dispatched to functions and to backends.

pub(crate) mod dispatch;
pub(crate) mod ingest;
pub(crate) mod log;
pub(crate) mod payload;
pub(crate) mod routing;
