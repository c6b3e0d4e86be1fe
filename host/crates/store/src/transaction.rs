//! Transactions whose callers can be cancelled at any time, as a request is when its client disconnects.
//!
//! sqlx tracks a transaction by the answers that it has read. A future that is dropped while the server executes
//! `BEGIN` would leave an open transaction on the connection, and its next user would write into a transaction that is
//! never committed. A future that is dropped while the server executes `COMMIT` would send a `ROLLBACK` after it. And sqlx
//! does not track the responses to a `COPY` at all. So these statements run to completion in every case.

use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

/// A transaction that is rolled back when it is dropped.
///
/// `None` during [`Transaction::copy_in`], and after a call of it that was cancelled.
pub struct Transaction(Option<sqlx::Transaction<'static, Postgres>>);

const PRESENT: &str = "a transaction is not used after a copy into it was cancelled";

impl Transaction {
    pub(super) async fn begin(pool: &PgPool) -> sqlx::Result<Self> {
        let pool = pool.clone();
        #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
        RunToCompletion::new(async move { pool.begin().await.map(|begun| Self(Some(begun))) }).await
    }

    /// Begins a transaction with another statement than `BEGIN`.
    pub(super) async fn begin_with(pool: &PgPool, statement: &'static str) -> sqlx::Result<Self> {
        let pool = pool.clone();
        #[expect(clippy::disallowed_methods, reason = "the future runs to completion")]
        RunToCompletion::new(async move { pool.begin_with(statement).await.map(|begun| Self(Some(begun))) })
            .await
    }

    pub async fn commit(self) -> sqlx::Result<()> {
        RunToCompletion::new(self.0.expect(PRESENT).commit()).await
    }

    pub async fn rollback(self) -> sqlx::Result<()> {
        RunToCompletion::new(self.0.expect(PRESENT).rollback()).await
    }

    /// Executes a `COPY … FROM STDIN` with these bytes, and returns the number of rows. It runs to completion, because
    /// sqlx does not track the responses to a `COPY`: after a cancellation, the next user of the connection would read
    /// them. The transaction is then rolled back.
    pub(super) async fn copy_in(&mut self, statement: &'static str, bytes: Vec<u8>) -> sqlx::Result<u64> {
        let mut transaction = self.0.take().expect(PRESENT);
        let copy = async move {
            let copied = copy_in(&mut transaction, statement, &bytes).await;
            (transaction, copied)
        };
        let (transaction, copied) = RunToCompletion::new(copy).await;
        self.0 = Some(transaction);
        copied
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect(PRESENT)
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect(PRESENT)
    }
}

async fn copy_in(conn: &mut PgConnection, statement: &str, bytes: &[u8]) -> sqlx::Result<u64> {
    let mut copy = conn.copy_in_raw(statement).await?;
    copy.send(bytes).await?;
    copy.finish().await
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
