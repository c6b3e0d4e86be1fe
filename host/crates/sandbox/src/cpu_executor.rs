//! Who computes where.
//!
//! Most functions that somebody waits for compute for less than a millisecond, on the threads that serve requests.
//! One that needs more goes on in a lane: a few threads of a lower priority, so that the operating system lets
//! whoever serves go first, whatever a function does. A function that needed more the last times begins there.

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

/// What has computed for longer goes on in a lane.
const SHORT: Duration = Duration::from_millis(10);
/// What usually computes for longer begins in a lane.
const USUALLY_SHORT: Duration = Duration::from_millis(1);
/// How many of the latest invocations decide about what is usual, roughly.
const REMEMBERED: u32 = 4;

/// The lanes of one host.
pub(super) struct CpuExecutor {
    /// For what somebody waits for.
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

    /// Drives one invocation to its end. Gives its value and where it ended, so that it is cleared away there.
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
            let light = poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if cpu.total() > SHORT => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            if let Some(output) = light.await {
                return (output, here);
            }
        }
        let pool = match priority {
            PriorityClass::Interactive => self.interactive.handle(),
            PriorityClass::Background => self.background.handle(),
        };
        // Its timers and sockets stay with the runtime that serves.
        let task = pool.spawn(TokioContext::new(work.in_current_span(), here));
        match AbortOnDropHandle::new(task).await {
            Ok(output) => (output, pool),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The host is stopping.
                Err(_cancelled) => std::future::pending().await,
            },
        }
    }
}

/// A few threads that only compute.
struct ThreadPool(Option<Runtime>);

impl ThreadPool {
    fn new(name: &str, niceness: i32) -> std::io::Result<Self> {
        // Together, functions of one lane leave a processor to the others.
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(processors.saturating_sub(1).max(1))
            .thread_name(name)
            .on_thread_start(move || lower_priority(niceness))
            // Who computes yields to itself at every tick: whoever comes new is looked at as often.
            .global_queue_interval(1)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle().clone()
    }
}

impl Drop for ThreadPool {
    /// Without waiting, which asynchronous code may not do.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Linux has a niceness for each thread; elsewhere the lanes only bound how many functions compute at once.
fn lower_priority(niceness: i32) {
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::setpriority_process(None, niceness)
    {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "functions compute at the host's own priority"
        );
    }
}

/// How much processor time each function of a component usually takes.
#[derive(Default)]
pub(super) struct UsualCpuTime(Mutex<HashMap<String, Duration>>);

impl UsualCpuTime {
    /// A function that is not known counts as light.
    pub(super) fn is_usually_short(&self, function: &str) -> bool {
        let usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usual.get(function).is_none_or(|usual| *usual <= USUALLY_SHORT)
    }

    pub(super) fn note(&self, function: &str, cpu: Duration) {
        let mut usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match usual.get_mut(function) {
            Some(usual) => *usual = (*usual * (REMEMBERED - 1) + cpu) / REMEMBERED,
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
    fn a_function_is_heavy_as_long_as_it_usually_is() {
        let usual_cpu = UsualCpuTime::default();
        assert!(usual_cpu.is_usually_short("f"), "nothing is known of it");
        usual_cpu.note("f", Duration::from_micros(50));
        usual_cpu.note("f", Duration::from_millis(3));
        assert!(usual_cpu.is_usually_short("f"), "once is no habit");
        for _ in 0..3 {
            usual_cpu.note("f", Duration::from_millis(3));
        }
        assert!(!usual_cpu.is_usually_short("f"));
        assert!(usual_cpu.is_usually_short("g"), "another function");
        for _ in 0..8 {
            usual_cpu.note("f", Duration::from_micros(50));
        }
        assert!(usual_cpu.is_usually_short("f"), "it has changed");
    }

    #[tokio::test]
    async fn whoever_computes_for_long_leaves_the_threads_that_serve() {
        let cpu_executor = CpuExecutor::new().unwrap();
        let cpu = std::sync::Arc::new(CpuTime::default());
        let charged = std::sync::Arc::clone(&cpu);
        let work = async move {
            let began = std::thread::current().id();
            charged.charge(SHORT * 2);
            tokio::task::yield_now().await;
            // Timers are those of the runtime it came from.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (began, std::thread::current().id())
        };
        let ((began, ended), _) = cpu_executor.drive(work, PriorityClass::Background, true, &cpu).await;
        assert_eq!(began, std::thread::current().id());
        assert_ne!(ended, began);
    }

    #[tokio::test]
    async fn whoever_no_longer_waits_ends_the_work_in_its_lane() {
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
