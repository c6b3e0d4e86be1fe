//! What a function may do, as the caller of the runtime grants it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::{Change, Counts, Failure, Limit, Request, Response};

/// The connection for which a function runs. JSON documents are text.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    pub connection_id: String,
    pub integration: String,
    pub provider: String,
    pub environment: String,
    pub config: String,
    pub tags: String,
}

/// The invocation, as the function may know it.
#[derive(Debug, Clone)]
pub struct RunInfo {
    pub id: String,
    pub variant: String,
    pub attempt: u32,
}

/// Why an invocation ends from the outside.
#[derive(Debug, thiserror::Error)]
pub enum Interrupt {
    /// It went over one of its limits.
    #[error("{0}")]
    Limit(Limit),
    /// The provider wants no requests for longer than the run can wait.
    #[error("the provider wants no requests for {} s", retry_after.as_secs_f64().ceil())]
    RateLimited { retry_after: Duration },
    /// Another attempt at the same work has begun, or there is nobody to do it for any more: this one may write nothing
    /// more.
    #[error("a later attempt has taken over, or the connection was deleted")]
    Superseded,
    /// Something on our side failed.
    #[error("the host failed")]
    Host(#[source] anyhow::Error),
}

/// What an import gives back: a value or a failure that the guest can act on, or the end of the invocation.
pub type Outcome<T> = Result<Result<T, Failure>, Interrupt>;

/// The imports of the world that reach beyond the sandbox. The meaning of each stands in the WIT files.
#[async_trait]
pub trait Capabilities: Send {
    async fn send(&mut self, request: Request) -> Outcome<Response>;
    async fn send_all(&mut self, requests: Vec<Request>)
    -> Result<Vec<Result<Response, Failure>>, Interrupt>;
    async fn commit(&mut self, changes: Vec<Change>, checkpoint: Option<String>) -> Outcome<Counts>;
    async fn find_records(&mut self, model: String, ids: Vec<String>) -> Outcome<Vec<Option<String>>>;
    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt>;
    async fn metadata(&mut self) -> Result<String, Interrupt>;
    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Outcome<()>;
    async fn credentials(&mut self) -> Outcome<String>;
    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt>;
    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt>;
    fn run(&self) -> RunInfo;
    fn progress(&mut self, done: u64, total: Option<u64>);
    fn cancelled(&self) -> bool;
}

impl fmt::Debug for dyn Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capabilities")
    }
}

/// A failure without details.
pub(super) fn failure(code: &str, message: impl Into<String>) -> Failure {
    Failure { code: code.to_owned(), message: message.into(), details: None }
}

/// For a function that runs without a connection: every import answers with nothing or a failure.
pub(super) struct NoCapabilities;

fn unavailable<T>() -> Outcome<T> {
    Ok(Err(failure("not-allowed", "there is no connection while functions are described")))
}

#[async_trait]
impl Capabilities for NoCapabilities {
    async fn send(&mut self, _request: Request) -> Outcome<Response> {
        unavailable()
    }

    async fn send_all(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        requests.into_iter().map(|_| unavailable()).collect()
    }

    async fn commit(&mut self, _changes: Vec<Change>, _checkpoint: Option<String>) -> Outcome<Counts> {
        unavailable()
    }

    async fn find_records(&mut self, _model: String, _ids: Vec<String>) -> Outcome<Vec<Option<String>>> {
        unavailable()
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        Ok(None)
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        Ok("{}".to_owned())
    }

    async fn set_metadata(&mut self, _metadata: String, _merge: bool) -> Outcome<()> {
        unavailable()
    }

    async fn credentials(&mut self) -> Outcome<String> {
        unavailable()
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        Ok(Vec::new())
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        let none = String::new;
        Ok(ConnectionInfo {
            connection_id: none(),
            integration: none(),
            provider: none(),
            environment: none(),
            config: "{}".to_owned(),
            tags: "{}".to_owned(),
        })
    }

    fn run(&self) -> RunInfo {
        RunInfo { id: String::new(), variant: "base".to_owned(), attempt: 1 }
    }

    fn progress(&mut self, _done: u64, _total: Option<u64>) {}

    fn cancelled(&self) -> bool {
        false
    }
}
