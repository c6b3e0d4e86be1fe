//! Builds a guest written in Rust: cargo makes a module of the crate, and this makes a component of the
//! module where the target does not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use wit_component::ComponentEncoder;

pub use toolchain::GuestTarget;
use toolchain::{Installed, StdSource, Toolchain};

mod toolchain;

/// What every WebAssembly file begins with, before four bytes that tell a module from a component.
const WASM_MAGIC: &[u8] = b"\0asm";
const MODULE_VERSION: [u8; 4] = [1, 0, 0, 0];

/// How to build, where there is a choice.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Build for this target, instead of the best that is installed.
    pub target: Option<GuestTarget>,
}

impl BuildOptions {
    /// Reads `SYNCLINE_GUEST_TARGET`.
    pub fn from_env() -> Result<Self, BuildError> {
        let target = match std::env::var("SYNCLINE_GUEST_TARGET") {
            Ok(given) if !given.is_empty() => Some(given.parse()?),
            _ => None,
        };
        Ok(Self { target })
    }
}

/// Why a guest was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(
        "`{}` is no Rust guest: a component is the folder of a crate, with its Cargo.toml, or a .wasm file",
        path.display()
    )]
    NotAGuest { path: PathBuf },
    #[error("`{given}` is no target for guests; these are: wasm32-wasip2, wasm32-unknown-unknown")]
    UnknownTarget { given: String },
    #[error("{}", toolchain::how_to_install(*wanted))]
    NoToolchain { wanted: Option<GuestTarget> },
    #[error(
        "cargo could not be started; install Rust from https://rustup.rs, or on Debian `apt-get install cargo-web`"
    )]
    NoCargo(#[source] io::Error),
    #[error("cargo could not build `{}`; what it said is above", project.display())]
    CargoFailed { project: PathBuf },
    #[error(
        "`{}` makes no WebAssembly file; its Cargo.toml needs `crate-type = [\"cdylib\"]` under [lib]",
        project.display()
    )]
    NoLibrary { project: PathBuf },
    #[error(
        "`{}` cannot be made a component: a guest imports and exports what the SDK does and nothing else",
        module.display()
    )]
    NotAComponent {
        module: PathBuf,
        #[source]
        source: anyhow::Error,
    },
    #[error("`{}` could not be read or written", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Builds the crate in `project_dir` for release and gives the path of its component. Cargo's messages go to
/// standard error. `CARGO_TARGET_DIR`, `CARGO` and `RUSTC` mean what they mean to cargo, seen from here.
///
/// A path of a `.wasm` file is given back, as a component.
pub fn build_rust(project_dir: &Path, options: &BuildOptions) -> Result<PathBuf, BuildError> {
    if project_dir.extension().is_some_and(|extension| extension == "wasm") && project_dir.is_file() {
        return componentise(project_dir.to_owned());
    }
    if !project_dir.join("Cargo.toml").is_file() {
        return Err(BuildError::NotAGuest { path: project_dir.to_owned() });
    }
    let toolchain = toolchain::choose(&Installed::find(project_dir), options.target)?;
    componentise(cargo_build(project_dir, toolchain)?)
}

/// Runs cargo and gives the path of the `.wasm` file that it made.
fn cargo_build(project_dir: &Path, toolchain: Toolchain) -> Result<PathBuf, BuildError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(project_dir)
        .args(["build", "--release", "--lib", "--message-format=json-render-diagnostics"])
        .args(["--target", toolchain.target.name()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // Cargo runs in the project's folder, where a relative path would mean another place.
    if let Some(given) = std::env::var_os("CARGO_TARGET_DIR").filter(|given| !given.is_empty()) {
        let target_dir =
            std::path::absolute(&given).map_err(|source| BuildError::File { path: given.into(), source })?;
        command.env("CARGO_TARGET_DIR", target_dir);
    }
    if let Some(StdSource { rustc, linker }) = toolchain.std_source {
        command
            .arg("-Zbuild-std=std,panic_abort")
            .env("RUSTC", rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    let output = command.output().map_err(BuildError::NoCargo)?;
    if !output.status.success() {
        return Err(BuildError::CargoFailed { project: project_dir.to_owned() });
    }
    // The crate itself is compiled last, so of several libraries with a .wasm file the last is its own.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<CargoMessage>(line).ok())
        .flat_map(|message| message.filenames)
        .rfind(|file| file.extension().is_some_and(|extension| extension == "wasm"))
        .ok_or_else(|| BuildError::NoLibrary { project: project_dir.to_owned() })
}

/// A line of cargo's JSON messages, of which only files that were made are of interest.
#[derive(Deserialize)]
struct CargoMessage {
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Gives the path of the component of a `.wasm` file: itself, or one written beside it if it is a module.
fn componentise(wasm: PathBuf) -> Result<PathBuf, BuildError> {
    let bytes = fs::read(&wasm).map_err(|source| BuildError::File { path: wasm.clone(), source })?;
    let is_module = bytes.strip_prefix(WASM_MAGIC).is_some_and(|rest| rest.starts_with(&MODULE_VERSION));
    if !is_module {
        return Ok(wasm);
    }
    let encode = || ComponentEncoder::default().validate(true).module(&bytes)?.encode();
    let component = encode().map_err(|source| BuildError::NotAComponent { module: wasm.clone(), source })?;
    let path = wasm.with_extension("component.wasm");
    fs::write(&path, component).map_err(|source| BuildError::File { path: path.clone(), source })?;
    Ok(path)
}
