//! One invocation: a fresh instance, its limits, and what became of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::PollSemaphore;
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::bindings::Integration;
use super::imports::{GuestState, Panic};
use super::stdio::Output;
use super::{Capabilities, Failure, Interrupt, Limit, Limits, LogLevel, PreparedComponent, RunLog, Runtime};

/// What computes for less is never kept waiting: most functions that somebody waits for.
const FREE_CPU: Duration = Duration::from_millis(50);

/// A function to run.
#[derive(Debug)]
pub struct Call<'a> {
    /// `sync`, `action`, …, as the world names them.
    pub kind: &'a str,
    pub name: &'a str,
    /// JSON text.
    pub input: Option<&'a String>,
    /// What the guest sees as environment variables of its process.
    pub variables: &'a [(String, String)],
}

/// What an invocation has used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub peak_memory_bytes: usize,
    pub requests: u64,
}

/// An invocation that is over.
#[derive(Debug)]
pub struct Finished {
    /// The function's value as JSON text, if it returned one.
    pub result: Result<Option<String>, InvokeError>,
    pub usage: Usage,
}

#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// The function returned a failure.
    #[error("{}", .0.message)]
    Failed(Failure),
    /// The guest panicked, or did what WebAssembly forbids. The backtrace is in the run's log.
    #[error("the function crashed: {0}")]
    Crashed(String),
    #[error("{0}")]
    Limit(Limit),
    #[error("the provider wants no requests for {} s", retry_after.as_secs_f64().ceil())]
    RateLimited { retry_after: Duration },
    #[error("a later attempt has taken over")]
    Superseded,
    #[error("the host failed")]
    Host(#[source] anyhow::Error),
}

/// A live instance.
pub(super) struct Guest<'s> {
    pub(super) store: &'s mut Store<GuestState>,
    pub(super) instance: Integration,
}

impl Runtime {
    /// Runs one function to its end, waiting for a free slot first.
    pub async fn invoke(
        &self,
        component: &PreparedComponent,
        call: Call<'_>,
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: &RunLog,
    ) -> Finished {
        let output_bytes = limits.output_bytes;
        let mut finished = self
            .run(component, capabilities, limits, log, call.variables, async |guest: Guest<'_>| {
                let functions = guest.instance.syncline_integration_functions();
                functions.call_invoke(guest.store, call.kind, call.name, call.input).await
            })
            .await;
        if let Ok(Some(output)) = &finished.result
            && output.len() > output_bytes
        {
            finished.result = Err(InvokeError::Limit(Limit::Output(output_bytes)));
        }
        finished
    }

    pub(super) async fn run<F>(
        &self,
        component: &PreparedComponent,
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: &RunLog,
        variables: &[(String, String)],
        call: F,
    ) -> Finished
    where
        F: AsyncFnOnce(Guest<'_>) -> wasmtime::Result<Result<Option<String>, Failure>>,
    {
        let slot = Arc::clone(&self.slots).acquire_owned().await.expect("the semaphore is never closed");
        let output = Output::new(log);
        let state = GuestState::new(capabilities, limits, log.clone(), &output, variables);
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));

        let cpu = CpuTime::default();
        let work = async {
            let instance = component.pre.instantiate_async(&mut store).await?;
            call(Guest { store: &mut store, instance }).await
        };
        let turns = PollSemaphore::new(Arc::clone(&self.turns));
        let work = Metered { work, cpu: &cpu, limit: limits.cpu, turns };
        let outcome = tokio::time::timeout(limits.wall, work).await;
        // What the guest said last comes before what the host has to say of its end.
        drop(output);
        let state = store.data();
        let usage = Usage {
            cpu: cpu.total(),
            peak_memory_bytes: state.memory.peak_bytes,
            requests: state.requests(),
        };
        let result = match outcome {
            Err(_elapsed) => Err(InvokeError::Limit(Limit::Wall(limits.wall))),
            Ok(Err(limit)) => Err(InvokeError::Limit(limit)),
            Ok(Ok(Ok(Ok(output)))) => Ok(output),
            Ok(Ok(Ok(Err(failure)))) => Err(InvokeError::Failed(failure)),
            Ok(Ok(Err(error))) => Err(explain(error, state.memory.refused, state.panic.clone(), log)),
        };
        // Making the instance's memory anew takes about as long as a short function: whoever waits for the result
        // gets it first.
        tokio::spawn(async move {
            drop(store);
            drop(slot);
        });
        Finished { result, usage }
    }
}

/// Says why a guest did not return.
fn explain(
    error: wasmtime::Error,
    refused: Option<Limit>,
    panic: Option<Panic>,
    log: &RunLog,
) -> InvokeError {
    let error = match error.downcast::<Interrupt>() {
        Ok(Interrupt::Limit(limit)) => return InvokeError::Limit(limit),
        Ok(Interrupt::RateLimited { retry_after }) => return InvokeError::RateLimited { retry_after },
        Ok(Interrupt::Superseded) => return InvokeError::Superseded,
        Ok(Interrupt::Host(error)) => return InvokeError::Host(error),
        Err(error) => error,
    };
    if let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() {
        log.note(LogLevel::Error, &format!("backtrace of the crash:\n{}", frames(backtrace)));
    }
    // A guest that gets no memory gives up in its own way; the cause is the limit.
    if let Some(limit) = refused {
        return InvokeError::Limit(limit);
    }
    if let Some(panic) = panic {
        let place = panic.location.map(|location| format!(" ({location})")).unwrap_or_default();
        return InvokeError::Crashed(format!("{}{place}", panic.message));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => InvokeError::Limit(Limit::Stack),
        Some(trap) => InvokeError::Crashed(trap.to_string()),
        None => match error.downcast_ref::<I32Exit>() {
            Some(exit) => InvokeError::Crashed(format!("it called exit({})", exit.0)),
            None => InvokeError::Crashed(error.root_cause().to_string()),
        },
    }
}

fn frames(backtrace: &WasmBacktrace) -> String {
    let line = |frame: &wasmtime::FrameInfo| match frame.func_name() {
        Some(name) => format!("  {}", rustc_demangle::demangle(name)),
        None => format!("  function {}", frame.func_index()),
    };
    backtrace.frames().iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Processor time, as it is charged.
#[derive(Default)]
struct CpuTime(AtomicU64);

impl CpuTime {
    fn charge(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

pin_project! {
    /// Charges the processor time of every poll, and ends the work when it has used its share. A guest yields at
    /// every tick of the epoch, so no poll lasts for long; and one that has computed for a while waits for its turn
    /// before each, so that those who compute leave a thread to the others.
    struct Metered<'a, W> {
        #[pin]
        work: W,
        cpu: &'a CpuTime,
        limit: Duration,
        turns: PollSemaphore,
    }
}

impl<W: Future> Future for Metered<'_, W> {
    type Output = Result<W::Output, Limit>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.cpu.total() > *this.limit {
            return Poll::Ready(Err(Limit::Cpu(*this.limit)));
        }
        let _turn = if this.cpu.total() > FREE_CPU { ready!(this.turns.poll_acquire(cx)) } else { None };
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
