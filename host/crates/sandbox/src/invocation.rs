//! One invocation: a fresh instance, its limits, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::bindings::{Integration, IntegrationPre};
use super::cpu_time::{CpuTime, Metered};
use super::imports::{GuestState, Panic};
use super::slots::Slot;
use super::stdio::Output;
use super::urgency::Urgency;
use super::{Capabilities, Failure, Interrupt, Limit, Limits, LogLevel, PreparedComponent, RunLog, Runtime};

/// A function to run.
#[derive(Debug)]
pub struct Call<'a> {
    /// `sync`, `action`, …, as the world names them.
    pub kind: &'a str,
    pub name: &'a str,
    pub urgency: Urgency,
    /// JSON text.
    pub input: Option<&'a String>,
    /// What the guest sees as environment variables of its process.
    pub variables: &'a [(String, String)],
}

/// What an invocation finds around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) urgency: Urgency,
    pub(super) variables: &'a [(String, String)],
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
    #[error("a later attempt has taken over, or the connection was deleted")]
    Superseded,
    #[error("the host failed")]
    Host(#[source] anyhow::Error),
}

/// What is called of a component.
pub(super) enum Export {
    Describe,
    Invoke { kind: String, name: String, input: Option<String> },
}

impl Export {
    /// Functions of one name are told apart by nothing else, as their names seldom meet.
    fn name(&self) -> &str {
        match self {
            Self::Describe => "",
            Self::Invoke { name, .. } => name,
        }
    }

    async fn call(
        &self,
        instance: &Integration,
        store: &mut Store<GuestState>,
    ) -> wasmtime::Result<Result<Option<String>, Failure>> {
        let functions = instance.syncline_integration_functions();
        match self {
            Self::Describe => functions.call_describe(store).await.map(|json| Ok(Some(json))),
            Self::Invoke { kind, name, input } => {
                functions.call_invoke(store, kind, name, input.as_ref()).await
            }
        }
    }
}

impl Runtime {
    /// Runs one function to its end, waiting for a free slot first. Its time begins with the waiting.
    pub async fn invoke(
        &self,
        component: &PreparedComponent,
        call: Call<'_>,
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: &RunLog,
    ) -> Finished {
        let export = Export::Invoke {
            kind: call.kind.to_owned(),
            name: call.name.to_owned(),
            input: call.input.cloned(),
        };
        let setting = Setting { urgency: call.urgency, variables: call.variables };
        let mut finished = self.run(component, export, capabilities, limits, log, setting).await;
        let most_bytes = limits.output_bytes;
        match &mut finished.result {
            Ok(Some(output)) if output.len() > most_bytes => {
                finished.result = Err(InvokeError::Limit(Limit::Output(most_bytes)));
            }
            // Why it failed is worth more than that it says too much of it.
            Err(InvokeError::Failed(failure)) => {
                cut(&mut failure.code, most_bytes);
                cut(&mut failure.message, most_bytes);
                failure.details.take_if(|details| details.len() > most_bytes);
            }
            Err(InvokeError::Crashed(message)) => cut(message, most_bytes),
            _ => {}
        }
        finished
    }

    pub(super) async fn run(
        &self,
        component: &PreparedComponent,
        export: Export,
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: &RunLog,
        setting: Setting<'_>,
    ) -> Finished {
        let ends_at = Instant::now() + limits.wall;
        let Ok(slot) = timeout_at(ends_at, self.slots.acquire(setting.urgency)).await else {
            let result = Err(InvokeError::Limit(Limit::Wall(limits.wall)));
            return Finished { result, usage: Usage::default() };
        };
        let output = Output::new(log);
        let state = GuestState::new(capabilities, limits, log.clone(), &output, setting.variables);
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));

        let cpu = Arc::new(CpuTime::default());
        let name = export.name().to_owned();
        let is_usually_light = component.habits.is_usually_light(&name);
        let work = execute(slot, component.pre.clone(), export, store, Arc::clone(&cpu), limits.cpu, ends_at);
        let ((end, store, slot), ended_on) =
            self.lanes.drive(work, setting.urgency, is_usually_light, &cpu).await;
        component.habits.note(&name, cpu.total());
        // What the guest said last comes before what the host has to say of its end.
        drop(output);
        let state = store.data();
        let usage = Usage {
            cpu: cpu.total(),
            peak_memory_bytes: state.memory.peak_bytes,
            requests: state.requests(),
        };
        let result = match end {
            End::WallTime => Err(InvokeError::Limit(Limit::Wall(limits.wall))),
            End::Limit(limit) => Err(InvokeError::Limit(limit)),
            End::Returned(Ok(output)) => Ok(output),
            End::Returned(Err(failure)) => Err(InvokeError::Failed(failure)),
            End::Trapped(error) => Err(explain(error, state.memory.refused, state.panic.clone(), log)),
        };
        // Making the instance's memory anew takes about as long as a short function: whoever waits for the result
        // gets it first.
        ended_on.spawn(async move {
            drop(store);
            drop(slot);
        });
        Finished { result, usage }
    }
}

/// How an invocation came to its end.
enum End {
    Returned(Result<Option<String>, Failure>),
    Trapped(wasmtime::Error),
    /// It has used more than its processor time.
    Limit(Limit),
    WallTime,
}

/// Makes an instance and calls it. Everything is owned, so that it can go on elsewhere. The slot comes first and so goes
/// last: where the work is dropped halfway, nobody gets the place before the instance has left it.
async fn execute(
    slot: Slot,
    pre: IntegrationPre<GuestState>,
    export: Export,
    mut store: Store<GuestState>,
    cpu: Arc<CpuTime>,
    cpu_limit: Duration,
    ends_at: Instant,
) -> (End, Store<GuestState>, Slot) {
    let work = async {
        let instance = pre.instantiate_async(&mut store).await?;
        export.call(&instance, &mut store).await
    };
    let end = match timeout_at(ends_at, Metered::new(work, cpu, cpu_limit)).await {
        Err(_elapsed) => End::WallTime,
        Ok(Err(limit)) => End::Limit(limit),
        Ok(Ok(Ok(returned))) => End::Returned(returned),
        Ok(Ok(Err(error))) => End::Trapped(error),
    };
    (end, store, slot)
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

fn cut(text: &mut String, most_bytes: usize) {
    text.truncate(text.floor_char_boundary(most_bytes));
}

fn frames(backtrace: &WasmBacktrace) -> String {
    let line = |frame: &wasmtime::FrameInfo| match frame.func_name() {
        Some(name) => format!("  {}", rustc_demangle::demangle(name)),
        None => format!("  function {}", frame.func_index()),
    };
    backtrace.frames().iter().map(line).collect::<Vec<_>>().join("\n")
}
