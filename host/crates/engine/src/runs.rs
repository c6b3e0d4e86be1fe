//! Reads runs and their logs for clients.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::connections::cache::ConnectionCache;
use crate::lookup::{LookupError, NamedScope};
use crate::syncs::run::recording::associated_data;
use syncline_auth::Environment;
use syncline_crypto::CryptoError;
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::pages::PageLimit;
use syncline_store::recordings;
use syncline_store::runs::{self, Filter};
pub use syncline_store::runs::{LineFilter, LoggedLine, LoggedRun, RunPosition as RunPlace};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::{FunctionKind, RunState, RunTrigger};
use syncline_types::ids::{ConnectionId, EnvironmentPk, FunctionName, IntegrationKey, Variant};

/// Selects runs of an environment.
#[derive(Debug)]
pub struct RunFilter {
    pub scope: NamedScope,
    pub states: Vec<RunState>,
    pub kind: Option<FunctionKind>,
    pub function: Option<FunctionName>,
    pub variant: Option<Variant>,
    pub trigger: Option<RunTrigger>,
    pub started_after: Option<DateTime<Utc>>,
    pub started_before: Option<DateTime<Utc>>,
    /// Only runs after this position in the list.
    pub behind: Option<RunPlace>,
}

/// A part of a run's log.
#[derive(Debug)]
pub struct RunLog {
    pub lines: Vec<LoggedLine>,
    /// More lines are stored already.
    pub has_more: bool,
    /// The run had ended before these lines were read, so no more lines will be written.
    pub is_complete: bool,
}

/// Selects the last lines of a run's log.
#[derive(Debug, Clone)]
pub struct LastLines {
    pub levels: Vec<&'static str>,
    /// Searched in the message and the fields, ignoring case.
    pub search: Option<String>,
    /// Only lines before this one.
    pub before: Option<i32>,
}

/// Why runs cannot be returned.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    #[error(
        "there is no run `{0}` in this environment; use the complete UUID, as `syncline runs list` shows it. Old runs \
         are deleted after the retention period"
    )]
    Unknown(String),
    #[error(
        "the run `{0}` has no recording; choose the runs to record with `syncline runs record`. Recordings are deleted \
         after their retention period"
    )]
    NotRecorded(Uuid),
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the recording could not be decrypted")]
    Sealed(#[from] CryptoError),
    #[error("the recording is damaged")]
    Damaged(#[from] serde_json::Error),
    #[error("runs could not be read")]
    Store(#[from] sqlx::Error),
}

impl RunsError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownRun,
            Self::NotRecorded(_) => ErrorCode::UnknownRecording,
            Self::Lookup(error) => error.code(),
            Self::Sealed(_) | Self::Damaged(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Returns runs and their logs.
pub struct Runs {
    store: Store,
    connections: Arc<ConnectionCache>,
    max_page_bytes: usize,
}

impl Runs {
    /// `max_page_bytes` is the length at which a page of log lines ends.
    pub fn new(store: Store, connections: Arc<ConnectionCache>, max_page_bytes: usize) -> Self {
        Self { store, connections, max_page_bytes }
    }

    /// Returns up to `limit` runs of an environment, newest first.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: RunFilter,
        limit: i64,
    ) -> Result<Vec<LoggedRun>, RunsError> {
        let filter = Filter {
            scope: self.connections.resolve(environment, &filter.scope).await?,
            states: filter.states,
            kind: filter.kind,
            function: filter.function.map(String::from),
            variant: filter.variant.map(String::from),
            trigger: filter.trigger,
            started_after: filter.started_after,
            started_before: filter.started_before,
            behind: filter.behind,
        };
        Ok(runs::list(&mut *self.store.connect().await?, environment, &filter, limit).await?)
    }

    /// Returns up to `limit` runs of one sync of a connection, newest first. `before` is the start of the last run of
    /// the previous page.
    pub async fn of_sync(
        &self,
        environment: EnvironmentPk,
        (integration, connection): (&IntegrationKey, &ConnectionId),
        (sync, variant): (&FunctionName, &Variant),
        before: Option<DateTime<Utc>>,
        limit: i64,
    ) -> Result<Vec<LoggedRun>, RunsError> {
        let connection = self.connections.get(environment, integration, connection).await?.pk;
        let mut conn = self.store.connect().await?;
        Ok(runs::list_of_sync(&mut conn, connection, sync, variant, before, limit).await?)
    }

    /// Returns one run. The run may still be in progress.
    pub async fn get(&self, environment: EnvironmentPk, id: Uuid) -> Result<LoggedRun, RunsError> {
        let found = runs::find(&mut *self.store.connect().await?, environment, id).await?;
        found.ok_or_else(|| RunsError::Unknown(id.to_string()))
    }

    /// Returns the recording of a run, as the text of its file.
    pub async fn recording(
        &self,
        environment: &Environment,
        id: Uuid,
        actor: &Actor,
    ) -> Result<String, RunsError> {
        self.get(environment.pk, id).await?;
        let mut tx = self.store.begin().await?;
        let sealed = recordings::find(&mut tx, environment.pk, id).await?;
        let sealed = sealed.ok_or(RunsError::NotRecorded(id))?;
        let run = id.to_string();
        let recording = environment.data_key.open(associated_data(&run), &sealed)?;
        let entry = NewEntry::new(environment.pk, AuditAction::RunRecordingRead, TargetKind::Run, run);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(String::from_utf8_lossy(&recording).into_owned())
    }

    /// Returns when the recording of a run is deleted, or `None` if it has none.
    pub async fn recording_expires_at(&self, id: Uuid) -> Result<Option<DateTime<Utc>>, RunsError> {
        Ok(recordings::expires_at(&mut *self.store.connect().await?, id).await?)
    }

    /// Returns up to `limit` lines of a run's log, oldest first.
    pub async fn log(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        filter: &LineFilter,
        limit: i64,
    ) -> Result<RunLog, RunsError> {
        // Read the run first: if it has ended, its log is complete.
        let run = self.get(environment, id).await?;
        let mut conn = self.store.connect().await?;
        // Read one more line than requested, to find out whether there is a next page.
        let one_more = PageLimit { rows: limit + 1, bytes: self.max_page_bytes };
        let mut page = runs::list_lines(&mut conn, id, filter, one_more).await?;
        page.release(conn);
        let has_more = page.truncate(limit);
        Ok(RunLog { lines: page.rows, has_more, is_complete: run.state != RunState::Running })
    }

    /// Returns the last `limit` lines of a run's log that match, in the order in which they were written.
    pub async fn last_lines(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        filter: &LastLines,
        limit: i64,
    ) -> Result<Vec<LoggedLine>, RunsError> {
        self.get(environment, id).await?;
        let mut conn = self.store.connect().await?;
        let LastLines { levels, search, before } = filter;
        Ok(runs::list_last_lines(&mut conn, id, levels, search.as_deref(), *before, limit).await?)
    }
}
