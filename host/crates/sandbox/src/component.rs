//! Components that are checked against the WIT world and ready to be instantiated.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

use super::bindings::IntegrationPre;
use super::capabilities::NoCapabilities;
use super::cpu_executor::UsualCpuTime;
use super::imports::GuestState;
use super::invocation::{Export, Setting};
use super::priority_class::PriorityClass;
use super::{CompileError, FunctionError, Limits, RunLog, Sandbox, Sources};

/// SHA-256 of a component's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComponentDigest(pub [u8; 32]);

impl ComponentDigest {
    pub fn of(wasm: &[u8]) -> Self {
        Self(Sha256::digest(wasm).into())
    }
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&syncline_crypto::hex(&self.0))
    }
}

/// Why a component cannot run on this host.
#[derive(Debug, thiserror::Error)]
pub enum InvalidComponent {
    #[error("it is not WebAssembly: it does not begin with `\\0asm`")]
    NotWasm,
    #[error(
        "it is a core WebAssembly module, not a component; `syncline build` makes a component of a Rust project, \
         and `wasm-tools component new` of any module with the world's type in it"
    )]
    CoreModule,
    #[error(
        "it does not export `syncline:integration/functions`, so it was not built for the world \
         `syncline:integration/integration`; it exports {}",
        list(exports)
    )]
    OtherWorld { exports: Vec<String> },
    #[error("it has an import that this host does not provide: {0}")]
    UnknownImport(String),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("its export `describe`, which lists its functions, failed: {}", .0.problem())]
    DescribeFailed(FunctionError),
    #[error("its export `describe` returned an invalid list of functions: {0}")]
    BadDescription(#[source] serde_json::Error),
}

fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        _ => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// The functions that a component offers.
#[derive(Debug, Clone, Deserialize)]
pub struct Description {
    pub functions: Vec<DescribedFunction>,
    /// The SDK that the component was built with.
    pub sdk: Option<DescribedSdk>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DescribedSdk {
    pub name: String,
    pub version: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DescribedFunction {
    pub kind: String,
    pub name: String,
    pub description: Option<String>,
}

/// A compiled and linked component. Each invocation creates an instance of it.
pub struct PreparedComponent {
    pub digest: ComponentDigest,
    pub(super) pre: IntegrationPre<GuestState>,
    /// How much CPU time its functions usually use.
    pub(super) usual_cpu: UsualCpuTime,
}

impl Sandbox {
    /// Checks and links a component. Compiles it unless its compiled form is cached.
    pub async fn prepare(&self, wasm: &[u8]) -> Result<PreparedComponent, InvalidComponent> {
        check_kind(wasm)?;
        let digest = ComponentDigest::of(wasm);
        let wasm = std::future::ready(Ok::<_, CompileError>(wasm));
        let component = self.compiled.get(&self.engine, &digest, wasm).await?;
        self.link(digest, &component)
    }

    /// As [`prepare`](Self::prepare), for a component that was checked before. `wasm` is awaited only if it is not
    /// compiled yet.
    pub async fn prepare_stored(
        &self,
        digest: ComponentDigest,
        wasm: impl Future<Output = anyhow::Result<Vec<u8>>>,
    ) -> anyhow::Result<PreparedComponent> {
        let component = self.compiled.get(&self.engine, &digest, wasm).await?;
        Ok(self.link(digest, &component)?)
    }

    fn link(
        &self,
        digest: ComponentDigest,
        component: &Component,
    ) -> Result<PreparedComponent, InvalidComponent> {
        let component_type = component.component_type();
        let exports: Vec<String> = component_type
            .exports(&self.engine)
            .filter(|(_, export)| matches!(export.ty, ComponentItem::ComponentInstance(_)))
            .map(|(name, _)| name.to_owned())
            .collect();
        if !exports.iter().any(|name| name.starts_with("syncline:integration/functions@")) {
            return Err(InvalidComponent::OtherWorld { exports });
        }
        let unknown = |error: wasmtime::Error| InvalidComponent::UnknownImport(format!("{error:#}"));
        let pre = self.linker.instantiate_pre(component).map_err(unknown)?;
        Ok(PreparedComponent {
            digest,
            pre: IntegrationPre::new(pre).map_err(unknown)?,
            usual_cpu: UsualCpuTime::default(),
        })
    }

    /// Calls the `describe` export of a component.
    pub async fn describe(&self, component: &PreparedComponent) -> Result<Description, InvalidComponent> {
        let log = RunLog::new(Limits::DESCRIBE.log_bytes);
        let finished = self
            .run(
                component,
                Export::Describe,
                Box::new(NoCapabilities),
                &Limits::DESCRIBE,
                &log,
                Setting { priority: PriorityClass::Interactive, variables: &[], sources: Sources::System },
            )
            .await;
        let json = finished.result.map_err(InvalidComponent::DescribeFailed)?.unwrap_or_default();
        serde_json::from_str(&json).map_err(InvalidComponent::BadDescription)
    }
}

/// Checks the first eight bytes of a component, for a clearer error than the compiler would give.
fn check_kind(wasm: &[u8]) -> Result<(), InvalidComponent> {
    const MAGIC: &[u8] = b"\0asm";
    if !wasm.starts_with(MAGIC) {
        return Err(InvalidComponent::NotWasm);
    }
    // Two bytes of the version are followed by two bytes of the layer: 0 for a module, 1 for a component.
    if wasm.get(6) == Some(&0) {
        return Err(InvalidComponent::CoreModule);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_modules_and_components_are_distinguished() {
        assert!(matches!(check_kind(b"\0asm\x01\0\0\0rest"), Err(InvalidComponent::CoreModule)));
        assert!(matches!(check_kind(b"#!/bin/sh"), Err(InvalidComponent::NotWasm)));
        assert!(matches!(check_kind(b""), Err(InvalidComponent::NotWasm)));
        assert!(check_kind(b"\0asm\x0d\0\x01\0rest").is_ok());
    }
}
