//! The audit log: who changed what, and who read credentials. The services write the entries, each in the transaction of
//! its change.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio_util::sync::CancellationToken;

use syncline_store::audit_log::{self, NewEntry};
pub use syncline_store::audit_log::{Entry as AuditEntry, Filter as AuditFilter, Position as AuditPosition};
use syncline_store::{RecordsTransaction, Store};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::error_code::ErrorCode;

/// How often a host looks for entries to delete.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Entries that one transaction deletes, and the pause after it, which leaves disk bandwidth for other work.
const BATCH: i64 = 1_000;
const BATCH_PAUSE: Duration = Duration::from_millis(50);
/// Entries that an export reads at a time.
const EXPORT_PAGE: i64 = 500;

/// Why the audit log was not read.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    #[error("the audit log could not be read")]
    Store(#[from] sqlx::Error),
}

impl AuditLogError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Lists and exports the audit log, and deletes old entries.
pub struct AuditLog {
    store: Store,
    /// How long entries are stored.
    kept_for: Duration,
}

impl AuditLog {
    pub fn new(store: Store, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { store, kept_for })
    }

    /// Returns up to `limit` entries, newest first.
    pub async fn list(&self, filter: &AuditFilter, limit: i64) -> Result<Vec<AuditEntry>, AuditLogError> {
        Ok(audit_log::list(&mut *self.store.connect().await?, filter, limit).await?)
    }

    /// Returns all entries, newest first, in pages. Each page is read when the one before it has been used, so the export
    /// occupies neither memory nor a connection to the database meanwhile. Entries that are added during the export are
    /// not included.
    pub fn export(
        self: Arc<Self>,
        filter: AuditFilter,
    ) -> impl Stream<Item = Result<Vec<AuditEntry>, AuditLogError>> {
        stream::try_unfold(Some(filter), move |filter| {
            let log = Arc::clone(&self);
            async move {
                let Some(filter) = filter else { return Ok(None) };
                let page = log.list(&filter, EXPORT_PAGE).await?;
                let last = page.last().filter(|_| page.len() as i64 == EXPORT_PAGE);
                let next = last.map(|last| AuditFilter { behind: Some(last.position), ..filter });
                Ok(Some((page, next)))
            }
        })
    }

    /// Deletes old entries periodically, until `shutdown`.
    pub async fn delete_old(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            match shutdown.run_until_cancelled(self.delete_expired()).await {
                None | Some(Ok(0)) => {}
                Some(Ok(entries)) => tracing::info!(entries, "deleted old entries of the audit log"),
                Some(Err(error)) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not delete old entries of the audit log; retrying"
                ),
            }
        }
    }

    async fn delete_expired(&self) -> sqlx::Result<u64> {
        let mut count = 0;
        loop {
            let mut tx = self.store.begin().await?;
            let deleted = audit_log::delete_expired(&mut tx, self.kept_for, BATCH).await?;
            tx.commit().await?;
            count += deleted;
            if deleted < BATCH.unsigned_abs() {
                return Ok(count);
            }
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }
}

/// Commits a change of the records database together with its entry. With separate databases, no transaction spans both:
/// the entry is written first and committed last. If the host is lost between the two commits, the entry is missing.
pub(crate) async fn commit_records(
    store: &Store,
    mut tx: RecordsTransaction,
    actor: &Actor,
    entry: &NewEntry,
) -> sqlx::Result<()> {
    if !store.is_divided() {
        audit_log::write(&mut tx, actor, entry).await?;
        return tx.commit().await;
    }
    let mut control = store.begin().await?;
    audit_log::write(&mut control, actor, entry).await?;
    tx.commit().await?;
    failpoints::reach(Step::RecordsCommitted);
    control.commit().await
}
