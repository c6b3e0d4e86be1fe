//! Begins transactions, also for those who may give up on it.

use std::pin::Pin;
use std::task::{Context, Poll};

use sqlx::{PgPool, Postgres, Transaction};
use tokio::runtime::Handle;

/// As `PgPool::begin`, and safe to give up, as a request does whose client has left.
///
/// sqlx counts a transaction when `BEGIN` was answered. If nobody waits for that any more, it takes the connection for
/// one without and gives it to others, who then write into a transaction that never ends well.
pub(super) async fn begin(pool: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    #[expect(clippy::disallowed_methods, reason = "it is brought to its end")]
    RunToCompletion::new(async move { pool.begin().await }).await
}

/// With a statement of its own in place of `BEGIN`.
pub(super) async fn begin_with(
    pool: &PgPool,
    statement: &'static str,
) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    #[expect(clippy::disallowed_methods, reason = "it is brought to its end")]
    RunToCompletion::new(async move { pool.begin_with(statement).await }).await
}

/// A future that somebody else brings to its end if it is dropped before.
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
        // Without a runtime the connection goes with the pool.
        if let Some(future) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}
