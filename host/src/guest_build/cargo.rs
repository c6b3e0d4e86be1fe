//! Runs cargo, and ensures that the result was built from the project's own sources.
//!
//! Two workspaces can share a target directory. Cargo distinguishes their packages by name, version and path below
//! the workspace's root. Packages that agree in all three share their files, and cargo considers these fresh for
//! both workspaces, so one would receive the other's code. The file of a WebAssembly library is even named after
//! the library alone, so the same happens to two libraries of one name in a workspace.
//!
//! Therefore each project keeps a record of the files that were built from its workspace's packages, with the time
//! at which each was written. If cargo considers a file fresh that is not in the record, or was written at another
//! time, the workspace's packages are built again. Dependencies from elsewhere stay shared, because cargo
//! identifies them by their source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde::Deserialize;

use super::toolchain::{StdSource, Toolchain};
use super::{BuildError, file_error};

/// How often a project is built again because other builds write to the same files.
const TRIES: usize = 3;

/// The `.wasm` file that cargo built from a project.
pub struct Wasm {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

/// How cargo compiles a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Release,
    /// A profile of our own, so that its files do not replace those of the release mode.
    Development,
}

/// The settings of [`Profile::Development`], which the project need not declare. `debug` keeps the names in
/// backtraces.
const DEVELOPMENT: [&str; 8] = [
    "inherits=\"release\"",
    "opt-level=1",
    "lto=false",
    "codegen-units=16",
    "incremental=true",
    "debug=false",
    "strip=\"none\"",
    "panic=\"abort\"",
];
const DEVELOPMENT_NAME: &str = "syncline-dev";

/// Builds the library of the crate in `project_dir`.
pub fn build(project_dir: &Path, toolchain: &Toolchain, profile: Profile) -> Result<Wasm, BuildError> {
    let cargo = Cargo { project_dir, toolchain, profile };
    let workspace = cargo.workspace_root()?;
    let manifest = canonical(&project_dir.join("Cargo.toml"))?;
    for _ in 0..TRIES {
        let mut artifacts = cargo.build()?;
        artifacts.retain(|artifact| artifact.manifest_path.starts_with(&workspace));
        let path = artifacts
            .iter()
            .filter(|artifact| artifact.manifest_path == manifest && artifact.is_component_library())
            .flat_map(|artifact| &artifact.filenames)
            .find(|file| file.extension().is_some_and(|extension| extension == "wasm"))
            .cloned()
            .ok_or_else(|| BuildError::NoLibrary { project: project_dir.to_owned() })?;
        // The file is read before its time, so that a change in between is noticed.
        let bytes = fs::read(&path).map_err(file_error(&path))?;
        let written = written_at(&artifacts)?;
        let record = Record::of(&manifest, &path);
        let known = record.read();
        let is_own = |file: &PathBuf| known.get(file) == written.get(file);
        if artifacts.iter().all(|artifact| !artifact.fresh || artifact.filenames.iter().all(is_own)) {
            record.write(&written)?;
            return Ok(Wasm { path, bytes });
        }
        cargo.clean(&artifacts)?;
    }
    Err(BuildError::Contended { project: project_dir.to_owned() })
}

struct Cargo<'p> {
    project_dir: &'p Path,
    toolchain: &'p Toolchain,
    profile: Profile,
}

/// A line of cargo's JSON messages.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(Artifact),
    #[serde(other)]
    Other,
}

/// The files of a crate that cargo has compiled, or found up to date.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    manifest_path: PathBuf,
    target: Target,
    filenames: Vec<PathBuf>,
    fresh: bool,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

impl Artifact {
    fn is_component_library(&self) -> bool {
        self.target.kind.iter().any(|kind| kind == "cdylib")
    }
}

impl Cargo<'_> {
    fn workspace_root(&self) -> Result<PathBuf, BuildError> {
        let mut command = self.command("locate-project")?;
        command.args(["--workspace", "--message-format=plain"]);
        let manifest = self.run(command)?;
        let root = canonical(Path::new(manifest.trim_end()))?;
        Ok(root.parent().map_or_else(PathBuf::new, Path::to_owned))
    }

    fn build(&self) -> Result<Vec<Artifact>, BuildError> {
        let mut command = self.command("build")?;
        self.select_profile(&mut command);
        command.args(["--lib", "--message-format=json-render-diagnostics"]);
        command.args(["--target", self.toolchain.target.name()]);
        if self.toolchain.std_source.is_some() {
            command.arg("-Zbuild-std=std,panic_abort");
        }
        let mut artifacts = Vec::new();
        for line in self.run(command)?.lines() {
            // Build scripts and macros may print other lines.
            if let Ok(Message::CompilerArtifact(mut artifact)) = serde_json::from_str(line) {
                artifact.manifest_path = canonical(&artifact.manifest_path)?;
                artifacts.push(artifact);
            }
        }
        Ok(artifacts)
    }

    /// Makes cargo forget the build of these artifacts' packages.
    fn clean(&self, artifacts: &[Artifact]) -> Result<(), BuildError> {
        let mut command = self.command("clean")?;
        self.select_profile(&mut command);
        command.args(["--quiet", "--target", self.toolchain.target.name()]);
        command.args(artifacts.iter().flat_map(|artifact| ["--package", &artifact.package_id]));
        self.run(command).map(drop)
    }

    fn select_profile(&self, command: &mut Command) {
        match self.profile {
            Profile::Release => {
                command.arg("--release");
            }
            Profile::Development => {
                let settings = DEVELOPMENT.map(|setting| format!("profile.{DEVELOPMENT_NAME}.{setting}"));
                command.args(settings.iter().flat_map(|setting| ["--config", setting]));
                command.args(["--profile", DEVELOPMENT_NAME]);
            }
        }
    }

    /// Returns a cargo command in the project's folder. Relative paths in `CARGO` and `CARGO_TARGET_DIR` start at
    /// our own folder.
    fn command(&self, name: &str) -> Result<Command, BuildError> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.arg(name).current_dir(self.project_dir).stdin(Stdio::null()).stderr(Stdio::inherit());
        // Cargo runs in the project's folder, where a relative path would have another meaning.
        if let Some(given) = std::env::var_os("CARGO_TARGET_DIR").filter(|given| !given.is_empty()) {
            let target_dir = std::path::absolute(&given).map_err(file_error(Path::new(&given)))?;
            command.env("CARGO_TARGET_DIR", target_dir);
        }
        if let Some(StdSource { rustc, linker }) = &self.toolchain.std_source {
            command
                .env("RUSTC", rustc)
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
        Ok(command)
    }

    /// Runs a command and returns its output.
    fn run(&self, mut command: Command) -> Result<String, BuildError> {
        let output = command.output().map_err(BuildError::NoCargo)?;
        if !output.status.success() {
            return Err(BuildError::CargoFailed { project: self.project_dir.to_owned() });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The time at which each file of a workspace's packages was written.
type Written = BTreeMap<PathBuf, SystemTime>;

fn written_at(artifacts: &[Artifact]) -> Result<Written, BuildError> {
    let files = artifacts.iter().flat_map(|artifact| &artifact.filenames);
    files
        .map(|file| {
            let written = fs::metadata(file).and_then(|metadata| metadata.modified());
            Ok((file.clone(), written.map_err(file_error(file))?))
        })
        .collect()
}

/// The record of a project's last build. It is stored next to the project's `.wasm` file, so it is deleted together
/// with it.
struct Record(PathBuf);

impl Record {
    fn of(manifest: &Path, wasm: &Path) -> Self {
        let project = blake3::hash(manifest.as_os_str().as_encoded_bytes()).to_hex();
        Self(wasm.with_file_name(".syncline").join(format!("{}.json", &project[..32])))
    }

    /// Reads the record. An unreadable record counts as empty, which causes a new build.
    fn read(&self) -> Written {
        let text = fs::read(&self.0).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn write(&self, written: &Written) -> Result<(), BuildError> {
        let text = serde_json::to_vec(written).expect("cargo writes paths as JSON, so they are UTF-8");
        let folder = self.0.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(file_error(folder))?;
        fs::write(&self.0, text).map_err(file_error(&self.0))
    }
}

fn canonical(path: &Path) -> Result<PathBuf, BuildError> {
    path.canonicalize().map_err(file_error(path))
}
