//! Builds the component of a project. For Rust, cargo compiles the crate to WebAssembly, and this module converts the
//! result to a component if the target produces a plain module. For other languages, see [`scripts`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wit_component::ComponentEncoder;

use cargo::Profile;
use scripts::Script;
pub use toolchain::GuestTarget;
use toolchain::Installed;

mod cargo;
mod scripts;
mod toolchain;

/// The first bytes of every WebAssembly file, followed by four bytes that distinguish modules from components.
const WASM_MAGIC: &[u8] = b"\0asm";
const MODULE_VERSION: [u8; 4] = [1, 0, 0, 0];

/// Options of a build.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Builds for this target instead of the best installed one.
    pub target: Option<GuestTarget>,
    /// Builds Rust in less time than in release mode, with less optimization.
    pub for_development: bool,
}

impl BuildOptions {
    /// Reads `SYNCLINE_GUEST_TARGET`.
    pub fn from_env() -> Result<Self, BuildError> {
        let target = match std::env::var("SYNCLINE_GUEST_TARGET") {
            Ok(given) if !given.is_empty() => Some(given.parse()?),
            _ => None,
        };
        Ok(Self { target, for_development: false })
    }
}

/// The reason why a guest was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(
        "`{}` cannot be built; `component` must be a .wasm file, or a folder with a Cargo.toml (Rust), package.json \
         (TypeScript) or pyproject.toml (Python)",
        path.display()
    )]
    NotAGuest { path: PathBuf },
    #[error("`{given}` is not a supported guest target; use wasm32-wasip2 or wasm32-unknown-unknown")]
    UnknownTarget { given: String },
    #[error("{}", toolchain::how_to_install(*wanted))]
    NoToolchain { wanted: Option<GuestTarget> },
    #[error(
        "could not start cargo; install Rust from https://rustup.rs, or on Debian with `apt-get install cargo-web`"
    )]
    NoCargo(#[source] io::Error),
    #[error("cargo could not build `{}`; see its messages above", project.display())]
    CargoFailed { project: PathBuf },
    #[error(
        "the build of `{}` produced no WebAssembly file; add `crate-type = [\"cdylib\"]` to [lib] in its Cargo.toml",
        project.display()
    )]
    NoLibrary { project: PathBuf },
    #[error(
        "could not convert `{}` to a component; functions can import only the interfaces of the SDK",
        module.display()
    )]
    NotAComponent {
        module: PathBuf,
        #[source]
        source: anyhow::Error,
    },
    #[error("the SDK is not installed in `{}`; {hint}", project.display())]
    NoSdk { project: PathBuf, hint: &'static str },
    #[error("could not start `{}` to build `{}`; {hint}", program.display(), project.display())]
    NoProgram {
        program: PathBuf,
        project: PathBuf,
        hint: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("could not build `{}`; see the messages above. If the SDK is missing, {hint}", project.display())]
    ScriptFailed { project: PathBuf, hint: &'static str },
    #[error(
        "could not build `{}`, because other builds write a package of the same name to the same target directory; \
         build the projects one after the other, or use a separate CARGO_TARGET_DIR for each",
        project.display()
    )]
    Contended { project: PathBuf },
    #[error("could not read or write `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Builds the project in `project_dir` and returns its component. Messages of the build go to standard error. A crate
/// is built in release mode unless the options say otherwise; `CARGO_TARGET_DIR`, `CARGO` and `RUSTC` work as for cargo, and relative paths start at
/// this process's folder.
///
/// For the path of a `.wasm` file, returns the component in it.
pub fn build_component(project_dir: &Path, options: &BuildOptions) -> Result<Vec<u8>, BuildError> {
    if project_dir.extension().is_some_and(|extension| extension == "wasm") && project_dir.is_file() {
        let bytes = fs::read(project_dir).map_err(file_error(project_dir))?;
        return componentise(project_dir, bytes);
    }
    if !project_dir.join("Cargo.toml").is_file() {
        return match Script::of(project_dir) {
            Some(script) => script.build(project_dir),
            None => Err(BuildError::NotAGuest { path: project_dir.to_owned() }),
        };
    }
    let toolchain = toolchain::choose(&Installed::find(project_dir), options.target)?;
    let profile = if options.for_development { Profile::Development } else { Profile::Release };
    let wasm = cargo::build(project_dir, &toolchain, profile)?;
    componentise(&wasm.path, wasm.bytes)
}

/// Whether the project is built by the SDK of its language, which prints nothing while it works. Cargo shows its own
/// progress.
pub fn is_script(project_dir: &Path) -> bool {
    !project_dir.join("Cargo.toml").is_file() && Script::of(project_dir).is_some()
}

/// Returns the component in a `.wasm` file. A module is converted to a component.
fn componentise(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let is_module = bytes.strip_prefix(WASM_MAGIC).is_some_and(|rest| rest.starts_with(&MODULE_VERSION));
    if !is_module {
        return Ok(bytes);
    }
    let encode = || ComponentEncoder::default().validate(true).module(&bytes)?.encode();
    encode().map_err(|source| BuildError::NotAComponent { module: path.to_owned(), source })
}

/// Adds the file's path to an error, for `map_err`.
fn file_error(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File { path, source }
}
