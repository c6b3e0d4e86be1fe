//! Measures the CPU time of an invocation and ends it at its limit.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use rustix::time::{ClockId, clock_gettime};

use super::Limit;

/// The CPU time that was charged so far.
#[derive(Default)]
pub(super) struct CpuTime(AtomicU64);

impl CpuTime {
    pub(super) fn charge(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

pin_project! {
    /// Charges the CPU time of every poll, on any thread, and ends the work when the limit is reached. A guest yields
    /// at every tick of the epoch, so each poll is short.
    pub(super) struct Metered<W> {
        #[pin]
        work: W,
        cpu: Arc<CpuTime>,
        limit: Duration,
    }
}

impl<W> Metered<W> {
    pub(super) fn new(work: W, cpu: Arc<CpuTime>, limit: Duration) -> Self {
        Self { work, cpu, limit }
    }
}

impl<W: Future> Future for Metered<W> {
    type Output = Result<W::Output, Limit>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.cpu.total() > *this.limit {
            return Poll::Ready(Err(Limit::Cpu(*this.limit)));
        }
        let before = thread_time();
        let polled = this.work.poll(cx);
        this.cpu.charge(thread_time().saturating_sub(before));
        polled.map(Ok)
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}
