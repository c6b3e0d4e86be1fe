//! Builds a guest written in Rust: cargo makes a module of the crate, and this makes a component of the
//! module where the target does not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wit_component::ComponentEncoder;

pub use toolchain::GuestTarget;
use toolchain::Installed;

mod cargo;
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
    #[error(
        "`{}` could not be built: others keep building a package of the same name into the same target directory; \
         build one after the other, or give each project a target directory of its own",
        project.display()
    )]
    Contended { project: PathBuf },
    #[error("`{}` could not be read or written", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Builds the crate in `project_dir` for release and gives its component. Cargo's messages go to standard error.
/// `CARGO_TARGET_DIR`, `CARGO` and `RUSTC` mean what they mean to cargo, seen from here.
///
/// Given the path of a `.wasm` file, this gives the component in it.
pub fn build_rust(project_dir: &Path, options: &BuildOptions) -> Result<Vec<u8>, BuildError> {
    if project_dir.extension().is_some_and(|extension| extension == "wasm") && project_dir.is_file() {
        let bytes = fs::read(project_dir).map_err(file_error(project_dir))?;
        return componentise(project_dir, bytes);
    }
    if !project_dir.join("Cargo.toml").is_file() {
        return Err(BuildError::NotAGuest { path: project_dir.to_owned() });
    }
    let toolchain = toolchain::choose(&Installed::find(project_dir), options.target)?;
    let wasm = cargo::build(project_dir, &toolchain)?;
    componentise(&wasm.path, wasm.bytes)
}

/// The component in a `.wasm` file: its content, or what is made of that if it is a module.
fn componentise(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let is_module = bytes.strip_prefix(WASM_MAGIC).is_some_and(|rest| rest.starts_with(&MODULE_VERSION));
    if !is_module {
        return Ok(bytes);
    }
    let encode = || ComponentEncoder::default().validate(true).module(&bytes)?.encode();
    encode().map_err(|source| BuildError::NotAComponent { module: path.to_owned(), source })
}

/// For `map_err`: names the file.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File { path, source }
}
