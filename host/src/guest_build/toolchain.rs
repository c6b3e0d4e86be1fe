//! Selects the installed Rust toolchain and the target for building guests.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use super::BuildError;

/// Path of Debian's `rustc-web`, which may exist next to rustup's `rustc`.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// A target for which guests can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestTarget {
    /// `wasm32-wasip2`: the linker produces a component.
    Wasip2,
    /// `wasm32-unknown-unknown`: a module, which is converted to a component.
    Unknown,
}

impl GuestTarget {
    pub fn name(self) -> &'static str {
        match self {
            Self::Wasip2 => "wasm32-wasip2",
            Self::Unknown => "wasm32-unknown-unknown",
        }
    }
}

impl FromStr for GuestTarget {
    type Err = BuildError;

    fn from_str(given: &str) -> Result<Self, BuildError> {
        [Self::Wasip2, Self::Unknown]
            .into_iter()
            .find(|target| target.name() == given)
            .ok_or_else(|| BuildError::UnknownTarget { given: given.to_owned() })
    }
}

/// How to call cargo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    pub target: GuestTarget,
    /// Set if the standard library must be compiled as well.
    pub std_source: Option<StdSource>,
}

/// A compiler that has the source of the standard library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdSource {
    pub rustc: PathBuf,
    /// The linker for WebAssembly. Compilers without a WebAssembly target often have none.
    pub linker: PathBuf,
}

/// The tools that are installed on this machine.
#[derive(Debug, Default)]
pub struct Installed {
    /// The targets for which the project's own compiler has the standard library.
    pub targets: Vec<GuestTarget>,
    pub std_source: Option<StdSource>,
}

/// Selects the best way to build guests. A precompiled standard library is preferred to compiling one, and the
/// target that produces components to the other.
pub fn choose(installed: &Installed, wanted: Option<GuestTarget>) -> Result<Toolchain, BuildError> {
    let suits = |target: &GuestTarget| wanted.is_none_or(|wanted| wanted == *target);
    for target in [GuestTarget::Wasip2, GuestTarget::Unknown].into_iter().filter(suits) {
        if installed.targets.contains(&target) {
            return Ok(Toolchain { target, std_source: None });
        }
    }
    // WASI's C library cannot be compiled along, so this works only for the other target.
    match &installed.std_source {
        Some(source) if suits(&GuestTarget::Unknown) => {
            Ok(Toolchain { target: GuestTarget::Unknown, std_source: Some(source.clone()) })
        }
        _ => Err(BuildError::NoToolchain { wanted }),
    }
}

/// Returns installation instructions for users who cannot build guests.
pub fn how_to_install(wanted: Option<GuestTarget>) -> String {
    match wanted {
        Some(GuestTarget::Wasip2) => {
            "the Rust target wasm32-wasip2 is not installed; run `rustup target add wasm32-wasip2`".to_owned()
        }
        wanted => {
            let target = wanted.unwrap_or(GuestTarget::Wasip2).name();
            format!(
                "no Rust target for WebAssembly is installed; run `rustup target add {target}`, or on Debian \
                 `apt-get install rustc-web rust-web-src rust-web-llvm cargo-web`"
            )
        }
    }
}

impl Installed {
    /// Finds the tools as seen from a project, because rustup selects the compiler by folder.
    pub fn find(project_dir: &Path) -> Self {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let sysroot = sysroot(&rustc, project_dir);
        let targets = [GuestTarget::Wasip2, GuestTarget::Unknown]
            .into_iter()
            .filter(|target| sysroot.as_ref().is_some_and(|sysroot| has_std(sysroot, *target)))
            .collect();
        let std_source = [(rustc, sysroot), (DEBIAN_RUSTC.into(), Some(PathBuf::from("/usr")))]
            .into_iter()
            .find_map(|(rustc, sysroot)| std_source(rustc.into(), &sysroot?));
        Self { targets, std_source }
    }
}

fn sysroot(rustc: &OsString, project_dir: &Path) -> Option<PathBuf> {
    let output = Command::new(rustc).current_dir(project_dir).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn has_std(sysroot: &Path, target: GuestTarget) -> bool {
    let libraries = sysroot.join("lib/rustlib").join(target.name()).join("lib");
    entries(&libraries).any(|path| path.extension().is_some_and(|extension| extension == "rlib"))
}

fn std_source(rustc: PathBuf, sysroot: &Path) -> Option<StdSource> {
    let source = sysroot.join("lib/rustlib/src/rust/library/std/Cargo.toml");
    if !source.is_file() {
        return None;
    }
    Some(StdSource { rustc, linker: linker(sysroot)? })
}

/// Returns the compiler's own linker, one on the path, or one of any rustup toolchain.
fn linker(sysroot: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let rustup = std::env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")))
        .unwrap_or_default();
    linkers_of(sysroot)
        .into_iter()
        .chain(std::env::split_paths(&path).map(|folder| folder.join("rust-lld")))
        .chain(entries(&rustup.join("toolchains")).flat_map(|toolchain| linkers_of(&toolchain)))
        .find(|linker| linker.is_file())
}

/// Returns the possible places of a toolchain's linker: one for each host platform.
fn linkers_of(sysroot: &Path) -> Vec<PathBuf> {
    entries(&sysroot.join("lib/rustlib")).map(|platform| platform.join("bin/rust-lld")).collect()
}

/// Returns the paths in a folder, or nothing if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use super::GuestTarget::{Unknown, Wasip2};
    use super::*;

    fn source() -> StdSource {
        StdSource { rustc: DEBIAN_RUSTC.into(), linker: "/usr/bin/rust-lld".into() }
    }

    #[test]
    fn an_installed_target_is_preferred_and_wasip2_comes_first() {
        let cases = [
            (vec![Unknown, Wasip2], true, Some((Wasip2, false))),
            (vec![Unknown], true, Some((Unknown, false))),
            (vec![], true, Some((Unknown, true))),
            (vec![], false, None),
        ];
        for (targets, has_source, expected) in cases {
            let installed = Installed { targets, std_source: has_source.then(source) };
            let chosen = choose(&installed, None).ok();
            let chosen = chosen.map(|toolchain| (toolchain.target, toolchain.std_source.is_some()));
            assert_eq!(chosen, expected, "{installed:?}");
        }
    }

    #[test]
    fn a_requested_target_is_used_or_refused() {
        let both = Installed { targets: vec![Wasip2, Unknown], std_source: None };
        assert_eq!(choose(&both, Some(Unknown)).unwrap().target, Unknown);
        let from_source = Installed { targets: vec![], std_source: Some(source()) };
        let refused = choose(&from_source, Some(Wasip2)).unwrap_err().to_string();
        assert!(refused.contains("rustup target add wasm32-wasip2"), "{refused}");
        assert_eq!(choose(&from_source, Some(Unknown)).unwrap().std_source, Some(source()));
    }

    #[test]
    fn an_unknown_target_is_reported_with_the_known_ones() {
        let error = "wasm32-wasi".parse::<GuestTarget>().unwrap_err().to_string();
        assert!(error.contains("wasm32-wasip2") && error.contains("wasm32-unknown-unknown"), "{error}");
    }
}
