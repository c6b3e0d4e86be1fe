//! Implements the imports of the world: each converts its arguments and calls the capabilities of the invocation.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::bindings::syncline::integration::{
    checkpoint, connection, environment, log, provider, records, run, types,
};
use super::limits::MemoryLimiter;
use super::requests::{InterruptSender, Requests};
use super::sources::Sources;
use super::stdio::Output;
use super::{Capabilities, GuestError, Interrupt, Limits, LogLevel, RunLog};

/// Everything that belongs to one invocation.
pub(super) struct GuestState {
    pub(super) wasi: WasiCtx,
    http: WasiHttpCtx,
    pub(super) table: ResourceTable,
    pub(super) sources: Sources,
    capabilities: Box<dyn Capabilities>,
    pub(super) requests: Requests,
    log: RunLog,
    pub(super) memory: MemoryLimiter,
    pub(super) panic: Option<Panic>,
}

/// The panic that a guest reported before it trapped.
#[derive(Debug, Clone)]
pub(super) struct Panic {
    pub(super) message: String,
    pub(super) location: Option<String>,
}

impl GuestState {
    pub(super) fn new(
        capabilities: Box<dyn Capabilities>,
        limits: &Limits,
        log: RunLog,
        output: &Output,
        variables: &[(String, String)],
        sources: Sources,
        interrupts: InterruptSender,
    ) -> Self {
        let mut wasi = WasiCtxBuilder::new();
        if let Some((clock, seed)) = sources.stepped() {
            wasi.wall_clock(clock.clone())
                .monotonic_clock(clock.clone())
                .secure_random(seed.bytes("secure"))
                .insecure_random(seed.bytes("insecure"))
                .insecure_random_seed(seed.bytes("insecure seed").next_u128());
        }
        // No directory is open; sockets and name lookup are disabled.
        let wasi = wasi
            .stdout(output.stdout.clone())
            .stderr(output.stderr.clone())
            .envs(variables)
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .build();
        Self {
            wasi,
            http: WasiHttpCtx::new(),
            table: ResourceTable::new(),
            requests: Requests::new(
                capabilities.provider(),
                limits,
                log.clone(),
                interrupts,
                sources.timeline().cloned(),
            ),
            sources,
            capabilities,
            log,
            memory: MemoryLimiter::new(limits),
            panic: None,
        }
    }
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for GuestState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.requests }
    }
}

impl types::Host for GuestState {
    fn convert_failure(&mut self, error: GuestError) -> wasmtime::Result<types::Failure> {
        match error {
            GuestError::Failure(failure) => Ok(failure),
            GuestError::Interrupt(interrupt) => Err(interrupt.into()),
        }
    }
}

impl provider::Host for GuestState {
    async fn send(&mut self, request: provider::Request) -> Result<provider::Response, GuestError> {
        self.requests.send(request).await
    }

    async fn send_all(
        &mut self,
        requests: Vec<provider::Request>,
    ) -> wasmtime::Result<Vec<Result<provider::Response, types::Failure>>> {
        Ok(self.requests.send_all(requests).await?)
    }
}

impl records::Host for GuestState {
    async fn commit(
        &mut self,
        changes: Vec<records::Change>,
        checkpoint: Option<String>,
    ) -> Result<records::Counts, GuestError> {
        self.capabilities.commit(changes, checkpoint).await
    }

    async fn get(&mut self, model: String, ids: Vec<String>) -> Result<Vec<Option<String>>, GuestError> {
        self.capabilities.find_records(model, ids).await
    }
}

impl checkpoint::Host for GuestState {
    async fn get(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(self.capabilities.checkpoint().await?)
    }
}

impl connection::Host for GuestState {
    async fn get(&mut self) -> wasmtime::Result<connection::Info> {
        let info = self.capabilities.connection().await?;
        Ok(connection::Info {
            connection_id: info.connection_id,
            integration: info.integration,
            provider: info.provider,
            environment: info.environment,
            config: info.config,
            tags: info.tags,
        })
    }

    async fn metadata(&mut self) -> wasmtime::Result<String> {
        Ok(self.capabilities.metadata().await?)
    }

    async fn set_metadata(&mut self, metadata: String) -> Result<(), GuestError> {
        self.capabilities.set_metadata(metadata, false).await
    }

    async fn update_metadata(&mut self, changes: String) -> Result<(), GuestError> {
        self.capabilities.set_metadata(changes, true).await
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        self.capabilities.credentials().await
    }
}

impl environment::Host for GuestState {
    async fn variables(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.capabilities.variables().await?)
    }
}

impl log::Host for GuestState {
    async fn write(
        &mut self,
        level: log::Level,
        message: String,
        fields: Option<String>,
    ) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        };
        Ok(self.log.write(level, &message, fields).map_err(Interrupt::Limit)?)
    }

    async fn panicked(&mut self, message: String, location: Option<String>) -> wasmtime::Result<()> {
        self.panic = Some(Panic { message, location });
        Ok(())
    }
}

impl run::Host for GuestState {
    async fn get(&mut self) -> wasmtime::Result<run::Info> {
        let info = self.capabilities.run();
        Ok(run::Info { id: info.id, variant: info.variant, attempt: info.attempt })
    }

    async fn is_full(&mut self) -> wasmtime::Result<bool> {
        Ok(self.capabilities.run().is_full)
    }

    async fn progress(&mut self, done: u64, total: Option<u64>) -> wasmtime::Result<()> {
        self.capabilities.progress(done, total);
        Ok(())
    }

    async fn cancelled(&mut self) -> wasmtime::Result<bool> {
        Ok(self.capabilities.cancelled())
    }

    async fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.sources.now_ms())
    }
}
