//! Moves CPU-heavy invocations off the threads that serve requests.
//!
//! Most interactive functions compute for less than a millisecond and run on the threads that serve requests. A
//! function that needs more time continues on a thread pool with lower priority, so the operating system prefers the
//! serving threads, whatever the function does. A function that recently used more time starts on that pool.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::context::TokioContext;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::cpu_time::CpuTime;
use super::priority_class::PriorityClass;

/// An invocation that has used more CPU time continues on a thread pool.
const SHORT: Duration = Duration::from_millis(10);
/// A function whose average CPU time is longer starts on a thread pool. Otherwise a function that fails at once in each
/// of many calls, for example with a full stack after half a millisecond, would keep the serving threads busy.
const USUALLY_SHORT: Duration = Duration::from_micros(250);
/// The number of invocations over which the average of a function's CPU time is formed, roughly.
const AVERAGED_INVOCATIONS: u32 = 4;

/// The thread pools for CPU-heavy invocations.
pub(super) struct CpuExecutor {
    /// For invocations whose caller waits.
    interactive: ThreadPool,
    background: ThreadPool,
}

impl CpuExecutor {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            interactive: ThreadPool::new("guests", 10)?,
            background: ThreadPool::new("background guests", 15)?,
        })
    }

    /// Drives one invocation until it finishes. Returns its output and the runtime on which it finished, so that the
    /// caller can clean up there.
    pub(super) async fn drive<W>(
        &self,
        work: W,
        priority: PriorityClass,
        is_usually_short: bool,
        cpu: &CpuTime,
    ) -> (W::Output, Handle)
    where
        W: Future<Output: Send + 'static> + Send + 'static,
    {
        let here = Handle::current();
        let mut work = Box::pin(work);
        if is_usually_short {
            let short_work = poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if cpu.total() > SHORT => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            if let Some(output) = short_work.await {
                return (output, here);
            }
        }
        let pool = match priority {
            PriorityClass::Interactive => self.interactive.handle(),
            PriorityClass::Background => self.background.handle(),
        };
        // Its timers and sockets remain with the serving runtime.
        let task = pool.spawn(TokioContext::new(work.in_current_span(), here));
        match AbortOnDropHandle::new(task).await {
            Ok(output) => (output, pool),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The task is cancelled only when the host shuts down.
                Err(_cancelled) => std::future::pending().await,
            },
        }
    }
}

/// Threads that only run functions.
struct ThreadPool(Option<Runtime>);

impl ThreadPool {
    fn new(name: &str, niceness: i32) -> std::io::Result<Self> {
        // The functions of one pool leave one processor to other work.
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(processors.saturating_sub(1).max(1))
            .thread_name(name)
            .on_thread_start(move || lower_priority(niceness))
            // A computing guest yields into its thread's own queue at every tick. Checking the global queue as often
            // lets new invocations start.
            .global_queue_interval(1)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().expect("the runtime exists until the pool is dropped").handle().clone()
    }
}

impl Drop for ThreadPool {
    /// Shuts down without waiting, because asynchronous code must not block.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Linux has a niceness for each thread. On other systems, the pools only limit the number of functions that compute
/// concurrently.
fn lower_priority(niceness: i32) {
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::setpriority_process(None, niceness)
    {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "could not lower the priority of the threads that run functions"
        );
    }
}

/// The average CPU time of each function of a component.
#[derive(Default)]
pub(super) struct UsualCpuTime(Mutex<HashMap<String, Duration>>);

impl UsualCpuTime {
    /// A function without measurements counts as short.
    pub(super) fn is_usually_short(&self, function: &str) -> bool {
        let usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usual.get(function).is_none_or(|usual| *usual <= USUALLY_SHORT)
    }

    pub(super) fn note(&self, function: &str, cpu: Duration) {
        let mut usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match usual.get_mut(function) {
            Some(usual) => *usual = (*usual * (AVERAGED_INVOCATIONS - 1) + cpu) / AVERAGED_INVOCATIONS,
            None => {
                usual.insert(function.to_owned(), cpu);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_classified_by_its_average_cpu_time() {
        let (short, long) = (USUALLY_SHORT / 20, USUALLY_SHORT * 3);
        let usual_cpu = UsualCpuTime::default();
        assert!(usual_cpu.is_usually_short("f"), "it has no measurements");
        usual_cpu.note("f", short);
        usual_cpu.note("f", long);
        assert!(usual_cpu.is_usually_short("f"), "one long invocation does not decide");
        for _ in 0..3 {
            usual_cpu.note("f", long);
        }
        assert!(!usual_cpu.is_usually_short("f"));
        assert!(usual_cpu.is_usually_short("g"), "another function");
        for _ in 0..8 {
            usual_cpu.note("f", short);
        }
        assert!(usual_cpu.is_usually_short("f"), "the average has fallen");
    }

    #[tokio::test]
    async fn a_long_computation_leaves_the_serving_threads() {
        let cpu_executor = CpuExecutor::new().unwrap();
        let cpu = std::sync::Arc::new(CpuTime::default());
        let charged = std::sync::Arc::clone(&cpu);
        let work = async move {
            let began = std::thread::current().id();
            charged.charge(SHORT * 2);
            tokio::task::yield_now().await;
            // The timers belong to the serving runtime.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (began, std::thread::current().id())
        };
        let ((began, ended), _) = cpu_executor.drive(work, PriorityClass::Background, true, &cpu).await;
        assert_eq!(began, std::thread::current().id());
        assert_ne!(ended, began);
    }

    #[tokio::test]
    async fn dropping_the_caller_cancels_the_work_on_the_pool() {
        let cpu_executor = CpuExecutor::new().unwrap();
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let work = async move {
            let _alive = alive;
            loop {
                tokio::task::yield_now().await;
            }
        };
        let cpu = CpuTime::default();
        let drive = cpu_executor.drive(work, PriorityClass::Interactive, false, &cpu);
        assert!(tokio::time::timeout(Duration::from_millis(20), drive).await.is_err());
        assert_eq!(ended.recv().await, None);
    }
}
