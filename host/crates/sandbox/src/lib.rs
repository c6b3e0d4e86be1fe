//! Runs functions: WebAssembly components of the world in `wit/`, each invocation in a new sandbox.
//!
//! The runtime does not depend on HTTP, schedules or Postgres. The caller grants access to them as [`Capabilities`].

mod bindings;
mod capabilities;
mod compiler;
mod component;
mod cpu_executor;
mod cpu_time;
mod error;
mod function_cache;
mod imports;
mod invocation;
mod limits;
mod log;
mod permits;
mod priority_class;
mod requests;
mod sources;
mod stdio;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    WasmBacktraceDetails,
};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::bindings::io::poll;

pub use self::bindings::syncline::integration::provider::{Request, Response};
pub use self::bindings::syncline::integration::records::{Batch, Change, Counts, Deletion};
pub use self::bindings::syncline::integration::types::Failure;
pub use self::capabilities::{Capabilities, ConnectionInfo, ProviderClient, RunInfo};
pub use self::compiler::{CompileError, CompiledCache, run_compiler};
pub use self::component::{
    ComponentDigest, DescribedFunction, DescribedSdk, Description, InvalidComponent, PreparedComponent,
};
pub use self::error::{FunctionError, GuestError, Interrupt};
use self::function_cache::FunctionCache;
pub use self::invocation::{Call, Finished, Usage};
pub use self::limits::{Limit, Limits};
pub use self::log::{LogEntry, LogLevel, RunLog};
pub use self::priority_class::PriorityClass;
pub use self::sources::{InvalidRandomSeed, RandomSeed, Sources, SteppedClock, Timeline};

use self::cpu_executor::CpuExecutor;
use self::imports::GuestState;
use self::permits::InvocationPermits;

/// How often running guests yield, so that no guest blocks a thread for longer.
const EPOCH_TICK: Duration = Duration::from_millis(5);

/// Settings of the sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSettings {
    /// The maximum number of concurrent invocations, including those that wait for a provider. Further invocations
    /// wait for a permit. A quarter of the permits is reserved for invocations whose caller waits.
    pub max_invocations: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("could not set up the WebAssembly engine")]
pub struct SetupError(#[source] wasmtime::Error);

/// The engine, and the imports that every component is linked with.
pub struct Sandbox {
    engine: Engine,
    linker: Linker<GuestState>,
    permits: InvocationPermits,
    cpu_executor: CpuExecutor,
    compiled: CompiledCache,
}

impl Sandbox {
    pub fn new(settings: &SandboxSettings, compiled: CompiledCache) -> Result<Self, SetupError> {
        let engine = engine(Some(settings), None).map_err(SetupError)?;
        let linker = linker(&engine).map_err(SetupError)?;
        tick_epochs(&engine);
        Ok(Self {
            engine,
            linker,
            permits: InvocationPermits::new(settings.max_invocations as usize),
            cpu_executor: CpuExecutor::new().map_err(|error| SetupError(error.into()))?,
            compiled,
        })
    }
}

/// Creates an engine. The compiler's engine and the runtime's engine must have the same settings, except for the
/// allocation strategy.
fn engine(
    settings: Option<&SandboxSettings>,
    functions: Option<Arc<FunctionCache>>,
) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        // Produces the same bits for the same input, so that runs can be reproduced.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .epoch_interruption(true)
        // The host never calls a guest concurrently, and the bookkeeping for it makes each call slower.
        .concurrency_support(false)
        .wasm_memory64(false)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .memory_init_cow(true)
        .max_wasm_stack(1 << 20)
        .async_stack_size(2 << 20);
    if let Some(settings) = settings {
        let count = settings.max_invocations;
        let mut pool = PoolingAllocationConfig::new();
        // A component may consist of several core modules: its own, and the adapters that its build added.
        pool.total_component_instances(count)
            .total_core_instances(count.saturating_mul(4))
            .total_memories(count.saturating_mul(2))
            .total_tables(count.saturating_mul(4))
            .total_stacks(count)
            .max_core_instances_per_component(16)
            .max_memories_per_component(4)
            .max_tables_per_component(16)
            .max_component_instance_size(1 << 20)
            .max_core_instance_size(1 << 20)
            .table_elements(limits::MAX_TABLE_ELEMENTS)
            .max_memory_size(Limits::MAX_MEMORY_BYTES)
            // Memory that stays mapped in a free slot makes its reuse cheaper, but every slot that was ever used
            // keeps it.
            .linear_memory_keep_resident(256 << 10)
            // Resets only the pages that were written, if the kernel reports them (Linux 6.7).
            .pagemap_scan(Enabled::Auto)
            .table_keep_resident(16 << 10)
            .async_stack_keep_resident(16 << 10)
            .max_unused_warm_slots(64);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    if let Some(functions) = functions {
        config.enable_incremental_compilation(functions)?;
    }
    Engine::new(&config)
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    // A guest's standard library imports all of WASI. Each guest's context decides what the guest may use.
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    // Replays decide how a guest waits.
    linker.allow_shadowing(true);
    poll::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    monotonic_clock::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    linker.allow_shadowing(false);
    bindings::Integration::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Advances the engine's epoch until the engine is dropped.
fn tick_epochs(engine: &Engine) {
    let engine = engine.weak();
    std::thread::Builder::new()
        .name("epochs".to_owned())
        .spawn(move || {
            while let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(EPOCH_TICK);
            }
        })
        .expect("the host can start a thread");
}
