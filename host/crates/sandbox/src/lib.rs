//! Runs functions: WebAssembly components of the world in `wit/`, each invocation in a fresh sandbox.
//!
//! The runtime knows nothing of HTTP, schedules or Postgres. What a function may do beyond computing comes from
//! the caller as [`Capabilities`].

mod bindings;
mod capabilities;
mod compiler;
mod component;
mod cpu_time;
mod imports;
mod invocation;
mod lanes;
mod limits;
mod log;
mod slots;
mod stdio;
mod urgency;

use std::time::Duration;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    WasmBacktraceDetails,
};

pub use self::bindings::syncline::integration::provider::{Request, Response};
pub use self::bindings::syncline::integration::records::{Batch, Change, Counts, Deletion};
pub use self::bindings::syncline::integration::types::Failure;
pub use self::capabilities::{Capabilities, ConnectionInfo, Interrupt, Outcome, RunInfo};
pub use self::compiler::{CompileError, CompiledCache, run_compiler};
pub use self::component::{
    ComponentDigest, DescribedFunction, Description, InvalidComponent, PreparedComponent,
};
pub use self::invocation::{Call, Finished, InvokeError, Usage};
pub use self::limits::{Limit, Limits};
pub use self::log::{LogEntry, LogLevel, RunLog};
pub use self::urgency::Urgency;

use self::imports::GuestState;
use self::lanes::Lanes;
use self::slots::Slots;

/// How often running guests are made to yield, so that none holds a thread for longer.
const EPOCH_TICK: Duration = Duration::from_millis(5);

/// How the runtime shares the machine.
#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    /// How many invocations may be alive at once, also while they wait for a provider. More wait for a slot. A quarter
    /// is kept for what somebody waits for.
    pub max_invocations: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("the WebAssembly engine could not be set up")]
pub struct SetupError(#[source] wasmtime::Error);

/// The engine, and the imports that every component is linked with.
pub struct Runtime {
    engine: Engine,
    linker: Linker<GuestState>,
    slots: Slots,
    lanes: Lanes,
    compiled: CompiledCache,
}

impl Runtime {
    pub fn new(settings: &RuntimeSettings, compiled: CompiledCache) -> Result<Self, SetupError> {
        let engine = engine(Some(settings)).map_err(SetupError)?;
        let linker = linker(&engine).map_err(SetupError)?;
        tick_epochs(&engine);
        Ok(Self {
            engine,
            linker,
            slots: Slots::new(settings.max_invocations as usize),
            lanes: Lanes::new().map_err(|error| SetupError(error.into()))?,
            compiled,
        })
    }
}

/// An engine for code of one kind: whatever compiles and whatever runs must agree on everything here but the
/// allocation.
fn engine(settings: Option<&RuntimeSettings>) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        // A run can be replayed only if the same input gives the same bits.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .epoch_interruption(true)
        // Nothing here calls into a guest concurrently, and the bookkeeping for it costs each call dearly.
        .concurrency_support(false)
        .wasm_memory64(false)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .memory_init_cow(true)
        .max_wasm_stack(1 << 20)
        .async_stack_size(2 << 20);
    if let Some(settings) = settings {
        let count = settings.max_invocations;
        let mut pool = PoolingAllocationConfig::new();
        // A component may be several core modules: its own, and the adapters that its build put around it.
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
            // What stays mapped in a free slot is cheap to hand out again, and is paid for by every slot that
            // was ever used.
            .linear_memory_keep_resident(256 << 10)
            // Only pages that were written are made anew, where the kernel tells them (Linux 6.7).
            .pagemap_scan(Enabled::Auto)
            .table_keep_resident(16 << 10)
            .async_stack_keep_resident(16 << 10)
            .max_unused_warm_slots(64);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    Engine::new(&config)
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    // A guest's standard library imports all of WASI; what it is granted is decided in its own context.
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    bindings::Integration::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Advances the engine's clock for as long as the engine lives.
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
