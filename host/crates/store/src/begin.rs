//! Begins transactions in a way that is safe against cancellation.

use std::pin::Pin;
use std::task::{Context, Poll};

use sqlx::{PgPool, Postgres, Transaction};
use tokio::runtime::Handle;

/// Like `PgPool::begin`, but the caller can drop the future, as the future of a request is dropped when its client
/// disconnects.
///
/// sqlx counts a transaction only after the server has answered `BEGIN`. If the future is dropped before that, sqlx
/// treats the connection as one without a transaction and returns it to the pool. Its next user would then write into
/// a transaction that is never committed.
pub(super) async fn begin(pool: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
    RunToCompletion::new(async move { pool.begin().await }).await
}

/// Begins a transaction with another statement than `BEGIN`.
pub(super) async fn begin_with(
    pool: &PgPool,
    statement: &'static str,
) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
    RunToCompletion::new(async move { pool.begin_with(statement).await }).await
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
