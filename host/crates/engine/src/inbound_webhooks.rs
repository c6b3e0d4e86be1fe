//! Webhooks that providers send: verified and stored, then dispatched to functions and to clients.

pub(crate) mod dispatch;
pub(crate) mod ingest;
pub(crate) mod log;
pub(crate) mod payload;
pub(crate) mod routing;
