//! Repeats transactions that deadlocked.

use syncline_store::{DEADLOCK_TRIES, is_deadlock};

/// Runs a transaction, and repeats it if Postgres aborted it because of a deadlock.
pub(crate) async fn retry_deadlocks<T, F>(transaction: impl Fn() -> F) -> sqlx::Result<T>
where
    F: Future<Output = sqlx::Result<T>>,
{
    for _ in 1..DEADLOCK_TRIES {
        match transaction().await {
            Err(error) if is_deadlock(&error) => {}
            done => return done,
        }
    }
    transaction().await
}
