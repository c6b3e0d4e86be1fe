//! One invocation: a new instance, its limits, and its result.

use std::sync::Arc;
use std::time::Duration;

use syncline_types::functions::FunctionKind;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::bindings::{Integration, IntegrationPre};
use super::cpu_time::{CpuTime, Metered};
use super::imports::{GuestState, Panic};
use super::permits::InvocationPermit;
use super::priority_class::PriorityClass;
use super::requests::{InterruptReceiver, interrupt_channel};
use super::sources::Sources;
use super::stdio::Output;
use super::{
    Capabilities, Failure, FunctionError, Interrupt, Limit, Limits, LogLevel, PreparedComponent, RunLog,
    Sandbox,
};

/// A function to run.
#[derive(Debug)]
pub struct Call<'a> {
    pub kind: FunctionKind,
    pub name: &'a str,
    pub priority: PriorityClass,
    /// JSON text.
    pub input: Option<&'a String>,
    /// The environment variables of the guest's process.
    pub variables: &'a [(String, String)],
    pub sources: Sources,
}

/// How an invocation is scheduled, the environment variables of its process, and its sources of time and random
/// numbers.
#[derive(Debug, Clone)]
pub(super) struct Setting<'a> {
    pub(super) priority: PriorityClass,
    pub(super) variables: &'a [(String, String)],
    pub(super) sources: Sources,
}

/// The resources that an invocation used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub peak_memory_bytes: usize,
    pub requests: u64,
}

/// A finished invocation.
#[derive(Debug)]
pub struct Finished {
    /// The function's value as JSON text, if it returned one.
    pub result: Result<Option<String>, FunctionError>,
    pub usage: Usage,
}

/// The export of a component to call.
pub(super) enum Export {
    Describe,
    Invoke { kind: FunctionKind, name: String, input: Option<String> },
}

impl Export {
    /// The name under which CPU use is recorded. Functions of different kinds rarely share a name.
    fn name(&self) -> &str {
        match self {
            Self::Describe => "",
            Self::Invoke { name, .. } => name,
        }
    }

    async fn call(&self, instance: &Integration, store: &mut Store<GuestState>) -> wasmtime::Result<End> {
        let functions = instance.syncline_integration_functions();
        match self {
            Self::Describe => functions.call_describe(store).await.map(|json| End::Returned(Some(json))),
            Self::Invoke { kind, name, input } => {
                let returned = functions.call_invoke(store, kind.as_str(), name, input.as_ref()).await?;
                Ok(returned.map_or_else(End::Failed, End::Returned))
            }
        }
    }
}

impl Sandbox {
    /// Waits for a permit and runs one function. The wait counts towards its wall time.
    pub async fn invoke(
        &self,
        component: &PreparedComponent,
        call: Call<'_>,
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: &RunLog,
    ) -> Finished {
        let export =
            Export::Invoke { kind: call.kind, name: call.name.to_owned(), input: call.input.cloned() };
        let setting = Setting { priority: call.priority, variables: call.variables, sources: call.sources };
        let Finished { result, usage } =
            self.run(component, export, capabilities, limits, log, setting).await;
        let result = match result {
            Ok(Some(output)) if output.len() > limits.output_bytes => {
                Err(Interrupt::Limit(Limit::Output(limits.output_bytes)).into())
            }
            other => other,
        };
        Finished { result, usage }
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
        let Ok(permit) = timeout_at(ends_at, self.permits.acquire(setting.priority)).await else {
            let result = Err(Interrupt::Limit(Limit::Wall(limits.wall)).into());
            return Finished { result, usage: Usage::default() };
        };
        let output = Output::new(log);
        let (interrupts, interrupted) = interrupt_channel();
        let is_replayed = setting.sources.timeline().is_some();
        let Setting { priority, variables, sources } = setting;
        let state =
            GuestState::new(capabilities, limits, log.clone(), &output, variables, sources, interrupts);
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        if is_replayed {
            // A guest that yielded by the clock would let other tasks run at random points.
            let (began, cpu) = (Instant::now(), limits.cpu);
            store.epoch_deadline_callback(move |_| match began.elapsed() > cpu {
                true => Err(Interrupt::Limit(Limit::Cpu(cpu)).into()),
                false => Ok(UpdateDeadline::Continue(1)),
            });
        } else {
            store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        }

        let cpu = Arc::new(CpuTime::default());
        let name = export.name().to_owned();
        let is_usually_short = component.usual_cpu.is_usually_short(&name);
        let pre = component.pre.clone();
        let bounds = Bounds { cpu: Arc::clone(&cpu), cpu_limit: limits.cpu, ends_at, interrupted };
        let work = execute(permit, pre, export, store, bounds);
        let ((end, store, permit), ended_on) = if is_replayed {
            (work.await, Handle::current())
        } else {
            self.cpu_executor.drive(work, priority, is_usually_short, &cpu).await
        };
        component.usual_cpu.note(&name, cpu.total());
        // Flushes the guest's last output before the host adds its own lines.
        drop(output);
        let state = store.data();
        let usage = Usage {
            cpu: cpu.total(),
            peak_memory_bytes: state.memory.peak_bytes,
            requests: state.requests.count(),
        };
        let result = match end {
            End::WallTime => Err(Interrupt::Limit(Limit::Wall(limits.wall)).into()),
            End::Limit(limit) => Err(Interrupt::Limit(limit).into()),
            End::Returned(output) => Ok(output),
            End::Failed(failure) => {
                hint_at_files(&failure.message, log);
                Err(FunctionError::failed(failure, log, limits.output_bytes))
            }
            End::Trapped(error) => {
                // For more than 2 GB, Rust's standard library panics and does not even request the memory.
                let is_huge = |panic: &&Panic| panic.message == "capacity overflow";
                let huge = state.panic.as_ref().filter(is_huge).map(|_| Limit::Memory(limits.memory_bytes));
                let refused = state.memory.refused.or(huge);
                Err(explain(error, refused, state.panic.as_ref(), log, limits.output_bytes))
            }
        };
        // Resetting the instance's memory takes about as long as a short function, so the result is returned first.
        // A replay leaves no task behind for the next one.
        let clean_up = async move {
            drop(store);
            drop(permit);
        };
        if is_replayed {
            clean_up.await;
        } else {
            ended_on.spawn(clean_up);
        }
        Finished { result, usage }
    }
}

/// How an invocation ended.
enum End {
    Returned(Option<String>),
    Failed(Failure),
    Trapped(wasmtime::Error),
    /// It used more processor time than its limit.
    Limit(Limit),
    WallTime,
}

/// What can end an invocation before it returns.
struct Bounds {
    cpu: Arc<CpuTime>,
    cpu_limit: Duration,
    ends_at: Instant,
    interrupted: InterruptReceiver,
}

/// Creates an instance and calls it. Owns everything it uses, so that it can move to another executor. The permit is
/// the first parameter and therefore dropped last: a cancelled call releases its permit only after its instance is
/// gone.
async fn execute(
    permit: InvocationPermit,
    pre: IntegrationPre<GuestState>,
    export: Export,
    mut store: Store<GuestState>,
    mut bounds: Bounds,
) -> (End, Store<GuestState>, InvocationPermit) {
    let call = async {
        let instance = pre.instantiate_async(&mut store).await?;
        export.call(&instance, &mut store).await
    };
    let work = async { call.await.unwrap_or_else(End::Trapped) };
    let metered = Metered::new(work, bounds.cpu, bounds.cpu_limit);
    let end = tokio::select! {
        metered = timeout_at(bounds.ends_at, metered) => match metered {
            Ok(metered) => metered.unwrap_or_else(End::Limit),
            Err(_elapsed) => End::WallTime,
        },
        // A request that runs concurrently with the guest ended the run.
        Some(interrupt) = bounds.interrupted.recv() => End::Trapped(interrupt.into()),
    };
    (end, store, permit)
}

/// Finds out why a guest did not return.
fn explain(
    error: wasmtime::Error,
    refused: Option<Limit>,
    panic: Option<&Panic>,
    log: &RunLog,
    max_bytes: usize,
) -> FunctionError {
    let error = match error.downcast::<Interrupt>() {
        Ok(interrupt) => return interrupt.into(),
        Err(error) => error,
    };
    if let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() {
        log.note(LogLevel::Error, &format!("backtrace of the crash:\n{}", frames(backtrace)));
    }
    // A guest that is refused memory usually traps; the cause is the limit.
    if let Some(limit) = refused {
        return Interrupt::Limit(limit).into();
    }
    if let Some(Panic { message, .. }) = panic {
        hint_at_files(message, log);
    }
    let trap = error.downcast_ref::<Trap>();
    if panic.is_none() && trap == Some(&Trap::StackOverflow) {
        return Interrupt::Limit(Limit::Stack).into();
    }
    let message = match (panic, trap, error.downcast_ref::<I32Exit>()) {
        (Some(Panic { message, location: Some(location) }), ..) => format!("{message} ({location})"),
        (Some(Panic { message, location: None }), ..) => message.clone(),
        (None, Some(trap), _) => trap.to_string(),
        // WASI 0.2 passes on only whether the process was successful.
        (None, None, Some(I32Exit(0))) => {
            "the function ended its process with a success status; return from the function instead"
                .to_owned()
        }
        (None, None, Some(I32Exit(_))) => {
            "the function ended its process with a failure status; return an error instead".to_owned()
        }
        (None, None, None) => error.root_cause().to_string(),
    };
    FunctionError::crashed(&message, log, max_bytes)
}

/// Explains the error code of a file that does not exist.
fn hint_at_files(message: &str, log: &RunLog) {
    if message.contains("os error 44") {
        log.note(LogLevel::Error, "functions have no files: include them in the component, or fetch them");
    }
}

fn frames(backtrace: &WasmBacktrace) -> String {
    let line = |frame: &wasmtime::FrameInfo| match frame.func_name() {
        Some(name) => format!("  {}", rustc_demangle::demangle(name)),
        None => format!("  function {}", frame.func_index()),
    };
    backtrace.frames().iter().map(line).collect::<Vec<_>>().join("\n")
}
