//! Transactions whose callers can be cancelled at any time, as a request is when its client disconnects.
//!
//! sqlx tracks a transaction by the answers that it has read. A future that is dropped while the server executes
//! `BEGIN` would leave an open transaction on the connection, and its next user would write into a transaction that is
//! never committed. A future that is dropped while the server executes `COMMIT` would send a `ROLLBACK` after it. So
//! these statements run to completion in every case.

use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

/// A transaction that is rolled back when it is dropped.
pub struct Transaction(sqlx::Transaction<'static, Postgres>);

impl Transaction {
    pub(super) async fn begin(pool: &PgPool) -> sqlx::Result<Self> {
        let pool = pool.clone();
        #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
        RunToCompletion::new(async move { pool.begin().await.map(Self) }).await
    }

    /// Begins a transaction with another statement than `BEGIN`.
    pub(super) async fn begin_with(pool: &PgPool, statement: &'static str) -> sqlx::Result<Self> {
        let pool = pool.clone();
        #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
        RunToCompletion::new(async move { pool.begin_with(statement).await.map(Self) }).await
    }

    pub async fn commit(self) -> sqlx::Result<()> {
        RunToCompletion::new(self.0.commit()).await
    }

    pub async fn rollback(self) -> sqlx::Result<()> {
        RunToCompletion::new(self.0.rollback()).await
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

/// A future that a background task completes if it is dropped earlier.
struct RunToCompletion<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> RunToCompletion<T> {
    fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<T: Send + 'static> Future for RunToCompletion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let output = future.as_mut().poll(context);
        if output.is_ready() {
            self.0 = None;
        }
        output
    }
}

impl<T: Send + 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        // Without a runtime, the connection is closed together with the pool.
        if let Some(future) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}
