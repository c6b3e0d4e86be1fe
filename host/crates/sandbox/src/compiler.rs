//! Compiles each component once and caches the machine code on disk.
//!
//! Compiling untrusted code can take any amount of time and memory, so it runs in a child process with limits. Loading
//! machine code means trusting it, so every cached file has a MAC under the host's own key.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use wasmtime::Engine;
use wasmtime::component::Component;

use super::ComponentDigest;
use super::function_cache::FunctionCache;

/// Limits of the compiling process.
const COMPILE_MEMORY_BYTES: u64 = 4 << 30;
const COMPILE_CPU: Duration = Duration::from_secs(120);
const COMPILE_WALL: Duration = Duration::from_secs(240);
/// The compiling process has a lower priority than request handling, like functions that compute for long.
const COMPILE_NICENESS: i32 = 10;
/// The number of components that are loaded from disk at the same time. Each is read into memory to verify its MAC.
const MAX_CONCURRENT_LOADS: usize = 4;

const MAC_BYTES: usize = blake3::OUT_LEN;

#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("the component could not be compiled: {0}")]
    Refused(String),
    #[error(
        "compiling the component needs more than {} s of CPU time or {} GB of memory; make the component smaller",
        COMPILE_CPU.as_secs(),
        COMPILE_MEMORY_BYTES >> 30
    )]
    OverLimit,
    #[error("could not start the compiler")]
    Start(#[source] std::io::Error),
    #[error("could not write compiled code to `{}`", path.display())]
    Cache { path: PathBuf, source: std::io::Error },
    /// The component declares more than the pool of instances offers, such as a table of a million elements.
    #[error("the component needs more than a host provides: {0}")]
    OverPool(String),
}

/// The file of the [`FunctionCache`], in the folder of the compiled components.
const FUNCTIONS_FILE: &str = "functions";
/// The longest file that a compiling process with such a cache writes.
const FUNCTIONS_FILE_BYTES: u64 = 1 << 30;

/// Compiles components and caches their machine code.
pub struct CompiledCache {
    code: Arc<CodeFolder>,
    /// Whether functions that another component has, too, are not compiled again.
    reuses_functions: bool,
    loads: Semaphore,
    /// The program to start with the argument `compile-component`; see [`run_compiler`].
    compiler: PathBuf,
    /// Held while a component compiles. A compilation uses every processor, so they run one after the other.
    compiling: Mutex<()>,
}

/// Cached machine code, by component and engine.
struct CodeFolder {
    folder: PathBuf,
    mac_key: [u8; 32],
}

impl CompiledCache {
    pub fn new(folder: PathBuf, mac_key: [u8; 32], compiler: PathBuf) -> Self {
        let code = Arc::new(CodeFolder { folder, mac_key });
        let loads = Semaphore::new(MAX_CONCURRENT_LOADS);
        Self { code, reuses_functions: false, loads, compiler, compiling: Mutex::new(()) }
    }

    /// Reuses the machine code of functions that were compiled for an earlier component, so that a changed component
    /// compiles faster. Only for development: a component that attacks the compiler could change this code.
    #[must_use]
    pub fn reusing_functions(mut self) -> Self {
        self.reuses_functions = true;
        self
    }

    /// Returns the compiled component, from disk if it is there. `wasm` is awaited only to compile it, and only when no
    /// other compilation is in progress: waiting components take no memory.
    pub(super) async fn get<W: AsRef<[u8]>, E: From<CompileError>>(
        &self,
        engine: &Engine,
        digest: &ComponentDigest,
        wasm: impl Future<Output = Result<W, E>>,
    ) -> Result<Component, E> {
        if let Some(component) = self.load(engine, digest).await {
            return Ok(component);
        }
        let _compiling = self.compiling.lock().await;
        if let Some(component) = self.load(engine, digest).await {
            return Ok(component);
        }
        let wasm = wasm.await?;
        let started = std::time::Instant::now();
        let code = self.compile(wasm.as_ref()).await?;
        let component = self.store_and_load(engine, digest, code).await?;
        tracing::info!(
            component.digest = %digest,
            compile.ms = started.elapsed().as_millis() as u64,
            "compiled a component",
        );
        Ok(component)
    }

    async fn load(&self, engine: &Engine, digest: &ComponentDigest) -> Option<Component> {
        let _permit = self.loads.acquire().await.ok()?;
        let (code, engine, digest) = (Arc::clone(&self.code), engine.clone(), *digest);
        spawn_blocking(move || code.load(&engine, &digest)).await.ok()?
    }

    async fn store_and_load(
        &self,
        engine: &Engine,
        digest: &ComponentDigest,
        compiled: Vec<u8>,
    ) -> Result<Component, CompileError> {
        let (code, engine, digest) = (Arc::clone(&self.code), engine.clone(), *digest);
        let stored = spawn_blocking(move || {
            let path = code.path(&engine, &digest);
            code.store(&path, &compiled)
                .map_err(|source| CompileError::Cache { path: path.clone(), source })?;
            load_file(&engine, &path).map_err(|error| CompileError::OverPool(format!("{error:#}")))
        });
        match stored.await {
            Ok(stored) => stored,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    async fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        let functions = self.reuses_functions.then(|| self.code.folder.join(FUNCTIONS_FILE));
        let mut child = Command::new(&self.compiler)
            .arg("compile-component")
            .args(functions)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(CompileError::Start)?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let work = async {
            let feed = async {
                // If the child ends early, its exit status explains why.
                let _closed_early = stdin.write_all(wasm).await;
                drop(stdin);
            };
            tokio::join!(feed, child.wait_with_output()).1
        };
        let output = tokio::time::timeout(COMPILE_WALL, work).await.map_err(|_| CompileError::OverLimit)?;
        let output = output.map_err(CompileError::Start)?;
        match output.status.code() {
            Some(0) => Ok(output.stdout),
            // Exit status 1 means an error in the compiling process itself, which it has printed.
            Some(REFUSED | 1) => {
                Err(CompileError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
            }
            _ => Err(CompileError::OverLimit),
        }
    }
}

impl CodeFolder {
    /// Loads cached code, if its MAC shows that this host wrote it.
    fn load(&self, engine: &Engine, digest: &ComponentDigest) -> Option<Component> {
        let path = self.path(engine, digest);
        let code = std::fs::read(&path).ok()?;
        let stored_mac: [u8; MAC_BYTES] = std::fs::read(mac_path(&path)).ok()?.try_into().ok()?;
        if self.mac(&path, &code) != blake3::Hash::from_bytes(stored_mac) {
            tracing::warn!(path = %path.display(), "cached code has a wrong MAC; compiling it again");
            return None;
        }
        load_file(engine, &path)
            .inspect_err(
                |error| tracing::warn!(path = %path.display(), %error, "could not load cached code; compiling it again"),
            )
            .ok()
    }

    fn store(&self, path: &Path, code: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        for (target, bytes) in
            [(mac_path(path), self.mac(path, code).as_bytes().as_slice()), (path.to_owned(), code)]
        {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(bytes)?;
            file.persist(target)?;
        }
        Ok(())
    }

    /// The MAC covers the file's name, so that code of one component cannot replace that of another.
    fn mac(&self, path: &Path, code: &[u8]) -> blake3::Hash {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        blake3::Hasher::new_keyed(&self.mac_key).update(name).update(b"\0").update(code).finalize()
    }

    fn path(&self, engine: &Engine, digest: &ComponentDigest) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        self.folder.join(format!("{digest}-{:016x}.code", hasher.finish()))
    }
}

/// The exit status for a component that cannot be compiled, as opposed to an exceeded limit.
const REFUSED: i32 = 3;

/// The compiling process: reads a component from standard input and writes its machine code to standard output. It
/// sets its own limits before it reads anything. `functions` is the file of the [`FunctionCache`], if there is one.
/// Returns the exit status.
pub fn run_compiler(functions: Option<&Path>) -> i32 {
    let limit = |amount| Rlimit { current: Some(amount), maximum: Some(amount) };
    for (resource, amount) in [
        (Resource::As, COMPILE_MEMORY_BYTES),
        (Resource::Cpu, COMPILE_CPU.as_secs()),
        (Resource::Core, 0),
        (Resource::Fsize, if functions.is_some() { FUNCTIONS_FILE_BYTES } else { 0 }),
    ] {
        if let Err(error) = setrlimit(resource, limit(amount)) {
            eprintln!("the compiler could not set its resource limits: {error}");
            return 1;
        }
    }
    // If this fails, compiling still works, but slows down requests.
    let _lowered = setpriority_process(None, COMPILE_NICENESS);
    let mut wasm = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut wasm) {
        eprintln!("the component could not be read: {error}");
        return 1;
    }
    let functions = functions.map(|path| Arc::new(FunctionCache::open(path)));
    let compiled =
        super::engine(None, functions.clone()).and_then(|engine| engine.precompile_component(&wasm));
    match compiled {
        Ok(code) => {
            let is_written = std::io::stdout().write_all(&code).is_ok();
            // Without the cache, the next component only takes longer.
            let _stored = functions.map(|functions| functions.store());
            i32::from(!is_written)
        }
        Err(error) => {
            eprintln!("{error:#}");
            REFUSED
        }
    }
}

fn mac_path(path: &Path) -> PathBuf {
    path.with_extension("mac")
}

#[expect(unsafe_code, reason = "machine code is loaded from a file whose MAC was just checked")]
fn load_file(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: this host wrote the file from the compiler's output. Either `load` has verified its MAC under a key that
    // only the host knows, or `get` has just written it. The file is never changed in place.
    unsafe { Component::deserialize_file(engine, path) }
}
