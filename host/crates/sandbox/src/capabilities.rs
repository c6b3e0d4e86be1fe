//! The capabilities that the caller of the runtime grants to a function.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use syncline_types::failure_code::FailureCode;

use super::{Change, Counts, Failure, GuestError, Interrupt, Request, Response};

/// The connection for which a function runs. `config` and `tags` are JSON text.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    pub connection_id: String,
    pub integration: String,
    pub provider: String,
    pub environment: String,
    pub config: String,
    pub tags: String,
}

/// The data of a run that its function can read.
#[derive(Debug, Clone)]
pub struct RunInfo {
    pub id: String,
    pub variant: String,
    pub attempt: u32,
    /// Whether the host deletes the records that the run does not save.
    pub is_full: bool,
}

/// Sends a function's requests, for `syncline:integration/provider` and for `wasi:http`.
#[async_trait]
pub trait ProviderClient: Send + Sync {
    async fn send(&self, request: Request) -> Result<Response, GuestError>;
    /// The outcome of each request, in the order of `requests`.
    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt>;
}

/// The host functions that reach beyond the sandbox. The WIT files document each of them.
///
/// A function whose WIT signature has no failure can only interrupt the run.
#[async_trait]
pub trait Capabilities: Send {
    fn provider(&self) -> Arc<dyn ProviderClient>;
    async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Counts, GuestError>;
    async fn find_records(
        &mut self,
        model: String,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError>;
    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt>;
    async fn metadata(&mut self) -> Result<String, Interrupt>;
    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Result<(), GuestError>;
    async fn credentials(&mut self) -> Result<String, GuestError>;
    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt>;
    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt>;
    fn run(&self) -> RunInfo;
    fn progress(&mut self, done: u64, total: Option<u64>);
    fn cancelled(&self) -> bool;
}

impl fmt::Debug for dyn ProviderClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderClient")
    }
}

impl fmt::Debug for dyn Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capabilities")
    }
}

/// Capabilities of a guest that runs without a connection: host functions return empty values or fail.
pub(super) struct NoCapabilities;

fn unavailable() -> Failure {
    Failure::new(FailureCode::NotAllowed, "not available in `describe`, which runs without a connection")
}

#[async_trait]
impl ProviderClient for NoCapabilities {
    async fn send(&self, _request: Request) -> Result<Response, GuestError> {
        Err(unavailable().into())
    }

    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        Ok(requests.iter().map(|_| Err(unavailable())).collect())
    }
}

#[async_trait]
impl Capabilities for NoCapabilities {
    fn provider(&self) -> Arc<dyn ProviderClient> {
        Arc::new(Self)
    }

    async fn commit(
        &mut self,
        _changes: Vec<Change>,
        _checkpoint: Option<String>,
    ) -> Result<Counts, GuestError> {
        Err(unavailable().into())
    }

    async fn find_records(
        &mut self,
        _model: String,
        _ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        Err(unavailable().into())
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        Ok(None)
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        Ok("{}".to_owned())
    }

    async fn set_metadata(&mut self, _metadata: String, _merge: bool) -> Result<(), GuestError> {
        Err(unavailable().into())
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        Err(unavailable().into())
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        Ok(Vec::new())
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        let empty = String::new;
        Ok(ConnectionInfo {
            connection_id: empty(),
            integration: empty(),
            provider: empty(),
            environment: empty(),
            config: "{}".to_owned(),
            tags: "{}".to_owned(),
        })
    }

    fn run(&self) -> RunInfo {
        RunInfo { id: String::new(), variant: "base".to_owned(), attempt: 1, is_full: false }
    }

    fn progress(&mut self, _done: u64, _total: Option<u64>) {}

    fn cancelled(&self) -> bool {
        false
    }
}
