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
use super::urgency::Urgency;

/// What has computed for longer goes on in a lane.
const LIGHT: Duration = Duration::from_millis(10);
/// What usually computes for longer begins in a lane.
const USUALLY_LIGHT: Duration = Duration::from_millis(1);
/// How many of the latest invocations decide about what is usual, roughly.
const REMEMBERED: u32 = 4;

/// The lanes of one host.
pub(super) struct Lanes {
    /// For what somebody waits for.
    waited_for: Lane,
    background: Lane,
}

impl Lanes {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { waited_for: Lane::new("guests", 10)?, background: Lane::new("background guests", 15)? })
    }

    /// Drives one invocation to its end. Gives its value and where it ended, so that it is cleared away there.
    pub(super) async fn drive<W>(
        &self,
        work: W,
        urgency: Urgency,
        is_usually_light: bool,
        cpu: &CpuTime,
    ) -> (W::Output, Handle)
    where
        W: Future<Output: Send + 'static> + Send + 'static,
    {
        let here = Handle::current();
        let mut work = Box::pin(work);
        if is_usually_light {
            let light = poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if cpu.total() > LIGHT => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            if let Some(output) = light.await {
                return (output, here);
            }
        }
        let lane = match urgency {
            Urgency::WaitedFor => self.waited_for.handle(),
            Urgency::Background => self.background.handle(),
        };
        // Its timers and sockets stay with the runtime that serves.
        let task = lane.spawn(TokioContext::new(work.in_current_span(), here));
        match AbortOnDropHandle::new(task).await {
            Ok(output) => (output, lane),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The host is stopping.
                Err(_cancelled) => std::future::pending().await,
            },
        }
    }
}

/// A few threads that only compute.
struct Lane(Option<Runtime>);

impl Lane {
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

impl Drop for Lane {
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
pub(super) struct Habits(Mutex<HashMap<String, Duration>>);

impl Habits {
    /// A function that is not known counts as light.
    pub(super) fn is_usually_light(&self, function: &str) -> bool {
        let usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        usual.get(function).is_none_or(|usual| *usual <= USUALLY_LIGHT)
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
        let habits = Habits::default();
        assert!(habits.is_usually_light("f"), "nothing is known of it");
        habits.note("f", Duration::from_micros(50));
        habits.note("f", Duration::from_millis(3));
        assert!(habits.is_usually_light("f"), "once is no habit");
        for _ in 0..3 {
            habits.note("f", Duration::from_millis(3));
        }
        assert!(!habits.is_usually_light("f"));
        assert!(habits.is_usually_light("g"), "another function");
        for _ in 0..8 {
            habits.note("f", Duration::from_micros(50));
        }
        assert!(habits.is_usually_light("f"), "it has changed");
    }

    #[tokio::test]
    async fn whoever_computes_for_long_leaves_the_threads_that_serve() {
        let lanes = Lanes::new().unwrap();
        let cpu = std::sync::Arc::new(CpuTime::default());
        let charged = std::sync::Arc::clone(&cpu);
        let work = async move {
            let began = std::thread::current().id();
            charged.charge(LIGHT * 2);
            tokio::task::yield_now().await;
            // Timers are those of the runtime it came from.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (began, std::thread::current().id())
        };
        let ((began, ended), _) = lanes.drive(work, Urgency::Background, true, &cpu).await;
        assert_eq!(began, std::thread::current().id());
        assert_ne!(ended, began);
    }

    #[tokio::test]
    async fn whoever_no_longer_waits_ends_the_work_in_its_lane() {
        let lanes = Lanes::new().unwrap();
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let work = async move {
            let _alive = alive;
            loop {
                tokio::task::yield_now().await;
            }
        };
        let cpu = CpuTime::default();
        let drive = lanes.drive(work, Urgency::WaitedFor, false, &cpu);
        assert!(tokio::time::timeout(Duration::from_millis(20), drive).await.is_err());
        assert_eq!(ended.recv().await, None);
    }
}
