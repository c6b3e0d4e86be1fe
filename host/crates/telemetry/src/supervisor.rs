//! Runs the host's long-lived tasks: restarts one that panics, reports it, and ends all of them in order.
//!
//! A task is a function that creates a future. After a panic, the supervisor calls it again, with a growing delay. So
//! data that must survive a panic must be owned outside the future.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failpoints;
use crate::metrics::metrics;

/// Delay before a task that panicked starts again; it doubles with every further panic.
const FIRST_RESTART_DELAY: Duration = Duration::from_millis(200);
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(30);
/// A task that ran for this long without a panic starts over at the shortest delay.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Whether requests can be served while a task is not running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// Without it, requests fail or hang: `/ready` answers 503.
    Serving,
    /// Without it, background work waits: `/ready` reports the host as degraded.
    Background,
}

/// When a task ends during a shutdown. Stages end one after the other, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Claims and executes work. On shutdown it stops claiming and finishes the work in progress.
    Work,
    /// Keeps this host up to date for requests and runs that are still in progress.
    Upkeep,
    /// Stores the remaining output of the previous stages.
    Writing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The task panicked and waits for its restart.
    Failed,
    /// The task returned after the supervisor had asked it to end.
    Ended,
}

/// A task that is not running although the host is not shutting down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedTask {
    pub name: &'static str,
    pub importance: Importance,
}

/// Owns the host's long-lived tasks.
#[derive(Default)]
pub struct Supervisor {
    tasks: Mutex<Vec<Task>>,
}

struct Task {
    name: &'static str,
    importance: Importance,
    stage: Stage,
    state: Arc<Mutex<State>>,
    shutdown: CancellationToken,
    handle: JoinHandle<()>,
}

impl Supervisor {
    /// Starts a task under a name that is unique in the process. `start` is called again after each panic. The future
    /// that it returns ends soon after its token is cancelled, and not before.
    pub fn spawn<F>(
        &self,
        name: &'static str,
        importance: Importance,
        stage: Stage,
        mut start: impl FnMut(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        metrics().list_task(name);
        let shutdown = CancellationToken::new();
        let state = Arc::new(Mutex::new(State::Running));
        let handle = tokio::spawn({
            let (shutdown, state) = (shutdown.clone(), Arc::clone(&state));
            async move {
                let mut delays = restart_delays();
                while !shutdown.is_cancelled() {
                    set(&state, State::Running);
                    let began = Instant::now();
                    let run = AssertUnwindSafe(async {
                        failpoints::reach_task(name);
                        start(shutdown.clone()).await;
                    });
                    match run.catch_unwind().await {
                        Ok(()) if shutdown.is_cancelled() => break,
                        Ok(()) => tracing::error!(task.name = name, "a background task ended unexpectedly"),
                        Err(panic) => {
                            tracing::error!(
                                task.name = name,
                                panic = message_of(&*panic),
                                "a background task panicked"
                            );
                        }
                    }
                    metrics().count_task_failure(name);
                    set(&state, State::Failed);
                    if began.elapsed() >= STABLE_AFTER {
                        delays = restart_delays();
                    }
                    let delay = delays.next().unwrap_or(LONGEST_RESTART_DELAY);
                    shutdown.run_until_cancelled(tokio::time::sleep(delay)).await;
                }
                set(&state, State::Ended);
            }
        });
        let task = Task { name, importance, stage, state, shutdown, handle };
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// The tasks that panicked and have not been restarted yet.
    pub fn failed(&self) -> Vec<FailedTask> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = tasks.iter().filter(|task| get(&task.state) == State::Failed);
        failed.map(|task| FailedTask { name: task.name, importance: task.importance }).collect()
    }

    /// The names of all tasks, in the order in which they were started.
    pub fn names(&self) -> Vec<&'static str> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().map(|task| task.name).collect()
    }

    /// Asks the tasks of one stage to end, and waits until they have. A task that takes longer than `timeout` is
    /// aborted.
    pub async fn end_stage(&self, stage: Stage, timeout: Duration) {
        let ending: Vec<Task> = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.extract_if(.., |task| task.stage == stage).collect()
        };
        ending.iter().for_each(|task| task.shutdown.cancel());
        let deadline = Instant::now() + timeout;
        for mut task in ending {
            if tokio::time::timeout_at(deadline, &mut task.handle).await.is_err() {
                tracing::warn!(task.name = task.name, "a background task did not end in time and is aborted");
                task.handle.abort();
            }
        }
    }
}

fn restart_delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_RESTART_DELAY)
        .with_max_delay(LONGEST_RESTART_DELAY)
        .with_jitter()
        .without_max_times()
        .build()
}

fn set(state: &Mutex<State>, to: State) {
    *state.lock().unwrap_or_else(PoisonError::into_inner) = to;
}

fn get(state: &Mutex<State>) -> State {
    *state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct CountDrop(Arc<AtomicU32>);

    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn wait_until(mut condition: impl FnMut() -> bool) {
        let waited = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waited).await.expect("the condition holds in time");
    }

    #[tokio::test]
    async fn a_task_that_panics_is_reported_and_restarted_with_growing_delays() {
        let supervisor = Supervisor::default();
        let starts = Arc::new(Mutex::new(Vec::new()));
        supervisor.spawn("fragile", Importance::Background, Stage::Work, {
            let starts = Arc::clone(&starts);
            move |shutdown| {
                let starts = Arc::clone(&starts);
                async move {
                    let number = {
                        let mut starts = starts.lock().unwrap();
                        starts.push(Instant::now());
                        starts.len()
                    };
                    assert!(number > 3, "start {number} fails");
                    shutdown.cancelled().await;
                }
            }
        });
        let failed = FailedTask { name: "fragile", importance: Importance::Background };
        wait_until(|| supervisor.failed() == [failed.clone()]).await;
        wait_until(|| starts.lock().unwrap().len() == 4).await;
        wait_until(|| supervisor.failed().is_empty()).await;
        let starts = starts.lock().unwrap().clone();
        let delays: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(delays[2] > delays[0], "{delays:?}");
    }

    #[tokio::test]
    async fn stages_end_one_after_the_other() {
        let supervisor = Supervisor::default();
        let ended = Arc::new(Mutex::new(Vec::new()));
        for (name, stage, takes) in [("writer", Stage::Writing, 0), ("worker", Stage::Work, 50)] {
            let ended = Arc::clone(&ended);
            supervisor.spawn(name, Importance::Background, stage, move |shutdown| {
                let ended = Arc::clone(&ended);
                async move {
                    shutdown.cancelled().await;
                    tokio::time::sleep(Duration::from_millis(takes)).await;
                    ended.lock().unwrap().push(name);
                }
            });
        }
        tokio::task::yield_now().await;
        supervisor.end_stage(Stage::Work, Duration::from_secs(5)).await;
        assert_eq!(*ended.lock().unwrap(), ["worker"]);
        supervisor.end_stage(Stage::Writing, Duration::from_secs(5)).await;
        assert_eq!(*ended.lock().unwrap(), ["worker", "writer"]);
        assert_eq!(supervisor.names(), [] as [&str; 0]);
    }

    #[tokio::test]
    async fn a_task_that_does_not_end_is_aborted_after_the_timeout() {
        let supervisor = Supervisor::default();
        let drops = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&drops);
        supervisor.spawn("stubborn", Importance::Serving, Stage::Upkeep, move |_| {
            let guard = CountDrop(Arc::clone(&counted));
            async move {
                std::future::pending::<()>().await;
                drop(guard);
            }
        });
        tokio::task::yield_now().await;
        supervisor.end_stage(Stage::Upkeep, Duration::from_millis(50)).await;
        wait_until(|| drops.load(Ordering::Relaxed) == 1).await;
    }
}
